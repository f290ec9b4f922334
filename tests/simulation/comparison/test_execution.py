"""Comparisons in real processes: killed, interrupted, resumed, extended."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from filelock import FileLock

from labelahead.errors import InputError, StorageError
from labelahead.learner.config import Budget, Network
from labelahead.models.training import Training
from labelahead.simulation.comparison import Comparison, compare, parse_contenders, read_comparison
from labelahead.simulation.comparison.execution import MAX_RETRIES, _describe_exit, is_finished
from labelahead.simulation.comparison.plan import (
    Contender,
    format_comparison,
    list_differences,
    merge_comparisons,
    parse_contender,
)
from labelahead.simulation.run import run
from labelahead.simulation.store import Store
from labelahead.strategies import find_strategy
from tests.support.comparisons import made_up, random_curves, tiny
from tests.support.waiting import PATIENCE, Gate, until


def outcome(folder):
    """What must not depend on how a campaign came to be: all but the clock."""
    store = Store(folder)
    rounds = [replace(r, seconds={}) for r in store.read_rounds()]
    return rounds, [(e.position, e.label, e.round) for e in store.read_labels()]


def test_parse_contenders():
    assert parse_contenders("random, flip:greedy,margin") == (
        Contender("random", "top"),
        Contender("flip", "greedy"),
        Contender("margin", "top"),
    )
    assert parse_contenders("flip,flip:sequential") == (
        Contender("flip", "sequential"),
    )  # the same twice
    assert [a.name for a in parse_contenders("flip,flip:greedy")] == ["flip", "flip:greedy"]
    assert [a.folder for a in parse_contenders("flip,flip:top,random")] == [
        "flip-sequential",
        "flip-top",
        "random",
    ]
    for text, message in {
        "flop": "did you mean 'flip'",
        "margin:greedy": "works as top",
        "flip:": "colon",
        " , ": "names with commas",
    }.items():
        with pytest.raises(InputError, match=message):
            parse_contenders(text)


def own_strategies(folder):
    folder.mkdir(exist_ok=True)
    (folder / "own.py").write_text(
        "from labelahead.acquisition import flip\n\n"
        "def mine(view, rng):\n    return flip(view)\n\n"
        "def greedy(view, rng):\n    return -flip(view)\n"
    )
    return folder / "own.py"


def test_parse_custom_contenders(tmp_path, monkeypatch):
    path = own_strategies(tmp_path)
    monkeypatch.chdir(tmp_path)
    own = parse_contenders("own.py:mine, own.py:mine:greedy ,own.py:greedy,own:mine:top,random")
    assert own[:2] == (Contender(f"{path}:mine", "sequential"), Contender(f"{path}:mine", "greedy"))
    names = ["own.py:mine", "own.py:mine:greedy", "own.py:greedy", "own:mine:top", "random"]
    assert [a.name for a in own] == names
    assert [a.folder for a in own][:2] == ["own.py-mine-sequential", "own.py-mine-greedy"]
    assert parse_contenders([a.spec for a in own]) == own
    for text, message in {
        "own.py:mine:best": "mode is 'best'",
        "own.py:mine:": "colon",
        "own.py:none": "not there",
        "nowhere.py:mine": "no file",
        "own.py:": "incomplete",
    }.items():
        with pytest.raises(InputError, match=message):
            parse_contenders(text)
    with pytest.raises(InputError, match=r"your own as file.py:name, where the processes"):
        parse_contenders([find_strategy("flip")])
    other = own_strategies(tmp_path / "other")
    with pytest.raises(InputError, match=r"two strategies are called own.py:mine"):
        Comparison(tiny(tmp_path), parse_contenders(f"own.py:mine,{other}:mine"), (0,))


def test_compare_with_custom_strategy(tmp_path):
    path = own_strategies(tmp_path / "code")
    comparison = Comparison(tiny(tmp_path), parse_contenders(f"random,flip,{path}:mine"), (0,))
    done = compare(comparison, tmp_path / "a", workers=1)
    assert (done.finished, done.failed) == (3, ())
    assert read_comparison(tmp_path / "a") == comparison
    same, own = (
        outcome(tmp_path / "a" / name / "seed-0")
        for name in ("flip-sequential", "own.py-mine-sequential")
    )
    assert same == own


def test_comparison_round_trip(tmp_path):
    comparison = Comparison(tiny(tmp_path), parse_contenders("flip:greedy,margin"), (3, 4))
    (tmp_path / "compare.toml").write_text(format_comparison(comparison))
    assert read_comparison(tmp_path) == comparison
    assert comparison.reference == parse_contender("flip:greedy")  # no random: the first
    assert comparison.campaign_for(parse_contender("margin"), 4).asking.strategy == "margin"
    assert comparison.campaign_for(parse_contender("margin"), 4).seed == 4
    more = merge_comparisons(
        comparison,
        replace(comparison, contenders=parse_contenders("random,margin"), seeds=(4, 5)),
        tmp_path,
    )
    assert (more.contenders, more.seeds) == (
        parse_contenders("flip:greedy,margin,random"),
        (3, 4, 5),
    )
    assert more.reference == parse_contender("random")
    for budget, rounds in {(5, 11, 3): 3, (5, 12, 3): 4, (5, 5, 3): 1}.items():
        campaign = tiny(tmp_path, budget=Budget(*budget))
        assert Comparison(campaign, parse_contenders("random"), (0,)).rounds == rounds


def test_comparison_stores_absolute_paths(tmp_path, monkeypatch):
    campaign = tiny(tmp_path)
    monkeypatch.chdir(tmp_path)
    relative = replace(
        campaign,
        data=replace(campaign.data, name="blobs.npz", root="."),
        model=Network("n.py:make"),
    )
    comparison = Comparison(relative, parse_contenders("random"), (0,))
    assert comparison.campaign.data.name == str(tmp_path / "blobs.npz")
    assert comparison.campaign.data.root == str(tmp_path)
    assert comparison.campaign.model.name == f"{tmp_path / 'n.py'}:make"
    assert replace(comparison, seeds=(1,)).campaign == comparison.campaign


@pytest.mark.parametrize("text", ["", "seeds = [1]", 'strategies = ["random"]\nseeds = ["x"]', "["])
def test_damaged_comparison_plan_raises(tmp_path, text):
    (tmp_path / "compare.toml").write_text(text)
    with pytest.raises(InputError, match=r"damaged|no valid TOML"):
        read_comparison(tmp_path)


def test_folder_without_newer_keys_has_same_configuration(tmp_path):
    """Campaigns finished before `training.epochs` stand beside those that were run since."""
    before = replace(tiny(tmp_path), training=asdict(Training()))
    del before.training["epochs"]
    now = replace(before, training=asdict(Training()))
    assert list_differences(before, now) == []
    changed = list_differences(before, replace(now, training=asdict(Training(epochs=3))))
    assert changed == ["training.epochs was not set and is 3 now"]


def test_other_configurations_and_folders_raise(tmp_path):
    folder = made_up(tmp_path / "a", random_curves(1, {"random": 0, "margin": 0.1}))
    before = read_comparison(folder)
    other = replace(before.campaign, budget=replace(before.campaign.budget, labels=70))
    with pytest.raises(InputError, match=r"budget\.labels was 40 and is 70 now"):
        compare(replace(before, campaign=other), folder)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"holds thesis.tex and no comparison"):
        compare(before, tmp_path / "b")
    with pytest.raises(InputError, match="is a file"):
        compare(before, tmp_path / "b" / "thesis.tex")
    with pytest.raises(InputError, match="workers is 0"):
        compare(before, tmp_path / "c", workers=0)
    with pytest.raises(InputError, match="single campaign"):
        read_comparison(folder / "random" / "seed-0")


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
    seen = []
    found = compare(read_comparison(folder), folder, on_begin=seen.append, on_event=seen.append)
    assert (found.finished, found.failed) == (4, ())
    assert [b.left for b in seen] == [0]


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


def test_compare_end_to_end_and_extension(tmp_path):
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
    # one thread each, in two processes that are not ours
    rows = [line.split() for line in (tmp_path / "threads.txt").read_text().splitlines()]
    workers = {pid: (omp, n) for pid, omp, n in rows if int(pid) != os.getpid()}
    assert list(workers.values()) == [("1", "1")] * 2
    # each is the campaign that `run` alone would have made, bit for bit
    alone = tmp_path / "alone"
    run(comparison.campaign_for(parse_contender("margin"), 1), out=alone)
    assert outcome(alone) == outcome(folder / "margin" / "seed-1")
    # within a seed all begin with the same labels; other seeds with others
    first = {
        (a, s): [e for e in outcome(folder / a / f"seed-{s}")[1] if e[2] == 0]
        for a in ("random", "margin")
        for s in (0, 1)
    }
    assert first["random", 0] == first["margin", 0] != first["random", 1] == first["margin", 1]
    machine = json.loads((folder / "random" / "seed-0" / "machine.json").read_text())
    assert machine["campaigns side by side"] == 2
    # more seeds and strategies: only what is new is run; a damaged one is reported, others go on
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


def test_campaign_that_kills_workers_fails_after_retries(tmp_path, monkeypatch):
    assert MAX_RETRIES == 2
    monkeypatch.setattr("labelahead.simulation.comparison.execution.MAX_RETRIES", 0)  # quicker
    (tmp_path / "net.py").write_text(DEADLY)
    campaign = tiny(tmp_path, model=Network(f"{tmp_path / 'net.py'}:make"))
    found = compare(
        Comparison(campaign, parse_contenders("random"), (0,)), tmp_path / "a", workers=1
    )
    assert (found.finished, len(found.died)) == (0, 1)
    assert "its worker died 1 times" in found.failed[0].detail
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
    process = subprocess.Popen(
        [sys.executable, "-m", "labelahead", "compare", *options, "--out", "a"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    where = tmp_path / "a" / "margin" / "seed-0"
    until(lambda: (where / "labels.jsonl").exists() or process.poll() is not None)
    workers = children(process.pid)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: to all of them
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
    with Store.open(where) as store:  # free, and whole as far as it goes
        assert 1 <= len(store.read_labels()) < 65
