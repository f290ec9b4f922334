"""The page on a pool that is scored by a real Dask cluster, whose scheduler is killed."""

import time
from urllib.parse import urlsplit

import pytest

from labelahead.outofcore import LargePool
from tests.server.test_large_pool import PAGE_OPTIONS, N, answer, store, wait_until_idle  # noqa: F401
from tests.support.clusters import Cluster
from tests.support.web_sessions import page, progress_once

pytest.importorskip("distributed")


@pytest.mark.slow
def test_scheduler_kill_loses_no_label_and_scoring_is_retried(store, tmp_path):  # noqa: F811
    store_folder, y = store
    with Cluster(tmp_path, workers=2) as cluster:
        options = PAGE_OPTIONS | {
            "executor": cluster.address,
            "refresh_every": 10,
            "retrain_every": 5,
        }
        with page(store_folder, tmp_path / "labels", start=True, **options) as (client, session):
            wait_until_idle(client)
            loaded = len(session.service.items)
            assert loaded > 60  # the best candidates were added to the sample
            query = client.get("/api/question").json()
            for _ in range(9):
                query = answer(client, query, y)
            session.schedule.retry_seconds = 0.5
            cluster.kill(cluster.scheduler)
            for _ in range(6):  # the tenth label requests a scoring that fails
                query = answer(client, query, y)
            message = progress_once(
                client, lambda p: "Labels are safe" in p["training"]["message"]
            )["training"]["message"]
            assert "scoring the whole pool, which is retried, failed: " in message
            assert "files" not in message
            for _ in range(5):
                query = answer(client, query, y)
            assert len(session.service.label_state.labels) == 20
            time.sleep(1)  # a kernel refit meanwhile must not clear the message
            assert "Labels are safe" in client.get("/api/progress").json()["training"]["message"]
            (tmp_path / "again").mkdir()
            with Cluster(tmp_path / "again", workers=1, port=urlsplit(cluster.address).port):
                progress_once(
                    client, lambda p: p["training"]["idle"] and not p["training"]["message"]
                )
                assert len(session.service.items) > loaded
                pool = LargePool(store_folder, executor=PAGE_OPTIONS["executor"])
                names = {session.service.items.ids[p] for p in session.service.label_state.labels}
                assert len(names) == 20
                assert set(pool.find_positions(list(names), PAGE_OPTIONS["executor"])) == names
                assert len(session.service.items) <= N
