"""Answers that their leave-one-out prediction contradicts."""

import pytest
import torch

from labelahead.server.task_review import MIN_REVIEW_LABELS, find_suspects
from labelahead.tasks import (
    Multilabel,
    MultilabelPrediction,
    Number,
    NumberPrediction,
    Rating,
    RatingPrediction,
)

COUNT = MIN_REVIEW_LABELS


def test_set_with_improbable_classes_is_suspect_and_they_are_turned():
    task = Multilabel(["cat", "dog", "fox"])
    codes = task.parse_all([["cat"]] * (COUNT - 2) + ["cat;dog;?fox", []])
    p = torch.full((COUNT, 3), 0.0)
    p[:, 0] = 0.97
    p[-2] = torch.tensor([0.9, 0.01, 0.5])
    prediction = MultilabelPrediction(task.outputs, p, torch.full((3,), 0.5))
    found = find_suspects(task, prediction, list(range(100, 100 + COUNT)), codes)
    assert [(row.position, row.suggested) for row in found] == [
        (100 + COUNT - 2, "cat;?fox"),
        (100 + COUNT - 1, "cat"),
    ]
    assert [row.probability for row in found] == pytest.approx([0.01, 0.03])
    assert len(task.answers) == 3  # suggestions are no answers of the session


def test_rating_is_suspect_if_improbable_and_not_predicted():
    p = torch.tensor([[0.02, 0.03, 0.95]]).repeat(COUNT, 1)
    prediction = RatingPrediction(("1", "2", "3"), torch.tensor([1.0, 2.0, 3.0]), p)
    codes = [2] * (COUNT - 1) + [0]
    found = find_suspects(Rating(3), prediction, list(range(COUNT)), codes)
    assert [(row.position, row.label, row.suggested) for row in found] == [(COUNT - 1, 0, "3")]


def test_number_is_suspect_outside_the_99_percent_interval():
    task = Number()
    prediction = NumberPrediction(
        ("value",), torch.zeros(COUNT, 1), torch.ones(COUNT, 1), degrees=1000
    )
    low, high = prediction.interval(0.99)
    inside, outside = float(high[0]) - 0.01, float(low[0]) - 0.01
    codes = task.parse_all([inside] * (COUNT - 1) + [outside])
    found = find_suspects(task, prediction, list(range(COUNT)), codes)
    assert [(row.position, row.suggested) for row in found] == [(COUNT - 1, "-1.646 to 1.646")]
    assert found[0].probability == pytest.approx(0.0097, abs=3e-4)


def test_few_labels_give_no_suspects():
    prediction = NumberPrediction(("value",), torch.zeros(2, 1), torch.ones(2, 1), 5)
    task = Number()
    assert find_suspects(task, prediction, [0, 1], task.parse_all([50, 60])) == ()
