"""Numbers."""

import math

import pytest
import torch
from scipy import stats

from labelahead.errors import InputError
from labelahead.tasks import LeaveOneOut, Number, NumberPrediction


@pytest.mark.parametrize("limits", [(1, 1), (2, 1), (1,), "ab", 5, (float("nan"), 1)])
def test_limits_are_checked(limits):
    with pytest.raises(InputError, match="expected the least and the largest"):
        Number(limits=limits)


def test_half_open_limits():
    task = Number(limits=(0, None))
    assert task.parse(1e9) == 0
    with pytest.raises(InputError, match="expected a number from 0 to inf"):
        task.parse(-1)


def test_unit_is_a_text():
    with pytest.raises(InputError, match="unit is 3"):
        Number(unit=3)


def test_decimal_comma_is_explained():
    with pytest.raises(InputError, match="with a point, not a comma"):
        Number().parse("3,5")


@pytest.mark.parametrize("x", [1 / 3, 1e-300, -12345678.9, 2**60, 1e22, 0.1 + 0.2])
def test_numbers_are_written_without_loss(x):
    task = Number()
    assert task.targets([task.parse(task.write(task.parse(x)))]).item() == x


def draw(rng, n, scale=3.0, noise=0.2):
    variance = 0.05 + torch.rand(n, generator=rng, dtype=torch.float64)
    error = torch.randn(n, 1, generator=rng, dtype=torch.float64)
    targets = 10 + scale * torch.randn(n, 1, generator=rng, dtype=torch.float64)
    mean = targets + scale * (variance + noise).sqrt()[:, None] * error
    return LeaveOneOut(mean, variance, noise, targets)


@pytest.mark.parametrize("labels", [2, 5, 20, 200])
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_hold_their_level_over_repetitions(labels, level):
    rng = torch.Generator().manual_seed(0)
    task, inside = Number(), []
    for _ in range(300):
        state, items = task.calibrate(draw(rng, labels)), draw(rng, 50)
        low, high = task.predict(items.mean, items.variance, state).interval(level)
        inside.append(((low <= items.targets) & (items.targets <= high)).double().mean())
    slack = {2: 0.1, 5: 0.05}.get(labels, 0.02)
    assert float(torch.stack(inside).mean()) == pytest.approx(level, abs=slack)


def test_interval_is_that_of_students_t():
    task = Number()
    rng = torch.Generator().manual_seed(0)
    evidence = draw(rng, 12)
    state = task.calibrate(evidence)
    spread = (evidence.variance + 0.2)[:, None]
    variance = evidence.targets.var()
    squared = (((evidence.mean - evidence.targets).square() / spread).sum() + variance) / 13
    assert float(state.variance_scale) == pytest.approx(float(squared))
    p = task.predict(torch.tensor([[1.0]]), torch.tensor([0.5]), state)
    low, high = p.interval(0.8)
    expected = stats.t.interval(0.8, 11, loc=1.0, scale=math.sqrt(squared * 0.7))
    assert (low.item(), high.item()) == pytest.approx(expected)


def test_intervals_and_means_stay_within_the_limits():
    task = Number(limits=(0, 10))
    state = task.calibrate(draw(torch.Generator().manual_seed(0), 5))
    p = task.predict(torch.tensor([[-3.0], [5.0]]), torch.ones(2), state)
    low, high = p.interval()
    assert p.values()[0] == 0.0
    assert float(low.min()) >= 0
    assert float(high.max()) <= 10


def test_without_labels_nothing_is_excluded():
    task = Number(limits=(0, 10))
    nothing = torch.zeros(0, 1, dtype=torch.float64)
    state = task.calibrate(LeaveOneOut(nothing, torch.zeros(0), 0.1, nothing))
    p = task.predict(task.prior_mean(nothing)[None], torch.ones(1), state)
    assert p.values() == [5.0]
    assert [float(x) for x in p.interval()] == [0.0, 10.0]
    assert p.estimate_error() == math.inf


def test_level_is_a_probability():
    task = Number()
    p = task.predict(torch.zeros(1, 1), torch.ones(1), task.calibrate(draw(torch.Generator(), 5)))
    with pytest.raises(InputError, match="expected a probability"):
        p.interval(90)


def test_several_targets_have_units_of_their_own():
    task = Number(["height", "weight"])
    targets = torch.tensor([[1.7, 70.0], [1.8, 90.0], [1.6, math.nan]], dtype=torch.float64)
    assert task.prior_mean(targets).tolist() == pytest.approx([1.7, 80.0])
    assert task.target_scale(targets).tolist() == pytest.approx([0.1, 200**0.5])
    state = task.calibrate(LeaveOneOut(targets + 0.1, torch.ones(3).double(), 0.0, targets))
    p = task.predict(targets[:1], torch.ones(1), state)
    assert list(p.columns()) == [
        "prediction", "height", "height_low", "height_high", "weight", "weight_low", "weight_high"
    ]  # fmt: skip
    assert p.columns()["prediction"] == ["1.7;70"]


def test_error_of_each_target_is_measured_if_there_are_several():
    task = Number(["height", "weight"])
    codes = task.parse_all([[1.0, 70.0], [2.0, float("nan")]])
    mean = torch.tensor([[1.0, 73.0], [1.5, 0.0]], dtype=torch.float64)
    found = task.measure_outputs(NumberPrediction(task.outputs, mean, mean, 5), codes)
    assert found == pytest.approx({"rmse:height": 0.125**0.5, "rmse:weight": 3.0})
    assert (
        Number().measure_outputs(NumberPrediction(("value",), mean[:, :1], mean[:, :1], 5), [])
        == {}
    )
