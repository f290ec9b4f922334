"""Strategies by name: which items to query, given a context.

The examples here begin with

    >>> import torch
    >>> import labelahead as la
    >>> from labelahead.strategies import PYTHON_OBJECT_PREFIX, STRATEGIES
    >>> generator = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> x = torch.randn(30, 4)
    >>> STRATEGIES["random"].when
    'the yardstick, and unbiased: use it for a test set'
    >>> from labelahead.strategies import TASK_STRATEGIES  # of several classes at once, numbers
    >>> TASK_STRATEGIES["gsx"].tasks
    ('number', 'rating')
    >>> PYTHON_OBJECT_PREFIX + "mine"  # how a strategy that was handed over in Python is remembered
    'given:mine'
"""

from collections.abc import Mapping
from types import MappingProxyType

from labelahead.errors import InputError, did_you_mean
from labelahead.models.user_code import import_object
from labelahead.strategies.bandit import ALBL
from labelahead.strategies.base import QueryBatch, Strategy
from labelahead.strategies.baselines import BASELINES
from labelahead.strategies.bayesian import BAYESIAN
from labelahead.strategies.diversity import COVERAGE, DIVERSITY
from labelahead.strategies.dynamical import DYNAMICAL
from labelahead.strategies.fisher import BAIT
from labelahead.strategies.lookahead import LOOK_AHEAD, make_lookahead_strategy
from labelahead.strategies.loss_prediction import LL4AL
from labelahead.strategies.multilabel import MULTILABEL
from labelahead.strategies.regression import REGRESSION
from labelahead.strategies.retraining import NAIVE
from labelahead.strategies.uncertainty import CONFIDENCE, EGL

__all__ = [
    "PYTHON_OBJECT_PREFIX",
    "STRATEGIES",
    "TASK_STRATEGIES",
    "QueryBatch",
    "Strategy",
    "find_strategy",
]

_ALL = (
    *LOOK_AHEAD,
    *CONFIDENCE,
    *DIVERSITY,
    *COVERAGE,
    BAIT,
    *BAYESIAN,
    EGL,
    DYNAMICAL,
    LL4AL,
    ALBL,
    *BASELINES,
    NAIVE,
)
STRATEGIES: Mapping[str, Strategy] = MappingProxyType({s.name: s for s in _ALL})
# Baselines of tasks other than classes (`Task.baselines`).
TASK_STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {s.name: s for s in (*MULTILABEL, *REGRESSION)}
)


PYTHON_OBJECT_PREFIX = "given:"  # prefix of the names of data and strategies given in Python


def find_strategy(strategy: str | Strategy) -> Strategy:
    """Return the strategy of this name, or a user's own.

    "file.py:name" or "module:name" is a `Strategy`, or an acquisition function (view, rng) ->
    scores, which becomes a look-ahead strategy.

    Raises:
        InputError: There is no such strategy; the message suggests one.

    >>> from labelahead.strategies import find_strategy
    >>> find_strategy("flip").modes
    ('sequential', 'greedy', 'top')
    """
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str):
        raise InputError(
            f"strategy is a {type(strategy).__name__}; expected a name, your own as file.py:name, "
            "or a Strategy: "
            "labelahead.strategies.lookahead.make_lookahead_strategy makes one of an acquisition function"
        )
    if strategy in STRATEGIES:
        return STRATEGIES[strategy]
    if strategy in TASK_STRATEGIES:
        return TASK_STRATEGIES[strategy]
    if strategy.startswith(PYTHON_OBJECT_PREFIX):
        raise InputError(
            "this campaign used a strategy given in Python "
            f"({strategy.removeprefix(PYTHON_OBJECT_PREFIX)}): continue with "
            "labelahead.resume(folder, strategy=...)"
        )
    if ":" not in strategy:
        hint = did_you_mean(strategy, (*STRATEGIES, *TASK_STRATEGIES))
        raise InputError(
            f"strategy is {strategy!r}; {hint}expected one of {', '.join(STRATEGIES)}, or your "
            "own as file.py:name"
        )
    first, _, mode = strategy.partition(":")
    if first in STRATEGIES:  # as comparisons write it
        raise InputError(f"strategy is {strategy!r}; expected {first!r}, and {mode!r} as `mode`")
    own = import_object(strategy, "strategy")
    if isinstance(own, Strategy):
        return own
    if callable(own) and not isinstance(own, type):
        about = next(
            iter((own.__doc__ or "").strip().splitlines()), "your own acquisition function"
        )
        return make_lookahead_strategy(strategy.rpartition(":")[2], about, "", own)
    raise InputError(
        f"{strategy!r} is a {type(own).__name__}; expected a labelahead Strategy, or a function "
        "(view, rng) that "
        "scores the candidates"
    )
