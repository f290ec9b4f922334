"""A network as a learner.

Train it on the labels, test it, and see what the labels say of each other.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from labelahead.acquisition.probability import probabilities, softmax
from labelahead.batching import Samples
from labelahead.errors import InputError
from labelahead.gp.leave_one_out import leave_one_out
from labelahead.gp.posterior import prior
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

__all__ = ["FittedModel", "NetworkLearner", "leave_one_out_predictions", "outputs_to_probabilities"]

WRONG_LABEL_NOISE = 1e-2  # the same to find wrong labels: a little better there (docs/adr/0002)
LEAVE_ONE_OUT_NOISE = (
    1e-3  # relative regulariser of leave-one-out, as all recorded campaigns have it
)


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A network after its training, and the data set that it looks at: all that a belief begins
    with.

    loss: what it was trained with. trained: None where there was nothing to train on. objective:
    what was trained together with it. Every method takes positions (q,) in the data set.
    """

    model: nn.Module
    inputs: Tensor | Samples  # (n, ...)
    loss: str = "squared"
    trained: TrainingResult | None = None
    seconds: float = 0.0
    objective: AuxiliaryObjective | None = None

    # `kernel_arguments` has as many rows and columns as there are points
    forms_kernel: ClassVar[bool] = True
    # `start` has been trained on the labels: changes are measured from it
    baseline: ClassVar[str] = "outputs"

    @property
    def noise(self) -> float:
        """Relative regulariser of the belief, unless somebody says otherwise."""
        return 1e-3

    def outputs(self, at: Tensor) -> Tensor:
        """(q, C) what the network says."""
        return predict(self.model, self.inputs[at])

    def predict_proba(self, at: Tensor, classes: int | None = None) -> Tensor:
        """(q, C) class probabilities, float64 on the CPU.

        classes: how many classes there are, where the network has one output more (a single class).
        """
        return outputs_to_probabilities(self.outputs(at), self.loss, classes)

    def embedding(self, at: Tensor) -> Tensor:
        """(q, h) what goes into the network's last linear layer, float64."""
        return compute_penultimate_features(self.model, self.inputs[at]).double().cpu()

    def predict_with_dropout(self, at: Tensor, rate: float, rng: torch.Generator) -> Tensor:
        """(q, C) what it says with dropout on the embedding."""
        return predict_with_dropout(self.model, self.inputs[at], rate, rng)

    def start(self, outputs: Tensor) -> Tensor:
        """(q, C) where look-ahead begins, on the scale of one-hot targets.

        A network trained by cross-entropy is looked ahead from its probabilities p: y − p is the
        direction in which that loss pushes the outputs, as y − f is for squared loss.
        """
        return softmax(outputs) if self.loss == "cross-entropy" else outputs

    def kernel_arguments(self, at: Tensor, kind: str, sketch: int | None = None) -> dict[str, Any]:
        """The kernel between items, as "kernel", or its "features" where a sketch is asked for."""
        x = self.load_inputs(at)
        if sketch is None:
            return {"kernel": kernel(self.model, x, kind=kind)}
        return {"features": features(self.model, x, kind=kind, sketch=sketch)}

    def load_inputs(self, at: Tensor) -> Tensor | Samples:
        """(q, ...) the inputs, on the network's device and in its dtype."""
        device, dtype = get_device_and_dtype(self.model, self.inputs)
        return self.inputs[at].to(device=device, dtype=dtype)

    def rows(self, at: Tensor) -> Tensor:
        """(q, ...) the same as one tensor, for what looks at the numbers themselves."""
        x = self.load_inputs(at)
        if not isinstance(x, Tensor):
            raise InputError(
                "this strategy looks at inputs as rows of numbers, but these are not one tensor; "
                "expected another "
                "strategy, such as flip or badge"
            )
        return x

    def accuracy(self, at: Tensor, labels: Tensor) -> float | None:
        """How often it is right; None without any item to test on."""
        if not len(at):
            return None
        return float((self.outputs(at).argmax(1).cpu() == labels).double().mean())


def outputs_to_probabilities(outputs: Tensor, loss: str, classes: int | None = None) -> Tensor:
    """(n, C) probabilities from a trained network's outputs, float64 on the CPU.

    Softmax after cross-entropy; after squared loss the nearest point of the simplex.
    """
    p = probabilities(outputs.double().cpu(), "softmax" if loss == "cross-entropy" else "simplex")
    if classes is None or classes >= p.shape[1]:
        return p
    return p[:, :classes] / p[:, :classes].sum(1, keepdim=True).clamp_min(1e-30)


@dataclass(frozen=True, eq=False)
class NetworkLearner:
    """What a training depends on besides labels and seed.

    inputs: (n, ...) of the whole data set. network: seed -> a fresh network. objective: makes what
    is trained together with it, anew at every training, whatever `training.start` says of the
    network.
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
        """Train on items (L,) with class numbers (L,), from the weights that `training.start` asks
        for.

        previous: those of the last training. into: the network to be trained; default: a new one.
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
        """What the other labels predict for each labelled item (L, C), and how far off that is (L,
        C).

        doubting: whether wrong labels are looked for, not the accuracy.
        """
        untrained = self.network(seed).to(self.device).eval()
        return leave_one_out_predictions(
            untrained,
            self.inputs[labelled],
            labels,
            WRONG_LABEL_NOISE if find_wrong_labels else LEAVE_ONE_OUT_NOISE,
        )


def leave_one_out_predictions(
    untrained: nn.Module,
    inputs: Tensor | Samples,
    labels: Tensor,
    noise: float = LEAVE_ONE_OUT_NOISE,
) -> tuple[Tensor, Tensor]:
    """What the other labels predict for each labelled item (L, C), and how far off that is (L, C).

    Leave-one-out by kernel regression, with the kernel of a network that has seen no label: after
    training, kernel and outputs know all of them, and leave-one-out is right nearly always.
    """
    device, dtype = get_device_and_dtype(untrained, inputs)
    K = kernel(untrained, inputs.to(device=device, dtype=dtype))
    nothing = torch.zeros_like(predict(untrained, inputs), dtype=torch.float64)
    post = prior(nothing, K, noise=noise).condition(torch.arange(len(labels)), labels)
    residual = leave_one_out(post)
    return (residual + post.targets).cpu(), residual.cpu()
