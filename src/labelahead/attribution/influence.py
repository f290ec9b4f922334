"""Exact influence of training items on predictions of the linearised network.

With Q = (Θ(X,X) + σI)⁻¹ and α = Q (Y − f(X)), the prediction is f(x) + Θ(x,X) α. Without the items
of a group G it changes by −Θ(x,X) Q[:,G] Q[G,G]⁻¹ α[G] (block inversion): no refit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from labelahead.batching import Inputs, as_inputs, count_samples
from labelahead.errors import InputError
from labelahead.gp.linalg import cholesky, cholesky_inverse, solve_factored
from labelahead.models.training.forward import predict
from labelahead.ntk import kernel

__all__ = ["Influence", "compute_influence", "fit_influence"]

STARTS = ("outputs", "zero")


@dataclass(frozen=True)
class Influence:
    """The linearised network after training, and what each training item contributes to it.

    Attributes:
        predictions: (m, C) of the items for which the influence is computed.
        residuals: (n, C) training targets minus the predictions before training.
        cross: (m·b, n·b) kernel between those items and the training items; b is 1 for a scalar
            kernel and C for the full one.
        inverse: (n·b, n·b) Q, the inverse of the regularised kernel of the training items.

    >>> found = attribution.compute_influence(model, x, torch.eye(3)[y], x2, noise=0.1)
    >>> change = found.leave_one_out()  # of each prediction, if one training item were missing
    >>> change.shape
    torch.Size([2, 6, 3])
    >>> bool(torch.allclose(found.leave_group_out([2]), change[:, 2]))
    True
    >>> found.most_influential(0, 3).shape  # training items, most important first
    torch.Size([3])
    """

    predictions: Tensor
    residuals: Tensor
    cross: Tensor
    inverse: Tensor

    @property
    def width(self) -> int:
        """Rows of the kernel per item: 1, or C for the full kernel."""
        return len(self.inverse) // len(self.residuals)

    @cached_property
    def _weights(self) -> Tensor:
        """α: (n·b, C / b)."""
        return self.inverse @ self._flatten(self.residuals)

    @cached_property
    def _gains(self) -> Tensor:
        """Θ(x, X) Q: (m·b, n·b)."""
        return self.cross @ self.inverse

    def _flatten(self, values: Tensor) -> Tensor:
        return values.reshape(len(values) * self.width, -1)

    def leave_one_out(self) -> Tensor:
        """Compute the change of every prediction if one training item is left out: (m, n, C)."""
        b, (m, C), n = self.width, self.predictions.shape, len(self.residuals)
        at = torch.arange(n * b, device=self.inverse.device).view(n, b)
        blocks = self.inverse.view(n, b, n, b).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        removed = torch.linalg.solve(blocks, self._weights[at])  # (n, b, C / b)
        change = -torch.einsum("mpnb,nbc->mnpc", self._gains.view(m, b, n, b), removed)
        return change.reshape(m, n, C)

    def leave_group_out(self, group: Sequence[int] | Tensor) -> Tensor:
        """Compute the change of every prediction if these training items are left out: (m, C).

        This is not the sum of the changes of its items, because similar items replace each other.
        """
        index = torch.as_tensor(group, dtype=torch.long, device=self.inverse.device).flatten()
        n = len(self.residuals)
        if len(index) != len(set(index.tolist())) or not bool(((index >= 0) & (index < n)).all()):
            raise InputError(
                f"the group holds {index.tolist()[:10]}; expected different training items, 0 to "
                f"{n - 1}"
            )
        if not len(index):
            return torch.zeros_like(self.predictions)
        rows = (
            index[:, None] * self.width + torch.arange(self.width, device=index.device)
        ).flatten()
        lower, _ = cholesky(self.inverse[rows][:, rows], what="the inverse kernel of the group")
        change = -self._gains[:, rows] @ solve_factored(lower, self._weights[rows])
        return change.reshape(self.predictions.shape)

    def scores(self, outputs: Tensor | None = None) -> Tensor:
        """Compute how much each training item raises one output of each prediction: (m, n).

        Args:
            outputs: (m,) which output of each item; default: the predicted class.
        """
        chosen = self.predictions.argmax(1) if outputs is None else outputs.to(self.inverse.device)
        if chosen.shape != self.predictions.shape[:1]:
            raise InputError(
                f"outputs have shape {tuple(chosen.shape)}; expected one for each of the "
                f"{len(self.predictions)} items"
            )
        change = self.leave_one_out()
        return -change.gather(2, chosen[:, None, None].expand(-1, change.shape[1], 1))[..., 0]

    def most_influential(self, item: int, k: int = 5, output: int | None = None) -> Tensor:
        """List the k training items that raise an output of `item` most; default: of its class."""
        outputs = self.predictions.argmax(1)
        if output is not None:
            outputs = torch.full_like(outputs, output)
        return self.scores(outputs)[item].topk(min(k, len(self.residuals))).indices


def compute_influence(
    model: nn.Module,
    x: Inputs,
    targets: Tensor,
    x2: Inputs,
    *,
    noise: float = 0.1,
    kind: str = "pseudo",
    start: str = "outputs",
) -> Influence:
    """Compute the exact influence of training items on predictions of the linearised network.

    Args:
        model: The network, at the weights around which it is linearised.
        x: n training items.
        targets: (n, C), for example one-hot labels.
        x2: m items whose predictions are explained.
        noise: Relative regulariser, as in `la.prior`; docs/attribution.md compares values.
        kind: Of the kernel, as in `la.kernel`.
        start: What training starts from: "outputs" of the network, for a network before training,
            or "zero", for the features of a trained network, whose outputs know the labels already.

    >>> found = attribution.compute_influence(model, x, torch.eye(3)[y], x2, start="zero")
    >>> found.predictions.shape, found.scores().shape
    (torch.Size([2, 3]), torch.Size([2, 6]))
    """
    if start not in STARTS:
        raise InputError(f"start is {start!r}; expected one of {', '.join(STARTS)}")
    x, x2 = as_inputs(x), as_inputs(x2)
    if count_samples(x) != len(targets):
        raise InputError(
            f"there are {count_samples(x)} training items and {len(targets)} rows of targets; "
            "expected the same number"
        )
    before, before2 = predict(model, x), predict(model, x2)
    if start == "zero":
        before, before2 = torch.zeros_like(before), torch.zeros_like(before2)
    return fit_influence(
        kernel(model, x, kind=kind),
        kernel(model, x2, x, kind=kind),
        targets,
        before,
        before2,
        noise,
    )


def fit_influence(
    train: Tensor,
    cross: Tensor,
    targets: Tensor,
    before: Tensor | None = None,
    before2: Tensor | None = None,
    noise: float = 0.1,
) -> Influence:
    """Compute the influence from kernels that are known: of any model that is linear in features.

    Args:
        train: (n, n) kernel of the training items, or (n·C, n·C).
        cross: (m, n) kernel of other items with them, or (m·C, n·C).
        targets: (n, C).
        before: (n, C) predictions before training; default: zero.
        before2: (m, C) those of the other items; default: zero.
        noise: Relative regulariser.

    >>> features = torch.randn(6, 4).double()
    >>> K = features @ features.T
    >>> attribution.fit_influence(K, K[:2], torch.eye(3)[y], noise=0.1).predictions.shape
    torch.Size([2, 3])
    """
    n, C = targets.shape
    width = len(train) // n if n else 0
    if train.shape != (n * width, n * width) or width not in (1, C) or not n:
        raise InputError(
            f"the kernel of the training items has shape {tuple(train.shape)}, targets "
            f"{tuple(targets.shape)}; expected (n, n) or (n·C, n·C), and (n, C)"
        )
    if cross.ndim != 2 or cross.shape[1] != len(train) or len(cross) % width:
        raise InputError(
            f"the cross kernel has shape {tuple(cross.shape)}; expected {len(train)} columns"
        )
    if not noise > 0:
        raise InputError(f"noise is {noise!r}; expected a number above 0, such as 1e-3")
    train, cross, targets = (t.detach().double() for t in (train, cross, targets))
    m = len(cross) // width
    before = targets.new_zeros(n, C) if before is None else before.to(targets)
    before2 = targets.new_zeros(m, C) if before2 is None else before2.to(targets)
    system = train.clone()
    system.diagonal().add_(noise * train.diagonal().mean())
    lower, _ = cholesky(system)
    residuals = targets - before
    change = cross @ solve_factored(lower, residuals.reshape(n * width, -1))
    return Influence(before2 + change.reshape(m, C), residuals, cross, cholesky_inverse(lower))
