"""Strategies by name: which items to ask for, given a situation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from labelahead import select
from labelahead.acquisition import View
from labelahead.acquisition.probability import entropy as entropy_of
from labelahead.acquisition.probability import probabilities
from labelahead.errors import InputError
from labelahead.situation import Situation

__all__ = ["STRATEGIES", "Ask", "Picks", "Strategy", "batch", "find"]

Ask = Callable[[int], int]  # position in the data set -> class number
MODES = ("sequential", "greedy", "top")  # of look-ahead, the default first


class Picks(NamedTuple):
    """What was chosen, best first."""

    positions: Tensor  # (q,) distinct positions in the data set
    scores: Tensor  # (q,) each as it was when chosen; larger = label sooner


@dataclass(frozen=True)
class Strategy:
    """One way to choose.

    pick(situation, q, rng, mode, ask): `ask` labels one item at once; only mode "sequential" uses
    it. modes: how a batch can be made, the default first. noise: the relative regulariser it works
    best with.
    """

    name: str
    when: str
    paper: str
    pick: Callable[[Situation, int, torch.Generator, str, Ask | None], Picks]
    modes: tuple[str, ...] = ("top",)
    noise: float = 1e-3
    look_ahead: bool = False

    def mode(self, asked: str | None, *, ask: bool) -> str:
        """The mode to use; sequential without someone to ask becomes greedy."""
        if asked is not None and asked not in self.modes:
            raise InputError(
                f"mode is {asked!r}, but {self.name} works as {' or '.join(self.modes)}: "
                "leave `mode` out or choose one of these"
            )
        mode = asked or self.modes[0]
        return "greedy" if mode == "sequential" and not ask else mode


def find(name: str) -> Strategy:
    """The strategy of that name, or an error that suggests one."""
    if name not in STRATEGIES:
        near = get_close_matches(name, STRATEGIES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"strategy is {name!r}; {hint}expected one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def _random(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
    order = torch.randperm(len(s.candidates), generator=rng)[:q]
    return Picks(s.candidates[order], torch.zeros(q, dtype=torch.float64))


def _scored(score: Callable[[Situation], Tensor]) -> Callable[..., Picks]:
    """A strategy that takes the q largest scores; ties go to the first candidate, a random one."""

    def pick(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
        scores = score(s).double().cpu()
        order = torch.sort(scores, descending=True, stable=True).indices[:q]
        return Picks(s.candidates[order], scores[order])

    return pick


def _probabilities(s: Situation) -> Tensor:
    """(m, C): softmax after cross-entropy, projection onto the simplex after squared loss."""
    method = "softmax" if s.loss == "cross-entropy" else "simplex"
    return probabilities(s.candidate_outputs.double(), method)


def _entropy(s: Situation) -> Tensor:
    return entropy_of(_probabilities(s))


def _least_confidence(s: Situation) -> Tensor:
    return -_probabilities(s).amax(1)


def _margin(s: Situation) -> Tensor:
    """Negative gap of the top two; of raw outputs after squared loss: probabilities saturate."""
    p = _probabilities(s) if s.loss == "cross-entropy" else s.candidate_outputs.double()
    if p.shape[1] < 2:
        raise InputError("the network has one output; expected two or more: margin compares two")
    first, second = p.topk(2, dim=1).values.unbind(1)
    return second - first


# Criteria that need no hypothetical label: a batch is conditioned on f_lin itself, so that the
# predictions stay and only the covariance falls.
_LABEL_FREE = ("flip", "variance")


def batch(
    view: View, name: str, q: int, rng: torch.Generator, mode: str, ask: Ask | None = None
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


LOOK_AHEAD = "Mohamadi, Bae & Sutherland 2022, Making Look-Ahead Active Learning Feasible with NTKs"


def _ntk(name: str, when: str, paper: str = LOOK_AHEAD) -> Strategy:
    return Strategy(name, when, paper, _look_ahead(name), MODES, look_ahead=True)


_ALL = (
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
    Strategy(
        "margin",
        "cheap, no kernel: the two likeliest classes nearly tie; large batches repeat themselves",
        "Scheffer, Decomain & Wrobel 2001, Active Hidden Markov Models",
        _scored(_margin),
    ),
    Strategy(
        "entropy",
        "cheap, no kernel: the most undecided predictions; weak with many classes or outliers",
        "Shannon 1948; Settles 2009, Active Learning Literature Survey",
        _scored(_entropy),
    ),
    Strategy(
        "least-confidence",
        "cheap, no kernel: the likeliest class has the least support",
        "Lewis & Gale 1994, A Sequential Algorithm for Training Text Classifiers",
        _scored(_least_confidence),
    ),
    Strategy("random", "the yardstick, and unbiased: use it for a test set", "—", _random),
)

STRATEGIES: Mapping[str, Strategy] = MappingProxyType({s.name: s for s in _ALL})
