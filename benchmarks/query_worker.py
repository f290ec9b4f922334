"""One way to choose items, by one library, in a process of its own; runs in both environments.

    query_worker.py LIBRARY STRATEGY NPZ Q THREADS

All are handed the same embedding and the same read-out layer, as a network of that one layer: what
is timed is the choice, with the library's own handling of its inputs, and no convolution.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring

SMALL = 300  # rows of the run that loads whatever a library loads late
LOSS = "cross-entropy"
CONFIGURATIONS = 2000  # joint labels that BatchBALD follows, ours and theirs


@dataclass(frozen=True)
class Given:
    """What everybody sees: the labelled rows first."""

    embedding: Any  # (L + m, h) float32
    labels: Any  # (L,)
    weight: Any  # (C, h) of the read-out
    bias: Any  # (C,)
    samples: Any  # (m, T, C) float64 class probabilities by T networks, or (0,)

    @property
    def known(self) -> Any:
        """Labels of all rows, −1 where there is none."""
        import numpy as np

        return np.concatenate([self.labels, np.full(len(self.embedding) - len(self.labels), -1)])

    def part(self, rows: int) -> Given:
        """The labelled rows and the first of the others."""
        first = self.embedding[: len(self.labels) + rows]
        return Given(first, self.labels, self.weight, self.bias, self.samples[:rows])


Choose = Callable[[Given, int], Any]


def read_out(given: Given) -> Any:
    import torch

    layer = torch.nn.Linear(given.weight.shape[1], given.weight.shape[0])
    layer.load_state_dict({k: torch.from_numpy(getattr(given, k)) for k in ("weight", "bias")})
    return layer.eval()


def labelahead(strategy: str) -> Choose:
    """The choice from an embedding that is there, as scikit-activeml is given it."""
    import torch

    from labelahead.pool import Pool
    from labelahead.propose import situation
    from labelahead.situation import Asking, stream
    from labelahead.strategy import find
    from labelahead.strategy.bayesian import bald, batch_bald

    def choose(given: Given, q: int) -> Any:
        pool = Pool(len(given.embedding))
        pool.label(range(len(given.labels)), given.labels.tolist())
        x = torch.from_numpy(given.embedding)
        now = situation(read_out(given), x, pool, Asking(strategy, candidates=None), loss=LOSS)
        now.candidates = torch.arange(len(pool), len(x))
        if strategy not in ("entropy", "margin"):
            now.__dict__["embedding"] = x.double()  # as a situation keeps it; our cost, so counted
        return find(strategy).pick(now, q, stream(0, "x"), "top", None).positions

    def from_samples(given: Given, q: int) -> Any:
        p = torch.from_numpy(given.samples)
        if strategy == "bald":
            return bald(p).topk(q).indices
        return batch_bald(p, q, stream(0, "x"), most=CONFIGURATIONS)[0]

    return from_samples if "bald" in strategy else choose


def labelahead_query(strategy: str) -> Choose:
    """A whole query, which reads the embedding off the network itself, as DISTIL does."""
    import torch

    from labelahead.pool import Pool
    from labelahead.propose import propose
    from labelahead.situation import Asking

    def choose(given: Given, q: int) -> Any:
        pool = Pool(len(given.embedding))
        pool.label(range(len(given.labels)), given.labels.tolist())
        x = torch.from_numpy(given.embedding)
        asking = Asking(strategy, candidates=None)
        return propose(read_out(given), x, pool, q, asking, loss=LOSS).positions

    return choose


def scikit_activeml(strategy: str) -> Choose:
    import numpy as np
    import skactiveml.pool

    from scikit_classifier import Linear

    kw = {"missing_label": -1, "random_state": 0}
    P = skactiveml.pool

    def choose(given: Given, q: int) -> Any:
        clf = Linear(given.weight, given.bias)
        with_network = {"clf": clf, "fit_clf": False}
        member, more = {
            "entropy": lambda: (P.UncertaintySampling(method="entropy", **kw), with_network),
            "margin": lambda: (P.UncertaintySampling(method="margin_sampling", **kw), with_network),
            "badge": lambda: (P.Badge(clf_embedding_flag_name="embed", **kw), with_network),
            "coreset": lambda: (P.CoreSet(**kw), {}),
            "typiclust": lambda: (P.TypiClust(**kw), {}),
            "probcover": lambda: (P.ProbCover(n_classes=len(given.bias), **kw), {}),
        }[strategy]()
        x = given.embedding
        if strategy == "probcover":  # its radii are for embeddings of length one
            x = x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return member.query(X=x, y=given.known, batch_size=q, **more)

    return choose


def distil(strategy: str) -> Choose:
    import distil.active_learning_strategies as members
    import torch
    from torch.utils.data import Dataset

    kind = {
        "entropy": members.EntropySampling,
        "margin": members.MarginSampling,
        "badge": members.BADGE,
        "coreset": members.CoreSet,
    }[strategy]

    class Network(torch.nn.Module):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any, last: bool = False) -> Any:
            return (self.layer(x), x) if last else self.layer(x)

        def get_embedding_dim(self) -> int:
            return self.layer.in_features

    class Handler(Dataset):
        def __init__(self, x: Any) -> None:
            self.x = x

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, i: int) -> Any:
            return self.x[i], i

    def choose(given: Given, q: int) -> Any:
        x, cut = torch.from_numpy(given.embedding), len(given.labels)
        net, args = Network(read_out(given)).eval(), {"batch_size": 512, "device": "cpu"}
        classes = len(given.bias)
        found = kind(x[:cut], given.labels, x[cut:], net, Handler, classes, args).select(q)
        return [cut + int(i) for i in found]

    return choose


def baal(strategy: str) -> Choose:
    from baal.active.heuristics import BALD

    def choose(given: Given, q: int) -> Any:
        return BALD().get_ranks(given.samples.transpose(0, 2, 1))[0][:q]

    return choose


def batchbald_redux(strategy: str) -> Choose:
    import torch
    from batchbald_redux.batchbald import get_batchbald_batch

    def choose(given: Given, q: int) -> Any:
        logs = torch.from_numpy(given.samples).log()
        return get_batchbald_batch(logs, q, CONFIGURATIONS, dtype=torch.double).indices

    return choose


LIBRARIES = {
    "labelahead": labelahead,
    "labelahead-query": labelahead_query,
    "scikit-activeml": scikit_activeml,
    "distil": distil,
    "baal": baal,
    "batchbald-redux": batchbald_redux,
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
    np.random.seed(0)  # noqa: NPY002 (DISTIL draws from the global generator)
    with np.load(path) as arrays:
        given = Given(**arrays)
    choose = LIBRARIES[library](strategy)
    choose(given.part(SMALL), int(q))
    measuring.release()
    base = measuring.resident_mb()
    measuring.serve(lambda: choose(given, int(q)), base, save)


if __name__ == "__main__":
    main()
