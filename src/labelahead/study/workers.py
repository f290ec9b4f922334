"""Campaigns side by side: one process per worker, one campaign at a time in each.

A worker that dies takes nothing along but the round it was in: its campaign is resumed by a new
one. (concurrent.futures' pool breaks as a whole when one of its processes dies.)
"""

import faulthandler
import json
import os
import signal
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple

from labelahead.config import Campaign
from labelahead.errors import LabelaheadError
from labelahead.store import Round

__all__ = ["RETRIES", "Event", "Job", "work"]

RETRIES = 2  # how often a campaign is taken up again after its worker died
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Job:
    """A campaign, and the folder it lives in."""

    name: str
    folder: Path
    campaign: Campaign = field(repr=False, compare=False)


class Event(NamedTuple):
    """What happened to a job. detail: why; trace: where, for errors nobody foresaw."""

    kind: Literal["started", "round", "finished", "died", "failed"]
    job: Job
    round: Round | None = None
    detail: str = ""
    trace: str = ""


def work(
    jobs: Sequence[Job], workers: int, log: Path, threads: int = 1
) -> Generator[Event, None, None]:
    """Run all jobs, at most `workers` at a time, and tell what happens as it happens.

    An error in one campaign does not stop the others. Closing the iterator, or any exception that
    reaches it, ends the workers; every label and round on record stays. log: what workers print.
    """
    waiting, deaths = deque(jobs), Counter[Job]()
    crew: list[_Worker] = []
    try:
        while waiting or any(w.job for w in crew):
            while waiting and len(crew) < workers:
                crew.append(_Worker(log, workers, threads))
            for worker in crew:
                if worker.job is None and waiting:
                    worker.give(waiting.popleft())
                    yield Event("started", worker.busy)
            for worker in _ready(crew):
                event = worker.listen()
                yield event
                if event.kind != "died":
                    continue
                crew.remove(worker)
                deaths[event.job] += 1
                if deaths[event.job] <= RETRIES:
                    waiting.appendleft(event.job)
                    continue
                times = f"its worker died {deaths[event.job]} times, lastly {event.detail}"
                yield Event("failed", event.job, detail=times)
    finally:
        for worker in crew:
            worker.process.terminate()
        for worker in crew:
            worker.end()


def _ready(crew: "Sequence[_Worker]") -> "list[_Worker]":
    """Those of the busy that have something to say, or have died; waits for the first."""
    busy: dict[Any, _Worker] = {w.pipe: w for w in crew if w.job}
    return [busy[pipe] for pipe in connection.wait(list(busy))]


class _Worker:
    """A process that runs one campaign after the other."""

    def __init__(self, log: Path, workers: int, threads: int) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.job: Job | None = None
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, str(log), workers), daemon=True
        )
        with _birth(threads):
            self.process.start()
        theirs.close()  # else its death would not be seen as the end of the pipe

    @property
    def busy(self) -> Job:
        """The job it is at."""
        assert self.job is not None
        return self.job

    def give(self, job: Job) -> None:
        """Have it begin with a job; should it be dead, `listen` will notice."""
        self.job = job
        with suppress(OSError):
            self.pipe.send((job.folder, job.campaign))

    def listen(self) -> Event:
        """The next thing it says, or that it has died."""
        job = self.busy
        try:
            kind, entry, detail, trace = self.pipe.recv()
        except (EOFError, OSError):
            self.end()
            return Event("died", job, detail=_cause(self.process.exitcode))
        if kind != "round":
            self.job = None
        return Event(kind, job, entry, detail, trace)

    def end(self) -> None:
        """Wait for its end, and make sure of it."""
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _cause(code: int | None) -> str:
    """An exit code in words."""
    if code is None or code >= 0:
        return f"with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    hint = "; often for want of memory: fewer --workers need less" if name == "SIGKILL" else ""
    return f"by signal {name}{hint}"


@contextmanager
def _birth(threads: int) -> Iterator[None]:
    """What a process must find when it is born: its number of threads, and deafness to Ctrl-C.

    Both are inherited. Threads are counted when torch is imported, which is before any line of
    ours; a Ctrl-C on the terminal reaches all processes, and it is the parent that ends them.
    """
    before = {name: os.environ.get(name) for name in THREADS}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if main:
            signal.signal(signal.SIGINT, handler)


def _serve(pipe: Connection, log: str, workers: int) -> None:
    """The worker's side: run what is given until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _print_to(log)
    while True:
        try:
            folder, campaign = pipe.recv()
        except EOFError:
            return
        try:
            _campaign(folder, campaign, workers, pipe)
            answer = ("finished", None, "", "")
        except LabelaheadError as error:
            answer = ("failed", None, str(error), "")
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            answer = ("failed", None, what, traceback.format_exc())
        pipe.send(answer)


def _campaign(folder: Path, campaign: Campaign, workers: int, pipe: Connection) -> None:
    from labelahead.campaign import resume, run
    from labelahead.store import Store
    from labelahead.study.machine import this_machine

    def tell(entry: Round) -> None:
        pipe.send(("round", entry, "", ""))

    if (folder / "config.toml").exists():
        resume(folder, on_round=tell)
    else:
        run(campaign, out=folder, on_round=tell)
    about = {**this_machine(), "campaigns side by side": workers}
    with Store.open(folder) as store:
        store.write("machine.json", json.dumps(about, indent=1).encode())


def _end_with_parent() -> None:
    """Nobody is left to report to when the parent was killed; the folder must become free."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _print_to(log: str) -> None:
    """Whatever libraries print goes to a file: the terminal belongs to the progress display."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable()
