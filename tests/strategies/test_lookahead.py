"""Look-ahead strategies made from an acquisition function."""

import math

import pytest

import labelahead as la
from labelahead.acquisition import flip
from labelahead.errors import InputError, NumericalError
from labelahead.strategies.lookahead import make_lookahead_strategy
from tests.support.campaigns import data
from tests.support.own_strategies import STRATEGY_FILE, assert_equal_results, make_campaign


def test_acquisition_from_file_queries_like_builtin(tmp_path):
    (tmp_path / "own.py").write_text(STRATEGY_FILE)
    for mode in ("sequential", "top"):
        own = la.run(make_campaign(f"{tmp_path}/own.py:mine", mode=mode), data=data())
        assert_equal_results(own, la.run(make_campaign("flip", mode=mode), data=data()))


def test_acquisition_given_in_python_queries_like_builtin():
    own = make_lookahead_strategy("mine", "a test", acquisition=flip)
    assert_equal_results(
        la.run(make_campaign(own), data=data()), la.run(make_campaign("flip"), data=data())
    )


def make_flip_based_strategy(score):
    """Return a look-ahead strategy whose acquisition function transforms flip's scores."""
    return make_lookahead_strategy(
        "mine", "a test", acquisition=lambda view, rng: score(flip(view, rng))
    )


@pytest.mark.parametrize(
    ("score", "error", "message"),
    [
        (lambda s: s * math.nan, NumericalError, "NaN or infinity for"),
        (lambda s: s + math.inf, NumericalError, "NaN or infinity for"),
        (lambda s: s - math.inf, NumericalError, "mine scored .*expected 4 numbers"),
        (lambda s: s.tolist(), InputError, "returned a list; expected a tensor"),
        (lambda s: s.numpy(), InputError, "returned a ndarray; expected a tensor"),
        (lambda s: s[:, None], InputError, "one score per candidate"),
    ],
)
def test_acquisition_without_scores_raises(score, error, message, tmp_path):
    with pytest.raises(error, match=message):
        la.run(make_campaign(make_flip_based_strategy(score)), data=data(), out=tmp_path / "run")


def test_minus_infinity_excludes_and_gradients_are_detached():
    def exclude_first(scores):
        scores[:30] = -math.inf
        return scores.requires_grad_()

    assert (
        len(la.run(make_campaign(make_flip_based_strategy(exclude_first)), data=data()).pool) == 14
    )
