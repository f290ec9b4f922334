"""Start commands in processes of their own that need not import torch again.

A factory process imports the large libraries once, but nothing of labelahead. It forks for every
command: the child has its own pid, session, working folder, environment and signals, and runs
`python -m MODULE` from its first line. Where there is no fork, a new interpreter starts instead.
What depends on the start of an interpreter itself (import times) is tested with `subprocess`.
"""

import atexit
import contextlib
import fcntl
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import popen_spawn_posix, process, util
from pathlib import Path
from threading import Thread
from typing import IO, Any

# Imported by the factory; none of them starts a thread.
LIBRARIES = (
    "torch",
    "torch.func",
    "torch.utils.data",
    "numpy",
    "scipy.linalg",
    "PIL.Image",
    "fastapi",
    "uvicorn",
    "jinja2",
    "pydantic",
    "rich.console",
    "typer",
)
MAX_HANDLES = 60
MAX_ORDER_BYTES = 150_000  # of a packet: folder, environment and arguments


class WarmProcess:
    """A process that the factory forked, with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int, status: socket.socket, stdout: Any, stderr: Any) -> None:
        self.pid, self.returncode = pid, None
        self.stdout, self.stderr = stdout, stderr
        self._status = status

    def poll(self) -> int | None:
        return self._read_status(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read_status(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _read_status(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            self._status.settimeout(seconds)
            with contextlib.suppress(BlockingIOError, TimeoutError):
                text = self._status.recv(32)
                assert text, "the factory of processes has ended"
                self.returncode = int(text)
                self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """Read both streams to their ends and wait for the process."""
        texts: list[str | None] = [None, None]

        def read(i: int, stream: IO[str]) -> None:
            texts[i] = stream.read()

        streams = [s for s in (self.stdout, self.stderr) if s is not None]
        readers = [Thread(target=read, args=given, daemon=True) for given in enumerate(streams)]
        for reader in readers:
            reader.start()
        end = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.join(None if end is None else max(0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        self.wait(None if end is None else max(0, end - time.monotonic()))
        for stream in streams:
            stream.close()
        return texts[0], texts[1]


class Factory:
    """The process that forks the others; one for each process of pytest."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def start(
        self, order: Mapping[str, Any], streams: Sequence[int], kept: Sequence[int] = ()
    ) -> tuple[int, Any]:
        """Return the pid of a new process, and the socket that tells how it ends.

        streams: its stdout and its stderr. kept: open files that it has under the same numbers.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        message = json.dumps({**order, "kept": list(kept), "blocked": blocked}).encode()
        with theirs:
            handles = [theirs.fileno(), *streams, *kept]
            socket.send_fds(self._control, [message], handles)
        return int(ours.recv(32)), ours

    def close(self) -> None:
        self._control.close()
        self._process.wait()


@cache
def open_factory() -> Factory:
    factory = Factory()
    atexit.register(factory.close)
    return factory


def make_order(
    words: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None, new_session: bool
) -> dict[str, Any]:
    return {
        "words": words,
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
        "new_session": new_session,
    }


def start_python(
    arguments: Sequence[object],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    output: IO[Any] | None = None,
    new_session: bool = False,
) -> Any:
    """Start `python ARGUMENTS`, which are `-m MODULE ...`, `-c CODE ...` or `FILE ...`.

    output: a file for both streams; without one they are pipes of text.
    """
    words = [str(word) for word in arguments]
    if not sys.platform.startswith("linux"):
        streams = subprocess.PIPE if output is None else output
        return subprocess.Popen(
            [sys.executable, *words],
            stdout=streams,
            stderr=streams,
            text=True,
            cwd=cwd,
            env=env,
            start_new_session=new_session,
        )
    factory = open_factory()
    order = make_order(words, cwd, env, new_session)
    if output is not None:
        pid, status = factory.start(order, [output.fileno()] * 2)
        return WarmProcess(pid, status, None, None)
    readers, writers = zip(os.pipe(), os.pipe(), strict=True)
    pid, status = factory.start(order, writers)
    for writer in writers:
        os.close(writer)
    return WarmProcess(pid, status, *(os.fdopen(reader, "r") for reader in readers))


ColdPopen = popen_spawn_posix.Popen


class WarmPopen(ColdPopen):  # type: ignore[misc]
    """How `multiprocessing` starts a process by the method "spawn", from the factory.

    The process still receives all it knows through a pipe and imports its modules anew.
    """

    def _launch(self, process_obj: Any) -> None:
        spawn = util.spawnv_passfds

        def start(path: bytes, arguments: Sequence[Any], handles: Sequence[int]) -> int:
            words = [os.fsdecode(word) for word in arguments]
            if "--multiprocessing-fork" not in words:
                return spawn(path, arguments, handles)  # the resource tracker
            order = make_order(words[words.index("-c") :], None, None, False)
            kept = sorted(set(map(int, handles)))
            pid, status = open_factory().start(order, (1, 2), kept)
            self._warm = WarmProcess(pid, status, None, None)
            return pid

        util.spawnv_passfds = start
        try:
            super()._launch(process_obj)
        finally:
            util.spawnv_passfds = spawn

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            self.returncode = self._warm.poll() if flag == os.WNOHANG else self._warm.wait()
        return self.returncode


def warm_multiprocessing() -> None:
    """Let processes that this one spawns from now on come from the factory."""
    if sys.platform.startswith("linux"):
        popen_spawn_posix.Popen = WarmPopen


# --- in the factory ----------------------------------------------------------------------------


def serve_orders(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each order; the factory itself never returns from here.

    Returns:
        in the child, the order and the open files: stdout, stderr and those to keep.
    """
    children: dict[int, socket.socket] = {}
    wakeup, alarm = socket.socketpair()
    for end in (wakeup, alarm):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wakeup in ready:
                with contextlib.suppress(BlockingIOError):
                    wakeup.recv(4096)
                report_ended(children)
            if control not in ready:
                continue
            message, handles, _, _ = socket.recv_fds(control, MAX_ORDER_BYTES, MAX_HANDLES)
            if not message:
                os._exit(0)  # pytest has ended
            status = socket.socket(fileno=handles.pop(0))
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return json.loads(message), handles
            status.send(str(pid).encode())
            children[pid] = status
            for handle in handles:
                os.close(handle)


def report_ended(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with children.pop(pid) as report, contextlib.suppress(BrokenPipeError):
            report.send(str(os.waitstatus_to_exitcode(status)).encode())


def become_child(order: Mapping[str, Any], handles: Sequence[int]) -> None:
    """Take over the session, the open files, the folder and the environment of an order."""
    if order["new_session"]:
        os.setsid()
    numbers = [1, 2, *order["kept"]]
    free = max([*numbers, *handles]) + 1
    copies = [fcntl.fcntl(handle, fcntl.F_DUPFD, free) for handle in handles]
    for handle in handles:
        os.close(handle)
    for number, copy in zip(numbers, copies, strict=True):
        os.dup2(copy, number)
        os.close(copy)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    os.chdir(order["cwd"])
    process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]  # of processes it starts
    os.environ.clear()
    os.environ.update(order["env"])
    signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])
    for folder in reversed(order["env"].get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)


def run_order(words: Sequence[str]) -> None:
    """Run `-m MODULE ...`, `-c CODE ...` or `FILE ...` as the main module."""
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv[:] = list(words)
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def main() -> None:
    del sys.path[0]  # the folder of this file
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    order, streams = serve_orders(socket.socket(fileno=int(sys.argv[1])))
    become_child(order, streams)
    run_order(order["words"])


if __name__ == "__main__":
    main()
