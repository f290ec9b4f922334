"""Features, sketches, norms and directional products against the Jacobian."""

import pytest
import torch

from labelahead import ntk as tangent
from labelahead.errors import InputError
from labelahead.ntk import norms
from tests.support import architectures
from tests.support.reference_tangent import jacobian, kernels, relative

pytestmark = pytest.mark.usefixtures("float64")
NAMES = sorted(architectures.ARCHITECTURES)


def case(name):
    model, x = architectures.make(name)
    return model, x, jacobian(model, x)


@pytest.mark.parametrize("name", NAMES)
def test_norms_and_inner_products_equal_jacobian(name):
    model, x, J = case(name)
    torch.manual_seed(1)
    cotangents = torch.randn(J.shape[:2])
    gradients = torch.einsum("nc,ncp->np", cotangents, J)
    direction = {k: torch.randn_like(p) for k, p in model.named_parameters() if p.requires_grad}
    flat = torch.cat([v.flatten() for v in direction.values()])
    norms = tangent.squared_norms(model, x, cotangents)
    assert relative(norms, gradients.square().sum(1)) < 1e-9
    products = tangent.inner_products(model, x, cotangents, direction)
    assert relative(products, gradients @ flat) < 1e-9
    both = tangent.norms_and_products(model, x, cotangents, direction)
    assert relative(both[0], gradients.square().sum(1)) < 1e-9
    assert relative(both[1], gradients @ flat) < 1e-9
    assert relative(tangent.directional(model, x, direction), J @ flat) < 1e-9


@pytest.mark.parametrize(("channels", "side"), [(8, 10), (96, 12)])
def test_norms_of_more_gradients_than_buffer_are_exact(channels, side):
    # Eight channels: entries as in the weight; 96: channels last (see factors.py). Both in parts.
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, channels, 1),
        torch.nn.Tanh(),
        torch.nn.Conv2d(channels, 64, 3, padding=1),
        torch.nn.Tanh(),
        torch.nn.AvgPool2d(side),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 3),
    ).eval()
    n = norms.GRADIENT_BUFFER_ENTRIES // (64 * 9 * channels) + 3
    x, cotangents = torch.randn(n, 3, side, side), torch.randn(n, 3)
    direction = {k: torch.randn_like(p) for k, p in model.named_parameters()}
    flat = torch.cat([v.flatten() for v in direction.values()])
    squares, products = tangent.norms_and_products(model, x, cotangents, direction, chunk=n)
    for i in (0, 1, n // 2, n - 2, n - 1):
        loss = (model(x[i : i + 1])[0] * cotangents[i]).sum()
        found = torch.autograd.grad(loss, list(model.parameters()))
        g = torch.cat([v.flatten() for v in found])
        assert relative(squares[i], g.square().sum()) < 1e-9
        assert relative(products[i], g @ flat) < 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_gram_matrix_of_exact_features_equals_kernel(name):
    model, x, J = case(name)
    for kind, want in kernels(J, J).items():
        F = tangent.features(model, x, kind=kind)
        assert relative(F @ F.T, want) < 1e-9, kind


def test_exact_features_are_gradients_in_parameter_order():
    model, x, J = case("odd_convolutions")
    F = tangent.features(model, x, kind="single")
    names = [k for k, _ in model.named_parameters()]
    assert len(names) == 9
    for i in range(len(x)):
        assert torch.allclose(F[i].sort().values, J[i, 0].sort().values)


@pytest.mark.parametrize("kind", ["pseudo", "full", "trace"])
def test_sketch_is_unbiased_with_error_one_over_root_k(kind):
    model, x, J = case("few_positions")
    want = kernels(J, J)[kind]

    def mean_error(k, seeds):
        total = torch.zeros_like(want)
        errors = []
        for seed in range(seeds):
            F = tangent.features(model, x, kind=kind, sketch=k, seed=10_000 * seed, verify=False)
            assert F.shape == (want.shape[0], k)
            total += F @ F.T
            errors.append(relative(F @ F.T, want))
        return sum(errors) / seeds, relative(total / seeds, want)

    few, bias_few = mean_error(64, 60)
    many, _ = mean_error(1024, 20)
    assert bias_few < 3 * few / 60**0.5  # the mean over seeds comes to the kernel
    assert 0.15 < many / few < 0.4  # 1/√16 = 0.25


def test_same_seed_gives_same_projection():
    model, x, _ = case("vgg")
    whole = tangent.features(model, x, sketch=32, seed=3)
    parts = [tangent.features(model, part, sketch=32, seed=3) for part in (x[:4], x[4:])]
    assert relative(torch.cat(parts), whole) < 1e-12
    assert relative(tangent.features(model, x, sketch=32, seed=4), whole) > 0.1


def test_fold_projection_equals_definition():
    from labelahead.ntk.sketch import draw_projections

    torch.manual_seed(0)
    for width, k in ((10, 4), (4, 4), (3, 8), (17, 5), (1, 1)):
        (fold,) = draw_projections([width], k, [7], torch.zeros(()))
        v = torch.randn(3, 1, width)
        out = torch.zeros(3, 1, k)
        fold.add(out, v)
        want = torch.zeros(3, 1, k)
        for j in range(width):
            place = (j % k + fold.shifts[j // k]) % k
            want[..., place] += fold.signs[j] * v[..., j]
        assert torch.allclose(out, want)


def test_invalid_sketch_and_direction_raise():
    model, x, _ = case("mlp")
    with pytest.raises(InputError, match="at least one feature"):
        tangent.features(model, x, sketch=0)
    with pytest.raises(InputError, match=r"expected \(n, C\)"):
        tangent.squared_norms(model, x, torch.ones(2, 3))
    with pytest.raises(InputError, match="NaN"):
        tangent.squared_norms(model, x, torch.full((9, 3), torch.nan))
    with pytest.raises(InputError, match="no such parameter"):
        tangent.directional(model, x, {"nothing": torch.ones(3)})
    with pytest.raises(InputError, match="of its shape"):
        tangent.inner_products(model, x, torch.ones(9, 3), {"0.weight": torch.ones(3)})
