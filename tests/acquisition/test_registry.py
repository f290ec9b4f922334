"""The registry has every acquisition function, and each one scores every candidate."""

import pytest
import torch

from labelahead.acquisition import functions
from labelahead.acquisition.pool_view import view
from labelahead.acquisition.registry import ACQUISITIONS
from labelahead.gp.posterior import prior


def test_registry_names_its_functions():
    assert all(ACQUISITIONS[name] is getattr(functions, name) for name in ACQUISITIONS)


def test_registry_cannot_be_changed():
    with pytest.raises(TypeError):
        ACQUISITIONS["other"] = functions.flip


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_every_function_scores_every_candidate(name):
    rng = torch.Generator().manual_seed(0)
    factor = torch.randn(7, 7, generator=rng, dtype=torch.float64)
    outputs = torch.randn(7, 3, generator=rng, dtype=torch.float64)
    post = prior(outputs, factor @ factor.T, noise=1e-3).condition([0, 1], torch.eye(3)[[0, 1]])
    scores = ACQUISITIONS[name](view(post, [2, 3, 4]), None)
    assert scores.shape == (3,)
    assert bool(torch.isfinite(scores).all())
