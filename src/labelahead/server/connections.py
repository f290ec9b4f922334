"""Limit the number of connections and the time that each may keep the server waiting.

A browser needs a few connections. A client that opens thousands and sends nothing must use up
neither the files nor the time of the server. Hence a fixed number of connections is held. Beyond
it, each new connection replaces the one whose client has kept the server waiting the longest: a
client that sends its request at once is served, however many silent ones there are.
"""

import asyncio
from collections import OrderedDict
from enum import Enum, auto
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["ConnectionLimiter", "Waiting", "limited_protocol"]

# from the connection, or the last response, to the end of a request's headers
REQUEST_TIMEOUT_SECONDS = 10.0
# for the body of a request; for the client to read more of a response
TRANSFER_TIMEOUT_SECONDS = 120.0
SWEEP_SECONDS = 2.0  # between two looks for connections that have timed out


class Waiting(Enum):
    """What the server waits for the client to do."""

    REQUEST = auto()  # send the headers of a request
    TRANSFER = auto()  # send the rest of a body, or read what was sent


class ConnectionLimiter:
    """The connections of one server, those whose client is waited for in order of since when.

    Used from the thread of the event loop alone. Connections are anything hashable with a method
    `abort`.
    """

    def __init__(
        self,
        max_connections: int,
        request_timeout: float = REQUEST_TIMEOUT_SECONDS,
        transfer_timeout: float = TRANSFER_TIMEOUT_SECONDS,
    ) -> None:
        self.max_connections = max_connections
        self._timeouts = {Waiting.REQUEST: request_timeout, Waiting.TRANSFER: transfer_timeout}
        self._held: dict[Any, Waiting | None] = {}
        self._queues: dict[Waiting, OrderedDict[Any, float]] = {
            waiting: OrderedDict() for waiting in Waiting
        }

    def __len__(self) -> int:
        """The number of open connections, never more than `max_connections`."""
        return len(self._held)

    def add(self, connection: Any, now: float) -> None:
        """Register a new connection.

        Abort the longest waiting one if there are too many, or the new one if none waits.
        """
        if len(self._held) >= self.max_connections:
            oldest = self._find_longest_waiting()
            if oldest is None:
                connection.abort()
                return
            self._abort(oldest)
        self._held[connection] = None
        self.set_waiting(connection, Waiting.REQUEST, now)

    def set_waiting(self, connection: Any, waiting: Waiting | None, now: float) -> None:
        """Set what the server waits for, None for nothing; an unchanged state keeps its time."""
        if connection not in self._held or self._held[connection] is waiting:
            return
        self._dequeue(connection)
        self._held[connection] = waiting
        if waiting is not None:
            self._queues[waiting][connection] = now

    def restart_waiting(self, connection: Any, now: float) -> None:
        """Restart the timeout: the client has sent what the server waited for."""
        self.set_waiting(connection, None, now)
        self.set_waiting(connection, Waiting.REQUEST, now)

    def remove(self, connection: Any) -> None:
        """Forget a connection that is closed; one that was aborted is forgotten already."""
        if connection in self._held:
            self._dequeue(connection)
            del self._held[connection]

    def abort_overdue(self, now: float) -> None:
        """Abort the connections whose clients have been waited for too long."""
        for waiting, queue in self._queues.items():
            while queue and now - next(iter(queue.values())) > self._timeouts[waiting]:
                self._abort(next(iter(queue)))

    def _find_longest_waiting(self) -> Any:
        fronts = [next(iter(queue.items())) for queue in self._queues.values() if queue]
        return min(fronts, key=lambda front: front[1])[0] if fronts else None

    def _dequeue(self, connection: Any) -> None:
        waiting = self._held[connection]
        if waiting is not None:
            del self._queues[waiting][connection]

    def _abort(self, connection: Any) -> None:
        # It counts no more at once: its socket is closed before the event loop accepts others.
        self.remove(connection)
        connection.abort()


class _LimitedProtocol(H11Protocol):
    """HTTP/1.1 that reports to a limiter what each connection waits for."""

    limiter: ClassVar[ConnectionLimiter]
    sweep: ClassVar["_Sweep"]

    def connection_made(self, transport: Any) -> None:
        """Register the connection with the limiter."""
        super().connection_made(transport)
        self.limiter.add(self, self.loop.time())
        self.sweep.start(self.loop)

    def data_received(self, data: bytes) -> None:
        """Process data, and update what the server waits for."""
        super().data_received(data)
        self._update_waiting()

    def on_response_complete(self) -> None:
        """Restart the timeout for the next request."""
        super().on_response_complete()
        self.limiter.restart_waiting(self, self.loop.time())
        self._update_waiting()  # the next one may be there already

    def pause_writing(self) -> None:
        """Note that the client does not read the response."""
        super().pause_writing()
        self._update_waiting()

    def resume_writing(self) -> None:
        """Note that the client reads again."""
        super().resume_writing()
        self._update_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the limiter."""
        self.limiter.remove(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close at once, whatever has not been sent."""
        self.transport.abort()

    def _update_waiting(self) -> None:
        waiting: Waiting | None
        if self.flow.write_paused:
            waiting = Waiting.TRANSFER
        elif self.cycle is None or self.cycle.response_complete:
            waiting = Waiting.REQUEST
        else:
            waiting = Waiting.TRANSFER if self.cycle.more_body else None
        self.limiter.set_waiting(self, waiting, self.loop.time())


class _Sweep:
    """Close overdue connections periodically, while connections exist."""

    def __init__(self, limiter: ConnectionLimiter) -> None:
        self._limiter = limiter
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_SECONDS, self._run, loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._limiter.abort_overdue(loop.time())
        if len(self._limiter):
            self.start(loop)


def limited_protocol(limiter: ConnectionLimiter) -> type[H11Protocol]:
    """The protocol class for uvicorn's `http` setting, for one server.

    >>> import uvicorn
    >>> config = uvicorn.Config(app=None, http=limited_protocol(ConnectionLimiter(max_connections=100)))
    """

    class LimitedProtocol(_LimitedProtocol):
        pass

    LimitedProtocol.limiter = limiter
    LimitedProtocol.sweep = _Sweep(limiter)
    return LimitedProtocol
