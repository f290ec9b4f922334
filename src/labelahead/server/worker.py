"""Training and kernels for the page, in a process of its own: answers never wait for them.

The process is handed orders (labels, classes) and hands back snapshots as files; whatever happens
to it, no label is in it alone.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from labelahead.errors import LabelaheadError
from labelahead.learner.config import parse_campaign
from labelahead.processes import ignore_sigint, run_in_worker
from labelahead.server.refresh import TrainingRequest
from labelahead.server.snapshot import save_snapshot
from labelahead.server.snapshot_builder import ProgressCallback, SnapshotBuilder, load_page_data

__all__ = ["TrainingRequest", "Worker", "run_worker"]

STOP_SECONDS = 5.0  # seconds for a process to end by itself
# answers come first, once there is something to ask by: until then they wait for this process
NICENESS = 10


def run_worker(
    tables: Mapping[str, Any],
    folder: str,
    threads: int,
    test: Mapping[int, int],
    items: Sequence[str],
    pipe: Connection,
) -> None:
    """The process: one order at a time until the pipe closes."""
    niceness = NICENESS
    torch.set_num_threads(threads)
    try:
        campaign = replace(parse_campaign(tables), threads=threads)
        builder = SnapshotBuilder(campaign, load_page_data(campaign, items), test)
        pipe.send(("ready", ""))
        while True:
            order = pipe.recv()
            try:
                path = Path(folder) / f"snapshot-{order.round:05d}.pt"
                for made, last in builder.build_snapshots(
                    order, lambda what, done: pipe.send((what, done))
                ):
                    save_snapshot(made, path)
                    pipe.send(("done" if last else "wider", str(path)))
                    with suppress(OSError, AttributeError):
                        os.nice(niceness)
                    niceness = 0
            except LabelaheadError as error:
                pipe.send(("failed", error))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:  # told to whoever waits, then the process ends
        with suppress(OSError):
            pipe.send(("failed", LabelaheadError(f"{type(error).__name__}: {error}")))


class Worker:
    """The process from the outside. A process that dies is started again with the next order.

    test: position -> class of the items that are kept for measuring. items: the name of each, by
    position.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        folder: Path,
        threads: int = 1,
        test: Mapping[int, int] | None = None,
        items: Sequence[str] = (),
    ) -> None:
        self._args = dict(tables), str(folder), threads, dict(test or {}), tuple(items)
        self._process: Any = None
        self._pipe: Connection | None = None
        self._start_lock = threading.Lock()
        self._closed = False

    def _start(self) -> Connection:
        with self._start_lock:
            if self._closed:
                raise LabelaheadError("the page is being closed; labels are safe")
            return self._start_process()

    def _start_process(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(
            target=run_in_worker,
            args=(__name__, run_worker.__name__, *self._args, other),
            daemon=True,
        )
        with ignore_sigint():
            self._process.start()
        other.close()
        return self._pipe

    def run(
        self,
        order: TrainingRequest,
        tell: ProgressCallback,
        wider: Callable[[Path], None] | None = None,
    ) -> Path:
        """Carry out an order and wait for it; raises `LabelaheadError` if it fails.

        wider: is handed what there is of a part of the items, each time that more are in play.
        """
        pipe = self._pipe
        if pipe is None or self._process is None or not self._process.is_alive():
            pipe = self._start()
            tell("loading", 0.0)
        try:
            pipe.send(order)
            while True:
                what, value = pipe.recv()
                if what in ("done", "failed"):
                    break
                if what == "wider" and wider is not None:
                    wider(Path(value))
                elif what not in ("ready", "wider"):
                    tell(what, value)
        except (EOFError, OSError) as error:
            self.stop()
            raise LabelaheadError(
                "the training process died, perhaps for want of memory; labels are safe, and it is "
                "tried again after the next answers"
            ) from error
        if what == "failed":
            raise value
        return Path(value)

    def close(self) -> None:
        """End the process for good.

        None is started any more, not even by an order that is just being given.
        """
        with self._start_lock:
            self._closed = True
        self.stop()

    def stop(self) -> None:
        """End the process; the next order starts another."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None  # whoever else stops it has nothing to do
        if process is not None and process.is_alive():
            process.terminate()
            process.join(STOP_SECONDS)
            if process.is_alive():
                process.kill()
                process.join(STOP_SECONDS)
        if pipe is not None:
            pipe.close()
