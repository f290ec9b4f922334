"""What a training hands to the page: outputs and kernel of the items in play, as a file."""

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
    """What a training leaves: the network's outputs and kernel at the items in play.

    outputs are on the scale of one-hot targets: probabilities after cross-entropy. Exactly one of
    kernel (n, n), features (n, k) and units (n, d) is there; all are of scalar kind, so that a
    class that turns up later is one more column. units: of the exact learner, whose kernel is
    `weights` of functions of their cosines; test: the units of the items to measure on, and their
    classes.
    """

    round: int  # 0: before any training
    points: Tensor  # (n,) positions
    outputs: Tensor  # (n, C)
    kernel: Tensor | None
    features: Tensor | None
    labels: Mapping[int, int]  # what it was trained on
    noise: float = 1e-3
    strategy: str = "flip"
    evaluation: int | None = 1000
    facts: Mapping[str, Any] = field(default_factory=dict)  # accuracy, seconds, map, second look
    units: Tensor | None = None
    weights: tuple[float, ...] = ()
    test: tuple[Tensor, Tensor] | None = None
    # what somebody asked for, instead of the noise that goes with the weights
    own_noise: float | None = None
    # (n, C) α of the exact learner's labels, at which solving for them begins
    pushes: Tensor | None = None

    def build_posterior(
        self, labels: Mapping[int, int], classes: int, class_mapping: Sequence[int | None] = ()
    ) -> PoolPosterior:
        """What is held of the items in play, given these labels.

        counts_as: of each class, as in `LabelState`.
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
    """(n, C) where the exact learner begins.

    The same for all classes that are neither merged nor removed.
    """
    gone = [c for c, now in enumerate(class_mapping[: outputs.shape[1]]) if now != c]
    start = torch.full_like(outputs, 1 / max(outputs.shape[1] - len(gone), 1))
    start[:, gone] = 0
    return start


def _map_outputs(outputs: Tensor, class_mapping: Sequence[int | None]) -> Tensor:
    """(n, C) with nothing for classes that are no more: a merged one's share goes to the other, a
    removed one's to all.

    No label speaks for them, so they stay at nothing, and are nobody's guess.
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
    """In one step."""
    state = {f.name: getattr(snapshot, f.name) for f in fields(snapshot)}
    state |= {"labels": dict(snapshot.labels), "facts": dict(snapshot.facts)}
    replace_file(path, lambda file: torch.save(state, file))


def load_snapshot(path: Path) -> Snapshot:
    """As it was saved; nothing but tensors and plain values is read."""
    return Snapshot(**torch.load(path, map_location="cpu", weights_only=True))
