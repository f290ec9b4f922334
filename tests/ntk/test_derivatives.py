"""Products with the Jacobian against the Jacobian itself."""

import pytest
import torch
from torch import nn

from labelahead.batching import count_samples
from labelahead.ntk.derivatives import join_direction, pull_back, push_forward
from labelahead.ntk.engine import open_engine
from tests.support import architectures
from tests.support.reference_tangent import jacobian, one_by_one, relative

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("name", ["mlp", "cnn_bn", "transformer", "lstm", "tied_embedding"])
@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_products_equal_those_with_the_jacobian(name, chunk):
    model, x = architectures.make(name)
    chosen = {k: p for k, p in model.named_parameters() if p.requires_grad}
    J = jacobian(model, x)
    n, C, P = J.shape
    cotangents, directions = torch.randn(n, 2, C), torch.randn(3, P)
    with open_engine(model, chosen, x) as engine:
        pulled = pull_back(engine, x, cotangents, chunk=chunk)
        pushed = push_forward(engine, x, directions, chunk=chunk)
    assert n == count_samples(x)
    assert relative(pulled, torch.einsum("nkc,ncp->kp", cotangents, J)) < 1e-10
    assert pushed is not None
    assert relative(pushed, torch.einsum("ncp,kp->nkc", J, directions)) < 1e-10


class HiddenBackward(torch.autograd.Function):
    """A product whose backward hides a part of itself from its own derivative."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.T, 0.5 * x.T @ g + 0.5 * (x.T @ g).detach()


def test_push_forward_declines_a_backward_that_is_not_its_own_derivative():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 3))

        def forward(self, x):
            return HiddenBackward.apply(torch.tanh(x), self.w)

    torch.manual_seed(0)
    model, x = Product(), torch.randn(5, 4)
    with open_engine(model, {"w": model.w}, x) as engine:
        assert push_forward(engine, x, torch.randn(1, 12)) is None


def test_join_direction_fills_missing_parameters_with_zeros():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    with open_engine(model, dict(model.named_parameters()), x) as engine:
        flat = join_direction(engine, {"bias": torch.tensor([1.0, 2.0, 3.0])})
    assert flat.tolist() == [0.0] * 12 + [1.0, 2.0, 3.0]
    J = one_by_one(model, x)
    assert torch.equal(J @ flat, torch.tensor([1.0, 2.0, 3.0]).expand(5, 3))
