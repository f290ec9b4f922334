"""Token positions, lookup tables and data-dependent batches against explicit Jacobians."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import labelahead as la
from labelahead.errors import ModelError
from labelahead.ntk import norms_and_products, plan
from tests.support.reference_tangent import jacobian, kernels, one_by_one, relative

KINDS = ("full", "pseudo", "single", "trace")


class ReadOff(nn.Module):
    """One layer of attention over tokens.

    What is read off at the end is up to `weights`, from the samples.
    """

    def __init__(self, weights):
        super().__init__()
        self.weights = weights
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
        self.up, self.down, self.norm, self.head = (
            nn.Linear(4, 9),
            nn.Linear(9, 4),
            nn.LayerNorm(4),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT
        h = x + scores.softmax(-1) @ self.v(x)
        h = h + self.down(torch.tanh(self.up(self.norm(h))))
        return self.head((h * self.weights(x)[..., None]).sum(1))


def first_token(x):
    return torch.eye(x.shape[1], dtype=x.dtype)[0].expand(len(x), -1)


def largest_token(x):
    return (x[..., 0] == x[..., 0].amax(1, keepdim=True)).to(x)


def positive_tokens(x):
    return (x[..., 0] > 0).to(x)


def samples(positive):
    """Eight of six tokens each; the first entry of so many tokens is positive."""
    x = torch.randn(8, 6, 4, dtype=torch.float64)
    x[..., 0] = -x[..., 0].abs()
    for i, count in enumerate(positive):
        x[i, torch.randperm(6)[:count], 0] *= -1
    return x


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


def test_single_position_plan_is_replaced_when_positions_spread():
    torch.manual_seed(0)
    model = ReadOff(positive_tokens).double()
    la.kernel(model, samples([1] * 8))
    assert plan._plan_cache[model].plan.single_position_sites
    la.kernel(model, samples([1, 1, 1, 1, 1, 1, 1, 4]))
    now = plan._plan_cache[model].plan
    assert not now.single_position_sites
    assert not now.fallback  # still by rules


class Tables(nn.Module):
    """Biases of positions relative to each other, looked up in a table."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.table = nn.Parameter(torch.randn(7, 2))
        self.other = nn.Embedding(7, 2, padding_idx=3)
        self.q, self.k, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        index = torch.arange(4)[:, None] - torch.arange(4)[None] + 3
        if self.way == "index":
            bias = self.table[index].permute(2, 0, 1)
        elif self.way == "from the end":
            bias = self.table[(index - 7).view(-1)].view(4, 4, 2).permute(2, 0, 1)
        elif self.way == "embedding":
            bias = self.other(index).permute(2, 0, 1)
        elif self.way == "looked up twice":
            bias = (self.table[index] + self.table[index.T]).permute(2, 0, 1)
        elif self.way == "looked up in a product":
            bias = (torch.sigmoid(self.table)[index] * self.table[0]).permute(2, 0, 1)
        else:  # as a whole as well
            bias = self.table[index].permute(2, 0, 1) + self.table.sum()
        q, k = (layer(x).view(len(x), 4, 2, 2).transpose(1, 2) for layer in (self.q, self.k))
        for _ in range(2):
            q = (q @ k.mT + bias).softmax(-1) @ k
        return self.head(q.transpose(1, 2).reshape(len(x), 4, 4).mean(1))


WAYS = [
    "index",
    "from the end",
    "embedding",
    "looked up twice",
    "looked up in a product",
    "as a whole as well",
]


@pytest.mark.parametrize("way", WAYS)
def test_lookup_tables_equal_jacobian_products(way):
    torch.manual_seed(0)
    model, x = Tables(way).double(), torch.randn(5, 4, 4, dtype=torch.float64)
    J = one_by_one(model, x)
    for kind in KINDS:
        assert relative(la.kernel(model, x, kind=kind), kernels(J, J)[kind]) < 1e-10
    v = la.features(model, x, kind="single", params=["table" if way != "embedding" else "other"])
    size = model.table.numel()
    place = slice(0, size) if way != "embedding" else slice(size, 2 * size)
    assert relative(v, J[:, 0, place]) < 1e-10


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


class Hidden(torch.autograd.Function):
    """Uses a layer that it was not given, and trains it in its backward."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.save_for_backward(x)
        ctx.layer = layer
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            torch.autograd.backward(ctx.layer(x), g)
        return x.grad, None


class Nasty(nn.Module):
    """Ways to keep a parameter out of sight."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        if how == "tied":
            self.c.weight = nn.Parameter(self.b.weight.detach()[:3].clone())

    def forward(self, x):
        h = torch.tanh(self.a(x))
        if self.how == "hidden":
            return self.c(Hidden.apply(h, self.b))
        if self.how == "hidden twice":
            return self.c(Hidden.apply(torch.tanh(Hidden.apply(h, self.b)), self.b))
        if self.how == "nested":
            inner = lambda t: torch.tanh(checkpoint(self.b, t, use_reentrant=True))  # noqa: E731
            return self.c(checkpoint(inner, h, use_reentrant=True))
        if self.how == "beside":  # once in sight and once not
            return self.c(self.b(h) + checkpoint(self.b, h, use_reentrant=True))
        if self.how == "views":
            w = self.b.weight
            return (
                nn.functional.linear(h, w[:3])
                + nn.functional.linear(h, w.flip(0)[:3])
                + (h @ w.T)[:, 2:]
            )
        return nn.functional.linear(self.b(h), self.b.weight[:3]) + self.c(h)


@pytest.mark.parametrize("how", ["hidden", "hidden twice", "nested", "beside", "views", "tied"])
@pytest.mark.filterwarnings("ignore")
def test_parameters_outside_graph_are_included(how):
    torch.manual_seed(0)
    model, x = Nasty(how).double(), torch.randn(6, 4, dtype=torch.float64)
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        (model(x[i : i + 1]).sum() / 3**0.5).backward()
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
                    for p in model.parameters()
                ]
            )
        )
    J = torch.stack(rows)
    for _ in range(2):
        assert relative(la.kernel(model, x), J @ J.T) < 1e-10


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
