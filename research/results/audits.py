"""Simulated audits: do the intervals of `labelahead audit` hold, and how many labels do they need.

    python -m research.results.audits run --data ../shared/data [--audits 250] [--confseq FOLDER]
    python -m research.results.audits table

`run` trains small models, audits their predictions of the rest of each set with many seeds, looking
after every label, and writes research/data/audits.csv; `table` prints it as in docs/audit.md.
--confseq: folder with the unpacked sources of PyPI confseq 0.0.11 (its wheel is compiled; the betting
functions are plain Python). PyPI ppi-python 0.2.3 is compared if it can be imported.
"""

import argparse
import csv
import gzip
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from labelahead.audit import Indicator, RatioSequence, build_plan
from labelahead.audit.predictions import PLAIN_ERROR

CSV = Path(__file__).parents[1] / "data" / "audits.csv"
LIMIT = float(np.log(2 / 0.05))
TARGET = 0.02
POOL_ITEMS, MAX_DRAWS = 5000, 2500
WIDTH_AUDITS = 40  # audits whose labels are counted
GRID = np.linspace(-0.06, 0.06, 49)  # around the truth, for the ends of the interval
Array = NDArray[np.float64]


def load_mnist(data: Path) -> tuple[Array, NDArray[np.int64]]:
    """Return the first 10,000 training digits."""
    folder = data / "mnist"
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 784)[:10000]
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read()[8:], np.uint8)[:10000]
    return x / 255.0, y.astype(np.int64)


def load_photos(data: Path, name: str) -> tuple[Array, NDArray[np.int64]]:
    """Return 10,000 pictures, every second pixel."""
    with np.load(data / name) as arrays:
        x, y = arrays["x_train"], arrays["y_train"]
    return x[:, ::2, ::2].reshape(len(x), -1) / 255.0, y.astype(np.int64)


def _logistic() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))


def _forest() -> Any:
    return RandomForestClassifier(200, min_samples_leaf=2, random_state=0)


# name -> data, model, number of training labels
Source = Callable[[Path], tuple[Array, NDArray[np.int64]]]
SETS: dict[str, tuple[Source, Callable[[], Any], int]] = {
    "breast cancer, logistic": (lambda _: load_breast_cancer(return_X_y=True), _logistic, 60),
    "digits, logistic": (lambda _: load_digits(return_X_y=True), _logistic, 300),
    "MNIST, logistic": (load_mnist, _logistic, 1000),
    "MNIST, forest": (load_mnist, _forest, 1000),
    "SVHN, forest": (lambda d: load_photos(d, "svhn_12k.npz"), _forest, 3000),
    "CIFAR-10, logistic": (lambda d: load_photos(d, "cifar10_12k.npz"), _logistic, 3000),
}


def make_pool(name: str, data: Path) -> tuple[Array, Array]:
    """Return the probability of an error that the model predicts, and whether it is wrong, (N,)."""
    source, make_model, labels = SETS[name]
    x, y = source(data)
    order = np.random.default_rng(0).permutation(len(y))
    train, pool = order[:labels], order[labels : labels + POOL_ITEMS]
    model = make_model().fit(x[train], y[train])
    p = model.predict_proba(x[pool])
    wrong = model.classes_[p.argmax(1)] != y[pool]
    return 1 - p.max(1), wrong.astype(np.float64)


def make_sequence(error: Array, wrong: Array, seed: int) -> RatioSequence:
    """Return an audit with this seed."""
    plan = build_plan(error, seed=seed)
    draws = plan.list_draws(min(MAX_DRAWS, len(error)))
    return RatioSequence(draws, Indicator.of(wrong[draws.positions], error), target=TARGET)


def is_missed(sequence: RatioSequence, truth: float) -> bool:
    """Return whether the interval leaves the truth out after any label."""
    return bool(np.maximum(*sequence.log_wealth([truth])).max() >= LIMIT)


def count_labels(sequence: RatioSequence, truth: float, items: int) -> float:
    """Return after how many labels the interval is ±2 points; NaN: later than MAX_DRAWS."""
    grid = np.clip(truth + GRID, 1e-9, 1 - 1e-9)
    up, down = (np.maximum.accumulate(side, axis=0) for side in sequence.log_wealth(grid))
    low, high = _find_end(grid, up), _find_end(grid[::-1], down[:, ::-1])
    found = np.cumsum(sequence.numerator.drawn)
    n = np.arange(1, len(found) + 1)
    low, high = np.maximum(low, found / items), np.minimum(high, (found + items - n) / items)
    narrow = np.flatnonzero(high - low <= 2 * TARGET)
    return float(n[narrow[0]]) if len(narrow) else float("nan")


def _find_end(grid: Array, peaks: Array) -> Array:
    """Return where the wealth, which falls along the grid, crosses the limit, after each label."""
    first = (peaks < LIMIT).argmax(axis=1)
    at = np.clip(first, 1, len(grid) - 1)
    rows = np.arange(len(peaks))
    above, below = peaks[rows, at - 1], peaks[rows, at]
    share = np.clip((above - LIMIT) / np.maximum(above - below, 1e-12), 0, 1)
    end: Array = np.where(first == 0, grid[0], grid[at - 1] + share * (grid[at] - grid[at - 1]))
    return end


def calibration_error(error: Array, wrong: Array) -> float:
    """Return the expected calibration error over ten bins of equal size."""
    parts = np.array_split(np.argsort(error), 10)
    gaps = [len(p) * abs(error[p].mean() - wrong[p].mean()) for p in parts]
    return float(sum(gaps) / len(error))


def study(name: str, data: Path, audits: int, confseq: Any, ppi: Any) -> dict[str, Any]:
    """Return one line of the table."""
    error, wrong = make_pool(name, data)
    truth, items = float(wrong.mean()), len(wrong)
    arms = {"strata": error, "plain": np.full(items, PLAIN_ERROR)}
    row: dict[str, Any] = {
        "set": name,
        "items": items,
        "accuracy": round(1 - truth, 4),
        "calibration_error": round(calibration_error(error, wrong), 4),
        "audits": audits,
    }
    for arm, p in arms.items():
        missed, needed = 0, []
        for seed in range(audits):
            sequence = make_sequence(p, wrong, seed)
            missed += is_missed(sequence, truth)
            if seed < WIDTH_AUDITS:
                needed.append(count_labels(sequence, truth, items))
        row |= {f"{arm}_coverage": round(1 - missed / audits, 4), f"{arm}_labels": _mean(needed)}
    row["ratio"] = round(row["strata_labels"] / row["plain_labels"], 3)
    row |= _compare_confseq(confseq, wrong, truth) | _compare_ppi(ppi, error, wrong, audits)
    return row


def _mean(needed: list[float]) -> float:
    return round(float(np.mean(needed)), 1)


def _compare_confseq(confseq: Any, wrong: Array, truth: float) -> dict[str, Any]:
    """Return the labels that confseq's betting sequence needs on plain samples; 3 audits."""
    if confseq is None:
        return {"confseq_labels": ""}
    needed = []
    for seed in range(3):
        x = wrong[np.random.default_rng(seed).permutation(len(wrong))][:MAX_DRAWS]
        low, high = confseq.betting_cs(
            x, N=len(wrong), alpha=0.05, breaks=500, running_intersection=True
        )
        narrow = np.flatnonzero(high - low <= 2 * TARGET)
        needed.append(float(narrow[0] + 1) if len(narrow) else float("nan"))
    return {"confseq_labels": _mean(needed)}


def _compare_ppi(ppi: Any, error: Array, wrong: Array, audits: int) -> dict[str, Any]:
    """Return the coverage of ppi-python's 95 % interval after 400 labels, and at every 20th label.

    It is meant for one look, for a plain sample.
    """
    if ppi is None:
        return {"ppi_once": "", "ppi_every_look": ""}
    once = always = 0
    truth = wrong.mean()
    for seed in range(audits):
        order = np.random.default_rng(seed).permutation(len(wrong))
        inside = []
        for n in range(40, min(400, len(wrong) - 40) + 1, 20):
            at, rest = order[:n], order[n:]
            low, high = ppi.ppi_mean_ci(wrong[at], error[at], error[rest], alpha=0.05)
            inside.append(bool(low <= truth <= high))
        once, always = once + inside[-1], always + all(inside)
    return {"ppi_once": round(once / audits, 4), "ppi_every_look": round(always / audits, 4)}


def run(given: argparse.Namespace) -> None:
    """Study every set and write one line for each."""
    confseq = None
    if given.confseq is not None:
        sys.path.append(str(given.confseq))
        np.float64 = np.float64  # type: ignore[attr-defined]  # confseq 0.0.11 is of NumPy 1
        import confseq.betting as confseq  # type: ignore[import-not-found,no-redef]
    try:
        import ppi_py as ppi  # type: ignore[import-not-found]
    except ImportError:
        ppi = None
    rows = []
    for name in SETS:
        rows.append(study(name, given.data, given.audits, confseq, ppi))
        print(rows[-1], flush=True)
        with given.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def format_table(path: Path = CSV) -> str:
    """Return the table of docs/audit.md."""
    lines = [
        "| predictions | items | accuracy | calibration error | coverage, strata | coverage, plain "
        "| labels to ±2, strata | plain | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    with path.open() as file:
        for row in csv.DictReader(file):
            percent = [f"{float(row[k]):.1%}" for k in ("accuracy", "calibration_error")]
            covered = [f"{float(row[f'{arm}_coverage']):.1%}" for arm in ("strata", "plain")]
            needed = [f"{float(row[f'{arm}_labels']):,.0f}" for arm in ("strata", "plain")]
            cells = [row["set"], f"{int(row['items']):,}", *percent, *covered, *needed]
            lines.append("| " + " | ".join([*cells, f"{float(row['ratio']):.2f}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    jobs = parser.add_subparsers(dest="job", required=True)
    job = jobs.add_parser("run", help="simulate, and write the CSV")
    job.add_argument("--data", type=Path, default=Path("../shared/data"))
    job.add_argument("--audits", type=int, default=250)
    job.add_argument("--confseq", type=Path)
    job.add_argument("--out", type=Path, default=CSV)
    jobs.add_parser("table", help="print the table of docs/audit.md")
    given = parser.parse_args()
    if given.job == "run":
        run(given)
    else:
        print(format_table())


if __name__ == "__main__":
    main()
