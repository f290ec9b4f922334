"""The tangent kernel of any network on a large pool, as sketched features per partition.

A partition stores rows [Ψ | f]: k features with Ψ Ψᵀ ≈ Θ (`labelahead.ntk.features`, one projection
for all partitions) and, for a trained network, its outputs, which are the prior mean. Given these
numbers everything is exact.
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelahead.acquisition.probability import softmax
from labelahead.errors import ClusterError, InputError
from labelahead.gp.posterior import Posterior, prior
from labelahead.inference.forecast import ErrorForecast, forecast_error
from labelahead.inference.mixture import NOISE_GRID, solve_leave_one_out
from labelahead.inference.network import outputs_to_probabilities
from labelahead.models import build_model
from labelahead.models.training import predict
from labelahead.ntk import features
from labelahead.outofcore.addresses import Array

__all__ = [
    "LOSSES",
    "NetworkOptions",
    "NetworkSpec",
    "SketchedModel",
    "align_classes",
    "create_sketched_model",
    "describe_network",
]

LOSSES = ("squared", "cross-entropy")
DEFAULT_SKETCH_FEATURES = 2048
# Of a trained network, whose leave-one-out error depends on all labels; as in campaigns.
TRAINED_NETWORK_NOISE = 1e-3
GRADIENT_BATCH_ITEMS = 256


@dataclass(frozen=True)
class NetworkSpec:
    """Which network, and how it is sketched.

    Attributes:
        name: As for `build`.
        classes: Names of its outputs.
        shape: Of one item.
        sketch: Number of features.
        loss: The loss it was trained with; "": untrained, its outputs are not used.
        digest: Hash of its weights, so that features of other weights are never reused.
    """

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    sketch: int
    loss: str
    digest: str = ""

    def rows(self, inputs: Array, device: str = "cpu") -> Array:
        """Return [Ψ | f] (q, k + C), or Ψ (q, k), of inputs (q, ...), computed on a device."""
        with _GRADIENT_LOCK:  # gradients are captured in the network itself: one thread at a time
            model, parts = _build_network(self, device), []
            kind = next((p.dtype for p in model.parameters()), torch.float32)
            for x in torch.split(torch.from_numpy(np.array(inputs)).to(kind), GRADIENT_BATCH_ITEMS):
                x = x.to(device)
                some = [features(model, x, sketch=self.sketch)]
                if self.loss:
                    predicted = predict(model, x)
                    some.append(
                        (softmax(predicted) if self.loss == "cross-entropy" else predicted).to(
                            some[0]
                        )
                    )
                parts.append(torch.cat(some, 1).detach().cpu())
        return torch.cat(parts).numpy()


_GRADIENT_LOCK = threading.Lock()


@cache
def _build_network(network_spec: NetworkSpec, device: str) -> nn.Module:
    model = build_model(
        network_spec.name, network_spec.shape, len(network_spec.classes), seed=0
    ).eval()
    if network_spec.digest and _hash_weights(model) != network_spec.digest:
        raise ClusterError(
            f"{network_spec.name} builds a network with other weights on this worker than where "
            "the command was started; expected the same weights on all workers: load them from a "
            "file, or draw them from the seed that is set"
        )
    return model.to(device)


def _hash_weights(model: nn.Module) -> str:
    made = hashlib.sha256()
    for name, value in model.state_dict().items():
        made.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        made.update(
            value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return made.hexdigest()[:24]


@dataclass(frozen=True)
class NetworkOptions:
    """A network whose tangent kernel is stored in place of the items' own features.

    Its inputs are the vectors, the embeddings of texts or sounds, or pixels from −1 to 1.

    Attributes:
        model: `module:factory` or `file.py:factory`.
        classes: Names of the network's outputs.
        sketch: Number of features of its kernel.
        trained: The loss it was trained with ("squared", "cross-entropy"); None: untrained.

    >>> from labelahead.outofcore import NetworkOptions
    >>> NetworkOptions("net.py:make", ["cat", "dog"], sketch=512).trained is None
    True
    """

    model: str
    classes: Sequence[str]
    sketch: int = DEFAULT_SKETCH_FEATURES
    trained: str | None = None


def describe_network(options: NetworkOptions, shape: tuple[int, ...]) -> NetworkSpec:
    """Build a network for inputs of a shape, to check it, and describe it."""
    name, classes, sketch, loss = options.model, options.classes, options.sketch, options.trained
    if len(classes) < 2:
        raise InputError(
            "a network needs the names of its outputs; expected two or more: classes (--classes "
            "a,b)"
        )
    if loss is not None and loss not in LOSSES:
        raise InputError(
            f"trained is {loss!r}; expected squared or cross-entropy, or nothing for an untrained "
            "network"
        )
    if isinstance(sketch, bool) or not isinstance(sketch, int) or sketch < 1:
        raise InputError(f"sketch is {sketch!r}; expected 1 or more features, such as 2048")
    place, colon, attribute = name.rpartition(":")
    if colon and place.endswith(".py"):
        # workers have other current folders
        name = f"{Path(place).expanduser().absolute()}:{attribute}"
    plain = NetworkSpec(name, tuple(classes), shape, sketch, loss or "")
    return replace(plain, digest=_hash_weights(build_model(name, shape, len(classes), seed=0)))


@dataclass(frozen=True, eq=False)
class SketchedModel:
    """Linear model on sketched features: f(x) = start(x) + Ψ(x) w; same interface as `ExactModel`.

    Attributes:
        classes: Number of classes.
        width: Number of features k.
        scale: Mean diagonal of the kernel over the whole pool.
        noise: Relative noise.
        dtype: Of the features.
        weight: (k, C) float64.
    """

    classes: int
    width: int  # k
    scale: float
    noise: float
    dtype: torch.dtype
    weight: Tensor  # (k, C) float64

    def kernel_inputs(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, k) and where the posterior begins (n, C): f, or 1/C."""
        psi, predicted = rows[:, : self.width].to(self.dtype), rows[:, self.width :].double()
        if not predicted.shape[1]:
            size = (len(rows), self.classes)
            predicted = torch.full(size, 1 / self.classes, dtype=torch.float64, device=rows.device)
        return psi, predicted

    def normalise_rows(self, rows: Tensor) -> Tensor:
        """The features."""
        return self.kernel_inputs(rows)[0]

    def kernel_arguments(self, units: Tensor) -> dict[str, Any]:
        """Return the kernel between features (n, k), as arguments of `prior`.

        The noise is scaled by the whole pool, whichever points these are.
        """
        return {"features": units, "scale": self.scale}

    def _condition(self, units: Tensor, start: Tensor, labels: Tensor) -> Posterior:
        """Return the posterior at features (n, k); the first L rows have these labels."""
        before = prior(start, **self.kernel_arguments(units), noise=self.noise)
        return before.condition(torch.arange(len(labels)), labels)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the outputs (n, C)."""
        psi, start = self.kernel_inputs(rows)
        return start + psi.double() @ self.weight

    def predict_proba(self, rows: Tensor, classes: int | None = None) -> Tensor:
        """Return class probabilities (n, C), as for a trained network."""
        return self.predict_proba_at(*self.kernel_inputs(rows), classes)

    def predict_proba_at(self, units: Tensor, start: Tensor, classes: int | None = None) -> Tensor:
        """Do the same as `predict_proba` for the inputs (n, k) and (n, C) of the kernel."""
        return outputs_to_probabilities(start + units.double() @ self.weight, "squared", classes)

    def fit(self, rows: Tensor, labels: Tensor) -> "SketchedModel":
        """Fit labels (L,) of rows (L, k + C).

        The noise of an untrained network is chosen by leave-one-out.
        """
        if not len(labels):
            return self
        psi, start = self.kernel_inputs(rows)
        noise = TRAINED_NETWORK_NOISE
        if rows.shape[1] == self.width:
            K = psi.double() @ psi.double().T / self.scale
            targets = torch.nn.functional.one_hot(labels, self.classes).double() - start
            noise = min(
                NOISE_GRID,
                key=lambda value: float(solve_leave_one_out(K, value, targets)[1].square().sum()),
            )
        chosen = replace(self, noise=noise)
        post = chosen._condition(psi, start, labels)
        return replace(chosen, weight=psi.double().T @ post.weights())

    def forecast_error(self, rows: Tensor, labels: Tensor) -> ErrorForecast:
        """Estimate and forecast the error at the rows after the first L, which have these labels."""
        post = self._condition(*self.kernel_inputs(rows), labels)
        return forecast_error(post, torch.arange(len(labels), len(rows)))


def create_sketched_model(
    network_spec: NetworkSpec, classes: int, scale: float, dtype: torch.dtype
) -> SketchedModel:
    """Return the model without labels."""
    return SketchedModel(
        classes,
        network_spec.sketch,
        scale,
        TRAINED_NETWORK_NOISE,
        dtype,
        torch.zeros((network_spec.sketch, classes), dtype=torch.float64),
    )


def align_classes(
    network_spec: NetworkSpec, names: Sequence[str], numbers: Tensor
) -> tuple[Tensor, tuple[str, ...]]:
    """Renumber labels to the order of a trained network's outputs.

    An untrained network accepts any names.
    """
    if not network_spec.loss:
        return numbers, tuple(names)
    odd: Any = next((name for name in names if name not in network_spec.classes), None)
    if odd is not None:
        raise InputError(
            f"a label is {odd!r}, but the network's classes are {', '.join(network_spec.classes)}; "
            "expected one of them"
        )
    return torch.tensor(
        [network_spec.classes.index(names[i]) for i in numbers.tolist()], dtype=torch.int64
    ), network_spec.classes
