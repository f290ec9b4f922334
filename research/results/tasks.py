"""Several classes at once, numbers and ratings: labels needed, estimated errors, intervals.

    python -m research.results.task_sets --data ../shared/data     # the sets, once
    python -m research.results.tasks run --seeds 0-9               # one campaign each, resumable
    python -m research.results.tasks table                         # the table of docs/tasks.md

Sets: `research.results.task_sets`, at most 1,000 items. Of every set 30 % of the items are for testing,
drawn by the seed. Campaigns of `labelahead run`: the exact learner, 10 random labels, then 150 that
are queried one by one and tested in rounds of ten. Baselines select batches of ten.

The table compares the default strategy with random and with the best of the baselines by the mean
error along the curve (paired t-tests over seeds, corrected by Holm over all sets), and counts labels
until the mean curve is as good as that of random at its end.
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

import labelahead as la
from labelahead.data import from_arrays
from labelahead.files import replace_file
from labelahead.simulation.comparison.statistics import (
    area_under_curve,
    compute_saving,
    holm,
    t_interval,
)
from labelahead.simulation.measures import Measure, find_error_measure, find_measure
from research.results.task_sets import SETS, load, make_task

OUT = Path(__file__).parents[1] / "data" / "tasks.csv"
DOCS = Path(__file__).parents[2] / "docs" / "tasks.md"
BEGIN, END = "<!-- table of research.results.tasks -->", "<!-- end of the table -->"
TEST_SHARE, INITIAL, LABELS, ROUND = 0.3, 10, 160, 10
FIELDS = ("set", "strategy", "seed", "labels", "value", "error", "estimate", "coverage", "width")
RELIABLE = 50  # labels from which on estimates are judged
BASELINES = {
    "multilabel": ("binary-uncertainty", "cvirs", "maxherding"),
    "number": ("qbc", "gsx", "igs", "maxherding"),
    "rating": ("gsx", "igs", "maxherding"),
}


def list_strategies(name: str) -> tuple[str, ...]:
    """Return random, the default strategy and the baselines of a set."""
    task = SETS[name][0]
    return ("random", "resolve" if task == "multilabel" else "variance", *BASELINES[task])


def run_campaign(name: str, strategy: str, seed: int, data: Path) -> list[dict[str, object]]:
    """Return one row for each round of a campaign."""
    found = load(name, data)
    task = make_task(name, found.outputs)
    y = found.y[:, 0] if found.y.shape[1] == 1 else found.y
    order = np.random.default_rng(seed).permutation(len(found.x))
    test = np.sort(order[: int(TEST_SHARE * len(order))]).tolist()
    labels = min(LABELS, len(order) - len(test))
    settings = {
        "model": {"name": "exact"},
        "asking": {"strategy": strategy},
        "budget": {"initial": INITIAL, "labels": labels, "retrain_every": ROUND},
        "seed": seed,
        "threads": 1,
    }
    given = from_arrays(found.x, list(y), test=test, name=name, task=task)
    # Only the estimates of the default strategy are in the table.
    result = la.run(settings, data=given, forecast=strategy == list_strategies(name)[1])
    measure, error = result.measure, find_error_measure(task.name)
    return [
        {
            "set": name,
            "strategy": strategy,
            "seed": seed,
            "labels": r.labels,
            "value": f"{measure.read(r):.6g}",
            "error": f"{error.read(r):.6g}",
            "estimate": "" if r.error is None else f"{r.error:.6g}",
            "coverage": f"{r.measures['coverage']:.6g}" if "coverage" in r.measures else "",
            "width": f"{r.measures['interval_width']:.6g}" if "coverage" in r.measures else "",
        }
        for r in result.rounds
    ]


def read_rows(path: Path = OUT) -> list[dict[str, str]]:
    """Return the measurements so far."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run(
    names: list[str], strategies: list[str], seeds: range, data: Path, path: Path = OUT
) -> None:
    """Run every campaign that is missing; each is written when it is finished.

    Args:
        names: Of the sets.
        strategies: Those that are run; empty: all of the set.
        seeds: One campaign for each.
        data: Folder of the sets that come with none of the packages.
        path: The measurements.
    """
    rows: list[dict[str, object]] = [dict(row) for row in read_rows(path)]
    done = {(r["set"], r["strategy"], int(str(r["seed"]))) for r in rows}
    for seed in seeds:
        for name in names:
            for strategy in list_strategies(name):
                if (name, strategy, seed) in done or strategy not in (strategies or [strategy]):
                    continue
                rows += run_campaign(name, strategy, seed, data)
                rows.sort(key=lambda r: (r["set"], r["strategy"], int(str(r["seed"]))))
                _write(path, rows)
                print(name, strategy, seed, rows[-1]["labels"], file=sys.stderr, flush=True)


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    lines = [",".join(FIELDS), *(",".join(str(row[f]) for f in FIELDS) for row in rows)]
    replace_file(path, "\n".join(lines) + "\n")


class Curves(NamedTuple):
    """The campaigns of one set.

    Attributes:
        labels: (rounds,).
        scores: strategy -> (seeds, rounds), of which larger ones are better.
        errors: strategy -> (seeds, rounds), as measured.
        estimates: strategy -> (seeds, rounds), without test labels.
        coverage: strategy -> (seeds, rounds), NaN unless there are intervals.
    """

    labels: np.ndarray
    scores: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]
    estimates: dict[str, np.ndarray]
    coverage: dict[str, np.ndarray]


def read_curves(name: str, rows: list[dict[str, str]]) -> Curves | None:
    """Return the campaigns of a set with the seeds that its strategies have in common.

    Baselines with fewer seeds than random are left out while they run. None: there are not two seeds.
    """
    mine = [r for r in rows if r["set"] == name]
    each = {s: {r["seed"] for r in mine if r["strategy"] == s} for s in list_strategies(name)}
    random, ours, *baselines = each
    seeds = sorted(each[random] & each[ours], key=int)
    strategies = [random, ours, *(b for b in baselines if each[b] >= set(seeds))]
    if len(seeds) < 2:
        return None
    measure = find_measure(SETS[name][0])

    def stack(strategy: str, field: str) -> np.ndarray:
        curves = [
            [float(r[field] or "nan") for r in mine if (r["strategy"], r["seed"]) == (strategy, s)]
            for s in seeds
        ]
        return np.array(curves)

    return Curves(
        stack("random", "labels")[0],
        {s: np.vectorize(measure.restore)(stack(s, "value")) for s in strategies},
        {s: stack(s, "error") for s in strategies},
        {s: stack(s, "estimate") for s in strategies},
        {s: stack(s, "coverage") for s in strategies},
    )


def write_table(path: Path = OUT, docs: Path = DOCS) -> str:
    """Write the table into the documentation, and return it."""
    rows = read_rows(path)
    found = {name: curves for name in SETS if (curves := read_curves(name, rows)) is not None}
    p = dict(zip(found, holm([_compare(*_main(n), c) for n, c in found.items()]), strict=True))
    lines = [
        "| set | seeds | goal | random | ours | saved | p | best baseline | p | estimate | coverage |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    best = {n: b for n, c in found.items() if (b := _find_best_baseline(n, c)) is not None}
    against = [_compare(_main(n)[0], b, found[n]) for n, b in best.items()]
    p_best = dict(zip(best, holm(against), strict=True))
    for name, curves in found.items():
        rival = "— | —"
        if name in best:
            rival = _format_baseline(name, curves, best[name], p_best[name])
        lines.append(_format_row(name, curves, p[name], rival))
    table = "\n".join(lines)
    text = docs.read_text()
    if BEGIN in text:
        before, rest = text.split(BEGIN)
        replace_file(docs, f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")
    return table


def _main(name: str) -> tuple[str, str]:
    """Return the default strategy of a set, and random."""
    return list_strategies(name)[1], "random"


def _areas(curves: Curves, strategy: str) -> np.ndarray:
    return area_under_curve(curves.labels, curves.scores[strategy])


def _compare(first: str, second: str, curves: Curves) -> float:
    """Return the p-value of a paired t-test of the means along the curves."""
    from scipy import stats

    gap = _areas(curves, first) - _areas(curves, second)
    return float(stats.ttest_1samp(gap, 0.0).pvalue) if np.ptp(gap) > 0 else 1.0


def _find_best_baseline(name: str, curves: Curves) -> str | None:
    baselines = [s for s in curves.scores if s not in _main(name)]
    return max(baselines, key=lambda s: float(_areas(curves, s).mean()), default=None)


def _format_baseline(name: str, curves: Curves, best: str, p: float) -> str:
    """Return the labels that the best baseline needs, and the p-value of the difference from it."""
    ours, random = _main(name)
    other = compute_saving(curves.labels, curves.scores[random], curves.scores[best])
    gain = _areas(curves, ours) - _areas(curves, best)
    return f"{best}: {_format_labels(other.other)} | {_format_p(p, gain)}"


def _format_row(name: str, curves: Curves, p: float, rival: str) -> str:
    measure, (ours, random) = find_measure(SETS[name][0]), _main(name)
    saving = compute_saving(curves.labels, curves.scores[random], curves.scores[ours])
    late = curves.labels >= RELIABLE
    gap = (curves.estimates[ours] - curves.errors[ours])[:, late].mean()
    shown = _format_gap(name, gap, float(curves.errors[ours][:, late].mean()))
    coverage = curves.coverage[ours][:, late]
    held = "" if np.isnan(coverage).all() else f"{100 * coverage.mean():.0f} %"
    low = saving.ratio_low or 0.0
    ratio = f"{saving.ratio:.2f} ({low:.2f} to {saving.ratio_high:.2f})"
    gain = _areas(curves, ours) - _areas(curves, random)
    return (
        f"| {name} | {len(gain)} | {measure.format(saving.accuracy)} | {saving.reference:.0f} | "
        f"{_format_labels(saving.other)} | {ratio} | {_format_p(p, gain)} | {rival} | {shown} | "
        f"{held} |"
    )


def _format_labels(count: float) -> str:
    return f"> {LABELS}" if np.isinf(count) else f"{count:.0f}"


def _format_p(p: float, gain: np.ndarray) -> str:
    """Format a p-value, with a plus or a minus if the difference is significant."""
    sign = "" if p >= 0.05 else " +" if t_interval(gain).mean > 0 else " −"
    return ("< 0.001" if p < 0.001 else f"{p:.3f}") + sign


def _format_gap(name: str, gap: float, error: float) -> str:
    """Format how far estimates are from the error: in points of shares, else in per cent of it."""
    measure: Measure = find_error_measure(SETS[name][0])
    return f"{100 * gap:+.1f} points" if measure.is_share else f"{100 * gap / error:+.0f} %"


def main() -> None:
    """Run or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--strategies", default="", help="default: all of each set")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--measurements", type=Path, default=OUT)
    given = parser.parse_args()
    if given.command == "table":
        print(write_table(given.measurements))
        return
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    chosen = [name for name in given.strategies.split(",") if name]
    run(given.sets.split(","), chosen, seeds, given.data, given.measurements)


if __name__ == "__main__":
    main()
