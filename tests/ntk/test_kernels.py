"""Every kernel kind of every architecture against the full Jacobian, in float64."""

import logging
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import labelahead as la
from labelahead.ntk import factors, terms
from labelahead.ntk.engine import open_engine
from labelahead.ntk.limits import BufferSizes, use_buffer_sizes
from tests.support import architectures
from tests.support.architectures import Made
from tests.support.reference_tangent import jacobian, kernels, one_by_one, relative

pytestmark = pytest.mark.usefixtures("float64")
KINDS = ("pseudo", "full", "single", "trace")
TOLERANCE = 1e-8


def rows(x, part):
    return tuple(t[part] for t in x) if isinstance(x, tuple) else x[part]


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_kernel_kinds_equal_jacobian_products(name):
    model, x = architectures.make(name)
    J = jacobian(model, x)
    want = kernels(J, J)
    for kind in KINDS:
        K = la.kernel(model, x, kind=kind)
        assert relative(K, want[kind]) < TOLERANCE, kind
        assert torch.equal(K, K.T)


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_cross_kernel_equals_jacobian_products(name):
    model, x = architectures.make(name)
    one, other = rows(x, slice(0, 2)), rows(x, slice(2, None))
    want = kernels(jacobian(model, one), jacobian(model, other))
    for kind in KINDS:
        assert relative(la.kernel(model, one, other, kind=kind), want[kind]) < TOLERANCE, kind


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_kernel_is_independent_of_memory_and_chunk(name):
    model, x = architectures.make(name)
    J = jacobian(model, x)
    for kind in ("pseudo", "full"):
        want = kernels(J, J)[kind]
        for chunk in (1, 2, 3):
            assert relative(la.kernel(model, x, kind=kind, chunk=chunk), want) < TOLERANCE
        one = la.kernel(model, x, kind=kind, memory=1)  # a sample at a time
        assert relative(one, want) < TOLERANCE
        assert torch.equal(one, one.T)


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_kernel_layer_by_layer_captures_samples_once(name, monkeypatch):
    """Where factors fit into memory and gradients do not, samples are captured once."""
    passes = []
    grouped = terms.group_terms

    def one_by_one(plan, every, K, size, room, max_piece_columns):
        found = grouped(plan, every, K, size, 1 << 40)  # would all fit
        passes.append(len(every) if found else 0)
        return [g for t in every for g in grouped(plan, [t], K, size, 1 << 40)] if found else []

    monkeypatch.setattr(sys.modules["labelahead.ntk.kernels"], "group_terms", one_by_one)
    model, x = architectures.make(name)
    J = jacobian(model, x)
    for kind in KINDS:
        found = la.kernel(model, x, kind=kind, memory=1)
        assert relative(found, kernels(J, J)[kind]) < TOLERANCE, kind
        assert torch.equal(found, found.T)
    assert passes


@pytest.mark.parametrize("name", ["mlp", "wide_resnet", "transformer"])
def test_kernel_is_independent_of_piece_size(name):
    model, x = architectures.make(name)
    J = jacobian(model, x)
    for piece in (1, 4000, 100_000):
        for kind in KINDS:
            with use_buffer_sizes(BufferSizes(piece_bytes=piece)):
                square = la.kernel(model, x, kind=kind)
                crossed = la.kernel(model, x[:2], x[1:], kind=kind)
            assert relative(square, kernels(J, J)[kind]) < TOLERANCE, kind
            assert relative(crossed, kernels(J[:2], J[1:])[kind]) < TOLERANCE, kind


def test_group_terms_fit_memory_and_hold_each_term_once():
    model, x = architectures.make("mlp")
    chosen = dict(model.named_parameters())
    with open_engine(model, chosen, x) as engine:
        every = terms.make_terms(engine.plan, chosen, 1, True, 1.0)
        sizes = [terms.count_bytes_per_sample(engine.plan, [t], 1, 8) for t in every]
        for room in (max(sizes), max(sizes) + 1, 2 * max(sizes), sum(sizes)):
            groups = terms.group_terms(engine.plan, every, 1, 8, room)
            assert [t.name for g in groups for t in g] == [t.name for t in every]
            assert all(terms.count_bytes_per_sample(engine.plan, g, 1, 8) <= room for g in groups)
        assert len(groups) == 1
        assert terms.group_terms(engine.plan, every, 1, 8, max(sizes) - 1) == []


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_mixed_forms_equal_jacobian_products(name, monkeypatch):
    """Every other layer in pairs, the others multiplied out: alone in a piece, or beside others."""
    choose, turns = terms._are_pairs_cheaper, []

    def by_turns(f, *sizes):
        turns.append(choose(f, *sizes[:-1], 0.0) and len(turns) % 2 == 1)
        return turns[-1]

    monkeypatch.setattr(terms, "_are_pairs_cheaper", by_turns)
    for apart in (True, False):
        monkeypatch.setattr(terms, "_needs_own_piece", lambda f, *_, apart=apart: apart)
        model, x = architectures.make(name)
        J = jacobian(model, x)
        for chunk in (None, 2):
            for kind in ("pseudo", "full"):
                found = la.kernel(model, x, kind=kind, chunk=chunk)
                assert relative(found, kernels(J, J)[kind]) < TOLERANCE, (kind, chunk)


@pytest.mark.parametrize("form", ["pairs", "dense"])
@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_pairs_and_dense_forms_agree(name, form, monkeypatch):
    """Sizes choose between them; here each is forced, wherever it applies."""
    choose = terms._are_pairs_cheaper

    def forced(f, *sizes):
        applies = choose(f, *sizes[:-1], 0.0)  # without partners the first form always applies
        return applies and form == "pairs"

    monkeypatch.setattr(terms, "_are_pairs_cheaper", forced)
    small = BufferSizes(tile_positions=(4, 16), patch_entries=64)  # many tiles and buffers
    model, x = architectures.make(name)
    J = jacobian(model, x)
    for kind in KINDS:
        with use_buffer_sizes(small):
            found = la.kernel(model, x, kind=kind)
        assert relative(found, kernels(J, J)[kind]) < TOLERANCE, kind


@pytest.mark.parametrize("long_rows", [True, False])
def test_both_patch_orders_agree(long_rows, monkeypatch):
    monkeypatch.setattr(factors, "_has_long_rows", lambda *_: long_rows)
    monkeypatch.setattr(terms, "_are_pairs_cheaper", lambda *_: False)
    for name in ("cnn_bn", "odd_convolutions", "conv1d", "conv3d", "frames_before_samples"):
        model, x = architectures.make(name)
        J = jacobian(model, x)
        for kind in ("pseudo", "full"):
            assert relative(la.kernel(model, x, kind=kind), kernels(J, J)[kind]) < TOLERANCE


@pytest.mark.parametrize("name", ["cnn_bn", "transformer", "tied_embedding", "lstm"])
def test_kernel_without_rules_is_equal(name):
    model, x = architectures.make(name)
    J = jacobian(model, x)
    for kind in ("pseudo", "full"):
        K = la.kernel(model, x, kind=kind, rules=False)
        assert relative(K, kernels(J, J)[kind]) < TOLERANCE


def test_float32_kernel_is_reproducible_bit_for_bit():
    model, x = architectures.make("wide_resnet")
    want = la.kernel(model, x)
    model, x = model.float(), x.float()
    K = la.kernel(model, x)
    assert K.dtype == torch.float32
    assert relative(K.double(), want) < 1e-4
    assert torch.equal(K, la.kernel(model, x))


def test_params_select_by_name_prefix_wildcard_and_predicate():
    model, x = architectures.make("resnet")
    everything = [k for k, _ in model.named_parameters()]
    cases = {
        "5": ["5.weight", "5.bias"],
        "*.bn1.*": [k for k in everything if ".bn1." in k],
        "0.weight": ["0.weight"],
    }
    for given_names, names in cases.items():
        J = jacobian(model, x, names)
        assert relative(la.kernel(model, x, params=[given_names]), kernels(J, J)["pseudo"]) < 1e-8
    J = jacobian(model, x, [k for k in everything if "conv" in k])
    K = la.kernel(model, x, params=lambda name, p: "conv" in name)
    assert relative(K, kernels(J, J)["pseudo"]) < TOLERANCE


def test_frozen_parameters_that_are_named_are_used():
    model, x = architectures.make("mlp")
    model.requires_grad_(False)
    J = jacobian(model, x, ["0.weight"])
    assert relative(la.kernel(model, x, params=["0.weight"]), kernels(J, J)["pseudo"]) < TOLERANCE


def test_compiled_model_is_unwrapped():
    model, x = architectures.make("mlp")
    assert torch.equal(la.kernel(torch.compile(model), x), la.kernel(model, x))


def test_mapping_input_and_logits_output_are_accepted():
    class Out:
        def __init__(self, logits):
            self.logits = logits

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 2)

        def forward(self, *, features):
            return Out(self.net(features))

    model, x = Wrapped(), torch.randn(5, 3)
    K = la.kernel(model, {"features": x})
    assert relative(K, la.kernel(model.net, x)) < TOLERANCE


def test_data_dependent_graph_is_differentiated_per_sample():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return torch.stack([self.a(r) if r[0] > 0 else torch.tanh(self.b(r)) for r in x])

    torch.manual_seed(1)
    model, x = Branching(), torch.randn(9, 3)
    parts = [jacobian(model, x[i : i + 1]) for i in range(9)]
    J = torch.cat(parts)
    assert relative(la.kernel(model, x, chunk=2), kernels(J, J)["pseudo"]) < TOLERANCE


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


def test_fallback_is_logged_once_with_module_name(caplog):
    model, x = architectures.make("transposed_convolution")
    with caplog.at_level(logging.WARNING, logger="labelahead"):
        la.kernel(model, x)
        la.kernel(model, x)
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 1
    assert "ConvTranspose2d" in lines[0]
    assert "0.weight" in lines[0]


def test_supported_layers_need_no_fallback(caplog):
    promised = set(architectures.ARCHITECTURES) - {
        "custom_parameters",
        "bilinear_two_inputs",
        "transposed_convolution",
    }
    with caplog.at_level(logging.WARNING, logger="labelahead"):
        for name in sorted(promised):
            model, x = architectures.make(name)
            la.kernel(model, x)
    assert [r.getMessage() for r in caplog.records] == []


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


@st.composite
def random_networks(draw):
    """A random stack of layers that fits together, on images."""
    torch.manual_seed(draw(st.integers(0, 2**20)))
    channels, size = draw(st.integers(1, 4)), draw(st.integers(4, 7))
    shape = (channels, size, size)
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 4))):
        c, h, w = shape
        # In place only after a layer that does not need its output again: else nobody can train it.
        tame = bool(layers) and isinstance(layers[-1], nn.Conv2d | nn.BatchNorm2d)
        kind = draw(st.sampled_from(["conv", "bn", "gn", "act", "pool", "prelu", "residual"]))
        if kind == "conv":
            groups = draw(st.sampled_from([1, c]))
            out = groups * draw(st.integers(1, 4))
            k, p = draw(st.integers(1, min(3, h, w))), draw(st.integers(0, 1))
            layer = nn.Conv2d(
                c,
                out,
                k,
                stride=draw(st.integers(1, 2)),
                padding=p,
                groups=groups,
                bias=draw(st.booleans()),
                padding_mode=draw(st.sampled_from(["zeros", "circular", "replicate"])),
            )
        elif kind == "residual":
            layer = architectures.Residual(c, draw(st.integers(1, 4)))
        else:
            layer = {
                "bn": lambda c=c: nn.BatchNorm2d(c),
                "gn": lambda c=c: nn.GroupNorm(1, c),
                "act": lambda t=tame: draw(st.sampled_from([nn.GELU(), nn.Tanh(), nn.ReLU(t)])),
                "pool": lambda h=h, w=w: nn.AvgPool2d(min(2, h, w)),
                "prelu": lambda c=c: nn.PReLU(c),
            }[kind]()
        layers.append(layer)
        with torch.no_grad():
            image = torch.zeros(2, channels, size, size)
            shape = tuple(nn.Sequential(*layers).eval()(image).shape[1:])
    flat = shape[0] * shape[1] * shape[2]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, draw(st.integers(1, 4))))
    return net.eval(), torch.randn(draw(st.integers(2, 6)), channels, size, size)


@settings(max_examples=40, deadline=None)
@given(random_networks(), st.sampled_from(KINDS))
def test_kernel_of_random_networks_equals_jacobian_products(network, kind):
    model, x = network
    J = jacobian(model, x)
    assert relative(la.kernel(model, x, kind=kind), kernels(J, J)[kind]) < TOLERANCE


def spectral():
    filtered = lambda s, x: s.out(torch.fft.irfft(torch.fft.rfft(s.i(x)) * s.w, n=8))  # noqa: E731
    return Made(filtered, i=nn.Linear(6, 8), w=torch.randn(5), out=nn.Linear(8, 3)), (7, 6)


def one_bias_for_all():
    f = lambda s, x: torch.tanh(nn.functional.linear(x, s.w, s.b)) @ s.v  # noqa: E731
    return Made(f, w=torch.randn(30, 40), b=torch.randn(1), v=torch.randn(30, 3)), (6, 40)


def flattened_scalar():
    f = lambda s, x: s.h((torch.tanh(s.a(x)).reshape(-1) * s.g + s.b).view(len(x), -1))  # noqa: E731
    parts = {"a": nn.Linear(5, 4), "h": nn.Linear(4, 2), "g": torch.tensor(0.7)}
    return Made(f, b=torch.randn(1), **parts), (6, 5)


def repeated_parameter():
    f = lambda s, x: s.h((s.c.repeat(len(x) * 3).view(len(x), 3, 4) + s.a(x)).tanh().flatten(1))  # noqa: E731
    return Made(f, c=torch.randn(4), a=nn.Linear(5, 4), h=nn.Linear(12, 2)), (6, 3, 5)


def upside_down():
    f = lambda s, x: s.o(torch.tanh(s.i(x.flip(0))).flip(0))  # noqa: E731
    return Made(f, i=nn.Linear(5, 4), o=nn.Linear(4, 2)), (6, 5)


def prelu_after_a_fallback():
    net = nn.Sequential(nn.ConvTranspose1d(3, 4, 2), nn.PReLU(), nn.Flatten(), nn.Linear(20, 6))
    return net, (6, 3, 4)


def one_head_reordered():
    def f(s, x):
        order = x[:, 0].argsort()
        other = s.o(torch.tanh(s.i(x[order])))[order.argsort()]
        return torch.cat([s.a(x), other], 1)

    return Made(f, a=nn.Linear(5, 1), i=nn.Linear(5, 4), o=nn.Linear(4, 1)), (9, 5)


def single_value_norm():
    return nn.Sequential(
        nn.Linear(5, 1), nn.Unflatten(1, (1, 1)), nn.GroupNorm(1, 1), nn.Flatten(), nn.Linear(1, 2)
    ), (6, 5)


TRAPS = (
    spectral,
    one_bias_for_all,
    flattened_scalar,
    repeated_parameter,
    upside_down,
    prelu_after_a_fallback,
    one_head_reordered,
    single_value_norm,
)


@pytest.mark.parametrize("make", TRAPS, ids=lambda f: f.__name__)
def test_unusual_networks_equal_jacobian_products(make):
    """Networks that an adversarial review found wrong once."""
    torch.manual_seed(3)
    model, shape = make()
    model, x = model.eval(), torch.randn(shape)
    J = one_by_one(model, x)
    for kind, want in kernels(J, J).items():
        for rules in (True, False):
            K = la.kernel(model, x, kind=kind, rules=rules, verify=False)
            assert relative(K, want) < TOLERANCE, (kind, rules)
    v = torch.randn(J.shape[:2])
    gradients = torch.einsum("nc,ncp->np", v, J)
    assert relative(la.ntk.squared_norms(model, x, v), gradients.square().sum(1)) < TOLERANCE
    direction = {k: torch.randn_like(p) for k, p in model.named_parameters()}
    flat = torch.cat([d.flatten() for d in direction.values()])
    assert relative(la.ntk.inner_products(model, x, v, direction), gradients @ flat) < TOLERANCE
    assert relative(la.ntk.directional(model, x, direction), J @ flat) < TOLERANCE
    assert relative(la.features(model, x, kind="single"), J[:, 0]) < TOLERANCE


@pytest.mark.parametrize(("big", "small"), [((16, 16), (4, 4)), ((3, 3), (1, 1)), ((9, 8), (6, 7))])
def test_cross_kernel_between_images_of_different_sizes(big, small):
    torch.manual_seed(0)
    for channels in (16, 64):
        model = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(8, 4, 3, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        )
        x, y = torch.randn(7, channels, *big), torch.randn(5, channels, *small)
        want = kernels(jacobian(model, x), jacobian(model, y))
        for kind in KINDS:
            assert relative(la.kernel(model, x, y, kind=kind), want[kind]) < TOLERANCE


def test_cross_kernel_between_texts_of_different_lengths():
    model = Made(lambda s, i: s.o(s.e(i).mean(1)), e=nn.Embedding(50, 30), o=nn.Linear(30, 2))
    x = torch.randint(0, 50, (6, 5))
    for length in (1, 7):
        y = torch.randint(0, 50, (4, length))
        want = kernels(jacobian(model, x), jacobian(model, y))["pseudo"]
        assert relative(la.kernel(model, x, y), want) < TOLERANCE


def test_features_of_batches_are_consistent():
    model = Made(lambda s, x: s.h(torch.tanh(s.a(x)).mean(1)), a=nn.Linear(5, 4), h=nn.Linear(4, 2))
    x = torch.randn(6, 3, 5)
    x[0] = 0  # a blank sample leaves the layout open
    for sketch in (None, 16):
        whole = la.features(model, x, sketch=sketch)
        parts = [la.features(model, x[:1], sketch=sketch), la.features(model, x[1:], sketch=sketch)]
        assert relative(torch.cat(parts), whole) < TOLERANCE


def test_sparse_embeddings_and_mixed_dtypes_are_supported():
    model = Made(
        lambda s, i: s.o(s.e(i).sum(1)), e=nn.Embedding(9, 4, sparse=True), o=nn.Linear(4, 2)
    )
    x = torch.randint(0, 9, (5, 3))
    J = one_by_one(model, x)
    assert relative(la.kernel(model, x, verify=False), kernels(J, J)["pseudo"]) < TOLERANCE
    mixed = Made(lambda s, x: s.b(s.a(x).float()), a=nn.Linear(5, 4), b=nn.Linear(4, 2).float())
    x = torch.randn(6, 5)
    J = torch.cat([one_by_one(mixed, x)], 0)
    assert relative(la.kernel(mixed, x, verify=False).double(), kernels(J, J)["pseudo"]) < 1e-5
