"""Answers of a task that their leave-one-out predictions contradict: labels to review."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from labelahead.tasks import (
    Multilabel,
    MultilabelPrediction,
    NumberPrediction,
    Prediction,
    RatingPrediction,
    Task,
    find_task,
)

__all__ = ["MIN_REVIEW_LABELS", "Suspect", "find_suspects"]

MIN_REVIEW_LABELS = 20  # with fewer labels most reports are wrong
MAX_PROBABILITY = 0.05  # of an answer that is reviewed, or of its being present or absent
NUMBER_LEVEL = 0.99  # of the interval outside which a number is reviewed


class Suspect(NamedTuple):
    """An answer that differs from its leave-one-out prediction."""

    position: int
    label: int  # code of the answer
    suggested: str  # written answer, or the predicted interval of a number
    probability: float  # of the answer; of a number, the level of the interval that just holds it


def find_suspects(
    task: Task, prediction: Prediction, positions: Sequence[int], codes: Sequence[int]
) -> tuple[Suspect, ...]:
    """Return the answers that their leave-one-out prediction contradicts, the least likely first.

    Args:
        task: Of the answers.
        prediction: Leave-one-out, for the labelled items (L,).
        positions: (L,) of these items.
        codes: (L,) of their answers.
    """
    if len(codes) < MIN_REVIEW_LABELS:
        return ()
    find = {
        MultilabelPrediction: _find_sets,
        RatingPrediction: _find_ratings,
        NumberPrediction: _find_numbers,
    }[type(prediction)]
    rows = [
        Suspect(positions[i], codes[i], suggested, round(p, 4))
        for i, suggested, p in find(task, prediction, codes)  # type: ignore[operator]
    ]
    return tuple(sorted(rows, key=lambda row: row.probability))


def _find_sets(
    task: Multilabel, prediction: MultilabelPrediction, codes: Sequence[int]
) -> list[tuple[int, str, float]]:
    """Return the answers with a class that is very probably wrong, and these classes turned."""
    truth = task.targets(codes)
    p = prediction.probabilities.double()
    likely = torch.where(truth == 1, p, 1 - p).masked_fill(truth.isnan(), 1.0)
    writer = find_task(**task.describe())  # suggestions are no answers of the session
    found = []
    for i in (likely < MAX_PROBABILITY).any(1).nonzero().flatten().tolist():
        turned = torch.where(likely[i] < MAX_PROBABILITY, 1 - truth[i], truth[i])
        code = writer.parse(turned.numpy())
        if code is not None:
            found.append((i, writer.write(code), float(likely[i].min())))
    return found


def _find_ratings(
    task: Task, prediction: RatingPrediction, codes: Sequence[int]
) -> list[tuple[int, str, float]]:
    given = torch.tensor(codes)
    p = prediction.probabilities.double().gather(1, given[:, None])[:, 0]
    rows = ((p < MAX_PROBABILITY) & (prediction.chosen != given)).nonzero().flatten().tolist()
    return [(i, prediction.names[int(prediction.chosen[i])], float(p[i])) for i in rows]


def _find_numbers(
    task: Task, prediction: NumberPrediction, codes: Sequence[int]
) -> list[tuple[int, str, float]]:
    from scipy.special import stdtr  # Imported here, because it takes long.

    low, high = prediction.interval()
    size = (task.targets(codes) - prediction.mean).abs() / prediction.deviation
    size = size.nan_to_num(0.0).amax(1)
    tail = 2 * stdtr(max(1, prediction.degrees), -size.numpy())
    ends = [
        "; ".join(f"{a:.4g} to {b:.4g}" for a, b in zip(x, y, strict=True))
        for x, y in zip(low.tolist(), high.tolist(), strict=True)
    ]
    return [(i, ends[i], float(p)) for i, p in enumerate(tail) if p < 1 - NUMBER_LEVEL]
