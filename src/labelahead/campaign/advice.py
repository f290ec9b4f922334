"""When further labels no longer pay: a word of advice, never a stop."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

__all__ = ["loo_estimate", "stop_advice"]

SHARE = 0.1  # of the gain at the start, below which a further label is not worth much
FLAT = 0.03  # part of the leave-one-out error whose fall counts as no progress
PATIENCE = 3  # rounds


class LeaveOneOut(NamedTuple):
    """What the other labels say of each of some labelled items."""

    accuracy: float  # how often they are right
    error: float  # mean squared residual


def loo_estimate(others: Tensor, residual: Tensor, labels: Tensor, random: int) -> LeaveOneOut:
    """Leave-one-out (`others_say` of a learner), on the first `random` items.

    Only items that were drawn at random are judged (with all the others' help): chosen ones are hard ones and say
    little of the pool. A trained network is commonly better than its first kernel; what this is for is to see progress.
    """
    right = float((others[:random].argmax(1) == labels[:random]).double().mean())
    return LeaveOneOut(right, float(residual[:random].square().sum(1).mean()))


def stop_advice(gains: Sequence[float | None], errors: Sequence[float | None], *, share: float = SHARE) -> str | None:
    """A sentence when the campaign has little left to gain, else None.

    Two signs, both free of test labels, round by round: the predicted gain of the best candidate has
    stayed below a share of what it was at first, or the leave-one-out error has stopped falling.
    """
    brought = [gain for gain in gains if gain is not None]
    wrong = [error for error in errors if error is not None]
    if len(brought) > PATIENCE and brought[0] > 0 and max(brought[-2:]) < share * brought[0]:
        return (
            f"the best further label is expected to bring {brought[-1] / brought[0]:.0%} of what the "
            "first one did: you may stop here"
        )
    if len(wrong) > 2 * PATIENCE and min(wrong[-PATIENCE:]) > (1 - FLAT) * min(wrong[:-PATIENCE]):
        return (
            f"the leave-one-out error has not fallen for {PATIENCE} rounds (now {wrong[-1]:.3f}): "
            "further labels may not help this network much"
        )
    return None
