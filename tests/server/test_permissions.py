"""Only the owner can read the files of a session."""

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
    """Set the usual umask, independent of that of the test run."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def is_private(folder: Path) -> bool:
    """Return whether only the owner can read a session's folder, database and companion files."""
    files = [path for path in folder.iterdir() if path.name.startswith("labels.db")]
    assert {path.name for path in files} >= {"labels.db", "labels.db-wal", "labels.db-shm"}
    return mode(folder) == 0o700 and all(mode(path) == 0o600 for path in files)


def test_claim_folder_makes_a_label_studio_session_private(tmp_path):
    folder = tmp_path / "parent" / "out"
    claim_folder(folder, PROJECT)
    assert mode(folder) == 0o700
    assert mode(folder.parent) == 0o755
    folder.chmod(0o755)  # as earlier versions left it
    claim_folder(folder, PROJECT)
    assert mode(folder) == 0o700
    with page(photos(tmp_path / "set", 4), tmp_path / "parent" / "out"):
        assert is_private(folder)


def test_page_session_is_private(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out"):
        assert is_private(tmp_path / "out")


def test_session_of_an_earlier_version_is_made_private(tmp_path):
    folder = tmp_path / "out"
    source = photos(tmp_path / "set", 4)
    with page(source, folder):
        pass
    folder.chmod(0o755)
    (folder / "labels.db").chmod(0o644)
    # A killed server leaves companion files; SQLite reuses them with their permissions.
    connection = sqlite3.connect(folder / "labels.db")
    connection.execute("SELECT count(*) FROM events").fetchone()
    for name in ("labels.db-wal", "labels.db-shm"):
        (folder / name).chmod(0o644)
    with page(source, folder):
        assert is_private(folder)
    connection.close()


def test_rescued_copy_of_a_replaced_database_is_private(tmp_path):
    with Journal(tmp_path, items=["x"], fingerprint="f", classes=["a"]) as journal:
        journal.add_event("label", "anna@example.org", 0, 0)
        (tmp_path / "labels.db").rename(tmp_path / "moved.db")
        with pytest.raises(OSError, match="was removed or replaced"):
            journal.add_event("label", "anna@example.org", 0, 0)
        (copy,) = tmp_path.glob("labels-rescued-*.db")
        assert mode(copy) == 0o600


def test_make_private_folder_leaves_folders_with_other_files_unchanged(tmp_path):
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


def test_make_private_folder_warns_about_a_folder_of_another_user(tmp_path, monkeypatch, caplog):
    def refuse(self, mode):
        raise PermissionError(1, "Operation not permitted")

    folder = tmp_path / "out"
    folder.mkdir(mode=0o755)
    monkeypatch.setattr(Path, "chmod", refuse)
    make_private_folder(folder)
    assert "can be read by other users" in caplog.text
