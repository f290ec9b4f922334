"""One trained network and its pool, in the formats that the other packages expect."""

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

LOSS = "cross-entropy"  # the other packages turn outputs into probabilities by softmax only
WIDTHS = {"mlp": 32, "cnn": 4}


@dataclass(frozen=True, eq=False)
class Case:
    """A network trained on the first `labels` of n noisy items, in float64 where supported."""

    network: str = "mlp"
    seed: int = 0
    n: int = 300
    labels: int = 30
    dropout: float = 0.0
    noise: float = 2.0

    @cached_property
    def data(self) -> tuple[Tensor, Tensor]:
        """Return inputs whose classes overlap, so that no two items have equal confidence."""
        x, y = blobs(self.n, seed=self.seed)
        rng = torch.Generator().manual_seed(self.seed + 1)
        return (x + self.noise * torch.randn(x.shape, generator=rng)).double(), y

    @cached_property
    def model(self) -> nn.Module:
        x, y = self.data
        options = {"width": WIDTHS[self.network], "dropout": self.dropout, "seed": self.seed}
        net = build_model(self.network, tuple(x.shape[1:]), CLASSES, **options).double()
        recipe = Training(loss=LOSS, steps=40)
        train(net, x[: self.labels], y[: self.labels], CLASSES, recipe, seed=self.seed)
        return net.eval()

    @cached_property
    def pool(self) -> Pool:
        return labelled_pool(self.data[1], self.labels)

    def query_context(self, name: str) -> QueryContext:
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
    def packages_input(self) -> Given:
        """The query context in the form that the packages receive."""
        return self._build_packages_input(torch.float64)

    @cached_property
    def packages_input_float32(self) -> Given:
        """The same in single precision, which DISTIL uses."""
        return self._build_packages_input(torch.float32)

    def _build_packages_input(self, dtype: torch.dtype) -> Given:
        body, layer = in_two_parts(copy.deepcopy(self.model).to(dtype))
        x, y = self.data
        return Given(
            body, layer, x.to(dtype), y[: self.labels], lambda: torch.from_numpy(self.embedding)
        )

    def query_by_distil(self, kind: str, q: int, seed: int = 0) -> list[int]:
        """Return the positions in the data set that a strategy of DISTIL queries."""
        rows = distil(kind)(self.packages_input_float32, q, make_generator(seed, "x"))
        return [self.labels + i for i in rows]

    @property
    def labels_with_missing(self) -> np.ndarray:
        """Labels as scikit-activeml expects them: −1 for unlabelled items."""
        return self.packages_input.padded_labels


def are_clearly_ordered(scores: np.ndarray, count: int) -> bool:
    """Return whether the `count` + 1 largest scores differ, so that tie breaking has no effect."""
    top = np.sort(scores)[::-1][: count + 1]
    return bool((top[:-1] - top[1:] > 1e-9 * np.abs(top).max()).all())
