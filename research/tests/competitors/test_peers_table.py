"""Other packages in our campaigns: only the query differs from `labelahead run`; resumable."""

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
from research.competitors.adapters import PEERS, Given, Peer, distinct, need, seed_global_generators
from research.results.competitors import asking_by
from research.results.runs import run_plan

SETTINGS = {
    "data": {"name": "digits"},
    "model": {"name": "mlp"},
    "training": {"steps": 30},
    "budget": {"initial": 20, "labels": 60, "retrain_every": 20},
    "asking": {"candidates": 200},
}


def make_settings(seed: int, **more) -> dict:
    return {**SETTINGS, "seed": seed, "threads": 1, "device": "cpu", **more}


def plan(seed: int = 0):
    return build_simulation(prepare_campaign(parse_campaign(make_settings(seed))))


def run_campaign(plan, name: str | Peer) -> tuple[list, list[int]]:
    """Return the rounds of a campaign and the items in the order of their labels."""
    order: list[int] = []
    recording = replace(plan, labeller=lambda p: (order.append(p), plan.labeller(p))[1])
    default = plan.asking
    query_config = (
        replace(default, strategy=name.value)
        if isinstance(name, Peer)
        else asking_by(name, default)
    )
    return run_plan(recording, query_config), list(dict.fromkeys(order))


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("name", ["random", "flip", "badge"])
def test_own_strategies_query_as_in_a_campaign(name, seed):
    asking = {**SETTINGS["asking"], "strategy": name}
    ours = run(parse_campaign(make_settings(seed, asking=asking)))
    rows, order = run_campaign(plan(seed), name)
    assert [(r.labels, r.accuracy) for r in rows] == ours.curve
    assert order == ours.pool.labelled.tolist()


@pytest.mark.parametrize("seed", [0, 7])
def test_adapter_with_random_choice_equals_random_campaign(seed):
    """Random selection through the adapter of the other packages equals our own `random`."""

    def choose(given, q, rng):
        return torch.randperm(len(given.inputs) - len(given.labels), generator=rng)[:q].tolist()

    ours = run(
        parse_campaign(make_settings(seed, asking={**SETTINGS["asking"], "strategy": "random"}))
    )
    rows, order = run_campaign(plan(seed), Peer("random", "here", "here", choose))
    assert [(r.labels, r.accuracy) for r in rows] == ours.curve
    assert order == ours.pool.labelled.tolist()


@pytest.mark.parametrize("name", ["margin", "coreset"])
@pytest.mark.parametrize("package", ["scikit-activeml", "DISTIL"])
def test_deterministic_strategies_of_packages_query_same_items(name, package):
    """The packages receive the same probabilities and embedding, also for squared loss."""
    theirs, order = run_campaign(plan(), f"{name} ({package})")
    ours, own = run_campaign(plan(), name)
    assert [r.accuracy for r in theirs] == [r.accuracy for r in ours]
    assert set(order) == set(own)


def run_first_round(p):
    """Return the pool and the network of a campaign after its first training."""
    last: list[State] = []
    shortened = replace(p, budget=replace(p.budget, labels=p.budget.initial))
    list(run_rounds(shortened, keep=last.append))
    return last[0]


@pytest.mark.parametrize("name", sorted(PEERS))
def test_adapter_returns_distinct_candidates_and_is_reproducible(name):
    p = plan()
    learner = p.learner
    pool = Pool(len(learner.inputs), test=p.excluded)
    pool.label(pool.unlabelled[:15], [p.labeller(i) for i in pool.unlabelled[:15].tolist()])
    query_config = QueryConfig("random", candidates=40)
    context = QueryContext.from_pool(
        learner.network(0).eval(), learner.inputs, pool, query_config, 3, loss=learner.training.loss
    )
    context.fresh, context.training = learner.network, learner.training
    before = torch.get_rng_state()
    rows = PEERS[name].choose(Given.of(context), 3, make_generator(0, "x"))
    assert len(distinct(rows, 40)) == 3
    assert PEERS[name].choose(Given.of(context), 3, make_generator(0, "x")) == rows
    batch = PEERS[name].select_batch(context, 3, make_generator(0, "x"), "top", None)
    assert batch.positions.tolist() == context.candidates[torch.tensor(rows)].tolist()
    assert batch.memory == {"filled": 0}
    assert list(context.seconds) == ["score"]
    assert torch.equal(torch.get_rng_state(), before)


def test_missing_rows_of_a_package_are_sampled_and_counted():
    rows, order = run_campaign(plan(), Peer("twice", "here", "here", lambda given, q, rng: [0] * q))
    assert [r.memory and r.memory["filled"] for r in rows] == [19, 19, None]
    assert len(order) == 60


def test_invalid_rows_and_unknown_names_raise():
    with pytest.raises(InputError, match="chose row 5"):
        distinct([1, 5], 5)
    with pytest.raises(InputError, match="expected one of random"):
        asking_by("margin (nobody)", QueryConfig())
    with pytest.raises(InputError, match="make results-competitors"):
        need("no_such_module", "no-such-package")


def test_seeded_restores_global_generators():
    import random

    import numpy as np

    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with seed_global_generators(make_generator(0, "x")):
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
def small_table(tmp_path):
    """Return a table file and a function that runs it and returns the lines of the ledger."""
    from research.results import competitors as module

    parts = [f"[campaign.{k}]\n" + _toml(v) for k, v in SETTINGS.items()]
    file = tmp_path / "peers-small.toml"
    file.write_text(TABLE + "\n".join(parts))
    source = module.Source(tmp_path, tmp_path / "out")

    def run_table(seeds=None, names=()):
        wanted = module.read_table(file, seeds, names)
        with module.opened(wanted.table, source) as ledger:
            assert module.run(wanted, ledger, source) == []
            module.export(wanted.table, ledger, tmp_path)
        return (tmp_path / "out" / "peers-small" / "campaigns.jsonl").read_text().splitlines()

    return run_table, file, tmp_path


def _toml(values: dict) -> str:
    return "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items())


def read_rows(folder: Path) -> list[list[str]]:
    with (folder / "peers-small.csv").open() as file:
        return [row[:5] for row in csv.reader(file)]


def test_interrupted_table_resumes(small_table):
    run_table, _, folder = small_table
    assert len(run_table(seeds=1)) == 1 + 2
    lines = run_table()
    assert len(lines) == 1 + 4
    whole = read_rows(folder)
    assert whole[0] == ["variant", "strategy", "seed", "labels", "accuracy"]
    assert len(whole) == 1 + 4 * 3
    ledger = folder / "out" / "peers-small" / "campaigns.jsonl"
    text = ledger.read_bytes()
    ledger.write_bytes(text[:-40])  # as a kill in the midst of writing leaves it
    assert [line[:60] for line in run_table()] == [line[:60] for line in lines]
    assert read_rows(folder) == whole
    kept = ledger.read_bytes()
    assert run_table() == kept.decode().splitlines()  # nothing is run twice
    assert "scikit-activeml" in (folder / "peers-small.versions.json").read_text()


def test_table_with_changed_settings_raises(small_table):
    run_table, file, _ = small_table
    run_table(seeds=1, names=["random"])
    file.write_text(file.read_text().replace("candidates = 200", "candidates = 100"))
    with pytest.raises(InputError, match="other settings"):
        run_table(seeds=1, names=["random"])


def test_candidates_equal_those_of_propose():
    """A package receives the candidates that `propose` draws: querying all gives the same set."""
    p = plan()
    pool, model = run_first_round(p)
    options = {"loss": p.learner.training.loss, "seed": p.seed}
    peer = Peer("x", "x", "x", lambda given, q, rng: list(range(q)))
    theirs = propose(
        model, p.learner.inputs, pool, 200, replace(p.asking, strategy=peer.value), **options
    )
    ours = propose(model, p.learner.inputs, pool, 200, p.asking, **options)
    assert set(ours.positions.tolist()) == set(theirs.positions.tolist())
