"""Strategies by name: which items to ask for, given a situation."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from labelahead.errors import InputError
from labelahead.strategy.bandit import BANDIT
from labelahead.strategy.bayesian import BAYESIAN
from labelahead.strategy.confidence import CONFIDENCE
from labelahead.strategy.coverage import COVERAGE
from labelahead.strategy.diversity import DIVERSITY
from labelahead.strategy.dynamical import DYNAMICAL
from labelahead.strategy.gradient import GRADIENT
from labelahead.strategy.look_ahead import LOOK_AHEAD, batch
from labelahead.strategy.loss_prediction import LOSS_PREDICTION
from labelahead.strategy.member import Ask, Picks, Strategy
from labelahead.strategy.retraining import RETRAINING
from labelahead.strategy.rivals import RIVALS

__all__ = ["STRATEGIES", "Ask", "Picks", "Strategy", "batch", "find"]

_ALL = (
    *LOOK_AHEAD,
    *CONFIDENCE,
    *DIVERSITY,
    *COVERAGE,
    *BAYESIAN,
    *GRADIENT,
    *DYNAMICAL,
    *LOSS_PREDICTION,
    *BANDIT,
    *RIVALS,
    *RETRAINING,
)
STRATEGIES: Mapping[str, Strategy] = MappingProxyType({s.name: s for s in _ALL})


def find(name: str) -> Strategy:
    """The strategy of that name, or an error that suggests one."""
    if name not in STRATEGIES:
        near = get_close_matches(name, STRATEGIES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"strategy is {name!r}; {hint}expected one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
