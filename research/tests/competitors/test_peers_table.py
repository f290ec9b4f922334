"""Other packages in our campaigns: all but their choice is as in `labelahead run`; resumable."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("skactiveml")
pytest.importorskip("distil")

import torch

from labelahead.data.pool import Pool
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.seeds import make_generator
from labelahead.simulation.loop import State, run_rounds
from labelahead.simulation.run import build_simulation, prepare_campaign, run
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.context import QueryContext
from labelahead.strategies.query import propose
from research.competitors.adapters import PEERS, Given, Peer, distinct, need, seeded
from research.results.competitors import asking_by
from research.results.runs import played

SETTINGS = {
    "data": {"name": "digits"},
    "model": {"name": "mlp"},
    "training": {"steps": 30},
    "budget": {"initial": 20, "labels": 60, "retrain_every": 20},
    "asking": {"candidates": 200},
}


def settings(seed: int, **more) -> dict:
    return {**SETTINGS, "seed": seed, "threads": 1, "device": "cpu", **more}


def plan(seed: int = 0):
    return build_simulation(prepare_campaign(parse_campaign(settings(seed))))


def asked(plan, name: str | Peer) -> tuple[list, list[int]]:
    """Rounds of a campaign, and the items in the order of their labels."""
    order: list[int] = []
    noted = replace(plan, labeller=lambda p: (order.append(p), plan.labeller(p))[1])
    usual = plan.asking
    how = replace(usual, strategy=name.value) if isinstance(name, Peer) else asking_by(name, usual)
    return played(noted, how), list(dict.fromkeys(order))


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("name", ["random", "flip", "badge"])
def test_our_strategies_do_what_they_do_in_a_campaign(name, seed):
    asking = {**SETTINGS["asking"], "strategy": name}
    ours = run(parse_campaign(settings(seed, asking=asking)))
    rows, order = asked(plan(seed), name)
    assert [(r.labels, r.accuracy) for r in rows] == ours.curve
    assert order == ours.pool.labelled.tolist()


@pytest.mark.parametrize("seed", [0, 7])
def test_the_way_of_other_packages_differs_in_nothing_but_the_choice(seed):
    """Our random choice, handed over as a package would: through the other packages' way."""

    def choose(given, q, rng):
        return torch.randperm(len(given.inputs) - len(given.labels), generator=rng)[:q].tolist()

    ours = run(parse_campaign(settings(seed, asking={**SETTINGS["asking"], "strategy": "random"})))
    rows, order = asked(plan(seed), Peer("random", "here", "here", choose))
    assert [(r.labels, r.accuracy) for r in rows] == ours.curve
    assert order == ours.pool.labelled.tolist()


@pytest.mark.parametrize("name", ["margin", "coreset"])
@pytest.mark.parametrize("package", ["scikit-activeml", "DISTIL"])
def test_packages_agree_with_ours_where_nothing_is_left_to_chance(name, package):
    """After squared loss too: they are handed the same probabilities and embedding."""
    theirs, order = asked(plan(), f"{name} ({package})")
    ours, own = asked(plan(), name)
    assert [r.accuracy for r in theirs] == [r.accuracy for r in ours]
    assert set(order) == set(own)


def after_one_round(p):
    """Pool and network of a campaign after its first training."""
    last: list[State] = []
    few = replace(p, budget=replace(p.budget, labels=p.budget.initial))
    list(run_rounds(few, keep=last.append))
    return last[0]


@pytest.mark.parametrize("name", sorted(PEERS))
def test_every_strategy_names_distinct_candidates_and_repeats_itself(name):
    p = plan()
    learner = p.learner
    pool = Pool(len(learner.inputs), test=p.excluded)
    pool.label(pool.unlabelled[:15], [p.labeller(i) for i in pool.unlabelled[:15].tolist()])
    few = QueryConfig("random", candidates=40)
    now = QueryContext.from_pool(
        learner.network(0).eval(), learner.inputs, pool, few, 3, loss=learner.training.loss
    )
    now.fresh, now.training = learner.network, learner.training
    before = torch.get_rng_state()
    rows = PEERS[name].choose(Given.of(now), 3, make_generator(0, "x"))
    assert len(distinct(rows, 40)) == 3
    assert PEERS[name].choose(Given.of(now), 3, make_generator(0, "x")) == rows
    picks = PEERS[name].select_batch(now, 3, make_generator(0, "x"), "top", None)
    assert picks.positions.tolist() == now.candidates[torch.tensor(rows)].tolist()
    assert picks.memory == {"filled": 0}
    assert list(now.seconds) == ["score"]
    assert torch.equal(torch.get_rng_state(), before)


def test_what_a_package_leaves_open_is_drawn_and_counted():
    rows, order = asked(plan(), Peer("twice", "here", "here", lambda given, q, rng: [0] * q))
    assert [r.memory and r.memory["filled"] for r in rows] == [19, 19, None]
    assert len(order) == 60


def test_rows_outside_and_unknown_names_are_refused():
    with pytest.raises(InputError, match="chose row 5"):
        distinct([1, 5], 5)
    with pytest.raises(InputError, match="expected one of random"):
        asking_by("margin (nobody)", QueryConfig())
    with pytest.raises(InputError, match="make results-competitors"):
        need("no_such_module", "no-such-package")


def test_global_generators_are_as_before():
    import random

    import numpy as np

    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with seeded(make_generator(0, "x")):
        random.random(), np.random.rand()  # noqa: NPY002
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


TABLE = """
title = "A small one"
group = "peers"
seeds = 2
strategies = "random"
peers = ["margin (scikit-activeml)"]
"""


@pytest.fixture
def small(tmp_path):
    """A table file, and a function that runs it and returns the ledger's lines."""
    from research.results import competitors as module

    parts = [f"[campaign.{k}]\n" + _toml(v) for k, v in SETTINGS.items()]
    file = tmp_path / "peers-small.toml"
    file.write_text(TABLE + "\n".join(parts))
    source = module.Source(tmp_path, tmp_path / "out")

    def go(seeds=None, names=()):
        wanted = module.read_table(file, seeds, names)
        with module.opened(wanted.table, source) as ledger:
            assert module.run(wanted, ledger, source) == []
            module.export(wanted.table, ledger, tmp_path)
        return (tmp_path / "out" / "peers-small" / "campaigns.jsonl").read_text().splitlines()

    return go, file, tmp_path


def _toml(values: dict) -> str:
    return "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items())


def rows(folder: Path) -> list[list[str]]:
    with (folder / "peers-small.csv").open() as file:
        return [row[:5] for row in csv.reader(file)]


def test_a_table_goes_on_where_it_was_cut(small):
    go, _, folder = small
    assert len(go(seeds=1)) == 1 + 2
    lines = go()
    assert len(lines) == 1 + 4
    whole = rows(folder)
    assert whole[0] == ["variant", "strategy", "seed", "labels", "accuracy"]
    assert len(whole) == 1 + 4 * 3
    ledger = folder / "out" / "peers-small" / "campaigns.jsonl"
    text = ledger.read_bytes()
    ledger.write_bytes(text[:-40])  # as a kill in the midst of writing leaves it
    assert [line[:60] for line in go()] == [line[:60] for line in lines]
    assert rows(folder) == whole
    kept = ledger.read_bytes()
    assert go() == kept.decode().splitlines()  # nothing is run twice
    assert "scikit-activeml" in (folder / "peers-small.versions.json").read_text()


def test_a_table_whose_settings_changed_is_refused(small):
    go, file, _ = small
    go(seeds=1, names=["random"])
    file.write_text(file.read_text().replace("candidates = 200", "candidates = 100"))
    with pytest.raises(InputError, match="other settings"):
        go(seeds=1, names=["random"])


def test_the_candidates_are_those_of_our_own_query():
    """A package sees the items that `propose` draws: with all of them asked for, the same set."""
    p = plan()
    pool, model = after_one_round(p)
    how = {"loss": p.learner.training.loss, "seed": p.seed}
    every = Peer("x", "x", "x", lambda given, q, rng: list(range(q)))
    theirs = propose(
        model, p.learner.inputs, pool, 200, replace(p.asking, strategy=every.value), **how
    )
    ours = propose(model, p.learner.inputs, pool, 200, p.asking, **how)
    assert set(ours.positions.tolist()) == set(theirs.positions.tolist())
