"""The process that trains."""

import os
import shutil
import signal

import numpy as np
import pytest
import torch

from labelahead.data.loading import load_source
from labelahead.errors import LabelaheadError, StorageError
from labelahead.learner.config import parse_campaign
from labelahead.server.snapshot import TrainingRequest
from labelahead.server.snapshot_builder import SnapshotBuilder
from labelahead.server.snapshot_files import save_snapshot
from labelahead.server.worker import DATA_FILE, Worker
from tests.support.web_sessions import photos

REQUEST = TrainingRequest(1, ((0, 0), (1, 1)), 2)


def load_worker_data(tables):
    campaign = parse_campaign(tables)
    return campaign, load_source(campaign.data, campaign.seed)[0]


def run_request(worker):
    return worker.run(REQUEST, lambda what, done: None)


def assert_same_values(here, there):
    if isinstance(there, dict):
        assert here.keys() == there.keys()
        for name in there.keys() - {"seconds"}:
            assert_same_values(here[name], there[name])
    elif isinstance(there, torch.Tensor):
        assert torch.equal(here, there)
    else:
        assert type(here) is type(there)
        assert str(here) == str(there)


def assert_same_snapshot(path, expected):
    """Bit for bit, except the seconds."""
    save_snapshot(expected, path.with_name("expected.pt"))
    here, there = (torch.load(p, weights_only=True) for p in (path, path.with_name("expected.pt")))
    assert_same_values(here, there)


def write_rows(path, n=30):
    rows = np.random.default_rng(0).normal(size=(n, 3)).round(3)
    path.write_text("a,b,c\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def test_worker_needs_no_file_of_the_data_also_after_it_was_killed(tmp_path):
    """It does not load the data again."""
    table = write_rows(tmp_path / "rows.csv")
    tables = {"data": {"name": str(table)}, "model": {"name": "exact"}, "threads": 1}
    campaign, data = load_worker_data(tables)
    builder = SnapshotBuilder(campaign, data, {})
    ((expected, _),) = builder.build_snapshots(REQUEST, lambda what, done: None)
    worker = Worker(tables, data, tmp_path)
    table.unlink()
    try:
        assert_same_snapshot(run_request(worker), expected)
        assert not (tmp_path / DATA_FILE).exists()
        killed = worker._process
        os.kill(killed.pid, signal.SIGKILL)
        killed.join()
        assert_same_snapshot(run_request(worker), expected)
        assert worker._process.pid != killed.pid
        assert not (tmp_path / DATA_FILE).exists()
    finally:
        worker.close()
    with pytest.raises(LabelaheadError, match="being closed"):
        run_request(worker)
    assert not (tmp_path / DATA_FILE).exists()


def test_worker_that_cannot_write_its_snapshot_raises_storage_error_and_lives(tmp_path):
    """The worker finds a file instead of its folder."""
    tables = {
        "data": {"name": str(photos(tmp_path / "set", 8)), "checked": False},
        "model": {"name": "mlp"},
        "training": {"steps": 5},
        "threads": 1,
    }
    campaign, data = load_worker_data(tables)
    ((expected, _),) = SnapshotBuilder(campaign, data, {}).build_snapshots(
        REQUEST, lambda what, done: None
    )
    out = tmp_path / "out"
    out.mkdir()
    worker = Worker(tables, data, out)
    try:
        assert_same_snapshot(run_request(worker), expected)  # of pictures it decodes itself
        shutil.rmtree(out)
        out.touch()
        with pytest.raises(StorageError, match="cannot be written to"):
            run_request(worker)
        assert worker._process.is_alive()  # ready for the next request
    finally:
        worker.close()


def test_worker_that_cannot_receive_the_data_raises_storage_error(tmp_path):
    _, data = load_worker_data({"data": {"name": str(write_rows(tmp_path / "rows.csv"))}})
    (tmp_path / "out").touch()
    worker = Worker({}, data, tmp_path / "out")
    with pytest.raises(StorageError, match="cannot be written to"):
        run_request(worker)
