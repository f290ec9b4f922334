"""The look-ahead family: what would this label change?"""

import torch

from labelahead.acquisition import Acquisition
from labelahead.strategies.base import Ask, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext

__all__ = ["LOOK_AHEAD", "MODES", "PAPER", "by_look_ahead"]

MODES = ("sequential", "greedy", "top")  # the default first
PAPER = "Mohamadi, Bae & Sutherland 2022, Making Look-Ahead Active Learning Feasible with NTKs"


def by_look_ahead(
    name: str, when: str, paper: str = PAPER, criterion: str | Acquisition | None = None
) -> Strategy:
    """A strategy that scores by the view, in any mode.

    criterion: a name or a function; default: as the strategy.
    """

    def pick(
        s: QueryContext, q: int, rng: torch.Generator, mode: str, ask: Ask | None
    ) -> QueryBatch:
        belief = s.belief
        with s.timed("score"):
            return QueryBatch(
                *belief.pick(strategy.criterion_after(belief.labels.values()), q, rng, mode, ask)
            )

    strategy = Strategy(name, when, paper, pick, MODES, criterion=criterion or name)
    return strategy


LOOK_AHEAD = (
    by_look_ahead(
        "flip",
        "the default: asks where one answer would settle most undecided predictions",
        "labelahead; expected reduction of top-2 flips under the NTK posterior (docs/method.md)",
    ),
    by_look_ahead(
        "resolve",
        "pretrained features, few labels or none: the label that is expected to right most "
        "predictions",
        "labelahead; expected fall of the 0/1 error under the posterior (docs/method.md); after "
        "Zhao, Dougherty, Yoon, "
        "Alexander & Qian 2021, Efficient Active Learning for Gaussian Process Classification by "
        "Error Reduction",
    ),
    by_look_ahead(
        "variance",
        "few labels and no trust in the network's opinions yet: covers the pool",
        "Cohn, Ghahramani & Jordan 1996, Active Learning with Statistical Models",
    ),
    by_look_ahead(
        "mlmoc", "the look-ahead paper's own choice: the label that would change predictions most"
    ),
    by_look_ahead(
        "changes",
        "as mlmoc, counting the predictions that would change: what the look-ahead paper's "
        "program ranks by",
    ),
    by_look_ahead(
        "emoc",
        "as mlmoc, averaged over the labels the item might have: when classes are confusable",
        "Freytag, Rodner & Denzler 2014, Selecting Influential Examples: EMOC",
    ),
    by_look_ahead(
        "eer",
        "expected error reduction: when probabilities can be trusted and time is plenty",
        "Roy & McCallum 2001, Toward Optimal Active Learning through Sampling Estimation",
    ),
)
