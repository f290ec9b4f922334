"""Sessions are readable by their owner alone from the first byte on."""

import os
import sqlite3
from pathlib import Path

import pytest

from labelahead.integrations.label_studio.tasks import claim_folder
from labelahead.server.journal import Journal
from labelahead.server.permissions import make_private_folder
from tests.support.web_sessions import page, photos

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX file systems")
PROJECT = {"id": 5, "created_at": "2026-01-01", "title": "a project"}


@pytest.fixture(autouse=True)
def usual_umask():
    """What most accounts have, whatever the one of the test run has."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def is_private(folder: Path) -> bool:
    """Whether a session's folder, its database and the companions of that are their owner's alone."""
    files = [path for path in folder.iterdir() if path.name.startswith("labels.db")]
    assert {path.name for path in files} >= {"labels.db", "labels.db-wal", "labels.db-shm"}
    return mode(folder) == 0o700 and all(mode(path) == 0o600 for path in files)


def test_a_label_studio_session_is_private_before_anything_is_written(tmp_path):
    folder = tmp_path / "parent" / "out"
    claim_folder(folder, PROJECT)
    assert mode(folder) == 0o700
    assert mode(folder.parent) == 0o755
    folder.chmod(0o755)  # as earlier versions left it
    claim_folder(folder, PROJECT)
    assert mode(folder) == 0o700
    with page(photos(tmp_path / "set", 4), tmp_path / "parent" / "out"):
        assert is_private(folder)


def test_a_page_session_is_private(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out"):
        assert is_private(tmp_path / "out")


def test_sessions_of_earlier_versions_are_restricted(tmp_path):
    folder = tmp_path / "out"
    source = photos(tmp_path / "set", 4)
    with page(source, folder):
        pass
    folder.chmod(0o755)
    (folder / "labels.db").chmod(0o644)
    # What a killed server leaves: SQLite takes over companions with whatever permissions they have.
    held = sqlite3.connect(folder / "labels.db")
    held.execute("SELECT count(*) FROM events").fetchone()
    for name in ("labels.db-wal", "labels.db-shm"):
        (folder / name).chmod(0o644)
    with page(source, folder):
        assert is_private(folder)
    held.close()


def test_the_copy_of_a_database_that_was_replaced_is_private(tmp_path):
    with Journal(tmp_path, items=["x"], fingerprint="f", classes=["a"]) as journal:
        journal.add_event("label", "anna@example.org", 0, 0)
        (tmp_path / "labels.db").rename(tmp_path / "moved.db")
        with pytest.raises(OSError, match="was removed or replaced"):
            journal.add_event("label", "anna@example.org", 0, 0)
        (copy,) = tmp_path.glob("labels-rescued-*.db")
        assert mode(copy) == 0o600


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    make_private_folder(shared)
    assert mode(shared) == 0o700  # it is empty
    shared.chmod(0o755)
    (shared / "thesis.tex").touch()
    make_private_folder(shared)
    assert mode(shared) == 0o755
    with Journal(shared, items=["x"], fingerprint="f"):
        assert mode(shared / "labels.db") == 0o600


def test_a_folder_of_another_user_is_used_with_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(self, mode):
        raise PermissionError(1, "Operation not permitted")

    folder = tmp_path / "out"
    folder.mkdir(mode=0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    make_private_folder(folder)
    assert "can be read by other users" in caplog.text
