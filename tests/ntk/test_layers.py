"""Fast image layers and convolution gradients by memory offsets against torch's own."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import labelahead as la
from labelahead.ntk.layers import FastLayers
from tests.support.reference_tangent import jacobian, kernels, relative

pytestmark = pytest.mark.usefixtures("float64")
F = nn.functional


def pulled(run, x, g):
    """A layer's numbers and the gradient by its input."""
    x = x.clone().requires_grad_()
    out = run(x)
    return out.detach(), torch.autograd.grad(out, x, g(out))[0], out


@pytest.mark.parametrize(
    ("size", "stride", "dilation", "shape"),
    [
        (2, None, 1, (3, 4, 8, 8)),
        (2, 2, 1, (2, 3, 9, 7)),
        (3, 2, 1, (2, 3, 11, 12)),
        (3, 1, 2, (2, 2, 9, 10)),
        ((2, 3), (3, 1), (2, 1), (2, 2, 9, 10)),
        ((1, 2), (1, 2), 1, (2, 2, 5, 6)),
        ((3, 1), 1, 1, (2, 2, 5, 6)),
        (1, 2, 1, (2, 2, 5, 6)),
        (3, 3, 1, (2, 1, 6, 300)),  # places in the window beyond a byte
        (2, 2, (1, 254), (2, 1, 4, 256)),  # up to the last that one holds
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_fast_max_pool_equals_torch(size, stride, dilation, shape, tied):
    torch.manual_seed(0)
    x = torch.randn(shape)
    x = torch.randint(0, 2, shape).to(x) if tied else x  # nearly every window has equal numbers

    def run(x):
        return F.max_pool2d(x, size, stride, dilation=dilation)

    def weigh(out):
        return torch.arange(1, out.numel() + 1).to(out).view(out.shape)

    value, back, _ = pulled(run, x, weigh)
    with FastLayers():
        ours, own_back, node = pulled(run, x, weigh)
    assert type(node.grad_fn).__name__ == "FastMaxPoolBackward"
    assert torch.equal(ours, value)
    assert torch.equal(own_back, back)


def test_unsupported_max_pooling_is_left_to_torch():
    x = torch.randn(2, 3, 9, 9)
    cases = [
        lambda: F.max_pool2d(x, 3, 2, padding=1),
        lambda: F.max_pool2d(x, 2, ceil_mode=True),
        lambda: F.max_pool2d(x, 4),
        lambda: F.max_pool2d(x[0], 2),
        lambda: F.max_pool2d(x.mT, 2),
        lambda: F.max_pool2d(x.bfloat16(), 2),
        lambda: F.max_pool2d(x, 2, return_indices=True)[1],
        lambda: torch.max_pool2d(x, 2),
        lambda: torch.func.vmap(lambda t: F.max_pool2d(t[None], 2))(x),
    ]
    for case in cases:
        want = case()
        with FastLayers():
            assert torch.equal(case(), want)
    with FastLayers(), pytest.raises(RuntimeError, match=r"[Oo]utput size is too small"):
        F.max_pool2d(x, 2, dilation=9)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 6), (5, 4, 3, 6), (5, 4, 3, 2, 2), (5, 4, 6, 1)])
def test_fast_batch_norm_equals_torch(shape):
    torch.manual_seed(0)
    x, g = torch.randn(shape), torch.randn(shape)
    weight, bias = (torch.randn(4, requires_grad=True) for _ in range(2))
    mean, var = torch.randn(4), torch.rand(4) + 0.5

    def gradients(x):
        x = x.clone().requires_grad_()
        out = F.batch_norm(x, mean, var, weight, bias, eps=1e-3)
        return [out.detach(), *torch.autograd.grad(out, (x, weight, bias), g.view(x.shape))]

    want = gradients(
        x.flatten(2) if x.ndim > 2 else x
    )  # torch's own is wrong for images one pixel wide
    with FastLayers():
        ours = gradients(x)
    for a, b in zip(ours, want, strict=True):
        assert relative(a, b.view(a.shape)) < 1e-13


def test_unsupported_batch_norm_is_left_to_torch():
    x, mean, var = torch.randn(5, 4, 3, 1), torch.randn(4), torch.rand(4) + 0.5
    for given in (x, x.bfloat16()):
        want = (
            F.batch_norm(given, mean.float(), var.float())
            if given is not x
            else F.batch_norm(given, mean, var)
        )
        with FastLayers():
            ours = (
                F.batch_norm(given, mean.float(), var.float())
                if given is not x
                else F.batch_norm(given, mean, var)
            )
        assert torch.equal(ours, want)


class Small(nn.Module):
    """Pools by a function, normalises in place of a learned scale's own, and shares a BatchNorm."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.free = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = F.max_pool2d(torch.relu_(self.norm(self.first(x))), 2)
        h = F.max_pool2d(torch.tanh(self.norm(self.free(self.second(h)))), 3, 2, 1)
        return self.head(h.mean((2, 3)))


def test_kernel_with_pools_and_norms_equals_jacobian_products():
    torch.manual_seed(0)
    model = Small()
    model.train()(torch.randn(50, 2, 8, 8))
    nn.init.normal_(model.norm.weight)
    model.eval()
    x = torch.randn(6, 2, 8, 8)
    J = jacobian(model, x)
    want = kernels(J, J)
    for kind in want:
        assert relative(la.kernel(model, x, kind=kind, verify=True), want[kind]) < 1e-10
    assert relative(la.kernel(model, x, rules=False), want["pseudo"]) < 1e-10


class WithInputGradient(nn.Module):
    """Returns outputs of a network and their gradient by the input, as energy models do."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            out = self.body(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return torch.cat([out, slope.flatten(1)[:, :3]], 1)


class LastStep(nn.Module):
    """The last output of an LSTM."""

    def __init__(self):
        super().__init__()
        self.steps, self.head = nn.LSTM(5, 7, batch_first=True), nn.Linear(7, 2)

    def forward(self, x):
        return self.head(self.steps(x)[0][:, -1])


BODIES = {
    "rows": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)),
        (6,),
    ),
    "images": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.BatchNorm2d(4), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(16, 2)),
        ),
        (1, 6, 6),
    ),
    "LSTM": (LastStep, (4, 5)),
}


def build_body(name):
    torch.manual_seed(0)
    make, shape = BODIES[name]
    body, x = make(), torch.randn(9, *shape)
    body.train()(torch.randn(50, *shape))
    for m in body.modules():
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(m.weight)
    return body.eval(), x


@pytest.mark.parametrize("options", [{}, {"rules": False}, {"verify": True}])
@pytest.mark.parametrize("name", BODIES)
def test_network_that_differentiates_itself_equals_jacobian_products(name, options):
    body, x = build_body(name)
    model = WithInputGradient(body)
    want = sum_of_products(model, x)
    assert relative(la.kernel(model, x, kind="trace", **options), want) < 1e-12


@pytest.mark.parametrize("name", BODIES)
def test_recomputed_layers_equal_jacobian_products(name):
    """A checkpoint runs layers again in the backward pass."""
    body, x = build_body(name)

    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body

        def forward(self, x):
            return checkpoint(self.body, x, use_reentrant=False)

    model = Recomputed()
    want = sum_of_products(body, x)
    for options in ({}, {"rules": False}, {"verify": True}):
        assert relative(la.kernel(model, x, kind="trace", **options), want) < 1e-12


def sum_of_products(model, x):
    """The trace kernel, by one backward pass per sample and output."""
    rows = []
    for i in range(len(x)):
        out = model(x[i : i + 1])
        grads = [
            torch.autograd.grad(o, list(model.parameters()), retain_graph=True, allow_unused=True)
            for o in out[0]
        ]
        rows.append(
            torch.stack(
                [
                    torch.cat(
                        [
                            (torch.zeros_like(p) if g is None else g).reshape(-1)
                            for g, p in zip(row, model.parameters(), strict=True)
                        ]
                    )
                    for row in grads
                ]
            )
        )
    J = torch.stack(rows)
    return torch.einsum("icp,jcp->ij", J, J) / J.shape[1]
