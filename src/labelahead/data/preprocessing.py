"""Preprocessing of an item into a model input, with all statistics that come from the pool.

It consists of numbers only, so that loading it runs no code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data.class_names import ClassNameGuesser
from labelahead.data.columns import Column, column_from_dict, column_to_dict

__all__ = ["Preprocessor"]

PICTURE_INPUTS, NUMBER_INPUTS, COLUMN_INPUTS = "pictures", "numbers", "columns"
# Images that an encoder with a processor of its own turns into `shape` numbers.
ENCODED_PICTURES = "encoded pictures"
ENCODED_SOUNDS = "encoded sounds"  # that an audio encoder turns into `shape` numbers
VECTORS = "vectors"  # that the user has computed; `features` names their file


@dataclass(frozen=True, eq=False)
class Preprocessor:
    """How an item becomes a model input: it is read, optionally encoded, and standardised.

    Attributes:
        kind: "pictures" (uint8 from 0 to `white`), "numbers" (unchanged), "columns" (of a table),
            "encoded pictures" or "encoded sounds" (embeddings by the encoder named in `features`),
            or "vectors" (embeddings that come with the items).
        shape: the shape of an item when it is read.
        mean: what is subtracted from the numbers or
        features: a scalar, or one value per channel or feature.
        std: what they are divided by, in the same form.
        white: the value of a white pixel.
        features: the encoder of images or sounds, if there is one.
        columns: the fitted columns of a table.
        class_names: the guesser by class names; its guesses follow the features of an input.
        guess_width: so many columns of guesses, which further items do not have, come before them.
    """

    kind: str
    shape: tuple[int, ...]
    mean: Tensor = field(default_factory=lambda: torch.zeros(()))
    std: Tensor = field(default_factory=lambda: torch.ones(()))
    white: int = 255
    features: str | None = None
    columns: tuple[Column, ...] = ()
    class_names: ClassNameGuesser | None = None
    guess_width: int = 0

    def to_dict(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return plain values for JSON, and tensors by name."""
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
        if self.class_names is not None:
            tensors |= self.class_names.to_tensors()
        values = {
            "kind": self.kind,
            "shape": list(self.shape),
            "white": self.white,
            "features": self.features,
            "guess_width": self.guess_width,
            "columns": [
                {k: v for k, v in c.items() if not isinstance(v, np.ndarray)} for c in columns
            ],
        }
        return values, tensors

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "Preprocessor":
        """Rebuild a preprocessor from the result of `to_dict`."""
        columns = []
        for i, column in enumerate(values["columns"]):
            prefix = f"column.{i}."
            arrays = {
                key.removeprefix(prefix): tensor.numpy()
                for key, tensor in tensors.items()
                if key.startswith(prefix)
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
            ClassNameGuesser.from_tensors(tensors),
            values.get("guess_width", 0),
        )
