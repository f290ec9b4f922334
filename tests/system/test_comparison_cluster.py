"""Comparisons on a real Dask cluster: equal files, a killed worker, a lost scheduler, Ctrl-C."""

import os
import signal

import pytest

from labelahead.errors import ClusterError, InputError, StorageError
from labelahead.learner.config import Network
from labelahead.simulation.comparison import Comparison, compare, parse_contenders
from labelahead.simulation.comparison.execution import TOKEN_FILE, is_finished, run_cluster_campaign
from labelahead.simulation.comparison.plan import parse_contender
from labelahead.simulation.run import run
from labelahead.simulation.store import Store
from tests.simulation.comparison.test_execution import outcome
from tests.support.clusters import Cluster
from tests.support.comparisons import tiny
from tests.support.large_pools import Inline
from tests.support.waiting import PATIENCE, Gate, until
from tests.support.warm_processes import start_python

pytest.importorskip("distributed")


def is_unlocked(folder):
    """Return whether no process uses the run folder."""
    try:
        with Store.open(folder):
            return True
    except StorageError:
        return False


def list_files(folder):
    return sorted(
        str(p.relative_to(folder))
        for p in folder.rglob("*")
        if p.is_file() and p.name != "workers.log"
    )


def test_compare_on_a_cluster_writes_the_same_files_after_a_worker_kill(tmp_path):
    comparison = Comparison(tiny(tmp_path), parse_contenders("random,margin"), (0, 1))
    compare(comparison, tmp_path / "here", workers=1)
    events = []
    with Cluster(tmp_path, workers=2) as cluster:

        def watch(event):
            events.append(event)
            if event.kind == "round" and sum(e.kind == "round" for e in events) == 1:
                cluster.kill(cluster.workers[0])

        result = compare(comparison, tmp_path / "there", executor=cluster.address, on_event=watch)
    assert (result.finished, result.failed) == (4, ())
    assert cluster.workers[0].poll() is not None
    assert list_files(tmp_path / "here") == list_files(tmp_path / "there")
    for name in ("random", "margin"):
        for seed in (0, 1):
            campaign = f"{name}/seed-{seed}"
            assert outcome(tmp_path / "here" / campaign) == outcome(tmp_path / "there" / campaign)
    assert sum(e.kind == "round" for e in events) <= 4 * 3
    assert sum(e.kind == "finished" for e in events) == 4


@pytest.mark.slow
def test_compare_reports_a_lost_scheduler_and_continues_locally(tmp_path):
    gate = Gate(tmp_path, begun=tmp_path / "a" / "margin" / "seed-0" / "rounds.jsonl")
    campaign = tiny(tmp_path, model=Network(gate.model))
    comparison = Comparison(campaign, parse_contenders("margin"), (0,))
    with Cluster(tmp_path, workers=1) as cluster:

        def watch(event):
            if event.kind == "round":
                cluster.kill(cluster.scheduler)
                cluster.kill(cluster.workers[0])

        with pytest.raises(ClusterError, match="the cluster was lost"):
            compare(comparison, tmp_path / "a", executor=cluster.address, on_event=watch)
    assert not (tmp_path / "a" / TOKEN_FILE).exists()
    gate.open()
    assert compare(comparison, tmp_path / "a", workers=1).finished == 1
    run(comparison.campaign_for(parse_contender("margin"), 0), out=tmp_path / "alone")
    assert outcome(tmp_path / "alone") == outcome(tmp_path / "a" / "margin" / "seed-0")


def test_compare_reports_a_failed_campaign_and_finishes_the_others(tmp_path):
    comparison = Comparison(tiny(tmp_path), parse_contenders("random,margin"), (0,))
    compare(comparison, tmp_path / "a", executor=Inline())
    rounds = tmp_path / "a" / "margin" / "seed-0" / "rounds.jsonl"
    rounds.write_text(rounds.read_text().replace('"number":1', '"number":', 1))
    result = compare(comparison, tmp_path / "a", executor=Inline())
    assert (result.finished, [e.job.name for e in result.failed]) == (1, ["margin, seed 0"])
    assert "is damaged" in result.failed[0].detail
    with pytest.raises(InputError, match="workers and executor given"):
        compare(comparison, tmp_path / "a", executor=Inline(), workers=2)


def test_run_cluster_campaign_refuses_campaigns_of_another_comparison(tmp_path):
    comparison = Comparison(tiny(tmp_path), parse_contenders("random"), (0,))
    (tmp_path / TOKEN_FILE).write_text("another")
    error, trace = run_cluster_campaign(
        tmp_path / "c",
        comparison.campaign_for(parse_contender("random"), 0),
        tmp_path / TOKEN_FILE,
        "mine",
    )
    assert "stopped" in error
    assert not trace
    assert not (tmp_path / "c").exists()
    unshared = tmp_path / "not shared" / TOKEN_FILE
    error, _ = run_cluster_campaign(
        tmp_path / "c", comparison.campaign_for(parse_contender("random"), 0), unshared, "mine"
    )
    assert "expected a folder that all workers share" in error


@pytest.mark.slow
def test_ctrl_c_stops_campaigns_on_the_cluster_and_they_can_be_resumed(tmp_path):
    tiny(tmp_path)
    run_folder = tmp_path / "a" / "margin" / "seed-0"
    gate = Gate(tmp_path, begun=run_folder / "rounds.jsonl")
    options = [
        "--data=blobs.npz",
        f"--model={gate.model}",
        "--initial=5",
        "--labels=15",
        "--retrain-every=1",
    ]
    options += ["--set=training.steps=8", "--strategies=margin", "--seeds=1"]
    with Cluster(tmp_path, workers=1) as cluster:
        command = [
            "-m",
            "labelahead",
            "compare",
            *options,
            "--out",
            "a",
            "--cluster",
            cluster.address,
        ]
        process = start_python(command, cwd=tmp_path, new_session=True)
        until(lambda: (run_folder / "rounds.jsonl").exists() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, (out, err)
        assert "to continue: labelahead compare --out a" in err
        assert "Traceback" not in out + err
        gate.open()
        until(lambda: is_unlocked(run_folder))
        assert not is_finished(run_folder)
        assert len(Store(run_folder).read_rounds()) <= 2
        resumed = start_python(
            ["-m", "labelahead", "compare", "--out", "a", "--cluster", cluster.address],
            cwd=tmp_path,
        )
        out, err = resumed.communicate(timeout=PATIENCE)
        assert resumed.returncode == 0, err
        assert "on the cluster" in out
    assert is_finished(run_folder)
