"""What one would do without labelahead: scikit-learn's logistic regression, beside the default on
the same pools.

    python -m research.results.comparators run --data ../shared/data [--only TABLE ...]     #
    research/data/comparators.csv

Split, first labels and the order of random labels are those of the campaigns `random` of the exact
learner's tables, seed by seed; our own numbers are read from these tables. What the CSV holds is
not run again. `python -m research.results page` shows it.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from labelahead.errors import InputError
from labelahead.files import lock_folder
from labelahead.simulation.comparison.statistics import Array, Estimate, t_interval
from labelahead.simulation.loop import Simulation, State, run_rounds
from labelahead.strategies import find_strategy
from research.competitors.logistic import HOW, LogisticLearner
from research.results import texts
from research.results.competitors import Source, plan_of
from research.results.lines import CSV, NUMBERS, Line, TrialLine, read_csv, write_csv
from research.results.numbers import DEFAULT, RANDOM
from research.results.runs import exit_code
from research.results.table import Table, check_names, read_tables
from research.results.text import MARKS, ByVariant, grid, spread

FILE = "comparators.csv"
COMMAND = "make results-comparators"
SETS = {
    "news-exact": "20 newsgroups",
    "r8-exact": "Reuters R8",
    "r52-exact": "Reuters R52",
    "cifar10-exact": "CIFAR-10",
    "caltech-exact-20": "Caltech101, 101 classes",
    "caltech8-exact": "Caltech101, 8 classes",
    "satimage-exact": "Satellite pixels, a table",
    "vowel-exact": "Vowels, a table",
}
COUNTS = (20, 40, 80, 160)  # labels at which accuracies are compared
SEEDS = range(10)
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)  # C, of which cross-validation takes one
FOLDS = 3
SAME_CAMPAIGN = 0.01  # accuracy that rounding on another machine may change
Rows = Any  # (n, d) an array, or scipy's sparse one
Classifier = Any  # scikit-learn's


# --- the competitors
# ---------------------------------------------------------------------------------------------


def by_default(x: Array, y: np.ndarray) -> Classifier:
    """As scikit-learn has it: C = 1."""
    return LogisticRegression(max_iter=1000).fit(x, y)


def by_folds(x: Array, y: np.ndarray) -> Classifier:
    """C by three-fold cross-validation on the labels that there are, C = 1 while no class has three
    of them.
    """
    return LogisticRegression(C=strength(x, y), max_iter=1000).fit(x, y)


def by_peers(x: Array, y: np.ndarray) -> Classifier:
    """As in the table beside scikit-activeml: C = 1,000, no intercept."""
    return LogisticRegression(**HOW).fit(x, y)


def strength(x: Array, y: np.ndarray) -> float:
    """The least C of those that are right most often in the folds.

    Classes with few labels are where they fall.
    """
    if np.unique(y, return_counts=True)[1].max() < FOLDS:
        return 1.0
    right = np.zeros(len(STRENGTHS))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # with little ridge; 300 steps tell the strengths apart
        for train, held in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(x, y):
            for i, C in enumerate(STRENGTHS):
                model = fit_classifier(
                    lambda x, y, C=C: LogisticRegression(C=C, max_iter=300).fit(x, y),
                    x[train],
                    y[train],
                )
                right[i] += (model.predict(x[held]) == y[held]).sum()
    return STRENGTHS[int(right.argmax())]


def fit_classifier(
    fit: Callable[[Array, np.ndarray], Classifier], x: Array, y: np.ndarray
) -> Classifier:
    """A classifier also while all labels are of one class, which logistic regression refuses."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="The number of unique classes"
        )  # few labels, many classes
        return fit(x, y) if len(np.unique(y)) > 1 else DummyClassifier().fit(x, y)


def load_inputs(plan: Simulation, table: Table, source: Source) -> Rows:
    """What our learner sees: features and embeddings of the encoder, standardised columns."""
    return plan.learner.inputs.flatten(1).double().numpy()


def load_centred_inputs(plan: Simulation, table: Table, source: Source) -> Rows:
    """The same, centred over the pool and of length one."""
    return LogisticLearner.beside(plan.learner).inputs.double().numpy()


def words(plan: Simulation, table: Table, source: Source) -> Rows:
    """TF-IDF with scikit-learn's settings; the words are those of the pool."""
    pool, test = texts.draw_texts(table.source.partition(":")[2], source.out / "texts")
    said = [label for _, label in pool], [label for _, label in test]
    known = [plan.labeller(i) for i in range(len(pool))], plan.test_labels.tolist()
    if [[plan.names[c] for c in part] for part in known] != list(map(list, said)):
        raise InputError(
            f"the texts of {table.name} are not those of its embeddings; expected the same: "
            "delete both"
        )
    vectors = TfidfVectorizer().fit([text for text, _ in pool])
    return vectors.transform([text for text, _ in [*pool, *test]])


class Competitor(NamedTuple):
    """About it for the page.

    What it is shown of the items, how it learns, whether it asks by margin or at random.
    """

    about: str
    rows: Callable[[Simulation, Table, Source], Rows]
    fit: Callable[[Array, np.ndarray], Classifier]
    margin: bool = False


COMPETITORS = {
    "tfidf": Competitor("TF-IDF + LR, random", words, by_folds),
    "tfidf-peers": Competitor("TF-IDF + LR without intercept, random", words, by_peers),
    "default": Competitor("embedding + LR with C = 1, random", load_inputs, by_default),
    "folds": Competitor("embedding + LR, random", load_inputs, by_folds),
    "folds-margin": Competitor("embedding + LR, margin", load_inputs, by_folds, True),
    "peers": Competitor("centred + LR without intercept, random", load_centred_inputs, by_peers),
    "peers-margin": Competitor(
        "centred + LR without intercept, margin", load_centred_inputs, by_peers, True
    ),
}


def list_competitors(table: Table) -> list[str]:
    """TF-IDF is for texts."""
    return [
        name
        for name, competitor in COMPETITORS.items()
        if competitor.rows is not words or table.source.startswith("texts:")
    ]


# --- the runs
# -----------------------------------------------------------------------------------------------


def random_order(plan: Simulation) -> tuple[list[int], dict[int, float]]:
    """Positions as the campaign `random` labels them, and what our learner makes of them, by number
    of labels.
    """
    last: list[State] = []
    asked = replace(
        plan, asking=replace(plan.asking, strategy=find_strategy(RANDOM), mode=None), forecast=False
    )
    own = {r.labels: r.accuracy or 0.0 for r in run_rounds(asked, keep=last.append)}
    return last[-1].pool.labelled.tolist(), own


def accuracies(
    competitor: Competitor, rows: Rows, plan: Simulation, order: Sequence[int]
) -> dict[int, float]:
    """Labels -> accuracy on the test items, of a competitor with these rows (n, d) of all items.

    order: positions in the order of random labels, with which those who ask by margin begin.
    """
    step = plan.budget.retrain_every
    sizes = (
        list(range(plan.budget.initial, COUNTS[-1] + 1, step))
        if competitor.margin
        else list(COUNTS)
    )
    test, excluded, came = plan.test.numpy(), plan.excluded.numpy(), {}
    rng, at = np.random.default_rng(plan.seed), list(order[: sizes[0]])
    for size, following in zip(sizes, [*sizes[1:], 0], strict=True):
        view = in_span(rows, at)
        model = fit_classifier(competitor.fit, view[at], np.array([plan.labeller(i) for i in at]))
        if size in COUNTS:
            came[size] = float((model.predict(view[test]) == plan.test_labels.numpy()).mean())
        if competitor.margin:
            free = np.setdiff1d(np.arange(len(view)), [*at, *excluded])
            at += (
                free[least_sure(model.predict_proba(view[free]), following - size, rng)].tolist()
                if following
                else []
            )
        else:
            at = list(order[:following])
    return came


def in_span(rows: Rows, at: Sequence[int]) -> Array:
    """Rows (n, d) by coordinates in the span of the labelled ones (n, L): for a linear model with a
    ridge the same.

    At scikit-learn's tolerance the solver stops a little later so; up to one prediction in 200
    differs, either way.
    """
    own = rows[at] if isinstance(rows, np.ndarray) else rows[at].toarray()
    return np.asarray(rows @ np.linalg.svd(own, full_matrices=False)[2].T)


def least_sure(p: Array, count: int, rng: np.random.Generator) -> np.ndarray:
    """Places of probabilities (n, C) whose two largest are nearest to each other.

    Ties at random.
    """
    top = np.sort(p, axis=1)[:, -2:]
    return np.lexsort((rng.random(len(p)), top[:, -1] - top[:, 0]))[:count]


def run_missing(
    only: Sequence[str], seeds: Sequence[int], source: Source, numbers: Path, tables: Path = CSV
) -> None:
    """Every curve that the CSV lacks, into it. tables: the folder of our own campaigns."""
    wanted = read_tables(only=check_names(only, SETS, "table with comparators"))
    there = read_csv(numbers, TrialLine, f"run `{COMMAND}`") if numbers.exists() else []
    have = {x.campaign for x in there}
    work = [
        (t, s, [n for n in list_competitors(t) if (t.name, n, s) not in have])
        for s in seeds
        for t in wanted
    ]
    work = [job for job in work if job[2]]
    began = time.monotonic()
    for done, (table, seed, names) in enumerate(work, 1):
        plan = plan_of(table, seed, source)
        order, own = random_order(plan)
        require_same(table, seed, own, tables)
        for name in names:
            start = time.perf_counter()
            came = accuracies(
                COMPETITORS[name], COMPETITORS[name].rows(plan, table, source), plan, order
            )
            spent = time.perf_counter() - start
            there += [
                TrialLine(table.name, name, seed, size, value, spent)
                for size, value in came.items()
            ]
        write_csv(numbers, TrialLine, there)
        end = datetime.now() + timedelta(
            seconds=(time.monotonic() - began) * (len(work) - done) / done
        )
        print(f"{done}/{len(work)}: {table.name}, seed {seed}; ready about {end:%H:%M}", flush=True)


def require_same(table: Table, seed: int, own: Mapping[int, float], tables: Path) -> None:
    """Raise unless the campaign `random` on record has the accuracies of the one whose labels are
    used.
    """
    path = tables / f"{table.name}.csv"
    recorded = [
        x for x in read_csv(path, Line) if (x.variant, x.strategy, x.seed) == ("", RANDOM, seed)
    ]
    if not recorded:
        raise InputError(
            f"{path} has no campaign {RANDOM}, seed {seed}; expected it: run `make "
            f"results-{table.name}`"
        )
    for x in recorded:
        if abs(own.get(x.labels, -1.0) - x.accuracy) > SAME_CAMPAIGN:
            raise InputError(
                f"{table.name}, {RANDOM}, seed {seed}, has {own.get(x.labels)} at {x.labels} "
                "labels, on record "
                f"{x.accuracy}; expected the same campaign: data or code have changed, run `make "
                f"results-{table.name} "
                "ARGS=--again`"
            )


# --- its part of the page
# -----------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One learner at one number of labels.

    chosen, random: ours queried by the default, or at random, minus it.
    """

    accuracy: Estimate
    chosen: Estimate
    random: Estimate


Cells = dict[tuple[str, str, int], Cell]  # table, learner, labels


def sign(e: Estimate) -> int:
    """1 above zero, -1 below, 0 where the interval contains it."""
    return 0 if e.low is None or e.high is None else int(e.low > 0) - int(e.high < 0)


def cells_of(lines: Sequence[TrialLine], measured: Mapping[str, ByVariant]) -> Cells:
    """All learners of all sets, ours among them.

    Differences are paired by seed, over the seeds that all three have.
    """
    values: dict[tuple[str, str, int], dict[int, float]] = {}
    for table in SETS:
        numbers = (measured.get(table) or {}).get("")
        for name in (RANDOM, DEFAULT) if numbers else ():
            for seed, curve in numbers.curves.accuracy.get(name, {}).items():
                for at, value in zip(numbers.curves.labels, curve, strict=True):
                    values.setdefault((table, name, int(at)), {})[seed] = float(value)
    for x in lines:
        values.setdefault((x.table, x.variant, x.labels), {})[x.seed] = x.accuracy
    cells = {}
    for (table, name, at), own in values.items():
        ours = [values.get((table, n, at), {}) for n in (DEFAULT, RANDOM)]
        common = sorted(own.keys() & ours[0].keys() & ours[1].keys())
        if at in COUNTS and common:
            this, *leads = (np.array([of[s] for s in common]) for of in (own, *ours))
            cells[table, name, at] = Cell(
                t_interval(this), *(t_interval(of - this) for of in leads)
            )
    return cells


def comparators_block(lines: Sequence[TrialLine], measured: Mapping[str, ByVariant]) -> str:
    """The table, what follows from it, and how to get it again."""
    if not lines:
        return f"Not measured yet: `{COMMAND}`."
    cells = cells_of(lines, measured)
    titles = {
        RANDOM: "ours, random",
        DEFAULT: f"**ours, queried by {DEFAULT}**",
        **{n: r.about for n, r in COMPETITORS.items()},
    }
    rows = []
    for table, about in SETS.items():
        own = {name: [cells.get((table, name, at)) for at in COUNTS] for name in titles}
        rows.append([f"**{about}**", *[""] * len(COUNTS)])
        for name, shown in own.items():
            if any(shown):
                rows.append([titles[name], *(_cell(c) for c in shown)])
    head = ["", *(f"{at} labels, %" for at in COUNTS)]
    everyone, at_random = (
        list(COMPETITORS),
        [name for name, competitor in COMPETITORS.items() if not competitor.margin],
    )
    said = (
        f"Beside whichever rival is best there, `{DEFAULT}` is "
        f"{verdict(cells, everyone, lambda c: c.chosen)} "
        f"{below_random(cells)}\n\nWith the very same random labels, beside the best of those who "
        "have them, our "
        f"learner is {verdict(cells, at_random, lambda c: c.random)} {gaps(cells, at_random)}"
    )
    return "\n\n".join([grid(head, rows), said, f"`{COMMAND}` · `research/data/{FILE}`"])


def verdict(cells: Cells, competitors: Sequence[str], lead: Callable[[Cell], Estimate]) -> str:
    """How often ours is ahead of the best of these competitors, set by set and number by number.

    lead: ours minus it.
    """
    places_by_sign: dict[int, list[tuple[str, int]]] = {1: [], 0: [], -1: []}
    for table in SETS:
        for at in COUNTS:
            there = [c for name in competitors if (c := cells.get((table, name, at)))]
            if there:
                best = max(there, key=lambda c: c.accuracy.mean)
                places_by_sign[sign(lead(best))].append((table, at))
    first, level, behind = (places_by_sign[v] for v in (1, 0, -1))
    return (
        f"first in {len(first)} of {len(first + level + behind)} places (sets by numbers of "
        "labels), level in "
        f"{len(level)}{_places(level)}, behind in {len(behind)}{_places(behind)}."
    )


def below_random(cells: Cells) -> str:
    """Where the default is worse than our own learner with random labels."""
    there = [
        (t, at)
        for t in SETS
        for at in COUNTS
        if (c := cells.get((t, RANDOM, at))) and sign(c.chosen) < 0
    ]
    return f"Below our own random labels it is in {len(there)}{_places(there)}."


def gaps(cells: Cells, competitors: Sequence[str]) -> str:
    """Our learner minus each competitor on the same random labels, as a mean over the places of
    the competitor.
    """
    said = []
    for name in competitors:
        there = [c.random.mean for (_, who, _), c in cells.items() if who == name]
        if there:
            points = f"{100 * np.mean(there):+.1f}".replace("-", "−")
            said.append(
                f"{points} on “{COMPETITORS[name].about.removesuffix(', random')}” ({len(there)} places)"
            )
    return f"In points that is {', '.join(said)}."


def _cell(c: Cell | None) -> str:
    return f"{spread(c.accuracy)}{MARKS[-sign(c.chosen)]}" if c else "—"


def _places(places: Sequence[tuple[str, int]]) -> str:
    by_set: dict[str, list[str]] = {}
    for table, at in places:
        by_set.setdefault(SETS[table], []).append(str(at))
    named_so = "; ".join(f"{about}: {', '.join(counts)}" for about, counts in by_set.items())
    return f" ({named_so})" if places else ""


# --- the command
# --------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 if all went well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    jobs = parser.add_subparsers(dest="job", required=True)
    job = jobs.add_parser("run", help="run what is missing, into the CSV")
    job.add_argument("--data", type=Path, default=Path("../shared/data"), help="data sets")
    job.add_argument("--out", type=Path, default=Path("runs/results"), help="folder of the pools")
    job.add_argument("--only", nargs="+", default=[], metavar="TABLE", help=", ".join(SETS))
    job.add_argument("--seeds", type=int, default=len(SEEDS), help="so many from 0 on")
    job.add_argument("--numbers", type=Path, default=NUMBERS / FILE, help="the CSV")
    given = parser.parse_args(arguments)

    def work() -> list[str]:
        with lock_folder(
            given.out / "comparators"
        ):  # two at a time would write over each other's lines
            run_missing(
                given.only, range(given.seeds), Source(given.data, given.out), given.numbers
            )
        return []

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
