"""The page on a pool that a real Dask cluster scores.

Scheduler and workers are processes, and are killed.
"""

import time
from urllib.parse import urlsplit

import pytest

from labelahead.outofcore import LargePool
from tests.server.test_large_pool import HOW, N, answer, settled, store  # noqa: F401
from tests.support.clusters import Cluster
from tests.support.web_sessions import page, progress_once

pytest.importorskip("distributed")


def test_a_scheduler_killed_while_people_label_costs_no_label(store, tmp_path, monkeypatch):  # noqa: F811
    place, y = store
    with Cluster(tmp_path, workers=2) as cluster:
        how = HOW | {"executor": cluster.address, "refresh_every": 10, "every": 5}
        with page(place, tmp_path / "labels", start=True, **how) as (client, session):
            settled(client)
            held = len(session.service.items)
            assert held > 60  # the best of the pool have joined the sample
            asked = client.get("/api/question").json()
            for _ in range(9):
                asked = answer(client, asked, y)
            monkeypatch.setattr("labelahead.outofcore.execution.CONNECT_SECONDS", 3)
            monkeypatch.setattr("labelahead.server.schedule.RETRY_SECONDS", 0.5)
            cluster.kill(cluster.scheduler)
            for _ in range(6):  # the tenth label asks for a scoring that nobody can do
                asked = answer(client, asked, y)
            said = progress_once(client, lambda p: "Labels are safe" in p["training"]["message"])[
                "training"
            ]["message"]
            assert "scoring the whole pool, which is retried, failed: " in said
            assert "files" not in said
            for _ in range(5):
                asked = answer(client, asked, y)
            assert len(session.service.label_state.labels) == 20
            time.sleep(1)  # its kernel is chosen anew meanwhile, and has nothing to complain about
            assert "Labels are safe" in client.get("/api/progress").json()["training"]["message"]
            (tmp_path / "again").mkdir()
            monkeypatch.setattr("labelahead.outofcore.execution.CONNECT_SECONDS", 60)
            with Cluster(tmp_path / "again", workers=1, port=urlsplit(cluster.address).port):
                progress_once(
                    client, lambda p: p["training"]["idle"] and not p["training"]["message"]
                )
                assert len(session.service.items) > held
                pool = LargePool(place, executor=HOW["executor"])
                names = {session.service.items.ids[p] for p in session.service.label_state.labels}
                assert len(names) == 20
                assert set(pool.find_positions(list(names), HOW["executor"])) == names
                assert len(session.service.items) <= N
