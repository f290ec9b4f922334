"""The queue of labels that somebody else should look at: disagreements, doubts, a random share.

A reviewer accepts a label (`keep`) or corrects it (`settle`). Both are events of the journal, with
the reviewer's name and the time; no annotator's own answer changes.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from labelahead.server.label_state import Event, LabelState
from labelahead.server.progress import find_doubtful
from labelahead.server.service import LabellingService

__all__ = [
    "DISAGREEMENT",
    "DOUBT",
    "RANDOM_CHECK",
    "RANDOM_SHARE",
    "list_review_queue",
    "measure_item_seconds",
]

DISAGREEMENT, DOUBT, RANDOM_CHECK = "disagreement", "doubt", "random check"
RANDOM_SHARE = 0.05  # of each annotator's labels that are checked whatever the model says
MAX_SECONDS_PER_ITEM = 300.0  # a longer pause is not time spent on an item


def list_review_queue(
    service: LabellingService, who: str, n: int = 24, share: float = RANDOM_SHARE
) -> dict[str, Any]:
    """Return the labels to review, disagreements first, then doubts, then the random share.

    Labels that were accepted or settled are left out until they change; labels of the reviewer are
    not in the random share.

    Args:
        service: The labelling service.
        who: The reviewer.
        n: Maximum number of items.
        share: Fraction of each annotator's labels in the random share. An item that is in it for
            some share is also in it for every larger one.
    """
    with service.lock:
        page_model, label_state = service.page_model, service.label_state
    suggested = {row.position: row.suggested for row in find_doubtful(page_model, label_state)}
    reasons = dict.fromkeys(label_state.conflicts, DISAGREEMENT)
    for reason, positions in (
        (DOUBT, suggested),
        (RANDOM_CHECK, _find_random_share(label_state, who, share)),
    ):
        reasons |= {p: reason for p in positions if p not in reasons}
    items = [
        {
            **service.items.describe_item(position),
            **label_state.find_deciding_answer(position).pick_fields("who", "at"),
            "reason": reason,
            "label": label_state.labels[position],
            "answer": label_state.name_label(label_state.labels[position]),
            "suggested": suggested.get(position),
        }
        for position, reason in list(reasons.items())[:n]
    ]
    return {"counts": dict(Counter(reasons.values())), "share": share, "items": items}


def _find_random_share(label_state: LabelState, who: str, share: float) -> Iterator[int]:
    """Yield the positions of the random share, in a fixed random order."""
    drawn = sorted((draw, p) for p in label_state.labels if (draw := _draw(p)) < share)
    for _, position in drawn:
        reviewed = position in label_state.kept_labels or position in label_state.settlements
        if not reviewed and label_state.find_deciding_answer(position).who != who:
            yield position


def _draw(position: int) -> float:
    """Return a number in [0, 1) that is random, and always the same for an item."""
    digest = hashlib.sha256(f"review {position}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def measure_item_seconds(answers: Iterable[Event]) -> dict[str, float]:
    """Return each annotator's median time between two answers, in seconds.

    Pauses above `MAX_SECONDS_PER_ITEM` and answers to many items at once do not count.
    """
    times: dict[str, list[datetime]] = {}
    for answer in sorted(answers, key=lambda answer: answer.seq):
        if answer.kind != "confirm":
            times.setdefault(answer.who, []).append(datetime.fromisoformat(answer.at))
    found = {}
    for who, given in times.items():
        gaps = [(b - a).total_seconds() for a, b in pairwise(given) if b > a]
        spent = [gap for gap in gaps if gap <= MAX_SECONDS_PER_ITEM]
        if spent:
            found[who] = round(median(spent), 1)
    return found
