"""What a comparison looks like while it runs: bars on a terminal, elsewhere a line a campaign."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from labelahead.store import Round
from labelahead.study.compare import Begun
from labelahead.study.workers import Event, Job

__all__ = ["Watch", "watching"]


class Watch:
    """Follows a comparison."""

    def __init__(self, console: Console, bars: Progress) -> None:
        self.console, self._bars = console, bars
        self._all: TaskID | None = None
        self._tasks: dict[Job, TaskID] = {}
        self._last: dict[Job, Round] = {}
        self._since: dict[Job, float] = {}
        self._campaigns = self._done = self._rounds = 0

    def preparing(self, what: str) -> None:
        """Show what is done before the campaigns begin."""
        if self._all is None:
            self._all = self._bars.add_task("preparing", total=None, note="")
        self._bars.update(self._all, note=what)

    def begin(self, begun: Begun) -> None:
        """Say what lies ahead."""
        study, done = begun.study, begun.campaigns - begun.left
        self._campaigns, self._done, self._rounds = begun.campaigns, done, study.rounds
        before = f", {done} of them done before" if done else ""
        self._say(
            f"{len(study.arms)} strategies × {len(study.seeds)} seeds = {begun.campaigns} "
            f"campaigns{before}; {begun.workers} at a time"
        )
        if self._all is not None:
            self._bars.remove_task(self._all)
        self._all = self._bars.add_task("all", total=begun.left * study.rounds, note="")

    def event(self, event: Event) -> None:
        """Show what happened to a campaign."""
        job = event.job
        if event.kind == "started":
            self._since.setdefault(job, time.monotonic())
            self._tasks[job] = self._bars.add_task(job.name, total=self._rounds, note="starting")
        elif event.kind == "round" and event.round is not None:
            self._advance(job, event.round)
        elif event.kind == "died":
            self._forget(job)
            self._say(f"{job.name}: its worker died {event.detail}", "yellow")
        else:
            self._forget(job)
            self._done += event.kind == "finished"
            self._end(event)

    def _advance(self, job: Job, entry: Round) -> None:
        known = job in self._last and self._last[job].number >= entry.number
        self._last[job] = entry if not known else self._last[job]
        right = "" if entry.accuracy is None else f", {entry.accuracy:.1%}"
        note = f"{entry.labels} labels{right}"
        self._bars.update(self._tasks[job], completed=entry.number + 1, note=note)
        if self._all is not None and not known:  # a resumed campaign tells its rounds again
            self._bars.advance(self._all)

    def _end(self, event: Event) -> None:
        job = event.job
        took = time.monotonic() - self._since.get(job, time.monotonic())
        if event.kind == "failed":
            log = job.folder.parent.parent / "events.jsonl"
            where = f" (unexpected; {log} says where)" if event.trace else ""
            self._say(f"{job.name} failed: {event.detail}{where}", "red")
            return
        last = self._last.get(job)
        right = "" if last is None or last.accuracy is None else f"{last.accuracy:6.1%} at "
        labels = "" if last is None else f"{last.labels} labels, "
        wide = len(str(self._campaigns))
        self._say(
            f"{self._done:{wide}d}/{self._campaigns}  {job.name}: {right}{labels}{took:.0f} s"
        )

    def _forget(self, job: Job) -> None:
        task = self._tasks.pop(job, None)
        if task is not None:
            self._bars.remove_task(task)

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def watching(console: Console) -> Iterator[Watch]:
    """A watch for one comparison; bars only where they can be drawn."""
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False, style="dim"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
        speed_estimate_period=900,  # rounds of dear and of cheap strategies come in turns
    )
    with bars:
        yield Watch(console, bars)
