"""A strategy and a strategy file of a user, and a small campaign."""

import torch

from labelahead.learner.config import parse_campaign
from labelahead.strategies.base import QueryBatch, Strategy

SMALL = {
    "model": {"name": "mlp", "width": 16},
    "training": {"steps": 20},
    "budget": {"initial": 6, "labels": 14, "retrain_every": 4},
    "threads": 1,
}
STRATEGY_FILE = """
from labelahead.acquisition import flip

def mine(view, rng):
    \"\"\"As flip does.\"\"\"
    return flip(view, rng)

def blank(view, rng):
    "  "
    return flip(view, rng)

number = 3
"""


def select_first(context, q, rng, mode, oracle):
    """Select the first candidates; the memory counts the calls."""
    calls = 1 + (context.memory or {"calls": 0})["calls"]
    return QueryBatch(context.candidates[:q], torch.arange(q, 0, -1).double(), {"calls": calls})


FIRST = Strategy("first", "never", "nobody", select_first)


def make_campaign(strategy, **more):
    return parse_campaign({**SMALL, "asking": {"strategy": strategy, **more}})


def assert_equal_results(one, other):
    assert one.pool.labelled.tolist() == other.pool.labelled.tolist()
    assert one.curve == other.curve
