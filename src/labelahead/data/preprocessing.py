"""How an item becomes what a network sees, with all that was taken from the pool for it.

Numbers, no code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data.columns import Column, column_from_dict, column_to_dict

__all__ = ["Preprocessor"]

PICTURES, NUMBERS, COLUMNS = "pictures", "numbers", "columns"


@dataclass(frozen=True, eq=False)
class Preprocessor:
    """What is done to an item: read, perhaps shown to a pretrained network, and standardised.

    kind: "pictures", uint8 from 0 to `white`; "numbers", as they are; "columns" of a table. shape:
    of an item as it is read. features: the pretrained network, if any, by which pictures become
    features. mean, std: what is taken off the numbers or features, and what they are divided by:
    one for all, or one a channel or number.
    """

    kind: str
    shape: tuple[int, ...]
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    std: Tensor = field(default_factory=lambda: torch.ones(()))
    white: int = 255
    features: str | None = None
    columns: tuple[Column, ...] = ()

    def to_dict(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Itself as values for JSON, and tensors by name."""
        columns = [column_to_dict(column) for column in self.columns]
        arrays = {
            f"column.{i}.{k}": v
            for i, c in enumerate(columns)
            for k, v in c.items()
            if isinstance(v, np.ndarray)
        }
        tensors = {"mean": self.mean, "std": self.std} | {
            k: torch.from_numpy(v) for k, v in arrays.items()
        }
        values = {
            "kind": self.kind,
            "shape": list(self.shape),
            "white": self.white,
            "features": self.features,
            "columns": [
                {k: v for k, v in c.items() if not isinstance(v, np.ndarray)} for c in columns
            ],
        }
        return values, tensors

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "Preprocessor":
        """What `to_dict` gave."""
        columns = []
        for i, column in enumerate(values["columns"]):
            mine = f"column.{i}."
            arrays = {
                k.removeprefix(mine): t.numpy() for k, t in tensors.items() if k.startswith(mine)
            }
            columns.append(column_from_dict({**column, **arrays}))
        return cls(
            values["kind"],
            tuple(values["shape"]),
            tensors["mean"],
            tensors["std"],
            values["white"],
            values["features"],
            tuple(columns),
        )
