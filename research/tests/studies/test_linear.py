"""The numbers of `python -m research study linear` against closed forms and expected slopes."""

import copy
import math

import pytest
import torch

from labelahead.errors import InputError
from labelahead.ntk import kernel
from labelahead.seeds import make_generator
from research.studies.linear import LINEAR, Settings
from research.studies.linear.figures import slope
from research.studies.linear.measure import (
    SMOOTHNESS,
    TwoLayer,
    _apart,
    descend,
    relu_bound,
    rows_of,
    smooth_bound,
    sphere,
    target,
)
from research.studies.linear.wide import Deep, limit_kernel, linear_steps, step_kernel, worst_relu
from research.tests.support_figures import study_figures

TINY = Settings(
    seeds=2,
    dimension=4,
    items=6,
    evaluation=8,
    widths=(16, 256),
    steps=150,
    flow_widths=(16, 512),
    flow_marks=(0, 10, 100),
    lazy_width=32,
    lazy_steps=200,
    scales=(1.0, 30.0),
    stages=3,
    warm_times=(1.0, 1e5),
    sup_widths=(64, 1024),
    sup_draws=20,
    radii=(1.0, 5.0),
    depths=(1, 2),
    drift_widths=(32, 256),
    drift_marks=(3, 30),
    trained_widths=(32, 256),
    trained_steps=200,
    kappas=(1.0, 0.1),
    universal_items=(30, 150),
    universal_test=100,
    separation_dimensions=(5, 10),
    separation_shares=(4.0, 8.0),
    separation_steps=200,
    separation_test=100,
)


def measure_rows(part, **changes):
    return LINEAR.measure(TINY, {"part": part, "seed": 1} | changes)


def test_network_and_descent_equal_explicit_formulas():
    x = sphere(5, 4, make_generator(0, "x"))
    assert torch.allclose(x.norm(dim=1), torch.ones(5).double())
    net = TwoLayer(4, 7, "tanh", make_generator(0, "w"))
    sums = sum(net.a[j] * torch.tanh(x @ net.w[j]) for j in range(7)) / math.sqrt(7)
    assert torch.allclose(net(x)[:, 0], sums)
    twin, y = copy.deepcopy(net), target(x)
    outputs = descend(net, x, y, x, rate=0.1, marks=(0, 3))
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.1)
    assert torch.equal(outputs[0], twin(x))
    for _ in range(3):
        optimiser.zero_grad()
        (0.5 * (twin(x) - y).square().sum()).backward()
        optimiser.step()
    assert torch.allclose(outputs[1], twin(x))
    assert torch.allclose(net.w, twin.w)


def test_scaled_descent_equals_loss_over_squared_scale():
    """α(f − f₀) with the loss over α² (Chizat & Bach), computed with autograd."""
    x = sphere(5, 4, make_generator(2, "x"))
    y, scale, eta = target(x), 7.0, 0.2
    net = TwoLayer(4, 9, "tanh", make_generator(2, "w"), scale=scale, centred=True)
    plain = TwoLayer(4, 9, "tanh", make_generator(2, "w"))
    start = plain(x).detach()
    assert not net(x).any()
    got = descend(net, x, y, x, rate=eta / scale**2, marks=(4,))
    for _ in range(4):
        loss = 0.5 * (scale * (plain(x) - start) - y).square().sum() / scale**2
        (grad,) = torch.autograd.grad(loss, [plain.w])
        with torch.no_grad():
            plain.w -= eta * grad
    assert torch.allclose(got[0], scale * (plain(x) - start), atol=1e-12)
    assert torch.allclose(kernel(net, x).trace(), scale**2 * kernel(plain, x).trace())


def test_bounds_equal_formulas_and_hold():
    z = torch.linspace(-3, 3, 20001).double().requires_grad_()
    (first,) = torch.autograd.grad(torch.tanh(z).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    assert float(second.abs().max()) == pytest.approx(SMOOTHNESS, rel=1e-6)
    assert smooth_bound(100, 2.0) == pytest.approx(SMOOTHNESS / 20 * 4)
    assert relu_bound(64, 1.0, delta=math.exp(-1)) == pytest.approx(3 / 2)
    found = measure_rows("error")
    assert len(found) == 4
    for row in found:
        assert 0 < row["error"] <= row["bound"]
        assert (row["worst"] is None) == (row["activation"] == "relu")
        # the bound holds for any W, also if the second-order terms add up
        assert row["worst"] is None or 0 < row["worst"] <= row["bound"]
    wide = next(r for r in found if r["activation"] == "tanh" and r["width"] == 256)
    assert wide["worst"] > wide["error"]
    for name in ("tanh", "relu"):
        few, many = [r["error"] for r in found if r["activation"] == name]
        assert many < few


def test_limit_error_has_slope_one_half():
    s = Settings(dimension=4, items=6, evaluation=8, widths=(64, 16384))
    found = []
    for seed in range(4):
        found += [{"seed": seed, **r} for r in rows_of(s, {"part": "limit", "seed": seed})]
    assert -0.65 < slope(found, "width", "error").mean < -0.35


def test_slope_equals_exponent():
    made = [{"seed": k, "m": m, "e": (k + 1) * m**-0.7} for k in range(3) for m in (1, 10, 50)]
    assert slope(made, "m", "e").mean == pytest.approx(-0.7)


def test_flow_error_is_smaller_for_wide_networks():
    found = measure_rows("flow")
    assert [r["error"] for r in found if r["steps"] == 0] == pytest.approx([0, 0], abs=1e-12)
    narrow, wide = [r["error"] for r in found if r["steps"] == 100]
    assert wide < narrow / 2


def test_lazy_training_moves_weights_and_kernel_less():
    one, thirty = measure_rows("lazy")
    for name in ("kernel_moved", "weights_moved", "distance"):
        assert thirty[name] < one[name] / 3
    assert one["weights_moved"] / thirty["weights_moved"] == pytest.approx(30, rel=0.5)


def test_nested_sets_theorem_holds_at_convergence_only():
    found = measure_rows("warm")
    fixed = {r["time"]: r["difference"] for r in found if r["kind"] == "fixed kernel"}
    assert fixed["∞"] < 1e-9
    assert fixed["1"] > 0.05  # stopped early, the theorem does not hold
    assert fixed["100000"] < 1e-3
    narrow, wide = [r["difference"] for r in found if r["kind"] == "real network"]
    assert wide < narrow


def test_invalid_settings_raise():
    with pytest.raises(InputError, match="growing sets"):
        Settings(items=3, stages=4)
    with pytest.raises(InputError, match="slope"):
        Settings(widths=(16,))
    with pytest.raises(InputError, match="two or more from 1 on"):
        Settings(scales=(0.1, 0.3, 1.0))


@pytest.mark.slow
def test_study_of_all_parts_makes_figures():
    found = study_figures(LINEAR, TINY)
    parts = [
        "error",
        "limit",
        "flow",
        "lazy",
        "warm",
        "supremum",
        "drift",
        "trained",
        "universal",
        "separation",
    ]
    assert [e.name for e in found] == parts
    assert [e.name for e in found if e.figure is None] == ["warm"]


def test_apart_of_diverged_outputs_is_not_finite():
    start, far = torch.zeros(4, 1).double(), torch.full((4, 1), math.inf).double()
    assert _apart(start, start, start, 2) == 0
    assert _apart(start + 1, start + 3, start, 2) == pytest.approx(2 / 3)
    assert not math.isfinite(_apart(far, start + 1, start, 2))


def compute_linearisation_error(net: TwoLayer, x: torch.Tensor, moved: torch.Tensor) -> float:
    """Return |f − f_lin| at x for the weights W₀ + moved, computed by the network."""
    moved_net = copy.deepcopy(net)
    with torch.no_grad():
        moved_net.w.add_(moved)
        active = (x @ net.w0.T > 0).double()
        linear = (net.a * active * (x @ (net.w0 + moved).T)).sum() / math.sqrt(len(net.a))
        return float((moved_net(x) - linear).abs())


def test_worst_relu_is_attained_and_not_exceeded():
    rng = make_generator(3, "supremum")
    net, x = TwoLayer(4, 30, "relu", make_generator(3, "w")), sphere(1, 4, rng)
    w, radius = (x @ net.w0.T)[0], 2.0
    best = worst_relu(w, net.a, radius)
    reached = 0.0
    for sign in (1.0, -1.0):
        units = torch.nonzero(net.a == sign).flatten()
        order = units[w[units].abs().argsort()]
        for k in range(1, len(order) + 1):
            moved = torch.zeros_like(net.w0)
            towards = -torch.sign(w[order[:k]])
            moved[order[:k]] = towards[:, None] * x * radius / math.sqrt(k)
            reached = max(reached, compute_linearisation_error(net, x, moved))
    assert reached == pytest.approx(best, rel=1e-9)
    for _ in range(200):  # along x, the direction with the largest effect
        moved = torch.randn(30, 1, generator=rng, dtype=torch.float64) * x
        assert compute_linearisation_error(net, x, moved * radius / moved.norm()) <= best
    assert best <= relu_bound(30, radius)


def test_kernels_of_deep_networks_converge_to_limit():
    x = sphere(6, 5, make_generator(0, "x")) * 5**0.5
    want = limit_kernel(x, x, 2)
    near = torch.stack(
        [kernel(Deep(5, 200, 2, make_generator(k, "w")).eval(), x) for k in range(60)]
    ).mean(0)
    assert float((near - want).norm() / want.norm()) < 0.06
    one = Deep(5, 16, 2, make_generator(1, "w"))
    scaled = Deep(5, 16, 2, make_generator(1, "w"), scale=0.3)
    assert torch.allclose(scaled(x), 0.3 * one(x))


def test_linear_steps_equal_descent_on_linear_model():
    """Compare with explicit gradient descent on a model that is linear in its weights."""
    rng = make_generator(5, "linear")
    phi = torch.randn(7, 12, generator=rng, dtype=torch.float64)
    theta, f, y = (
        phi @ phi.T,
        torch.randn(7, 1, generator=rng).double(),
        torch.randn(4, 1, generator=rng).double(),
    )
    weights, outputs = torch.zeros(12, 1).double(), {}
    for step in range(6):
        outputs[step] = f + phi @ weights
        weights -= 0.01 * phi[:4].T @ (outputs[step][:4] - y)
    got = linear_steps(f, theta, 4, y, 0.01, [0, 2, 5])
    assert all(torch.allclose(g, outputs[k]) for g, k in zip(got, (0, 2, 5), strict=True))


def test_kernel_drift_decreases_with_width():
    found = measure_rows("drift")
    for depth in (1, 2):
        narrow, wide = [r for r in found if r["depth"] == depth]
        for name in ("kernel_moved", "output_gap", "limit_gap"):
            assert wide[name] < narrow[name]
    ends = {(r["width"], r["kappa"]): r["distance"] for r in measure_rows("trained")}
    assert ends[256, 0.1] < ends[256, 1.0]
    assert ends[256, 0.1] < ends[32, 0.1]


def test_step_kernel_equals_expectation_and_cannot_fit_even_functions():
    x = sphere(3, 4, make_generator(1, "x"))
    w = torch.randn(400_000, 4, generator=make_generator(1, "w"), dtype=torch.float64)
    active = (w @ x.T > 0).double()
    assert torch.allclose(active.T @ active / len(w), step_kernel(x, x), atol=5e-3)
    assert torch.allclose(
        step_kernel(x, x) + step_kernel(x, -x), torch.full((3, 3), 0.5).double()
    )  # odd up to 1/4
    errors = {
        (r["place"], r["target"]): r["error"]
        for r in measure_rows("universal")
        if r["items"] == 150
    }
    assert errors["sphere", "even"] > 0.9
    assert errors["raised", "even"] < 0.6
    assert max(errors["sphere", "odd"], errors["raised", "odd"]) < 0.2


def test_single_unit_has_smaller_error_than_kernels():
    for row in measure_rows("separation"):
        if row["share"] == 8.0:
            assert row["unit"] < 1e-3 < row["infinite"] < row["tangent"]


def test_single_depth_raises():
    with pytest.raises(InputError, match="depths is"):
        Settings(depths=(2,))
