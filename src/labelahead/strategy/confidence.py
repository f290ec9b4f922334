"""Cheap yardsticks: random choice, and how unsure the network is."""

import torch
from torch import Tensor

from labelahead.acquisition.probability import entropy as entropy_of
from labelahead.acquisition.probability import probabilities
from labelahead.errors import InputError
from labelahead.situation import Situation
from labelahead.strategy.member import Ask, Picks, Strategy, scored

__all__ = ["CONFIDENCE", "class_probabilities", "entropy", "least_confidence", "margin"]


def _random(s: Situation, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> Picks:
    order = torch.randperm(len(s.candidates), generator=rng)[:q]
    return Picks(s.candidates[order], torch.zeros(q, dtype=torch.float64))


def class_probabilities(s: Situation) -> Tensor:
    """(m, C): softmax after cross-entropy, projection onto the simplex after squared loss."""
    method = "softmax" if s.loss == "cross-entropy" else "simplex"
    return probabilities(s.candidate_outputs.double(), method)


def entropy(s: Situation, rng: torch.Generator) -> Tensor:
    """(m,) −Σ p log p."""
    return entropy_of(class_probabilities(s))


def least_confidence(s: Situation, rng: torch.Generator) -> Tensor:
    """(m,) −max p."""
    return -class_probabilities(s).amax(1)


def margin(s: Situation, rng: torch.Generator) -> Tensor:
    """Negative gap of the top two; of raw outputs after squared loss: probabilities saturate."""
    p = class_probabilities(s) if s.loss == "cross-entropy" else s.candidate_outputs.double()
    if p.shape[1] < 2:
        raise InputError("the network has one output; expected two or more: margin compares two")
    first, second = p.topk(2, dim=1).values.unbind(1)
    return second - first


CONFIDENCE = (
    Strategy(
        "margin",
        "cheap, no kernel: the two likeliest classes nearly tie; large batches repeat themselves",
        "Scheffer, Decomain & Wrobel 2001, Active Hidden Markov Models",
        scored(margin),
    ),
    Strategy(
        "entropy",
        "cheap, no kernel: the most undecided predictions; weak with many classes or outliers",
        "Shannon 1948; Settles 2009, Active Learning Literature Survey",
        scored(entropy),
    ),
    Strategy(
        "least-confidence",
        "cheap, no kernel: the likeliest class has the least support",
        "Lewis & Gale 1994, A Sequential Algorithm for Training Text Classifiers",
        scored(least_confidence),
    ),
    Strategy("random", "the yardstick, and unbiased: use it for a test set", "—", _random),
)
