"""Run campaigns by strategy and seed, in parallel processes or on a cluster, and resume them.

If a worker dies, only its current round is lost: a new worker resumes its campaign. (The pool of
concurrent.futures breaks as a whole when a process dies.) On a cluster the engine reassigns the
campaign to another worker.
"""

import faulthandler
import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from labelahead import files
from labelahead.errors import ClusterError, InputError, LabelaheadError, StorageError
from labelahead.learner.config import Campaign, Progress, campaign_code_names
from labelahead.models.trusted_code import record_code
from labelahead.outofcore.execution import Executor, connect_executor
from labelahead.processes import ignore_sigint, run_in_worker
from labelahead.simulation.comparison.plan import (
    COMPARISON_FILE,
    Comparison,
    format_comparison,
    merge_comparisons,
    read_comparison,
)
from labelahead.simulation.run import RunCallbacks, build_simulation, prepare_campaign, resume, run
from labelahead.simulation.store import Round, Store

__all__ = [
    "MAX_RETRIES",
    "THREAD_VARIABLES",
    "CampaignEvent",
    "ComparisonStart",
    "Job",
    "Outcome",
    "compare",
    "count_cores",
    "describe_machine",
    "is_finished",
]

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
PACKAGES = ("labelahead", "torch", "numpy", "scipy", "scikit-learn")  # their versions are reported
MAX_RETRIES = 2  # restarts of a campaign after its worker died
MACHINE_FILE = "machine.json"  # describes the machine of a campaign
# Identifies the comparison that runs on a cluster: campaigns of another one stop at their next round.
TOKEN_FILE = "cluster.txt"
POLL_SECONDS = 0.5  # between two reads of the folders of cluster campaigns
# How long a stopped or reassigned campaign may take to finish its round.
LOCK_WAIT_SECONDS = 120


@dataclass(frozen=True)
class Job:
    """A campaign and its folder."""

    name: str
    folder: Path
    campaign: Campaign = field(repr=False, compare=False)


class CampaignEvent(NamedTuple):
    """An event of a job. detail: the reason; trace: the traceback of unexpected errors."""

    kind: Literal["started", "round", "finished", "died", "failed"]
    job: Job
    round: Round | None = None
    detail: str = ""
    trace: str = ""


@dataclass(frozen=True)
class ComparisonStart:
    """The work of a comparison, for progress displays.

    >>> def show_start(begun: ComparisonStart) -> None:
    ...     print(begun.left, "of", begun.campaigns, "campaigns are left")
    >>> again = compare(comparison, "runs/b", workers=1, on_begin=show_start)
    0 of 4 campaigns are left
    """

    comparison: Comparison
    campaigns: int  # in the comparison
    left: int  # not finished yet
    workers: int | None  # processes; None on a cluster


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison. failed, died: one event per failed campaign and per dead worker.

    >>> outcome.finished, outcome.failed, outcome.died
    (4, (), ())
    """

    folder: Path
    finished: int
    failed: tuple[CampaignEvent, ...]
    died: tuple[CampaignEvent, ...]


def compare(
    comparison: Comparison,
    out: str | Path,
    *,
    workers: int | None = None,
    executor: Any = None,
    progress: Progress | None = None,
    on_begin: Callable[[ComparisonStart], None] | None = None,
    on_event: Callable[[CampaignEvent], None] | None = None,
    trust_code: bool = False,
) -> Outcome:
    """Run every campaign of the comparison that `out` does not hold yet; resume those that were
    started.

    A folder that holds a comparison of the same configuration is extended. Campaigns run in
    separate processes: a script that calls this needs `if __name__ == "__main__":`.

    Args:
        comparison: Contenders and seeds.
        out: The folder.
        workers: Number of processes; default: all cores.
        executor: A cluster instead, as `connect_executor` takes it; its workers must reach `out`
            and the data under the same paths.
        progress: Called while data are loaded.
        on_begin: Called before the first campaign.
        on_event: Called with every event.
        trust_code: Whether code that `out` names, and `comparison` does not, may run although this
            account has never used it.

    >>> compare(comparison, "runs/b", workers=1).finished  # all are there: nothing is run again
    4
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; expected 1 or more, or nothing for all cores")
    if executor is not None and workers is not None:
        raise InputError(
            "workers and executor given; expected one of them: a cluster has its own workers"
        )
    folder = Path(out).absolute() if executor is not None else Path(out)
    _merge_with_folder(comparison, folder, trust_code)  # raises before any work
    jobs = [
        Job(
            f"{contender.name}, seed {seed}",
            folder / contender.folder / f"seed-{seed}",
            comparison.campaign_for(contender, seed),
        )
        for seed in comparison.seeds  # seeds are the outer loop: an interrupted comparison has complete seeds
        for contender in comparison.contenders
    ]
    left = [job for job in jobs if not is_finished(job.folder)]
    arms = {_describe_arm(job.campaign): job for job in reversed(left)}
    for job in arms.values():
        _check_first_campaign(job, progress)
    threads = comparison.campaign.threads or 1
    workers = (
        None
        if executor is not None
        else min(workers or max(1, count_cores() // threads), max(1, len(left)))
    )
    with files.lock_folder(folder, holder="comparison"):
        files.replace_file(
            folder / COMPARISON_FILE,
            format_comparison(_merge_with_folder(comparison, folder, trust_code)),
        )
        record_code(comparison.code)
        if on_begin:
            on_begin(ComparisonStart(comparison, len(jobs), len(left), workers))
        failed, died = [], []
        at = (
            _run_in_processes(left, workers, folder / "workers.log", threads)
            if workers
            else _run_on_cluster(left, executor, folder)
        )
        with closing(at) as events:
            for event in events:
                failed += [event] if event.kind == "failed" else []
                died += [event] if event.kind == "died" else []
                if event.kind not in ("started", "round"):
                    _record_event(folder, event)
                if on_event:
                    on_event(event)
    return Outcome(folder, len(jobs) - len(failed), tuple(failed), tuple(died))


def _describe_arm(campaign: Campaign) -> tuple[object, ...]:
    """Return what determines the inputs of a campaign within a comparison."""
    return campaign.data.embedding, campaign.data.guesses, campaign.data.prior


def is_finished(folder: Path) -> bool:
    """Return whether a campaign is finished; a damaged one is not, and reports that itself."""
    try:
        rounds = Store(folder).read_rounds()
    except (InputError, OSError):
        return False
    return bool(rounds) and rounds[-1].asked == 0 and (folder / "config.toml").exists()


def _merge_with_folder(comparison: Comparison, folder: Path, trust_code: bool) -> Comparison:
    """Return the comparison merged with the one in the folder."""
    if (folder / COMPARISON_FILE).exists():
        return merge_comparisons(
            read_comparison(folder, trust_code=trust_code or comparison.code), comparison, folder
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; expected a folder, or a name for a new one")
    others = {p.name for p in folder.iterdir()} - {"lock"} if folder.exists() else set()
    if others:
        raise InputError(
            f"{folder} holds {sorted(others)[0]} and no comparison; expected an empty folder, a "
            "new name, or the folder of an earlier comparison"
        )
    return comparison


def _check_first_campaign(job: Job, progress: Progress | None) -> None:
    """Load data and network once, to fail early and to fill caches.

    Downloads and image features are computed here, with all threads, not by every worker.
    """
    ready = prepare_campaign(replace(job.campaign, threads=None), progress=progress)
    build_simulation(ready)
    if not len(ready.data.test):
        raise InputError(
            f"{ready.data.name} has no test items, so there is no accuracy to compare; expected "
            "data.test_fraction above 0, e.g. --set data.test_fraction=0.2"
        )


def _record_event(folder: Path, event: CampaignEvent) -> None:
    """Append the end of a campaign or the death of a worker to the log for the report."""
    lines = files.JsonLinesFile(folder / "events.jsonl")
    lines.append(
        {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "campaign": event.job.name,
            "what": event.kind,
            "detail": event.detail,
            "trace": event.trace,
        }
    )
    lines.close()


# --- processes
# ----------------------------------------------------------------------------------------------


def _run_in_processes(
    jobs: Sequence[Job], workers: int, log: Path, threads: int = 1
) -> Generator[CampaignEvent, None, None]:
    """Run all jobs, at most `workers` at a time, and yield events as they happen.

    An error in one campaign does not stop the others. Closing the iterator, or an exception in it,
    stops the workers; recorded labels and rounds are kept.

    Args:
        jobs: The campaigns.
        workers: Number of processes.
        log: File for the output of workers.
        threads: Of each process.
    """
    waiting, deaths = deque(jobs), Counter[Job]()
    processes: list[_Worker] = []
    try:
        while waiting or any(w.job for w in processes):
            while waiting and len(processes) < workers:
                processes.append(_Worker(log, workers, threads))
            for worker in processes:
                if worker.job is None and waiting:
                    worker.assign(waiting.popleft())
                    yield CampaignEvent("started", worker.current_job)
            for worker in _wait_for_workers(processes):
                event = worker.receive_event()
                yield event
                if event.kind != "died":
                    continue
                processes.remove(worker)
                deaths[event.job] += 1
                if deaths[event.job] <= MAX_RETRIES:
                    waiting.appendleft(event.job)
                    continue
                times = f"its worker died {deaths[event.job]} times, lastly {event.detail}"
                yield CampaignEvent("failed", event.job, detail=times)
    finally:
        for worker in processes:
            worker.process.terminate()
        for worker in processes:
            worker.stop()


def _wait_for_workers(workers: "Sequence[_Worker]") -> "list[_Worker]":
    """Wait for the first busy worker that sends something or dies; return all such workers."""
    current_job: dict[Any, _Worker] = {w.pipe: w for w in workers if w.job}
    return [current_job[pipe] for pipe in connection.wait(list(current_job))]


class _Worker:
    """A process that runs one campaign after another."""

    def __init__(self, log: Path, workers: int, threads: int) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.job: Job | None = None
        args = (__name__, serve_campaigns.__name__, theirs, str(log), workers)
        self.process: BaseProcess = context.Process(target=run_in_worker, args=args, daemon=True)
        with _worker_environment(threads):
            self.process.start()
        theirs.close()  # otherwise its death would not close the pipe

    @property
    def current_job(self) -> Job:
        """The job it is running."""
        assert self.job is not None
        return self.job

    def assign(self, job: Job) -> None:
        """Start a job; if the worker is dead, `receive_event` notices."""
        self.job = job
        with suppress(OSError):
            self.pipe.send((job.folder, job.campaign))

    def receive_event(self) -> CampaignEvent:
        """Return its next event, or that it died."""
        job = self.current_job
        try:
            kind, entry, detail, trace = self.pipe.recv()
        except (EOFError, OSError):
            self.stop()
            return CampaignEvent("died", job, detail=_describe_exit(self.process.exitcode))
        if kind != "round":
            self.job = None
        return CampaignEvent(kind, job, entry, detail, trace)

    def stop(self) -> None:
        """Wait for its end, and kill it if necessary."""
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _describe_exit(code: int | None) -> str:
    """Describe an exit code."""
    if code is None or code >= 0:
        return f"with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    hint = "; often for want of memory: fewer --workers need less" if name == "SIGKILL" else ""
    return f"by signal {name}{hint}"


@contextmanager
def _worker_environment(threads: int) -> Iterator[None]:
    """Set the environment that a new process inherits: its number of threads, and ignoring Ctrl-C.

    torch reads the number of threads when it is imported, before any code of ours runs.
    """
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    try:
        with ignore_sigint():
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# --- a worker's side
# ----------------------------------------------------------------------------------------


def serve_campaigns(pipe: Connection, log: str, workers: int) -> None:
    """Run campaigns in a worker process until the pipe closes."""
    _redirect_output(log)
    while True:
        try:
            folder, campaign = pipe.recv()
        except EOFError:
            return
        try:
            _run_campaign(
                folder, campaign, workers, lambda entry: pipe.send(("round", entry, "", ""))
            )
            answer = ("finished", None, "", "")
        except Exception as error:
            answer = ("failed", None, *_describe_failure(error))
        pipe.send(answer)


def _describe_failure(error: Exception) -> tuple[str, str]:
    """Return the reason, and the traceback of unexpected errors."""
    if isinstance(error, LabelaheadError):
        return str(error), ""
    return f"{type(error).__name__}: {error}", traceback.format_exc()


def _run_campaign(
    folder: Path, campaign: Campaign, workers: int, on_round: Callable[[Round], None]
) -> None:
    callbacks = RunCallbacks(on_round=on_round)
    if (folder / "config.toml").exists():
        # The comparison has already trusted the campaign's code; its folder may name no other.
        trusted = campaign_code_names(campaign)
        resume(folder, callbacks=callbacks, forecast=False, trust_code=trusted)
    else:
        # Comparisons have test labels, so there is no need to forecast.
        run(campaign, out=folder, callbacks=callbacks, forecast=False)
    about = {**describe_machine(), "campaigns side by side": workers}
    with Store.open(folder) as store:
        store.write(MACHINE_FILE, json.dumps(about, indent=1).encode())


def _redirect_output(log: str) -> None:
    """Redirect everything that libraries print to a file: the terminal shows the progress display."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable()


# --- on a cluster
# -------------------------------------------------------------------------------------------


def _run_on_cluster(
    jobs: Sequence[Job], executor: Any, folder: Path
) -> Generator[CampaignEvent, None, None]:
    """Do the same as `_run_in_processes` on a cluster. Events are read from the shared folders.

    Closing the iterator stops campaigns at their next round, and those not started at once: they
    check a token file, which is removed. A later process writes its own token, which also stops
    campaigns of a process that was killed.
    """
    token = uuid4().hex
    files.replace_file(folder / TOKEN_FILE, token)
    reported_rounds: dict[Job, int] = {}
    done: SimpleQueue[Any] = SimpleQueue()
    try:
        with connect_executor(executor) as engine:
            waiting = {}
            for i, job in enumerate(jobs):
                args = (job.folder, job.campaign, folder / TOKEN_FILE, token)
                waiting[
                    engine.submit(
                        run_cluster_campaign, *args, name=f"run campaigns-{i:06d} {job.name}"
                    )
                ] = job
            # A thread waits, so that this one can read the folders and receive Ctrl-C.
            threading.Thread(
                target=_wait_for_futures, args=(engine, list(waiting), done), daemon=True
            ).start()
            while waiting:
                try:
                    future = done.get(timeout=POLL_SECONDS)
                except Empty:
                    future = None
                for job in waiting.values():
                    yield from _new_round_events(job, reported_rounds)
                if isinstance(future, Exception):
                    raise (
                        _cluster_lost_error(future)
                        if isinstance(future, engine.lost_errors)
                        else future
                    )
                if future is not None:
                    yield _final_event(waiting.pop(future), future, engine)
    finally:
        (folder / TOKEN_FILE).unlink(missing_ok=True)


def _wait_for_futures(engine: Executor, futures: Sequence[Any], done: "SimpleQueue[Any]") -> None:
    try:
        for future in engine.as_completed(futures):
            done.put(future)
    except Exception as error:
        done.put(error)


def _new_round_events(job: Job, reported_rounds: dict[Job, int]) -> Iterator[CampaignEvent]:
    """Yield events for rounds in the folder that were not reported yet."""
    try:
        rounds = Store(job.folder).read_rounds()
    except (InputError, OSError):
        return  # the campaign reports this itself
    if job not in reported_rounds and rounds:
        reported_rounds[job] = 0
        yield CampaignEvent("started", job)
    for entry in rounds[reported_rounds.get(job, 0) :]:
        yield CampaignEvent("round", job, entry)
    if rounds:
        reported_rounds[job] = len(rounds)


def _final_event(job: Job, future: Any, engine: Executor) -> CampaignEvent:
    try:
        failure = future.result()
    except getattr(engine, "abandoned_errors", ()) as error:  # custom engines may lack it
        return CampaignEvent(
            "failed", job, detail=f"its workers died again and again ({_first_line(error)})"
        )
    except engine.lost_errors as error:
        raise _cluster_lost_error(error) from error
    except LabelaheadError:
        raise
    except Exception as error:  # serialisation or communication errors
        return CampaignEvent("failed", job, detail=f"{type(error).__name__}: {_first_line(error)}")
    return (
        CampaignEvent("failed", job, None, *failure) if failure else CampaignEvent("finished", job)
    )


def _cluster_lost_error(error: BaseException) -> ClusterError:
    return ClusterError(
        f"the cluster was lost ({_first_line(error)}); finished rounds are on the disk"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


_CAMPAIGN_LOCK = (
    threading.Lock()
)  # networks use the global random generator: one campaign at a time


def run_cluster_campaign(
    folder: Path, campaign: Campaign, token_file: Path, token: str
) -> tuple[str, str] | None:
    """Run or resume a campaign as a cluster task.

    Returns:
        What went wrong, if anything, so that the engine does not retry.
    """

    def report_round(entry: Round | None = None) -> None:
        if not token_file.parent.is_dir():
            raise StorageError(
                f"{token_file.parent} does not exist on a worker; expected a folder that all "
                "workers share"
            )
        if not token_file.is_file() or token_file.read_text() != token:
            raise StorageError(
                f"stopped: {token_file} was replaced: another process continues this comparison"
            )

    with _CAMPAIGN_LOCK:
        try:
            report_round()
            _wait_until_free(folder)
            if (
                not is_finished(folder) or not (folder / MACHINE_FILE).exists()
            ):  # or killed after the last round
                _run_campaign(folder, campaign, 1, report_round)
        except Exception as error:
            return _describe_failure(error)
    return None


def _wait_until_free(folder: Path) -> None:
    """Wait for the folder's lock: a stopped or lost worker may still be in its last round."""
    until = time.monotonic() + LOCK_WAIT_SECONDS
    while folder.exists():
        try:
            with files.lock_folder(folder):
                return
        except StorageError:
            if time.monotonic() > until:
                raise
        time.sleep(POLL_SECONDS)


# --- the machine
# --------------------------------------------------------------------------------------------


def count_cores() -> int:
    """Return the number of cores available to this process, with affinity and container limits."""
    try:
        from joblib import cpu_count
    except ImportError:
        return os.cpu_count() or 1
    return int(cpu_count())


def describe_machine() -> dict[str, str | int]:
    """Return versions, processor and system; nothing that identifies the owner."""
    about: dict[str, str | int] = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            about[name] = version(name)
    system = f"{platform.system()} {platform.machine()}"
    return {**about, "processor": _processor(), "cores": count_cores(), "system": system}


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
