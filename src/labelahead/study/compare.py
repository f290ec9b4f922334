"""Run a comparison: strategies × seeds, on all cores, resumable."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from labelahead.campaign import prepare, simulation
from labelahead.errors import InputError
from labelahead.loop import Progress
from labelahead.store import Store
from labelahead.study.machine import cores
from labelahead.study.plan import FILE, Study, joined, read_study, study_text
from labelahead.study.workers import Event, Job, work

__all__ = ["Begun", "Outcome", "compare", "finished"]


@dataclass(frozen=True)
class Begun:
    """What lies ahead, for whoever shows the progress."""

    study: Study
    campaigns: int  # asked for
    left: int  # of them not finished yet
    workers: int


@dataclass(frozen=True)
class Outcome:
    """How a comparison went. failed, died: one event per campaign and per dead worker."""

    folder: Path
    finished: int
    failed: tuple[Event, ...]
    died: tuple[Event, ...]


def compare(
    study: Study,
    out: str | Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    on_begin: Callable[[Begun], None] | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Outcome:
    """Run every campaign of the study that `out` does not hold yet; what was begun is resumed.

    A folder that holds a comparison of the same configuration is extended. Runs in processes of
    its own: a script that calls this needs `if __name__ == "__main__":`.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; expected 1 or more, or nothing for all cores")
    folder = Path(out)
    _whole(study, folder)  # refused before any work
    jobs = [
        Job(f"{arm.name}, seed {seed}", folder / arm.folder / f"seed-{seed}", study.of(arm, seed))
        for seed in study.seeds  # seeds outside: an interrupted comparison has whole seeds
        for arm in study.arms
    ]
    left = [job for job in jobs if not finished(job.folder)]
    if left:
        _rehearse(left[0], progress)
    threads = study.campaign.threads or 1
    crew = min(workers or max(1, cores() // threads), max(1, len(left)))
    with _taken(folder):
        _write(folder / FILE, study_text(_whole(study, folder)))
        if on_begin:
            on_begin(Begun(study, len(jobs), len(left), crew))
        failed, died = [], []
        with closing(work(left, crew, folder / "workers.log", threads)) as events:
            for event in events:
                failed += [event] if event.kind == "failed" else []
                died += [event] if event.kind == "died" else []
                _record(folder, event)
                if on_event:
                    on_event(event)
    return Outcome(folder, len(jobs) - len(failed), tuple(failed), tuple(died))


def finished(folder: Path) -> bool:
    """Whether a campaign has come to its end; a damaged one has not, and will say so itself."""
    try:
        rounds = Store(folder).rounds()
    except (InputError, OSError):
        return False
    return bool(rounds) and rounds[-1].asked == 0 and (folder / "config.toml").exists()


def _whole(study: Study, folder: Path) -> Study:
    """The study together with what the folder holds already."""
    if (folder / FILE).exists():
        return joined(read_study(folder), study, folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; expected a folder, or a name for a new one")
    others = {p.name for p in folder.iterdir()} - {"lock"} if folder.exists() else set()
    if others:
        raise InputError(
            f"{folder} holds {sorted(others)[0]} and no comparison; expected an empty folder, a "
            "new name, or the folder of an earlier comparison"
        )
    return study


def _rehearse(job: Job, progress: Progress | None) -> None:
    """Load data and network once before many do: says early what cannot work, and fills caches.

    Downloads and features of photographs are made here, by all threads, not by every worker.
    """
    ready = prepare(replace(job.campaign, threads=None), progress=progress)
    simulation(ready)
    if not len(ready.data.test):
        raise InputError(
            f"{ready.data.name} has no test items, so there is no accuracy to compare; expected "
            "data.test_fraction above 0, e.g. --set data.test_fraction=0.2"
        )


@contextmanager
def _taken(folder: Path) -> Iterator[None]:
    """The folder for us alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{folder} is in use by another comparison; wait for it or stop it first"
        ) from None
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error.strerror})") from error
    try:
        yield
    finally:
        lock.release()


def _write(path: Path, text: str) -> None:
    """In one step: it is there whole, or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _record(folder: Path, event: Event) -> None:
    """Ends of campaigns and deaths of workers, a line each; the report tells of them."""
    if event.kind in ("started", "round"):
        return
    row = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "campaign": event.job.name,
        "what": event.kind,
        "detail": event.detail,
        "trace": event.trace,
    }
    with (folder / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
