"""The parent's side of a worker process: start it, ask it to run, watch its memory and its time."""

from __future__ import annotations

import ctypes
import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


_LIBC = ctypes.CDLL("libc.so.6")
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """In the worker: a benchmark that is stopped must not leave minutes of work running behind."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


class FailedError(Exception):
    """A contender that did not finish, with the reason that the table shows."""


@dataclass(frozen=True)
class Task:
    """One kernel to compute: that of the first n inputs in the file."""

    network: str
    path: Path
    n: int
    threads: int


@dataclass(frozen=True)
class Limits:
    """What a contender may use: resident memory in all, and seconds per answer."""

    memory_mb: float
    seconds: float
    budget_mb: float  # for the rivals that can size their buffers: gradients held at once


@dataclass
class Outcome:
    """What is known of one contender in one case."""

    seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    scale: float = 1.0  # > 1: timed on a part, extrapolated by this factor

    @property
    def best(self) -> float | None:
        """Best seconds of all repetitions, extrapolated where only a part was timed."""
        return min(self.seconds) * self.scale if self.seconds and not self.failure else None

    def as_json(self) -> dict[str, Any]:
        """For the results file."""
        return {
            "best_seconds": self.best,
            "seconds": self.seconds,
            "peak_mb": round(self.peak_mb, 1),
            "extrapolation_factor": self.scale,
            "failure": self.failure,
            **self.notes,
        }


class Worker:
    """A contender's process. Use as a context manager: leaving it ends the process."""

    def __init__(self, command: list[str], limits: Limits) -> None:
        self.limits = limits
        self.notes: dict[str, Any] = {}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the process)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=HERE,
            preexec_fn=_die_with_parent,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _resident_mb(self) -> float:
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0.0
        return pages * 4096 / 2**20

    def _next(self, seconds: float) -> dict[str, Any]:
        """The next message; `FailedError` if the process dies, grows or dawdles."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._resident_mb() > self.limits.memory_mb:
                self.close()
                raise FailedError(f"does not fit in {self.limits.memory_mb / 1024:.0f} GB")
            try:
                line = self._lines.get(timeout=0.05)
            except queue.Empty:
                continue
            if line is None:
                raise FailedError(self._last_words())
            if line.startswith("@"):
                return json.loads(line[1:])
        self.close()
        raise FailedError(f"over {seconds:.0f} s")

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if "Error" in line]
        return lines[-1].strip()[:200] if lines else "died without a word (out of memory?)"

    def ready(self, seconds: float = 1800) -> None:
        """Wait until it has prepared; what it says meanwhile becomes its notes."""
        while True:
            message = self._next(seconds)
            if message.pop("ready", False):
                return
            self.notes.update(message)

    def run(self, outcome: Outcome, keep: Path | None = None, seconds: float | None = None) -> None:
        """Run once more and add what was measured to `outcome`; `keep` saves the kernel there."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"run {keep or ''}\n")
        self._process.stdin.flush()
        message = self._next(seconds or self.limits.seconds)
        outcome.seconds.append(message["seconds"])
        outcome.peak_mb = max(outcome.peak_mb, message["peak_mb"])
        outcome.notes.update(self.notes)

    def close(self) -> None:
        """End the process and drop its error log."""
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def torch_worker(method: str, task: Task, limits: Limits) -> Worker:
    """A worker for one of the methods of kernel_worker.py."""
    script = str(HERE / "kernel_worker.py")
    numbers = [str(task.n), str(task.threads), str(limits.budget_mb)]
    return Worker([sys.executable, script, method, task.network, str(task.path), *numbers], limits)
