"""The acquisition functions by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from labelahead.acquisition.functions import changes, eer, emoc, flip, mlmoc, resolve, variance
from labelahead.acquisition.pool_view import View

__all__ = ["ACQUISITIONS", "Acquisition"]

Acquisition = Callable[[View, torch.Generator | None], Tensor]

ACQUISITIONS: Mapping[str, Acquisition] = MappingProxyType(
    {
        "mlmoc": mlmoc,
        "changes": changes,
        "emoc": emoc,
        "eer": eer,
        "variance": variance,
        "flip": flip,
        "resolve": resolve,
    }
)
