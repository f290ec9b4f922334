"""Where the samples are in the tensors of a network."""

import pytest
import torch

import labelahead as la
from labelahead.ntk import norms_and_products
from tests.ntk.test_kernels import KINDS, TOLERANCE
from tests.ntk.test_plan import ReadOff, positive_tokens, samples
from tests.support import architectures
from tests.support.reference_tangent import jacobian, kernels, relative

pytestmark = pytest.mark.usefixtures("float64")


def test_equal_samples_do_not_confuse_layout():
    """Constant tokens and equal samples leave the layout open: then it must not be guessed."""
    model = architectures.VideoFrames(True)
    x = torch.randn(4, 1, 2, 5, 5).expand(4, 3, 2, 5, 5).contiguous()
    x[1:] = x[:1]
    x[3] = torch.randn(3, 2, 5, 5)
    J = jacobian(model, x)
    assert relative(la.kernel(model, x), kernels(J, J)["pseudo"]) < TOLERANCE


def test_single_and_duplicate_samples_are_accepted():
    for name in ("mlp", "transformer", "lstm", "resnet"):
        model, x = architectures.make(name)
        J = jacobian(model, x[:1])
        assert relative(la.kernel(model, x[:1]), kernels(J, J)["pseudo"]) < TOLERANCE
        twice = torch.cat([x[:2], x[:2]])
        K = la.kernel(model, twice)
        assert relative(K[:2, 2:], K[:2, :2]) < TOLERANCE


def first_token(x):
    return torch.eye(x.shape[1], dtype=x.dtype)[0].expand(len(x), -1)


def largest_token(x):
    return (x[..., 0] == x[..., 0].amax(1, keepdim=True)).to(x)


@pytest.mark.parametrize("weights", [first_token, largest_token, positive_tokens])
@pytest.mark.parametrize("positive", [[1] * 8, [1, 1, 1, 1, 3, 6, 2, 1], [2, 1, 1, 5, 0, 1, 1, 1]])
def test_gradients_at_one_or_several_tokens_equal_jacobian(weights, positive):
    torch.manual_seed(0)
    model, x = ReadOff(weights).double(), samples(positive)
    J = jacobian(model, x)
    want = kernels(J, J)
    for kind in KINDS:
        assert relative(la.kernel(model, x, kind=kind), want[kind]) < 1e-10
        assert (
            relative(la.kernel(model, x[:4], x[4:], kind=kind), kernels(J[:4], J[4:])[kind]) < 1e-10
        )
        assert relative(la.kernel(model, x, kind=kind, chunk=3), want[kind]) < 1e-10
    v = torch.randn(8, 3, dtype=torch.float64)
    direction = {k: torch.randn_like(p) for k, p in model.named_parameters()}
    g = torch.einsum("nc,ncp->np", v, J)
    squares, products = norms_and_products(model, x, v, direction)
    assert relative(squares, g.square().sum(1)) < 1e-10
    assert relative(products, g @ torch.cat([d.flatten() for d in direction.values()])) < 1e-10
