"""One trained network and its pool, in the shapes that the peers ask for."""

import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from labelahead.data.pool import Pool
from labelahead.models import build_model
from labelahead.models.training import Training, train
from labelahead.models.training.forward import compute_penultimate_features
from labelahead.seeds import make_generator
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.context import QueryContext
from labelahead.strategies.query import Query, propose
from research.competitors.adapters import Given, distil, in_two_parts
from tests.support.campaigns import CLASSES, blobs, labelled_pool

LOSS = "cross-entropy"  # the peers know no other way from outputs to probabilities than softmax
WIDTHS = {"mlp": 32, "cnn": 4}


@dataclass(frozen=True, eq=False)
class Case:
    """A network trained on the first `labels` of n noisy items, float64 unless a peer refuses."""

    network: str = "mlp"
    seed: int = 0
    n: int = 300
    labels: int = 30
    dropout: float = 0.0
    noise: float = 2.0

    @cached_property
    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs whose classes overlap, so that no two items are equally sure."""
        x, y = blobs(self.n, seed=self.seed)
        rng = torch.Generator().manual_seed(self.seed + 1)
        return (x + self.noise * torch.randn(x.shape, generator=rng)).double(), y

    @cached_property
    def model(self) -> nn.Module:
        x, y = self.data
        how = {"width": WIDTHS[self.network], "dropout": self.dropout, "seed": self.seed}
        net = build_model(self.network, tuple(x.shape[1:]), CLASSES, **how).double()
        few = Training(loss=LOSS, steps=40)
        train(net, x[: self.labels], y[: self.labels], CLASSES, few, seed=self.seed)
        return net.eval()

    @cached_property
    def pool(self) -> Pool:
        return labelled_pool(self.data[1], self.labels)

    def situation(self, name: str) -> QueryContext:
        return QueryContext.from_pool(
            self.model, self.data[0], self.pool, QueryConfig(name), 1, loss=LOSS, seed=0
        )

    def propose(self, name: str, q: int, seed: int = 0) -> Query:
        return propose(self.model, self.data[0], self.pool, q, name, loss=LOSS, seed=seed)

    @cached_property
    def embedding(self) -> np.ndarray:
        return compute_penultimate_features(self.model, self.data[0]).double().numpy()

    @cached_property
    def probabilities(self) -> np.ndarray:
        with torch.no_grad():
            return torch.softmax(self.model(self.data[0]), 1).numpy()

    @cached_property
    def given(self) -> Given:
        """All of it, as the packages are handed it."""
        return self._given(torch.float64)

    @cached_property
    def single(self) -> Given:
        """The same in single precision, in which DISTIL computes."""
        return self._given(torch.float32)

    def _given(self, dtype: torch.dtype) -> Given:
        body, layer = in_two_parts(copy.deepcopy(self.model).to(dtype))
        x, y = self.data
        return Given(
            body, layer, x.to(dtype), y[: self.labels], lambda: torch.from_numpy(self.embedding)
        )

    def by_distil(self, kind: str, q: int, seed: int = 0) -> list[int]:
        """Positions in the data set picked by one of DISTIL's strategies."""
        return [self.labels + i for i in distil(kind)(self.single, q, make_generator(seed, "x"))]

    @property
    def known(self) -> np.ndarray:
        """Labels as scikit-activeml wants them: −1 where there is none."""
        return self.given.known


def clearly_ordered(scores: np.ndarray, count: int) -> bool:
    """Whether the `count` + 1 largest scores differ clearly: then every rule for ties agrees."""
    top = np.sort(scores)[::-1][: count + 1]
    return bool((top[:-1] - top[1:] > 1e-9 * np.abs(top).max()).all())
