r"""Confidence sequences by betting: intervals that hold at every look, however often one looks.

**What is estimated.** A ratio r = Σ a_i / Σ b_i over the N items of a finite pool, 0 ≤ a ≤ b ≤ 1.
Accuracy: a = "the prediction is right", b = 1. Recall of a class: a = "is of the class and was
predicted", b = "is of the class". Items are drawn without replacement; before draw t, R_t are the
items that are left, S_t the sum over those that were drawn, and item i has the probability
q_t(i) = P_t(h)/n_t(h), where h is its stratum (`plan.Draws`).

**Unbiased estimate at every draw.** For f_i = a_i − r·b_i and *any* numbers c_t(i) that are known
before draw t (here: what the model predicts for f_i, corrected by the errors in the stratum so far),

    G_t = S_t + Σ_{R_t} c_t(i) + (f_{I_t} − c_t(I_t)) / q_t(I_t),      E[G_t | past] = Σ_i f_i.

**The bet.** If r is the true ratio, Σ f_i = 0, so E[1 + λ_t·G_t | past] = 1 for every stake λ_t
that is known before draw t; λ_t is bounded so that 1 + λ_t·G_t > 0 for every possible outcome. The
wealth W_t(r) = Π(1 + λ·G) is a nonnegative martingale that starts at 1, and so are averages of such
products over several stakes. By Ville's inequality, W_t(r) ever reaches 2/α with probability at most
α/2. One wealth bets that the ratio is larger than r, one that it is smaller. The interval holds
all r for which neither has *ever* reached 2/α: it contains the true ratio at all times at once with
probability 1 − α or more, whether or not the model's probabilities are right. They only make it
narrow. (Waudby-Smith & Ramdas 2024, betting without replacement; Shekhar, Xu, Lipton, Liang &
Ramdas 2023, weights and predictions as control variates; prediction-powered inference:
Angelopoulos et al. 2023.)

**The stakes.** To find a deviation of δ·Σb with the fewest draws, the best stake is about
δ·Σb / Var(G_t | past) (Kelly). The wealth is divided between several δ; half of it is staked on the
half-width that is aimed at.

PyPI `confseq` computes the unweighted case; docs/audit.md compares the two. Its wheel is compiled
from C++ with Boost, which does not build everywhere, and it has no weights or control variates.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelahead.audit.plan import Draws, FloatArray
from labelahead.errors import InputError

__all__ = ["Indicator", "Interval", "RatioSequence"]

HALF_WIDTHS = (0.16, 0.08, 0.04, 0.02, 0.01, 0.005)  # that the stakes are best for
TARGET_HALF_WIDTH = 0.02
TARGET_WEALTH = 0.5  # share of the wealth that is staked on the target
MAX_LOSS = 0.9  # of the wealth of one stake, in one draw
PRIOR_DRAWS = 10.0  # weight of the model's own probabilities beside the errors found in a stratum
MIN_VARIANCE = 1e-4  # of one item, so that stakes stay finite
GRID_POINTS = 26  # ratios that are tried at once where the denominator is not known
BISECTIONS = 16
LARGER, SMALLER = 1, -1  # what a bet says of the true ratio
TINY = 1e-12


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; all between 0 and 1."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Return half the length of the interval."""
        return (self.high - self.low) / 2

    def complement(self) -> "Interval":
        """Return the interval of 1 minus the quantity: of the error, that of the accuracy."""
        return Interval(1 - self.value, 1 - self.high, 1 - self.low)


@dataclass(frozen=True)
class Indicator:
    """A quantity of each item between 0 and 1: known for drawn items, predicted for all.

    drawn: (n,) values of the draws, in their order.
    predicted: (m,) what the model predicts for all members of the pool, in the order of
        `Draws.members`; it may not depend on any label of the audit.
    """

    drawn: FloatArray
    predicted: FloatArray

    @classmethod
    def of(cls, drawn: ArrayLike, predicted: ArrayLike) -> "Indicator":
        """Return the quantity with checked numbers."""
        d, p = (np.asarray(values, dtype=np.float64) for values in (drawn, predicted))
        for name, values in (("drawn", d), ("predicted", p)):
            if not (np.isfinite(values).all() and (values >= 0).all() and (values <= 1).all()):
                raise InputError(f"{name} values; expected numbers between 0 and 1")
        return cls(d, p)


class RatioSequence:
    """Confidence sequence of the ratio of two sums over a pool, from the draws of an audit.

    Args:
        draws: the draws, in order.
        numerator: a_i; at most the denominator, item by item.
        denominator: b_i; None: 1 for every item, so that the ratio is a mean.
        target: half-width that the interval should reach soonest; fix it before the first draw.

    >>> from labelahead.audit import build_plan
    >>> plan = build_plan([0.1] * 1000)
    >>> wrong = np.arange(1000) % 10 == 0
    >>> draws = plan.list_draws(400)
    >>> errors = RatioSequence(draws, Indicator.of(wrong[draws.positions], plan.error))
    >>> found = errors.find_interval(0.95)
    >>> found.low < 0.1 < found.high, found.half_width < 0.05
    (True, True)
    """

    def __init__(
        self,
        draws: Draws,
        numerator: Indicator,
        denominator: Indicator | None = None,
        *,
        target: float = TARGET_HALF_WIDTH,
    ) -> None:
        n, m = len(draws), len(draws.members)
        self.is_mean = denominator is None
        if denominator is None:
            denominator = Indicator(np.ones(n), np.ones(m))
        for quantity in (numerator, denominator):
            if quantity.drawn.shape != (n,) or quantity.predicted.shape != (m,):
                raise InputError(
                    f"{quantity.drawn.shape} values and {quantity.predicted.shape} predictions; "
                    f"expected one of each of {n} draws and {m} items"
                )
        if (numerator.drawn > denominator.drawn).any():
            raise InputError("a numerator above its denominator; expected a ratio of at most 1")
        if not 0 < target < 1:
            raise InputError(f"target is {target}; expected a half-width between 0 and 1")
        self.draws = draws
        self.numerator = numerator
        self.denominator = denominator
        self.target = target

    @cached_property
    def _moments(self) -> "_Moments":
        return _Moments(self.draws, self.numerator, self.denominator)

    def estimate(self, draws: int | None = None) -> float:
        """Return mean prediction plus the stratified mean of the errors of the predictions.

        NaN if the denominator is estimated as 0: no item of the class, as far as is known.
        """
        both = (self.numerator, self.denominator)
        totals = [_estimate_total(self.draws, quantity, draws) for quantity in both]
        if totals[1] <= 0:
            return float("nan")
        return min(1.0, max(0.0, totals[0] / totals[1]))

    def find_interval(self, confidence: float = 0.95, *, draws: int | None = None) -> Interval:
        """Return the estimate and the interval after all draws, or after the first `draws`.

        Intervals of one sequence at different times hold together with the given confidence.
        """
        if not 0 < confidence < 1:
            raise InputError(
                f"confidence is {confidence}; expected a number between 0 and 1, for example 0.95"
            )
        n = len(self.draws) if draws is None else min(draws, len(self.draws))
        limit = float(np.log(2 / (1 - confidence)))
        low, high = self._find_bounds(n, limit) if self.is_mean else self._scan_grid(n, limit)
        value = self.estimate(n)
        value = min(high, max(low, (low + high) / 2 if np.isnan(value) else value))
        return Interval(value, low, high)

    def log_wealth(self, ratios: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return the log wealth (n, G) of the bets that the ratio is larger, and smaller, than each.

        The wealth of the true ratio reaches 2/α with probability α/2 at most, each.
        """
        r, n = np.asarray(ratios, dtype=np.float64).reshape(-1), len(self.draws)
        return self._log_wealth(r, n, LARGER), self._log_wealth(r, n, SMALLER)

    def _log_wealth(self, r: FloatArray, n: int, side: int) -> FloatArray:
        gains, variance, total = self._moments.evaluate(r, n)
        loss = self._moments.find_largest_loss(r, n, side)  # of a stake of 1
        limit = MAX_LOSS / np.maximum(loss, TINY)
        stakes = _divide_wealth(self.target)
        logs = [
            np.cumsum(np.log1p(side * np.minimum(width * total / variance, limit) * gains), axis=0)
            for width in stakes
        ]
        return _log_mean(np.stack(logs), np.array(list(stakes.values()))[:, None, None])

    def _logical_bounds(self, n: int) -> tuple[float, float]:
        """Return the smallest and the largest mean that n drawn values leave possible."""
        m = len(self.draws.members)
        if not m:
            return 0.0, 1.0
        found = float(self.numerator.drawn[:n].sum())
        return found / m, (found + m - n) / m

    def _find_bounds(self, n: int, limit: float) -> tuple[float, float]:
        """Bisect: the wealth that bets on a larger mean falls with the mean, the other one grows."""
        least, most = self._logical_bounds(n)
        if n == 0 or least == most:
            return least, most
        ends = []
        for side, inside, outside in ((LARGER, most, least), (SMALLER, least, most)):
            if self._find_peak(outside, side, n) < limit:
                ends.append(outside)
                continue
            for _ in range(BISECTIONS):
                middle = (inside + outside) / 2
                if self._find_peak(middle, side, n) < limit:
                    inside = middle
                else:
                    outside = middle
            ends.append(outside)
        return ends[0], max(ends[0], ends[1])

    def _find_peak(self, mean: float, side: int, n: int) -> float:
        """Return the largest log wealth that was reached in the first n draws."""
        return float(self._log_wealth(np.array([mean]), n, side).max())

    def _scan_grid(self, n: int, limit: float) -> tuple[float, float]:
        """Try ratios on a grid, then finer ones at both ends of those that are left.

        The interval ends at the grid points beyond those that are left.
        """
        if n == 0:
            return 0.0, 1.0
        step = 1 / (GRID_POINTS - 1)
        low, high = self._scan(np.linspace(0, 1, GRID_POINTS), n, limit)
        low, _ = self._scan(np.linspace(low, min(1.0, low + step), GRID_POINTS), n, limit)
        _, high = self._scan(np.linspace(max(0.0, high - step), high, GRID_POINTS), n, limit)
        return low, max(low, high)

    def _scan(self, grid: FloatArray, n: int, limit: float) -> tuple[float, float]:
        both = [self._log_wealth(grid, n, side).max(axis=0) for side in (LARGER, SMALLER)]
        peaks = np.maximum(*both)
        left = np.flatnonzero(peaks < limit)
        if not len(left):  # the interval lies between two grid points
            left = np.array([int(np.argmin(peaks))])
        return float(grid[max(0, left[0] - 1)]), float(grid[min(len(grid) - 1, left[-1] + 1)])


class _Moments:
    """What is known before each draw: estimates of the totals, their variances and ranges."""

    def __init__(self, draws: Draws, a: Indicator, b: Indicator) -> None:
        self.draws = draws
        self.chances = np.where(draws.remaining > 0, draws.chances, 1.0)
        rows = np.arange(len(draws))
        self.weights = np.where(draws.remaining > 0, draws.remaining / self.chances, 0.0)  # (n, H)
        self.weight = self.weights[rows, draws.strata]  # (n,) 1/q of the drawn item
        self.inside = draws.strata[:, None] == np.arange(draws.remaining.shape[1])  # (n, H)
        self.seen = _before(self.inside)  # (n, H) draws of each stratum so far
        self.a = _Total(self, a)
        self.b = _Total(self, b)
        prior = [self.mean_of(v) for v in _prior_moments(a.predicted, b.predicted)]
        residual = self.a.residual, self.b.residual
        pairs = (residual[0] ** 2, residual[0] * residual[1], residual[1] ** 2)
        self.second = [
            (PRIOR_DRAWS * p + _before(self.inside * v[:, None])) / (PRIOR_DRAWS + self.seen)
            for p, v in zip(prior, pairs, strict=True)
        ]  # mean squares and products of the residuals, (n, H) each

    def mean_of(self, values: FloatArray) -> FloatArray:
        """Return the mean over all members of each stratum, (H,)."""
        strata, H = self.draws.member_strata, self.draws.remaining.shape[1]
        sizes = np.maximum(np.bincount(strata, minlength=H), 1)
        means: FloatArray = np.bincount(strata, weights=values, minlength=H) / sizes
        return means

    def extremes_of(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the smallest and the largest value of each stratum, (H,) each."""
        H = self.draws.remaining.shape[1]
        low, high = np.full(H, np.inf), np.full(H, -np.inf)
        np.minimum.at(low, self.draws.member_strata, values)
        np.maximum.at(high, self.draws.member_strata, values)
        return np.where(np.isfinite(low), low, 0.0), np.where(np.isfinite(high), high, 0.0)

    def evaluate(self, r: FloatArray, n: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return G_t and its variance, (n, G) each, and the estimated denominator (n, 1)."""
        gains = self.a.estimates[:n, None] - r * self.b.estimates[:n, None]
        aa, ab, bb, floor = (part[:n, None] for part in self.variances)
        variance = np.maximum(aa - 2 * r * ab + r**2 * bb, floor)
        return gains, variance, np.maximum(self.b.known[:n], 1.0)[:, None]

    @cached_property
    def variances(self) -> tuple[FloatArray, ...]:
        """Variances and covariance of the estimates of Σ a and Σ b, and the smallest used, (n,)."""
        scale = self.weights * self.draws.remaining  # n_h²/P_h, (n, H)
        sums = [(scale * second).sum(axis=1) for second in self.second]
        return (*sums, np.maximum(MIN_VARIANCE * scale.sum(axis=1), TINY))

    def find_largest_loss(self, r: FloatArray, n: int, side: int) -> FloatArray:
        """Return the largest possible -G_t or +G_t, (n, G): f lies between -r and 1 - r."""
        worst: FloatArray | None = None
        for h in range(self.weights.shape[1]):
            shift = self.a.shift[:n, h, None] - r * self.b.shift[:n, h, None]
            if side == LARGER:  # loses if f is small and the prediction large
                outcome = r + self.a.most[h] - r * self.b.least[h] + shift
            else:
                outcome = 1 - r - (self.a.least[h] - r * self.b.most[h]) - shift
            loss = self.weights[:n, h, None] * outcome
            worst = loss if worst is None else np.maximum(worst, loss)
        known = self.a.known[:n, None] - r * self.b.known[:n, None]
        largest: FloatArray = np.maximum(0.0 if worst is None else worst, 0.0) - side * known
        return largest


class _Total:
    """Running estimates of one total, Σ a or Σ b."""

    def __init__(self, moments: _Moments, quantity: Indicator) -> None:
        draws = moments.draws
        H = draws.remaining.shape[1]
        place = np.searchsorted(draws.members, draws.positions)
        predicted = quantity.predicted[place]
        inside = moments.inside
        self.residual = quantity.drawn - predicted
        self.shift = _before(inside * self.residual[:, None]) / (moments.seen + PRIOR_DRAWS)
        sums = np.bincount(draws.member_strata, weights=quantity.predicted, minlength=H)
        left = sums - _before(inside * predicted[:, None])  # predictions of the remaining items
        found = np.concatenate([[0.0], np.cumsum(quantity.drawn)[:-1]])[: len(draws)]
        # S_t + Σ c_t: what is known before the draw
        self.known = found + (left + draws.remaining * self.shift).sum(axis=1)
        own_shift = self.shift[np.arange(len(draws)), draws.strata]
        self.estimates = self.known + (self.residual - own_shift) * moments.weight
        self.least, self.most = moments.extremes_of(quantity.predicted)


def _before(values: NDArray[np.float64] | NDArray[np.bool_]) -> FloatArray:
    """Return the sums over all earlier rows."""
    sums = np.zeros(values.shape)
    np.cumsum(values[:-1], axis=0, out=sums[1:])
    return sums


def _prior_moments(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the variances and the covariance of each item by the model, as if a implied b."""
    return a * (1 - a), a * (1 - b), b * (1 - b)


def _estimate_total(draws: Draws, quantity: Indicator, n: int | None) -> float:
    H = draws.remaining.shape[1]
    strata = draws.strata[:n]
    sizes = np.bincount(draws.member_strata, minlength=H)
    seen = np.bincount(strata, minlength=H)
    place = np.searchsorted(draws.members, draws.positions[:n])
    errors = quantity.drawn[:n] - quantity.predicted[place]
    sums = np.bincount(strata, weights=errors, minlength=H)
    return float(quantity.predicted.sum() + (sizes * sums / np.maximum(seen, 1)).sum())


def _divide_wealth(target: float) -> dict[float, float]:
    """Return half-width -> share of the wealth."""
    others = [width for width in HALF_WIDTHS if abs(np.log(width / target)) > 0.3]
    return {target: TARGET_WEALTH, **{w: (1 - TARGET_WEALTH) / len(others) for w in others}}


def _log_mean(logs: FloatArray, shares: FloatArray) -> FloatArray:
    """Return the log of the weighted mean over the first axis."""
    top = logs.max(axis=0)
    result: FloatArray = top + np.log((shares * np.exp(logs - top)).sum(axis=0))
    return result
