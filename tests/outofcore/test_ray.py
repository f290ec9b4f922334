"""A Ray of this machine, where it is installed (`make test-ray`).

Its processes are killed, results stay the same.
"""

import importlib.util
import os
import signal
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
from tests.support.large_pools import CLASSES, clouds

# Not imported here: it must be told before to keep to this machine.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs ray: make test-ray"
)
PARTS, ROWS = 6, 4_000


def doubled(x):
    if x == 3:
        raise InputError("three is refused")
    return 2 * x


def dies(x):
    os.kill(os.getpid(), signal.SIGKILL)


def where(seconds):
    time.sleep(seconds)
    return os.getpid()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))  # its token
    with connect_executor("ray") as engine:
        yield engine


def test_ray_results_and_refusals(engine):
    tasks = [(str(i), 10 * i, (i,)) for i in (5, 1, 4)]
    assert run_tasks(engine, "double", doubled, tasks) == [10, 2, 8]
    assert engine.gather(
        [engine.submit(doubled, engine.scatter(i), name="double") for i in (4, 2)]
    ) == [8, 4]
    with pytest.raises(InputError, match=r"^three is refused$"):
        run_tasks(engine, "double", doubled, [("a", 1, (3,))])
    refused = {}
    assert run_tasks(
        engine, "double", doubled, [("a", 1, (3,)), ("b", 1, (4,))], refused=refused
    ) == [None, 8]
    assert list(refused) == [0]
    with pytest.raises(ClusterError, match="the engine was lost during 'work'"):
        run_tasks(engine, "work", dies, [("a", 1, (1,))])
    with connect_executor(engine.ray) as same:
        assert same.gather([same.submit(doubled, 4, name="double")]) == [8]


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
    how = {"evaluation": 1000, "candidates": 300}
    local = LocalProcesses(1)
    alone = LargePool(tmp_path / "store", executor=local).select_subset(labels, **how)
    killed, stop = [], threading.Event()

    def kill_one():  # while it is at work, by the name that Ray gives it
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
    held = LargePool(tmp_path / "store", executor=engine).select_subset(labels, **how)
    stop.set()
    killer.join()
    local.close()
    assert killed
    assert torch.equal(held.positions, alone.positions)
    assert torch.equal(held.best.scores, alone.best.scores)
    assert torch.equal(held.units, alone.units)


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
        run_tasks(engine, "double", doubled, [("a", 1, (4,))])


def test_unreachable_ray_raises():
    code = (
        "from labelahead.outofcore.execution import connect_executor\nwith "
        "connect_executor('ray://127.0.0.1:9'): pass"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "no Ray answers at ray://127.0.0.1:9" in run.stderr
