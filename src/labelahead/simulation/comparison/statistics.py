"""Statistics of a comparison: intervals, areas, labels to an accuracy, tests.

Arrays only; nothing here depends on campaigns. Curves are (seeds, rounds) against (rounds,) labels;
values to be tested are (blocks, strategies). No function returns NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import scipy  # its submodules are imported when they are used
from numpy.typing import NDArray

from labelahead.errors import import_extra

__all__ = [
    "ALPHA",
    "ROUNDING_TOLERANCE",
    "Array",
    "Estimate",
    "Omnibus",
    "Pair",
    "Saving",
    "area_under_curve",
    "compare_pairs",
    "compute_saving",
    "critical_difference",
    "holm",
    "labels_to_accuracy",
    "mean_ranks",
    "nemenyi",
    "run_omnibus_test",
    "t_interval",
]

Array = NDArray[np.float64]
ALPHA = 0.05
CONFIDENCE_LEVEL = 0.95
BOOTSTRAP_DRAWS = 10_000
ROUNDING_TOLERANCE = 1e-12  # differences of accuracies below this are rounding


@dataclass(frozen=True)
class Estimate:
    """A mean over n seeds and its 95 % interval; one seed has no interval."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def negate(self) -> "Estimate":
        """Return the difference with the opposite sign."""
        low, high = (None if v is None else -v for v in (self.high, self.low))
        return Estimate(-self.mean, low, high, self.n)


@dataclass(frozen=True)
class Omnibus:
    """A test whether any two strategies differ. test: Friedman, or Wilcoxon for two."""

    test: str
    statistic: float
    p: float
    blocks: int


@dataclass(frozen=True)
class Pair:
    """First minus second, over the blocks both have. p: two-sided; holm: corrected for all pairs.

    constant: all differences are equal, so that a t-test is impossible and p is the sign test's.
    """

    first: int
    second: int
    difference: Estimate
    p: float
    holm: float
    constant: bool = False


@dataclass(frozen=True)
class Saving:
    """Labels that two strategies need for one accuracy, on their mean curves.

    inf: not reached. The intervals are bootstrapped over seeds; None with one seed.
    """

    accuracy: float
    reference: float
    other: float
    ratio: float  # reference / other; 0 when the other never gets there
    ratio_low: float | None
    ratio_high: float | None
    other_low: float | None
    other_high: float | None


def t_interval(values: Array, *, share: bool = False) -> Estimate:
    """Return the mean and its 95 % interval by Student's t. share: values are accuracies between 0 and
    1.
    """
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return Estimate(mean, None, None, n)
    half = float(
        scipy.stats.t.ppf(0.5 + CONFIDENCE_LEVEL / 2, n - 1) * np.std(values, ddof=1) / np.sqrt(n)
    )
    low, high = (
        (max(mean - half, 0.0), min(mean + half, 1.0)) if share else (mean - half, mean + half)
    )
    return Estimate(mean, low, high, n)


def area_under_curve(labels: Array, accuracy: Array) -> Array:
    """Return the area under curves (..., rounds) per label, (...,): the mean accuracy along the curve."""
    if len(labels) == 1:
        return np.asarray(accuracy[..., 0], dtype=np.float64)
    width = labels[-1] - labels[0]
    return np.asarray(
        scipy.integrate.trapezoid(accuracy, labels, axis=-1) / width, dtype=np.float64
    )


def labels_to_accuracy(labels: Array, accuracy: Array, target: float | Array) -> Array:
    """Return the labels at which curves (..., rounds) first reach a target (...,), inf if never.

    The running maximum is interpolated linearly between rounds: an accuracy once reached counts as
    reached. A curve that starts there needs the labels it starts with.
    """
    best = np.maximum.accumulate(accuracy, axis=-1)
    goal = np.broadcast_to(np.asarray(target, dtype=np.float64), best.shape[:-1])
    is_reached = best >= goal[..., None] - ROUNDING_TOLERANCE
    at = np.argmax(is_reached, axis=-1)
    before = np.maximum(at - 1, 0)
    high = np.take_along_axis(best, at[..., None], -1)[..., 0]
    low = np.take_along_axis(best, before[..., None], -1)[..., 0]
    rise = np.where(high > low, high - low, 1.0)
    part = np.clip((goal - low) / rise, 0.0, 1.0)
    between = labels[before] + part * (labels[at] - labels[before])
    return np.where(is_reached.any(-1), np.where(at == 0, labels[0], between), np.inf)


def compute_saving(
    labels: Array, reference: Array, other: Array, accuracy: float | None = None, *, seed: int = 0
) -> Saving:
    """Return how many labels each strategy needs for the final accuracy of the reference's mean curve.

    Seeds are resampled jointly (paired), and with them the target, unless it is given. A draw in
    which the other strategy never reaches the target has a ratio of 0, the least favourable value.

    Args:
        labels: (rounds,).
        reference: (seeds, rounds).
        other: (seeds, rounds), the same seeds in the same order.
        accuracy: Another target.
        seed: Of the bootstrap.
    """

    def count_labels(first: Array, second: Array) -> tuple[Array, Array, Array]:
        goal = first[..., -1] if accuracy is None else np.full(first.shape[:-1], accuracy)
        return (
            goal,
            labels_to_accuracy(labels, first, goal),
            labels_to_accuracy(labels, second, goal),
        )

    goal, first, second = (float(v) for v in count_labels(reference.mean(0), other.mean(0)))
    ratio = _label_ratio(np.array(first), np.array(second))
    if len(reference) < 2:
        return Saving(goal, first, second, float(ratio), None, None, None, None)
    rng, n = np.random.default_rng(seed), len(reference)
    drawn = rng.integers(n, size=(BOOTSTRAP_DRAWS, n))
    _, one, two = count_labels(reference[drawn].mean(1), other[drawn].mean(1))
    # With few seeds plain percentiles are too narrow. Hesterberg 2015, What Teachers Should Know
    # about the Bootstrap, widens them as Student's t does.
    tail = float(
        scipy.stats.norm.sf(
            np.sqrt(n / (n - 1)) * scipy.stats.t.ppf(0.5 + CONFIDENCE_LEVEL / 2, n - 1)
        )
    )
    ends = [tail, 1 - tail]
    # Order statistics, since inf (never reached) cannot be interpolated.
    low, high = np.quantile(_label_ratio(one, two), ends, method="inverted_cdf")
    least, most = np.quantile(two, ends, method="inverted_cdf")
    return Saving(
        goal, first, second, float(ratio), float(low), float(high), float(least), float(most)
    )


def _label_ratio(first: Array, second: Array) -> Array:
    """Return labels of the first per label of the second; 1 if neither reaches the target."""
    both = np.isinf(first) & np.isinf(second)
    with np.errstate(invalid="ignore"):
        return np.where(both, 1.0, first / second)


def run_omnibus_test(values: Array) -> Omnibus:
    """Test whether the columns of (blocks, strategies) differ: Friedman's test, or Wilcoxon's for two."""
    blocks, k = values.shape
    if k == 2:
        return _run_wilcoxon(values[:, 0] - values[:, 1])
    if np.ptp(values, axis=1).max() <= ROUNDING_TOLERANCE:
        return Omnibus("Friedman", 0.0, 1.0, blocks)
    test = scipy.stats.friedmanchisquare(*_round_ties(values).T)
    return Omnibus("Friedman", float(test.statistic), float(test.pvalue), blocks)


def _run_wilcoxon(difference: Array) -> Omnibus:
    blocks, left = len(difference), difference[np.abs(difference) > ROUNDING_TOLERANCE]
    if len(left) < 2:  # with one difference both signs are equally likely
        return Omnibus("Wilcoxon", 0.0, 1.0, blocks)
    # Exact by all sign patterns, which handles ties; above 12 the normal approximation suffices.
    method = scipy.stats.PermutationMethod() if len(left) <= 12 else "approx"
    test = scipy.stats.wilcoxon(np.round(left, 12), method=method)
    return Omnibus("Wilcoxon", float(test.statistic), float(test.pvalue), blocks)


def compare_pairs(columns: list[dict[int, float]]) -> list[Pair]:
    """Run paired t-tests of all pairs with Holm's correction.

    Args:
        columns: Per strategy, block -> value. A pair is tested on the blocks that both have, and
            skipped with fewer than two.
    """
    tested: list[Pair] = []
    for i, j in combinations(range(len(columns)), 2):
        blocks = sorted(columns[i].keys() & columns[j].keys())
        if len(blocks) < 2:
            continue
        gap = np.array([columns[i][b] - columns[j][b] for b in blocks])
        constant = bool(np.ptp(gap) <= ROUNDING_TOLERANCE)
        tested.append(Pair(i, j, t_interval(gap), _paired_p_value(gap, constant), 1.0, constant))
    corrected = holm([pair.p for pair in tested])
    return [replace(pair, holm=p) for pair, p in zip(tested, corrected, strict=True)]


def holm(p: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests by Holm's method."""
    order = np.argsort(p, kind="stable")
    scaled = np.asarray(p, dtype=np.float64)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(value) for value in corrected]


def _paired_p_value(gap: Array, constant: bool) -> float:
    if not constant:
        return float(scipy.stats.ttest_1samp(gap, 0.0).pvalue)
    if abs(gap[0]) <= ROUNDING_TOLERANCE:
        return 1.0
    # t would be infinite and p zero, only because accuracies are multiples of 1/n.
    return float(2.0 ** (1 - len(gap)))


def mean_ranks(values: Array) -> Array:
    """Return the average rank (strategies,) over the blocks, 1 for the largest value; ties share
    ranks.
    """
    return np.asarray(scipy.stats.rankdata(-_round_ties(values), axis=1).mean(0), dtype=np.float64)


def nemenyi(values: Array) -> Array:
    """Return p-values (strategies, strategies) of Nemenyi's test on the ranks."""
    posthocs = import_extra("scikit_posthocs", "report", "Nemenyi's test")
    return np.asarray(posthocs.posthoc_nemenyi_friedman(_round_ties(values)), dtype=np.float64)


def critical_difference(strategies: int, blocks: int) -> float:
    """Return the difference of mean ranks that Nemenyi's test detects (Demšar 2006)."""
    q = float(scipy.stats.studentized_range.ppf(1 - ALPHA, strategies, np.inf)) / np.sqrt(2)
    return float(q * np.sqrt(strategies * (strategies + 1) / (6 * blocks)))


def _round_ties(values: Array) -> Array:
    """Round, so that equal accuracies summed in another order tie."""
    return np.round(values, 12)
