"""How much a label would move the weights: expected gradient length."""

import torch
from torch import Tensor

from labelahead.situation import Situation
from labelahead.strategy.confidence import class_probabilities
from labelahead.strategy.member import Strategy, scored
from labelahead.tangent import squared_norms

__all__ = ["GRADIENT", "expected_gradient_length"]

REST = 1e-3  # probability of the classes left out, on average


def expected_gradient_length(s: Situation, rng: torch.Generator) -> Tensor:
    """(m,) Σ_y p(y) ‖∇ loss(x, y)‖² over all weights, without any gradient being built.

    Classes are visited from the likeliest on until next to no probability is left.
    """
    p = class_probabilities(s)
    at = p if s.loss == "cross-entropy" else s.candidate_outputs
    at = at.to(s.candidate_outputs)
    x = s.at_network(s.candidates)
    sure, order = p.sort(dim=1, descending=True)
    total = torch.zeros(len(p), dtype=torch.float64)
    left = torch.ones(len(p), dtype=torch.float64)
    for j in range(p.shape[1]):
        target = torch.zeros_like(at).scatter_(1, order[:, j : j + 1], 1.0)
        total += sure[:, j].cpu() * squared_norms(s.model, x, at - target).double().cpu()
        left -= sure[:, j].cpu()
        if float(left.mean()) < REST:
            break
    return total


GRADIENT = (
    Strategy(
        "egl",
        "expected gradient length: the label that would move the weights most; likes outliers",
        "Settles, Craven & Ray 2007, Multiple-Instance Active Learning",
        scored(expected_gradient_length),
    ),
)
