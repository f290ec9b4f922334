"""Sources of labels: how often each is right, and what its labels are worth.

A source is a person, a language model or a file. With probability 1 − λ_s it gives the class of the
item, else one of the C classes at random, so that it is right with probability 1 − λ_s(C − 1)/C. The
class itself is predicted from the other items: P_i, by leave-one-out. An item with labels a_s of some
sources has the likelihood

    Σ_b P_i(b) Π_s [(1 − λ_s) 1{a_s = b} + λ_s/C],

in which the other labels of an item count, too. λ is estimated by maximum likelihood for all sources
together, and then one source after the other on a grid, shrunk towards that common value.

For the regression, a one-hot label y of such a source has the mean 1/C + κ(truth − 1/C), κ = 1 − λ.
Divided by κ it is the truth plus an error whose variance is τ² = 1/κ² − 1 times that of the truth.
Errors of different sources are independent: the labels of an item are averaged by precision 1/τ².
What the kernel cannot represent of an item, σ, is the same in all of its labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labelahead.data.class_targets import make_class_targets
from labelahead.data.dataset import NONE_OF_THESE
from labelahead.errors import InputError
from labelahead.gp.calibration import gaussian_class_probabilities
from labelahead.gp.label_combination import combine_labels

__all__ = [
    "Annotations",
    "EffectiveLabels",
    "ItemLabels",
    "SourceAccuracy",
    "SourceEstimates",
    "average_labels",
    "combine_sources",
    "estimate_sources",
]

LAPSE_GRID = (0.005, 0.02, *(i / 20 for i in range(1, 20)))  # λ
PRIOR_LABELS = 4.0  # the common λ counts as much as so many labels of a source
SWEEPS = 3  # over the sources
SCALES = (0.3, 0.45, 0.65, 0.9, 1.2, 1.6, 2.1, 2.8, 3.8, 5.0)  # of the standard deviation
MIN_SIGNAL = 0.05  # κ of a source whose labels are as good as random
TRUSTED_LAPSE = 0.005
MIN_ERROR_VARIANCE = 1e-3  # τ² of a perfect source
INTERVAL_TAIL = 0.05
SMOOTHING_LABELS = 2.0  # of each row of a confusion matrix
CONFUSION_STEPS = 10


@dataclass(frozen=True, eq=False)
class Annotations:
    """All labels of some items, each with its source.

    Attributes:
        positions: (q,) items; one occurs once for each source that labelled it.
        labels: (q,) class numbers.
        sources: (q,) indices into `names`.
        names: Names of the sources.
    """

    positions: Tensor
    labels: Tensor
    sources: Tensor
    names: tuple[str, ...]

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, int, str]]) -> "Annotations":
        """Build them from (position, class, source); a later label of a source replaces its earlier.

        They are sorted, so that estimates do not depend on the order in which sources labelled.

        >>> both = Annotations.from_rows([(4, 1, "anna"), (4, 0, "ben"), (4, 2, "anna")])
        >>> both.positions.tolist(), both.labels.tolist(), both.names
        ([4, 4], [2, 0], ('anna', 'ben'))
        """
        newest = {(position, source): label for position, label, source in rows}
        newest = dict(sorted(newest.items()))
        names = tuple(sorted({source for _, source in newest}))
        number = {name: i for i, name in enumerate(names)}
        return cls(
            torch.tensor([p for p, _ in newest], dtype=torch.int64),
            torch.tensor(list(newest.values()), dtype=torch.int64),
            torch.tensor([number[s] for _, s in newest], dtype=torch.int64),
            names,
        )

    @staticmethod
    def vote(rows: Sequence[tuple[int, int, str]]) -> dict[int, int]:
        """Return position -> the class that most sources give, the newest if there are several.

        >>> Annotations.vote([(4, 1, "anna"), (4, 0, "ben"), (5, 2, "anna")])
        {4: 0, 5: 2}
        """
        said: dict[int, dict[str, int]] = {}
        for position, label, source in rows:
            said.setdefault(position, {})[source] = label
        votes = {position: list(own.values()) for position, own in said.items()}
        return {p: max(reversed(given), key=given.count) for p, given in votes.items()}

    def select_items(self, labelled: Tensor, labels: Tensor) -> "ItemLabels | None":
        """Return the labels of some items, or None if one source gave all of them.

        An item without annotations has its label from a trusted source. "None of these" says
        nothing about how often a source is right: with that label an item counts as one from a
        trusted source, and with another label its annotations with that answer are left out.

        Args:
            labelled: (L,) distinct positions.
            labels: (L,) class numbers or `NONE_OF_THESE`.
        """
        row = {p: i for i, p in enumerate(labelled.tolist())}
        labelled_positions = {p for p, c in zip(row, labels.tolist(), strict=True) if c >= 0}
        rows = zip(self.positions.tolist(), self.labels.tolist(), strict=True)
        kept = [i for i, (p, c) in enumerate(rows) if p in labelled_positions and c >= 0]
        item = torch.tensor([row[int(self.positions[i])] for i in kept], dtype=torch.int64)
        every = torch.ones(len(labelled), dtype=torch.bool).index_fill_(0, item, False)
        trusted = every.nonzero()[:, 0]
        given = self.sources[kept]
        if len(torch.unique(given)) + bool(len(trusted)) < 2:
            return None
        return ItemLabels(
            len(labelled),
            torch.cat([item, trusted]),
            torch.cat([self.labels[kept], labels.cpu()[trusted]]),
            torch.cat([given, torch.full_like(trusted, len(self.names))]),
            len(self.names),
        )


class ItemLabels(NamedTuple):
    """Labels of L items by several sources. Source number `sources` is the trusted one."""

    items: int  # L
    item: Tensor  # (q,) indices of items
    labels: Tensor  # (q,)
    source: Tensor  # (q,)
    sources: int  # S

    def is_none_of_these(self) -> Tensor:
        """Return which items (L,) belong to none of the classes."""
        none = self.item[self.labels == NONE_OF_THESE]
        return torch.zeros(self.items, dtype=torch.bool).index_fill_(0, none, True)

    def subset(self, some: Tensor) -> "ItemLabels":
        """Return the labels of some items (p,), which are numbered anew."""
        row = torch.full((self.items,), -1).index_copy_(0, some, torch.arange(len(some)))
        kept = row[self.item] >= 0
        return ItemLabels(
            len(some), row[self.item[kept]], self.labels[kept], self.source[kept], self.sources
        )


class EffectiveLabels(NamedTuple):
    """One label for each item, to which the labels of its sources amount."""

    targets: Tensor  # (L, C) minus 1/C
    noise: Tensor  # (L,) added to the noise of the kernel mixture


class SourceAccuracy(NamedTuple):
    """How often a source is right, with a 90 % interval."""

    accuracy: float
    low: float
    high: float
    labels: int


class SourceEstimates(NamedTuple):
    """What the labels say about each source."""

    lapse: Tensor  # (S,) λ
    accuracy: Tensor  # (S,)
    low: Tensor  # (S,) 90 % interval of the accuracy
    high: Tensor  # (S,)
    counts: Tensor  # (S,) labels
    confusion: Tensor  # (S, C, C) P(source gives a | class b) in row b, column a

    def by_name(self, names: Sequence[str]) -> dict[str, SourceAccuracy]:
        """Return the accuracy of every source."""
        rows = zip(
            *(x.tolist() for x in (self.accuracy, self.low, self.high, self.counts)), strict=True
        )
        return {name: SourceAccuracy(*row) for name, row in zip(names, rows, strict=True)}


def combine_sources(
    labels: ItemLabels, lapse: Tensor, classes: int, noise: float = 0.0
) -> EffectiveLabels:
    """Combine the labels of each item by the precision of their sources.

    Args:
        labels: The labels.
        lapse: (S,) λ of each source.
        classes: C.
        noise: Of the kernel mixture: the truth has the variance 1 + noise.
    """
    kappa = torch.cat([1 - lapse, lapse.new_ones(1)])[labels.source].clamp_min(MIN_SIGNAL)
    variance = ((1 / kappa.square() - 1) * (1 + noise)).clamp_min(MIN_ERROR_VARIANCE)
    targets = (make_class_targets(labels.labels, classes) - 1 / classes) / kappa[:, None]
    at, combined, spread = combine_labels(labels.item, targets, variance)
    order = at.argsort()
    extra = torch.where(spread > MIN_ERROR_VARIANCE, spread, 0.0)
    return EffectiveLabels(combined[order], extra[order])


def average_labels(labels: ItemLabels, classes: int) -> EffectiveLabels:
    """Return the mean of the labels of each item, without further noise."""
    return combine_sources(labels, torch.zeros(labels.sources, dtype=torch.float64), classes)


def estimate_sources(mean: Tensor, variance: Tensor, labels: ItemLabels) -> SourceEstimates:
    """Estimate how often each source is right, from predictions of the items by other items.

    Args:
        mean: (L, C) leave-one-out means of the items' outputs.
        variance: (L,) their variances, up to a factor, which is estimated as well.
        labels: The labels.
    """
    if labels.items != len(mean):
        raise InputError(f"{len(mean)} predictions for {labels.items} items; expected one for each")
    grid = torch.tensor(LAPSE_GRID, dtype=torch.float64)
    candidates = []
    for scale in SCALES:
        p = gaussian_class_probabilities(mean, scale**2 * variance).clamp_min(1e-9).log()
        fits = [
            float(_sum_likelihood(p, labels, torch.full((labels.sources,), float(x)))) for x in grid
        ]
        best = max(range(len(fits)), key=fits.__getitem__)
        candidates.append((fits[best], float(grid[best]), p))
    _, common, p = max(candidates, key=lambda row: row[0])
    lapse = torch.full((labels.sources,), common, dtype=torch.float64)
    prior = PRIOR_LABELS * (common * grid.log() + (1 - common) * (1 - grid).log())
    weights = torch.zeros((labels.sources, len(grid)), dtype=torch.float64)
    for _ in range(SWEEPS):
        for s in range(labels.sources):
            fits = [
                float(_sum_likelihood(p, labels, lapse.index_fill(0, torch.tensor(s), float(x))))
                for x in grid
            ]
            weights[s] = torch.softmax(torch.tensor(fits, dtype=torch.float64) + prior, 0)
            lapse[s] = weights[s] @ grid
    return _describe_sources(p, labels, lapse, weights)


def _log_likelihoods(labels: ItemLabels, lapse: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Log-probability of each label if it is the class, and if another is: (q,) each."""
    rate = torch.cat([lapse.double(), lapse.new_full((1,), TRUSTED_LAPSE).double()])[labels.source]
    return (1 - rate + rate / classes).log(), (rate / classes).log()


def _add_labels(log_p: Tensor, labels: ItemLabels, lapse: Tensor) -> Tensor:
    """Log of P_i(b) Π_s P(a_s | b): (L, C)."""
    right, wrong = _log_likelihoods(labels, lapse, log_p.shape[1])
    out = log_p.index_add(0, labels.item, wrong[:, None].expand(-1, log_p.shape[1]))
    return out.index_put_((labels.item, labels.labels), right - wrong, accumulate=True)


def _sum_likelihood(log_p: Tensor, labels: ItemLabels, lapse: Tensor) -> Tensor:
    return torch.logsumexp(_add_labels(log_p, labels, lapse), 1).sum()


def _describe_sources(
    log_p: Tensor, labels: ItemLabels, lapse: Tensor, weights: Tensor
) -> SourceEstimates:
    """Return accuracies with intervals, and confusion matrices."""
    classes, grid = log_p.shape[1], torch.tensor(LAPSE_GRID, dtype=torch.float64)
    own = labels.source < labels.sources
    cumulative = weights.cumsum(1)
    wrong_share = (classes - 1) / classes
    quantiles = [
        grid[
            torch.searchsorted(cumulative, cumulative.new_full((len(lapse), 1), q))[:, 0].clamp_max(
                len(grid) - 1
            )
        ]
        for q in (INTERVAL_TAIL, 1 - INTERVAL_TAIL)
    ]
    return SourceEstimates(
        lapse,
        1 - lapse * wrong_share,
        1 - quantiles[1] * wrong_share,
        1 - quantiles[0] * wrong_share,
        torch.bincount(labels.source[own], minlength=labels.sources),
        _estimate_confusion(log_p, labels, lapse),
    )


def _estimate_confusion(log_p: Tensor, labels: ItemLabels, lapse: Tensor) -> Tensor:
    """Estimate P(source gives a | class b), (S, C, C), by expectation maximisation.

    It starts from λ, towards which the rows are smoothed. Each step counts N_ba = Σ_i [label_i = a]
    P(b | item i and all of its labels).
    """
    classes, sources = log_p.shape[1], labels.sources
    rate = torch.cat([lapse, lapse.new_full((1,), TRUSTED_LAPSE)])
    start = torch.diag_embed((1 - rate)[:, None].expand(-1, classes))
    start = start + (rate / classes)[:, None, None]
    confusion = start
    for _ in range(CONFUSION_STEPS):
        given = confusion[labels.source, :, labels.labels].log()  # (q, C)
        share = torch.softmax(log_p.index_add(0, labels.item, given), 1)[labels.item]
        flat = labels.source * classes + labels.labels
        counts = log_p.new_zeros(((sources + 1) * classes, classes)).index_add_(0, flat, share)
        rows = counts.view(-1, classes, classes).mT + SMOOTHING_LABELS * start
        confusion = torch.cat([(rows / rows.sum(2, keepdim=True))[:sources], start[sources:]])
    return confusion[:sources]
