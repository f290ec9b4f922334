"""What differs between a trained network and the exact learner, outside of their learners.

`get_model_kind` returns one of two objects with the same attributes, by the name of a model. Code
that prepares, describes or exports a model asks that object and not for the name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from labelahead.batching import Samples
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.network import NetworkLearner
from labelahead.models import EXACT, build_model
from labelahead.models.training import Training, get_default_training
from labelahead.models.training.objective import MakeObjective

__all__ = ["ModelKind", "get_model_kind"]


class LearnerInputs(Protocol):
    """What a learner is made of: `learner.preparation.PreparedCampaign`."""

    @property
    def inputs(self) -> Tensor | Samples:
        """(n, ...) what the model sees."""

    @property
    def network(self) -> Callable[[int, int], nn.Module]:
        """(classes, seed) -> a fresh network."""

    @property
    def training(self) -> Training:
        """The recipe."""

    @property
    def device(self) -> str:
        """Where to train."""

    def make_exact_learner(self, classes: int) -> ExactLearner:
        """Make a learner by kernel regression."""


class ModelKind(ABC):
    """What code that prepares, describes or exports a model must know.

    Attributes:
        needs_training: Whether labels count only after a training.
        weighs_sources: Whether it uses several labels of an item, by the reliability of their
            sources.
        standardises_features: Whether features are standardised over the whole pool.
        remark: For model cards, after the name.
    """

    needs_training: ClassVar[bool]
    weighs_sources: ClassVar[bool]
    standardises_features: ClassVar[bool]
    remark: ClassVar[str]

    @abstractmethod
    def get_default_training(self, name: str) -> Training:
        """Return the recipe of a model if the user gives none."""

    @abstractmethod
    def get_loss(self, training: Training) -> str:
        """Return the loss that the outputs of a model belong to."""

    @abstractmethod
    def build_model(
        self, name: str, shape: tuple[int, ...], classes: int, **options: Any
    ) -> nn.Module:
        """Build a model without labels; options: as for `labelahead.models.build_model`."""

    @abstractmethod
    def make_learner(
        self, prepared: LearnerInputs, classes: int, objective: MakeObjective | None
    ) -> NetworkLearner | ExactLearner:
        """Make a learner for so many classes."""


class NetworkKind(ModelKind):
    """A network that is trained on the labels."""

    needs_training = True
    weighs_sources = False
    standardises_features = True
    remark = ""

    def get_default_training(self, name: str) -> Training:
        """Return the recipe of the network."""
        return get_default_training(name)

    def get_loss(self, training: Training) -> str:
        """Return the loss of the recipe."""
        return training.loss

    def build_model(
        self, name: str, shape: tuple[int, ...], classes: int, **options: Any
    ) -> nn.Module:
        """Build an untrained network."""
        return build_model(name, shape, classes, **options)

    def make_learner(
        self, prepared: LearnerInputs, classes: int, objective: MakeObjective | None
    ) -> NetworkLearner:
        """Make a learner that trains a new network, with the auxiliary objective of the strategy."""
        network = prepared.network
        make = lambda seed: network(classes, seed)  # noqa: E731
        return NetworkLearner(
            prepared.inputs, classes, make, prepared.training, prepared.device, objective
        )


class ExactKind(ModelKind):
    """Kernel regression on frozen features (`labelahead.inference.exact`)."""

    needs_training = False
    weighs_sources = True
    # It centres and scales item by item, so that a part of a pool can be embedded.
    standardises_features = False
    remark = " (kernel regression; nothing was trained)"

    def get_default_training(self, name: str) -> Training:
        """Return the defaults: nothing is trained."""
        return Training()

    def get_loss(self, training: Training) -> str:
        """Return squared loss, whatever the recipe."""
        return "squared"

    def build_model(
        self, name: str, shape: tuple[int, ...], classes: int, **options: Any
    ) -> nn.Module:
        """Build a model without labels; there is nothing that options could change."""
        return ExactModel(torch.zeros(prod(shape)), classes)

    def make_learner(
        self, prepared: LearnerInputs, classes: int, objective: MakeObjective | None
    ) -> ExactLearner:
        """Make a learner without training; the objective has no effect."""
        return prepared.make_exact_learner(classes)


_NETWORK = NetworkKind()
_EXACT = ExactKind()


def get_model_kind(name: str) -> ModelKind:
    """Return the kind of a model by its name.

    >>> from labelahead.learner.model_kind import get_model_kind
    >>> get_model_kind("exact").needs_training, get_model_kind("mlp").needs_training
    (False, True)
    """
    return _EXACT if name == EXACT else _NETWORK
