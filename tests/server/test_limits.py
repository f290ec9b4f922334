"""Limits of the server: silent connections, guessed tokens, decompression bombs and misleading
names.
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
from tests.support.warm_processes import start_python
from tests.support.web_sessions import CHANGE, page, photos

TOKEN = "a-token-of-some-length"


@contextlib.contextmanager
def run_label_command(folder, out, *more, limits="", env=None):
    """Run the command and yield its port, process and output lines; limits: ulimit of its shell."""
    command = ["-m", "labelahead", "label", str(folder), "--classes", "a,b", "--out", str(out)]
    command += ["--no-browser", "--port", "0", "--model", "mlp", *more]
    environment = os.environ | (env or {})
    if limits:
        process = subprocess.Popen(
            ["bash", "-c", f'{limits} exec "$@"', "bash", sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
    else:
        process = start_python(command, env=environment)
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"http://[^:]+:(\d+)/", line):
                yield int(found[1]), process, lines
                break
        else:
            raise AssertionError(process.stderr.read())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def test_server_answers_despite_700_silent_connections(tmp_path):
    """More connections than the initial limit of open files, half of them with partial requests."""
    with run_label_command(
        photos(tmp_path / "set", 4), tmp_path / "out", limits="ulimit -S -n 400;"
    ) as (port, server, _):
        silent = []
        for i in range(700):
            silent_socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            with contextlib.suppress(OSError):
                silent_socket.send(
                    b"POST /api/answers HTTP/1.1\r\nHost: 127.0.0.1\r\n" if i % 2 else b""
                )
            silent.append(silent_socket)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", "/api/question")
        assert connection.getresponse().status == 200
        for silent_socket in silent:
            silent_socket.close()
    log = server.stderr.read()
    assert "accept" not in log  # no accept failed for lack of file descriptors
    assert len(log) < 5000


def test_incomplete_request_is_closed_after_the_request_timeout(tmp_path):
    with run_label_command(photos(tmp_path / "set", 4), tmp_path / "out") as (port, _, _):
        start = time.monotonic()
        connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        connection.send(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200" in connection.recv(100)
        connection.send(b"GET /api/hea")  # an incomplete request
        with contextlib.suppress(ConnectionError):
            while connection.recv(1000):
                pass
        assert time.monotonic() - start > REQUEST_TIMEOUT_SECONDS


def test_two_servers_on_one_host_keep_separate_token_cookies(tmp_path):
    import urllib.request
    from http.cookiejar import CookieJar

    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    secret = tmp_path / "secret"
    secret.write_text(f"{TOKEN}-2\n")
    env = {"LABELAHEAD_TOKEN": f"{TOKEN}-1"}
    with (
        run_label_command(photos(tmp_path / "one", 4), tmp_path / "out1", env=env) as (
            first_port,
            _,
            _,
        ),
        run_label_command(
            photos(tmp_path / "two", 4), tmp_path / "out2", "--token", f"@{secret}"
        ) as (second_port, process, _),
    ):
        browser.open(f"http://127.0.0.1:{first_port}/?token={TOKEN}-1").read()
        browser.open(f"http://127.0.0.1:{second_port}/?token={TOKEN}-2").read()
        for port in (first_port, second_port, first_port):
            assert (
                json.loads(browser.open(f"http://127.0.0.1:{port}/api/session").read())["items"]
                == 4
            )
        with open(f"/proc/{process.pid}/cmdline") as file:
            assert TOKEN not in file.read()


def test_label_command_on_all_interfaces_warns_about_missing_encryption(tmp_path):
    with run_label_command(photos(tmp_path / "set", 4), tmp_path / "out", "--host", "0.0.0.0") as (
        _,
        _,
        lines,
    ):
        assert any("encrypted" in line for line in lines)


def test_wrong_tokens_are_rate_limited_and_the_right_one_is_accepted(tmp_path):
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
        assert client.get("/api/session").status_code == 401  # a missing token is not an attempt
        assert (
            client.get("/api/session", headers={"Authorization": f"Bearer {TOKEN}"}).status_code
            == 200
        )
        assert client.get("/", params={"token": TOKEN}, follow_redirects=False).status_code == 303


def test_old_cookies_do_not_lock_out_other_clients_of_the_same_address(tmp_path):
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


def test_request_with_two_body_lengths_is_refused(tmp_path):
    """Use a real socket, because the HTTP library parses the request first."""
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
        run_label_command(photos(tmp_path / "set", 4), tmp_path / "out") as (port, _, _),
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection,
    ):
        connection.sendall(smuggled)
        while received := connection.recv(1000):
            reply += received
    assert reply.startswith(b"HTTP/1.1 400")
    assert b"both Content-Length and Transfer-Encoding" in reply
    assert reply.count(b"HTTP/1.1") == 1  # the connection is closed


def test_import_of_a_parquet_bomb_is_refused(tmp_path):
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
        reply = client.post("/api/import?form=parquet", content=content, headers=CHANGE)
        assert reply.status_code == 400
        assert (
            "the file could take 7.5 GB of memory unpacked; expected at most 0.5 GB" in reply.text
        )
        assert not session.service.label_state.labels


def test_import_and_load_refuse_files_that_expand_beyond_memory(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out", classes=["a", "b"]) as (
        client,
        session,
    ):
        malformed = json.dumps([{"data": {"item": "0"}, "predictions": 5}])
        reply = client.post("/api/import?form=label-studio", content=malformed, headers=CHANGE)
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
        peak_memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert reply.status_code == 400
        assert "2,000,000 rows; expected at most" in reply.json()["error"]
        assert peak_memory < 20e6  # no row was unpacked
        assert not list((tmp_path / "out").glob(f"{TEMPORARY_PREFIX}*"))
        assert not session.service.label_state.labels
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
        shape = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }"
        archive.writestr("x.npy", header + shape.ljust(117) + b"\n")
        archive.infolist()[0].file_size = 10**15  # the size that the archive declares
    with pytest.raises(InputError, match=r"GB unpacked, two copies are needed"):
        load(tmp_path / "bomb.npz")


def test_unreasonable_threads_and_widths_are_refused():
    with pytest.raises(InputError, match="threads is 1000000; expected 1 to"):
        parse_campaign({"threads": 1_000_000})
    with pytest.raises(InputError, match=r"mlp with width=1e\+09 is wider than"):
        build_model("mlp", (10,), 3, width=1_000_000_000)
    with pytest.raises(InputError, match="parameters; expected at most"):
        build_model("mlp", (10,), 3, width=500_000)


def test_class_name_with_bidirectional_control_is_refused(tmp_path):
    with page(photos(tmp_path / "set", 4), tmp_path / "out") as (client, _):
        reply = client.post("/api/classes", json={"name": "cat\u202egod"}, headers=CHANGE)
        assert reply.status_code == 409
        assert "U+202E" in reply.json()["error"]


def test_undo_key_is_bound_to_one_answer(tmp_path):
    with Journal(tmp_path, items=["x", "y"], fingerprint="f", classes=["a"]) as journal:
        first, second = (journal.add_event("label", "me", p, 0).seq for p in (0, 1))
        undo = journal.undo_answer("me", second, key="k")
        assert journal.undo_answer("me", second, key="k") == undo
        with pytest.raises(InputError, match=f"was used to undo answer {second}, not {first}"):
            journal.undo_answer("me", first, key="k")


def test_emptied_journal_is_refused(tmp_path):
    with Journal(tmp_path, items=["x"], fingerprint="f"):
        pass
    (tmp_path / "rounds.jsonl").write_text("{}\n")
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"labels.db{suffix}").write_bytes(b"")
    with pytest.raises(InputError, match=r"labels.db is empty, but"):
        Journal(tmp_path, items=["x"], fingerprint="f")


def test_read_labels_refuses_a_negative_position(tmp_path):
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


def test_temporary_files_of_a_killed_server_are_removed_at_start(tmp_path):
    folder = photos(tmp_path / "set", 4)
    with page(folder, tmp_path / "out"):
        assert (tmp_path / "out").stat().st_mode & 0o077 == 0
    (tmp_path / "out" / f"{TEMPORARY_PREFIX}abc").mkdir()
    (tmp_path / "out" / f"{TEMPORARY_PREFIX}abc" / "labels.csv").touch()
    with page(folder, tmp_path / "out"):
        assert not list((tmp_path / "out").glob(f"{TEMPORARY_PREFIX}*"))
