"""A real Dask cluster on the loopback interface.

The scheduler and the workers are separate processes that can be killed.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.support.waiting import until
from tests.support.warm_processes import start_python

ENDED = "the scheduler ended"


class Cluster:
    """A cluster as a context manager that ends its processes on exit. log: their output."""

    def __init__(self, folder, workers=0, *, security=(), nanny=False, port=0):
        self.file, self.log = (
            Path(folder) / "scheduler.json",
            (Path(folder) / "cluster.log").open("ab"),
        )
        self.security, self.nanny = list(security), nanny
        self.file.unlink(missing_ok=True)
        self.env = os.environ | {
            "OMP_NUM_THREADS": "1",
            "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "false",
        }
        options = [
            "--port",
            str(port),
            "--scheduler-file",
            str(self.file),
            "--no-dashboard",
            "--host",
            "127.0.0.1",
        ]
        self.scheduler = self._start("scheduler", *options)
        self.workers = []
        self.address = until(self._address)
        assert self.address != ENDED, "the scheduler ended"
        for _ in range(workers):
            self.add_worker()

    def _address(self):
        """Return the scheduler's address once its file is complete.

        Dask does not write it in one step.
        """
        if self.scheduler.poll() is not None:
            return ENDED
        try:
            return json.loads(self.file.read_text())["address"]
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def add_worker(self, *arguments):
        options = ["--scheduler-file", str(self.file), "--host", "127.0.0.1", "--no-dashboard"]
        nanny_option = (
            "--nanny" if self.nanny else "--no-nanny"
        )  # a nanny would restart a killed worker
        self.workers.append(
            self._start("worker", "--nthreads", "1", nanny_option, *options, *arguments)
        )
        return self.workers[-1]

    def _start(self, role, *args):
        command = ["-m", "dask", role, *args, *self.security]
        return start_python(command, output=self.log, env=self.env)

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [*self.workers, self.scheduler]:
            if process.poll() is None:
                process.terminate()  # a nanny also ends its worker
        for process in [*self.workers, self.scheduler]:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.log.close()
