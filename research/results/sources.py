"""What it is worth to tell sources of labels apart: three annotators, one of whom errs.

    python -m research.results.routing_pools --data ../shared/data        # the pools, once
    pip install --no-deps --target runs/cleanlab -r research/requirements/sources.txt
    PYTHONPATH=runs/cleanlab python -m research.results.sources run --seeds 0-10    # resumable
    python -m research.results.sources table

Pools of 2,000 items, 800 of them for testing; `LABELS` labels of items drawn at random. *thirds*: each
annotator labels a third of the items; *pairs*, *triples*: each item is labelled by two or all three,
so that there are half or a third as many items. The third annotator gives a random other class
in 20 or 40 % of the cases. All arms end with the exact learner on the same items:

- newest: the newest label of each item, which ignores sources;
- majority: the label that most annotators give, the newest if there are several;
- crowdlab: the consensus labels of cleanlab's CROWDLAB, with calibrated leave-one-out
  probabilities of the exact learner on majority labels as its model (it needs items with several
  labels: in *thirds* it is the label itself);
- ours: all labels with their sources.

Seeds 100 to 107 are for choosing between variants, seeds 0 to 9 for the table.
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from labelahead.gp.calibration import gaussian_class_probabilities
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import exact
from labelahead.inference.sources import Annotations
from research.results.routing_pools import OUT as POOLS_FOLDER
from research.results.routing_pools import POOLS

OUT = Path(__file__).parents[1] / "data" / "sources.csv"
LABELS, TEST, ANNOTATORS = 240, 800, 3
DESIGNS = {"thirds": 1, "pairs": 2, "triples": 3}  # labels of each item
ERROR_RATES = (0.2, 0.4)  # of the third annotator
ARMS = ("ours", "newest", "majority", "crowdlab")
FIELDS = ("set", "design", "errors", "seed", *ARMS)


class Crowd(NamedTuple):
    """Items with labels of several annotators."""

    x: Tensor  # (n, d) of the whole pool
    y: Tensor  # (n,)
    classes: int
    items: Tensor  # (L,) labelled positions
    test: Tensor  # (t,) positions
    given: Tensor  # (L, annotators) class numbers, −1: not labelled


def simulate(
    name: str, design: str, errors: float, seed: int, folder: Path = POOLS_FOLDER
) -> Crowd:
    """Draw items, annotators and wrong labels."""
    with np.load(folder / f"{name}.npz") as arrays:
        x, y = torch.from_numpy(arrays["x"]).float(), torch.from_numpy(arrays["y"]).long()
    rng = torch.Generator().manual_seed(seed)
    order, classes = torch.randperm(len(x), generator=rng), int(y.max()) + 1
    each = DESIGNS[design]
    items = order[TEST : TEST + LABELS // each]
    given = torch.full((len(items), ANNOTATORS), -1)
    for i in range(len(items)):
        for k in range(each):
            given[i, (i + k) % ANNOTATORS] = y[items[i]]
    last = given[:, -1]
    wrong = (torch.rand(len(items), generator=rng) < errors) & (last >= 0)
    other = (last + torch.randint(1, classes, (len(items),), generator=rng)) % classes
    given[:, -1] = torch.where(wrong, other, last)
    return Crowd(x, y, classes, items, order[:TEST], given)


def vote(given: Tensor) -> Tensor:
    """Return the label (L,) that most annotators give, the last of them if there are several."""
    rows = [[c for c in row if c >= 0] for row in given.tolist()]
    return torch.tensor([max(reversed(row), key=row.count) for row in rows])


def take_newest(given: Tensor) -> Tensor:
    """Return the label (L,) of the last annotator of each item, in the order of the annotators."""
    return torch.tensor([[c for c in row if c >= 0][-1] for row in given.tolist()])


def find_consensus(crowd: Crowd) -> Tensor:
    """Return the consensus labels (L,) of CROWDLAB; it needs items with several labels."""
    if not bool(((crowd.given >= 0).sum(1) > 1).any()):
        return vote(crowd.given)
    from cleanlab.multiannotator import get_label_quality_multiannotator

    labels = vote(crowd.given)
    learner = ExactLearner(crowd.x, exact(crowd.x, crowd.classes))
    model = learner.fit(crowd.items, labels).kernel_model
    outputs, _ = learner.leave_one_out_predictions(crowd.items, labels)
    variance = model.ensure_variance_scale() * model.leave_one_out_variance().clamp_min(1e-9)
    p = gaussian_class_probabilities(outputs, variance)
    table = torch.where(crowd.given >= 0, crowd.given.double(), torch.nan)
    found = get_label_quality_multiannotator(
        table.numpy(), (p / p.sum(1, keepdim=True)).numpy(), verbose=False
    )
    return torch.from_numpy(found["label_quality"]["consensus_label"].to_numpy().astype(np.int64))


def measure_all(crowd: Crowd) -> list[float]:
    """Return the test accuracy of every arm; arms with the same labels are fitted once."""
    known: dict[tuple[int, ...], float] = {}
    found = []
    for arm in ARMS:
        labels = tuple(choose_labels(arm, crowd).tolist())
        if arm == "ours" or labels not in known:
            accuracy = measure(arm, crowd, torch.tensor(labels))
            if arm != "ours":
                known[labels] = accuracy
        else:
            accuracy = known[labels]
        found.append(accuracy)
    return found


def choose_labels(arm: str, crowd: Crowd) -> Tensor:
    """Return the labels (L,) that an arm fits; for "ours", those that stand for several."""
    if arm == "crowdlab":
        return find_consensus(crowd)
    return take_newest(crowd.given) if arm == "newest" else vote(crowd.given)


def measure(arm: str, crowd: Crowd, labels: Tensor) -> float:
    """Return the test accuracy of an arm with these labels (L,)."""
    annotations = None
    if arm == "ours":
        rows, sources = (crowd.given >= 0).nonzero(as_tuple=True)
        names = tuple(f"annotator {s + 1}" for s in range(ANNOTATORS))
        annotations = Annotations(crowd.items[rows], crowd.given[rows, sources], sources, names)
    learner = ExactLearner(crowd.x, exact(crowd.x, crowd.classes), annotations=annotations)
    p = learner.fit(crowd.items, labels).model(crowd.x[crowd.test])
    return float((p.argmax(1) == crowd.y[crowd.test]).double().mean())


def read_rows(path: Path = OUT) -> list[dict[str, str]]:
    """Return the rows so far."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run_all(seeds: range, path: Path = OUT) -> None:
    """Write one row for every set, design, error rate and seed that is missing."""
    done = {(r["set"], r["design"], r["errors"], int(r["seed"])) for r in read_rows(path)}
    for seed in seeds:
        for name in POOLS:
            for design in DESIGNS:
                for errors in ERROR_RATES:
                    if (name, design, str(errors), seed) in done:
                        continue
                    crowd = simulate(name, design, errors, seed)
                    accuracy = [f"{value:.4f}" for value in measure_all(crowd)]
                    new = not path.exists()
                    with path.open("a", newline="", encoding="utf-8") as file:
                        writer = csv.writer(file, lineterminator="\n")
                        writer.writerows([FIELDS] if new else [])
                        writer.writerow([name, design, errors, seed, *accuracy])
                    print(name, design, errors, seed, *accuracy, flush=True)


def format_table(given: list[dict[str, str]]) -> str:
    """Return accuracies of ours, and ours minus each other arm with standard error, in points.

    A star marks differences with p < 0.05 (paired t-test).
    """
    lines = [
        "| set | design | errors | seeds | ours | " + " | ".join(f"− {a}" for a in ARMS[1:]) + " |",
        "| --- | --- | ---: | ---: | ---: | " + " | ".join("---:" for _ in ARMS[1:]) + " |",
    ]
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in given:
        groups.setdefault((row["set"], row["design"], row["errors"]), []).append(row)
    for (name, design, errors), rows in groups.items():
        accuracy = {arm: np.array([100 * float(r[arm]) for r in rows]) for arm in ARMS}
        cells = [_format_difference(accuracy["ours"] - accuracy[arm]) for arm in ARMS[1:]]
        share = f"{float(errors):.0%}".replace("%", " %")
        lines.append(
            f"| {name} | {design} | {share} | {len(rows)} | {accuracy['ours'].mean():.1f} | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join(lines)


def _format_difference(difference: np.ndarray) -> str:
    mean, n = difference.mean(), len(difference)
    error = difference.std(ddof=1) / n**0.5 if n > 1 else 0.0
    clear = error > 0 and stats.ttest_1samp(difference, 0.0).pvalue < 0.05
    return f"{mean:+.1f} ± {error:.1f}" + ("\\*" if clear else "")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--seeds", default="0-10", help="first and last, the last left out")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.command == "run":
        run_all(range(*map(int, given.seeds.split("-"))), given.out)
    else:
        sys.stdout.write(format_table(read_rows(given.out)) + "\n")


if __name__ == "__main__":
    main()
