"""A full disk, a held file, a missing library.

No fault of whoever asks, and nothing is lost by them.
"""

import errno
import sqlite3
import sys
import tempfile
from uuid import uuid4

import pytest

from labelahead.errors import StorageError
from labelahead.server import exchange, journal
from tests.support.web_sessions import CHANGE, page, photos


@pytest.fixture
def open_page(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "BUSY_SECONDS", 0.05)
    with page(photos(tmp_path / "set", 8), tmp_path / "out", classes=["a", "b"]) as (
        client,
        session,
    ):
        yield client, session


def send(client, key, position=0):
    body = {"position": position, "kind": "label", "label": 0, "key": key}
    return client.post("/api/answers", json=body, headers=CHANGE)


def refused(answer, status, room):
    assert answer.status_code == status, answer.text
    assert (answer.headers.get("Retry-After") is not None) == (status == 503)
    assert set(answer.json()) == {"error"}
    for inside in (str(room), tempfile.gettempdir(), "labels.db", "/"):
        assert inside not in answer.text
    return answer.json()["error"]


def test_a_full_disk_keeps_what_was_accepted_and_takes_the_answer_later(open_page, tmp_path):
    client, session = open_page
    db = session.service.journal._db
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    answers = []
    while not answers or answers[-1].status_code == 200:
        key = f"{len(answers)}-" + "k" * 190
        answers.append(send(client, key))
    said = refused(answers[-1], 507, tmp_path)
    assert (
        said
        == "the server's disk is full; all accepted answers are safe: free some space and try again"
    )
    refused(client.post("/api/classes", json={"name": "c" * 200}, headers=CHANGE), 507, tmp_path)
    assert client.get("/api/progress").json()["labels"] == 1  # looking is still possible
    db.execute("PRAGMA max_page_count = 100000")
    assert send(client, key).status_code == 200
    assert len([e for e in session.service.journal.read_events() if e.key == key]) == 1
    assert send(client, key).status_code == 200
    assert len(session.service.journal.read_events()) == 2 + len(answers)


@pytest.mark.parametrize("act", ["answers", "undo", "question", "import"])
def test_a_held_file_is_waited_for_and_then_said(open_page, tmp_path, act):
    client, session = open_page
    assert send(client, "first").status_code == 200
    before = len(session.service.journal.read_events())
    key = uuid4().hex

    def ask():
        if act == "question":
            return client.get("/api/question?fresh=1")
        if act == "import":
            return client.post("/api/import", content=b"item,label\n01.png,b\n", headers=CHANGE)
        body = {"key": key} | ({"position": 1, "kind": "skip"} if act == "answers" else {})
        return client.post(f"/api/{act}", json=body, headers=CHANGE)

    other = sqlite3.connect(tmp_path / "out/labels.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert "cannot use its files" in refused(ask(), 503, tmp_path)
    other.execute("ROLLBACK")
    other.close()
    assert len(session.service.journal.read_events()) == before
    for _ in range(2):  # the same once more: it counts once
        assert ask().status_code == 200
    assert len(session.service.journal.read_events()) == before + (act != "question")


def test_an_answer_whose_next_question_failed_is_recorded_once(open_page, tmp_path, monkeypatch):
    client, session = open_page
    lease = journal.Journal.lease_item

    def full(*args, **kwargs):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        with session.service.journal._writing_transaction():
            raise error

    monkeypatch.setattr(journal.Journal, "lease_item", full)
    refused(send(client, "k"), 507, tmp_path)
    monkeypatch.setattr(journal.Journal, "lease_item", lease)
    assert send(client, "k").json()["event"]["seq"] == 3
    assert len(session.service.journal.read_events()) == 3


def test_a_record_that_was_taken_away_is_no_fault_of_the_answer(open_page, tmp_path):
    client, _ = open_page
    (tmp_path / "out/labels.db").rename(tmp_path / "out/labels.old")
    refused(send(client, "k"), 503, tmp_path)
    assert (tmp_path / "out/labels-rescued-2.db").exists()


@pytest.mark.parametrize(
    ("code", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EACCES, 503)]
)
@pytest.mark.parametrize("where", ["file", "room"])
def test_an_export_that_finds_no_room(open_page, tmp_path, monkeypatch, where, code, status):
    def fails(*args, **kwargs):
        raise OSError(code, "no", str(tmp_path))

    rooms = tmp_path / "rooms"
    rooms.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(rooms))
    client, _ = open_page
    if where == "file":
        monkeypatch.setattr(exchange, "_write_csv", fails)
    else:
        monkeypatch.setattr(tempfile, "mkdtemp", fails)
    refused(client.get("/api/export/csv"), status, tmp_path)
    if where == "room":
        refused(
            client.post("/api/import", content=b"item,label\n", headers=CHANGE), status, tmp_path
        )
    assert list(rooms.iterdir()) == []


def test_a_missing_library_is_named(open_page, tmp_path, monkeypatch):
    client, _ = open_page
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    for answer in (
        client.get("/api/export/parquet"),
        client.post("/api/import?form=parquet", content=b"PAR1", headers=CHANGE),
    ):
        assert "pip install 'labelahead[tables]'" in refused(answer, 503, tmp_path)


def test_a_training_that_finds_no_room_says_so_and_not_where(open_page, tmp_path):
    client, session = open_page
    for error, said in (
        (
            OSError(errno.ENOSPC, "No space left on device", str(tmp_path)),
            "disk is full; labels are safe: free some space",
        ),
        (
            StorageError(f"{tmp_path} cannot be written to", full=True),
            "disk is full; labels are safe: free some space",
        ),
        (PermissionError(errno.EACCES, "Permission denied", str(tmp_path)), "cannot use its files"),
    ):
        session.schedule._report_failure(error)
        message = client.get("/api/progress").json()["training"]["message"]
        assert said in message
        assert str(tmp_path) not in message
