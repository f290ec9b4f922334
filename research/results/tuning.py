"""What was tried to make `flip` and `resolve` better: run what is missing into
research/data/tuning.csv, and tell of it.

    python -m research.results.tuning run --data ../shared/data --out runs/results [--only TABLE
    ...]
        [--variants NAME ...] [--seeds 8]

Seeds are 100 and up: those of the tables on the page, 0 to 9, are kept for judging. On three of
these tables (digits-mlp, mnist-mlp, fashion-mlp) `flip` as first built is run, and nothing else, to
be compared with what it became. What the CSV holds is not run again; a campaign is added as soon as
it is finished, also by several processes at a time. The variants are in variants.py.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock

from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.simulation.comparison.statistics import (
    ROUNDING_TOLERANCE,
    Estimate,
    area_under_curve,
    compare_pairs,
    holm,
    t_interval,
)
from labelahead.simulation.loop import Simulation
from labelahead.simulation.run import build_simulation, prepare_campaign
from research.results.lines import NUMBERS, TrialLine, read_csv, write_csv
from research.results.numbers import Versus
from research.results.pools import pool_file
from research.results.runs import exit_code, run_plan
from research.results.table import check_names, read_tables
from research.results.text import MARKS, ByVariant, bare_p, grid
from research.results.variants import (
    DEFAULT,
    MANY_CLASSES,
    PLAIN,
    RESOLVE,
    TWO_CLASSES,
    VARIANTS,
    Variant,
)

FILE = "tuning.csv"
CSV = NUMBERS / FILE
COMMAND = "make results-tuning"
SEEDS = 8
FIRST_SEED = 100  # those below are kept for judging what was chosen from here on
HELD_OUT = ("digits-mlp", "mnist-mlp", "fashion-mlp")  # tables of the page, where it is judged
FEW = 4  # campaigns, below which an interval says nothing
ALL = "all"
FIRST_BUILT = f"`{DEFAULT}` as first built"
BUDGET = {"initial": 20, "labels": 200, "retrain_every": 20}
CANDIDATES = 1000
# Where the items come from, and the network that learns them.
TABLES = {
    "digits": ("digits", "mlp"),
    "fashion": ("pool:fashion", "mlp"),
    "mnist": ("pool:mnist", "mlp"),
    "cifar10": ("{data}/cifar10_12k.npz", "backbone"),
    "svhn": ("{data}/svhn_12k.npz", "backbone"),
    "digits-cnn": ("digits", "cnn"),
    "digits-outliers": ("pool:digits-outliers", "mlp"),
    "digits-noise": ("pool:digits-noise", "mlp"),
    "digits-imbalance": ("pool:digits-imbalance", "mlp"),
}


class Beside(NamedTuple):
    """Where something is tried beside `resolve`, by the exact learner.

    about: the items, in words.
    """

    source: str
    about: str
    budget: Mapping[str, int]
    candidates: int
    variants: Mapping[str, Variant]


BESIDE = {
    "cifar100-exact": Beside(
        "{data}/cifar100_12k.npz",
        "CIFAR-100 features, 100 classes",
        {"initial": 100, "labels": 220, "retrain_every": 40},
        CANDIDATES,
        MANY_CLASSES,
    ),
    "pets-exact": Beside(
        "pool:pets",
        "CIFAR-10 features, cats and dogs alone",
        {"initial": 4, "labels": 64, "retrain_every": 4},
        400,  # `by labels` has no table to look up
        TWO_CLASSES,
    ),
}
EVERY = {**VARIANTS, **MANY_CLASSES, **TWO_CLASSES}


def read_trials(path: Path) -> list[TrialLine]:
    """All lines of the CSV, checked one by one; none while there is no file."""
    lines = read_csv(path, TrialLine, f"run `{COMMAND}`") if path.exists() else []
    unknown = next((line.variant for line in lines if line.variant not in EVERY), None)
    if unknown is not None:
        raise InputError(f"{path} has the variant {unknown!r}; expected one of {', '.join(EVERY)}")
    return lines


# --- the runs
# -----------------------------------------------------------------------------------------------


def plan_of(name: str, seed: int, data: Path, out: Path) -> Simulation:
    """The campaign of that seed: nothing in it depends on the variant."""
    if name in HELD_OUT:  # as the table on the page has it
        (held,) = read_tables(only=[name])
        campaign = held.read_campaign("", data, pool_file(held.source, data, out))
        return build_simulation(
            prepare_campaign(replace(campaign, seed=seed, threads=campaign.threads or 1))
        )
    beside = BESIDE.get(name)
    source, model = TABLES[name] if beside is None else (beside.source, "exact")
    settings = {
        "data": {"name": str(pool_file(source, data, out) or source.replace("{data}", str(data)))},
        "model": {"name": model},
        "budget": BUDGET if beside is None else beside.budget,
        "asking": {"candidates": CANDIDATES if beside is None else beside.candidates},
        "seed": seed,
        "threads": 1,
        "device": "cpu",
    }
    return build_simulation(prepare_campaign(parse_campaign(settings)))


def run(
    tables: Sequence[str],
    variants: Sequence[str],
    seeds: Sequence[int],
    *,
    data: Path,
    out: Path,
    numbers: Path,
) -> list[str]:
    """Every campaign that is not there yet; what failed, in a sentence each."""
    failed = []
    for seed in seeds:  # outside: an interrupted run has whole seeds
        for table in tables:
            plan = None
            for variant in variants:
                if (table, variant, seed) in {x.campaign for x in read_trials(numbers)}:
                    continue
                what = f"{table}: {variant}, seed {seed}"
                try:
                    plan = plan or plan_of(table, seed, data, out)
                    start = time.perf_counter()
                    rounds = run_plan(plan, EVERY[variant].how.asking(plan.asking))
                except Exception as error:  # one campaign's failure must not end the others
                    failed.append(f"{what}: {type(error).__name__}: {error}")
                    print(failed[-1], flush=True)
                    continue
                seconds = time.perf_counter() - start
                lines = [
                    TrialLine(table, variant, seed, r.labels, r.accuracy or 0.0, seconds)
                    for r in rounds
                ]
                add(numbers, out, lines)
                last = f"{100 * lines[-1].accuracy:.1f} % at {lines[-1].labels} labels"
                print(f"{what}: {last}, {seconds:.0f} s", flush=True)
    return failed


def add(numbers: Path, out: Path, new: Sequence[TrialLine]) -> None:
    """Into the CSV, beside what other processes have put there meanwhile."""
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / "tuning.lock"):
        there = read_trials(numbers)
        fresh = {x.campaign for x in new} - {x.campaign for x in there}
        write_csv(numbers, TrialLine, [*there, *(x for x in new if x.campaign in fresh)])


class Work(NamedTuple):
    """Every table with every variant and every seed."""

    tables: list[str]
    variants: list[str]
    seeds: Sequence[int]


def list_wanted_campaigns(
    only: Sequence[str], names: Sequence[str], seeds: int | None
) -> list[Work]:
    """What the command line asks for; of the tables kept for judging only what they are for."""
    tables = check_names(only, [*TABLES, *BESIDE, *HELD_OUT], "table")
    every = check_names(names, EVERY, "variant")
    variants = [v for v in every if v in VARIANTS]
    if variants and PLAIN not in variants:
        held = [t for t in only if t in HELD_OUT]
        if held:
            raise InputError(
                f"{', '.join(variants)} asked for on {held[0]}, which is kept for judging; "
                f"expected the variant {PLAIN!r} there: run the others on {', '.join(TABLES)}"
            )
        tables = [t for t in tables if t in TABLES]
    tried = [t for t in tables if t in TABLES]
    judged = [t for t in read_tables(only=HELD_OUT) if t.name in tables and PLAIN in variants]
    chosen_on = range(FIRST_SEED, FIRST_SEED + (SEEDS if seeds is None else seeds))
    works = [
        Work(tried, variants, chosen_on),
        *(Work([t.name], [PLAIN], range(t.seeds)[:seeds]) for t in judged),
        *(
            Work([t], [v for v in BESIDE[t].variants if v in every], chosen_on)
            for t in tables
            if t in BESIDE
        ),
    ]
    return [work for work in works if work.tables and work.variants]


# --- the numbers
# --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A variant minus `flip` as first built along the curve, over all campaigns that both have.

    p: of a paired t-test, after Holm over the variants; None for a single campaign. ahead: on how
    many of the campaigns the variant's curve is higher.
    """

    name: str
    difference: Estimate
    p: float | None
    ahead: int

    @classmethod
    def of(cls, name: str, own: Mapping[int, float], plain: Mapping[int, float]) -> "Trial | None":
        """From areas by campaign, p by itself; None without a campaign that both have."""
        gaps = np.array([own[c] - plain[c] for c in sorted(own.keys() & plain.keys())])
        if not len(gaps):
            return None
        tested = compare_pairs([dict(own), dict(plain)])
        return cls(
            name,
            t_interval(gaps),
            tested[0].p if tested else None,
            int((gaps > ROUNDING_TOLERANCE).sum()),
        )

    @property
    def verdict(self) -> int:
        """1 above what it is compared with, -1 below, 0 not told apart from it."""
        return 0 if self.p is None else Versus(self.difference, self.p).verdict


def trials(lines: Sequence[TrialLine]) -> list[Trial]:
    """Every variant that shares a campaign with `flip` as first built, the best first.

    Seeds that are kept for judging do not count.
    """
    areas = _areas([x for x in lines if x.seed >= FIRST_SEED])
    plain = areas.pop(PLAIN, {})
    made = [trial for name, own in areas.items() if (trial := Trial.of(name, own, plain))]
    return sorted(correct_p_values(made), key=lambda t: (-t.difference.mean, t.name))


def correct_p_values(made: Sequence[Trial]) -> list[Trial]:
    """The same, p after Holm."""
    after = iter(holm([t.p for t in made if t.p is not None]))
    return [t if t.p is None else replace(t, p=next(after)) for t in made]


def _areas(lines: Sequence[TrialLine]) -> dict[str, dict[int, float]]:
    """Variant -> number of the campaign (table and seed) -> mean accuracy along the curve."""
    rounds: dict[tuple[str, str, int], list[TrialLine]] = {}
    for line in sorted(lines):
        rounds.setdefault(line.campaign, []).append(line)
    numbers: dict[tuple[str, int], int] = {}
    budgets: dict[str, tuple[list[int], str]] = {}
    areas: dict[str, dict[int, float]] = {}
    for (table, variant, seed), own in rounds.items():
        labels = [x.labels for x in own]
        expected, other = budgets.setdefault(table, (labels, f"{variant}, seed {seed}"))
        if labels != expected:
            raise InputError(
                f"{FILE}: {table}, {variant}, seed {seed}, has rounds at {labels} labels; expected "
                f"{expected} as {other} has: delete its lines and run `{COMMAND}`"
            )
        number = numbers.setdefault((table, seed), len(numbers))
        curve = np.array(labels, dtype=np.float64), np.array([x.accuracy for x in own])
        areas.setdefault(variant, {})[number] = float(area_under_curve(*curve))
    return areas


def judge_default(lines: Sequence[TrialLine], tables: Mapping[str, ByVariant]) -> list[Trial]:
    """`flip` as it is now minus as first built, on the seeds kept for it: by table, then over all.

    tables: those of the page, where `flip` is as it is now. p is after Holm over the tables;
    that of all together is a test by itself. A table that lacks either of the two is left out.
    """
    parts = {}
    for table in HELD_OUT:
        own = [x for x in lines if (x.table, x.variant) == (table, PLAIN) and x.seed < FIRST_SEED]
        parts[table] = [*own, *_present(table, tables)]
    parts[ALL] = [x for part in parts.values() for x in part]
    made = []
    for name, part in parts.items():
        areas = _areas(part)
        if trial := Trial.of(name, areas.get(DEFAULT, {}), areas.get(PLAIN, {})):
            made.append(trial)
    return [
        *correct_p_values([t for t in made if t.name != ALL]),
        *(t for t in made if t.name == ALL),
    ]


def _present(table: str, tables: Mapping[str, ByVariant]) -> list[TrialLine]:
    """The campaigns of `flip` on the page."""
    numbers = (tables.get(table) or {}).get("")
    if numbers is None:
        return []
    return [
        TrialLine(table, DEFAULT, seed, int(at), float(value), 0.0)
        for seed, curve in numbers.curves.accuracy.get(DEFAULT, {}).items()
        for at, value in zip(numbers.curves.labels, curve, strict=True)
    ]


# --- its part of the page
# -----------------------------------------------------------------------------------


def tuning_block(lines: Sequence[TrialLine], tables: Mapping[str, ByVariant]) -> str:
    """The table of the variants, what follows from it, and how the choice fares on other seeds."""
    made = trials(lines)
    if not made:
        return f"Not measured yet: `{COMMAND}`."
    head = ["what was changed", "campaigns", "curve − as first built, points", "p", "ahead on"]
    rows = [
        [VARIANTS[t.name].about, str(t.difference.n), _points(t), _p(t), str(t.ahead)]
        for t in made
        if t.difference.n >= FEW
    ]
    held = _format_held_out_seeds(judge_default(lines, tables))
    parts = [
        grid(head, rows),
        _verdict(made) + _list_dropped_variants(made),
        held,
        beside_resolve(lines),
        _sources(made),
    ]
    return "\n\n".join(filter(None, parts))


def beside_resolve(lines: Sequence[TrialLine]) -> str:
    """What was tried beside `resolve`, minus it, a table each place.

    Nothing before it has been run.
    """
    parts = []
    for name, place in BESIDE.items():
        areas = _areas([x for x in lines if x.table == name])
        plain = areas.pop(RESOLVE, {})
        made = correct_p_values(
            [t for v in place.variants if (t := Trial.of(v, areas.get(v, {}), plain))]
        )
        if made:
            labels = f"{place.budget['initial']} to {place.budget['labels']} labels"
            head = [
                f"{place.about}, {labels}",
                "campaigns",
                f"curve − `{RESOLVE}`, points",
                "p",
                "ahead on",
            ]
            ordered = sorted(made, key=lambda t: -t.difference.mean)
            cells = [
                [place.variants[t.name].about, str(t.difference.n), _points(t), _p(t), str(t.ahead)]
                for t in ordered
            ]
            parts.append(grid(head, cells))
    about = (
        f"Beside `{RESOLVE}`, by the exact learner, on seeds of their own too (p after Holm "
        "over each table)."
    )
    return "\n\n".join([about, *parts]) if parts else ""


def _list_dropped_variants(made: Sequence[Trial]) -> str:
    """Variants of which too little is known for a row; they count in the correction, too."""
    few = [t for t in made if t.difference.n < FEW]
    names = [f"{VARIANTS[t.name].about} ({_points(t).split(' ')[0]})" for t in few]
    return f" On fewer than {FEW} campaigns, then left: {'; '.join(names)}." if few else ""


def _format_held_out_seeds(made: Sequence[Trial]) -> str:
    """How the choice fares on seeds that it was not made on."""
    there = [t.name for t in made]
    lacking = ", ".join(f"`{name}`" for name in HELD_OUT if name not in there)
    about = (
        f"`{DEFAULT}` as it is now minus {FIRST_BUILT}, on seeds that nothing was chosen on (0 to "
        "9) of [clean pools](results-networks.md); p after Holm over the tables, for all together by itself"
    )
    if not made:
        return f"{about}: not measured yet."
    head = ["table", "campaigns", "curve − as first built, points", "p", "ahead on"]
    rows = [
        [
            t.name if t.name == ALL else f"`{t.name}`",
            str(t.difference.n),
            _points(t),
            _p(t),
            str(t.ahead),
        ]
        for t in made
    ]
    end = f"{about}." if not lacking else f"{about}; not measured yet: {lacking}."
    return f"{end}\n\n{grid(head, rows)}"


def _points(t: Trial) -> str:
    """+0.42 ± 0.31: the differences are too small for one digit."""
    e = t.difference
    half = "" if e.low is None or e.high is None else f" ± {50 * (e.high - e.low):.2f}"
    text = f"{100 * e.mean:+.2f}"
    text = {"+0.00": "0.00", "-0.00": "0.00"}.get(text, text).replace("-", "−")
    return f"{text}{half}{MARKS[t.verdict]}"


def _p(t: Trial) -> str:
    return "—" if t.p is None else bare_p(t.p)


def _verdict(made: Sequence[Trial]) -> str:
    tested = [t for t in made if not VARIANTS[t.name].rival and t.p is not None]
    above, below = (sum(t.verdict == v for t in tested) for v in (1, -1))
    return (
        f"Of {len(tested)} changes with two campaigns or more, {above or 'none'} significantly better "
        f"than {FIRST_BUILT}, {below or 'none'} significantly worse."
    )


def _sources(made: Sequence[Trial]) -> str:
    there = {PLAIN, *(t.name for t in made)}
    lacking = ", ".join(v.about for n, v in VARIANTS.items() if n not in there)
    sources = f"`{COMMAND}` · `research/data/{FILE}`"
    return f"{sources} · not run yet: {lacking}" if lacking else sources


# --- the command
# --------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 if all went well."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=about)
    jobs = parser.add_subparsers(dest="job", required=True)
    job = jobs.add_parser("run", help="run what is missing, into the CSV")
    job.add_argument("--data", type=Path, default=Path("../shared/data"), help="data sets")
    job.add_argument("--out", type=Path, default=Path("runs/results"), help="folder of the pools")
    job.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="TABLE",
        help=", ".join([*TABLES, *BESIDE, *HELD_OUT]),
    )
    job.add_argument("--variants", nargs="+", default=[], metavar="NAME", help=", ".join(EVERY))
    many = f"so many ({SEEDS}) from {FIRST_SEED} on; from 0 on (10) in tables kept for judging"
    job.add_argument("--seeds", type=int, help=many)
    job.add_argument("--numbers", type=Path, default=CSV, help="the CSV")
    given = parser.parse_args(arguments)
    places = {"data": given.data, "out": given.out, "numbers": given.numbers}
    return exit_code(
        lambda: [
            text
            for part in list_wanted_campaigns(given.only, given.variants, given.seeds)
            for text in run(*part, **places)
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
