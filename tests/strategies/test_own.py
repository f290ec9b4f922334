"""Custom strategies, given in Python or named as file.py:name."""

import json
import math
from dataclasses import replace

import pytest
import torch

import labelahead as la
from labelahead.acquisition import flip
from labelahead.errors import InputError, LabelaheadError, NumericalError
from labelahead.learner.config import parse_campaign
from labelahead.strategies import STRATEGIES, find_strategy
from labelahead.strategies.base import QueryBatch, QueryConfig, Strategy
from labelahead.strategies.lookahead import make_lookahead_strategy
from tests.support.campaigns import data

SMALL = {
    "model": {"name": "mlp", "width": 16},
    "training": {"steps": 20},
    "budget": {"initial": 6, "labels": 14, "retrain_every": 4},
    "threads": 1,
}
OWN = """
from labelahead.acquisition import flip

def mine(view, rng):
    \"\"\"As flip does.\"\"\"
    return flip(view, rng)

def blank(view, rng):
    "  "
    return flip(view, rng)

number = 3
"""


def first(context, q, rng, mode, oracle):
    """The first candidates, whatever they are; remembers how often it was asked."""
    asked = 1 + (context.memory or {"asked": 0})["asked"]
    return QueryBatch(context.candidates[:q], torch.arange(q, 0, -1).double(), {"asked": asked})


FIRST = Strategy("first", "never", "nobody", first)


def campaign(strategy, **more):
    return parse_campaign({**SMALL, "asking": {"strategy": strategy, **more}})


def same(one, other):
    assert one.pool.labelled.tolist() == other.pool.labelled.tolist()
    assert one.curve == other.curve


def test_find_strategy_accepts_names_values_and_files(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
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
        ("own.py:nothing", "names 'nothing', which is not there"),
        ("nowhere.py:mine", "no file 'nowhere.py'"),
        ("given:first", "resume\\(folder, strategy=...\\)"),
        ("flip:greedy", "expected 'flip', and 'greedy' as `mode`"),
    ],
)
def test_find_strategy_invalid_values_raise(name, message, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        campaign(name)


def test_acquisition_from_file_queries_like_builtin(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    for mode in ("sequential", "top"):
        own = la.run(campaign(f"{tmp_path}/own.py:mine", mode=mode), data=data())
        same(own, la.run(campaign("flip", mode=mode), data=data()))


def test_acquisition_given_in_python_queries_like_builtin():
    own = make_lookahead_strategy("mine", "a test", acquisition=flip)
    same(la.run(campaign(own), data=data()), la.run(campaign("flip"), data=data()))


def test_custom_strategy_campaign_resumes_with_memory(tmp_path):
    whole = la.run(campaign(FIRST), data=data(), out=tmp_path / "whole")
    assert [r.memory for r in whole.rounds] == [{"asked": 1}, {"asked": 2}, None]
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
    same(la.resume(part, {"budget.labels": 14}, data=data(), strategy=FIRST), whole)


def test_strategy_file_is_found_from_other_folders(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    la.run(campaign("own.py:mine"), data=data(), out=tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(la.resume(tmp_path / "run", {"budget.labels": 18}, data=data()).pool) == 18


def test_resume_with_other_strategy_raises(tmp_path):
    la.run(campaign(FIRST), data=data(), out=tmp_path / "given")
    la.run(campaign("flip"), data=data(), out=tmp_path / "named")
    more, other = {"budget.labels": 18}, Strategy("other", "never", "nobody", first)
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
    (tmp_path / "own.py").write_text(OWN)
    la.run(campaign(f"{tmp_path}/own.py:mine"), data=data(), out=tmp_path / "run")
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
    path.write_text(OWN)
    same(
        la.run(
            campaign(f"{path}:mine"), data=data(), on_round=lambda _: path.write_text("half an ed")
        ),
        la.run(campaign("flip"), data=data()),
    )


def test_learner_uses_strategy_noise_and_reloads_file(tmp_path, monkeypatch):
    x = data()[0].inputs
    noisy = replace(make_lookahead_strategy("noisy", "a test", acquisition=flip), noise=0.5)
    learner = la.Learner(torch.nn.Linear(32, 3), x, noisy)
    learner.query()
    assert learner._pool_posterior.posterior.noise == pytest.approx(
        0.5 * learner._pool_posterior.posterior.scale
    )
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    la.Learner(torch.nn.Linear(32, 3), x, "own.py:mine").save("learner.pt")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = la.Learner.load(tmp_path / "learner.pt", torch.nn.Linear(32, 3), x)
    assert again.query(2) == la.Learner.load(
        tmp_path / "learner.pt", torch.nn.Linear(32, 3), x
    ).query(2)


def test_propose_and_learner_accept_strategy_values():
    x, y = data()[0].inputs, torch.arange(80) % 3
    model = la.Learner(torch.nn.Linear(32, 3), x, FIRST, seed=1)
    model.teach([0, 1, 2], y[:3])
    pool = la.Pool(80)
    pool.label([0, 1, 2], y[:3])
    query = la.propose(model.model, x, pool, 4, FIRST, seed=1)
    assert query.strategy == "first"
    assert query.positions.tolist() == model.query(4)
    assert json.loads(json.dumps(query.memory)) == {"asked": 1}


def test_modes_of_strategy_value_are_respected():
    with pytest.raises(InputError, match="first works as top"):
        campaign(FIRST, mode="greedy")
    assert QueryConfig(FIRST).strategy.resolve_mode(None, has_oracle=True) == "top"


def by(score):
    """Look-ahead by a criterion that makes something of flip's scores."""
    return make_lookahead_strategy(
        "mine", "a test", acquisition=lambda view, rng: score(flip(view, rng))
    )


@pytest.mark.parametrize(
    ("score", "error", "message"),
    [
        (lambda s: s * math.nan, NumericalError, "NaN or infinity for"),
        (lambda s: s + math.inf, NumericalError, "NaN or infinity for"),
        (lambda s: s - math.inf, NumericalError, "mine scored .*expected 4 numbers"),
        (lambda s: s.tolist(), InputError, "returned a list; expected a tensor"),
        (lambda s: s.numpy(), InputError, "returned a ndarray; expected a tensor"),
        (lambda s: s[:, None], InputError, "one score per candidate"),
    ],
)
def test_acquisition_without_scores_raises(score, error, message, tmp_path):
    with pytest.raises(error, match=message):
        la.run(campaign(by(score)), data=data(), out=tmp_path / "run")


def test_minus_infinity_excludes_and_gradients_are_detached():
    def spared(scores):
        scores[:30] = -math.inf
        return scores.requires_grad_()

    assert len(la.run(campaign(by(spared)), data=data()).pool) == 14


@pytest.mark.parametrize(
    "pick",
    [
        lambda s, q: None,
        lambda s, q: QueryBatch(s.candidates[:0], torch.ones(0)),
        lambda s, q: QueryBatch(s.candidates[: q - 1], torch.ones(q - 1)),
        lambda s, q: QueryBatch(s.candidates[:1].repeat(q), torch.ones(q)),
        lambda s, q: QueryBatch(s.labelled[:q], torch.ones(q)),
        lambda s, q: QueryBatch(torch.arange(q) + 10**6, torch.ones(q)),
        lambda s, q: QueryBatch(s.candidates[:q].tolist(), [1.0] * q),
        lambda s, q: QueryBatch(s.candidates[:q], torch.ones(q - 1)),
        lambda s, q: QueryBatch(s.candidates[:q], torch.full((q,), math.nan)),
    ],
)
def test_strategy_returning_invalid_batch_raises(pick):
    own = Strategy("mine", "never", "nobody", lambda s, q, rng, mode, oracle: pick(s, q))
    with pytest.raises(LabelaheadError, match=r"the strategy mine .*expected"):
        la.run(campaign(own), data=data())
