"""Tasks and predictions as the page shows them."""

import torch

from labelahead.server.task_display import count_outputs, describe_predicted, describe_task
from labelahead.tasks import (
    Multilabel,
    MultilabelPrediction,
    Number,
    NumberPrediction,
    Rating,
    RatingPrediction,
)


def test_set_of_classes_has_every_probability_and_what_is_predicted():
    p = MultilabelPrediction(
        ("cat", "dog"), torch.tensor([[0.9, 0.2], [0.1, 0.3]]), torch.tensor([0.5, 0.4])
    )
    assert describe_predicted(p) == {
        "value": ["cat"],
        "text": "cat",
        "outputs": [
            {"label": 0, "p": 0.9, "chosen": True},
            {"label": 1, "p": 0.2, "chosen": False},
        ],
    }
    assert describe_predicted(p, 1)["text"] == "no class"


def test_number_is_rounded_by_its_deviation():
    p = NumberPrediction(
        ("a", "b"), torch.tensor([[12.3456, 98765.0]]), torch.tensor([[0.5, 800.0]]), 20
    )
    shown = describe_predicted(p)
    assert shown["value"] == [12.35, 98760.0]
    assert shown["text"] == "12.35; 98760"
    assert [out["low"] < out["mean"] < out["high"] for out in shown["outputs"]] == [True, True]


def test_rating_has_the_median_level():
    p = RatingPrediction(
        ("1", "2", "3"), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[0.4, 0.2, 0.4]])
    )
    shown = describe_predicted(p)
    assert (shown["label"], shown["value"], shown["score"]) == (1, "2", 2.0)


def test_labels_are_counted_for_each_class_or_level():
    task = Multilabel(["cat", "dog"])
    codes = task.parse_all([["cat"], ["cat", "dog"], [], {"cat": None, "dog": True}])
    assert count_outputs(task, dict(enumerate([*codes, codes[0]]))) == [3, 2]
    assert count_outputs(task, {}) == [0, 0]
    assert count_outputs(Rating(3), {0: 2, 1: 2, 7: 0}) == [1, 0, 2]
    assert count_outputs(Number(), {0: 0}) == []


def test_task_has_unit_limits_levels_and_the_name_of_its_error():
    assert describe_task(None) is None
    shown = describe_task(Number(unit="kg", limits=(0, None)))
    assert (shown["unit"], shown["low"], shown["high"]) == ("kg", 0, None)
    assert shown["error"] == {"name": "root mean square error", "measure": "rmse", "unit": "kg"}
    assert describe_task(Rating(["bad", "good"]))["levels"] == ["bad", "good"]
    assert describe_task(Multilabel(["a"]))["error"]["unit"] == "%"
