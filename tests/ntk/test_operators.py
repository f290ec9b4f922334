"""The tangent kernel as a linear operator against the matrix."""

import numpy as np
import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.batching import Samples
from labelahead.errors import InputError, NumericalError
from labelahead.ntk import operator
from tests.ntk.test_kernels import KINDS
from tests.support import architectures
from tests.support.reference_tangent import jacobian, kernels, one_by_one, relative

pytestmark = pytest.mark.usefixtures("float64")


def build(n=12):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.randn(n, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mlp", "cnn_bn", "transformer", "lstm"])
def test_products_equal_those_with_the_kernel(name, kind):
    model, x = architectures.make(name)
    x2 = x[:2]
    J, J2 = jacobian(model, x), jacobian(model, x2)
    square, rectangular = kernels(J, J)[kind], kernels(J, J2)[kind]
    for K, want in (
        (operator(model, x, kind=kind), square),
        (operator(model, x, x2, kind=kind), rectangular),
    ):
        assert K.shape == want.shape
        V = torch.randn(want.shape[1], 18)
        assert relative(K @ V, want @ V) < 1e-10
        assert relative(K @ V[:, 0], want @ V[:, 0]) < 1e-10
        assert relative(K.T @ want, want.T @ want) < 1e-10
    K = operator(model, x, kind=kind)
    assert relative(K.diagonal(), square.diagonal()) < 1e-10
    assert float(K.trace()) == pytest.approx(float(square.trace()), rel=1e-10)


def test_backward_that_cannot_be_differentiated_takes_a_pass_per_output():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.tanh()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * (1 - y * y)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.b(Once.apply(self.a(x)))

    torch.manual_seed(0)
    model, x = Net(), torch.randn(7, 4)
    J = one_by_one(model, x)
    V = torch.randn(21, 2)
    assert relative(operator(model, x, kind="full") @ V, kernels(J, J)["full"] @ V) < 1e-10


def test_part_of_the_parameters_and_samples_that_are_read_when_needed():
    model, x = build()
    want = la.kernel(model, x, params=["2"])
    K = operator(model, Samples(list(x)), params=["2"], chunk=5)
    V = torch.randn(12, 3)
    assert relative(K @ V, want @ V) < 1e-10


def test_scipy_face_has_products_of_both_sides():
    model, x = build()
    want = la.kernel(model, x, x[:5], kind="full").numpy()
    K = operator(model, x, x[:5], kind="full").to_scipy()
    V, U = np.random.default_rng(0).normal(size=(15, 2)), np.ones(36)
    assert K.dtype == np.float64
    np.testing.assert_allclose(K @ V, want @ V, rtol=1e-10)
    np.testing.assert_allclose(K.T @ U, want.T @ U, rtol=1e-10)


@pytest.mark.parametrize("face", ["to_linear_operator", "to_curvlinops"])
def test_faces_of_other_libraries_multiply(face):
    pytest.importorskip(
        {"to_linear_operator": "linear_operator", "to_curvlinops": "curvlinops"}[face]
    )
    model, x = build()
    V = torch.randn(12, 2)
    assert relative(getattr(operator(model, x), face)() @ V, la.kernel(model, x) @ V) < 1e-10


def test_eigenpairs_and_condition_number_equal_those_of_the_matrix():
    model, x = build()
    K = operator(model, x)
    matrix = la.kernel(model, x)
    want = torch.linalg.eigvalsh(matrix).flip(0)
    values, vectors = K.top_eigenpairs(4)
    assert relative(values, want[:4]) < 1e-10
    assert relative(matrix @ vectors, vectors * values) < 1e-8
    assert K.condition_number(0.1) == pytest.approx(float((want[0] + 0.1) / (want[-1] + 0.1)), 1e-3)


def test_log_determinant_is_within_its_error_and_exact_with_all_steps():
    model, x = build(40)
    K = operator(model, x)
    matrix = la.kernel(model, x)
    want = float(torch.logdet(matrix + 0.1 * torch.eye(40)))
    found, error = K.log_determinant(0.1, probes=30, steps=40)
    assert 0 < error < 0.2 * abs(want)
    assert abs(found - want) < 4 * error
    vector = torch.ones(40)  # one probe is exact: compare the quadratic form of the logarithm
    nodes, weights = K._lanczos_quadrature(vector, 40)
    eigenvalues, U = torch.linalg.eigh(matrix)
    form = float(((U.T @ vector) ** 2 * (eigenvalues.clamp(min=0) + 0.1).log()).sum()) / 40
    assert float((weights * np.log(np.maximum(nodes, 0) + 0.1)).sum()) == pytest.approx(form, 1e-8)


@pytest.mark.parametrize("sketch", [0, 60])
def test_solve_equals_the_dense_solution(sketch):
    model, x = build(30)
    K, b = operator(model, x, kind="full"), torch.randn(90, 2)
    matrix = la.kernel(model, x, kind="full")
    want = torch.linalg.solve(matrix + 0.05 * torch.eye(90), b)
    assert relative(K.solve(b, 0.05, tolerance=1e-10, sketch=sketch), want) < 1e-6
    assert relative(K.solve(b[:, 0], 0.05, tolerance=1e-10, sketch=sketch), want[:, 0]) < 1e-6


def test_invalid_arguments_raise():
    model, x = build()
    K = operator(model, x)
    for call, match in (
        (lambda: K @ torch.ones(5), "expected 12 rows"),
        (lambda: K.solve(torch.ones(12), 0.0), "noise is 0.0"),
        (lambda: K.solve(torch.ones(3), 1.0), "expected 12 rows"),
        (lambda: K.top_eigenpairs(12), "expected 1 to 11"),
        (lambda: K.log_determinant(1.0, probes=1), "at least 2"),
        (lambda: operator(model, x, x[:3]).trace(), "leave out x2"),
        (lambda: operator(model, x, kind="all"), "kind"),
    ):
        with pytest.raises(InputError, match=match):
            call()
    wide, many = build(60)
    with pytest.raises(NumericalError, match="conjugate gradients"):  # of rank 67 at most
        operator(wide.float(), many.float(), kind="full").solve(
            torch.ones(180), 1e-9, tolerance=1e-9
        )
