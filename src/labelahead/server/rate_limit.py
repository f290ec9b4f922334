"""Count failed attempts at the token, with bounded memory and constant time for each."""

import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b

__all__ = ["ATTEMPT_WINDOW_SECONDS", "MAX_FAILED_ATTEMPTS", "FailedAttempts"]

MAX_FAILED_ATTEMPTS = 20
ATTEMPT_WINDOW_SECONDS = 60.0
MAX_COUNTERS = 4096  # some 1 MB


class FailedAttempts:
    """Wrong tokens per client within a window of time.

    Attempts are counted per address and token, so that a client with an old cookie uses up nobody
    else's attempts. Tokens that were not seen before are counted per address as well: that is
    guessing. Of more than `max_counters` counters the least recently used are dropped.

    >>> failed = FailedAttempts(max_attempts=2)
    >>> [failed.add("10.0.0.1", "old-cookie") for _ in range(3)]
    [False, False, True]
    >>> failed.add("10.0.0.1", "another-cookie")
    False
    """

    def __init__(
        self,
        *,
        max_attempts: int = MAX_FAILED_ATTEMPTS,
        window_seconds: float = ATTEMPT_WINDOW_SECONDS,
        max_counters: int = MAX_COUNTERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_attempts = max_attempts
        self._window_seconds = window_seconds
        self._max_counters = max_counters
        self._clock = clock
        # (address, digest of the token) -> when its window began, attempts since. None: all new
        # tokens of the address.
        self._counters: OrderedDict[tuple[str, bytes | None], tuple[float, int]] = OrderedDict()

    def add(self, address: str, token: str) -> bool:
        """Count one attempt with a wrong token; whether the client has had too many."""
        # Tokens may be long, and must not lie around in memory.
        digest = blake2b(token.encode("utf-8", "replace"), digest_size=16).digest()
        with_token = self._count(address, digest)
        new_tokens = self._count(address, None) if with_token == 1 else 0
        return max(with_token, new_tokens) > self._max_attempts

    def _count(self, address: str, digest: bytes | None) -> int:
        """Count one attempt and return the number in the current window."""
        now, key = self._clock(), (address, digest)
        began, attempts = self._counters.pop(key, (now, 0))
        if now - began >= self._window_seconds:
            began, attempts = now, 0
        self._counters[key] = began, attempts + 1
        if len(self._counters) > self._max_counters:
            self._counters.popitem(last=False)
        return attempts + 1

    def __len__(self) -> int:
        """The number of counters."""
        return len(self._counters)
