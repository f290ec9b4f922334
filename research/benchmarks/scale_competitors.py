"""One query of 10 items by another library on the pool of research/benchmarks/outofcore.py, in its
own environment.

    scale_competitors.py LIBRARY WAY FOLDER-OF-NPY FOLDER-OF-LABELS [ITEMS]

ITEMS: so many of the pool alone, beside those with a label. Both libraries take the pool as one
array in memory, of float64 in their hands; that is how they are made.
"""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

BATCH = 10
for alias in (bool, float, int):  # modAL 0.4.1 asks for names that NumPy has dropped
    if not hasattr(np, alias.__name__):
        setattr(np, alias.__name__, alias)


def modal(way: str, x, labelled, y):
    from modAL.expected_error import expected_error_reduction
    from modAL.models import ActiveLearner
    from modAL.uncertainty import margin_sampling

    strategy = margin_sampling if way == "margin" else expected_error_reduction
    learner = ActiveLearner(
        LogisticRegression(max_iter=200), strategy, X_training=x[labelled], y_training=y
    )
    rest = np.delete(np.arange(len(x)), labelled)
    return lambda: rest[learner.query(x[rest], n_instances=BATCH)[0]]


def skactiveml(way: str, x, labelled, y):
    from skactiveml.classifier import SklearnClassifier
    from skactiveml.pool import ProbCover, UncertaintySampling

    labels = np.full(len(x), np.nan)
    names, labels[labelled] = np.unique(y, return_inverse=True)
    if way == "coverage":
        strategy = ProbCover(random_state=0)
        return lambda: strategy.query(x, labels, batch_size=BATCH)
    classifier = SklearnClassifier(LogisticRegression(max_iter=200), classes=range(len(names)))
    strategy = UncertaintySampling(method="margin_sampling", random_state=0)
    return lambda: strategy.query(x, labels, classifier, batch_size=BATCH)


def main() -> None:
    library, way, folder, root, *items = sys.argv[1:]
    x = np.concatenate(
        [np.load(path, allow_pickle=False) for path in sorted(Path(folder).glob("*.npy"))]
    )
    x = x.astype(np.float64)
    labels = json.loads((Path(root) / "labels.json").read_text())
    rows = len(np.load(sorted(Path(folder).glob("*.npy"))[0], mmap_mode="r"))
    at = np.array([int(name.split(".")[0]) * rows + int(name.split(":")[1]) for name in labels])
    if items:
        kept = np.union1d(at, np.arange(int(items[0])))
        x, at = x[kept], np.searchsorted(kept, at)
    query = {"modAL": modal, "skactiveml": skactiveml}[library](
        way, x, at, np.array(list(labels.values()))
    )
    began = time.perf_counter()
    cpu = time.process_time()
    query()
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - cpu,
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
