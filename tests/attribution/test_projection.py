"""TRAK against its definition with exact gradients."""

import pytest
import torch
from torch import nn

from labelahead.attribution import compute_trak_scores
from labelahead.errors import InputError

pytestmark = pytest.mark.usefixtures("float64")


def build(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).eval()


def margin_gradients(model, x, y):
    """(n, P) gradients of log(p / (1 − p)), and p, by autograd, one item at a time."""
    rows, probabilities = [], []
    for item, label in zip(x, y, strict=True):
        p = model(item[None]).softmax(1)[0, label]
        grads = torch.autograd.grad((p / (1 - p)).log(), list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
        probabilities.append(p.detach())
    return torch.stack(rows), torch.stack(probabilities)


def test_scores_with_a_lossless_projection_equal_the_definition():
    """With as many numbers as parameters, the projection is orthogonal: scores do not change."""
    torch.manual_seed(0)
    x, y, x2, y2 = torch.randn(40, 4), torch.arange(40) % 3, torch.randn(5, 4), torch.arange(5) % 3
    networks = [build(seed) for seed in range(2)]
    total, weight = torch.zeros(5, 40), torch.zeros(40)
    for model in networks:
        own, p = margin_gradients(model, x, y)
        other, _ = margin_gradients(model, x2, y2)
        # The projection of each parameter alone, added up, is not lossless; so compare with it.
        total += other @ torch.linalg.pinv(own.T @ own) @ own.T / 2
        weight += (1 - p) / 2
    found = compute_trak_scores(networks, x, y, x2, y2, sketch=400)
    agreement = torch.corrcoef(torch.stack([found.flatten(), (total * weight).flatten()]))[0, 1]
    assert found.shape == (5, 40)
    assert float(agreement) > 0.99


def test_invalid_arguments_raise():
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    with pytest.raises(InputError, match="one class per item"):
        compute_trak_scores(build(0), x, y[:3], x, y, sketch=4)
    with pytest.raises(InputError, match="no network"):
        compute_trak_scores([], x, y, x, y)
