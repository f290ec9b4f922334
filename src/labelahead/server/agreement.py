"""Agreement between annotators: Cohen's kappa of pairs, Krippendorff's alpha of all."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from labelahead.server.label_state import LabelState

__all__ = [
    "AgreementSummary",
    "PairAgreement",
    "cohen_kappa",
    "krippendorff_alpha",
    "summarize_agreement",
]

MAX_PAIRS = 20  # in a summary, those with most items in common


class PairAgreement(NamedTuple):
    """Agreement of two annotators on the items that both labelled."""

    who: str
    other: str
    items: int
    agreeing: int
    kappa: float | None  # None if both gave the same class to every item


class AgreementSummary(NamedTuple):
    """Agreement of all annotators."""

    pairs: tuple[PairAgreement, ...]
    alpha: float | None  # Krippendorff's; None without items in common, or with a single class


def cohen_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Return Cohen's kappa: 1 for full agreement, 0 for agreement by chance.

    Args:
        pairs: The two labels of each item that both annotators labelled.

    >>> cohen_kappa([(0, 0), (1, 1), (0, 1), (1, 1)])
    0.5
    """
    n = len(pairs)
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    by_chance = sum(first[c] * second[c] for c in first)
    if n == 0 or by_chance == n * n:
        return None
    agreeing = sum(a == b for a, b in pairs)
    return (n * agreeing - by_chance) / (n * n - by_chance)


def krippendorff_alpha(items: Iterable[Sequence[int]]) -> float | None:
    """Return Krippendorff's alpha of classes: 1 − observed/expected disagreement.

    Args:
        items: The labels of each item; items with fewer than two do not count.

    >>> krippendorff_alpha([[0, 0], [1, 1, 1], [2]])
    1.0
    """
    observed, totals = 0.0, Counter[int]()
    for labels in items:
        if len(labels) < 2:
            continue
        counts = Counter(labels)
        totals.update(counts)
        differing = len(labels) ** 2 - sum(k * k for k in counts.values())
        observed += differing / (len(labels) - 1)
    n = sum(totals.values())
    expected = n * n - sum(k * k for k in totals.values())
    return 1 - (n - 1) * observed / expected if expected else None


def summarize_agreement(label_state: LabelState) -> AgreementSummary:
    """Compare the annotators' own labels, whatever conflicts were settled."""
    common: dict[tuple[str, str], list[tuple[int, int]]] = {}
    every = []
    for answers in label_state.answers.values():
        labels: Mapping[str, int] = {a.who: a.label for a in answers if a.label is not None}
        every.append(list(labels.values()))
        for who, other in combinations(sorted(labels), 2):
            common.setdefault((who, other), []).append((labels[who], labels[other]))
    pairs = [
        PairAgreement(who, other, len(both), sum(a == b for a, b in both), cohen_kappa(both))
        for (who, other), both in common.items()
    ]
    pairs.sort(key=lambda pair: (-pair.items, pair.who, pair.other))
    return AgreementSummary(tuple(pairs[:MAX_PAIRS]), krippendorff_alpha(every))
