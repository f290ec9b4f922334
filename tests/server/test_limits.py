"""What a server bears: silent connections, guesses at the token, files that blow up, names that
turn text around.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from labelahead.data import load
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.models import build_model
from labelahead.server.connections import REQUEST_TIMEOUT_SECONDS
from labelahead.server.journal import Journal
from labelahead.server.rate_limit import MAX_FAILED_ATTEMPTS
from labelahead.server.session import TEMPORARY_PREFIX
from labelahead.simulation.store import Store
from tests.support.waiting import PATIENCE
from tests.support.web_sessions import CHANGE, page, photos

TOKEN = "a-token-of-some-length"


@contextlib.contextmanager
def served(folder, out, *more, limits="", env=None):
    """The command itself; the port that it found. limits: of the shell."""
    command = [
        sys.executable,
        "-m",
        "labelahead",
        "label",
        str(folder),
        "--classes",
        "a,b",
        "--out",
        str(out),
    ]
    command += ["--no-browser", "--port", "0", "--model", "mlp", *more]
    started = subprocess.Popen(
        ["bash", "-c", f'{limits} exec "$@"', "bash", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (env or {}),
    )
    try:
        lines = []
        for line in started.stdout:
            lines.append(line)
            if found := re.search(r"http://[^:]+:(\d+)/", line):
                yield int(found[1]), started, lines
                break
        else:
            raise AssertionError(started.stderr.read())
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(PATIENCE)


def test_silent_connections_keep_nobody_out(tmp_path):
    """Far more than files may be open at first, half of them in the middle of a request."""
    with served(photos(tmp_path / "set", 4), tmp_path / "out", limits="ulimit -S -n 400;") as (
        port,
        server,
        _,
    ):
        silent = []
        for i in range(700):
            one = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            with contextlib.suppress(OSError):
                one.send(b"POST /api/answers HTTP/1.1\r\nHost: 127.0.0.1\r\n" if i % 2 else b"")
            silent.append(one)
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        asked.request("GET", "/api/question")
        assert asked.getresponse().status == 200
        for one in silent:
            one.close()
    said = server.stderr.read()
    assert "accept" not in said  # else somebody had to wait until others were let go
    assert len(said) < 5000


def test_whoever_does_not_ask_in_time_is_let_go(tmp_path):
    with served(photos(tmp_path / "set", 4), tmp_path / "out") as (port, _, _):
        began = time.monotonic()
        slow = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        slow.send(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200" in slow.recv(100)
        slow.send(b"GET /api/hea")  # and no more
        with contextlib.suppress(ConnectionError):
            while slow.recv(1000):
                pass
        assert time.monotonic() - began > REQUEST_TIMEOUT_SECONDS


def test_two_pages_of_one_machine_keep_their_tokens_apart(tmp_path):
    import urllib.request
    from http.cookiejar import CookieJar

    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    secret = tmp_path / "secret"
    secret.write_text(f"{TOKEN}-2\n")
    env = {"LABELAHEAD_TOKEN": f"{TOKEN}-1"}
    with (
        served(photos(tmp_path / "one", 4), tmp_path / "out1", env=env) as (one, _, _),
        served(photos(tmp_path / "two", 4), tmp_path / "out2", "--token", f"@{secret}") as (
            two,
            process,
            _,
        ),
    ):
        browser.open(f"http://127.0.0.1:{one}/?token={TOKEN}-1").read()
        browser.open(f"http://127.0.0.1:{two}/?token={TOKEN}-2").read()
        for port in (one, two, one):
            assert (
                json.loads(browser.open(f"http://127.0.0.1:{port}/api/session").read())["items"]
                == 4
            )
        with open(f"/proc/{process.pid}/cmdline") as shown:
            assert TOKEN not in shown.read()


def test_beyond_this_machine_it_is_said_that_nothing_is_encrypted(tmp_path):
    with served(photos(tmp_path / "set", 4), tmp_path / "out", "--host", "0.0.0.0") as (
        _,
        _,
        lines,
    ):
        assert any("encrypted" in line for line in lines)


def test_wrong_tokens_are_limited_and_a_right_one_passes(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out", token=TOKEN) as (client, _):
        client.cookies.clear()
        for i in range(MAX_FAILED_ATTEMPTS):
            assert (
                client.get(
                    "/api/session", headers={"Authorization": f"Bearer guess-{i}"}
                ).status_code
                == 401
            )
        refused = client.get("/api/session", headers={"Authorization": "Bearer another-guess"})
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "60"
        assert client.get("/api/session").status_code == 401  # no token at all is no attempt
        assert (
            client.get("/api/session", headers={"Authorization": f"Bearer {TOKEN}"}).status_code
            == 200
        )
        assert client.get("/", params={"token": TOKEN}, follow_redirects=False).status_code == 303


def test_old_cookies_do_not_lock_out_others_behind_the_same_address(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out", token=TOKEN) as (client, _):
        client.cookies.clear()
        statuses = {"right": set(), "first": set(), "second": set()}
        for _ in range(3 * MAX_FAILED_ATTEMPTS):
            for who, token in (
                ("first", "old-token-1"),
                ("second", "old-token-2"),
                ("right", TOKEN),
            ):
                reply = client.get("/api/session", headers={"Cookie": f"la_token_8765={token}"})
                statuses[who].add(reply.status_code)
        assert statuses == {"right": {200}, "first": {401, 429}, "second": {401, 429}}


def test_a_body_whose_length_is_given_twice_is_refused(tmp_path):
    """Over a real socket: what reaches the application is what the HTTP library makes of it."""
    smuggled = (
        b"POST /api/me HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Labelahead: 1\r\nContent-Type: "
        b"application/json\r\n"
    )
    smuggled += (
        b'Content-Length: 13\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{"who":"eve"}\r\n0\r\n\r\n'
    )
    smuggled += b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    reply = b""
    with (
        served(photos(tmp_path / "set", 4), tmp_path / "out") as (port, _, _),
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sent,
    ):
        sent.sendall(smuggled)
        while more := sent.recv(1000):
            reply += more
    assert reply.startswith(b"HTTP/1.1 400")
    assert b"both Content-Length and Transfer-Encoding" in reply
    assert reply.count(b"HTTP/1.1") == 1  # and the connection is closed


def test_a_small_parquet_file_of_much_text_is_refused(tmp_path):
    rows = pyarrow.array([0] * 400_000, pyarrow.int32())
    texts = pyarrow.DictionaryArray.from_arrays(rows, pyarrow.array(["x" * 10_000]))
    table = pyarrow.table({"item": texts, "label": texts})
    pyarrow.parquet.write_table(table, tmp_path / "bomb", compression="zstd")
    content = (tmp_path / "bomb").read_bytes()
    assert len(content) < 65_000
    with page(photos(tmp_path / "set", 4), tmp_path / "out", classes=["a", "b"]) as (
        client,
        session,
    ):
        said = client.post("/api/import?form=parquet", content=content, headers=CHANGE)
        assert said.status_code == 400
        assert "the file could take 7.5 GB of memory unpacked; expected at most 0.5 GB" in said.text
        assert not session.service.label_state.labels


def test_files_that_blow_up_are_refused(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out", classes=["a", "b"]) as (
        client,
        session,
    ):
        strange = json.dumps([{"data": {"item": "0"}, "predictions": 5}])
        reply = client.post("/api/import?form=label-studio", content=strange, headers=CHANGE)
        assert reply.status_code == 400
        assert "predictions are 5; expected a list" in reply.json()["error"]
        column = pyarrow.DictionaryArray.from_arrays(
            pyarrow.array(np.zeros(2_000_000, np.int32)), ["00.png"]
        )
        table = pyarrow.table({"item": column, "label": column})
        pyarrow.parquet.write_table(table, tmp_path / "many.parquet")
        content = (tmp_path / "many.parquet").read_bytes()
        tracemalloc.start()
        reply = client.post("/api/import?form=parquet", content=content, headers=CHANGE)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert reply.status_code == 400
        assert "2,000,000 rows; expected at most" in reply.json()["error"]
        assert held < 20e6  # no row of them was unpacked
        assert not list((tmp_path / "out").glob(f"{TEMPORARY_PREFIX}*"))
        assert not session.service.label_state.labels
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
        shape = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }"
        archive.writestr("x.npy", header + shape.ljust(117) + b"\n")
        archive.infolist()[0].file_size = 10**15  # what the archive announces
    with pytest.raises(InputError, match=r"GB unpacked, two copies are needed"):
        load(tmp_path / "bomb.npz")


def test_numbers_that_no_machine_has():
    with pytest.raises(InputError, match="threads is 1000000; expected 1 to"):
        parse_campaign({"threads": 1_000_000})
    with pytest.raises(InputError, match=r"mlp with width=1e\+09 is wider than"):
        build_model("mlp", (10,), 3, width=1_000_000_000)
    with pytest.raises(InputError, match="parameters; expected at most"):
        build_model("mlp", (10,), 3, width=500_000)


def test_names_that_turn_text_around(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out") as (client, _):
        reply = client.post("/api/classes", json={"name": "cat\u202egod"}, headers=CHANGE)
        assert reply.status_code == 409
        assert "U+202E" in reply.json()["error"]


def test_a_key_takes_back_one_answer(tmp_path):
    with Journal(tmp_path, items=["x", "y"], fingerprint="f", classes=["a"]) as journal:
        first, second = (journal.add_event("label", "me", p, 0).seq for p in (0, 1))
        gone = journal.undo_answer("me", second, key="k")
        assert journal.undo_answer("me", second, key="k") == gone
        with pytest.raises(InputError, match=f"was used to undo answer {second}, not {first}"):
            journal.undo_answer("me", first, key="k")


def test_a_record_that_was_emptied_is_not_begun_anew_unsaid(tmp_path):
    with Journal(tmp_path, items=["x"], fingerprint="f"):
        pass
    (tmp_path / "rounds.jsonl").write_text("{}\n")
    for more in ("", "-wal", "-shm"):
        (tmp_path / f"labels.db{more}").write_bytes(b"")
    with pytest.raises(InputError, match=r"labels.db is empty, but"):
        Journal(tmp_path, items=["x"], fingerprint="f")


def test_a_campaign_with_a_position_below_zero_is_damaged(tmp_path):
    with Store.create(tmp_path / "run", "") as store:
        store.add_label(3, 0, 0)
    path = tmp_path / "run" / "labels.jsonl"
    path.write_text(
        path.read_text()
        .replace('"position": 3', '"position": -5')
        .replace('"position":3', '"position":-5')
    )
    with Store.open(tmp_path / "run") as store, pytest.raises(InputError, match="has position -5"):
        store.read_labels()


def test_what_a_killed_server_left_behind_is_swept(tmp_path):
    folder = photos(tmp_path / "set", 4)
    with page(folder, tmp_path / "out"):
        assert (tmp_path / "out").stat().st_mode & 0o077 == 0
    (tmp_path / "out" / f"{TEMPORARY_PREFIX}abc").mkdir()
    (tmp_path / "out" / f"{TEMPORARY_PREFIX}abc" / "labels.csv").touch()
    with page(folder, tmp_path / "out"):
        assert not list((tmp_path / "out").glob(f"{TEMPORARY_PREFIX}*"))
