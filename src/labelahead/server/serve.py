"""Serve a session with uvicorn until a signal arrives."""

import ctypes
import logging
import os
import secrets
import signal
import socket
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from labelahead.errors import InputError
from labelahead.server.accounts import Accounts
from labelahead.server.app import create_app
from labelahead.server.connections import ConnectionLimiter, limited_protocol
from labelahead.server.security import ANY_ADDRESS, LOOPBACK, is_loopback
from labelahead.server.session import Session

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

__all__ = [
    "ExternalLabelling",
    "LoginSettings",
    "StopHandle",
    "allowed_hosts",
    "open_socket",
    "serve",
]

DEFAULT_PORT = 8765
MAX_CONNECTIONS = 512  # open sockets; a browser needs a few
# Connections that wait in the system's queue, and that are taken from it in one turn of the event
# loop. Between being accepted and being counted, and between being counted out and being closed, a
# connection takes a turn or two each.
LISTEN_BACKLOG = 1024
MAX_ACCEPTED_AT_ONCE = 8
TURNS_IN_TRANSIT = 4
LOG_REPEAT_SECONDS = 60.0  # during which a log message is not repeated
MAX_OPEN_FILES = 65536
MALLOC_OPTIONS = {
    -8: 2,
    -3: 4 << 20,
    -1: 32 << 20,
}  # M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
PORTS_TRIED = 20  # after the requested one
WILDCARD_HOSTS = ("0.0.0.0", "::")


class StopHandle:
    """Stops a server from any thread, as often as wanted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_stopped = False
        self._server: uvicorn.Server | None = None

    def stop(self) -> None:
        """Shut the server down cleanly; `serve` then returns."""
        with self._lock:
            self._is_stopped = True
            if self._server is not None:
                self._server.should_exit = True

    def attach(self, server: uvicorn.Server) -> None:
        """Set the server to stop; one that was stopped before it started ends at once."""
        with self._lock:
            self._server = server
            server.should_exit = self._is_stopped


@dataclass(frozen=True)
class ExternalLabelling:
    """Labels come from another tool, and the page only shows the progress.

    Attributes:
        url: Where to label.
        wrap: Wraps the application, to serve the calls of that tool.
        stop: Stops the server when that tool needs another session.
    """

    url: str
    wrap: Callable[[ASGIApp], ASGIApp]
    stop: StopHandle


@dataclass(frozen=True)
class LoginSettings:
    """Who may use the page.

    Attributes:
        accounts: The users, who must log in; None: a name is a signature.
        user_header: Header in which a reverse proxy names the user.
    """

    accounts: Accounts | None = None
    user_header: str | None = None


def serve(
    session: Session,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    token: str | None = None,
    browser: bool = True,
    on_message: Callable[[str], None] = print,
    external: ExternalLabelling | None = None,
    login: LoginSettings | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, which both end as KeyboardInterrupt after a clean shutdown.

    A `StopHandle` ends it without an exception.

    Args:
        session: An open session.
        host: Address to listen on.
        port: Port; the next free one if it is in use.
        token: Access token; "" generates one, and so does None if other machines can connect.
        browser: Whether to open the page in a browser.
        on_message: Called with the URL once the server is ready, and with warnings.
        external: The other tool in which people label, if there is one.
        login: Who may use the page; None: everybody who can open it.

    Raises:
        InputError: A proxy is to name the users, but other machines can connect without it.
    """
    login = login or LoginSettings()
    if login.user_header is not None and not is_loopback(host):
        raise InputError(
            f"user-header is {login.user_header!r} and host is {host}; with a proxy that names the "
            "users, expected the host 127.0.0.1, so that nobody can connect without the proxy"
        )
    if token == "" or (token is None and not is_loopback(host)):
        token = secrets.token_urlsafe(24)
    listening = open_socket(host, port)
    app = create_app(
        session.service,
        session.schedule,
        token=token,
        hosts=allowed_hosts(host),
        labelled_at=external.url if external else None,
        accounts=login.accounts,
        user_header=login.user_header,
    )
    app = external.wrap(app) if external else app
    url = _url(host, listening.getsockname()[1], token)

    def ready() -> None:
        on_message(url)
        if browser:  # some browsers block until they are closed
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    if not is_loopback(host):
        on_message(
            "the connection is not encrypted: others on this network can read items, labels and the "
            "token; use a TLS proxy (docs/labelling.md) or an SSH tunnel"
        )
    _raise_file_limit()
    _limit_malloc()
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(_RepeatFilter())
    try:
        with _interrupt_on_sigterm():
            session.schedule.start()
            server = _AnnouncingServer(_make_config(app), ready)
            if external:
                external.stop.attach(server)
            server.run(sockets=[listening])
    finally:
        listening.close()


def _make_config(app: ASGIApp) -> uvicorn.Config:
    """Return uvicorn's settings: a bounded number of connections, and no log of requests."""
    limiter = ConnectionLimiter(MAX_CONNECTIONS - TURNS_IN_TRANSIT * MAX_ACCEPTED_AT_ONCE)
    return uvicorn.Config(
        app,
        http=limited_protocol(limiter),
        backlog=MAX_ACCEPTED_AT_ONCE,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=3,
    )


class _RepeatFilter(logging.Filter):
    """Drop log messages that were logged in the last minute."""

    def __init__(self) -> None:
        super().__init__()
        self._last_logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the message template was not logged recently."""
        now, what = time.monotonic(), str(record.msg).partition("\n")[0]
        fresh = now - self._last_logged.get(what, -LOG_REPEAT_SECONDS) >= LOG_REPEAT_SECONDS
        if fresh:
            self._last_logged[what] = now
        return fresh


def _raise_file_limit() -> None:
    """Raise the limit of open files, since each connection needs one."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _limit_malloc() -> None:
    """Limit malloc arenas (glibc), so that memory freed by forty threads returns to the system."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        for parameter, value in MALLOC_OPTIONS.items():
            libc.mallopt(parameter, value)


class _AnnouncingServer(uvicorn.Server):
    """A uvicorn server that calls a function once it accepts requests."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server and call `ready`."""
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(LISTEN_BACKLOG)  # asyncio uses `backlog` for both limits
        if self.started:
            self._ready()


def open_socket(host: str, port: int) -> socket.socket:
    """Open a socket on a port, or on the next free one."""
    if not 0 <= port < 65536:
        raise InputError(f"port is {port}; expected 0 to 65535")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise InputError(
            f"host is {host!r} ({error.strerror}); expected an address of this machine, such as "
            "127.0.0.1 or 0.0.0.0"
        ) from error
    wanted = (
        [port, *(p for p in range(port + 1, port + PORTS_TRIED) if p < 65536), 0] if port else [0]
    )
    last: OSError | None = None
    for one in wanted:
        made = socket.socket(family, kind, proto)
        if os.name == "posix":  # on Windows it would allow two servers on one port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((address[0], one, *address[2:]))
            made.listen(LISTEN_BACKLOG)
            return made
        except OSError as error:
            made.close()
            last = error
    raise InputError(f"cannot listen at {host} ({last}); expected an address of this machine")


def allowed_hosts(host: str) -> tuple[str, ...]:
    """Return the allowed Host headers of a server at this address."""
    if host in WILDCARD_HOSTS:
        return (*LOOPBACK, ANY_ADDRESS, socket.gethostname(), socket.getfqdn())
    return (*LOOPBACK, f"[{host}]" if ":" in host else host)


def _url(host: str, port: int, token: str | None) -> str:
    shown = _find_own_address() if host in WILDCARD_HOSTS else host
    name = f"[{shown}]" if ":" in shown else shown
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _find_own_address() -> str:
    """Return the address of this machine on the network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing, only looks up the route
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt; uvicorn re-raises signals after its shutdown."""
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
