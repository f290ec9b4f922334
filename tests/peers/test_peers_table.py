"""Other packages in our campaigns: all but their choice is as in `labelahead run`; resumable."""

import csv
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("skactiveml")
pytest.importorskip("distil")

sys.path.append(str(Path(__file__).parents[2] / "studies"))  # last: its names are not the tests'

import torch

from labelahead.campaign import prepare, run, simulation
from labelahead.config import parse
from labelahead.errors import InputError
from labelahead.propose import propose
from labelahead.situation import stream
from peer_arms import PEERS, Peer, need, seeded
from peer_campaigns import arm, campaign, distinct

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
    return simulation(prepare(parse(settings(seed))))


def asked(plan, name: str) -> tuple[list, list[int]]:
    """Rows of a campaign, and the items in the order of their labels."""
    order: list[int] = []

    def note(position: int) -> int:
        order.append(position)
        return labeller(position)

    labeller = plan.labeller
    object.__setattr__(plan, "labeller", note)
    rows = list(campaign(plan, name))
    return rows, list(dict.fromkeys(order))


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("name", ["random", "flip", "badge"])
def test_our_strategies_do_what_they_do_in_a_campaign(name, seed):
    asking = {**SETTINGS["asking"], "strategy": name}
    ours = run(parse(settings(seed, asking=asking)))
    rows, order = asked(plan(seed), name)
    assert [(r.labels, r.accuracy) for r in rows] == ours.curve
    assert order == ours.pool.labelled.tolist()


@pytest.fixture
def random_peer(monkeypatch):
    """Our random choice, handed over as a package would: through the other packages' way."""

    def choose(s, q, rng):
        return torch.randperm(len(s.candidates), generator=rng)[:q].tolist()

    peers = {**PEERS, "random (here)": Peer("random", "here", "here", choose)}
    monkeypatch.setattr("peer_campaigns.PEERS", peers)


@pytest.mark.parametrize("seed", [0, 7])
def test_the_way_of_other_packages_differs_in_nothing_but_the_choice(seed, random_peer):
    ours = run(parse(settings(seed, asking={**SETTINGS["asking"], "strategy": "random"})))
    rows, order = asked(plan(seed), "random (here)")
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


@pytest.mark.parametrize("name", sorted(PEERS))
def test_every_strategy_names_distinct_candidates_and_repeats_itself(name):
    from labelahead.pool import Pool
    from labelahead.propose import situation
    from labelahead.situation import Asking

    p = plan()
    pool = Pool(len(p.inputs), test=p.closed)
    pool.label(pool.unlabelled[:15], [p.labeller(i) for i in pool.unlabelled[:15].tolist()])
    few = Asking("random", candidates=40)
    now = situation(p.network(0).eval(), p.inputs, pool, few, 3, loss=p.training.loss)
    now.fresh, now.training = p.network, p.training
    before = torch.get_rng_state()
    rows = PEERS[name].choose(now, 3, stream(0, "x"))
    assert len(distinct(rows, 40)) == 3
    assert PEERS[name].choose(now, 3, stream(0, "x")) == rows
    assert torch.equal(torch.get_rng_state(), before)


def test_what_a_package_leaves_open_is_drawn_and_counted(monkeypatch):
    twice = Peer("twice", "here", "here", lambda s, q, rng: [0] * q)
    monkeypatch.setattr("peer_campaigns.PEERS", {"twice (here)": twice})
    rows, order = asked(plan(), "twice (here)")
    assert [r.filled for r in rows] == [19, 19, 0]
    assert len(order) == 60


def test_rows_outside_and_unknown_names_are_refused():
    with pytest.raises(InputError, match="chose row 5"):
        distinct([1, 5], 5)
    with pytest.raises(InputError, match="expected one of margin"):
        arm("margin (nobody)")
    with pytest.raises(InputError, match="make results-peers"):
        need("no_such_module", "no-such-package")


def test_global_generators_are_as_before():
    import random

    import numpy as np

    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with seeded(stream(0, "x")):
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
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "peers_table", Path(__file__).parents[2] / "studies" / "peers.py"
    )  # a folder of the tests is called `peers` too
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    parts = [f"[campaign.{k}]\n" + _toml(v) for k, v in SETTINGS.items()]
    file = tmp_path / "peers-small.toml"
    file.write_text(TABLE + "\n".join(parts))
    source = module.Source(tmp_path, tmp_path / "out")

    def go(seeds=None, arms=()):
        table = module.read_table(file, seeds, arms)
        with module.opened(table, source) as ledger:
            assert module.run(table, ledger, source) == []
            module.export(table, ledger, tmp_path)
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
    go(seeds=1, arms=["random"])
    file.write_text(file.read_text().replace("candidates = 200", "candidates = 100"))
    with pytest.raises(InputError, match="other settings"):
        go(seeds=1, arms=["random"])


def test_the_candidates_are_those_of_our_own_query():
    """A package sees the items that `propose` draws: with all of them asked for, the same set."""
    p = plan()
    seen = []

    def choose(s, q, rng):
        seen.append(s.candidates)
        return list(range(q))

    from choice_loop import first_round
    from peer_campaigns import _theirs

    pool, model, _ = first_round(p)
    _theirs(p, pool, model, Peer("x", "x", "x", choose), 3)
    how = p.asking
    ours = propose(model, p.inputs, pool, 200, how, loss=p.training.loss, seed=p.seed)
    assert set(ours.positions.tolist()) == set(seen[0].tolist())
