"""Strategies that score each item alone, against autograd."""

import math

import pytest
import torch
from torch import nn

from labelahead.seeds import make_generator
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.context import QueryContext
from labelahead.strategies.uncertainty import expected_gradient_length
from tests.support.campaigns import blobs, labelled_pool, own


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_expected_gradient_length_matches_autograd(loss):
    x, y = blobs(10)
    model, x = own().double(), x.double()
    now = QueryContext.from_pool(
        model.eval(), x, labelled_pool(y, 3), QueryConfig("egl"), loss=loss
    )
    found = expected_gradient_length(now, make_generator(0, "x"))
    for i, position in enumerate(now.candidates.tolist()):
        out = model(x[[position]])[0]
        p = torch.softmax(out, 0) if loss == "cross-entropy" else _simplex(out)
        want = 0.0
        for label in range(3):
            if loss == "cross-entropy":
                value = nn.functional.cross_entropy(out[None], torch.tensor([label]))
            else:
                value = 0.5 * (out - torch.eye(3, dtype=out.dtype)[label]).square().sum()
            grads = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
            want += float(p[label].detach()) * math.sqrt(
                sum(float(g.square().sum()) for g in grads)
            )
        assert math.isclose(float(found[i]), want, rel_tol=2e-3)


def _simplex(v):
    from labelahead.acquisition.probability import simplex

    return simplex(v.detach())
