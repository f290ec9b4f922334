"""The numbers of `python -m research study kernel` against explicit float64 definitions."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from labelahead.errors import InputError
from labelahead.models import build_model
from labelahead.models.training import Training, train
from labelahead.ntk import kernel
from labelahead.seeds import make_generator
from research.studies.kernel import KERNEL, Settings, cells
from research.studies.kernel.figures import slope
from research.studies.kernel.measure import (
    KEPT,
    draw_truncated_weights,
    pn_bound,
    record_weights,
    rows_of,
)
from research.studies.kernel.theorems import layer_kernels, layers, theorems
from research.studies.quality import KINDS, compare_kernels, extreme_eigenvalues, regress
from research.tests.support_figures import study_figures

TINY = Settings(
    seeds=2,
    rate_seeds=2,
    rate_items=4,
    rate_fcn=(8, 16),
    rate_convnet=(4, 6),
    rate_resnet18=(),
    rate_wrn16=(),
    activations=("relu", "erf"),
    bound_items=2,
    bound_widths=(8, 16),
    theorem_items=4,
    theorem_test=3,
    theorem_widths=(16, 32),
    layer_widths=(8, 16),
    layer_depth=2,
    layer_inputs=5,
    layer_outputs=3,
    fcn=(8,),
    convnet=(),
    resnet18=(),
    wrn16=(0.125,),
    items=8,
    test=6,
    checkpoints=(0.0, 0.5, 1.0),
    steps=6,
)


def compute_full_kernel_by_jacobian(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return Θ = J Jᵀ with Jacobians by autograd."""
    weights = dict(model.named_parameters())
    jacobians = torch.func.jacrev(lambda w: torch.func.functional_call(model, w, (x,)))(weights)
    J = torch.cat([j.flatten(2) for j in jacobians.values()], 2).flatten(0, 1)
    return (J @ J.T).detach()


@pytest.fixture(scope="module", params=["fcn", "convnet", "fcn erf"])
def example(request):
    name, *rest = request.param.split()
    shape, more = ((5,), {}) if name == "fcn" else ((1, 4, 4), {"depth": 3})
    more |= {"activation": rest[0]} if rest else {}
    model = build_model(name, shape, 3, width=6, seed=1, **more).double().eval()
    x = torch.randn(7, *shape, generator=make_generator(0, "x"), dtype=torch.float64)
    return model, x, compute_full_kernel_by_jacobian(model, x)


@pytest.mark.parametrize("rows", [None, 1, 3])
def test_compare_kernels_equals_explicit_kernels(example, rows):
    model, x, theta = example
    n, C = len(x), 3
    got = compare_kernels(model, x, rows=rows, keep=True)
    torch.testing.assert_close(got.full, theta, rtol=1e-9, atol=1e-9)
    trace = kernel(model, x, kind="trace")
    for kind in KINDS:
        K = kernel(model, x, kind=kind)
        torch.testing.assert_close(got.kernels[kind], K, rtol=1e-9, atol=1e-9)
        gap = torch.linalg.norm(torch.kron(K, torch.eye(C)) - theta)
        assert got.distances[kind] == pytest.approx(float(gap / theta.norm()), rel=1e-9)
        assert got.errors[kind] == pytest.approx(float(gap / (C**0.5 * trace.norm())), rel=1e-9)
    on = [
        abs(float(theta[i * C + c, j * C + c]))
        for i in range(n)
        for j in range(n)
        for c in range(C)
    ]
    off = [
        abs(float(theta[i * C + c, j * C + d]))
        for i in range(n)
        for j in range(n)
        for c in range(C)
        for d in range(C)
        if c != d
    ]
    assert got.diagonal == pytest.approx(sum(on) / len(on), rel=1e-9)
    assert got.off_diagonal == pytest.approx(sum(off) / len(off), rel=1e-9)
    assert got.norm == pytest.approx(float(theta.norm()), rel=1e-9)


def test_compare_kernels_by_rows_uses_less_memory(example):
    model, x, _ = example
    by_rows = compare_kernels(model, x, rows=2)
    assert by_rows.full is None
    assert by_rows.held == 2 * 7 * 9 * 8
    assert by_rows.distances == pytest.approx(compare_kernels(model, x).distances, rel=1e-9)
    with pytest.raises(InputError, match="rows is 0"):
        compare_kernels(model, x, rows=0)


def test_trace_kernel_has_smallest_error(example):
    model, x, _ = example
    got = compare_kernels(model, x)
    least = got.errors["trace"] ** 2
    for kind in KINDS:  # Pythagoras: the remainder of Θ is orthogonal to every K⊗I
        apart = (got.kernels[kind] - got.kernels["trace"]).norm() / got.kernels["trace"].norm()
        assert got.errors[kind] ** 2 == pytest.approx(least + float(apart) ** 2, rel=1e-9)


def test_spectra_lie_within_full_spectrum(example):
    model, x, theta = example
    full = extreme_eigenvalues(theta)
    for K in compare_kernels(model, x).kernels.values():
        ends = extreme_eigenvalues(K)
        assert ends.largest <= full.largest * (1 + 1e-12)
        assert ends.smallest >= full.smallest - 1e-12 * full.largest


@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_extreme_eigenvalues_equal_known_spectrum(method):
    values = torch.logspace(-5, 2, 60, dtype=torch.float64)
    q, _ = torch.linalg.qr(
        torch.randn(60, 60, generator=make_generator(0, "q"), dtype=torch.float64)
    )
    a = (q * values) @ q.T
    got = extreme_eigenvalues((a + a.T) / 2, method=method)
    assert got.method == method
    assert got.largest == pytest.approx(100, rel=1e-7)
    assert got.smallest == pytest.approx(1e-5, rel=1e-5)
    assert got.condition == pytest.approx(1e7, rel=1e-5)
    low = q[:, :30] @ q[:, :30].T
    assert extreme_eigenvalues(low, method=method).condition is None
    with pytest.raises(InputError, match="expected auto, dense or lanczos"):
        extreme_eigenvalues(a, method="qr")


def test_regress_equals_solve_for_scalar_and_separable_kernel():
    g = make_generator(0, "regression")
    a, left = (torch.randn(6, k, generator=g, dtype=torch.float64) for k in (6, 3))
    cross = torch.randn(4, 6, generator=g, dtype=torch.float64)
    K = a @ a.T
    got, jitter = regress(K, cross, left, 1e-3)
    scale = 1e-3 * K.diagonal().mean()
    want = cross @ torch.linalg.solve(K + scale * torch.eye(6), left)
    torch.testing.assert_close(got, want)
    assert jitter == 0
    eye = torch.eye(3, dtype=torch.float64)
    full, _ = regress(torch.kron(K, eye), torch.kron(cross, eye), left.reshape(-1, 1), 1e-3)
    torch.testing.assert_close(full.reshape(4, 3), want)


def test_gaussian_read_outs_give_documented_error_ratio():
    C, squares = 5, dict.fromkeys(KINDS, 0.0)
    x = torch.randn(3, 4, generator=make_generator(0, "x"), dtype=torch.float64)
    for seed in range(40):
        model = build_model("fcn", (4,), C, width=200, depth=1, seed=seed).double().eval()
        for kind, value in compare_kernels(model, x).errors.items():
            squares[kind] += value**2
    ratio = (squares["trace"] / squares["pseudo"]) ** 0.5
    assert ratio == pytest.approx(((C + 2) / (C + 4)) ** 0.5, abs=0.03)
    assert squares["single"] == pytest.approx(squares["pseudo"], rel=0.15)


def test_error_is_proportional_to_inverse_root_of_width():
    s = replace(TINY, rate_items=5)
    cells_of_rate = [
        {"part": "rate", "network": "fcn", "width": w, "seed": k}
        for w in (64, 128, 256, 512)
        for k in range(4)
    ]
    found = slope([c | rows_of(s, c)[0] for c in cells_of_rate], "error_pseudo")
    assert found.value == pytest.approx(-0.5, abs=0.15)
    assert 0 < found.error < 0.1
    # The slopes of the seeds are −0.4 and −0.6; seeds are independent, rows are not.
    exact = [
        {"seed": k, "width": w, "y": 3 * w ** -(0.4 + k / 5)} for k in (0, 1) for w in (1, 4, 9)
    ]
    assert slope(exact, "y").value == pytest.approx(-0.5)
    assert slope(exact, "y").error == pytest.approx(0.1)
    assert slope(exact[:1], "y") is None


def test_truncated_weights_keep_standard_deviation():
    model = build_model("fcn", (20,), 3, width=100, seed=0)
    before = [m.weight.detach().std() for m in model if isinstance(m, nn.Linear)]
    old = copy.deepcopy(model.state_dict())
    draw_truncated_weights(model, 5)
    for std, layer in zip(before, [m for m in model if isinstance(m, nn.Linear)], strict=True):
        assert layer.weight.abs().max() <= 2 * std / KEPT
        assert float(layer.weight.detach().std()) == pytest.approx(float(std), rel=0.1)
    assert all(bool((old[k] != v).any()) for k, v in model.state_dict().items() if "weight" in k)
    # ∫ z² φ(z) over ±2, over its mass
    phi = math.exp(-2) / math.sqrt(2 * math.pi)
    assert pytest.approx((1 - 4 * phi / math.erf(2**0.5)) ** 0.5, rel=1e-7) == KEPT


def test_pn_bound_equals_formula_and_holds():
    logarithm = math.log(8 * 9 / 0.1)
    assert float(pn_bound(torch.tensor(2.0), 3, 0.1)) == pytest.approx(48 * 2**0.5 * logarithm)
    row = rows_of(TINY, {"part": "bound", "network": "fcn", "width": 16, "seed": 0})[0]
    assert row["violated"] == 0
    assert row["distance"] < row["bound"]
    assert row["scaled"] == pytest.approx(4 * row["relative"])


def test_checkpoints_equal_shorter_runs():
    x = torch.randn(20, 4, generator=make_generator(0, "x"))
    y = torch.arange(20) % 3
    recipe = Training(optimiser="sgd", rate=0.05, schedule="constant", steps=8, batch=7)
    model = build_model("fcn", (4,), 3, width=8, seed=0)
    start = copy.deepcopy(model)
    with record_weights(model, {4, 8}) as states:
        train(model, x, y, 3, recipe, seed=2)
    assert sorted(states) == [0, 4, 8]
    train(start, x, y, 3, replace(recipe, steps=4), seed=2)
    for name, value in start.state_dict().items():
        assert torch.equal(states[4][name], value)


def test_checkpoints_of_diverged_attempt_are_discarded():
    x = torch.randn(20, 4, generator=make_generator(0, "x"))
    y = torch.arange(20) % 3
    recipe = Training(optimiser="sgd", rate=30.0, schedule="constant", steps=40, batch=7)
    model = build_model("fcn", (4,), 3, width=8, seed=0)
    with record_weights(model, {1, 40}) as states:
        done = train(model, x, y, 3, recipe, seed=2)
    assert done.rate < recipe.rate
    again = build_model("fcn", (4,), 3, width=8, seed=0)
    train(again, x, y, 3, replace(recipe, steps=1, rate=done.rate), seed=2)
    for name, value in again.state_dict().items():
        torch.testing.assert_close(states[1][name], value)


def test_training_rows_are_consistent():
    cell = {"part": "training", "network": "fcn", "width": 16, "seed": 0}
    rows = rows_of(TINY, cell)
    assert [r["step"] for r in rows] == [0, 3, 6]
    for row in rows:
        assert row["distance_trace"] <= min(row["distance_pseudo"], row["distance_single"]) + 1e-12
        assert row["largest_gap_pseudo"] == pytest.approx(
            1 - row["largest_pseudo"] / row["largest_full"]
        )
        assert row["rows_of_full"] == TINY.items * 10
        assert row["output_gap_pseudo"] > 0
    assert rows[-1]["residual"] < rows[0]["residual"]


def test_cells_are_complete_and_invalid_settings_raise():
    found = cells(Settings())
    assert {c["network"] for c in found} == {"fcn", "convnet", "resnet18", "wrn16"}
    assert {c.get("variant") for c in found} == {None, "relu", "gelu", "tanh", "erf", "truncated"}
    with pytest.raises(InputError, match="rising parts of the run"):
        Settings(checkpoints=(0.5, 0.0))
    with pytest.raises(InputError, match="each after another step"):
        Settings(steps=1)
    with pytest.raises(InputError, match="items is 0"):
        Settings(items=0)


def test_study_of_all_parts_makes_figures():
    found = study_figures(KERNEL, TINY)
    assert [e.name for e in found] == [
        "rate",
        "variants",
        "bound",
        "theorems",
        "layers",
        "diagonality",
        "distance",
        "spectrum",
        "regression",
        "accuracy",
        "cost",
    ]
    for exhibit in found:
        assert "PN" in exhibit.caption or exhibit.name in ("variants", "layers", "cost")
        assert (exhibit.figure is None) == (exhibit.name == "cost")
    assert found[0].caption.count("of 2 within 0.15 of −1/2") == 2  # our error, and PN's ratio
    assert "chosen after a pilot" in found[0].caption


def test_figures_with_one_width_report_no_slope():
    s = replace(
        TINY,
        parts=("rate", "variants", "bound"),
        rate_seeds=1,
        rate_fcn=(8,),
        rate_convnet=(),
        activations=(),
        bound_widths=(8,),
    )
    rate, variants, bound = study_figures(KERNEL, s)
    assert "none, for there is one width" in rate.caption
    assert rate.table[0]["slope, pseudo"] == "–"
    assert "none, for there is one width" in variants.caption
    assert "Measured slope: –" in bound.caption


def test_layer_kernels_equal_jacobians():
    rng = make_generator(2, "layers")
    weights = [
        torch.randn(b, a, generator=rng, dtype=torch.float64) / a**0.5
        for a, b in ((4, 6), (6, 6), (6, 3))
    ]
    x = torch.randn(2, 4, generator=rng, dtype=torch.float64)
    for number, (theta, square, product) in enumerate(layer_kernels(weights, x), start=1):
        net = nn.Sequential()
        for w in weights[:number]:
            layer = nn.Linear(w.shape[1], w.shape[0], bias=False).double()
            layer.weight.data.copy_(w)
            net.append(layer)
            if w is not weights[-1]:
                net.append(nn.ReLU())
        size = len(theta)
        whole = compute_full_kernel_by_jacobian(net, x).reshape(2, size, 2, size)
        assert torch.allclose(theta, whole[0, :, 1])
        outputs = net(x).detach()
        assert float(square) == pytest.approx(float(outputs[0] @ outputs[0]))
        assert float(product) == pytest.approx(float(outputs[0] @ outputs[1]))


def test_lemmas_and_theorems_hold_for_small_networks():
    cell = {"seed": 0, "network": "fcn"}
    first, *_, last = layers(TINY, {"part": "layers", "width": 16, **cell})
    assert first["off"] == 0 < first["diagonal"] <= 1  # (A.7.5): |x₁·x₂|, of norm 1
    assert last["layer"] == "read-out"
    assert last["distance"] < last["norm"]
    for width in (16, 64):
        (row,) = theorems(TINY, {"part": "theorems", "width": width, **cell})
        assert 0 < row["gap"] <= row["gap_bound"]
        assert 0 < row["apart"] <= row["apart_bound"]
