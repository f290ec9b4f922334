"""The numbers of `labelahead study linear`: closed forms, slopes, and what a stranger would see."""

import copy
import math

import pytest
import torch

from labelahead.errors import InputError
from labelahead.seeds import stream
from labelahead.studies.linear import LINEAR, Settings
from labelahead.studies.linear.exhibits import slope
from labelahead.studies.linear.measure import (
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
from labelahead.tangent import kernel
from tests.support.exhibits import exhibited

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
)


def rows(part, **changes):
    return rows_of(TINY, {"part": part, "seed": 1} | changes)


def test_the_network_and_its_descent_are_as_written():
    x = sphere(5, 4, stream(0, "x"))
    assert torch.allclose(x.norm(dim=1), torch.ones(5).double())
    net = TwoLayer(4, 7, "tanh", stream(0, "w"))
    sums = sum(net.a[j] * torch.tanh(x @ net.w[j]) for j in range(7)) / math.sqrt(7)
    assert torch.allclose(net(x)[:, 0], sums)
    twin, y = copy.deepcopy(net), target(x)
    seen = descend(net, x, y, x, rate=0.1, marks=(0, 3))
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.1)
    assert torch.equal(seen[0], twin(x))
    for _ in range(3):
        optimiser.zero_grad()
        (0.5 * (twin(x) - y).square().sum()).backward()
        optimiser.step()
    assert torch.allclose(seen[1], twin(x))
    assert torch.allclose(net.w, twin.w)


def test_scaled_descent_is_the_loss_over_the_square():
    """α(f − f₀) with the loss over α² (Chizat & Bach), written out with autograd."""
    x = sphere(5, 4, stream(2, "x"))
    y, scale, eta = target(x), 7.0, 0.2
    net = TwoLayer(4, 9, "tanh", stream(2, "w"), scale=scale, centred=True)
    plain = TwoLayer(4, 9, "tanh", stream(2, "w"))
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


def test_bounds():
    z = torch.linspace(-3, 3, 20001).double().requires_grad_()
    (first,) = torch.autograd.grad(torch.tanh(z).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    assert float(second.abs().max()) == pytest.approx(SMOOTHNESS, rel=1e-6)
    assert smooth_bound(100, 2.0) == pytest.approx(SMOOTHNESS / 20 * 4)
    assert relu_bound(64, 1.0, delta=math.exp(-1)) == pytest.approx(3 / 2)
    found = rows("error")
    assert len(found) == 4
    for row in found:
        assert 0 < row["error"] <= row["bound"]
        assert (row["worst"] is None) == (row["activation"] == "relu")
        # the bound holds for any W, also where the second-order terms add up
        assert row["worst"] is None or 0 < row["worst"] <= row["bound"]
    wide = next(r for r in found if r["activation"] == "tanh" and r["width"] == 256)
    assert wide["worst"] > wide["error"]
    for name in ("tanh", "relu"):
        few, many = [r["error"] for r in found if r["activation"] == name]
        assert many < few


def test_the_limit_is_approached_as_a_mean_of_many():
    s = Settings(dimension=4, items=6, evaluation=8, widths=(64, 16384))
    found = []
    for seed in range(4):
        found += [{"seed": seed, **r} for r in rows_of(s, {"part": "limit", "seed": seed})]
    assert -0.65 < slope(found, "width", "error").mean < -0.35


def test_slope_is_the_exponent():
    made = [{"seed": k, "m": m, "e": (k + 1) * m**-0.7} for k in range(3) for m in (1, 10, 50)]
    assert slope(made, "m", "e").mean == pytest.approx(-0.7)


def test_flow_follows_wide_networks_more_closely():
    found = rows("flow")
    assert [r["error"] for r in found if r["steps"] == 0] == pytest.approx([0, 0], abs=1e-12)
    narrow, wide = [r["error"] for r in found if r["steps"] == 100]
    assert wide < narrow / 2


def test_lazy_training_moves_less():
    one, thirty = rows("lazy")
    for name in ("kernel_moved", "weights_moved", "distance"):
        assert thirty[name] < one[name] / 3
    assert one["weights_moved"] / thirty["weights_moved"] == pytest.approx(30, rel=0.5)


def test_theorem_of_nested_sets():
    found = rows("warm")
    fixed = {r["time"]: r["difference"] for r in found if r["kind"] == "fixed kernel"}
    assert fixed["∞"] < 1e-9
    assert fixed["1"] > 0.05  # stopped early, the theorem does not hold
    assert fixed["100000"] < 1e-3
    narrow, wide = [r["difference"] for r in found if r["kind"] == "real network"]
    assert wide < narrow


def test_settings_that_cannot_be_measured_are_refused():
    with pytest.raises(InputError, match="growing sets"):
        Settings(items=3, stages=4)
    with pytest.raises(InputError, match="slope"):
        Settings(widths=(16,))
    with pytest.raises(InputError, match="two or more from 1 on"):
        Settings(scales=(0.1, 0.3, 1.0))


def test_the_whole_study():
    found = exhibited(LINEAR, TINY)
    assert [e.name for e in found] == ["error", "limit", "flow", "lazy", "warm"]
    assert [e.figure is None for e in found] == [False] * 4 + [True]


def test_what_diverges_is_not_taken_for_agreement():
    start, far = torch.zeros(4, 1).double(), torch.full((4, 1), math.inf).double()
    assert _apart(start, start, start, 2) == 0
    assert _apart(start + 1, start + 3, start, 2) == pytest.approx(2 / 3)
    assert not math.isfinite(_apart(far, start + 1, start, 2))
