"""Answers and predictions of tasks in Label Studio's form."""

import math

import pytest
import torch

import labelahead as la
from labelahead.integrations.label_studio.answers import (
    find_value,
    is_same_selection,
    list_selected,
    predict_result,
)
from labelahead.integrations.label_studio.interface import read_interface
from labelahead.tasks import MultilabelPrediction, NumberPrediction, RatingPrediction
from tests.support.label_studio_task_projects import CONFIGS, make_result

INTERFACES = {name: read_interface(config) for name, config in CONFIGS.items()}
TOPICS = ("sport", "food", "space")


@pytest.mark.parametrize("name", ["number", "rating"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (2.5, 2.5),
        (None, None),
        ("3", None),
        (True, None),
        (math.nan, None),
        (10**400, None),
    ],
)
def test_find_value_reads_finite_numbers_only(name, value, expected):
    assert find_value(INTERFACES[name], make_result(name, value)) == expected


@pytest.mark.parametrize("name", ["number", "rating"])
def test_find_value_of_no_or_several_regions_is_none(name):
    result, other = make_result(name, 3), make_result(name, 2, control="else")
    assert find_value(INTERFACES[name], [*other, *result]) == 3
    assert find_value(INTERFACES[name], result * 2) is None
    assert find_value(INTERFACES[name], []) is None
    assert find_value(INTERFACES[name], [{"from_name": "topic", "value": None}]) is None


def test_list_selected_reads_ticked_choices_and_none():
    interface = INTERFACES["multilabel"]
    assert list_selected(interface, make_result("multilabel", ["space", "food"])) == [
        "space",
        "food",
    ]
    assert list_selected(interface, []) == []
    assert list_selected(interface, [{"from_name": "note", "value": {"text": ["x"]}}]) == []
    assert list_selected(interface, [{"from_name": "topic", "value": {"choices": None}}]) == []
    other = make_result("multilabel", ["food"], control="else")
    assert list_selected(interface, other) is None
    assert list_selected(interface, other + make_result("multilabel", ["sport"])) == ["sport"]


def test_is_same_selection_ignores_what_was_not_reviewed():
    task = la.tasks.Multilabel(TOPICS)
    code = task.parse("sport;?space")
    assert is_same_selection(task, code, {"sport"})
    assert not is_same_selection(task, code, {"sport", "space"})
    assert not is_same_selection(task, code, set())
    assert is_same_selection(task, task.parse([]), set())


def predict_number(mean, deviation, limits):
    prediction = NumberPrediction(
        ("value",), torch.tensor([[mean]]), torch.tensor([[deviation]]), 20, limits
    )
    task = la.tasks.Number(limits=limits)
    result, score = predict_result(INTERFACES["number"], task, prediction)
    return result[0], score


def test_predict_result_of_a_number_has_its_interval_as_text():
    region, score = predict_number(8.0, 1.0, (0.0, 20.0))
    assert (region["from_name"], region["to_name"], region["type"]) == ("topic", "text", "number")
    assert region["value"] == {"number": 8.0}
    assert region["meta"] == {"text": ["90% interval: 6.3 to 9.7"]}  # t of 20 degrees: 1.725
    assert score == region["score"] == pytest.approx(1 - 3.4 / 20)


def test_predict_result_of_a_number_without_limits_has_no_score():
    region, score = predict_number(8.0, 1.0, (0.0, math.inf))
    assert score is None
    assert "score" not in region


def test_predict_result_of_a_number_stays_in_its_range_when_rounded():
    region, score = predict_number(19.6, 30.0, (0.0, 19.6))
    assert region["value"] == {"number": 19.6}  # rounded to 20
    assert region["meta"] == {"text": ["90% interval: 0 to 19.6"]}
    assert score == 0


def test_predict_result_of_a_rating_has_its_probability_and_expectation():
    levels, p = la.tasks.Rating(4), torch.tensor([[0.1, 0.2, 0.6, 0.1]])
    prediction = RatingPrediction(levels.levels, levels.scores, p)
    (region,), score = predict_result(INTERFACES["rating"], levels, prediction)
    assert (region["type"], region["value"]) == ("rating", {"rating": 3})
    assert region["meta"] == {"text": ["expected rating: 2.70"]}
    assert score == region["score"] == pytest.approx(0.6)


def predict_topics(p, interface):
    prediction = MultilabelPrediction(TOPICS, torch.tensor([p]), torch.full((3,), 0.5))
    return predict_result(interface, la.tasks.Multilabel(TOPICS), prediction)


def test_predict_result_of_several_choices_has_every_probability():
    (region,), score = predict_topics([0.9, 0.2, 0.7], INTERFACES["multilabel"])
    assert region["value"] == {"choices": ["sport", "space"]}
    assert region["meta"] == {"text": ["sport: 0.90, food: 0.20, space: 0.70"]}
    assert score == region["score"] == pytest.approx(0.9 * 0.8 * 0.7)


def test_predict_result_without_a_choice_has_a_score_and_no_region():
    result, score = predict_topics([0.1, 0.2, 0.3], INTERFACES["multilabel"])
    assert result == []
    assert score == pytest.approx(0.9 * 0.8 * 0.7)


def test_predict_result_leaves_out_a_removed_choice():
    narrower = read_interface(CONFIGS["multilabel"].replace('<Choice value="space"/>', ""))
    (region,), _ = predict_topics([0.9, 0.2, 0.7], narrower)
    assert region["value"] == {"choices": ["sport"]}
    assert region["meta"] == {"text": ["sport: 0.90, food: 0.20"]}
