"""The Python client of the page, with a server that fails."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from labelahead.errors import InputError, LabelaheadError, StorageError
from labelahead.server.client import MAX_ATTEMPTS, Client


@pytest.fixture
def server():
    """Start a server that replies with the given status codes in turn and keeps the request bodies."""
    codes, bodies = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            content = json.dumps(
                {"error": "the disk is full"} if codes[0] != 200 else {"labels": 1}
            ).encode()
            self.send_response(codes.pop(0))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", codes, bodies
        listening.shutdown()
        thread.join()


def test_answer_and_undo_are_retried_with_the_same_key(server):
    url, codes, bodies = server
    codes += [503, 507, 200]
    assert Client(url, pause_seconds=0.01).add_answer(3, 1) == {"labels": 1}
    assert len(bodies) == 3
    assert len({body["key"] for body in bodies}) == 1
    codes += [507, 200]
    Client(url, pause_seconds=0.01).undo()
    assert bodies[3] == bodies[4]


@pytest.mark.parametrize(("code", "full"), [(503, False), (507, True)])
def test_answer_raises_the_servers_storage_error_after_the_last_attempt(server, code, full):
    url, codes, bodies = server
    codes += [code] * 4
    with pytest.raises(StorageError, match="the disk is full") as refused:
        Client(url, pause_seconds=0.01).add_answer(3, 1)
    assert refused.value.full == full
    assert len(bodies) == MAX_ATTEMPTS
    with pytest.raises(StorageError):
        Client(url, pause_seconds=0.01).add_class("x")  # a request without a key is not retried
    assert len(bodies) == MAX_ATTEMPTS + 1


def test_answer_is_not_retried_after_other_errors(server):
    url, codes, bodies = server
    codes += [400, 500]
    with pytest.raises(InputError):
        Client(url, pause_seconds=0.01).add_answer(3, 1)
    with pytest.raises(LabelaheadError) as failed:
        Client(url, pause_seconds=0.01).add_answer(3, 1)
    assert not isinstance(failed.value, InputError | StorageError)
    assert len(bodies) == 2


def test_answer_to_a_task_is_sent_as_a_value(server):
    url, codes, bodies = server
    codes += [200, 200]
    Client(url).add_answer(3, value=[])  # no class is an answer
    Client(url).add_answer(3, 1)
    assert (bodies[0]["value"], bodies[0]["label"]) == ([], None)
    assert "value" not in bodies[1]
