"""The connection limiter, alone and with real sockets.

A client that sends a request is served among many silent ones.
"""

import contextlib
import http.client
import selectors
import socket
import threading

import pytest
import uvicorn

from labelahead.server.connections import ConnectionLimiter, Waiting, limited_protocol
from labelahead.server.serve import MAX_ACCEPTED_AT_ONCE, open_socket
from tests.support.waiting import PATIENCE, until

NO_TIMEOUT = 1e9  # seconds
LARGE_BODY = b"x" * 50_000_000  # more than the buffers of both ends hold


class Client:
    """A connection for the limiter, without a socket."""

    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_add_beyond_the_limit_aborts_the_longest_waiting():
    limiter, clients = ConnectionLimiter(max_connections=3), [Client() for _ in range(6)]
    for now, client in enumerate(clients[:3]):
        limiter.add(client, now)
    limiter.set_waiting(clients[0], None, 3)  # its request is being answered
    limiter.set_waiting(clients[1], Waiting.TRANSFER, 4)
    limiter.add(clients[3], 5)
    assert [client.aborted for client in clients] == [False, False, True, False, False, False]
    limiter.add(clients[4], 6)
    assert [client.aborted for client in clients] == [False, True, True, False, False, False]
    limiter.restart_waiting(clients[3], 7)
    limiter.add(clients[5], 8)
    assert [client.aborted for client in clients] == [False, True, True, False, True, False]
    assert len(limiter) == 3


def test_add_aborts_the_new_connection_when_none_is_waiting():
    limiter, busy, new = ConnectionLimiter(max_connections=1), Client(), Client()
    limiter.add(busy, 0)
    limiter.set_waiting(busy, None, 1)
    limiter.add(new, 2)
    assert (busy.aborted, new.aborted, len(limiter)) == (False, True, 1)
    limiter.remove(new)  # it was never accepted
    limiter.remove(busy)
    limiter.remove(busy)
    assert len(limiter) == 0


def test_abort_overdue_applies_the_timeout_of_each_waiting_state():
    limiter = ConnectionLimiter(max_connections=10, request_timeout=10, transfer_timeout=100)
    requesting, sending, busy = clients = [Client() for _ in range(3)]
    for client in clients:
        limiter.add(client, 0)
    limiter.set_waiting(sending, Waiting.TRANSFER, 5)
    limiter.set_waiting(busy, None, 5)
    limiter.set_waiting(requesting, Waiting.REQUEST, 9)  # keeps its start time
    limiter.abort_overdue(10)
    assert not requesting.aborted
    limiter.abort_overdue(10.5)
    assert (requesting.aborted, sending.aborted, busy.aborted) == (True, False, False)
    limiter.abort_overdue(105.5)
    assert (sending.aborted, busy.aborted) == (True, False)


def test_add_takes_constant_work_per_connection():
    """Count hash calls instead of seconds: a scan of all connections would need one per connection."""

    class HashCountingClient(Client):
        looked_at = 0

        def __hash__(self) -> int:
            HashCountingClient.looked_at += 1
            return id(self)

    looked_at = {}
    for limit in (10, 1000):
        limiter = ConnectionLimiter(max_connections=limit)
        for now in range(2 * limit):
            limiter.add(HashCountingClient(), now)
        HashCountingClient.looked_at = 0
        for now in range(100):
            limiter.add(HashCountingClient(), 2 * limit + now)
        looked_at[limit] = HashCountingClient.looked_at
        assert len(limiter) == limit
    assert looked_at[1000] == looked_at[10]


async def application(scope, receive, send):
    """Read the body, then send a short or a large response."""
    while (await receive()).get("more_body"):
        pass
    body = LARGE_BODY if scope["path"] == "/large" else b"hello"
    length = str(len(body)).encode()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]}
    )
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def run_server(limiter):
    """Run a server with this limiter in a thread and yield its port."""
    listener = open_socket("127.0.0.1", 0)
    options = {
        "log_level": "critical",
        "lifespan": "off",
        "ws": "none",
        "timeout_graceful_shutdown": 1,
    }
    config = uvicorn.Config(
        application,
        http=limited_protocol(limiter),
        backlog=MAX_ACCEPTED_AT_ONCE,
        timeout_keep_alive=10**6,
        **options,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()


def wait_closed(sockets, count):
    """Wait until the server has closed `count` of the sockets and return them."""
    closed = set()
    with selectors.DefaultSelector() as selector:
        for connection in sockets:
            selector.register(connection, selectors.EVENT_READ)
        while len(closed) < count:
            ready = selector.select(PATIENCE)
            assert ready, f"{len(closed)} connections are closed; expected {count}"
            for key, _ in ready:
                with contextlib.suppress(ConnectionError):
                    assert key.fileobj.recv(1) == b""
                closed.add(key.fileobj)
                selector.unregister(key.fileobj)
    return closed


def request_status(port):
    """Send a request on a new connection and return its status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/")
    try:
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
    ],
)
def test_silent_connections_beyond_the_limit_are_closed(sent):
    limit, excess = 8, 24
    limiter = ConnectionLimiter(limit, NO_TIMEOUT, NO_TIMEOUT)
    with run_server(limiter) as port, contextlib.ExitStack() as opened:
        silent = []
        for _ in range(limit + excess):
            silent.append(
                opened.enter_context(
                    socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
                )
            )
            with contextlib.suppress(ConnectionError):
                silent[-1].sendall(sent)
        open_sockets = set(silent) - wait_closed(silent, excess)
        assert request_status(port) == 200
        # The request came last: all excess connections are closed by now, and one more to make
        # room for the request.
        open_sockets -= wait_closed(open_sockets, 1)
        with selectors.DefaultSelector() as selector:
            for connection in open_sockets:
                selector.register(connection, selectors.EVENT_READ)
            assert selector.select(0) == []
        assert len(open_sockets) == limit - 1


def test_clients_that_do_not_read_are_closed_to_make_room():
    limit = 10
    limiter = ConnectionLimiter(limit, NO_TIMEOUT, NO_TIMEOUT)
    with run_server(limiter) as port, contextlib.ExitStack() as opened:
        for _ in range(limit):
            connection = opened.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            )
            connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(1) == b"H"  # the response has begun
        until(lambda: all(waiting is Waiting.TRANSFER for waiting in limiter._held.values()))
        assert request_status(port) == 200


def test_overdue_clients_are_closed():
    limiter = ConnectionLimiter(10, request_timeout=0.0, transfer_timeout=NO_TIMEOUT)
    with run_server(limiter) as port, contextlib.ExitStack() as opened:
        silent = opened.enter_context(
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        )
        sending = opened.enter_context(
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        )
        sending.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
        assert wait_closed([silent], 1) == {silent}
        until(lambda: len(limiter) == 1)
        sending.sendall(b"defghi")
        assert sending.recv(12) == b"HTTP/1.1 200"
