"""Continue a network's training once for every candidate, all copies side by side."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from labelahead.errors import InputError, NumericalError

__all__ = ["continued", "side_by_side"]

HALVINGS = 6
RUNAWAY = 2.0  # a loss so many times the first one has run away


def continued(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    extra: Tensor,
    extra_targets: Tensor,
    watch: Tensor,
    *,
    rate: float,
    marks: Sequence[int],
    momentum: float = 0.9,
    chunk: int = 64,
) -> tuple[Tensor, float]:
    """`side_by_side` for any number of candidates, and the rate that was stable.

    Where gradient descent diverges, the rate is halved and all copies begin again: a difference
    of two runs means something only if both took the same steps.
    """
    for _ in range(HALVINGS + 1):
        parts = [
            side_by_side(
                model, inputs, targets, z, t, watch, rate=rate, marks=marks, momentum=momentum
            )
            for z, t in zip(
                torch.split(extra, chunk), torch.split(extra_targets, chunk), strict=True
            )
        ]
        found = torch.cat([p[:, :-1] for p in parts] + [parts[0][:, -1:]], 1)
        if bool(torch.isfinite(found).all()):
            return found, rate
        rate /= 2
    raise NumericalError(
        f"gradient descent diverged, also at the rate {rate:.3g}; expected a finite loss: scale "
        "the inputs to order one"
    )


def side_by_side(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    extra: Tensor,
    extra_targets: Tensor,
    watch: Tensor,
    *,
    rate: float,
    marks: Sequence[int],
    momentum: float = 0.9,
) -> Tensor:
    """(T, q + 1, e, C): outputs at `watch` after marks[t] steps; NaN once the loss has run away.

    Copy j < q of the network sees inputs (n, ...) and extra[j], the last one inputs alone. All
    descend ½ Σ ‖y − f(x)‖² over their whole set with heavy-ball momentum, in eval mode: BatchNorm
    keeps its running statistics, as the tangent kernel takes it to. `model` stays as it is.
    """
    if list(marks) != sorted(set(marks)) or not marks or marks[0] < 1:
        raise InputError(f"marks are {list(marks)}; expected growing numbers of steps from 1")
    copies = len(extra) + 1
    z = torch.cat([extra, extra[:1]])
    t = torch.cat([extra_targets, extra_targets[:1]])[:, None].to(targets)
    y = torch.cat([targets.expand(copies, *targets.shape), t], 1)
    weight = torch.ones_like(y[..., :1])
    weight[-1, -1] = 0.0  # the last copy has no candidate
    fixed = dict(model.named_buffers())
    live = {
        k: p.detach().expand(copies, *p.shape).clone().requires_grad_()
        for k, p in model.named_parameters()
    }
    speed = {k: torch.zeros_like(p) for k, p in live.items()}

    def out(p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        found: Tensor = functional_call(model, (dict(p), fixed), (x,))
        return found

    forward = vmap(lambda p, one: out(p, torch.cat([inputs, one[None]])))
    look = vmap(out, in_dims=(0, None))
    model.eval()
    seen: list[Tensor] = []
    first = 0.0
    for step in range(1, marks[-1] + 1):
        losses = 0.5 * (weight * (forward(live, z) - y).square()).sum((1, 2))
        worst = float(losses.detach().max())
        first = first or worst
        # Stable descent of a linearised network never exceeds its first loss. A network that does
        # may settle all the same, with its units dead: no measurement of anything.
        if not worst <= RUNAWAY * first:
            return torch.full((len(marks), copies, len(watch), y.shape[2]), float("nan")).to(y)
        slopes = torch.autograd.grad(losses.sum(), list(live.values()))
        with torch.no_grad():
            for (name, p), slope in zip(live.items(), slopes, strict=True):
                p -= rate * speed[name].mul_(momentum).add_(slope)
            if step in marks:
                seen.append(look(live, watch))
    return torch.stack(seen)
