"""The worker process: training and kernels for the page, so that answers never wait for them.

The process receives the data once, as a file that it maps into its memory, then requests (labels,
classes), and returns snapshots as files. It holds no label that is not in the journal, so it can be
killed at any time.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from labelahead.data import Data
from labelahead.errors import LabelaheadError
from labelahead.files import replace_file
from labelahead.learner.config import parse_campaign
from labelahead.processes import ignore_sigint, run_in_worker
from labelahead.server.snapshot import TrainingRequest
from labelahead.server.snapshot_builder import ProgressCallback, SnapshotBuilder
from labelahead.server.snapshot_files import save_snapshot

__all__ = ["DATA_FILE", "Worker", "run_worker"]

DATA_FILE = "worker-data.pt"  # in the folder of the session; deleted once the process has it open
STOP_SECONDS = 5.0  # for a process to end by itself before it is killed
# After the first snapshot the process lowers its priority, so that answers are processed first.
NICENESS = 10


def run_worker(
    tables: Mapping[str, Any], folder: str, threads: int, test: Mapping[int, int], pipe: Connection
) -> None:
    """Run the process: execute one request at a time until the pipe closes."""
    niceness = NICENESS
    torch.set_num_threads(threads)
    try:
        campaign = replace(parse_campaign(tables), threads=threads)
        builder = SnapshotBuilder(campaign, _receive_data(Path(folder) / DATA_FILE), test)
        pipe.send(("ready", ""))
        while True:
            request = pipe.recv()
            try:
                path = Path(folder) / f"snapshot-{request.round:05d}.pt"
                for made, last in builder.build_snapshots(
                    request, lambda what, done: pipe.send((what, done))
                ):
                    save_snapshot(made, path)
                    pipe.send(("done" if last else "partial", str(path)))
                    with suppress(OSError, AttributeError):
                        os.nice(niceness)
                    niceness = 0
            except LabelaheadError as error:
                pipe.send(("failed", error))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:  # sent to the server, then the process ends
        with suppress(OSError):
            pipe.send(("failed", LabelaheadError(f"{type(error).__name__}: {error}")))


def _send_data(data: Data, path: Path) -> None:
    """Write the data for the process; it needs no columns that are only exported."""
    replace_file(path, lambda file: torch.save(replace(data, records=None), file))


def _receive_data(path: Path) -> Data:
    """Map the data into memory. The file is deleted, so that nothing is left after a kill."""
    data: Data = torch.load(path, mmap=True, weights_only=False)  # of our own server
    with suppress(OSError):  # a system that keeps mapped files: the next session deletes it
        path.unlink()
    return data


class Worker:
    """Handle of the worker process; a process that died is restarted with the next request.

    Args:
        tables: Campaign settings.
        data: Data of the session.
        folder: Folder of the session.
        threads: Number of torch threads.
        test: Position -> class of the test items.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        data: Data,
        folder: Path,
        threads: int = 1,
        test: Mapping[int, int] | None = None,
    ) -> None:
        self._data = data
        self._folder = folder
        self._args = dict(tables), str(folder), threads, dict(test or {})
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
        _send_data(self._data, self._folder / DATA_FILE)
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
        request: TrainingRequest,
        on_progress: ProgressCallback,
        on_partial_snapshot: Callable[[Path], None] | None = None,
    ) -> Path:
        """Execute a request and return the path of its snapshot.

        Args:
            request: The labels to fit.
            on_progress: Called with the progress.
            on_partial_snapshot: Called with the path of each snapshot of a part of the items.

        Raises:
            LabelaheadError: The request failed or the process died.
        """
        pipe = self._pipe
        if pipe is None or self._process is None or not self._process.is_alive():
            pipe = self._start()
            on_progress("loading", 0.0)
        try:
            pipe.send(request)
            while True:
                what, value = pipe.recv()
                if what in ("done", "failed"):
                    break
                if what == "partial" and on_partial_snapshot is not None:
                    on_partial_snapshot(Path(value))
                elif what not in ("ready", "partial"):
                    on_progress(what, value)
        except (EOFError, OSError) as error:
            self.stop()
            raise LabelaheadError(
                "the training process died, perhaps out of memory; labels are safe, and training is "
                "retried after the next answers"
            ) from error
        if what == "failed":
            raise value
        return Path(value)

    def update(self, tables: Mapping[str, Any], data: Data) -> None:
        """Use other settings and data from the next request on."""
        self.stop()
        self._data = data
        self._args = (dict(tables), *self._args[1:])

    def close(self) -> None:
        """End the process for good; no other is started."""
        with self._start_lock:
            self._closed = True
        self.stop()

    def stop(self) -> None:
        """End the process; the next request starts another."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None  # so that a concurrent call has nothing to do
        if process is not None and process.is_alive():
            process.terminate()
            process.join(STOP_SECONDS)
            if process.is_alive():
                process.kill()
                process.join(STOP_SECONDS)
        if pipe is not None:
            pipe.close()
