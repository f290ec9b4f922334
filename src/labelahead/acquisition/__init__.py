"""View -> scores: one function each, larger = label sooner; one dict names them all."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from labelahead.acquisition.criteria import eer, emoc, flip, mlmoc, resolve, variance
from labelahead.acquisition.view import View

__all__ = ["ACQUISITIONS", "Acquisition", "View", "eer", "emoc", "flip", "mlmoc", "resolve", "variance"]

Acquisition = Callable[[View, torch.Generator | None], Tensor]

ACQUISITIONS: Mapping[str, Acquisition] = MappingProxyType(
    {"mlmoc": mlmoc, "emoc": emoc, "eer": eer, "variance": variance, "flip": flip, "resolve": resolve}
)
