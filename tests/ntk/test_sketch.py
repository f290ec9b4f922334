"""Features whose products are the kernel, exact or sketched."""

import pytest
import torch

from labelahead import ntk as tangent
from labelahead.errors import InputError
from tests.ntk.test_norms import NAMES, case
from tests.support.reference_tangent import kernels, relative

pytestmark = pytest.mark.usefixtures("float64")


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
