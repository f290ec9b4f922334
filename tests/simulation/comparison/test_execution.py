"""Comparisons in real processes: killed, interrupted, resumed, extended."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
from dataclasses import replace

import pytest
from filelock import FileLock

from labelahead.errors import InputError, StorageError
from labelahead.learner.config import Budget, Network
from labelahead.simulation.comparison import Comparison, compare, parse_contenders, read_comparison
from labelahead.simulation.comparison.execution import MAX_RETRIES, _describe_exit, is_finished
from labelahead.simulation.comparison.plan import parse_contender
from labelahead.simulation.run import run
from labelahead.simulation.store import Store
from tests.support.comparisons import made_up, random_curves, tiny, write_strategy_file
from tests.support.waiting import PATIENCE, Gate, until
from tests.support.warm_processes import start_python


def outcome(folder):
    """Return rounds and labels without times: they must not depend on how the campaign ran."""
    store = Store(folder)
    rounds = [replace(r, seconds={}) for r in store.read_rounds()]
    return rounds, [(e.position, e.label, e.round) for e in store.read_labels()]


def test_custom_copy_of_flip_gives_same_campaign_as_flip(tmp_path):
    path = write_strategy_file(tmp_path / "code")
    comparison = Comparison(tiny(tmp_path), parse_contenders(f"random,flip,{path}:mine"), (0,))
    done = compare(comparison, tmp_path / "a", workers=1)
    assert (done.finished, done.failed) == (3, ())
    assert read_comparison(tmp_path / "a") == comparison
    same, own = (
        outcome(tmp_path / "a" / name / "seed-0")
        for name in ("flip-sequential", "own.py-mine-sequential")
    )
    assert same == own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": Budget(5, 5000, 3)}, "the pool has"),
        ({"model": Network("nowhere:net")}, "nowhere"),
    ],
)
def test_compare_raises_before_any_work(tmp_path, changes, message):
    comparison = Comparison(tiny(tmp_path, **changes), parse_contenders("random,margin"), (0, 1))
    with pytest.raises(InputError, match=message):
        compare(comparison, tmp_path / "a")
    campaign = tiny(tmp_path)
    untested = replace(campaign, data=replace(campaign.data, test_fraction=0.0))
    with pytest.raises(InputError, match="no accuracy to compare"):
        compare(replace(comparison, campaign=untested), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_folder_is_locked_during_comparison(tmp_path):
    folder = made_up(tmp_path / "a", random_curves(1, {"random": 0}))
    with FileLock(folder / "lock"), pytest.raises(StorageError, match="in use by another"):
        compare(read_comparison(folder), folder)


def test_finished_comparison_starts_no_worker(tmp_path):
    folder = made_up(tmp_path / "a", random_curves(2, {"random": 0, "margin": 0.1}))
    events = []
    found = compare(read_comparison(folder), folder, on_begin=events.append, on_event=events.append)
    assert (found.finished, found.failed) == (4, ())
    assert [b.left for b in events] == [0]


NETWORK = """
import os, torch
from pathlib import Path
from torch import nn

def make(shape, classes):
    threads = (os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads())
    with Path(__file__).with_name("threads.txt").open("a") as file:
        file.write(f"{os.getpid()} {threads[0]} {threads[1]}\\n")
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, classes))
"""


@pytest.mark.usefixtures("cold_processes")  # they read OMP_NUM_THREADS when torch is imported
def test_compare_equals_single_runs_and_can_be_extended(tmp_path):
    (tmp_path / "net.py").write_text(NETWORK)
    campaign = tiny(tmp_path, model=Network(f"{tmp_path / 'net.py'}:make"))
    comparison = Comparison(campaign, parse_contenders("random,margin"), (0, 1))
    folder, events = tmp_path / "a", []
    before = os.environ.get("OMP_NUM_THREADS")
    found = compare(comparison, folder, workers=2, on_event=events.append)
    assert os.environ.get("OMP_NUM_THREADS") == before
    assert (found.finished, found.failed, found.died) == (4, (), ())
    assert sum(e.kind == "round" for e in events) == 4 * 3
    assert read_comparison(folder) == comparison
    # one thread each, in two worker processes
    rows = [line.split() for line in (tmp_path / "threads.txt").read_text().splitlines()]
    workers = {pid: (omp, n) for pid, omp, n in rows if int(pid) != os.getpid()}
    assert list(workers.values()) == [("1", "1")] * 2
    # each campaign equals that of `run`, bit for bit
    alone = tmp_path / "alone"
    run(comparison.campaign_for(parse_contender("margin"), 1), out=alone)
    assert outcome(alone) == outcome(folder / "margin" / "seed-1")
    # all strategies of a seed have the same seed set; other seeds have others
    first = {
        (a, s): [e for e in outcome(folder / a / f"seed-{s}")[1] if e[2] == 0]
        for a in ("random", "margin")
        for s in (0, 1)
    }
    assert first["random", 0] == first["margin", 0] != first["random", 1] == first["margin", 1]
    machine = json.loads((folder / "random" / "seed-0" / "machine.json").read_text())
    assert machine["campaigns side by side"] == 2
    # with more seeds and strategies only new campaigns run; a damaged one is reported
    rounds = folder / "margin" / "seed-0" / "rounds.jsonl"
    rounds.write_text(rounds.read_text().replace('"number":1', '"number":', 1))
    kept = outcome(folder / "random" / "seed-1")
    wider = replace(comparison, contenders=parse_contenders("margin,entropy"), seeds=(0,))
    found = compare(wider, folder, workers=1)
    assert [e.job.name for e in found.failed] == ["margin, seed 0"]
    assert "is damaged" in found.failed[0].detail
    assert found.finished == 1
    assert is_finished(folder / "entropy" / "seed-0")
    assert outcome(folder / "random" / "seed-1") == kept
    whole = read_comparison(folder)
    assert (whole.contenders, whole.seeds) == (parse_contenders("random,margin,entropy"), (0, 1))


def test_killed_worker_is_replaced_and_campaign_resumed(tmp_path):
    gate = Gate(tmp_path, begun=tmp_path / "a" / "margin" / "seed-0" / "rounds.jsonl")
    comparison = Comparison(
        tiny(tmp_path, model=Network(gate.model)), parse_contenders("margin"), (0,)
    )
    killed = []

    def kill_once(event):
        if event.kind == "round" and not killed:
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)
                killed.append(child.pid)
            gate.open()

    found = compare(comparison, tmp_path / "a", workers=1, on_event=kill_once)
    assert len(killed) == 1
    assert (found.finished, found.failed) == (1, ())
    assert [e.detail.split(";")[0] for e in found.died] == ["by signal SIGKILL"]
    run(comparison.campaign_for(parse_contender("margin"), 0), out=tmp_path / "alone")
    assert outcome(tmp_path / "alone") == outcome(tmp_path / "a" / "margin" / "seed-0")
    rows = [json.loads(x) for x in (tmp_path / "a" / "events.jsonl").read_text().splitlines()]
    assert [r["what"] for r in rows] == ["died", "finished"]
    assert not multiprocessing.active_children()


DEADLY = """
import multiprocessing, os, signal
from torch import nn

def make(shape, classes):
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, classes))
"""


def test_campaign_that_kills_workers_fails_after_retries(tmp_path):
    (tmp_path / "net.py").write_text(DEADLY)
    campaign = tiny(tmp_path, model=Network(f"{tmp_path / 'net.py'}:make"))
    found = compare(
        Comparison(campaign, parse_contenders("random"), (0,)), tmp_path / "a", workers=1
    )
    assert (found.finished, len(found.died)) == (0, MAX_RETRIES + 1)
    assert f"its worker died {MAX_RETRIES + 1} times" in found.failed[0].detail
    assert "memory" in found.failed[0].detail
    assert _describe_exit(3) == "with exit code 3"


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")


def children(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(p) for p in found.stdout.split()]


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_comparison_leaves_no_processes(tmp_path, how):
    tiny(tmp_path)
    options = [
        "--data=blobs.npz",
        "--model=mlp",
        "--width=8",
        "--initial=5",
        "--labels=65",
        "--retrain-every=1",
        "--set=training.steps=10_000_000",  # for as long as the test takes
        "--strategies=margin",
        "--seeds=1",
    ]
    process = start_python(
        ["-m", "labelahead", "compare", *options, "--out", "a"], cwd=tmp_path, new_session=True
    )
    where = tmp_path / "a" / "margin" / "seed-0"
    until(lambda: (where / "labels.jsonl").exists() or process.poll() is not None)
    workers = children(process.pid)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: to the whole process group
    else:
        process.send_signal(how)
    out, err = process.communicate(timeout=PATIENCE)
    if how == signal.SIGINT:
        assert process.returncode == 130, (out, err)
        assert "to continue: labelahead compare --out a" in err
    assert "Traceback" not in out + err
    assert workers
    assert until(lambda: not any(map(alive, workers)))
    assert not is_finished(where)
    with Store.open(where) as store:  # unlocked and consistent
        assert 1 <= len(store.read_labels()) < 65
