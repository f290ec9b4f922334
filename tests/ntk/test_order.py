"""Networks that reorder or mix samples."""

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.errors import ModelError
from tests.ntk.test_kernels import KINDS, TOLERANCE
from tests.support.reference_tangent import jacobian, kernels, one_by_one, relative

pytestmark = pytest.mark.usefixtures("float64")


def test_data_dependent_order_of_samples_is_detected():
    """Sorted by a key that the probe's samples happen to have in order: only values can tell."""

    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(3, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            order = torch.argsort((x[:, 0] > 5).long(), stable=True)
            h = torch.tanh(self.inside(x[order]))
            return self.head(h[torch.argsort(order)])

    torch.manual_seed(0)
    model, x = Sorted(), torch.randn(8, 3)
    x[3, 0] = x[5, 0] = 9.0
    J = jacobian(model, x)
    for kind in KINDS:
        assert relative(la.kernel(model, x, kind=kind, verify=False), kernels(J, J)[kind]) < 1e-8


def test_data_dependent_routing_is_detected():
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            out = torch.zeros(len(x), 2)
            chosen = x[:, 0] > 1
            out[~chosen] = torch.tanh(self.one(x[~chosen]))
            out[chosen] = self.two(x[chosen])
            return out

    torch.manual_seed(0)
    model, x = Routed(), torch.randn(9, 3).clamp(max=0.9)
    x[4:7, 0] = 2.0
    J = torch.cat([jacobian(model, x[i : i + 1]) for i in range(9)])
    for chunk in (None, 3):
        K = la.kernel(model, x, verify=False, chunk=chunk)
        assert relative(K, kernels(J, J)["pseudo"]) < TOLERANCE


class Sorted(nn.Module):
    """Puts its samples in the order of their data and back, but large batches alone."""

    def __init__(self, how):
        super().__init__()
        self.how, self.a, self.b = how, nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        n = len(x)
        if n <= 4:
            return self.b(torch.tanh(self.a(x)))
        order = x[:, 0].argsort()
        if self.how == "matrix":
            P = torch.eye(n, dtype=x.dtype)[order]
            return P.T @ self.b(torch.tanh(self.a(P @ x)))
        if self.how == "list":
            y = self.b(torch.tanh(self.a(torch.stack([x[i] for i in order.tolist()]))))
            return torch.stack([y[i] for i in order.argsort().tolist()])
        if self.how == "roll":
            return self.b(torch.tanh(self.a(x.roll(1, 0)))).roll(-1, 0)
        out = x.new_empty(n, 3)
        out[order] = self.b(torch.tanh(self.a(x[order])))
        return out


@pytest.mark.parametrize("how", ["matrix", "list", "roll", "written"])
def test_sorting_in_large_batches_is_detected(how):
    torch.manual_seed(0)
    model, x = Sorted(how).double(), torch.randn(9, 4, dtype=torch.float64)
    J = one_by_one(model, x)
    for _ in range(2):
        assert relative(la.kernel(model, x), kernels(J, J)["pseudo"]) < 1e-10


class Moved(torch.autograd.Function):
    """Rows in another order, by a backward of its own."""

    @staticmethod
    def forward(ctx, x, order):
        ctx.order = order
        return x[order]

    @staticmethod
    def backward(ctx, g):
        return g[ctx.order.argsort()], None


def matrix(order):
    return torch.eye(len(order), dtype=torch.float64)[order]


def solved(y, order):
    return torch.linalg.solve(matrix(order.argsort()), y)


def largest(y, order):
    return y.expand(len(y), -1, -1).masked_fill((matrix(order) == 0)[..., None], -1e9).amax(1)


def seen_by_attention(y, order):
    q = torch.zeros_like(y)[None]
    return nn.functional.scaled_dot_product_attention(q, q, y[None], attn_mask=matrix(order) > 0)[0]


MOVING = {
    "index": lambda y, order: y[order],
    "list": lambda y, order: torch.stack([y[i] for i in order.tolist()]),
    "own backward": Moved.apply,
    "table": lambda y, order: nn.functional.embedding(order, y),
    "sparse": lambda y, order: torch.sparse.mm(matrix(order).to_sparse(), y),
    "solve": solved,
    "convolution": lambda y, order: nn.functional.conv1d(y[None], matrix(order)[..., None])[0],
    "masked sum": lambda y, order: (matrix(order)[..., None] * y).sum(1),
    "masked maximum": largest,
    "attention": seen_by_attention,
}


class Bucketed(nn.Module):
    """Samples with a flag go last; `always`, or only in batches that have some out of order."""

    def __init__(self, move, always):
        super().__init__()
        self.move, self.always, self.a, self.b = move, always, nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        order = (x[:, 0] > 5).long().argsort(stable=True)
        if not self.always and torch.equal(order, torch.arange(len(x))):
            return self.b(torch.tanh(self.a(x)))
        return self.move(self.b(torch.tanh(self.a(x[order]))), order.argsort())


@pytest.mark.parametrize("how", MOVING)
@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("flagged", [[8, 11, 12], [2, 5]])
def test_sorting_in_later_batches_is_detected(how, always, flagged):
    """Probe and first batch have all samples in order, or swap two of them alone."""
    torch.manual_seed(0)
    model, x = Bucketed(MOVING[how], always).double(), torch.randn(15, 4, dtype=torch.float64)
    x[flagged, 0] = 9.0
    J = one_by_one(model, x)
    want = kernels(J, J)
    for kind, chunk in (("pseudo", 7), ("full", 8)):
        assert (
            relative(la.kernel(model, x, kind=kind, chunk=chunk, verify=False), want[kind]) < 1e-10
        )
    crossed = la.kernel(model, x[:6], x[6:], verify=False)
    assert relative(crossed, kernels(J[:6], J[6:])["pseudo"]) < 1e-10
    v = torch.randn(15, 3, dtype=torch.float64)
    squares = torch.einsum("nc,ncp->np", v, J).square().sum(1)
    assert relative(la.ntk.squared_norms(model, x, v, chunk=8, verify=False), squares) < 1e-10


def test_mixing_in_large_batches_raises():
    class Meeting(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 3)

        def forward(self, x):
            return self.a(x - x.mean(0) if len(x) > 4 else x - 0.0)

    torch.manual_seed(0)
    with pytest.raises(ModelError, match="other samples"):
        la.kernel(Meeting().double(), torch.randn(9, 4, dtype=torch.float64))
