"""Class names as a guesser: how similar an item's embedding is to that of the name of a class."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["SHARPNESS", "ClassNameGuesser"]

SHARPNESS = 3.0  # of the softmax over standardised similarities


@dataclass(frozen=True, eq=False)
class ClassNameGuesser:
    """Guess by the similarity of an item to the names of the classes.

    Similarities are standardised class by class over the pool: some names are close to everything.

    Attributes:
        embeddings: (C, d) of the class names, in the space of the items.
        mean: (C,) of the similarities over the pool.
        deviation: (C,).
    """

    embeddings: Tensor
    mean: Tensor
    deviation: Tensor

    @classmethod
    def fit(cls, embeddings: Tensor, pool: Tensor) -> "ClassNameGuesser":
        """Standardise the similarities over the embeddings (n, d) of the pool."""
        similarity = _similarity(pool, embeddings)
        spread = similarity.std(0, correction=0)
        return cls(embeddings.float(), similarity.mean(0), torch.where(spread > 1e-9, spread, 1.0))

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return len(self.embeddings)

    def guess(self, rows: Tensor) -> Tensor:
        """Return class probabilities (n, C), float64, of items by their embeddings (n, d)."""
        standardised = (_similarity(rows, self.embeddings) - self.mean) / self.deviation
        return torch.softmax(SHARPNESS * standardised, 1)

    def to_tensors(self) -> dict[str, Tensor]:
        """Return its tensors by name."""
        return {
            "names.embeddings": self.embeddings,
            "names.mean": self.mean,
            "names.deviation": self.deviation,
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "ClassNameGuesser | None":
        """Rebuild it from `to_tensors`; None if there is none."""
        if "names.embeddings" not in tensors:
            return None
        return cls(*(tensors[f"names.{key}"] for key in ("embeddings", "mean", "deviation")))


def _similarity(rows: Tensor, embeddings: Tensor) -> Tensor:
    """Return the cosines (n, C), float64."""
    return F.normalize(rows.double(), dim=1) @ F.normalize(embeddings.double(), dim=1).T
