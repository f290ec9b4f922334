"""Kills the writer of a label record at random moments; prints one JSON line.

Run by test_web_kill.py. A process of its own that forks: the package is imported once.
"""

import json
import os
import random
import select
import signal
import sys
import time
from itertools import count
from pathlib import Path

from labelahead.errors import StorageError
from labelahead.server.journal import Journal
from labelahead.server.label_state import build_label_state

ITEMS = [f"{i}.jpg" for i in range(50)]
CLASSES = ("cat", "dog", "fox")
PEOPLE = ("anna", "ben")
PATIENCE = 300  # seconds until something counts as never


def opened(folder: Path) -> Journal:
    return Journal(folder, items=ITEMS, fingerprint="f", classes=CLASSES)


def content(trial: int, i: int) -> tuple[str, str, int, int | None]:
    """What is written as number i of a trial, so that a torn event would be seen."""
    kind = ("label", "keep", "skip", "unsure")[i % 4]
    of = i - (kind == "keep")  # what the other person has just labelled
    label = (trial + of) % len(CLASSES) if kind in ("label", "keep") else None
    return kind, PEOPLE[(trial + i) % 2], (7 * trial + of) % len(ITEMS), label


def forked(work) -> tuple[int, int]:
    """A child that does this, and the end of a pipe on which it says what was accepted."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        work(writer)
    finally:
        os._exit(1)


def write(folder: Path, trial: int, pipe: int) -> None:
    """As fast as it goes; closed and opened again now and then, so that kills fall there too."""
    journal = opened(folder)
    for i in count():
        kind, who, position, label = content(trial, i)
        event = journal.add_event(kind, who, position, label, key=f"{trial}-{i}")
        os.write(pipe, f"{event.seq} {i}\n".encode())
        journal.lease_item(position, who, 60)
        if i % 8 == 7:
            journal.close()
            journal = opened(folder)


def drained(reader: int) -> list[tuple[int, int]]:
    with os.fdopen(reader, "rb") as file:
        lines = file.read().split(b"\n")[:-1]
    return [tuple(map(int, line.split())) for line in lines]


def check(folder: Path, trial: int, told: list[tuple[int, int]], before: list) -> tuple:
    """Problems after a kill, of a record that held `before` until then, and what it holds now."""
    with opened(folder) as journal:
        events, label_state = journal.read_events(), journal.label_state
    bad = []
    if events[: len(before)] != before:
        bad.append("an older event changed")
    mine = [e for e in events if e.key is not None and e.key.startswith(f"{trial}-")]
    if [e.seq for e in events] != list(range(1, len(events) + 1)):
        bad.append("numbers have gaps")
    if [(e.kind, e.who, e.position, e.label) for e in mine] != [
        content(trial, i) for i in range(len(mine))
    ]:
        bad.append("an event is torn or out of order")
    there = {(e.seq, int(e.key.split("-")[1])) for e in mine}
    if not set(told) <= there:
        bad.append(f"lost {sorted(set(told) - there)}")
    if len(mine) > len(told) + 1:
        bad.append("more than one event that was never acknowledged")
    if build_label_state(events) != label_state:
        bad.append("the tally differs from the fold")
    return bad, events


def kills(scratch: Path, trials: int, rng: random.Random) -> dict:
    bad, killed, acknowledged, empty, folder, before = [], 0, 0, 0, scratch, []
    for trial in range(trials):
        if trial % 5 == 0:  # the beginning of a record is a moment, too
            folder, before = scratch / str(trial), []
        pid, reader = forked(lambda pipe, f=folder, t=trial: write(f, t, pipe))
        if trial % 5:  # the others may fall into the opening of the journal
            select.select([reader], [], [], PATIENCE)
        time.sleep(rng.random() * 0.04)
        os.kill(pid, signal.SIGKILL)
        killed += os.waitpid(pid, 0)[1] == signal.SIGKILL
        told = drained(reader)
        acknowledged, empty = acknowledged + len(told), empty + (not told)
        problems, before = check(folder, trial, told, before)
        bad += [f"trial {trial}: {said}" for said in problems]
    return {"bad": bad, "killed": killed, "acknowledged": acknowledged, "empty": empty}


def two(folder: Path) -> dict:
    """A second process is refused while the first lives, and welcome after it was killed."""

    def hold(pipe: int) -> None:
        journal = opened(folder)
        journal.add_event("label", "anna", 3, 1, key="k")
        os.write(pipe, b"1 0\n")
        time.sleep(PATIENCE)

    pid, reader = forked(hold)
    os.read(reader, 4)  # the first one is at work
    try:
        opened(folder).close()
        said = ""
    except StorageError as error:
        said = str(error)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reader)
    with opened(folder) as journal:
        return {"refused": said, "labels": dict(journal.label_state.labels)}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    report = kills(place, int(sys.argv[2]), random.Random(int(sys.argv[3])))
    print(json.dumps(report | two(place / "two")))
