"""Every kernel kind of every architecture against the full Jacobian, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import labelahead as la
from labelahead.ntk.limits import BufferSizes, use_buffer_sizes
from tests.support import architectures
from tests.support.architectures import Made
from tests.support.reference_tangent import jacobian, kernels, one_by_one, relative

pytestmark = pytest.mark.usefixtures("float64")
KINDS = ("pseudo", "full", "single", "trace")
TOLERANCE = 1e-8


def rows(x, part):
    return tuple(t[part] for t in x) if isinstance(x, tuple) else x[part]


def make_four_rows(name):
    """The time of many small pieces grows with the square of the rows."""
    model, x = architectures.make(name)
    return model, rows(x, slice(0, 4))


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
    model, x = make_four_rows(name)
    J = jacobian(model, x)
    for kind in ("pseudo", "full"):
        want = kernels(J, J)[kind]
        for chunk in (1, 2, 3):
            assert relative(la.kernel(model, x, kind=kind, chunk=chunk), want) < TOLERANCE
        one = la.kernel(model, x, kind=kind, memory=1)  # a sample at a time
        assert relative(one, want) < TOLERANCE
        assert torch.equal(one, one.T)


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
