"""When further labels no longer pay: a word of advice, never a stop."""

from typing import NamedTuple

from torch import Tensor

from labelahead.learners.outlook import AHEAD

__all__ = ["enough", "loo_estimate", "stop_advice"]

ENOUGH = 50  # labels from which on the estimated error can be relied on (docs/results.md)
PAYS = 0.005  # share of the pool: so much should the next labels put right
GOOD = 0.15  # estimated error above which nobody is told to stop, however little further labels bring


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


def enough(labels: int, error: float | None, fall: float | None) -> float | None:
    """How far it is to where `stop_advice` speaks: 1 there, and below it the share of what is furthest from it."""
    if error is None or fall is None:
        return None
    return min(1.0, labels / ENOUGH, GOOD / max(error, GOOD), PAYS / max(fall, PAYS))


def stop_advice(
    labels: int, error: float | None, low: float | None, high: float | None, fall: float | None
) -> str | None:
    """A sentence when the pool is predicted well and further labels bring little, else None.

    error: estimated share of wrong predictions and the ends of its interval; fall: what the next labels take off it.
    """
    if error is None or low is None or high is None or fall is None:
        return None
    if labels < ENOUGH or error > GOOD or fall >= PAYS:
        return None
    return (
        f"an estimated {error:.1%} of the predictions are wrong by now ({low:.1%} to {high:.1%}), and the next {AHEAD} "
        f"labels are expected to bring {100 * fall:.1f} points: you may stop here"
    )
