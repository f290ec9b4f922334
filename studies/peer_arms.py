"""Choices made by other packages' own code, from the situation that our strategies see.

Every package is handed the same trained network in the form it wants: scikit-activeml the
embedding and the read-out as a classifier, DISTIL a torch module, baal and batchbald-redux the
probabilities of an ensemble that we train. Parameters are the packages' own defaults, but for the
joint labels that BatchBALD follows: baal's default for all.

After squared loss all get the probabilities that our strategies use, outputs projected onto the
simplex. DISTIL takes a softmax itself, so its module puts out their logarithms.

Not here: DISTIL's FASS, which fails in its own code with numpy 1.24 or newer as soon as more than
32 of the uncertain items are taken for one class (an array of rows of unequal length), and all of
its strategies that need dropout, as the networks have none.
"""

import importlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib.metadata import version
from io import StringIO
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from labelahead.acquisition.probability import probabilities
from labelahead.errors import InputError
from labelahead.situation import Situation
from labelahead.strategy.bayesian import network_samples

DRAWN = 500  # joint labels that BatchBALD follows
TINY = 1e-12  # probabilities below it have no logarithm worth having

# (situation, how many, randomness) -> rows along situation.candidates, best first
Choose = Callable[[Situation, int, torch.Generator], Sequence[int]]


@dataclass(frozen=True)
class Peer:
    """One strategy of one package: as it is shown, what to install, what to import."""

    strategy: str
    package: str
    module: str
    choose: Choose

    @property
    def name(self) -> str:
        return f"{self.strategy} ({SHOWN.get(self.package, self.package)})"

    def version(self) -> str:
        """Of the package; an error with the way out where it is not installed."""
        need(self.module, self.package)
        return version(self.package)


def need(module: str, package: str) -> Any:
    """That module, or an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"{package} cannot be imported here ({error}); the other packages live in an "
            "environment of their own: `make results-peers` installs them and runs this study"
        ) from error


@contextmanager
def seeded(rng: torch.Generator) -> Iterator[int]:
    """A seed, also set in the global generators that the packages draw from; undone afterwards."""
    seed = int(torch.randint(2**31, (1,), generator=rng))
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield seed
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002


def method(s: Situation) -> str:
    return "softmax" if s.loss == "cross-entropy" else "simplex"


def read_out(model: nn.Module) -> tuple[nn.Sequential, nn.Linear]:
    """Body and last layer of a network that ends in a linear one."""
    if not isinstance(model, nn.Sequential) or not isinstance(model[-1], nn.Linear):
        raise InputError(
            f"the network is a {type(model).__name__}; expected an nn.Sequential that ends in "
            "nn.Linear, which the packages are handed in two parts: e.g. model.name = 'mlp'"
        )
    return model[:-1], model[-1]


def scikit(kind: str, *, network: str = "", unit: bool = False, **how: Any) -> Choose:
    """A class of skactiveml.pool. network: by which argument it takes the classifier."""

    def choose(s: Situation, q: int, rng: torch.Generator) -> Sequence[int]:
        pool = need("skactiveml.pool", "scikit-activeml")
        from peer_read_out import ReadOut

        layer, first = read_out(s.model)[1], len(s.labelled)
        x = s.embedding.numpy()
        y = np.full(len(x), -1)
        y[:first] = s.labels.numpy()
        more: dict[str, Any] = {}
        if network:
            weights = (v.detach().double().numpy() for v in (layer.weight, layer.bias))
            more = {network: ReadOut(*weights, method(s)), f"fit_{network}": False}
        if unit:  # ProbCover's radii are for embeddings of length one
            x = x / np.linalg.norm(x, axis=1, keepdims=True).clip(TINY)
        own = {"n_classes": layer.out_features} if kind == "ProbCover" else {}
        with seeded(rng) as seed:
            member = getattr(pool, kind)(missing_label=-1, random_state=seed, **how, **own)
            found = member.query(X=x, y=y, batch_size=q, **more)
        return [int(i) - first for i in found]

    return choose


def scikit_batch_bald(s: Situation, q: int, rng: torch.Generator) -> Sequence[int]:
    pool = need("skactiveml.pool", "scikit-activeml")
    p = network_samples(s, rng).permute(1, 0, 2).numpy()
    with seeded(rng) as seed:
        gains = pool.batch_bald(p, q, n_MC_samples=DRAWN, random_state=seed)
    return [int(i) for i in np.nanargmax(gains, axis=1)]


class WithEmbedding(nn.Module):
    """The network as DISTIL calls it: `last=True` also returns what the last layer saw."""

    def __init__(self, s: Situation) -> None:
        super().__init__()
        self.body, self.layer = read_out(s.model)
        self.method = method(s)

    def forward(self, x: Tensor, last: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        h = self.body(x)
        out = self.layer(h)
        if self.method == "simplex":  # its softmax gives them back
            out = probabilities(out, "simplex").clamp_min(TINY).log()
        return (out, h) if last else out

    def get_embedding_dim(self) -> int:
        return self.layer.in_features


class Handler(Dataset):
    """DISTIL's way to read items, with labels or without."""

    def __init__(self, x: Any, y: Any = None, select: bool = True) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        return (self.x[i], i) if self.y is None else (self.x[i], self.y[i], i)


def distil(kind: str, **how: Any) -> Choose:
    """A class of distil.active_learning_strategies."""

    def choose(s: Situation, q: int, rng: torch.Generator) -> Sequence[int]:
        members = need("distil.active_learning_strategies", "decile-distil")
        net = WithEmbedding(s).eval()
        args = {"batch_size": 512, "device": "cpu"}
        if s.training is not None:
            args["lr"] = s.training.rate
        x, more, y = s.inputs[s.labelled], s.inputs[s.candidates], s.labels.numpy()
        with seeded(rng):
            classes = net.layer.out_features
            found = getattr(members, kind)(x, y, more, net, Handler, classes, args, **how).select(q)
        return [int(i) for i in found]

    return choose


def baal(kind: str) -> Choose:
    """A heuristic of baal on the ensemble that our own BALD trains."""

    def choose(s: Situation, q: int, rng: torch.Generator) -> Sequence[int]:
        heuristics = need("baal.active.heuristics", "baal")
        p = network_samples(s, rng).permute(0, 2, 1).numpy()
        with seeded(rng):
            how = {"num_samples": q} if kind == "BatchBALD" else {}
            ranks = getattr(heuristics, kind)(**how).get_ranks(p)[0]
        return [int(i) for i in ranks[:q]]

    return choose


def redux(s: Situation, q: int, rng: torch.Generator) -> Sequence[int]:
    batchbald = need("batchbald_redux.batchbald", "batchbald-redux")
    logs = network_samples(s, rng).clamp_min(TINY).log()
    with seeded(rng), redirect_stderr(StringIO()):  # its progress bars cannot be switched off
        return batchbald.get_batchbald_batch(logs, q, DRAWN, dtype=torch.double).indices


def _scikit() -> Iterator[tuple[str, Choose]]:
    uncertain = {"kind": "UncertaintySampling", "network": "clf"}
    yield "margin", scikit(**uncertain, method="margin_sampling")
    yield "entropy", scikit(**uncertain, method="entropy")
    yield "least-confidence", scikit(**uncertain, method="least_confident")
    yield "badge", scikit("Badge", network="clf", clf_embedding_flag_name="embed")
    yield "coreset", scikit("CoreSet")
    yield "typiclust", scikit("TypiClust")
    yield "probcover", scikit("ProbCover", unit=True)
    yield "dropquery", scikit("DropQuery", network="clf")
    yield "falcun", scikit("Falcun", network="clf")
    yield "contrastive", scikit("ContrastiveAL", network="clf")
    yield "clue", scikit("Clue", network="estimator")
    yield "maxherding", scikit("MaxHerding")
    yield "batchbald", scikit_batch_bald


def _distil() -> Iterator[tuple[str, Choose]]:
    yield "margin", distil("MarginSampling")
    yield "entropy", distil("EntropySampling")
    yield "badge", distil("BADGE")
    yield "coreset", distil("CoreSet")
    yield "glister", distil("GLISTER", valid=False)
    yield "kmeans", distil("KMeansSampling")


SHOWN = {"decile-distil": "DISTIL"}
_ALL = (
    *(Peer(n, "scikit-activeml", "skactiveml.pool", c) for n, c in _scikit()),
    *(Peer(n, "decile-distil", "distil.active_learning_strategies", c) for n, c in _distil()),
    Peer("bald", "baal", "baal.active.heuristics", baal("BALD")),
    Peer("batchbald", "baal", "baal.active.heuristics", baal("BatchBALD")),
    Peer("batchbald", "batchbald-redux", "batchbald_redux.batchbald", redux),
)
PEERS: Mapping[str, Peer] = MappingProxyType({p.name: p for p in _ALL})
