"""Snapshots built in steps while an encoder embeds the pool.

Unreadable items are left out.
"""

import os
import signal
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from labelahead.data.loading import load_source
from labelahead.learner.config import parse_campaign
from labelahead.server.snapshot import TrainingRequest
from labelahead.server.snapshot_builder import SnapshotBuilder, shuffle_positions
from tests.support.slow import slow
from tests.support.waiting import until
from tests.support.warm_processes import start_python
from tests.support.web_answers import answer
from tests.support.web_sessions import page, photos, progress_once

SLOW_EMBEDDING = """
import time

def mean(pictures):
    time.sleep({seconds})
    return pictures.float().mean((2, 3))
"""
BLOCKING_EMBEDDING = """
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


def make_campaign(folder, tmp_path, **tables):
    (tmp_path / "own.py").write_text(SLOW_EMBEDDING.format(seconds=0))
    own = f"{tmp_path / 'own.py'}:mean"
    data = {"name": str(folder), "embedding": own, "checked": False, "test_fraction": 0.0}
    return parse_campaign({"data": data, "model": {"name": "exact"}, "threads": 1} | tables)


def build_all(config, request, test=(), data=None, **limits):
    data = data or load_source(config.data, config.seed)[0]
    builder = SnapshotBuilder(config, data, dict(test), **limits)
    progress = []
    return (
        builder,
        [
            s
            for s, _ in builder.build_snapshots(
                request, lambda what, done: progress.append((what, done))
            )
        ],
        progress,
    )


def test_build_snapshots_adds_items_until_the_whole_pool_is_covered(tmp_path):
    config = make_campaign(photos(tmp_path / "set", 40), tmp_path)
    labels = ((7, 1), (30, 0))
    builder, snapshots, progress = build_all(
        config, TrainingRequest(0, labels, 2), dict.fromkeys(range(35, 40), 0), first_items=4
    )
    assert builder.encodes_in_steps
    assert [len(s.points) for s in snapshots[:1]] == [6]
    assert [s.pool_facts.is_whole for s in snapshots] == [False] * (len(snapshots) - 1) + [True]
    for before, after in pairwise(snapshots):
        assert set(before.points.tolist()) < set(after.points.tolist())
    assert sorted(snapshots[-1].points.tolist()) == list(range(35))
    assert {7, 30} < set(snapshots[0].points.tolist())
    first = [p for p in shuffle_positions(40, config.seed).tolist() if p < 35 and p not in (7, 30)][
        :4
    ]
    assert set(snapshots[0].points.tolist()) == {7, 30, *first}
    done = [d for what, d in progress if what == "features"]
    assert done == sorted(done)
    assert done[-1] == 1.0
    assert len(snapshots[-1].test[0]) == 5


def test_last_snapshot_equals_one_built_from_all_items_at_once(tmp_path):
    config = make_campaign(photos(tmp_path / "set", 40), tmp_path)
    _, snapshots, _ = build_all(config, TrainingRequest(0, (), 2), first_items=4)
    _, (at_once,), _ = build_all(config, TrainingRequest(0, (), 2), first_items=1000)
    request = TrainingRequest(1, tuple((p, p % 2) for p in range(12)), 2)
    stepwise, whole = (s.refresh(request) for s in (snapshots[-1], at_once))
    stepwise_mean, whole_mean = (
        s.build_posterior(s.labels, 2).mean(list(range(12, 40))) for s in (stepwise, whole)
    )
    assert torch.allclose(stepwise_mean, whole_mean, atol=1e-6)
    assert stepwise.weights == whole.weights


@pytest.mark.parametrize("embedding", [True, False])
def test_unreadable_images_are_excluded_and_listed(tmp_path, embedding):
    folder = photos(tmp_path / "set", 20)
    (folder / "03.png").write_bytes(b"no picture")
    (folder / "11.png").write_bytes((folder / "12.png").read_bytes()[:200])
    config = make_campaign(folder, tmp_path)
    if not embedding:  # raw pixels
        config = parse_campaign(
            {
                "data": {"name": str(folder), "checked": False, "embedding": "raw"},
                "model": {"name": "exact"},
            }
        )
    builder, snapshots, _ = build_all(config, TrainingRequest(0, (), 2), first_items=4)
    assert sorted(builder.unreadable) == [3, 11]
    assert sorted(snapshots[-1].points.tolist()) == [p for p in range(20) if p not in (3, 11)]
    assert snapshots[-1].pool_facts.unreadable == builder.unreadable
    trained = parse_campaign(
        {
            "data": {"name": str(folder), "checked": False},
            "model": {"name": "mlp"},
            "training": {"steps": 3},
        }
    )
    _, (snapshot,), _ = build_all(trained, TrainingRequest(1, ((19, 1), (12, 0)), 2), first_items=4)
    assert snapshot.labels == {19: 1, 12: 0}
    assert (
        set(snapshot.pool_facts.map.points)
        == set(snapshot.points.tolist())
        == {p for p in range(20) if p not in (3, 11)}
    )
    assert sorted(row.position for row in snapshot.fit_facts.leave_one_out.rows) == [12, 19]


def test_build_snapshots_covers_at_most_max_active_items_of_the_pool(tmp_path):
    rows = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    np.savez(tmp_path / "set.npz", x=rows)
    (tmp_path / "own.py").write_text("def twice(rows):\n    return 2 * rows\n")
    data = {"name": str(tmp_path / "set.npz"), "embedding": f"{tmp_path / 'own.py'}:twice"}
    _, snapshots, _ = build_all(
        parse_campaign({"data": data, "model": {"name": "exact"}}),
        TrainingRequest(0, ((999, 0), (998, 1)), 2),
        max_active_items=300,
    )
    assert [len(s.points) for s in snapshots] == [258, 301]
    assert {998, 999} < set(snapshots[0].points.tolist())


def test_page_queries_among_embedded_items_while_the_rest_is_embedded(tmp_path):
    """While the encoder is blocked after 256 of 600 images, the page queries among these.

    Afterwards it queries among all.
    """
    folder = photos(tmp_path / "set", 600)
    (tmp_path / "own.py").write_text(
        BLOCKING_EMBEDDING.format(first=256, opened=str(tmp_path / "go on"))
    )
    tables = {
        "data": {"name": str(folder), "embedding": f"{tmp_path / 'own.py'}:mean"},
        "model": {"name": "exact"},
    }

    def wait_for_status(client, wanted):
        return progress_once(client, lambda p: wanted(p["training"]))["training"]

    with page(
        folder,
        tmp_path / "out",
        tables=tables,
        start=True,
        retrain_every=4,
        classes=["dark", "light"],
    ) as (client, session):
        assert client.get("/api/question").json()["reason"] == "random start"
        starting = wait_for_status(
            client, lambda s: s["in_play"] or s["first"]["seconds_left"] is not None
        )
        if not starting["in_play"]:
            assert starting["first"]["of"] == 256
            assert 0 < starting["first"]["seen"] <= 256
            assert starting["first"]["seconds_left"] <= starting["seconds_left"]
        early = wait_for_status(client, lambda s: s["in_play"])
        assert early["in_play"] == 256
        assert early["first"] is None
        assert early["state"] == "features"
        assert not early["idle"]
        for _ in range(4):
            # Queries of a model that is still being updated may all be of one class, and training
            # needs two.
            until(lambda: not session.service.is_behind)
            query = client.get("/api/question?fresh=1").json()
            assert query["reason"] == "covers the pool"
            answer(client, query["position"], 1 - int(query["item"][:-4]) % 2)
        assert set(session.service.label_state.labels.values()) == {0, 1}
        between = wait_for_status(client, lambda s: s["round"] == 1)
        assert between["in_play"] == 256
        (tmp_path / "go on").touch()
        late = wait_for_status(client, lambda s: s["idle"])
        assert late["in_play"] == 600
        progress_now = client.get("/api/progress").json()
        assert (progress_now["labels"], [r["labels"] for r in progress_now["curve"]]) == (4, [4])
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


@pytest.mark.parametrize("after", [slow(0.0), 2.5])
def test_killed_server_leaves_no_worker(tmp_path, after):
    (tmp_path / "own.py").write_text(SLOW_EMBEDDING.format(seconds=600))
    script = tmp_path / "server.py"
    folder = photos(tmp_path / "set", 8)
    script.write_text(
        SERVER.format(
            folder=str(folder), own=f"{tmp_path / 'own.py'}:mean", out=str(tmp_path / "out")
        )
    )
    server = start_python([script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    worker = int(server.stdout.readline())
    time.sleep(after)
    server.send_signal(signal.SIGKILL)
    server.wait()
    assert until(
        lambda: not is_running(worker)
    )  # a starting worker checks its parent once it has started


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
