"""Kill the writer of a journal at random moments; print one JSON line.

Arguments: folder, number of trials, seed, and the task of the answers: classes, multilabel or number.

Run by tests/system/test_server_kill.py in a separate process that forks: the package is imported
once.
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
from labelahead.tasks import Multilabel, Number

ITEMS = [f"{i}.jpg" for i in range(50)]
CLASSES = ("cat", "dog", "fox")
ANNOTATORS = ("anna", "ben")
PATIENCE = 300  # seconds until a wait fails


TASKS = {"classes": None, "multilabel": Multilabel(CLASSES), "number": Number(unit="kg")}
task = sys.argv[4]


def open_journal(folder: Path) -> Journal:
    names = () if task == "number" else CLASSES
    return Journal(folder, items=ITEMS, fingerprint="f", classes=names, task=TASKS[task])


def make_value(label: int | None, trial: int):
    """Return the answer to the task in place of a class, and how it is written."""
    if label is None or task == "classes":
        return None, None
    if task == "number":
        return trial + label / 4, f"{trial + label / 4:g}"
    names = [name for c, name in enumerate(CLASSES) if c != label or trial % 2]
    return names, ";".join(names)


def make_event(trial: int, i: int) -> tuple[str, str, int, int | None]:
    """Return the content of event i of a trial, so that a torn event is detected."""
    kind = ("label", "keep", "skip", "unsure")[i % 4]
    index = i - (kind == "keep")  # the item that the other annotator has just labelled
    label = (trial + index) % len(CLASSES) if kind in ("label", "keep") else None
    return kind, ANNOTATORS[(trial + i) % 2], (7 * trial + index) % len(ITEMS), label


def fork_writer(work) -> tuple[int, int]:
    """Fork a child that runs `work`; return its pid and a pipe with the accepted events."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        work(writer)
    finally:
        os._exit(1)


def write_events(folder: Path, trial: int, pipe: int) -> None:
    """Write events without pause and reopen the journal sometimes, so that kills hit that too."""
    journal = open_journal(folder)
    for i in count():
        kind, who, position, label = make_event(trial, i)
        value, _ = make_value(label, trial)
        label = label if value is None else None
        event = journal.add_event(kind, who, position, label, key=f"{trial}-{i}", value=value)
        os.write(pipe, f"{event.seq} {i}\n".encode())
        journal.lease_item(position, who, 60)
        if i % 8 == 7:
            journal.close()
            journal = open_journal(folder)


def read_acknowledged(reader: int) -> list[tuple[int, int]]:
    with os.fdopen(reader, "rb") as file:
        lines = file.read().split(b"\n")[:-1]
    return [tuple(map(int, line.split())) for line in lines]


def check_journal(
    folder: Path, trial: int, acknowledged_events: list[tuple[int, int]], before: list
) -> tuple:
    """Return the problems after a kill, and the events.

    before: the events of the journal before this trial.
    """
    with open_journal(folder) as journal:
        events, label_state = journal.read_events(), journal.label_state
    problems = []
    if events[: len(before)] != before:
        problems.append("an older event changed")
    of_trial = [e for e in events if e.key is not None and e.key.startswith(f"{trial}-")]
    if [e.seq for e in events] != list(range(1, len(events) + 1)):
        problems.append("numbers have gaps")
    found = [(e.kind, e.who, e.position, e.text or e.label) for e in of_trial]
    sent = [make_event(trial, i) for i in range(len(of_trial))]
    if found != [(*e[:3], make_value(e[3], trial)[1] or e[3]) for e in sent]:
        problems.append("an event is torn or out of order")
    recorded = {(e.seq, int(e.key.split("-")[1])) for e in of_trial}
    if not set(acknowledged_events) <= recorded:
        problems.append(f"lost {sorted(set(acknowledged_events) - recorded)}")
    if len(of_trial) > len(acknowledged_events) + 1:
        problems.append("more than one event that was never acknowledged")
    if build_label_state(events) != label_state:
        problems.append("the tally differs from the fold")
    return problems, events


def run_kills(scratch: Path, trials: int, rng: random.Random) -> dict:
    bad, killed, acknowledged, empty, folder, before = [], 0, 0, 0, scratch, []
    for trial in range(trials):
        if trial % 5 == 0:  # kills may hit the creation of a journal, too
            folder, before = scratch / str(trial), []
        pid, reader = fork_writer(lambda pipe, f=folder, t=trial: write_events(f, t, pipe))
        if trial % 5:  # other kills may hit the opening of the journal
            select.select([reader], [], [], PATIENCE)
        time.sleep(rng.random() * 0.04)
        os.kill(pid, signal.SIGKILL)
        killed += os.waitpid(pid, 0)[1] == signal.SIGKILL
        acknowledged_events = read_acknowledged(reader)
        acknowledged, empty = (
            acknowledged + len(acknowledged_events),
            empty + (not acknowledged_events),
        )
        problems, before = check_journal(folder, trial, acknowledged_events, before)
        bad += [f"trial {trial}: {problem}" for problem in problems]
    return {"bad": bad, "killed": killed, "acknowledged": acknowledged, "empty": empty}


def check_second_process(folder: Path) -> dict:
    """Check that a second process is refused until the first is killed."""

    def hold_journal(pipe: int) -> None:
        journal = open_journal(folder)
        value, _ = make_value(1, 0)
        journal.add_event("label", "anna", 3, 1 if value is None else None, key="k", value=value)
        os.write(pipe, b"1 0\n")
        time.sleep(PATIENCE)

    pid, reader = fork_writer(hold_journal)
    os.read(reader, 4)  # the first process has opened the journal
    try:
        open_journal(folder).close()
        error_text = ""
    except StorageError as error:
        error_text = str(error)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reader)
    with open_journal(folder) as journal:
        state = journal.label_state
        labels = {p: state.name_label(label) for p, label in state.labels.items()}
        return {"refused": error_text, "labels": labels}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    report = run_kills(place, int(sys.argv[2]), random.Random(int(sys.argv[3])))
    print(json.dumps(report | check_second_process(place / "two")))
