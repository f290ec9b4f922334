"""Networks as learners: train on the labels, test, and compute leave-one-out predictions."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from labelahead.acquisition.probability import probabilities, softmax
from labelahead.batching import Samples
from labelahead.errors import InputError
from labelahead.gp.leave_one_out import leave_one_out
from labelahead.gp.posterior import prior
from labelahead.inference.forecast import ErrorForecast
from labelahead.inference.pool_posterior import Observation
from labelahead.inference.sources import Annotations, SourceAccuracy
from labelahead.models.training import (
    AuxiliaryObjective,
    Training,
    TrainingResult,
    initialise_model,
    predict,
    train,
)
from labelahead.models.training.forward import (
    compute_penultimate_features,
    get_device_and_dtype,
    predict_with_dropout,
)
from labelahead.models.training.objective import MakeObjective
from labelahead.ntk import features, kernel
from labelahead.tasks import Prediction, Task

__all__ = [
    "FittedModel",
    "ModelLearner",
    "NetworkLearner",
    "leave_one_out_predictions",
    "outputs_to_probabilities",
]

WRONG_LABEL_NOISE = 1e-2  # slightly better for finding wrong labels (docs/adr/0002)
LEAVE_ONE_OUT_NOISE = 1e-3  # relative noise of leave-one-out, as in all recorded campaigns


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A trained network with the data set that it predicts.

    Every method takes positions (q,) in the data set.

    Attributes:
        model: The network.
        inputs: (n, ...) of the whole data set.
        loss: The loss it was trained with.
        trained: How the training went; None if there was no label.
        seconds: Duration of the training.
        objective: The auxiliary objective that was trained with it.
    """

    model: nn.Module
    inputs: Tensor | Samples  # (n, ...)
    loss: str = "squared"
    trained: TrainingResult | None = None
    seconds: float = 0.0
    objective: AuxiliaryObjective | None = None

    # `kernel_arguments` is a dense matrix over the points
    forms_kernel: ClassVar[bool] = True
    # `start` is trained on the labels: changes are measured from it
    baseline: ClassVar[str] = "outputs"
    # whether labels count only after a training; False: they are fitted in milliseconds
    needs_training: ClassVar[bool] = True

    @property
    def noise(self) -> float:
        """Default relative noise of the posterior."""
        return 1e-3

    @property
    def guessers(self) -> int:
        """Number of guessers whose guesses the inputs hold."""
        return 0

    @property
    def observations(self) -> Mapping[int, Observation]:
        """position -> what its labels amount to, for a learner that tells sources apart."""
        return {}

    @property
    def task(self) -> Task | None:
        """What the outputs mean; None: classes."""
        return None

    def outputs(self, at: Tensor) -> Tensor:
        """Return the outputs (q, C) of the network."""
        return predict(self.model, self.inputs[at])

    def predict_proba(self, at: Tensor, classes: int | None = None) -> Tensor:
        """Return class probabilities (q, C), float64 on the CPU.

        Args:
            at: (q,) positions.
            classes: Number of classes, if the network has one output more (data with a single
                class).
        """
        return outputs_to_probabilities(self.outputs(at), self.loss, classes)

    def predict_answers(self, at: Tensor) -> Prediction:
        """Return what the task predicts for items (q,)."""
        raise InputError(
            "a trained network has no task; expected a model of exact(inputs, task=...)"
        )

    def embedding(self, at: Tensor) -> Tensor:
        """Return the inputs (q, h) of the network's last linear layer, float64."""
        return compute_penultimate_features(self.model, self.inputs[at]).cpu().double()

    def predict_with_dropout(self, at: Tensor, rate: float, rng: torch.Generator) -> Tensor:
        """Return outputs (q, C) with dropout on the embedding."""
        return predict_with_dropout(self.model, self.inputs[at], rate, rng)

    def start(self, outputs: Tensor, at: Tensor) -> Tensor:
        """Return the prior mean (q, C) of look-ahead, on the scale of one-hot targets.

        For a network trained with cross-entropy these are its probabilities p: y − p is the
        direction in which that loss pushes the outputs, as y − f is for squared loss.
        """
        return softmax(outputs) if self.loss == "cross-entropy" else outputs

    def kernel_arguments(self, at: Tensor, kind: str, sketch: int | None = None) -> dict[str, Any]:
        """Return the kernel between items as {"kernel": ...}, or {"features": ...} if a sketch is
        requested.
        """
        x = self.load_inputs(at)
        if sketch is None:
            return {"kernel": kernel(self.model, x, kind=kind)}
        return {"features": features(self.model, x, kind=kind, sketch=sketch)}

    def load_inputs(self, at: Tensor) -> Tensor | Samples:
        """Return the inputs (q, ...) on the network's device and in its dtype."""
        device, dtype = get_device_and_dtype(self.model, self.inputs)
        return self.inputs[at].to(device=device, dtype=dtype)

    def rows(self, at: Tensor) -> Tensor:
        """Return the inputs (q, ...) as one tensor; raise if they are not."""
        x = self.load_inputs(at)
        if not isinstance(x, Tensor):
            raise InputError(
                "this strategy needs inputs as rows of numbers, but these are not one tensor; "
                "expected another strategy, such as flip or badge"
            )
        return x

    def make_learner(
        self,
        classes: int,
        network: Callable[[int], nn.Module],
        training: Training,
        objective: MakeObjective | None = None,
    ) -> "ModelLearner":
        """Return the learner that fits such a model to other labels."""
        return NetworkLearner(self.inputs, classes, network, training, objective=objective)

    def calibrate(self, votes: Tensor) -> None:
        """Do nothing: outputs of a trained network depend on all labels.

        votes: (L,) bool, the labels to calibrate on.
        """

    def accuracy(self, at: Tensor, labels: Tensor) -> float | None:
        """Return the accuracy at some positions; None without any."""
        if not len(at):
            return None
        return float((self.outputs(at).argmax(1).cpu() == labels).double().mean())


class ModelLearner(Protocol):
    """What fits a model to labels: `NetworkLearner` or `inference.exact.ExactLearner`."""

    def with_annotations(self, annotations: Annotations | None) -> "ModelLearner":
        """Return the learner with all labels of all items by source."""
        ...

    def source_accuracy(self) -> Mapping[str, SourceAccuracy]:
        """Return how often each source is right, by the last fit; empty without two sources."""
        ...

    def fit(
        self,
        labelled: Tensor,
        labels: Tensor,
        *,
        seed: int,
        previous: Mapping[str, Tensor] | None = None,
        into: nn.Module | None = None,
    ) -> FittedModel:
        """Fit to items (L,) with class numbers (L,)."""
        ...


def outputs_to_probabilities(outputs: Tensor, loss: str, classes: int | None = None) -> Tensor:
    """Convert the outputs of a trained network to probabilities (n, C), float64 on the CPU.

    Softmax after cross-entropy; after squared loss the nearest point of the simplex.
    """
    p = probabilities(outputs.cpu().double(), "softmax" if loss == "cross-entropy" else "simplex")
    if classes is None or classes >= p.shape[1]:
        return p
    return p[:, :classes] / p[:, :classes].sum(1, keepdim=True).clamp_min(1e-30)


@dataclass(frozen=True, eq=False)
class NetworkLearner:
    """Everything that a training depends on, except the labels and the seed.

    Attributes:
        inputs: (n, ...) of the whole data set.
        classes: Number of classes.
        network: seed -> an untrained network.
        training: How to train it.
        device: Where to train.
        objective: Makes the auxiliary objective, anew for every training, whatever `training.start`
            is.
    """

    inputs: Tensor | Samples
    classes: int
    network: Callable[[int], nn.Module]
    training: Training
    device: str = "cpu"
    objective: MakeObjective | None = None

    def fit(
        self,
        labelled: Tensor,
        labels: Tensor,
        *,
        seed: int,
        previous: Mapping[str, Tensor] | None = None,
        into: nn.Module | None = None,
    ) -> FittedModel:
        """Train on items (L,) with class numbers (L,), starting from the weights given by
        `training.start`.

        Args:
            labelled: (L,) positions.
            labels: (L,) class numbers.
            seed: Of the initial weights and the batches.
            previous: Weights of the last training.
            into: The network to train; default: a new one.
        """
        began = time.perf_counter()
        model = initialise_model(self.network, previous, self.training, seed=seed).to(self.device)
        if into is not None:
            into.load_state_dict(model.state_dict())
            model = into
        trained = None
        objective = None if self.objective is None else self.objective(model, self.inputs[:2], seed)
        if len(labelled):
            x = self.inputs[labelled]
            trained = train(
                model, x, labels, self.classes, self.training, seed=seed, objective=objective
            )
        seconds = time.perf_counter() - began
        return FittedModel(
            model.eval(), self.inputs, self.training.loss, trained, seconds, objective
        )

    def leave_one_out_predictions(
        self, labelled: Tensor, labels: Tensor, *, seed: int, find_wrong_labels: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the leave-one-out predictions (L, C) and residuals (L, C) of the labelled items.

        Args:
            labelled: (L,) positions.
            labels: (L,) class numbers.
            seed: Of the untrained network.
            find_wrong_labels: Use the noise that is best for finding wrong labels, not for
                accuracy.
        """
        untrained = self.network(seed).to(self.device).eval()
        return leave_one_out_predictions(
            untrained,
            self.inputs[labelled],
            labels,
            WRONG_LABEL_NOISE if find_wrong_labels else LEAVE_ONE_OUT_NOISE,
        )

    def with_annotations(self, annotations: Annotations | None) -> "NetworkLearner":
        """Return the same learner: a network is trained on one label for each item."""
        return self

    def source_accuracy(self) -> Mapping[str, SourceAccuracy]:
        """Return nothing: sources are not told apart."""
        return {}

    def estimate_accuracy(self, labelled: Tensor, labels: Tensor) -> float | None:
        """Return None: the outputs of a trained network depend on all labels."""
        return None

    def forecast_error(
        self,
        labelled: Tensor,
        labels: Tensor,
        at: Tensor,
        *,
        seed: int = 0,
        votes: Tensor | None = None,
    ) -> ErrorForecast | None:
        """Return None: the outputs of a trained network depend on all labels.

        Only test items can measure its error; `ExactLearner` estimates it.
        """
        return None


def leave_one_out_predictions(
    untrained: nn.Module,
    inputs: Tensor | Samples,
    labels: Tensor,
    noise: float = LEAVE_ONE_OUT_NOISE,
) -> tuple[Tensor, Tensor]:
    """Return leave-one-out predictions (L, C) and residuals (L, C) by kernel regression.

    The kernel is that of an untrained network: after training, kernel and outputs depend on all
    labels, and leave-one-out would nearly always be right.
    """
    device, dtype = get_device_and_dtype(untrained, inputs)
    K = kernel(untrained, inputs.to(device=device, dtype=dtype))
    nothing = torch.zeros_like(predict(untrained, inputs))
    post = prior(nothing, K, noise=noise).condition(torch.arange(len(labels)), labels)
    residual = leave_one_out(post)
    return (residual + post.targets).cpu(), residual.cpu()
