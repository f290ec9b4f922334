"""Executors: local processes and a real Dask cluster whose workers are killed."""

import subprocess
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
import torch

from labelahead.errors import ClusterError, InputError
from labelahead.outofcore import LargePool, LocalProcesses, embed
from labelahead.outofcore.execution import connect_executor, make_tls_config, run_tasks
from tests.support.clusters import Cluster
from tests.support.executor_tasks import double_or_raise, kill_own_process
from tests.support.large_pools import CLASSES, clouds

distributed = pytest.importorskip("distributed")
PARTS, ROWS = 6, 5_000


@pytest.fixture(scope="module")
def local_processes():
    executor = LocalProcesses(1)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def scored_pool(tmp_path_factory, local_processes):
    """Return a store with partitions of about a second each, labels, and a subset of one process."""
    folder = tmp_path_factory.mktemp("pool")
    x, y = clouds(PARTS * ROWS, d=64)
    (folder / "source").mkdir()
    for i in range(PARTS):
        np.save(
            folder / "source" / f"part-{i}.npy", x[i * ROWS : (i + 1) * ROWS].astype(np.float16)
        )
    embed(folder / "source", folder / "store", executor=local_processes)
    labels = {f"part-{i % PARTS}.npy:{i}": CLASSES[y[i % PARTS * ROWS + i]] for i in range(200)}
    subset = LargePool(folder / "store", executor=local_processes).select_subset(
        labels, evaluation=1000, candidates=300
    )
    return folder / "store", labels, subset


def test_run_tasks_returns_results_in_order(local_processes):
    progress_calls = []
    tasks = [(str(i), 10 * i, (i,)) for i in (5, 1, 4)]
    assert run_tasks(
        local_processes,
        "double",
        double_or_raise,
        tasks,
        lambda *arguments: progress_calls.append(arguments),
    ) == [10, 2, 8]
    assert progress_calls[-1] == ("double", 100, 100)
    assert local_processes.gather(
        [local_processes.submit(double_or_raise, i, name="double") for i in (4, 2)]
    ) == [8, 4]


def test_run_tasks_collects_or_raises_refused_tasks(local_processes):
    tasks = [(str(i), 1, (i,)) for i in (1, 3, 5)]
    with pytest.raises(InputError, match="three is refused"):
        run_tasks(local_processes, "double", double_or_raise, tasks)
    refused = {}
    assert run_tasks(local_processes, "double", double_or_raise, tasks, refused=refused) == [
        2,
        None,
        10,
    ]
    assert "three" in str(refused[1])


def test_dead_local_process_raises_cluster_error():
    with (
        connect_executor(workers=1) as engine,
        pytest.raises(ClusterError, match=r"the engine was lost during 'work'.*are kept"),
    ):
        run_tasks(engine, "work", kill_own_process, [("a", 1, (1,))])
    assert BrokenProcessPool in engine.lost_errors


def test_invalid_executor_raises():
    with pytest.raises(InputError, match="workers is 0"):
        LocalProcesses(0)
    with pytest.raises(InputError, match="executor is a int"), connect_executor(5):
        pass
    with pytest.raises(InputError, match="of the TLS files some are missing"):
        make_tls_config("ca.pem", None, None)
    assert make_tls_config(None, None, None) is None


def test_killed_dask_worker_does_not_change_results(scored_pool, tmp_path):
    store, labels, expected = scored_pool
    with Cluster(tmp_path, workers=2) as cluster:
        with distributed.Client(cluster.address, set_as_default=False) as client:
            client.wait_for_workers(2)
            progress_calls = []

            def watch(stage, done, total):
                progress_calls.append((stage, done))
                if len(progress_calls) == 1:
                    cluster.kill(cluster.workers[0])

            subset = LargePool(store, executor=client, progress=watch).select_subset(
                labels, evaluation=1000, candidates=300
            )
            names = client.run_on_scheduler(
                lambda dask_scheduler: list(dask_scheduler.task_prefixes)
            )
        assert progress_calls[-1] == ("score items", PARTS * ROWS)
        assert cluster.workers[0].poll() is not None
        assert len(progress_calls) == PARTS
    assert torch.equal(subset.positions, expected.positions)
    assert torch.equal(subset.best.scores, expected.best.scores)
    assert torch.equal(subset.units, expected.units)
    assert {"score items", "read items"} <= set(names)  # the names in the dashboard


def test_lost_scheduler_raises_and_keeps_features(tmp_path):
    x, _ = clouds(40_000, d=16)
    (tmp_path / "source").mkdir()
    for i in range(200):  # enough that they are not finished before the first is reported
        np.save(tmp_path / "source" / f"{i:03d}.npy", x[i * 200 : (i + 1) * 200])
    with Cluster(tmp_path, workers=1) as cluster:
        progress_calls = []

        def watch(stage, done, total):
            progress_calls.append(done)
            if len(progress_calls) == 1:
                cluster.kill(cluster.scheduler)

        with pytest.raises(
            ClusterError, match=r"the engine was lost during 'embed items'.*again to continue"
        ):
            embed(tmp_path / "source", tmp_path / "store", executor=cluster.address, progress=watch)
    kept = sorted((tmp_path / "store" / "parts").glob("*.json"))
    assert 1 <= len(kept) < 200
    dates = [path.stat().st_mtime_ns for path in kept]
    later_calls = []
    embed(
        tmp_path / "source",
        tmp_path / "store",
        workers=1,
        progress=lambda *arguments: later_calls.append(arguments),
    )
    assert len(later_calls) == 200 - len(kept)
    assert later_calls[-1] == ("embed items", 40_000, 40_000)
    assert [path.stat().st_mtime_ns for path in kept] == dates


@pytest.mark.slow
def test_version_mismatch_and_missing_workers_raise(tmp_path):
    preload = tmp_path / "older.py"
    preload.write_text("import labelahead\nlabelahead.__version__ = '0.0.9'\n")
    with Cluster(tmp_path) as cluster:
        with (
            distributed.Client(cluster.address, set_as_default=False) as client,
            pytest.raises(ClusterError, match="has no workers; start some"),
            connect_executor(client, connect_seconds=0.5),
        ):
            pass
        cluster.add_worker()
        with connect_executor(cluster.address) as engine:
            assert engine.gather([engine.submit(double_or_raise, 4, name="double")]) == [8]
            cluster.kill(cluster.workers[0])
            cluster.add_worker("--preload", str(preload))  # one that joins while work is running
            with pytest.raises(ClusterError, match=r"a worker has labelahead 0\.0\.9, here is"):
                run_tasks(engine, "double", double_or_raise, [("a", 1, (4,))])
        with (
            pytest.raises(ClusterError, match=r"the worker tcp://127.*has labelahead 0\.0\.9"),
            connect_executor(cluster.address),
        ):
            pass


def test_unreachable_scheduler_raises():
    with (
        pytest.raises(ClusterError, match=r"no scheduler answers at tcp://127.0.0.1:9"),
        connect_executor("tcp://127.0.0.1:9", connect_seconds=1),
    ):
        pass


@pytest.mark.slow
def test_tls_configuration_is_passed_to_dask(tmp_path):
    ca, key = tmp_path / "ca.pem", tmp_path / "key.pem"
    openssl_command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    try:
        subprocess.run(
            [*openssl_command, "-keyout", key, "-out", ca], check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("no openssl")
    files = [
        *("--tls-ca-file", str(ca)),
        *("--tls-cert", str(ca)),
        *("--tls-key", str(key)),
        "--protocol",
        "tls",
    ]
    with Cluster(tmp_path, workers=1, security=files) as cluster:
        assert cluster.address.startswith("tls://127.0.0.1")
        with connect_executor(
            cluster.address, security=make_tls_config(str(ca), str(ca), str(key))
        ) as engine:
            assert engine.gather([engine.submit(double_or_raise, 4, name="double")]) == [8]
