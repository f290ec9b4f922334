"""Items that a network must look at first come into play little by little.

What cannot be read is left out.
"""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from labelahead.data.loading import load_source
from labelahead.learner.config import parse_campaign
from labelahead.server import snapshot_builder as builder_module
from labelahead.server.refresh import TrainingRequest, refresh_snapshot
from labelahead.server.snapshot_builder import SnapshotBuilder, load_page_data, shuffle_positions
from tests.support.waiting import until
from tests.support.web_sessions import CHANGE, page, photos, progress_once

SLOWLY = """
import time

def mean(pictures):
    time.sleep({seconds})
    return pictures.float().mean((2, 3))
"""
STANDING = """
import time
from pathlib import Path

seen = 0

def mean(pictures):
    global seen
    while seen >= {first} and not Path({opened!r}).exists():
        time.sleep(0.01)
    seen += len(pictures)
    return pictures.float().mean((2, 3))
"""
QUIET = lambda what, done: None  # noqa: E731


def campaign(folder, tmp_path, **more):
    (tmp_path / "own.py").write_text(SLOWLY.format(seconds=0))
    own = f"{tmp_path / 'own.py'}:mean"
    data = {"name": str(folder), "embedding": own, "checked": False, "test_fraction": 0.0}
    return parse_campaign({"data": data, "model": {"name": "exact"}, "threads": 1} | more)


@pytest.fixture
def few_first(monkeypatch):
    monkeypatch.setattr(builder_module, "FIRST_ITEMS", 4)


def made(asked, order, test=(), given=None):
    shop = SnapshotBuilder(asked, given or load_source(asked.data, asked.seed), dict(test))
    told = []
    return (
        shop,
        [s for s, _ in shop.build_snapshots(order, lambda what, done: told.append((what, done)))],
        told,
    )


@pytest.mark.usefixtures("few_first")
def test_more_and_more_items_are_in_play_and_the_last_are_all(tmp_path):
    asked = campaign(photos(tmp_path / "set", 40), tmp_path)
    labels = ((7, 1), (30, 0))
    shop, several, told = made(
        asked, TrainingRequest(0, labels, 2), dict.fromkeys(range(35, 40), 0)
    )
    assert shop.encodes_in_steps
    assert [len(s.points) for s in several[:1]] == [6]
    assert [s.facts["whole"] for s in several] == [False] * (len(several) - 1) + [True]
    for before, after in pairwise(several):
        assert set(before.points.tolist()) < set(after.points.tolist())
    assert sorted(several[-1].points.tolist()) == list(range(35))
    assert {7, 30} < set(several[0].points.tolist())
    first = [p for p in shuffle_positions(40, asked.seed).tolist() if p < 35 and p not in (7, 30)][
        :4
    ]
    assert set(several[0].points.tolist()) == {7, 30, *first}
    done = [d for what, d in told if what == "features"]
    assert done == sorted(done)
    assert done[-1] == 1.0
    assert len(several[-1].test[0]) == 5


@pytest.mark.usefixtures("few_first")
def test_the_last_snapshot_is_that_of_all_items_at_once(tmp_path, monkeypatch):
    asked = campaign(photos(tmp_path / "set", 40), tmp_path)
    _, several, _ = made(asked, TrainingRequest(0, (), 2))
    monkeypatch.setattr(builder_module, "FIRST_ITEMS", 1000)
    _, (at_once,), _ = made(asked, TrainingRequest(0, (), 2))
    order = TrainingRequest(1, tuple((p, p % 2) for p in range(12)), 2)
    one, other = (refresh_snapshot(s, order) for s in (several[-1], at_once))
    by_one, by_other = (
        s.build_posterior(s.labels, 2).mean(list(range(12, 40))) for s in (one, other)
    )
    assert torch.allclose(by_one, by_other, atol=1e-6)
    assert one.weights == other.weights


@pytest.mark.usefixtures("few_first")
@pytest.mark.parametrize("embedding", [True, False])
def test_what_cannot_be_read_is_left_out_and_named(tmp_path, embedding):
    folder = photos(tmp_path / "set", 20)
    (folder / "03.png").write_bytes(b"no picture")
    (folder / "11.png").write_bytes((folder / "12.png").read_bytes()[:200])
    asked = campaign(folder, tmp_path)
    if not embedding:  # pixels as they are
        asked = parse_campaign(
            {
                "data": {"name": str(folder), "checked": False, "embedding": "raw"},
                "model": {"name": "exact"},
            }
        )
    shop, several, _ = made(asked, TrainingRequest(0, (), 2))
    assert sorted(shop.unreadable) == [3, 11]
    assert sorted(several[-1].points.tolist()) == [p for p in range(20) if p not in (3, 11)]
    assert several[-1].facts["unreadable"] == shop.unreadable
    trained = parse_campaign(
        {
            "data": {"name": str(folder), "checked": False},
            "model": {"name": "mlp"},
            "training": {"steps": 3},
        }
    )
    _, (snap,), _ = made(trained, TrainingRequest(1, ((19, 1), (12, 0)), 2))
    assert snap.labels == {19: 1, 12: 0}
    assert (
        set(snap.facts["map"]["points"])
        == set(snap.points.tolist())
        == {p for p in range(20) if p not in (3, 11)}
    )
    assert sorted(row[0] for row in snap.facts["second_look"]) == [12, 19]


def test_a_folder_that_has_grown_keeps_its_order(tmp_path):
    folder = photos(tmp_path / "set", 6)
    asked = campaign(folder, tmp_path)
    data, answers = load_page_data(asked, ["05.png", "gone.png", "01.png"])
    assert data.ids == ("05.png", "gone.png", "01.png", "00.png", "02.png", "03.png", "04.png")
    assert answers is None
    plain, _ = load_source(asked.data, 0)
    here, there = (
        data.images.batch(torch.tensor([0, 2, 6]), 8),
        plain.images.batch(torch.tensor([5, 1, 4]), 8),
    )
    assert torch.equal(here, there)
    assert data.images.get_file_sizes()[1] is None


def test_a_pool_beyond_what_is_in_play(tmp_path, monkeypatch):
    monkeypatch.setattr(builder_module, "MAX_ACTIVE_ITEMS", 300)
    rows = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    np.savez(tmp_path / "set.npz", x=rows)
    (tmp_path / "own.py").write_text("def twice(rows):\n    return 2 * rows\n")
    data = {"name": str(tmp_path / "set.npz"), "embedding": f"{tmp_path / 'own.py'}:twice"}
    _, several, _ = made(
        parse_campaign({"data": data, "model": {"name": "exact"}}),
        TrainingRequest(0, ((999, 0), (998, 1)), 2),
    )
    assert [len(s.points) for s in several] == [258, 301]
    assert {998, 999} < set(several[0].points.tolist())


def test_questions_look_ahead_while_the_rest_is_looked_at(tmp_path):
    """While the embedding stands still after 256 of 600 pictures, the page asks by these.

    Then by all.
    """
    folder = photos(tmp_path / "set", 600)
    (tmp_path / "own.py").write_text(STANDING.format(first=256, opened=str(tmp_path / "go on")))
    tables = {
        "data": {"name": str(folder), "embedding": f"{tmp_path / 'own.py'}:mean"},
        "model": {"name": "exact"},
    }

    def status(client, wanted):
        return progress_once(client, lambda p: wanted(p["training"]))["training"]

    with page(
        folder, tmp_path / "out", tables=tables, start=True, every=4, classes=["dark", "light"]
    ) as (client, _):
        assert client.get("/api/question").json()["reason"] == "random start"
        begun = status(client, lambda s: s["in_play"] or s["first"]["seconds_left"] is not None)
        if not begun["in_play"]:
            assert begun["first"]["of"] == 256
            assert 0 < begun["first"]["seen"] <= 256
            assert begun["first"]["seconds_left"] <= begun["seconds_left"]
        early = status(client, lambda s: s["in_play"])
        assert early["in_play"] == 256
        assert early["first"] is None
        assert early["state"] == "features"
        assert not early["idle"]
        asked = client.get("/api/question?fresh=1").json()
        assert asked["reason"] == "covers the pool"
        for _ in range(4):
            body = {
                "position": asked["position"],
                "kind": "label",
                "label": 1 - int(asked["item"][:-4]) % 2,
            }
            asked = client.post("/api/answers", json=body, headers=CHANGE).json()["next"]
        between = status(client, lambda s: s["round"] == 1)
        assert between["in_play"] == 256
        (tmp_path / "go on").touch()
        late = status(client, lambda s: s["idle"])
        assert late["in_play"] == 600
        found = client.get("/api/progress").json()
        assert (found["labels"], [r["labels"] for r in found["curve"]]) == (4, [4])
        assert client.get("/api/question").json()["reason"] == "look-ahead"


SERVER = """
import sys, time
from tests.support.web_sessions import page
if __name__ == "__main__":
    tables = {{"data": {{"name": {folder!r}, "embedding": {own!r}}}, "model": {{"name": "exact"}}}}
    with page({folder!r}, {out!r}, tables=tables, start=True, classes=["a", "b"]) as (client, session):
        while getattr(session.schedule.worker._process, "pid", None) is None:
            time.sleep(0.01)
        print(session.schedule.worker._process.pid, flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("after", [0.0, 2.5])
def test_a_server_that_is_killed_leaves_no_worker(tmp_path, after):
    (tmp_path / "own.py").write_text(SLOWLY.format(seconds=600))
    script = tmp_path / "server.py"
    folder = photos(tmp_path / "set", 8)
    script.write_text(
        SERVER.format(
            folder=str(folder), own=f"{tmp_path / 'own.py'}:mean", out=str(tmp_path / "out")
        )
    )
    server = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    worker = int(server.stdout.readline())
    time.sleep(after)
    server.send_signal(signal.SIGKILL)
    server.wait()
    assert until(
        lambda: not _running(worker)
    )  # one that is still being started looks around when it has been


def _running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
