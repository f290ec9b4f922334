"""Where the worker begins: it imports nothing large, so that from its first moment on it ends with the server."""

import multiprocessing
import os
import threading
from multiprocessing.connection import wait
from typing import Any

__all__ = ["begin"]


def begin(*args: Any) -> None:
    """`worker.work`, watched over."""
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    from labelahead.web.worker import work

    work(*args)


def _end_with_the_server() -> None:
    """A server that was killed has no chance to say so: whoever works for it must not go on for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
