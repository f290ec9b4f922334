"""Partitioned pools, an executor in this process, and scores of the whole pool for comparison."""

import csv
from concurrent.futures import Future

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from labelahead.acquisition.batch_selection import score_candidates
from labelahead.acquisition.pool_view import view
from labelahead.gp.posterior import prior
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel
from labelahead.outofcore.store import read_blocks

CLASSES = ("ash", "elm", "oak")


class Inline:
    """An executor in this process, for data that other processes cannot read, such as memory://."""

    lost_errors = abandoned_errors = ()

    def submit(self, function, /, *args, name):
        future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def as_completed(self, futures, /):
        return reversed(list(futures))  # another order than submitted, as with real executors

    def scatter(self, value, /):
        return value

    def gather(self, futures, /):
        return [future.result() for future in futures]


def clouds(n, d=6, seed=0):
    """Draw features (n, d) float64 from three clusters; return them and their classes."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(100).normal(size=(3, d))
    y = rng.integers(3, size=n)
    return centres[y] + 0.9 * rng.normal(size=(n, d)), y


def parquet_pool(folder, x, files=3, **columns):
    """Write vectors and ids to files with uneven row groups."""
    folder.mkdir(exist_ok=True)
    for i, rows in enumerate(np.array_split(np.arange(len(x)), files)):
        table = {"id": [f"item {j}" for j in rows], "vector": list(x[rows].astype(np.float32))}
        table |= {name: [values[j] for j in rows] for name, values in columns.items()}
        pq.write_table(pa.table(table), folder / f"part-{i}.parquet", row_group_size=5 + i)
    return folder


def text_pool(folder, x, id="id", **columns):
    """Write vectors and texts that contain their number to four files."""
    folder.mkdir()
    columns = {
        id: [f"doc {j}" for j in range(len(x))],
        "text": [f"the text of number {j}" for j in range(len(x))],
    } | columns
    for i, rows in enumerate(np.array_split(np.arange(len(x)), 4)):
        table = {name: [values[j] for j in rows] for name, values in columns.items()}
        pq.write_table(
            pa.table(table | {"v": list(x[rows].astype(np.float32))}), folder / f"{i}.parquet"
        )
    return folder


def all_at_once(features, labelled, numbers, evaluation, acquisition):
    """Return positions and scores of all unlabelled items, and the fitted model.

    Uses one float64 posterior over the whole pool, without partitions.
    """
    x = torch.as_tensor(np.asarray(features, np.float64))
    learner = ExactLearner(x, ExactModel(x.mean(0), len(CLASSES)))
    fitted = learner.fit(labelled, numbers)
    all_items = torch.arange(len(x))
    start = torch.full((len(x), len(CLASSES)), 1 / len(CLASSES), dtype=torch.float64)
    post = prior(start, **fitted.kernel_arguments(all_items, "pseudo"), noise=fitted.noise)
    if len(labelled):
        post = post.condition(labelled, numbers)
    unlabelled = (~post.is_labelled).nonzero().squeeze(1)
    return (
        unlabelled,
        score_candidates(view(post, unlabelled, evaluation, baseline="linearised"), acquisition),
        fitted,
    )


def write_annotations(path, y, items, names, errors=0.4):
    """Write labels of two careful annotators and of one who errs, and return the rows as numbers.

    Every item has one or two labels.

    Returns:
        (position, class, annotator) of every label, in the order of the file.
    """
    rng = np.random.default_rng(3)
    who, rows = ("anna", "ben", "carl"), []
    for k, i in enumerate(items):
        for s in {k % 3, (k + k // 3) % 3}:
            wrong = s == 2 and rng.random() < errors
            rows.append((int(i), int((y[i] + wrong) % len(CLASSES)), who[s]))
    order = rng.permutation(len(rows))
    rows = [rows[j] for j in order]
    lines = [(names[i], CLASSES[c], who) for i, c, who in rows]
    write_labels(path, lines, ("id", "label", "annotator"))
    return rows


def read_features(manifest):
    return np.concatenate([rows for entry in manifest.entries for _, rows in read_blocks(entry, 7)])


def write_labels(path, rows, header=("item", "label")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


NET = """
import torch
from torch import nn

def make(shape, classes):
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(shape[0], 16), nn.Tanh(), nn.Linear(16, classes)).double()
"""


def write_network(folder, seed=5):
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(NET.replace("SEED", str(seed)))
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()
