"""Serving a session: a socket, uvicorn, an orderly end."""

import os
import secrets
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from labelahead.errors import InputError
from labelahead.web.app import create_app
from labelahead.web.security import ANY_ADDRESS, LOOPBACK, is_loopback
from labelahead.web.session import Session

__all__ = ["listen", "serve"]

PORT = 8765
TRIED = 20  # ports after the one that is busy
EVERYWHERE = ("0.0.0.0", "::")


def serve(
    session: Session,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    browser: bool = True,
    tell: Callable[[str], None] = print,
    around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> None:
    """Serve until a signal comes: SIGINT and SIGTERM end as KeyboardInterrupt, all closed.

    token: beyond this machine there is always one; "" or none: one is made where needed. tell:
    hears the address, once it answers. around: what else is served, given the page.
    """
    if token == "" or (token is None and not is_loopback(host)):
        token = secrets.token_urlsafe(24)
    listening = listen(host, port)
    app = around(create_app(session.assignment, session.schedule, token=token, hosts=_names(host)))
    url = _url(host, listening.getsockname()[1], token)

    def ready() -> None:
        tell(url)
        if browser:  # some browsers are waited for until they are closed
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=3,
    )
    try:
        with _terminable():
            session.schedule.start()
            _Server(config, ready).run(sockets=[listening])
    finally:
        listening.close()


class _Server(uvicorn.Server):
    """Says when it is up."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As before, and then a word."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def listen(host: str, port: int) -> socket.socket:
    """A socket at that port, or at the first one after it that is free."""
    if not 0 <= port < 65536:
        raise InputError(f"port is {port}; expected 0 to 65535")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise InputError(
            f"host is {host!r} ({error.strerror}); expected an address of this machine, such as 127.0.0.1 or 0.0.0.0"
        ) from error
    wanted = [port, *(p for p in range(port + 1, port + TRIED) if p < 65536), 0] if port else [0]
    last: OSError | None = None
    for one in wanted:
        made = socket.socket(family, kind, proto)
        if os.name == "posix":  # elsewhere it would let two servers have the same port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((address[0], one, *address[2:]))
            made.listen(128)
            return made
        except OSError as error:
            made.close()
            last = error
    raise InputError(f"cannot listen at {host} ({last}); expected an address of this machine")


def _names(host: str) -> tuple[str, ...]:
    """What the server may be called in requests."""
    if host in EVERYWHERE:
        return (*LOOPBACK, ANY_ADDRESS, socket.gethostname(), socket.getfqdn())
    return (*LOOPBACK, f"[{host}]" if ":" in host else host)


def _url(host: str, port: int, token: str | None) -> str:
    shown = _own_address() if host in EVERYWHERE else host
    name = f"[{shown}]" if ":" in shown else shown
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _own_address() -> str:
    """The address by which others on the network know this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: only the route is looked up
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does; uvicorn passes on what it caught when it has shut down."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
