"""Random tensors and clusters, the projection onto the simplex, and a fitted exact learner."""

import torch

from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel


def draw_normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make_clouds(n=40, seed=0, dtype=torch.float64, classes=3, columns=7):
    """Draw rows (n, columns) of one cluster for each class; return them and their classes."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    centres = torch.randn(classes, columns, generator=rng, dtype=dtype)
    return centres[y] + 0.7 * torch.randn(n, columns, generator=rng, dtype=dtype), y


def normalise_rows(x, pool):
    """Centre rows by the mean of the pool and scale each to length 1."""
    rows = x - x[pool].mean(0)
    return rows / rows.norm(dim=1, keepdim=True)


def simplex(f):
    """Project each row onto the simplex by sorting."""
    ordered = f.sort(1, descending=True).values
    shift = (ordered.cumsum(1) - 1) / torch.arange(1, f.shape[1] + 1)
    count = (ordered > shift).sum(1, keepdim=True)
    return (f - shift.gather(1, count - 1)).clamp_min(0)


def fit_exact(x, y, labelled):
    learner = ExactLearner(x, ExactModel(x.flatten(1).mean(0), 3))
    return learner.fit(labelled, y[labelled])
