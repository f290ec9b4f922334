"""The look-ahead family: what would this label change?"""

from collections.abc import Callable

import torch

from labelahead import select
from labelahead.acquisition import Acquisition, View
from labelahead.situation import Situation
from labelahead.strategy.member import Ask, Picks, Strategy

__all__ = ["LOOK_AHEAD", "MODES", "PAPER", "batch"]

MODES = ("sequential", "greedy", "top")  # the default first
# Criteria that need no hypothetical label: a batch is conditioned on f_lin itself, so that the
# predictions stay and only the covariance falls.
_LABEL_FREE = ("flip", "variance")


def batch(
    view: View,
    name: str | Acquisition,
    q: int,
    rng: torch.Generator,
    mode: str,
    ask: Ask | None = None,
) -> select.Selection:
    """q candidates of a view by a look-ahead criterion; `ask` takes positions along the view."""
    if mode == "top":
        return select.top(view, name, q, rng)
    if mode == "sequential" and ask is not None:
        return select.sequential(view, name, q, ask, rng)
    believe = "mean" if name in _LABEL_FREE else "linearised"
    return select.greedy(view, name, q, rng, believe=believe)


def _look_ahead(name: str) -> Callable[..., Picks]:
    """Score by the view, in any mode."""

    def pick(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
        view, here = s.view, s.points.tolist()
        answer = None if ask is None else lambda i: ask(here[i])
        with s.timed("score"):
            found = batch(view, name, q, rng, mode, answer)
        return Picks(s.at(found.positions), found.scores.cpu())

    return pick


PAPER = "Mohamadi, Bae & Sutherland 2022, Making Look-Ahead Active Learning Feasible with NTKs"


def _ntk(name: str, when: str, paper: str = PAPER) -> Strategy:
    return Strategy(name, when, paper, _look_ahead(name), MODES, look_ahead=True)


LOOK_AHEAD = (
    _ntk(
        "flip",
        "the default: asks where one answer would settle most undecided predictions",
        "labelahead; expected reduction of top-2 flips under the NTK posterior (docs/method.md)",
    ),
    _ntk(
        "variance",
        "few labels and no trust in the network's opinions yet: covers the pool",
        "Cohn, Ghahramani & Jordan 1996, Active Learning with Statistical Models",
    ),
    _ntk(
        "mlmoc",
        "the look-ahead paper's own choice: the label that would change predictions most",
    ),
    _ntk(
        "emoc",
        "as mlmoc, averaged over the labels the item might have: when classes are confusable",
        "Freytag, Rodner & Denzler 2014, Selecting Influential Examples: EMOC",
    ),
    _ntk(
        "eer",
        "expected error reduction: when probabilities can be trusted and time is plenty",
        "Roy & McCallum 2001, Toward Optimal Active Learning through Sampling Estimation",
    ),
)
