"""Choices made by other packages' own code, each adapted once for tests, benchmarks and results.

Every package is handed the same trained network in the form it wants (`Given`): scikit-activeml
the embedding and the read-out as a classifier, DISTIL a torch module, baal and batchbald-redux the
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
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
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
from labelahead.strategies.base import Oracle, QueryBatch, Strategy
from labelahead.strategies.bayesian import sample_networks
from labelahead.strategies.context import QueryContext

DRAWN = 500  # joint labels that BatchBALD follows
TINY = 1e-12  # probabilities below it have no logarithm worth having
SHOWN = {"decile-distil": "DISTIL"}  # packages that have another name in print


@dataclass(frozen=True, eq=False)
class Given:
    """What every package sees: a network in two parts, and rows of items, the labelled ones first.

    inputs: (L + m, ...) of the body. embed: of the read-out layer at the same rows. labels: (L,).
    samples: class probabilities of the m others by T networks, (m, T, C). method: from outputs to
    probabilities.
    """

    body: nn.Module
    layer: nn.Linear
    inputs: Tensor
    labels: Tensor
    embed: Callable[[], Tensor]
    samples: Callable[[torch.Generator], Tensor] | None = None
    method: str = "softmax"
    rate: float | None = None  # that the network was trained with

    @cached_property
    def embedding(self) -> np.ndarray:
        """(L + m, h)."""
        return self.embed().numpy()

    def sampled(self, rng: torch.Generator) -> Tensor:
        """(m, T, C)."""
        if self.samples is None:
            raise InputError(
                "no networks are given to draw samples from; expected some for BALD and its kin"
            )
        return self.samples(rng)

    @property
    def padded_labels(self) -> np.ndarray:
        """(L + m,) labels as scikit-activeml wants them: −1 where there is none."""
        y = np.full(len(self.inputs), -1)
        y[: len(self.labels)] = self.labels.numpy()
        return y

    @classmethod
    def of(cls, s: QueryContext) -> "Given":
        """What our own strategies see."""
        body, layer = in_two_parts(s.model)
        return cls(
            body,
            layer,
            s.inputs[s.points],
            s.labels,
            lambda: s.embedding,
            lambda rng: sample_networks(s, rng),
            "softmax" if s.loss == "cross-entropy" else "simplex",
            None if s.training is None else s.training.rate,
        )


# (what is given, how many, randomness) -> rows among the unlabelled ones, best first
Choose = Callable[[Given, int, torch.Generator], Sequence[int]]


def in_two_parts(model: nn.Module) -> tuple[nn.Sequential, nn.Linear]:
    """Body and last layer of a network that ends in a linear one."""
    if not isinstance(model, nn.Sequential) or not isinstance(model[-1], nn.Linear):
        raise InputError(
            f"the network is a {type(model).__name__}; expected an nn.Sequential that ends in "
            "nn.Linear, which the packages are handed in two parts: e.g. model.name = 'mlp'"
        )
    return model[:-1], model[-1]


def need(module: str, package: str) -> Any:
    """That module, or an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"{package} cannot be imported here ({error}); the other packages live in an "
            "environment of their own: `make results-competitors` installs them and runs this study"
        ) from error


@contextmanager
def seed_global_generators(rng: torch.Generator) -> Iterator[int]:
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


# --- scikit-activeml
# ----------------------------------------------------------------------------------------


def scikit(kind: str, *, network: str = "", unit: bool = False, **how: Any) -> Choose:
    """A class of skactiveml.pool. network: by which argument it takes the classifier."""

    def choose(given: Given, q: int, rng: torch.Generator) -> Sequence[int]:
        with seed_global_generators(rng) as seed:
            rows = scikit_query(kind, given, q, seed, network=network, unit=unit, **how)
        return [int(i) - len(given.labels) for i in rows]

    return choose


def scikit_query(
    kind: str,
    given: Given,
    q: int,
    seed: int,
    *,
    network: str = "",
    unit: bool = False,
    scores: bool = False,
    **how: Any,
) -> Any:
    """(q,) rows of all items; scores: and (q, L + m) by what it chose them."""
    pool = need("skactiveml.pool", "scikit-activeml")
    x, more = given.embedding, {}
    if network:
        from research.competitors.classifier import ReadOut

        weights = (
            v.detach().numpy().astype(x.dtype) for v in (given.layer.weight, given.layer.bias)
        )
        more = {network: ReadOut(*weights, given.method), f"fit_{network}": False}
    if unit:  # ProbCover's radii are for embeddings of length one
        x = x / np.linalg.norm(x, axis=1, keepdims=True).clip(TINY)
    if kind == "ProbCover":
        how = {"n_classes": given.layer.out_features, **how}
    member = getattr(pool, kind)(missing_label=-1, random_state=seed, **how)
    return member.query(X=x, y=given.padded_labels, batch_size=q, return_utilities=scores, **more)


def scikit_batch_bald(given: Given, q: int, rng: torch.Generator) -> Sequence[int]:
    """Its function, which takes probabilities instead of a classifier."""
    pool = need("skactiveml.pool", "scikit-activeml")
    p = given.sampled(rng).permute(1, 0, 2).numpy()
    with seed_global_generators(rng) as seed:
        gains = pool.batch_bald(p, q, n_MC_samples=DRAWN, random_state=seed)
    return [int(i) for i in np.nanargmax(gains, axis=1)]


# --- DISTIL
# -------------------------------------------------------------------------------------------------


class WithEmbedding(nn.Module):
    """The network as DISTIL calls it: `last=True` also returns what the last layer saw."""

    def __init__(self, given: Given) -> None:
        super().__init__()
        self.body, self.layer, self.method = given.body, given.layer, given.method

    def forward(self, x: Tensor, last: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """(n, C), and (n, h)."""
        h = self.body(x)
        out = self.layer(h)
        if self.method == "simplex":  # its softmax gives them back
            out = probabilities(out, "simplex").clamp_min(TINY).log()
        return (out, h) if last else out

    def get_embedding_dim(self) -> int:
        """h."""
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

    def choose(given: Given, q: int, rng: torch.Generator) -> Sequence[int]:
        members = need("distil.active_learning_strategies", "decile-distil")
        net, cut = WithEmbedding(given).eval(), len(given.labels)
        args = {"batch_size": 512, "device": "cpu"} | (
            {} if given.rate is None else {"lr": given.rate}
        )
        x, more, y = given.inputs[:cut], given.inputs[cut:], given.labels.numpy()
        with seed_global_generators(rng):
            member = getattr(members, kind)(
                x, y, more, net, Handler, given.layer.out_features, args, **how
            )
            return [int(i) for i in member.select(q)]

    return choose


# --- baal and batchbald-redux
# -------------------------------------------------------------------------------


def baal(kind: str) -> Choose:
    """A heuristic of baal on the ensemble that our own BALD trains."""

    def choose(given: Given, q: int, rng: torch.Generator) -> Sequence[int]:
        heuristics = need("baal.active.heuristics", "baal")
        p = given.sampled(rng).permute(0, 2, 1).numpy()
        with seed_global_generators(rng):
            how = {"num_samples": q} if kind == "BatchBALD" else {}
            ranks = getattr(heuristics, kind)(**how).get_ranks(p)[0]
        return [int(i) for i in ranks[:q]]

    return choose


def redux(drawn: int = DRAWN) -> Choose:
    """batchbald-redux, following so many joint labels."""

    def choose(given: Given, q: int, rng: torch.Generator) -> Sequence[int]:
        batchbald = need("batchbald_redux.batchbald", "batchbald-redux")
        logs = given.sampled(rng).clamp_min(TINY).log()
        with (
            seed_global_generators(rng),
            redirect_stderr(StringIO()),
        ):  # its progress bars cannot be switched off
            return batchbald.get_batchbald_batch(logs, q, drawn, dtype=torch.double).indices

    return choose


# --- all of them, as strategies
# -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """One strategy of one package: as it is shown, what to install, what to import."""

    strategy: str
    package: str
    module: str
    choose: Choose

    @property
    def name(self) -> str:
        """As a table shows it."""
        return f"{self.strategy} ({SHOWN.get(self.package, self.package)})"

    def version(self) -> str:
        """Of the package; an error with the way out where it is not installed."""
        need(self.module, self.package)
        return version(self.package)

    @property
    def value(self) -> Strategy:
        """For a campaign of ours."""
        return Strategy(self.name, f"what {self.package} would ask for", "", self.select_batch)

    def select_batch(
        self, s: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
    ) -> QueryBatch:
        """What the package asks for.

        What it leaves open is drawn at random, and counted in the memory.
        """
        start = time.perf_counter()
        rows = distinct(self.choose(Given.of(s), q, rng), len(s.candidates))[:q]
        missing = q - len(rows)
        if missing:
            rest = torch.randperm(len(s.candidates), generator=rng).tolist()
            rows = distinct([*rows, *rest], len(s.candidates))[:q]
        # One number: what of it is the package's own time is unknown.
        s.seconds = {"score": time.perf_counter() - start}
        return QueryBatch(
            s.candidates[torch.tensor(rows)],
            torch.zeros(q, dtype=torch.float64),
            {"filled": missing},
        )


def distinct(rows: Sequence[int], size: int) -> list[int]:
    """Each row once, in the order given; none may lie outside."""
    wrong = [r for r in rows if not 0 <= r < size]
    if wrong:
        raise InputError(f"a package chose row {wrong[0]}; expected one of {size} candidates")
    return list(dict.fromkeys(rows))


def _scikit() -> Iterator[tuple[str, Choose]]:
    uncertain = {"kind": "UncertaintySampling", "network": "clf"}
    yield "random", scikit("RandomSampling")
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


_ALL = (
    *(Peer(n, "scikit-activeml", "skactiveml.pool", c) for n, c in _scikit()),
    *(Peer(n, "decile-distil", "distil.active_learning_strategies", c) for n, c in _distil()),
    Peer("bald", "baal", "baal.active.heuristics", baal("BALD")),
    Peer("batchbald", "baal", "baal.active.heuristics", baal("BatchBALD")),
    Peer("batchbald", "batchbald-redux", "batchbald_redux.batchbald", redux()),
)
PEERS: Mapping[str, Peer] = MappingProxyType({p.name: p for p in _ALL})
