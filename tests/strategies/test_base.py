"""The interface of a strategy and the configuration of a query."""

import math
from dataclasses import replace

import pytest

from labelahead.errors import InputError
from labelahead.strategies import STRATEGIES
from labelahead.strategies.base import QueryConfig
from labelahead.tasks import Number
from tests.support.own_strategies import FIRST, make_campaign


def test_modes_of_strategy_value_are_respected():
    with pytest.raises(InputError, match="first works as top"):
        make_campaign(FIRST, mode="greedy")
    assert QueryConfig(FIRST).strategy.resolve_mode(None, has_oracle=True) == "top"


@pytest.mark.parametrize("name", ["flip", "random"])
def test_resolve_mode_refuses_unsupported_modes(name):
    modes = STRATEGIES[name].modes
    for mode in ("top", "greedy", "sequential"):
        if mode in modes:
            assert STRATEGIES[name].resolve_mode(mode, has_oracle=True) == mode
        else:
            with pytest.raises(InputError, match=f"mode is '{mode}', but {name} works as top"):
                STRATEGIES[name].resolve_mode(mode, has_oracle=True)


def test_sequential_mode_without_oracle_becomes_greedy():
    flip = STRATEGIES["flip"]
    assert flip.resolve_mode(None, has_oracle=True) == "sequential"
    assert flip.resolve_mode("sequential", has_oracle=False) == "greedy"
    assert flip.resolve_mode("top", has_oracle=False) == "top"


def test_choose_acquisition_is_resolve_before_two_classes_are_labelled():
    for name in ("flip", "mlmoc", "changes", "emoc", "eer"):
        assert STRATEGIES[name].choose_acquisition([1, 1]) == "resolve"
        assert STRATEGIES[name].choose_acquisition([1, 0]) == name
    assert STRATEGIES["variance"].choose_acquisition([]) == "variance"


def test_with_default_noise_keeps_a_configured_noise():
    noisy = replace(STRATEGIES["flip"], noise=0.25)
    assert noisy.with_default_noise(QueryConfig("flip")).noise == 0.25
    assert noisy.with_default_noise(QueryConfig("flip", noise=0.5)).noise == 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sketch": 31}, "sketch is 31; expected 32 features or more"),
        ({"candidates": 0}, "candidates is 0; expected 1 or more"),
        ({"evaluation": -1}, "evaluation is -1; expected 1 or more"),
        ({"retrainings": 0}, "retrainings is 0; expected 1 or more"),
        ({"gamma": math.nan}, "gamma is nan; expected 0 or more"),
        ({"noise": 0.0}, "noise is 0.0; expected a positive number"),
        ({"noise": math.inf}, "noise is inf; expected a positive number"),
    ],
)
def test_query_config_refuses_invalid_values(wrong, message):
    with pytest.raises(InputError, match=message):
        QueryConfig(**wrong)
    assert QueryConfig(sketch=32, candidates=None, evaluation=1, gamma=math.inf).sketch == 32


@pytest.mark.parametrize("name", ["margin", "mlmoc", "random"])
def test_goal_is_refused_by_strategies_that_cannot_weigh_classes(name):
    match = f"{name} cannot weigh classes .* expected one of flip, resolve, variance"
    with pytest.raises(InputError, match=match):
        make_campaign(name, goal="macro-f1")
    STRATEGIES[name].check_goal("accuracy")


def test_goal_is_checked_with_the_task_and_its_name():
    make_campaign("flip", goal="macro-f1")
    with pytest.raises(InputError, match="expected one of accuracy, macro-f1"):
        QueryConfig(goal="f1")
    with pytest.raises(InputError, match="needs one class per item; the task is number"):
        STRATEGIES["resolve"].check_goal("macro-f1", Number())
