"""The model of a finished campaign, from its folder."""

from dataclasses import replace

import pytest

from labelahead.errors import InputError
from labelahead.models.training import predict
from labelahead.simulation.final_model import run_model
from labelahead.simulation.run import run
from tests.support.campaigns import data
from tests.support.simulations import SMALL


def test_run_model_is_the_network_of_the_last_round(tmp_path):
    result = run(SMALL, data=data(), out=tmp_path / "run")
    model = run_model(tmp_path / "run", data=data())
    x = data()[0].inputs
    want = predict(result.model, x).argmax(1)
    classes = data()[0].classes
    assert model.predict(x.numpy()).labels == [classes[i] for i in want.tolist()]
    assert model.about["accuracy"]["measured"] == result.curve[-1][1]


def test_run_model_without_a_finished_round_raises(tmp_path):
    run(SMALL, data=data(), out=tmp_path / "run")
    (tmp_path / "run" / "rounds.jsonl").write_text("")
    with pytest.raises(InputError, match="no finished round; expected one: labelahead resume"):
        run_model(tmp_path / "run", data=data())


def test_run_model_with_other_data_raises(tmp_path):
    run(replace(SMALL, seed=1), data=data(), out=tmp_path / "run")
    with pytest.raises(InputError, match="the data have changed"):
        run_model(tmp_path / "run", data=data(seed=3))
