"""Ctrl-C: one line and exit code 130 at any moment; and processes that leave it to whoever started
them.

It imports nothing large: `exit_on_sigint` is the first thing that the command line does.
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
    """From now on Ctrl-C ends this process at once, with one line.

    Python's own way, an exception, is no good while modules are imported: some catch all
    exceptions, others turn them into errors of their own. Where somebody else listens, or nobody
    shall (a shell's background job), it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_on_signal)


@contextmanager
def raise_on_sigint(hint: Callable[[], str]) -> Iterator[None]:
    """Inside, Ctrl-C is a KeyboardInterrupt, so that what is under way can be put in order.

    Imports end at once also here: whatever is on the disk is whole after any death. hint: what else
    to say then.
    """
    if (
        signal.getsignal(signal.SIGINT) is not _exit_on_signal
    ):  # nobody called `exit_on_sigint`: a library keeps its hands off
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
    """After a Ctrl-C that was put in order.

    End, if this process is the command line's, without waiting for threads.
    """
    if signal.getsignal(signal.SIGINT) is _exit_on_signal:
        pools = sys.modules.get("multiprocessing.util")
        if pools is not None:
            pools._run_finalizers(0)  # semaphores are given back; threads are not joined
            _kill_resource_tracker()
        os._exit(INTERRUPTED_EXIT_CODE)


def _kill_resource_tracker() -> None:
    """End the process that complains of semaphores which are not given back.

    A pool's thread may be in the midst of giving one back, with the name gone and the tracker not
    yet told; there is nothing to complain of then. It heeds no gentler signal.
    """
    from multiprocessing import resource_tracker

    pid = getattr(getattr(resource_tracker, "_resource_tracker", None), "_pid", None)
    if pid is not None and HAS_SIGNAL_MASKS:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _exit_on_signal(number: int, frame: FrameType | None, more: str = "") -> None:
    clean = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""  # a spinner's line, a cursor that it hid
    os.write(2, f"{clean}interrupted{more}\n".encode())
    os._exit(INTERRUPTED_EXIT_CODE)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Processes that are started inside do not hear Ctrl-C, from their first instruction on.

    A terminal tells all processes; these end when they are told by whoever started them. The mask
    is inherited. What comes meanwhile is heard here afterwards: an exception in the midst of a
    pool's work leaves its locks locked.
    """
    if not HAS_SIGNAL_MASKS:
        yield
        return
    import threading
    from multiprocessing import resource_tracker

    heard: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    # A mask is its thread's own, and a signal may go to another one: it is Python's handler that
    # has to wait.
    waits = callable(handler) and threading.current_thread() is threading.main_thread()
    if waits:
        signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    resource_tracker.ensure_running()  # first: on its start it would take the mask off again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if waits:
            signal.signal(signal.SIGINT, handler)
            if heard:
                signal.raise_signal(signal.SIGINT)


def exit_with_parent() -> None:
    """From now on this process ends when the one that started it does, killed or not, and at no
    Ctrl-C.
    """
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
    """Call a function of a module, which is imported only when this process already watches over
    its parent.

    This is what a new process is started with: were it started with the function itself, finding
    that would import torch first, for seconds in which a process whose parent was killed lives on.
    """
    exit_with_parent()
    return getattr(import_module(module), function)(*args)
