"""What trackers receive."""

from dataclasses import replace

import pytest

from labelahead.errors import InputError
from labelahead.simulation.run import resume, run
from labelahead.simulation.store import Round
from labelahead.simulation.tracking import open_trackers
from tests.support.campaigns import data
from tests.support.simulations import SMALL


def test_tensorboard_receives_curve(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    campaign = replace(SMALL, track=("tensorboard",))
    result = run(campaign, data=data(), out=tmp_path / "a")
    resume(tmp_path / "a", data=data())  # writes the rounds again, once
    events = accumulator.EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    scalars = [(e.step, e.value) for e in events.Scalars("accuracy/test")]
    assert [s for s, _ in scalars] == [r.labels for r in result.rounds]
    assert [v for _, v in scalars] == pytest.approx([r.accuracy for r in result.rounds])
    with pytest.raises(InputError, match="needs a folder"):
        run(campaign, data=data())


def test_open_trackers_sends_each_metric_of_a_round_to_tensorboard(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with open_trackers(["tensorboard"], tmp_path) as track:
        track(Round(0, 10, 0.5, 0.9, 0.25, 5, 10, seconds={"train": 2.0}))
        track(Round(1, 20, None, 1.0, 0.125, 5, 0))  # no test set: no accuracy
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = {
        name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]
    }
    assert found["accuracy/test"] == [(10, 0.5)]
    assert found["loss/train"] == [(10, 0.25), (20, 0.125)]
    assert found["seconds/train"] == [(10, 2.0)]


def test_open_trackers_without_names_does_nothing(tmp_path):
    with open_trackers([], tmp_path) as track:
        track(Round(0, 10, 0.5, 0.9, 0.25, 5, 10))
    assert list(tmp_path.iterdir()) == []
