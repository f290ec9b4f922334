"""Ctrl-C handling, and worker processes that end with their parent.

After Ctrl-C the command line prints one line and exits with code 130 at any moment. This module
imports nothing large, since `exit_on_sigint` is the first call of the command line.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import Any

__all__ = [
    "exit_after_interrupt",
    "exit_on_sigint",
    "exit_with_parent",
    "ignore_sigint",
    "raise_on_sigint",
    "run_in_worker",
]

INTERRUPTED_EXIT_CODE = 130
HAS_SIGNAL_MASKS = hasattr(signal, "pthread_sigmask")


def exit_on_sigint() -> None:
    """Exit at once on Ctrl-C, with one line on stderr.

    Python's own KeyboardInterrupt does not work while modules are imported: some of them catch all
    exceptions, others turn them into errors of their own. An existing handler is kept, and so is an
    ignored signal (a background job of a shell).
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_on_signal)


@contextmanager
def raise_on_sigint(hint: Callable[[], str]) -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C inside the block, so that work can be finished in order.

    During an import the process still exits at once; files on the disk stay complete in any case.

    Args:
        hint: returns the text that follows "interrupted" on stderr.
    """
    # Without `exit_on_sigint` labelahead is used as a library and leaves signals alone.
    if signal.getsignal(signal.SIGINT) is not _exit_on_signal:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            _exit_on_signal(number, frame, hint())
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _exit_on_signal)


def exit_after_interrupt() -> None:
    """Exit the process of the command line after a KeyboardInterrupt, without joining threads.

    Does nothing unless `exit_on_sigint` was called.
    """
    if signal.getsignal(signal.SIGINT) is _exit_on_signal:
        pools = sys.modules.get("multiprocessing.util")
        if pools is not None:
            pools._run_finalizers(0)  # releases semaphores without joining threads
            _kill_resource_tracker()
        os._exit(INTERRUPTED_EXIT_CODE)


def _kill_resource_tracker() -> None:
    """Kill multiprocessing's resource tracker, which would warn about leaked semaphores.

    A thread of a pool may be releasing one at this moment: its name is gone, and the tracker has
    not been informed yet. Nothing leaks then. The tracker ignores gentler signals.
    """
    from multiprocessing import resource_tracker

    pid = getattr(getattr(resource_tracker, "_resource_tracker", None), "_pid", None)
    if pid is not None and HAS_SIGNAL_MASKS:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _exit_on_signal(number: int, frame: FrameType | None, more: str = "") -> None:
    """Handle SIGINT: print one line and exit."""
    # Erase the line of a spinner, and show the cursor that it hid.
    clear_line = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""
    os.write(2, f"{clear_line}interrupted{more}\n".encode())
    os._exit(INTERRUPTED_EXIT_CODE)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether the frame is inside an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Start processes inside the block that ignore Ctrl-C from their first instruction on.

    A terminal sends SIGINT to all processes of its group; these are stopped by their parent
    instead. The signal mask is inherited. A Ctrl-C inside the block is delivered when the block
    ends: an exception in the middle of a pool's work would leave its locks locked.
    """
    if not HAS_SIGNAL_MASKS:
        yield
        return
    import threading
    from multiprocessing import resource_tracker

    received: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    # A mask is its thread's own, and a signal may go to another one: it is Python's handler that
    # has to wait.
    waits = callable(handler) and threading.current_thread() is threading.main_thread()
    if waits:
        signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    resource_tracker.ensure_running()  # first, since its start resets the signal mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if waits:
            signal.signal(signal.SIGINT, handler)
            if received:
                signal.raise_signal(signal.SIGINT)


def exit_with_parent() -> None:
    """End this process as soon as its parent ends, even if that is killed; ignore Ctrl-C."""
    import threading
    from multiprocessing import connection, parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_in_worker(module: str, function: str, *args: Any) -> Any:
    """Call a function of a module, importing the module after `exit_with_parent`.

    New processes start with this function. If they started with the target itself, finding it would
    import torch first, and a process whose parent is killed meanwhile would live on for seconds.

    Args:
        module: the module, e.g. "labelahead.server.worker".
        function: the name of the function in it.
        args: its arguments.
    """
    exit_with_parent()
    return getattr(import_module(module), function)(*args)
