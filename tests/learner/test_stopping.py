import pytest
import torch

from labelahead.data import from_arrays
from labelahead.inference.network import NetworkLearner
from labelahead.learner.stopping import (
    ErrorReading,
    _supports_stopping,
    estimate_leave_one_out,
    stop_advice,
    stopping_progress,
)
from labelahead.models import build_model
from labelahead.models.training import Training
from labelahead.ntk import kernel
from labelahead.simulation.run import run
from tests.support.campaigns import blobs, data


def make_good_readings(*labels):
    return [ErrorReading(n, 0.021, 0.012, 0.047, 0.0012) for n in labels]


def make_poor_readings(*labels):
    return [ErrorReading(n, 0.08, 0.03, 0.2, 0.012) for n in labels]


@pytest.mark.parametrize(
    "last",
    [
        ErrorReading(140, 0.02, 0.01, 0.05, 0.006),
        ErrorReading(140, 0.2, 0.1, 0.24, 0.001),
        ErrorReading(140, 0.1, 0.02, 0.3, 0.001),
        ErrorReading(140, None, None, None, None),
    ],
)
def test_stop_advice_is_none_while_conditions_are_not_met(last):
    assert stop_advice([last._replace(labels=n) for n in (80, 100, 120, 140)]) is None


def test_stop_advice_is_none_below_fifty_labels():
    assert stop_advice(make_good_readings(10, 20, 30, 40, 49)) is None


def test_stop_advice_names_figures_and_conditions():
    advice = stop_advice(make_good_readings(60, 80, 100))
    assert "2.1% of the predictions" in advice
    assert "1.2% to 4.7%" in advice
    assert "the next 20 labels are expected to bring 0.1 points" in advice
    assert "if the labels are right, new items are like these and no class is missing" in advice


def test_stop_advice_needs_consecutive_readings():
    assert stop_advice(make_good_readings(80)) is None
    assert stop_advice(make_good_readings(80, 82, 84, 86)) is None  # many readings, few labels
    assert stop_advice(make_good_readings(80, 140)) is None  # many labels, two readings
    assert stop_advice(make_good_readings(80, 100, 120)) is not None
    assert stop_advice(make_good_readings(400, 420, 440)) is None  # a quarter of the labels
    assert stop_advice(make_good_readings(400, 440, 480, 540)) is not None


def test_stop_advice_does_not_flicker():
    """A single reading neither gives nor withdraws the advice."""
    assert (
        stop_advice([*make_good_readings(80), *make_poor_readings(160), *make_good_readings(240)])
        is None
    )
    good_readings = make_good_readings(80, 100, 120)
    assert stop_advice([*good_readings, *make_poor_readings(140)]) is not None
    assert (
        stop_advice([*good_readings, *make_poor_readings(140), *make_good_readings(160)])
        is not None
    )
    assert stop_advice([*good_readings, *make_poor_readings(140, 160, 190)]) is None
    assert (
        stop_advice(
            [*good_readings, *make_poor_readings(140, 160, 190), *make_good_readings(200, 220)]
        )
        is None
    )
    assert "this has held for 40 labels or more" in stop_advice(good_readings)
    assert "the advice is withdrawn if it stays so" in stop_advice(
        [*good_readings, *make_poor_readings(140)]
    )


def test_stop_advice_restarts_after_removed_labels():
    assert stop_advice([*make_good_readings(80, 100), *make_good_readings(60)]) is None
    assert stop_advice([*make_good_readings(80, 100), *make_good_readings(60, 80, 100)]) is not None


def test_stopping_progress_is_one_iff_advice_is_given():
    assert stopping_progress([]) is None
    assert stopping_progress([ErrorReading(60, None, None, None, None)]) is None
    histories = [
        make_good_readings(25),
        make_good_readings(60),
        make_good_readings(60, 80),
        make_good_readings(60, 80, 100),
        [*make_good_readings(60, 80, 100), *make_poor_readings(120)],
        make_poor_readings(60, 90),
    ]
    shares = [stopping_progress(h) for h in histories]
    assert [share == 1.0 for share in shares] == [stop_advice(h) is not None for h in histories]
    assert shares[0] == pytest.approx(0.5)
    assert shares[1] < shares[2] < shares[3]


def make_noisy_data(kind, seed):
    """Return vectors with random labels, or with 40 % wrong labels."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(400, 8, generator=rng)
    y = torch.randint(2, (400,), generator=rng)
    if kind == "40 % wrong":
        y = (x[:, 0] > 0).long() ^ (torch.rand(400, generator=rng) < 0.4).long()
    return from_arrays(x, y.tolist(), classes=["no", "yes"])


@pytest.mark.parametrize("kind", ["no signal", "40 % wrong"])
@pytest.mark.parametrize("seed", [0, 1])
def test_stop_advice_is_none_on_noise(kind, seed):
    plan = {
        "model": {"name": "exact"},
        "data": {"embedding": "raw"},
        "budget": {"initial": 20, "labels": 160, "retrain_every": 20},
        "asking": {"candidates": 60, "evaluation": 60},
        "threads": 1,
        "seed": seed,
    }
    done = run(plan, data=make_noisy_data(kind, seed)).rounds
    readings = [ErrorReading(r.labels, r.error, r.error_low, r.error_high, r.fall) for r in done]
    assert all(r.error is not None for r in readings)
    assert not any(_supports_stopping(r) for r in readings)
    assert all(stop_advice(readings[: i + 1]) is None for i in range(len(readings)))


def test_trained_network_has_no_error_estimate():
    """An estimate by the kernel before training gave 74 % accuracy where 51 % was correct."""
    tables = {"model": {"name": "mlp", "width": 8}, "training": {"steps": 5}, "threads": 1}
    rounds = run(
        tables | {"budget": {"initial": 10, "labels": 20, "retrain_every": 10}}, data=data()
    ).rounds
    assert [r.error for r in rounds] == [None, None]


def test_estimate_leave_one_out_matches_refitting():
    x, y = blobs(14, (6,))
    model = build_model("mlp", (6,), 3, width=16).double().eval()
    x = x.double()
    learner = NetworkLearner(x, 3, lambda seed: model, Training())
    others, residual = learner.leave_one_out_predictions(torch.arange(14), y, seed=0)
    found = estimate_leave_one_out(others, residual, y, 5)
    K = kernel(model, x)
    noise = 1e-3 * K.diagonal().mean()
    targets = torch.nn.functional.one_hot(y, 3).double()
    residuals = []
    for i in range(5):
        rest = [j for j in range(14) if j != i]
        system = K[rest][:, rest] + noise * torch.eye(13, dtype=torch.float64)
        residuals.append(K[i, rest] @ torch.linalg.solve(system, targets[rest]) - targets[i])
    residuals = torch.stack(residuals)
    right = ((residuals + targets[:5]).argmax(1) == y[:5]).double().mean()
    assert found.accuracy == float(right)
    assert abs(found.error - float(residuals.square().sum(1).mean())) < 1e-9


def test_leave_one_out_needs_two_labels_and_a_query():
    tables = {"model": {"name": "mlp", "width": 8}, "training": {"steps": 5}, "threads": 1}
    budget = {"initial": 1, "labels": 3, "retrain_every": 1}
    rounds = run(tables | {"budget": budget}, data=data()).rounds
    # the last round has no query, so it has no estimate
    assert [(r.labels, r.loo is None) for r in rounds] == [(1, True), (2, False), (3, True)]
