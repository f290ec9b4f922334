"""When further labels no longer pay: a word of advice, never a stop."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labelahead.posterior import prior
from labelahead.residuals import leave_one_out
from labelahead.store import Round
from labelahead.tangent import kernel
from labelahead.train import predict
from labelahead.train.data import place

__all__ = ["SHARE", "LeaveOneOut", "loo_estimate", "stop_advice"]

SHARE = 0.1  # of the gain at the start, below which a further label is not worth much
FLAT = 0.03  # part of the leave-one-out error whose fall counts as no progress
PATIENCE = 3  # rounds


class LeaveOneOut(NamedTuple):
    """What the other labels say of each of some labelled items."""

    accuracy: float  # how often they are right
    error: float  # mean squared residual


def loo_estimate(
    untrained: nn.Module, inputs: Tensor, labels: Tensor, random: int
) -> LeaveOneOut | None:
    """Leave-one-out by kernel regression, on the first `random` items. None if there are too few.

    The kernel is that of a network that has seen no label: after training, kernel and outputs know
    all of them, and leave-one-out is right nearly always. Only items that were drawn at random are
    judged (with all the others' help): chosen ones are hard ones and say little of the pool. A
    trained network is commonly better than its first kernel; what this is for is to see progress.
    """
    if len(labels) < 2 or random < 1:
        return None
    device, dtype = place(untrained, inputs)
    K = kernel(untrained.eval(), inputs.to(device=device, dtype=dtype))
    zero = torch.zeros_like(predict(untrained, inputs), dtype=torch.float64)
    post = prior(zero, K, noise=1e-3).condition(torch.arange(len(labels)), labels)
    residual = leave_one_out(post)[:random]
    guess = (residual + post.targets[:random]).argmax(1).cpu()
    right = float((guess == labels[:random]).double().mean())
    return LeaveOneOut(right, float(residual.square().sum(1).mean()))


def stop_advice(rounds: Sequence[Round], *, share: float = SHARE) -> str | None:
    """A sentence when the campaign has little left to gain, else None.

    Two signs, both free of test labels: the predicted gain of the best candidate has stayed below
    a share of what it was at first, or the leave-one-out error has stopped falling.
    """
    gains = [r.gain for r in rounds if r.gain is not None]
    if len(gains) > PATIENCE and gains[0] > 0 and max(gains[-2:]) < share * gains[0]:
        return (
            f"the best further label is expected to bring {gains[-1] / gains[0]:.0%} of what the "
            "first one did: you may stop here"
        )
    errors = [r.loo_error for r in rounds if r.loo_error is not None]
    if len(errors) > 2 * PATIENCE and min(errors[-PATIENCE:]) > (1 - FLAT) * min(
        errors[:-PATIENCE]
    ):
        return (
            f"the leave-one-out error has not fallen for {PATIENCE} rounds (now {errors[-1]:.3f}): "
            "further labels may not help this network much"
        )
    return None
