"""The files of a journal.

`labels.db` alone holds every answer; a missing file is reported.
"""

import errno
import json
import os
import shutil
import signal
import sqlite3
import stat
import sys
import textwrap
from types import SimpleNamespace

import pytest

from labelahead import files
from labelahead.errors import InputError, StorageError
from labelahead.server import journal as journal_module
from labelahead.server.journal import Journal, copy_journal, read_item_names, read_journal
from tests.support.warm_processes import start_python

ITEMS = [f"{i}.jpg" for i in range(4000)]
COMPANIONS = ("labels.db-wal", "labels.db-shm")
posix = pytest.mark.skipif(
    sys.platform == "win32", reason="needs kill -9, and files that can be removed while open"
)


def open_journal(folder, **more):
    return Journal(folder, items=ITEMS, fingerprint="f", classes=("cat", "dog"), **more)


def kill_after(folder, answers):
    """Give answers in a process that is killed right after the last one."""
    script = f"""
        import os, signal
        from labelahead.server.journal import Journal
        items = [f"{{i}}.jpg" for i in range({len(ITEMS)})]
        journal = Journal({str(folder)!r}, items=items, fingerprint="f", classes=("cat", "dog"))
        for position in range({answers}):
            journal.lease_item(position, "anna", 60)
            journal.add_event("label", "anna", position, position % 2)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert start_python(["-c", textwrap.dedent(script)]).wait() == -signal.SIGKILL


@posix
def test_labels_db_alone_holds_every_answer_after_a_kill(tmp_path):
    kill_after(tmp_path, 60)
    for name in COMPANIONS:
        (tmp_path / name).unlink()
    with open_journal(tmp_path) as journal:
        assert journal.label_state.labels == {position: position % 2 for position in range(60)}


@posix
@pytest.mark.parametrize("name", COMPANIONS)
@pytest.mark.parametrize("replaced", [False, True])
def test_answers_are_refused_after_a_companion_file_is_removed(tmp_path, name, replaced):
    with open_journal(tmp_path) as journal:
        for position in range(20):
            journal.add_event("label", "anna", position, 1)
        (tmp_path / name).unlink()
        if replaced:
            (tmp_path / name).touch()
        with pytest.raises(
            StorageError, match=rf"{name} was removed or replaced.*labels-rescued-22\.db"
        ):
            journal.add_event("label", "anna", 20, 1)
        with pytest.raises(StorageError, match="removed or replaced"):
            journal.lease_item(21, "anna", 60)
        assert len(journal.label_state.labels) == 20  # reading still works
    with open_journal(tmp_path) as journal:
        assert len(journal.label_state.labels) == 20
        journal.add_event("label", "anna", 20, 1)
    shutil.copy(tmp_path / "labels-rescued-22.db", tmp_path / "labels.db")
    (tmp_path / "labels.seq").unlink()
    assert len(read_journal(tmp_path)[1]) == 22


@posix
@pytest.mark.parametrize("emptied", [False, True])
def test_orphaned_wal_file_is_refused_and_kept(tmp_path, emptied):
    kill_after(tmp_path, 5)
    (tmp_path / "labels.db").rename(tmp_path / "elsewhere.db")
    if emptied:
        (tmp_path / "labels.db").touch()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before["labels.db-wal"]
    message = (
        r"labels.db is (empty|missing), but labels.db-wal .* holds answers; .* restore the "
        r"labels.db that it belo"
    )
    for start in (open_journal, read_item_names, read_journal, copy_journal):
        with pytest.raises(InputError, match=message):
            start(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "elsewhere.db").rename(tmp_path / "labels.db")
    with open_journal(tmp_path) as journal:
        assert len(journal.label_state.labels) == 5


def test_failed_checkpoint_keeps_the_answer_and_is_retried(tmp_path):
    with open_journal(tmp_path) as journal:
        reader = sqlite3.connect(tmp_path / "labels.db", isolation_level=None)
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM events").fetchone() == (2,)
        journal.add_event(
            "label", "anna", 0, 1
        )  # not checkpointed: a reader has an older state open
        assert reader.execute("SELECT count(*) FROM events").fetchone() == (2,)
        assert journal._not_checkpointed == 1
        reader.execute("COMMIT")
        reader.close()
        journal.add_event("label", "anna", 1, 1)
        assert journal._not_checkpointed == 0


def test_journal_with_fewer_labels_than_a_training_round_is_refused(tmp_path):
    rounds = tmp_path / "rounds.jsonl"
    with open_journal(tmp_path) as journal:
        for position in range(3):
            journal.add_event("label", "anna", position, 1)
        journal.undo_answer("anna")
        assert len(journal.label_state.labels) == 2
    rounds.write_text(
        json.dumps({"labels": 3}) + '\n{"labels": 99'
    )  # 3 labels before the undo; the last line is incomplete
    open_journal(tmp_path).close()
    rounds.write_text('{"labels": 3}\n{"labels": 4}\n{"labels": 1}\n')
    message = (
        r"holds labels of 3 items, but rounds.jsonl has a training with 4 labels.*move "
        r"labels.seq, rounds.jsonl and"
    )
    for start in (open_journal, lambda folder: open_journal(folder, copy=copy_journal(folder))):
        with pytest.raises(InputError, match=message):
            start(tmp_path)
    rounds.unlink()
    open_journal(tmp_path).close()


def test_older_copy_of_labels_db_is_refused(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, 1)
    shutil.copy(tmp_path / "labels.db", tmp_path / "old.db")
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 1, 1)
    newest = (tmp_path / "labels.db").read_bytes()
    shutil.copy(tmp_path / "old.db", tmp_path / "labels.db")
    with pytest.raises(
        InputError, match=r"ends at event 3, but labels.seq refers to event 4: answers are missing"
    ):
        open_journal(tmp_path)
    (tmp_path / "labels.db").unlink()
    with pytest.raises(InputError, match=r"ends at event 0, but labels.seq refers to event 4"):
        open_journal(tmp_path)
    assert not (tmp_path / "labels.db").exists()  # no empty journal replaces it
    (tmp_path / "labels.db").write_bytes(newest)
    open_journal(tmp_path).close()
    (tmp_path / "labels.seq").write_text("")  # as a power cut may leave it
    open_journal(tmp_path).close()


@pytest.mark.parametrize("killed", [False, True])
def test_copy_journal_changes_no_file_in_the_folder(tmp_path, killed):
    if killed and sys.platform == "win32":
        pytest.skip("needs kill -9")
    if killed:
        kill_after(tmp_path, 3)
    else:
        with open_journal(tmp_path) as journal:
            for position in range(3):
                journal.add_event("label", "anna", position, 0)
    before = {path.name for path in tmp_path.iterdir()}
    with open_journal(tmp_path, copy=copy_journal(tmp_path)) as journal:
        assert len(journal.label_state.labels) == 3
        with pytest.raises(StorageError, match="opened read-only"):
            journal.add_event("label", "anna", 5, 1)
    assert len(read_item_names(tmp_path)) == len(ITEMS)
    assert {path.name for path in tmp_path.iterdir()} == before
    with pytest.raises(InputError, match="holds no labels"):
        copy_journal(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_copy_journal_holds_answers_so_far_and_does_not_block_the_writer(tmp_path):
    with open_journal(tmp_path) as journal:
        for position in range(7):
            journal.add_event("label", "anna", position, 1)
        copy = copy_journal(tmp_path)
        journal.add_event("label", "anna", 7, 1)
        assert journal._not_checkpointed == 0  # the copy does not block checkpoints
        with open_journal(tmp_path, copy=copy) as read:
            assert read.label_state.labels == dict.fromkeys(range(7), 1)
        journal.add_event("label", "anna", 8, 1)
    assert len(read_journal(tmp_path)[1]) == 2 + 9


@posix
def test_second_journal_is_refused_after_removal_of_the_lock_file(tmp_path):
    with open_journal(tmp_path) as first:
        (tmp_path / "labels.lock").unlink()
        for _ in range(2):
            with pytest.raises(StorageError, match="in use by another labelahead"):
                open_journal(tmp_path)
        first.add_event("label", "anna", 0, 1)
    open_journal(tmp_path).close()


@posix
def test_answers_are_refused_after_removal_of_the_lock_file_without_folder_locks(
    tmp_path, monkeypatch
):
    def flock(handle, operation):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EBADF, "as on NFS")

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with open_journal(tmp_path) as journal:
        journal.add_event("label", "anna", 0, 1)
        (tmp_path / "labels.lock").unlink()
        with pytest.raises(
            StorageError, match=r"labels.lock was removed or replaced .* another labelahead may use"
        ):
            journal.add_event("label", "anna", 1, 1)
        assert journal.label_state.labels == {0: 1}


def test_leases_do_not_last_longer_when_the_clock_is_set_back(tmp_path, monkeypatch):
    day = 86400.0
    clock = {"wall": 20000 * day, "monotonic": 50.0}
    now = SimpleNamespace(time=lambda: clock["wall"], monotonic=lambda: clock["monotonic"])
    monkeypatch.setattr(journal_module, "time", now)
    with open_journal(tmp_path) as journal:
        assert journal.lease_item(0, "anna", 600)
        clock["wall"] -= day
        clock["monotonic"] += 599.0
        assert journal.list_leases() == {0: "anna"}
        clock["monotonic"] += 1.0
        assert journal.list_leases() == {}
        assert journal.lease_item(0, "ben", 600)
        clock["wall"] += 3 * day  # a clock set forward does not end it earlier
        assert journal.list_leases() == {0: "ben"}
        clock["wall"] -= 5 * day
    clock["monotonic"] = 3.0  # after a reboot, with the clock days before ben's lease ends
    with open_journal(tmp_path) as journal:
        assert journal.list_leases() == {0: "ben"}
        clock["monotonic"] += 600.0
        assert journal.list_leases() == {}
