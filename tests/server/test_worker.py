"""The process that trains."""

import pytest

from labelahead.errors import StorageError
from labelahead.server.snapshot import TrainingRequest
from labelahead.server.worker import Worker
from tests.support.web_sessions import photos


def test_worker_that_cannot_write_its_snapshot_raises_storage_error_and_lives(tmp_path):
    """The worker finds a file instead of its folder."""
    tables = {
        "data": {"name": str(photos(tmp_path / "set", 8))},
        "model": {"name": "mlp"},
        "training": {"steps": 5},
    }
    (tmp_path / "out").touch()
    worker = Worker(tables, tmp_path / "out")
    try:
        with pytest.raises(StorageError, match="cannot be written to"):
            worker.run(TrainingRequest(1, ((0, 0), (1, 1)), 2), lambda what, done: None)
        assert worker._process.is_alive()  # ready for the next request
    finally:
        worker.stop()
