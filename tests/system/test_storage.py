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
def open_page(tmp_path):
    with page(photos(tmp_path / "set", 8), tmp_path / "out", classes=["a", "b"]) as (
        client,
        session,
    ):
        session.service.journal._db.execute("PRAGMA busy_timeout = 50")  # milliseconds
        yield client, session


def send_answer(client, key, position=0):
    body = {"position": position, "kind": "label", "label": 0, "key": key}
    return client.post("/api/answers", json=body, headers=CHANGE)


def check_refused(reply, status, folder):
    assert reply.status_code == status, reply.text
    assert (reply.headers.get("Retry-After") is not None) == (status == 503)
    assert set(reply.json()) == {"error"}
    for secret in (str(folder), tempfile.gettempdir(), "labels.db", "/"):
        assert secret not in reply.text
    return reply.json()["error"]


def test_full_disk_keeps_accepted_answers_and_accepts_the_repeated_one_later(open_page, tmp_path):
    client, session = open_page
    db = session.service.journal._db
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    replies = []
    while not replies or replies[-1].status_code == 200:
        key = f"{len(replies)}-" + "k" * 190
        replies.append(send_answer(client, key))
    error = check_refused(replies[-1], 507, tmp_path)
    assert (
        error
        == "the server's disk is full; all accepted answers are safe: free some space and try again"
    )
    check_refused(
        client.post("/api/classes", json={"name": "c" * 200}, headers=CHANGE), 507, tmp_path
    )
    assert client.get("/api/progress").json()["labels"] == 1  # looking is still possible
    db.execute("PRAGMA max_page_count = 100000")
    assert send_answer(client, key).status_code == 200
    assert len([e for e in session.service.journal.read_events() if e.key == key]) == 1
    assert send_answer(client, key).status_code == 200
    assert len(session.service.journal.read_events()) == 2 + len(replies)


@pytest.mark.parametrize("action", ["answers", "undo", "question", "import"])
def test_request_with_a_locked_journal_is_refused_and_can_be_repeated(open_page, tmp_path, action):
    client, session = open_page
    assert send_answer(client, "first").status_code == 200
    before = len(session.service.journal.read_events())
    key = uuid4().hex

    def send_request():
        if action == "question":
            return client.get("/api/question?fresh=1")
        if action == "import":
            return client.post("/api/import", content=b"item,label\n01.png,b\n", headers=CHANGE)
        body = {"key": key} | ({"position": 1, "kind": "skip"} if action == "answers" else {})
        return client.post(f"/api/{action}", json=body, headers=CHANGE)

    other = sqlite3.connect(tmp_path / "out/labels.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert "cannot use its files" in check_refused(send_request(), 503, tmp_path)
    other.execute("ROLLBACK")
    other.close()
    assert len(session.service.journal.read_events()) == before
    for _ in range(2):  # the same once more: it counts once
        assert send_request().status_code == 200
    assert len(session.service.journal.read_events()) == before + (action != "question")


def test_answer_whose_next_query_failed_is_recorded_once(open_page, tmp_path, monkeypatch):
    client, session = open_page
    lease = journal.Journal.lease_item

    def raise_disk_full(*args, **kwargs):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        with session.service.journal._writing_transaction():
            raise error

    monkeypatch.setattr(journal.Journal, "lease_item", raise_disk_full)
    check_refused(send_answer(client, "k"), 507, tmp_path)
    monkeypatch.setattr(journal.Journal, "lease_item", lease)
    assert send_answer(client, "k").json()["event"]["seq"] == 3
    assert len(session.service.journal.read_events()) == 3


def test_answer_after_removal_of_the_journal_is_a_server_error(open_page, tmp_path):
    client, _ = open_page
    (tmp_path / "out/labels.db").rename(tmp_path / "out/labels.old")
    check_refused(send_answer(client, "k"), 503, tmp_path)
    assert (tmp_path / "out/labels-rescued-2.db").exists()


@pytest.mark.parametrize(
    ("code", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EACCES, 503)]
)
@pytest.mark.parametrize("failing", ["file", "room"])
def test_export_and_import_without_space_are_refused_and_leave_no_file(
    open_page, tmp_path, monkeypatch, failing, code, status
):
    def raise_os_error(*args, **kwargs):
        raise OSError(code, "no", str(tmp_path))

    temporary = tmp_path / "rooms"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    client, _ = open_page
    if failing == "file":
        monkeypatch.setattr(exchange, "_write_csv", raise_os_error)
    else:
        monkeypatch.setattr(tempfile, "mkdtemp", raise_os_error)
    check_refused(client.get("/api/export/csv"), status, tmp_path)
    if failing == "room":
        check_refused(
            client.post("/api/import", content=b"item,label\n", headers=CHANGE), status, tmp_path
        )
    assert list(temporary.iterdir()) == []


def test_missing_library_is_named_in_the_error(open_page, tmp_path, monkeypatch):
    client, _ = open_page
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    for reply in (
        client.get("/api/export/parquet"),
        client.post("/api/import?form=parquet", content=b"PAR1", headers=CHANGE),
    ):
        assert "pip install 'labelahead[tables]'" in check_refused(reply, 503, tmp_path)


def test_training_failure_message_names_the_cause_without_the_path(open_page, tmp_path):
    client, session = open_page
    for error, expected in (
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
        assert expected in message
        assert str(tmp_path) not in message
