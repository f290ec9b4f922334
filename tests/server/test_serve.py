"""A served session: it can be stopped from another thread, and other tools can be served beside it."""

import http.client
import threading
from urllib.parse import urlsplit

import pytest
from starlette.responses import PlainTextResponse

from labelahead.errors import InputError
from labelahead.server.serve import ExternalLabelling, StopHandle, allowed_hosts, open_socket, serve
from tests.support.waiting import PATIENCE
from tests.support.web_sessions import page


def test_stop_handle_ends_serve_without_an_exception(tmp_path):
    (tmp_path / "t.csv").write_text("v,label\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(9)))
    stop, ended, replies = StopHandle(), [], []

    def wrap(app):
        async def wrapped(scope, receive, send):
            ours = PlainTextResponse("of the other tool")
            await (ours if scope["path"] == "/call" else app)(scope, receive, send)

        return wrapped

    def request(url):
        there = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
        for path in ("/call", "/api/session"):
            there.request("GET", path)
            replies.append(there.getresponse().read().decode())
        there.close()
        stop.stop()
        stop.stop()  # as often as wanted

    with page(tmp_path / "t.csv", tmp_path / "out", classes=["a", "b"]) as (_, session):
        serve(
            session,
            port=0,
            browser=False,
            on_message=lambda url: threading.Thread(target=request, args=(url,)).start(),
            external=ExternalLabelling("http://studio/1", wrap, stop),
        )
        ended.append(True)
    assert ended
    assert replies[0] == "of the other tool"
    assert "http://studio/1" in replies[1]


def test_open_socket_takes_the_next_free_port():
    with open_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with open_socket("127.0.0.1", port) as second:
            assert second.getsockname()[1] != port


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 65536), ("no.such.host.invalid", 80)])
def test_open_socket_refuses_other_addresses(host, port):
    with pytest.raises(InputError, match="expected"):
        open_socket(host, port)


def test_allowed_hosts_of_an_ipv6_address_have_brackets():
    assert "[fd00::1]" in allowed_hosts("fd00::1")


def test_open_socket_skips_a_busy_port():
    with open_socket("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with open_socket("127.0.0.1", port) as second:
            assert second.getsockname()[1] != port
    with pytest.raises(InputError, match="host is"):
        open_socket("no.such.host.invalid", 0)
