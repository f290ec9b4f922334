"""Custom strategies, given in Python or named as file.py:name."""

from dataclasses import replace

import pytest
import torch

import labelahead as la
from labelahead.acquisition import flip
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.simulation import RunCallbacks
from labelahead.strategies import STRATEGIES, find_strategy
from labelahead.strategies.base import Strategy
from labelahead.strategies.lookahead import make_lookahead_strategy
from tests.support.campaigns import data
from tests.support.own_strategies import (
    FIRST,
    SMALL,
    STRATEGY_FILE,
    assert_equal_results,
    make_campaign,
    select_first,
)


def test_find_strategy_accepts_names_values_and_files(tmp_path):
    (tmp_path / "own.py").write_text(STRATEGY_FILE)
    assert find_strategy("flip") is STRATEGIES["flip"]
    assert find_strategy(FIRST) is FIRST
    own = find_strategy(f"{tmp_path}/own.py:mine")
    assert own.look_ahead
    assert own.when == "As flip does."
    assert own.modes == STRATEGIES["flip"].modes
    assert find_strategy(f"{tmp_path}/own.py:blank").when == "your own acquisition function"
    with pytest.raises(InputError, match="strategy is a function; expected a name"):
        find_strategy(flip)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("flop", "did you mean 'flip'.*or your own as file.py:name"),
        ("own.py:number", "is a int; expected a labelahead Strategy, or a function"),
        ("own.py:nothing", "names 'nothing', which does not exist"),
        ("nowhere.py:mine", "no file 'nowhere.py'"),
        ("given:first", "resume\\(folder, strategy=...\\)"),
        ("flip:greedy", "expected 'flip', and 'greedy' as `mode`"),
    ],
)
def test_find_strategy_invalid_values_raise(name, message, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(STRATEGY_FILE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        make_campaign(name)


def test_custom_strategy_campaign_resumes_with_memory(tmp_path):
    whole = la.run(make_campaign(FIRST), data=data(), out=tmp_path / "whole")
    assert [r.memory for r in whole.rounds] == [{"calls": 1}, {"calls": 2}, None]
    assert 'strategy = "given:first"' in (tmp_path / "whole" / "config.toml").read_text()
    part = tmp_path / "part"
    la.run(
        parse_campaign(
            {**SMALL, "asking": {"strategy": FIRST}, "budget": SMALL["budget"] | {"labels": 10}}
        ),
        data=data(),
        out=part,
    )
    with pytest.raises(InputError, match="given in Python"):
        la.resume(part, {"budget.labels": 14}, data=data())
    assert_equal_results(la.resume(part, {"budget.labels": 14}, data=data(), strategy=FIRST), whole)


def test_strategy_file_is_found_from_other_folders(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(STRATEGY_FILE)
    monkeypatch.chdir(tmp_path)
    la.run(make_campaign("own.py:mine"), data=data(), out=tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(la.resume(tmp_path / "run", {"budget.labels": 18}, data=data()).pool) == 18


def test_resume_with_other_strategy_raises(tmp_path):
    la.run(make_campaign(FIRST), data=data(), out=tmp_path / "given")
    la.run(make_campaign("flip"), data=data(), out=tmp_path / "named")
    more, other = {"budget.labels": 18}, Strategy("other", "never", "nobody", select_first)
    for folder, changes, strategy in (
        ("given", {}, other),
        ("given", {"asking.strategy": "flip"}, None),
        ("named", {}, FIRST),
        ("named", {"asking.strategy": "random"}, None),
    ):
        with pytest.raises(InputError, match=r"this campaign uses .*expected the same"):
            la.resume(tmp_path / folder, {**more, **changes}, data=data(), strategy=strategy)
    assert (
        len(la.resume(tmp_path / "named", {**more, "asking.strategy": "flip"}, data=data()).pool)
        == 18
    )


def test_resume_with_moved_strategy_file(tmp_path):
    (tmp_path / "own.py").write_text(STRATEGY_FILE)
    la.run(make_campaign(f"{tmp_path}/own.py:mine"), data=data(), out=tmp_path / "run")
    (tmp_path / "own.py").rename(tmp_path / "moved.py")
    more = {"budget.labels": 18}
    with pytest.raises(InputError, match="there is no file"):
        la.resume(tmp_path / "run", more, data=data())
    for name in ("moved.py:blank", "flip"):
        with pytest.raises(InputError, match=r"this campaign uses .*expected the same"):
            la.resume(
                tmp_path / "run", {**more, "asking.strategy": f"{tmp_path}/{name}"}, data=data()
            )
    end = la.resume(
        tmp_path / "run", {**more, "asking.strategy": f"{tmp_path}/moved.py:mine"}, data=data()
    )
    assert len(end.pool) == 18
    assert "moved.py:mine" in (tmp_path / "run" / "config.toml").read_text()


def test_editing_strategy_file_does_not_affect_running_campaign(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(STRATEGY_FILE)
    assert_equal_results(
        la.run(
            make_campaign(f"{path}:mine"),
            data=data(),
            callbacks=RunCallbacks(on_round=lambda _: path.write_text("half an ed")),
        ),
        la.run(make_campaign("flip"), data=data()),
    )


def test_learner_uses_strategy_noise_and_reloads_file(tmp_path, monkeypatch):
    x = data()[0].inputs
    noisy = replace(make_lookahead_strategy("noisy", "a test", acquisition=flip), noise=0.5)
    learner = la.Learner(torch.nn.Linear(32, 3), x, noisy)
    learner.query()
    assert learner._pool_posterior.posterior.noise == pytest.approx(
        0.5 * learner._pool_posterior.posterior.scale
    )
    (tmp_path / "own.py").write_text(STRATEGY_FILE)
    monkeypatch.chdir(tmp_path)
    la.Learner(torch.nn.Linear(32, 3), x, "own.py:mine").save("learner.pt")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = la.Learner.load(tmp_path / "learner.pt", torch.nn.Linear(32, 3), x)
    assert again.query(2) == la.Learner.load(
        tmp_path / "learner.pt", torch.nn.Linear(32, 3), x
    ).query(2)


def test_every_strategy_has_description_and_paper():
    for name, member in STRATEGIES.items():
        assert member.name == name
        assert len(member.when) > 20
        assert member.paper
        assert member.modes
    with pytest.raises(InputError, match="did you mean 'badge'"):
        find_strategy("bagde")
