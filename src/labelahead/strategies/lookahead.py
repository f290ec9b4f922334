"""Look-ahead strategies: score an item by what its label would change."""

import torch

from labelahead.acquisition import Acquisition
from labelahead.strategies.base import Oracle, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext
from labelahead.tasks import TASKS

__all__ = ["LOOK_AHEAD", "LOOK_AHEAD_MODES", "LOOK_AHEAD_PAPER", "make_lookahead_strategy"]

LOOK_AHEAD_MODES = ("sequential", "greedy", "top")  # the default first
LOOK_AHEAD_PAPER = (
    "Mohamadi, Bae & Sutherland 2022, Making Look-Ahead Active Learning Feasible with NTKs"
)


def make_lookahead_strategy(
    name: str,
    when: str,
    paper: str = LOOK_AHEAD_PAPER,
    acquisition: str | Acquisition | None = None,
) -> Strategy:
    """Make a strategy from an acquisition function; it supports every mode.

    Args:
        name: Of the strategy.
        when: When to use it, in one sentence.
        paper: Where it was published.
        acquisition: A name or a function (view, rng) -> scores; default: the one called like the
            strategy.
    """

    def select_batch(
        context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
    ) -> QueryBatch:
        pool_posterior = context.pool_posterior
        with context.time_stage("score"):
            return QueryBatch(
                *pool_posterior.select_batch(
                    strategy.choose_acquisition(
                        pool_posterior.labels.values(), context.fitted.task
                    ),
                    q,
                    rng,
                    mode,
                    oracle,
                )
            )

    tasks = None  # a function of a user's own may work for any task
    if acquisition is None:
        tasks = tuple(t for t, task in TASKS.items() if name in task.acquisitions)
    strategy = Strategy(
        name,
        when,
        paper,
        select_batch,
        LOOK_AHEAD_MODES,
        acquisition=acquisition or name,
        tasks=tasks,
    )
    return strategy


LOOK_AHEAD = (
    make_lookahead_strategy(
        "flip",
        "the default: queries where one label would decide most undecided predictions",
        "labelahead; expected reduction of top-2 flips under the NTK posterior (docs/method.md)",
    ),
    make_lookahead_strategy(
        "resolve",
        "pretrained features, few labels or none: the label that is expected to right most "
        "predictions",
        "labelahead; expected fall of the 0/1 error under the posterior (docs/method.md); after "
        "Zhao, Dougherty, Yoon, "
        "Alexander & Qian 2021, Efficient Active Learning for Gaussian Process Classification by "
        "Error Reduction",
    ),
    make_lookahead_strategy(
        "variance",
        "few labels, while predictions are unreliable: covers the pool",
        "Cohn, Ghahramani & Jordan 1996, Active Learning with Statistical Models",
    ),
    make_lookahead_strategy(
        "mlmoc", "the look-ahead paper's own choice: the label that would change predictions most"
    ),
    make_lookahead_strategy(
        "changes",
        "as mlmoc, counting the predictions that would change: what the look-ahead paper's "
        "program ranks by",
    ),
    make_lookahead_strategy(
        "emoc",
        "as mlmoc, averaged over the labels the item might have: when classes are confusable",
        "Freytag, Rodner & Denzler 2014, Selecting Influential Examples: EMOC",
    ),
    make_lookahead_strategy(
        "eer",
        "expected error reduction: when probabilities can be trusted and time is plenty",
        "Roy & McCallum 2001, Toward Optimal Active Learning through Sampling Estimation",
    ),
)
