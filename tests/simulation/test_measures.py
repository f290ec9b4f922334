"""The measure that a campaign is judged by."""

from dataclasses import replace

import pytest

from labelahead.simulation.measures import (
    ACCURACY,
    find_error_measure,
    find_measure,
    find_output_measure,
    list_measures,
)
from labelahead.simulation.store import Round
from labelahead.tasks import TASKS


def make_round(accuracy=None, **measures):
    return Round(0, 10, accuracy, 1.0, 0.0, 0, 0, measures=measures)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_measure_that_its_rounds_hold(task):
    measure = find_measure(task)
    assert measure.name == TASKS[task].main_measure
    assert measure.larger_is_better is TASKS[task].measures[measure.name]
    assert measure.title != measure.name or "_" not in measure.name


def test_accuracy_of_single_classes_is_the_score():
    assert find_measure("classes") == ACCURACY
    assert ACCURACY.score(make_round(0.75)) == 0.75
    assert ACCURACY.score(make_round()) is None
    assert (ACCURACY.format(0.9321), ACCURACY.points) == ("93.2 %", " points")
    assert [ACCURACY.format_plain(x, True) for x in (0.012, -0.0001)] == ["+1.2", "0.0"]


def test_smaller_errors_have_larger_scores_and_are_shown_as_they_are():
    rmse = find_measure("number", "kg")
    better, worse = make_round(rmse=2.0, r2=0.5), make_round(rmse=3.0, r2=0.1)
    assert rmse.score(better) > rmse.score(worse)
    assert rmse.read(better) == rmse.restore(rmse.score(better)) == 2.0
    assert rmse.format(rmse.score(worse)) == "3 kg"
    assert rmse.format_plain(rmse.score(better) - rmse.score(worse), True) == "-1"
    assert rmse.score(make_round(0.9)) is None


def test_shares_are_shown_in_per_cent_without_a_unit():
    f1 = find_measure("multilabel", "kg")
    assert f1.format(f1.score(make_round(micro_f1=0.5))) == "50.0 %"


def test_errors_that_are_shares_are_shown_as_they_are():
    loss = find_error_measure("multilabel")
    better, worse = make_round(hamming_loss=0.1), make_round(hamming_loss=0.3)
    assert loss.score(better) > loss.score(worse)
    assert loss.format(loss.score(worse)) == "30.0 %"


def test_estimate_is_the_accuracy_or_the_error_of_the_task():
    entry = replace(make_round(), error=0.2, error_low=0.1, error_high=0.4)
    assert ACCURACY.estimate(entry) == (0.8, 0.6, 0.9)
    assert find_error_measure("number").estimate(entry) == (0.2, 0.1, 0.4)
    assert find_measure("multilabel").estimate(entry) is None  # the error is another measure
    assert ACCURACY.estimate(make_round()) is None


@pytest.mark.parametrize("task", TASKS)
def test_list_measures_has_every_measure_of_the_task_once(task):
    found = list_measures(task, "kg")
    names = [measure.name for measure in found]
    assert names == (["accuracy"] if task == "classes" else [found[0].name, *names[1:]])
    if task != "classes":
        assert set(names) == set(TASKS[task].measures)
        assert len(names) == len(set(names))
    for measure in found:
        assert measure.larger_is_better is TASKS[task].measures[measure.name]


def test_measure_of_an_output_is_named_after_it():
    known = {m.name: m for m in list_measures("multilabel")}
    found = find_output_measure("average_precision:cat", known)
    assert (found.title, found.larger_is_better) == ("average precision of cat", True)
    assert found.read(make_round(**{"average_precision:cat": 0.5})) == 0.5
