"""One way to choose items, by one library, in a process of its own; runs in both environments.

    query_worker.py LIBRARY STRATEGY NPZ Q THREADS

All are handed the same embedding and the same read-out layer, as a network of that one layer: what
is timed is the choice, with the library's own handling of its inputs, and no convolution.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timing

if TYPE_CHECKING:
    from research.competitors.adapters import Choose, Given

sys.path.append(str(Path(__file__).parents[2]))  # for `peers`: this is run as a script

SMALL = 300  # rows of the run that loads whatever a library loads late
LOSS = "cross-entropy"
MAX_LABEL_CONFIGURATIONS = 2000  # joint labels that BatchBALD follows, ours and theirs


def read_out(arrays: Any) -> Any:
    """The read-out layer as a network."""
    import torch

    layer = torch.nn.Linear(arrays["weight"].shape[1], arrays["weight"].shape[0])
    layer.load_state_dict({k: torch.from_numpy(arrays[k]) for k in ("weight", "bias")})
    return layer.eval()


def split_rows(arrays: Any, rows: int | None = None) -> Given:
    """What everybody sees: the labelled rows, and the first of the others.

    The embedding is the input.
    """
    import torch

    from research.competitors.adapters import Given

    labels = torch.from_numpy(arrays["labels"])
    x = torch.from_numpy(arrays["embedding"][: None if rows is None else len(labels) + rows])
    samples = torch.from_numpy(arrays["samples"][:rows])
    return Given(torch.nn.Identity(), read_out(arrays), x, labels, lambda: x, lambda rng: samples)


def labelahead(strategy: str) -> Choose:
    """The choice from an embedding that is there, as scikit-activeml is given it."""
    import torch

    from labelahead.strategies import find_strategy
    from labelahead.strategies.base import QueryConfig
    from labelahead.strategies.bayesian import bald, batch_bald
    from labelahead.strategies.context import QueryContext

    def choose(given: Given, q: int, rng: Any) -> Any:
        x, cut = given.inputs, len(given.labels)
        now = QueryContext.from_pool(
            given.layer, x, pool_of(given), QueryConfig(strategy, candidates=None), loss=LOSS
        )
        now.candidates = torch.arange(cut, len(x))
        if strategy not in ("entropy", "margin"):
            now.__dict__["embedding"] = x.double()  # as a situation keeps it; our cost, so counted
        return find_strategy(strategy).select_batch(now, q, rng, "top", None).positions - cut

    def from_samples(given: Given, q: int, rng: Any) -> Any:
        p = given.sampled(rng)
        if strategy == "bald":
            return bald(p).topk(q).indices
        return batch_bald(p, q, rng, max_configurations=MAX_LABEL_CONFIGURATIONS)[0]

    return from_samples if "bald" in strategy else choose


def labelahead_query(strategy: str) -> Choose:
    """A whole query, which reads the embedding off the network itself, as DISTIL does."""
    from labelahead.strategies.base import QueryConfig
    from labelahead.strategies.query import propose

    def choose(given: Given, q: int, rng: Any) -> Any:
        asking = QueryConfig(strategy, candidates=None)
        query = propose(given.layer, given.inputs, pool_of(given), q, asking, loss=LOSS)
        return query.positions - len(given.labels)

    return choose


def pool_of(given: Given) -> Any:
    """The same as our own functions want it."""
    from labelahead.data.pool import Pool

    pool = Pool(len(given.inputs))
    pool.label(range(len(given.labels)), given.labels.tolist())
    return pool


def peer(package: str) -> Callable[[str], Choose]:
    """A package's own choice, by the adapter that tests and results use."""

    def by(strategy: str) -> Choose:
        from research.competitors.adapters import PEERS, redux

        if package == "batchbald-redux":
            return redux(MAX_LABEL_CONFIGURATIONS)
        return PEERS[f"{strategy} ({package})"].choose

    return by


LIBRARIES = {
    "labelahead": labelahead,
    "labelahead-query": labelahead_query,
    "scikit-activeml": peer("scikit-activeml"),
    "distil": peer("DISTIL"),
    "baal": peer("baal"),
    "batchbald-redux": peer("batchbald-redux"),
}


def save(result: Any, path: str) -> None:
    """Keep the positions, to see whether two libraries agree."""
    Path(path).write_text(json.dumps([int(i) for i in result]))


def main() -> None:
    library, strategy, path, q, threads = sys.argv[1:]
    os.environ["OMP_NUM_THREADS"] = threads  # read once, when the libraries are imported
    os.environ["TQDM_DISABLE"] = "1"
    import numpy as np
    import torch

    torch.set_num_threads(int(threads))
    with np.load(path) as file:
        arrays = dict(file)
    from labelahead.seeds import make_generator

    choose = LIBRARIES[library](strategy)
    choose(split_rows(arrays, SMALL), int(q), make_generator(0, "x"))
    whole = split_rows(arrays)
    timing.release()
    base = timing.resident_mb()
    timing.serve(lambda: choose(whole, int(q), make_generator(0, "x")), base, save)


if __name__ == "__main__":
    main()
