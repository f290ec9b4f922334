"""Numbers, ratings and several classes at once: errors, estimates, intervals, by number of labels.

    python -m research.benchmarks.tasks [--seeds 0-9] [--sets diabetes,...] [--strategies a,b]

Every seed shuffles a set, holds out 200 items for testing and labels 100 of the others, ten at a
time, by the exact learner. The table has the mean over the seeds of the main measure, of the error
that the learner estimates, of its estimate, and of the coverage of 90 % intervals; at the end,
paired over seeds, labels needed for the error that random labels reach with 100.

Sets: diabetes and diabetes-rating (scikit-learn; five levels of equal size), friedman (scikit-learn's
make_friedman1 with 10 columns), topics (make_multilabel_classification: 8 classes, 1.6 per item),
rare (thresholds of random linear functions: 6 classes of 5 to 40 %).
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from sklearn import datasets

import labelahead as la
from labelahead.tasks import Multilabel, Number, Rating, Task

TEST_ITEMS, BATCH, LABELS = 200, 10, 100
Set = tuple[np.ndarray, np.ndarray, Callable[[], Task]]


def make_topics() -> Set:
    """Return counts of words in documents with several topics."""
    X, Y = datasets.make_multilabel_classification(
        1000, 40, n_classes=8, n_labels=2, random_state=0
    )
    return np.sqrt(X), Y.astype(float), lambda: Multilabel([f"topic{c}" for c in range(8)])


def make_rare() -> Set:
    """Return classes of very different size."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 8))
    latent = X @ rng.normal(size=(8, 6)) + 0.5 * rng.normal(size=(1000, 6))
    shares = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
    Y = np.stack([z > np.quantile(z, 1 - s) for z, s in zip(latent.T, shares, strict=True)], 1)
    return X, Y.astype(float), lambda: Multilabel([f"class{c}" for c in range(6)])


def make_diabetes() -> Set:
    """Return the progression of diabetes after a year."""
    X, y = datasets.load_diabetes(return_X_y=True)
    return X / X.std(0), y, Number


def make_friedman() -> Set:
    """Return a smooth function of five of ten columns."""
    X, y = datasets.make_friedman1(1000, 10, noise=1.0, random_state=0)
    return X, y, Number


def make_diabetes_rating() -> Set:
    """Return the fifths of diabetes as ratings."""
    X, y, _ = make_diabetes()
    levels = 1 + np.searchsorted(np.quantile(y, [0.2, 0.4, 0.6, 0.8]), y)
    return X, levels.astype(float), lambda: Rating(5)


SETS = {
    "diabetes": make_diabetes,
    "friedman": make_friedman,
    "diabetes-rating": make_diabetes_rating,
    "topics": make_topics,
    "rare": make_rare,
}


def run(name: str, strategy: str, seed: int) -> list[tuple[float, ...]]:
    """Return (main measure, error, estimate, coverage, forecast fall) after every batch."""
    X, y, make_task = SETS[name]()
    order = np.random.default_rng(seed).permutation(len(X))
    X, y, task = X[order], y[order], make_task()
    test = range(TEST_ITEMS)
    learner = la.Learner(la.exact(X, task=task), X, strategy, test=test, seed=seed)
    truth = task.parse_all(y[:TEST_ITEMS])
    rows = []
    while len(learner.pool) < LABELS:
        queried = learner.query(BATCH)
        learner.teach(queried, y[queried])
        prediction = learner.predict(test)
        measures = task.measure(prediction, truth)
        rows.append(
            (
                measures[task.main_measure],
                measures[task.error_measure],
                prediction.estimate_error(),
                measures.get("coverage", float("nan")),
                learner.forecast().fall,
            )
        )
    return rows


def count_labels(errors: np.ndarray, goal: float) -> float:
    """Return after how many labels a curve first reaches an error."""
    below = np.flatnonzero(errors <= goal)
    return BATCH * (below[0] + 1) if len(below) else float("inf")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", default="0-9")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--strategies")
    given = parser.parse_args()
    torch.set_num_threads(1)
    first, _, last = given.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    for name in given.sets.split(","):
        task = SETS[name]()[2]()
        strategies = (given.strategies or f"random,{next(iter(task.acquisitions))}").split(",")
        curves = {}
        print(f"\n{name}: {task.main_measure}, {task.error_measure}, {len(seeds)} seeds")
        for strategy in strategies:
            found = np.array([run(name, strategy, seed) for seed in seeds])  # (seeds, rounds, 5)
            curves[strategy] = found[:, :, 1]
            print(f"{strategy}\nlabels  {task.main_measure}  error  estimate  coverage  fall")
            for i, row in enumerate(found.mean(0)):
                print(f"{BATCH * (i + 1):6}  " + "  ".join(f"{x:.3f}" for x in row))
        goal = curves["random"].mean(0)[-1] if "random" in curves else 0.0
        for strategy, errors in curves.items():
            difference = errors.mean(1) - curves.get("random", errors).mean(1)
            print(
                f"{strategy}: {count_labels(errors.mean(0), goal):.0f} labels reach {goal:.3f}; mean "
                f"error over the curve {difference.mean():+.4f} against random (standard error "
                f"{difference.std(ddof=1) / len(difference) ** 0.5 if len(difference) > 1 else 0:.4f})"
            )


if __name__ == "__main__":
    main()
