"""An auxiliary objective that is trained together with a network, such as LL4AL's loss module."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

from torch import Tensor, nn

from labelahead.batching import Inputs

__all__ = ["AuxiliaryObjective", "MakeObjective"]


class AuxiliaryObjective(nn.Module, ABC):
    """An objective with its own parameters, added to the network's loss in every step of `train`.

    It is built for one architecture and can be used with any copy of that network. `train`
    optimises its parameters together with those of the network: same optimiser, rates and clipping.

    >>> from contextlib import nullcontext
    >>> import torch
    >>> from labelahead.models.training import AuxiliaryObjective
    >>> class MeanLoss(AuxiliaryObjective):  # learns the mean of the network's loss
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.mean = torch.nn.Parameter(torch.zeros(()))
    ...     def record_features(self, model):
    ...         return nullcontext()
    ...     def forward(self, losses, progress):
    ...         return (losses.mean() - self.mean) ** 2
    >>> float(MeanLoss()(torch.tensor([1.0, 3.0]), 0.0))
    4.0
    """

    @abstractmethod
    def record_features(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which the objective records what it needs of each forward pass."""

    @abstractmethod
    def forward(self, losses: Tensor, progress: float) -> Tensor:
        """Return the scalar that is added to the network's loss after a forward pass.

        Args:
            losses: (n,) the network's loss for each sample of the batch, detached.
            progress: the fraction of the training that is finished, from 0 to below 1.
        """


MakeObjective = Callable[
    [nn.Module, Inputs, int], AuxiliaryObjective
]  # (network, one or two samples, seed)
