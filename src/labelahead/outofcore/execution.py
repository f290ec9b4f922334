"""Execution engines: processes of this machine, or an existing cluster.

Every engine has four methods. Queues, retries and communication are the engine's own:
`concurrent.futures` here, Dask or Ray on a cluster. Arguments and results of tasks are small; the
data stay where they are.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Protocol
from uuid import uuid4

import torch

from labelahead.errors import ClusterError, InputError, import_extra
from labelahead.processes import ignore_sigint, run_in_worker

__all__ = [
    "Dask",
    "Executor",
    "InProcess",
    "LocalProcesses",
    "Progress",
    "Ray",
    "Task",
    "connect_executor",
    "make_tls_config",
    "run_tasks",
]

MAX_TASK_RETRIES = 2  # of a failed cluster task: remote storage fails temporarily
CONNECT_SECONDS = 30  # time to wait for a scheduler and its first worker
RESUME_HINT = "written features are kept; run the same command again to continue"

Progress = Callable[[str, int, int], None]  # stage, items done, items in total
Task = tuple[str, int, Sequence[Any]]  # description, number of items, arguments


class Executor(Protocol):
    """The interface of an engine.

    Attributes:
        lost_errors: Errors that mean that the engine is gone, or has abandoned a task.
        abandoned_errors: Those of them that concern one task, whose workers died repeatedly.

    >>> {"submit", "as_completed", "scatter", "gather"} <= set(dir(Executor))
    True
    """

    lost_errors: tuple[type[BaseException], ...]
    abandoned_errors: tuple[type[BaseException], ...]

    def submit(self, function: Callable[..., Any], /, *args: Any, name: str) -> Any:
        """Return a future of function(*args), with `result()`. Arguments may be results of `scatter`."""

    def as_completed(self, futures: Iterable[Any], /) -> Iterable[Any]:
        """Return the same futures in the order of completion."""

    def scatter(self, value: Any, /) -> Any:
        """Send a value that many tasks take as an argument."""

    def gather(self, futures: Sequence[Any], /) -> list[Any]:
        """Return all results in the order of the futures."""


class LocalProcesses:
    """Processes of this machine, by default one per core.

    They are spawned: a script that uses them needs `if __name__ == "__main__":`.

    >>> pool = LargePool("features", executor=LocalProcesses(1))
    >>> len(pool.query(2, labels))
    2
    """

    lost_errors: tuple[type[BaseException], ...] = (BrokenProcessPool,)
    abandoned_errors: tuple[type[BaseException], ...] = ()  # one death ends all of them

    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and (
            isinstance(workers, bool) or not isinstance(workers, int) or workers < 1
        ):
            raise InputError(f"workers is {workers!r}; expected 1 or more, or None for all cores")
        self.workers = workers or os.cpu_count() or 1
        self._pool = futures.ProcessPoolExecutor(
            self.workers,
            get_context("spawn"),
            initializer=run_in_worker,
            initargs=(__name__, use_one_thread.__name__),
        )

    def submit(self, function: Callable[..., Any], /, *args: Any, name: str) -> Any:
        """Return a future of the standard library."""
        with ignore_sigint():  # the pool starts processes on demand
            return self._pool.submit(function, *args)

    def as_completed(self, futures_: Iterable[Any], /) -> Iterable[Any]:
        """Return the futures in the order of completion."""
        return futures.as_completed(futures_)

    def scatter(self, value: Any, /) -> Any:
        """Return the value: it is sent with every task."""
        return value

    def gather(self, futures_: Sequence[Any], /) -> list[Any]:
        """Return the results in order."""
        return [future.result() for future in futures_]

    def close(self) -> None:
        """Stop the processes; tasks not started are dropped."""
        self._pool.shutdown(cancel_futures=True)


class InProcess:
    """Run tasks in this process, if they take less time than starting others."""

    lost_errors: tuple[type[BaseException], ...] = ()
    abandoned_errors: tuple[type[BaseException], ...] = ()

    def submit(self, function: Callable[..., Any], /, *args: Any, name: str) -> Any:
        """Run the function and return a completed future."""
        future: futures.Future[Any] = futures.Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def as_completed(self, futures_: Iterable[Any], /) -> Iterable[Any]:
        """Return the futures in order."""
        return list(futures_)

    def scatter(self, value: Any, /) -> Any:
        """Return the value."""
        return value

    def gather(self, futures_: Sequence[Any], /) -> list[Any]:
        """Return the results in order."""
        return [future.result() for future in futures_]


def use_one_thread() -> None:
    """Limit this process to one thread."""
    torch.set_num_threads(1)


class Dask:
    """A Dask cluster, by its `Client`. Refused without workers, or if one has another version of
    labelahead.

    >>> from distributed import Client
    >>> with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
    ...     print(len(LargePool("features", executor=Dask(client)).query(2, labels)))
    2
    """

    def __init__(self, client: Any, connect_seconds: float = CONNECT_SECONDS) -> None:
        distributed = import_extra("distributed", "dask", "a Dask cluster")
        killed, closed = distributed.scheduler.KilledWorker, distributed.comm.CommClosedError
        self.lost_errors: tuple[type[BaseException], ...] = (
            killed,
            closed,
            futures.CancelledError,
            TimeoutError,
        )
        self.abandoned_errors: tuple[type[BaseException], ...] = (killed,)
        self.client = client
        self._as_completed = distributed.as_completed
        self._run = uuid4().hex[:8]  # distinguishes results of different runs
        self._require_workers(connect_seconds)

    def _require_workers(self, connect_seconds: float) -> None:
        address = self.client.scheduler.address if self.client.scheduler else "the cluster"
        try:
            self.client.wait_for_workers(1, timeout=connect_seconds)
        except TimeoutError:
            raise ClusterError(
                f"{address} has no workers; start some: dask worker {address}"
            ) from None
        own_versions, versions = get_versions(), self.client.run(get_versions, on_error="return")
        for worker, other_versions in versions.items():
            if other_versions != own_versions:
                raise _version_error(f"the worker {worker}", other_versions, own_versions)

    def submit(self, function: Callable[..., Any], /, *args: Any, name: str) -> Any:
        """Return a Dask future; the dashboard groups tasks by their name up to a dash."""
        key = f"{name}-{self._run}-{uuid4().hex[:12]}"
        return self.client.submit(
            run_checked_task,
            get_versions(),
            function,
            *args,
            key=key,
            pure=False,
            retries=MAX_TASK_RETRIES,
        )

    def as_completed(self, futures_: Iterable[Any], /) -> Iterable[Any]:
        """Return the futures in the order of completion."""
        return self._as_completed(list(futures_), loop=self.client.loop)  # type: ignore[no-any-return]

    def scatter(self, value: Any, /) -> Any:
        """Submit the value as a task: unlike scattered data, it is recomputed if all workers that hold
        it die.
        """
        return self.client.submit(
            _identity, value, key=f"what is known-{self._run}-{uuid4().hex[:12]}", pure=False
        )

    def gather(self, futures_: Sequence[Any], /) -> list[Any]:
        """Return the results in order."""
        return list(self.client.gather(list(futures_)))


class RayLostError(Exception):
    """The connection to the Ray cluster is lost."""


class RayGaveUpError(RayLostError):
    """The workers of a task died repeatedly."""


class Ray:
    """A Ray cluster that this process is connected to: `ray` is the module, after `ray.init`."""

    lost_errors: tuple[type[BaseException], ...] = (RayLostError,)
    abandoned_errors: tuple[type[BaseException], ...] = (RayGaveUpError,)

    def __init__(self, ray: Any) -> None:
        if not ray.is_initialized():
            raise InputError(
                "ray is not connected; expected ray.init(...) before, or the address of a cluster"
            )
        self.ray = ray
        # Ray retries failed tasks and those of dead workers.
        self._remote = ray.remote(
            num_cpus=1, max_retries=MAX_TASK_RETRIES + 1, retry_exceptions=True
        )(run_checked_task)
        self._require_workers()

    def _require_workers(self) -> None:
        nodes = [
            node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU")
        ]
        if not nodes:
            raise ClusterError(
                "the Ray cluster has no processors; start some: ray start --address ..."
            )
        where = import_extra(
            "ray.util.scheduling_strategies", "ray", "a Ray cluster"
        ).NodeAffinitySchedulingStrategy
        remote_version = self.ray.remote(get_versions)
        versions = [
            remote_version.options(
                num_cpus=0, scheduling_strategy=where(n["NodeID"], soft=False)
            ).remote()
            for n in nodes
        ]
        own_versions = get_versions()
        for node, ref in zip(nodes, versions, strict=True):
            try:
                other_versions: Any = self.ray.get(ref, timeout=2 * CONNECT_SECONDS)
            except Exception as error:  # it has no labelahead, or does not answer
                other_versions = getattr(error, "cause", None) or error
            if other_versions != own_versions:
                raise _version_error(
                    f"the node {node['NodeManagerAddress']}", other_versions, own_versions
                )

    def submit(self, function: Callable[..., Any], /, *args: Any, name: str) -> Any:
        """Return a reference with `result()`; the dashboard groups tasks by their name up to a dash."""
        task = self._remote.options(name=name.partition("-")[0])
        with _translate_ray_errors(self.ray):
            return _RayFuture(self.ray, task.remote(get_versions(), function, *args))

    def as_completed(self, futures_: Iterable[Any], /) -> Iterable[Any]:
        """Yield the futures in the order of completion."""
        left = {future.reference: future for future in futures_}
        while left:
            with _translate_ray_errors(self.ray):
                done = self.ray.wait(list(left), num_returns=1)[0]
            for reference in done:
                yield left.pop(reference)

    def scatter(self, value: Any, /) -> Any:
        """Put the value into Ray's object store once."""
        with _translate_ray_errors(self.ray):
            return self.ray.put(value)

    def gather(self, futures_: Sequence[Any], /) -> list[Any]:
        """Return the results in order."""
        return [future.result() for future in futures_]


class _RayFuture:
    """A future on Ray. Errors of a task are raised as in the task."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self.ray = ray
        self.reference = reference

    def result(self) -> Any:
        with _translate_ray_errors(self.ray):
            return self.ray.get(self.reference)


@contextmanager
def _translate_ray_errors(ray: Any) -> Iterator[None]:
    """Translate Ray's errors to ours; errors of a task are raised unchanged."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        raise RayGaveUpError(str(error)) from error
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise RayLostError(str(error)) from error


# "0" when ray is imported: one machine alone, on 127.0.0.1
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@contextmanager
def _connect_ray(address: str) -> Iterator[Ray]:
    """Connect to Ray.

    "ray": this machine, on loopback, unless RAY_ADDRESS names a cluster. "ray://host:10001": a
    client of that cluster.
    """
    is_local_ray = address == "ray" and not os.environ.get("RAY_ADDRESS")
    if is_local_ray and LOOPBACK_VARIABLE not in os.environ:
        if "ray" in sys.modules:
            raise InputError(
                "ray was imported before, and would listen on every address of this machine; "
                "expected the module after "
                f"your own ray.init() as executor, or {LOOPBACK_VARIABLE}=0 in the environment"
            )
        os.environ[LOOPBACK_VARIABLE] = "0"
    ray = import_extra("ray", "ray", "a Ray cluster")
    place = {"address": "local", "include_dashboard": False} if is_local_ray else {}
    if address != "ray":
        place = {"address": address}
    try:
        ray.init(**place, log_to_driver=False)
    except Exception as error:  # Ray's errors have no common type
        raise ClusterError(
            f"no Ray cluster answers at {address} ({str(error).strip().splitlines()[0]:.200}); "
            "expected ray (this machine) or ray://host:10001, as `ray start --head "
            "--ray-client-server-port=10001` has it"
        ) from error
    try:
        yield Ray(ray)
    finally:
        ray.shutdown()


def get_versions() -> str:
    """Return the version of labelahead in this process."""
    import labelahead

    return labelahead.__version__


def run_checked_task(expected_versions: str, function: Callable[..., Any], *args: Any) -> Any:
    """Run a task on a cluster, with one thread, so that results do not depend on the worker's cores."""
    if get_versions() != expected_versions:  # a worker that joined later
        raise _version_error("a worker", get_versions(), expected_versions)
    torch.set_num_threads(1)
    with _keep_freed_memory():
        return function(*args)


TRIM_VARIABLE = "MALLOC_TRIM_THRESHOLD_"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


@contextmanager
def _keep_freed_memory() -> Iterator[None]:
    """Keep freed memory for the next block while a task runs.

    Dask makes its workers return all freed memory at once (by an environment variable). Then the
    system maps and clears each temporary again, which took as long as the arithmetic.
    """
    if TRIM_VARIABLE not in os.environ or not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 28)
    libc.mallopt(M_TRIM_THRESHOLD, 1 << 28)
    try:
        yield
    finally:
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 17)
        libc.mallopt(M_TRIM_THRESHOLD, int(os.environ[TRIM_VARIABLE]))
        libc.malloc_trim(0)


def _identity(value: Any) -> Any:
    return value


def _version_error(who: str, other_versions: Any, own_versions: str) -> ClusterError:
    has = (
        f"labelahead {other_versions}"
        if isinstance(other_versions, str)
        else f"no labelahead ({other_versions})"
    )
    return ClusterError(
        f"{who} has {has}, here is {own_versions}; expected the same: pip install "
        f"labelahead=={own_versions} there"
    )


def make_tls_config(ca: str | None, cert: str | None, key: str | None) -> Any:
    """Return Dask's TLS configuration from three files; None without any: Dask's own configuration
    applies.
    """
    if not any((ca, cert, key)):
        return None
    if not all((ca, cert, key)):
        raise InputError(
            "of the TLS files some are missing; expected all of them: --tls-ca, --tls-cert and "
            "--tls-key"
        )
    distributed = import_extra("distributed", "dask", "a Dask cluster")
    return distributed.Security(
        tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True
    )


@contextmanager
def connect_executor(
    executor: Any = None,
    *,
    workers: int | None = None,
    security: Any = None,
    connect_seconds: float = CONNECT_SECONDS,
) -> Iterator[Executor]:
    """Yield an executor from what the user provides.

    Args:
        executor: None (processes of this machine), an address, a Dask `Client`, the module ray, or
            an `Executor`.
        workers: Number of local processes.
        security: Dask's TLS configuration.
        connect_seconds: Time to wait for a Dask scheduler and its first worker.
    """
    if executor is None:
        local = LocalProcesses(workers)
        try:
            yield local
        finally:
            local.close()
    elif isinstance(executor, str) and (executor == "ray" or executor.startswith("ray://")):
        with _connect_ray(executor) as joined:
            yield joined
    elif isinstance(executor, str):
        distributed = import_extra("distributed", "dask", "a Dask cluster")
        try:
            client = distributed.Client(
                executor, timeout=connect_seconds, security=security, set_as_default=False
            )
        except (OSError, ValueError, TypeError) as error:
            raise ClusterError(
                f"no scheduler answers at {executor} ({error}); expected the address that `dask "
                "scheduler` prints, "
                "such as tcp://127.0.0.1:8786"
            ) from error
        try:
            yield Dask(client, connect_seconds)
        finally:
            client.close(timeout=5)
    elif type(executor).__module__.startswith("distributed."):
        yield Dask(executor, connect_seconds)
    elif getattr(executor, "__name__", None) == "ray":
        yield Ray(executor)
    elif all(
        hasattr(executor, verb)
        for verb in ("submit", "as_completed", "scatter", "gather", "lost_errors")
    ):
        yield executor
    else:
        raise InputError(
            f"executor is a {type(executor).__name__}; expected None, the address of a Dask "
            "scheduler or of Ray, a "
            "distributed.Client, the module ray, or an object with submit, as_completed, scatter, "
            "gather and lost"
        )


def run_tasks(
    executor: Executor,
    stage: str,
    function: Callable[..., Any],
    tasks: Sequence[Task],
    progress: Progress | None = None,
    refused: dict[int, Exception] | None = None,
) -> list[Any]:
    """Run the function for every task and return the results in the order of the tasks.

    Args:
        executor: The engine.
        stage: Name of the stage, for progress and dashboards.
        function: What to run.
        tasks: (description, number of items, arguments) each.
        progress: Called with the stage, the items done and their total.
        refused: Collects the tasks with unusable data, by index, and why; None: the first error is
            raised.
    """
    total, done = sum(items for _, items, _ in tasks), 0
    results: list[Any] = [None] * len(tasks)
    number = {}
    try:
        waiting = []
        for i, (about, _, args) in enumerate(tasks):
            waiting.append(executor.submit(function, *args, name=f"{stage}-{i:06d} {about}"))
            number[id(waiting[-1])] = i
        for future in executor.as_completed(waiting):
            i = number[id(future)]
            try:
                results[i] = future.result()
            except (InputError, OSError) as error:
                if refused is None or isinstance(error, (ClusterError, *executor.lost_errors)):
                    raise
                refused[i] = error
            done += tasks[i][1]
            if progress is not None:
                progress(stage, done, total)
    except executor.lost_errors as error:
        cause = str(error).strip().splitlines() or [type(error).__name__]
        raise ClusterError(
            f"the engine was lost during '{stage}' ({cause[0]:.200}); {RESUME_HINT}"
        ) from error
    return results
