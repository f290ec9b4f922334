"""Random tensors, the projection onto the simplex, and a fitted exact learner."""

import torch

from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel


def draw_normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def simplex(f):
    """Project each row onto the simplex by sorting."""
    ordered = f.sort(1, descending=True).values
    shift = (ordered.cumsum(1) - 1) / torch.arange(1, f.shape[1] + 1)
    count = (ordered > shift).sum(1, keepdim=True)
    return (f - shift.gather(1, count - 1)).clamp_min(0)


def fit_exact(x, y, labelled):
    learner = ExactLearner(x, ExactModel(x.flatten(1).mean(0), 3))
    return learner.fit(labelled, y[labelled])
