"""Networks that violate the engine's assumptions.

They raise, log a warning or take another method, but never give a wrong result silently.
"""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import labelahead as la
from labelahead import ntk as tangent
from labelahead.errors import (
    InputError,
    LabelaheadError,
    ModelError,
    NumericalError,
    VerificationError,
)
from tests.support.architectures import Made
from tests.support.reference_tangent import jacobian, kernels, one_by_one, relative

TOLERANCE = 1e-8


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).eval()


def agrees(model, x, J, tolerance=TOLERANCE, **options):
    """Every product of the engine against a Jacobian (n, C, P)."""
    for kind, want in kernels(J, J).items():
        assert relative(la.kernel(model, x, kind=kind, **options).double(), want) < tolerance, kind
    v = torch.randn(J.shape[:2])
    g = torch.einsum("nc,ncp->np", v, J)
    assert relative(la.ntk.squared_norms(model, x, v), g.square().sum(1)) < tolerance
    direction = {k: torch.randn_like(p) for k, p in model.named_parameters() if p.requires_grad}
    flat = torch.cat([d.flatten() for d in direction.values()])
    assert relative(la.ntk.inner_products(model, x, v, direction), g @ flat) < tolerance
    assert relative(la.features(model, x, kind="single"), J[:, 0]) < tolerance


# 1. Parameters that the graph does not show


class InnerBackward(torch.autograd.Function):
    """A reversible block in small.

    The forward keeps nothing, the backward runs a backward of its own.
    """

    @staticmethod
    def forward(ctx, x, block):
        ctx.block = block
        ctx.save_for_backward(x)
        with torch.no_grad():
            return x + block(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            y = again + ctx.block(again)
        torch.autograd.backward(y, g)
        return again.grad, None


def fresh_input(s, x):
    return s.head(
        torch.tanh(checkpoint(s.a, x.detach().clone().requires_grad_(), use_reentrant=True))
    )


def dummy_tensor(s, x):
    dummy = torch.ones(1, requires_grad=True)
    return s.head(torch.tanh(checkpoint(lambda h, _: s.a(h), x, dummy, use_reentrant=True)))


def after_a_layer(s, x):
    return s.head(torch.tanh(checkpoint(s.a, s.first(x), use_reentrant=True)))


def reversible(s, x):
    return s.head(torch.tanh(InnerBackward.apply(x.detach().requires_grad_(), s.a)))


def seen_and_hidden(s, x):
    return s.head(torch.tanh(s.a(InnerBackward.apply(x.detach().requires_grad_(), s.a))))


def hook_with_a_backward(s, x):
    inner = s.a(x)
    h = inner.detach().requires_grad_()
    h.register_hook(lambda g: inner.backward(g))
    return s.head(torch.tanh(h))


HIDING = (
    fresh_input,
    dummy_tensor,
    after_a_layer,
    reversible,
    seen_and_hidden,
    hook_with_a_backward,
)


def accumulated(model, x):
    """(n, C, P): what `.grad` holds after a backward of each output of each sample."""
    params = list(model.parameters())
    rows = []
    for i in range(len(x)):
        for c in range(model(x[:1]).shape[1]):
            model.zero_grad()
            model(x[i : i + 1])[0, c].backward()
            rows.append(
                torch.cat(
                    [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params]
                )
            )
    model.zero_grad()
    return torch.stack(rows).view(len(x), -1, rows[0].numel())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("forward", HIDING, ids=lambda f: f.__name__)
@pytest.mark.parametrize("rules", [True, False])
def test_parameters_behind_inner_backward_are_included(forward, rules):
    torch.manual_seed(0)
    parts = {"first": nn.Linear(5, 5)} if forward is after_a_layer else {}
    model, x = Made(forward, a=nn.Linear(5, 5), head=nn.Linear(5, 2), **parts), torch.randn(6, 5)
    J = accumulated(model, x)
    agrees(model, x, J)
    assert relative(la.kernel(model, x, rules=rules), kernels(J, J)["pseudo"]) < TOLERANCE
    assert all(p.grad is None for p in model.parameters())


def test_detached_parameters_are_logged(caplog):
    def forward(s, x):
        with torch.no_grad():
            h = s.body(x)
        return s.head(h)

    model = Made(forward, body=nn.Linear(4, 4), head=nn.Linear(4, 2), unused=nn.Linear(3, 3))
    with caplog.at_level(logging.WARNING, logger="labelahead"):
        K = la.kernel(model, torch.randn(5, 4))
    assert K.isfinite().all()
    (line,) = [r.getMessage() for r in caplog.records]
    assert "body.weight" in line
    assert "unused" not in line


# 2. Samples put in another order by their data, without an index operation


def sorted_by_a_list(s, x):
    order = sorted(range(len(x)), key=lambda i: float(x[i, 0]) > 5)
    y = torch.tanh(s.a(torch.stack([x[i] for i in order])))
    back = [order.index(i) for i in range(len(x))]
    return s.head(torch.stack([y[j] for j in back]))


def in_buckets(s, x):
    order = sorted(range(len(x)), key=lambda i: float(x[i, 0]) > 5)
    y = s.a(torch.cat([x[i : i + 1] for i in order]))
    rows = dict(zip(order, torch.tanh(y).split(1), strict=True))
    return s.head(torch.cat([rows[i] for i in range(len(x))]))


def by_a_product(s, x):
    order = torch.tensor(sorted(range(len(x)), key=lambda i: float(x[i, 0]) > 5))
    P = torch.eye(len(x))[order]
    return s.head(P.T @ torch.tanh(s.a(P @ x)))


def written_in_place(s, x):
    order = sorted(range(len(x)), key=lambda i: float(x[i, 0]) > 5)
    y, out = torch.tanh(s.a(torch.stack([x[i] for i in order]))), torch.zeros(len(x), 4)
    for j, i in enumerate(order):
        out[i] = y[j]
    return s.head(out)


REORDERING = (sorted_by_a_list, in_buckets, by_a_product, written_in_place)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("forward", REORDERING, ids=lambda f: f.__name__)
@pytest.mark.parametrize("first", [3, 9])
def test_reordering_without_index_operations_is_detected(forward, first):
    """The first items tie, so that small batches of them come in order."""
    torch.manual_seed(0)
    model, x = Made(forward, a=nn.Linear(3, 4), head=nn.Linear(4, 2)), torch.randn(14, 3)
    x[first, 0] = x[first + 2, 0] = 9.0
    J = one_by_one(model, x)
    for verify in (False, True):
        agrees(model, x, J, verify=verify)
    assert relative(la.kernel(model, x, chunk=7, verify=False), kernels(J, J)["pseudo"]) < TOLERANCE


def test_gradients_of_different_size_are_not_taken_for_reordering(net):
    """A sample may have a gradient of any size."""
    x = torch.randn(8, 4) * torch.logspace(-12, 3, 8)[:, None]
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False))
    want = kernels(J := jacobian(model.double(), x.double()), J)["pseudo"]
    assert relative(la.kernel(model.float(), x).double(), want) < 1e-5


# 2b. Operations that meet all samples and hooks that are not linear: no rounding error is amplified


def softmax_by_global_maximum(s, x):
    z = s.net(x)
    e = torch.exp(z - z.max())
    return e / e.sum(1, keepdim=True)


def logsumexp_by_global_maximum(s, x):
    z = s.net(x)
    largest = z.max()
    return z - (torch.exp(z - largest).sum(1, keepdim=True).log() + largest)


def normalised_by_global_norm(s, x):
    z = s.net(x)
    size = z.norm().detach() * 0 + z.abs().amax()
    return (z / size) * size


def shifted_by_global_mean(s, x):
    z = s.net(x)
    mean = z.mean(0)
    return torch.tanh((z - mean) + mean)


MEETING = (
    softmax_by_global_maximum,
    logsumexp_by_global_maximum,
    normalised_by_global_norm,
    shifted_by_global_mean,
)


def small_network(forward, seed):
    torch.manual_seed(seed)
    return Made(
        forward, net=nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    ).eval(), torch.randn(24, 5)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("forward", MEETING, ids=lambda f: f.__name__)
def test_kernel_is_exact_when_samples_cancel(forward):
    """The statistic of all samples has no effect on the outputs, but rounding errors flow through
    it.
    """
    for seed in range(12):
        model, x = small_network(forward, seed)
        want = kernels(J := one_by_one(model, x), J)
        for kind in ("single", "trace", "full"):
            for verify in (False, True):
                assert (
                    relative(la.kernel(model, x, kind=kind, verify=verify), want[kind]) < 1e-12
                ), (seed, kind)


@pytest.mark.parametrize(
    ("dtype", "share", "tolerance"), [(torch.float64, 5e-8, 1e-6), (torch.float32, 3e-4, 5e-3)]
)
def test_faint_mixing_has_small_effect(dtype, share, tolerance):
    for seed in range(12):
        model, x = small_network(lambda s, x: (z := s.net(x)) + share * z.max(), seed)
        alone = model.net.double()
        want = kernels(J := one_by_one(alone, x.double()), J)["single"]
        K = la.kernel(model.to(dtype), x.to(dtype), kind="single", verify=False)
        assert relative(K.double(), want) < tolerance, seed


@pytest.mark.usefixtures("float64")
def test_nonlinear_hook_acts_as_in_training():
    def clipped(s, x):
        h = torch.tanh(s.a(x))
        if h.requires_grad:
            h.register_hook(lambda g: torch.where(g.abs() > 1.0, 0.0, g))
        return s.b(h)

    for seed in range(6):
        torch.manual_seed(seed)
        model, x = Made(clipped, a=nn.Linear(5, 7), b=nn.Linear(7, 3)).eval(), torch.randn(24, 5)
        with torch.no_grad():
            model.b.weight *= 3  # so that some gradients are beyond the threshold
        want = kernels(J := one_by_one(model, x), J)["single"]
        assert relative(la.kernel(model, x, kind="single", verify=False), want) < 1e-12


@pytest.mark.usefixtures("float64")
def test_reordering_by_matrix_vector_product_is_detected():
    """A permutation matrix times one output a sample: no product of matrices."""

    def forward(s, x):
        order = torch.tensor(sorted(range(len(x)), key=lambda i: float(x[i, 0]) > 5))
        P = torch.eye(len(x))[order]
        return P.T.mv(torch.tanh(s.a(P @ x))[:, 0])[:, None]

    torch.manual_seed(0)
    model, x = Made(forward, a=nn.Linear(3, 1)), torch.randn(14, 3)
    x[3, 0] = x[5, 0] = 9.0
    want = kernels(J := one_by_one(model, x), J)["single"]
    for chunk in (None, 7):
        assert (
            relative(la.kernel(model, x, kind="single", chunk=chunk, verify=False), want)
            < TOLERANCE
        )


# 3. A pseudo-kernel of nothing


@pytest.mark.parametrize("rules", [True, False])
def test_pseudo_kernel_of_outputs_with_constant_sum_raises(net, rules):
    x = torch.randn(6, 4)
    mirrored = Made(lambda s, x: torch.cat([h := s.net(x), -h], 1), net=net)
    shifted = Made(lambda s, x: s.net(x).softmax(1) + x[:, :3], net=net)
    for model in (nn.Sequential(net, nn.Softmax(1)), mirrored, shifted):
        for single in (model, model.double()):
            given = x.to(next(single.parameters()).dtype)
            with pytest.raises(ModelError, match=r"without the softmax.*kind='trace'"):
                la.kernel(single, given, rules=rules)
            for kind in ("single", "trace", "full"):
                assert la.kernel(single, given, kind=kind, rules=rules).isfinite().all()
        model.float()
    la.kernel(nn.Sequential(net, nn.LogSoftmax(1)), x, rules=rules)
    la.kernel(net, x, rules=rules)


# 4. Hooks of parameters


@pytest.mark.usefixtures("float64")
def test_parameter_hooks_are_ignored_and_logged(net, caplog):
    net, x = net.double(), torch.randn(6, 4)
    want = la.kernel(net, x)
    calls = []
    net[0].weight.register_hook(lambda g: calls.append(1) or g * 3)
    net[2].bias.register_post_accumulate_grad_hook(lambda p: calls.append(2))
    with caplog.at_level(logging.INFO, logger="labelahead"):
        for rules in (True, False):
            assert relative(la.kernel(net, x, rules=rules), want) < TOLERANCE
    assert not calls
    lines = [r.getMessage() for r in caplog.records if "hook" in r.getMessage()]
    assert all("0.weight" in line for line in lines)
    assert len(lines) == 2  # with and without rules
    net(x).sum().backward()
    assert calls == [1, 2] or calls == [2, 1]


# 5. Buffers and other state


def counting(s, x):
    s.calls += 1
    s.seen = s.seen + len(x)
    s.count += 1
    s.names["last"] = len(x)
    return s.head(x)


@pytest.mark.parametrize("rules", [True, False])
def test_buffers_and_counters_are_restored(rules):
    torch.manual_seed(0)
    model, x = Made(counting, head=nn.Linear(4, 2)), torch.randn(6, 4)
    model.register_buffer("calls", torch.zeros(1))
    model.register_buffer("seen", torch.zeros(1))
    model.count, model.names = 0, {}
    seen, names = model.seen, model.names
    la.kernel(model, x, rules=rules)
    assert float(model.calls) == 0.0
    assert model.seen is seen
    assert model.count == 0
    assert model.names is names
    assert names == {}
    with pytest.raises(InputError):
        la.kernel(model, torch.randn(6, 3))
    assert float(model.calls) == 0.0

    def normed(s, x):
        return s.head(
            F.batch_norm(x, s.mean, s.var)
            + 0 * F.batch_norm(x.detach(), s.mean, s.var, training=True)
        )

    model = Made(normed, head=nn.Linear(4, 2))
    model.register_buffer("mean", torch.zeros(4))
    model.register_buffer("var", torch.ones(4))
    with pytest.raises(ModelError):
        la.kernel(model, x + 3)
    assert torch.equal(model.mean, torch.zeros(4))


class Remembering(nn.Module):
    """As LeViT: in eval mode a table is worked out once and kept, graph and all, until train() is
    called.
    """

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(3))
        self.head = nn.Linear(4, 3)
        self.kept = {}

    def train(self, mode=True):
        super().train(mode)
        if mode:
            self.kept = {}
        return self

    def forward(self, x):
        if "table" not in self.kept:
            self.kept["table"] = self.table[torch.tensor([2, 0, 1])]
        return torch.tanh(self.head(x)) * self.kept["table"]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("before", ["nothing", "no_grad", "grad", "backward"])
def test_cached_table_of_earlier_pass_is_recomputed(before):
    torch.manual_seed(0)
    model, x = Remembering().eval(), torch.randn(5, 4)
    J = one_by_one(model.train(), x)
    model.eval()
    if before == "no_grad":
        with torch.no_grad():
            model(x)
    elif before != "nothing":
        out = model(x)
        if before == "backward":
            out.sum().backward()
            model.zero_grad()
    kept = dict(model.kept)
    agrees(model, x, J)
    assert model.kept.keys() == kept.keys()
    assert all(model.kept[k] is v for k, v in kept.items())
    assert not model.training


# 6. Mixed precision and overflow


def test_float32_body_with_float64_head_is_supported():
    torch.manual_seed(0)
    body, head = (
        nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()),
        nn.Linear(256, 2),
    )
    mixed = Made(lambda s, x: s.head(s.body(x).double()), body=body, head=head.double())
    x = torch.randn(20, 64)
    K = la.kernel(mixed, x, verify=True)
    assert K.dtype == torch.float64
    whole = nn.Sequential(*body, head).double()
    assert relative(K, la.kernel(whole, x.double())) < 1e-5


def test_kernel_has_finest_dtype_of_parameters():
    torch.manual_seed(0)
    model = Made(
        lambda s, x: s.head(torch.tanh(s.first(x.bfloat16()).float())),
        first=nn.Linear(6, 16).bfloat16(),
        head=nn.Linear(16, 3),
    )
    x = torch.randn(8, 6).bfloat16().float()
    K = la.kernel(model, x)
    assert K.dtype == torch.float32
    assert la.ntk.squared_norms(model, x, torch.ones(8, 3)).dtype == torch.float32
    J = jacobian(nn.Sequential(model.first, nn.Tanh(), model.head).double(), x.double())
    assert relative(K.double(), kernels(J, J)["pseudo"]) < 2e-2


def test_overflow_raises(net):
    big = nn.Sequential(nn.Linear(4, 3))
    x = torch.randn(5, 4) * 1e25
    calls = [
        lambda: la.kernel(big, x),
        lambda: la.kernel(big, x, rules=False),
        lambda: tangent.gradient_gram(big, x, torch.ones(5, 3)),
        lambda: la.ntk.squared_norms(big, x, torch.ones(5, 3)),
        lambda: tangent.norms_and_products(
            big, x, torch.ones(5, 3), {"0.weight": torch.ones(3, 4)}
        ),
        lambda: la.ntk.inner_products(
            big, x, torch.ones(5, 3), {"0.weight": torch.full((3, 4), 1e25)}
        ),
        lambda: la.ntk.directional(big, x, {"0.weight": torch.full((3, 4), 1e25)}),
    ]
    for call in calls:
        with pytest.raises(NumericalError, match=r"float32.*double"):
            call()


# 7. Where torch itself is wrong


@pytest.mark.usefixtures("float64")
def test_batch_norm_of_one_pixel_wide_images_is_exact():
    """torch 2.13 takes the strides of such an image for another memory format and mixes its
    gradient up.
    """
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    nn.init.normal_(norm.weight)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    parts = {"i": nn.Linear(5, 4), "norm": norm, "o": nn.Linear(24, 2)}
    wide = Made(
        lambda s, x: s.o(torch.tanh(s.norm(s.i(x).mT.unsqueeze(-1)).flatten(1))), **parts
    ).eval()
    plain = nn.BatchNorm1d(4)
    plain.load_state_dict(norm.state_dict())
    right = Made(
        lambda s, x: s.o(torch.tanh(s.norm(s.i(x).mT.contiguous()).flatten(1))),
        **(parts | {"norm": plain}),
    )
    x = torch.randn(7, 6, 5)
    J = jacobian(right.eval(), x)
    agrees(wide, x, J)
    assert relative(la.kernel(wide, x, rules=False), kernels(J, J)["pseudo"]) < TOLERANCE


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0) * 1.3


def test_verify_reports_whose_gradient_is_wrong(net, monkeypatch, caplog):
    from labelahead.ntk import engine, rules

    x = torch.randn(6, 4)
    real = rules.RULES["AddmmBackward0"]

    def wrong(node, site, shape):
        reading = real(node, site, shape)
        return rules.Outer(reading.a * 1.2, reading.transposed) if site.argument == 2 else reading

    with monkeypatch.context() as patch:
        patch.setitem(rules.RULES, "AddmmBackward0", wrong)
        with pytest.raises(VerificationError, match="a defect of labelahead"):
            la.kernel(net, x, verify=True)

    # Rules that are right beside an autograd that is not: the kernel stands, and it is said.
    model = Made(
        lambda s, x: s.head(WrongBackward.apply(torch.tanh(x), s.w)),
        w=torch.ones(4),
        head=nn.Linear(4, 2),
    )
    monkeypatch.setitem(
        rules.RULES,
        "WrongBackwardBackward",
        lambda node, site, shape: (
            rules.Broadcast(node.saved_tensors[0], shape) if site.argument == 1 else None
        ),
    )
    with caplog.at_level(logging.WARNING, logger="labelahead"):
        K = la.kernel(model, x, verify=True)
    right = Made(lambda s, x: s.head(torch.tanh(x) * s.w), w=model.w, head=model.head)
    assert relative(K, la.kernel(right, x)) < 1e-5
    assert any("torch's own gradient of 'w'" in r.getMessage() for r in caplog.records)
    assert engine.should_verify(None)


# Raw errors and wrong advice


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))


class Asserting(nn.Linear):
    def forward(self, x):
        assert x.shape[1] == 7, "seven features wanted"
        return super().forward(x)


class Unfinished(nn.Linear):
    def forward(self, x):
        raise NotImplementedError


class Lacking(nn.Linear):
    def forward(self, x):
        return super().forward(x["pixels"] if isinstance(x, dict) else x.pixels)


@pytest.mark.parametrize(
    ("model", "x", "says"),
    [
        (Tokens(), torch.randint(0, 9, (5, 3)) + 9, r"outside an embedding's table"),
        (Tokens(), torch.rand(5, 3), r"whole numbers.*x.long\(\)"),
        (nn.Linear(3, 2), torch.ones(5, 3, dtype=torch.long), r"x.float\(\)"),
        (Asserting(4, 2), torch.rand(5, 4), "seven features wanted"),
        (Unfinished(4, 2), torch.rand(5, 4), "forward failed"),
        (Lacking(4, 2), torch.rand(5, 4), "forward failed"),
        (nn.Linear(4, 2), torch.rand(5, 4).to_sparse(), r"to_dense\(\)"),
        (nn.Linear(4, 2), torch.rand(5, 4).to_sparse_csr(), r"to_dense\(\)"),
        (nn.Linear(4, 2), torch.nested.nested_tensor([torch.rand(4), torch.rand(4)]), "pad"),
        (nn.Linear(4, 2, device="meta"), torch.rand(5, 4), "no numbers"),
        (nn.Linear(4, 2, device="meta"), torch.rand(5, 4, device="meta"), "no numbers"),
        (nn.ReLU(), torch.rand(5, 4), "no parameters.*quantised"),
    ],
)
def test_forward_errors_are_explained(model, x, says):
    with pytest.raises(LabelaheadError, match=says) as caught:
        la.kernel(model, x)
    if isinstance(model, Tokens):
        assert "x.float()" not in str(caught.value)


def test_directions_accept_names_of_compiled_module(net):
    x, v = torch.randn(6, 4), torch.ones(6, 3)
    want = la.ntk.inner_products(net, x, v, {"0.bias": torch.ones(5)})
    compiled = torch.compile(net)
    assert torch.equal(
        la.ntk.inner_products(compiled, x, v, {"_orig_mod.0.bias": torch.ones(5)}), want
    )
    assert torch.equal(
        tangent.norms_and_products(compiled, x, v, {"_orig_mod.0.bias": torch.ones(5)})[1], want
    )
    assert la.ntk.directional(compiled, x, {"_orig_mod.0.bias": torch.ones(5)}).shape == (6, 3)


def test_fitted_one_hot_outputs_are_not_taken_for_softmax():
    net = nn.Linear(3, 2).double()
    with torch.no_grad():  # outputs are (1, 0) and (0, 1), as squared loss would have them
        net.weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        net.bias.zero_()
    x = torch.eye(3, dtype=torch.float64)[[0, 1, 0, 1]]
    torch.testing.assert_close(
        la.kernel(net, x), x @ x.T + 1
    )  # (PN-2): each logit's own, summed and halved
