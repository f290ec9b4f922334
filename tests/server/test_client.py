"""The page from Python, before a server that has troubles of its own."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from labelahead.errors import InputError, LabelaheadError, StorageError
from labelahead.server import client
from labelahead.server.client import Client


@pytest.fixture
def server(monkeypatch):
    """Answers with these codes, one after the other, and remembers what it was sent."""
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)
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


def test_an_answer_is_tried_again_with_its_key(server):
    url, codes, bodies = server
    codes += [503, 507, 200]
    assert Client(url).answer(3, 1) == {"labels": 1}
    assert len(bodies) == 3
    assert len({body["key"] for body in bodies}) == 1
    codes += [507, 200]
    Client(url).undo()
    assert bodies[3] == bodies[4]


@pytest.mark.parametrize(("code", "full"), [(503, False), (507, True)])
def test_in_the_end_it_is_said_what_the_server_said(server, code, full):
    url, codes, bodies = server
    codes += [code] * 4
    with pytest.raises(StorageError, match="the disk is full") as refused:
        Client(url).answer(3, 1)
    assert refused.value.full == full
    assert len(bodies) == client.MAX_ATTEMPTS
    with pytest.raises(StorageError):
        Client(url).add_class("x")  # without a key it is said at once
    assert len(bodies) == client.MAX_ATTEMPTS + 1


def test_other_errors_are_not_tried_again(server):
    url, codes, bodies = server
    codes += [400, 500]
    with pytest.raises(InputError):
        Client(url).answer(3, 1)
    with pytest.raises(LabelaheadError) as failed:
        Client(url).answer(3, 1)
    assert not isinstance(failed.value, InputError | StorageError)
    assert len(bodies) == 2
