"""Pools in parts for tests, an engine that works in this process, and what a single process makes
of all items.
"""

from concurrent.futures import Future

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from labelahead.acquisition.batch_selection import score_candidates
from labelahead.acquisition.pool_view import view
from labelahead.gp.posterior import prior
from labelahead.inference.exact import ExactLearner, ExactModel

CLASSES = ("ash", "elm", "oak")


class Inline:
    """An executor in this process: for what other processes cannot see, such as memory://."""

    lost_errors = abandoned_errors = ()

    def submit(self, function, /, *args, name):
        future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def as_completed(self, futures, /):
        return reversed(list(futures))  # in an order of its own, as engines have it

    def scatter(self, value, /):
        return value

    def gather(self, futures, /):
        return [future.result() for future in futures]


def clouds(n, d=6, seed=0):
    """Features (n, d) float64 around three centres, and class numbers."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(100).normal(size=(3, d))
    y = rng.integers(3, size=n)
    return centres[y] + 0.9 * rng.normal(size=(n, d)), y


def parquet_pool(folder, x, files=3, **columns):
    """Vectors and ids in files of uneven row groups."""
    folder.mkdir(exist_ok=True)
    for i, some in enumerate(np.array_split(np.arange(len(x)), files)):
        table = {"id": [f"item {j}" for j in some], "vector": list(x[some].astype(np.float32))}
        table |= {name: [values[j] for j in some] for name, values in columns.items()}
        pq.write_table(pa.table(table), folder / f"part-{i}.parquet", row_group_size=5 + i)
    return folder


def text_pool(folder, x, id="id", **columns):
    """Vectors with texts that say their number, in four files."""
    folder.mkdir()
    columns = {
        id: [f"doc {j}" for j in range(len(x))],
        "text": [f"the text of number {j}" for j in range(len(x))],
    } | columns
    for i, some in enumerate(np.array_split(np.arange(len(x)), 4)):
        table = {name: [values[j] for j in some] for name, values in columns.items()}
        pq.write_table(
            pa.table(table | {"v": list(x[some].astype(np.float32))}), folder / f"{i}.parquet"
        )
    return folder


def all_at_once(features, labelled, numbers, evaluation, acquisition):
    """Scores of all unlabelled items and their positions.

    One posterior over the whole pool, float64, no parts.
    """
    x = torch.as_tensor(np.asarray(features, np.float64))
    learner = ExactLearner(x, ExactModel(x.mean(0), len(CLASSES)))
    learnt = learner.fit(labelled, numbers)
    every = torch.arange(len(x))
    start = torch.full((len(x), len(CLASSES)), 1 / len(CLASSES), dtype=torch.float64)
    post = prior(start, **learnt.kernel_arguments(every, "pseudo"), noise=learnt.noise)
    if len(labelled):
        post = post.condition(labelled, numbers)
    left = (~post.is_labelled).nonzero().squeeze(1)
    return (
        left,
        score_candidates(view(post, left, evaluation, baseline="linearised"), acquisition),
        learnt,
    )
