"""Snapshots: outputs and kernel of all items after a training, stored as a file for the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from labelahead.files import replace_file
from labelahead.gp.posterior import prior
from labelahead.inference.exact import MAX_SELECTION_LABELS, mixture_kernel
from labelahead.inference.pool_posterior import PoolPosterior

__all__ = ["Snapshot", "load_snapshot", "save_snapshot"]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Outputs and kernel of a network at the items that can be queried.

    outputs are on the scale of one-hot targets: probabilities after cross-entropy. Exactly one of
    kernel (n, n), features (n, k) and units (n, d) is set; all are scalar kernels, so that a new
    class is one more column. units: normalised embeddings of the exact learner, whose kernel mixes
    functions of their cosines with `weights`; test: units and classes of the test items.
    """

    round: int  # 0: before any training
    points: Tensor  # (n,) positions
    outputs: Tensor  # (n, C)
    kernel: Tensor | None
    features: Tensor | None
    labels: Mapping[int, int]  # position -> class, used for training
    noise: float = 1e-3
    strategy: str = "flip"
    evaluation: int | None = 1000
    facts: Mapping[str, Any] = field(default_factory=dict)  # accuracy, seconds, map, second look
    units: Tensor | None = None
    weights: tuple[float, ...] = ()
    test: tuple[Tensor, Tensor] | None = None
    # noise set by the user, instead of the noise selected with the weights
    own_noise: float | None = None
    # (n, C) α of the exact learner's labels, the starting point of the solver
    pushes: Tensor | None = None

    def build_posterior(
        self, labels: Mapping[int, int], classes: int, class_mapping: Sequence[int | None] = ()
    ) -> PoolPosterior:
        """Build the posterior of all items given these labels.

        class_mapping: as in `LabelState`.
        """
        kernel = self.kernel if self.units is None else mixture_kernel(self.units, self.weights)
        outputs = (
            _map_outputs(self.outputs, class_mapping)
            if self.units is None
            else _make_uniform(self.outputs, class_mapping)
        )
        start = prior(outputs, kernel, features=self.features, noise=self.noise)
        start = start.with_classes(max(classes, start.classes))
        guess = (
            None
            if self.pushes is None
            else pad(self.pushes, (0, start.classes - self.pushes.shape[1]))
        )
        most = None if self.units is None else MAX_SELECTION_LABELS
        return PoolPosterior(
            self.points,
            start,
            labels,
            evaluation=self.evaluation,
            cache_cross_covariance=True,
            max_exact_labels=most,
            initial_weights=guess,
        )


def _make_uniform(outputs: Tensor, class_mapping: Sequence[int | None]) -> Tensor:
    """Return (n, C) prior outputs of the exact learner, uniform over the existing classes."""
    gone = [c for c, now in enumerate(class_mapping[: outputs.shape[1]]) if now != c]
    start = torch.full_like(outputs, 1 / max(outputs.shape[1] - len(gone), 1))
    start[:, gone] = 0
    return start


def _map_outputs(outputs: Tensor, class_mapping: Sequence[int | None]) -> Tensor:
    """Return (n, C) outputs with zeros for merged and removed classes.

    The output of a merged class is added to the other class; that of a removed class is distributed
    over all classes. No label supports these classes, so they are never predicted.
    """
    gone = [c for c, now in enumerate(class_mapping[: outputs.shape[1]]) if now != c]
    if not gone:
        return outputs
    kept, total = outputs.clone(), outputs.sum(1, keepdim=True)
    kept[:, gone] = 0
    for c in gone:
        into = class_mapping[c]
        if into is not None and into < outputs.shape[1]:
            kept[:, into] += outputs[:, c]
    here = kept.sum(1, keepdim=True)
    return torch.where(here > 0, kept * total / here.clamp_min(torch.finfo(kept.dtype).tiny), kept)


def save_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot atomically."""
    state = {f.name: getattr(snapshot, f.name) for f in fields(snapshot)}
    state |= {"labels": dict(snapshot.labels), "facts": dict(snapshot.facts)}
    replace_file(path, lambda file: torch.save(state, file))


def load_snapshot(path: Path) -> Snapshot:
    """Load a snapshot; only tensors and plain values are unpickled."""
    return Snapshot(**torch.load(path, map_location="cpu", weights_only=True))
