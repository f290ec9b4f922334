"""Ray on this machine, if installed (`make test-ray`): killed processes do not change results."""

import importlib.util
import os
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import torch

from labelahead.errors import ClusterError, InputError
from labelahead.outofcore import LargePool, LocalProcesses, embed
from labelahead.outofcore.execution import connect_executor, run_tasks
from tests.support.executor_tasks import double_or_raise, kill_own_process
from tests.support.large_pools import CLASSES, clouds

# Not imported here: Ray must first be configured to use this machine only.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs ray: make test-ray"
)
PARTS, ROWS = 6, 4_000


def sleep_and_get_pid(seconds):
    time.sleep(seconds)
    return os.getpid()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))  # its token
    with connect_executor("ray") as engine:
        yield engine


def test_ray_returns_results_and_raises_refusals(engine):
    tasks = [(str(i), 10 * i, (i,)) for i in (5, 1, 4)]
    assert run_tasks(engine, "double", double_or_raise, tasks) == [10, 2, 8]
    assert engine.gather(
        [engine.submit(double_or_raise, engine.scatter(i), name="double") for i in (4, 2)]
    ) == [8, 4]
    with pytest.raises(InputError, match=r"^three is refused$"):
        run_tasks(engine, "double", double_or_raise, [("a", 1, (3,))])
    refused = {}
    assert run_tasks(
        engine, "double", double_or_raise, [("a", 1, (3,)), ("b", 1, (4,))], refused=refused
    ) == [None, 8]
    assert list(refused) == [0]
    with pytest.raises(ClusterError, match="the engine was lost during 'work'"):
        run_tasks(engine, "work", kill_own_process, [("a", 1, (1,))])
    with connect_executor(engine.ray) as same:
        assert same.gather([same.submit(double_or_raise, 4, name="double")]) == [8]


def test_ray_listens_on_loopback_only(engine):
    ports = {
        c.laddr.ip
        for p in psutil.Process().children(recursive=True)
        for c in p.net_connections()
        if not c.raddr
    }
    assert ports
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert all(ip.removeprefix("::ffff:").startswith("127.") for ip in ports if ip), ports


def test_killed_ray_worker_does_not_change_results(engine, tmp_path):
    x, y = clouds(PARTS * ROWS, d=64)
    (tmp_path / "source").mkdir()
    for i in range(PARTS):
        np.save(
            tmp_path / "source" / f"part-{i}.npy", x[i * ROWS : (i + 1) * ROWS].astype(np.float16)
        )
    embed(tmp_path / "source", tmp_path / "store", executor=engine)
    labels = {f"part-{i % PARTS}.npy:{i}": CLASSES[y[i % PARTS * ROWS + i]] for i in range(200)}
    options = {"evaluation": 1000, "candidates": 300}
    local = LocalProcesses(1)
    expected = LargePool(tmp_path / "store", executor=local).select_subset(labels, **options)
    killed, stop = [], threading.Event()

    def kill_one():  # during the work, found by the process name of Ray
        while not killed and not stop.is_set():
            for process in psutil.Process().children(recursive=True):
                try:
                    if "score items" in " ".join(process.cmdline()):
                        process.kill()
                        killed.append(process.pid)
                        break
                except psutil.Error:
                    pass
            time.sleep(0.02)

    killer = threading.Thread(target=kill_one)
    killer.start()
    subset = LargePool(tmp_path / "store", executor=engine).select_subset(labels, **options)
    stop.set()
    killer.join()
    local.close()
    assert killed
    assert torch.equal(subset.positions, expected.positions)
    assert torch.equal(subset.best.scores, expected.best.scores)
    assert torch.equal(subset.units, expected.units)


def test_ray_imported_before_is_not_started(engine, monkeypatch):
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    with pytest.raises(InputError, match="ray was imported before"), connect_executor("ray"):
        pass


def test_ray_version_mismatch_raises(engine, monkeypatch):
    monkeypatch.setattr("labelahead.__version__", "0.0.9")
    with (
        pytest.raises(ClusterError, match=r"the node 127.* has labelahead .*, here is 0"),
        connect_executor(engine.ray),
    ):
        pass
    with pytest.raises(ClusterError, match="a worker has labelahead"):
        run_tasks(engine, "double", double_or_raise, [("a", 1, (4,))])


def test_unreachable_ray_raises():
    code = (
        "from labelahead.outofcore.execution import connect_executor\nwith "
        "connect_executor('ray://127.0.0.1:9'): pass"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "no Ray cluster answers at ray://127.0.0.1:9" in run.stderr
