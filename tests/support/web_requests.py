"""Kill a server again and again while one kind of request is sent; print one JSON line.

Run by tests/system/test_server_kill_requests.py as `python -c` in a separate process that forks:
the package is imported once, and the worker processes of the servers do not import this module.
Requests follow a fixed plan, so that the expected journal after each request is known: when the
server dies, it must contain the acknowledged requests, and at most one more. The next server gets
the requests that were not acknowledged.
"""

import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from itertools import count
from pathlib import Path

from labelahead.errors import LabelaheadError
from labelahead.learner.config import parse_campaign
from labelahead.server.client import Client
from labelahead.server.journal import read_journal
from labelahead.server.label_state import build_label_state
from labelahead.server.serve import serve
from labelahead.server.session import TEMPORARY_PREFIX, SessionOptions, open_session
from tests.support.waiting import until
from tests.support.web_sessions import photo, photos

ITEMS, GRID_ITEMS, ROWS, NEW = 192, 24, 100, 5
CLASSES = ("cat", "dog", "fox")
MAX_KILL_DELAY_SECONDS = 0.3  # longest delay of a kill that waits for no request
MAX_REQUESTS_BEFORE_KILL = 3  # most requests acknowledged before a kill
EventRow = tuple[str, str, int | None, int | None]  # kind, who, position, label


@dataclass(frozen=True)
class Step:
    """A request and the events that it must record."""

    send: Callable[[Client], object]
    events: list[EventRow]


def make_import(n: int, scratch: Path) -> Step:
    """Import a file of 100 labels, sometimes with a new class."""
    who, number = f"file{n}", {name: i for i, name in enumerate(CLASSES)}
    new_class = len(CLASSES) + n // 5
    class_names = CLASSES if n % 5 else (f"new{n}", *CLASSES[:2])
    rows = [((37 * n + i) % ITEMS, class_names[i % 3]) for i in range(ROWS)]
    events: list[EventRow] = [("label", who, p, number.get(name, new_class)) for p, name in rows]

    def send(page: Client) -> None:
        path = scratch / "import.csv"
        names = sorted(f"{p:02d}.png" for p in range(ITEMS))
        path.write_text(
            "item,label,who\n" + "".join(f"{names[p]},{name},{who}\n" for p, name in rows)
        )
        page.import_labels(path)

    return Step(send, events if n % 5 else [("class", who, None, new_class), *events])


def make_export(n: int, scratch: Path) -> Step:
    """Send an answer, then export everything three times."""
    position, label, form = n % ITEMS, n % 3, ("folders", "hf", "csv", "label-studio")[n % 4]

    def send(page: Client) -> None:
        page.add_answer(position, label, key=f"k{n}")
        for _ in range(3):
            page.export(form, scratch / "sent").unlink()

    return Step(send, [("label", "anna", position, label)])


def make_confirmation(n: int, scratch: Path) -> Step:
    """Confirm a grid of 24 items, or undo it."""
    turn, is_undo = divmod(n, 2)
    positions = [(GRID_ITEMS * turn + i) % ITEMS for i in range(GRID_ITEMS)]
    if is_undo:
        return Step(
            lambda page: send_undo(page, n),
            [("undo", "anna", p, None) for p in reversed(positions)],
        )
    events: list[EventRow] = [("confirm", "anna", p, turn % 3) for p in positions]
    return Step(lambda page: page.confirm(positions, turn % 3, key=f"k{n}"), events)


def make_class_change(n: int, scratch: Path) -> Step:
    """Rename, merge or remove a class, or undo that."""
    kind = ("rename", "merge", "undo", "remove", "undo")[n % 5]
    if kind == "undo":
        return Step(lambda page: send_undo(page, n), [("undo", "anna", None, None)])
    number, name = {"rename": (0, f"name {n}"), "merge": (2, "dog"), "remove": (2, None)}[kind]
    body = {"kind": kind, "name": name, "key": f"k{n}"}
    return Step(
        lambda page: page._post(f"/api/classes/{number}", body), [(kind, "anna", None, number)]
    )


def make_new_files(n: int, scratch: Path) -> Step:
    """Label an item; new files appear between two servers."""
    return Step(
        lambda page: page.add_answer(n % ITEMS, n % 3, key=f"k{n}"),
        [("label", "anna", n % ITEMS, n % 3)],
    )


def send_undo(page: Client, n: int) -> object:
    return page._post("/api/undo", {"seq": None, "key": f"k{n}"})


REQUEST_KINDS = {
    "import": make_import,
    "export": make_export,
    "confirm": make_confirmation,
    "classes": make_class_change,
    "grow": make_new_files,
}
MARK = "LABELAHEAD_REQUESTS"


class Trials:
    """One session folder and a series of servers that are killed."""

    def __init__(self, kind: str, scratch: Path, seed: int) -> None:
        self.kind, self.scratch, self.random = kind, scratch, random.Random(seed)
        self.data, self.out = photos(scratch / "set", ITEMS), scratch / "out"
        (
            self.acknowledged,
            self.killed,
            self.temporary_folders,
            self.workers,
            self.unacknowledged,
        ) = 0, 0, 0, 0, 0
        self.seconds = 0.0  # duration of the last request
        self.items: list[str] = []
        self.bad: list[str] = []

    def run_trial(self, number: int) -> None:
        """Start a server, send requests, kill the server and check the journal."""
        if self.kind == "grow":
            for i in range(NEW):
                photo(self.data / f"new-{number:03d}-{i}.png", (9 * i, number % 256, 99))
        pid, port = self.fork_server()
        early = self.kind == "grow" and number % 2  # kill while the new files are read
        if not early and not self.is_up(pid, port):
            self.bad.append(f"trial {number}: the server did not start")
            return
        if not early:
            self.bad += [f"trial {number}: {path.name} was left" for path in self.list_leftovers()]
        sender = threading.Thread(
            target=self.send, args=(Client(f"http://127.0.0.1:{port}/", who="anna"),)
        )
        sender.start()
        if early:
            time.sleep(self.random.uniform(0, MAX_KILL_DELAY_SECONDS))
        else:
            before = self.acknowledged + self.random.randint(1, MAX_REQUESTS_BEFORE_KILL)
            until(
                lambda: self.acknowledged >= before or not sender.is_alive(),
                lambda: self.acknowledged,
            )
            time.sleep(
                self.random.uniform(0, 1.5 * self.seconds)
            )  # during the next request or the one after it
        marked = self.find_processes()
        os.kill(pid, signal.SIGKILL)
        self.killed += os.waitpid(pid, 0)[1] == signal.SIGKILL
        sender.join()
        self.temporary_folders += any(
            path.name.startswith(TEMPORARY_PREFIX) for path in self.list_leftovers()
        )
        self.workers += any(worker for worker in marked.values())
        until(
            lambda: not marked.keys() & self.find_processes().keys(),
            lambda: f"left: {self.find_processes()}",
        )
        self.check_journal(number)

    def send(self, page: Client) -> None:
        """Send requests from the first unacknowledged one until the server dies."""
        with suppress(
            LabelaheadError, OSError, HTTPException
        ):  # HTTPException: an incomplete reply
            for n in count(self.acknowledged):
                step, began = REQUEST_KINDS[self.kind](n, self.scratch), time.monotonic()
                step.send(page)
                self.acknowledged, self.seconds = n + 1, time.monotonic() - began
        (self.scratch / "sent").unlink(missing_ok=True)

    def check_journal(self, number: int) -> None:
        """Check that the journal holds the acknowledged requests and at most one more, complete."""
        if self.kind == "grow" and not (self.out / "labels.db").exists():
            return  # killed before the journal was created
        items, events = read_journal(self.out)
        recorded = [(e.kind, e.who, e.position, e.label) for e in events]
        steps = [
            REQUEST_KINDS[self.kind](n, self.scratch).events for n in range(self.acknowledged + 1)
        ]
        expected: list[list[EventRow]] = [[("class", "", None, c) for c in range(len(CLASSES))]]
        for step in steps:
            expected.append([*expected[-1], *step])
        if recorded not in expected[-2:] and (
            self.acknowledged or recorded
        ):  # no event: killed during creation
            self.bad.append(
                f"trial {number}: {len(recorded)} events, expected {len(expected[-2])} or "
                f"{len(expected[-1])}"
            )
        self.unacknowledged += recorded == expected[-1]
        if [e.seq for e in events] != list(range(1, len(events) + 1)):
            self.bad.append(f"trial {number}: numbers have gaps")
        if (
            items[: len(self.items)] != self.items
            or (len(items) - ITEMS) % NEW
            or len(items) != len({*items})
        ):
            self.bad.append(
                f"trial {number}: the items have changed, or are a part of those that came"
            )
        self.items = items
        build_label_state(events)

    def finish(self) -> dict:
        """Send the unacknowledged request to a last server, stop it, and return the report."""
        pid, port = self.fork_server()
        page = Client(f"http://127.0.0.1:{port}/", who="anna")
        self.bad += [] if self.is_up(pid, port) else ["the last server did not start"]
        REQUEST_KINDS[self.kind](self.acknowledged, self.scratch).send(page)
        self.acknowledged += 1
        if self.kind == "grow" and len(read_journal(self.out)[0]) != len([*self.data.iterdir()]):
            self.bad.append("files that came are not among the items")
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        until(lambda: not self.find_processes(), lambda: f"left: {self.find_processes()}")
        self.bad += [f"{path.name} was left at the end" for path in self.list_leftovers()]
        self.unacknowledged, before = 0, self.unacknowledged
        self.acknowledged -= 1  # exactly this many requests are expected
        self.check_journal(-1)
        self.bad += (
            [] if self.unacknowledged else ["what was sent again counts twice, or not at all"]
        )
        counts = {
            "killed": self.killed,
            "acknowledged": self.acknowledged + 1,
            "rooms": self.temporary_folders,
        }
        return {
            "kind": self.kind,
            "bad": self.bad,
            **counts,
            "workers": self.workers,
            "unsaid": before,
        }

    def fork_server(self) -> tuple[int, int]:
        """Fork a server and return its pid and port."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        pid = os.fork()
        if pid:
            return pid, port
        try:
            tables = {"data": {"name": str(self.data)}, "model": {"name": "mlp"}, "threads": 1}
            with open_session(
                parse_campaign(tables), self.out, SessionOptions(classes=CLASSES)
            ) as session:
                serve(session, port=port, browser=False, on_message=lambda url: None)
        finally:
            os._exit(1)

    def is_up(self, pid: int, port: int) -> bool:
        """Wait until the server answers or has died, and return whether it answers."""

        def read_state() -> str:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                return "up"
            return "gone" if os.waitpid(pid, os.WNOHANG)[0] else ""

        return until(read_state) == "up"

    def list_leftovers(self) -> list[Path]:
        return (
            [*self.out.glob(f"{TEMPORARY_PREFIX}*"), *self.out.glob("*.partial")]
            if self.out.exists()
            else []
        )

    def find_processes(self) -> dict[str, bool]:
        """Return pid -> is a worker, of all processes that the servers started."""
        processes, mark = {}, f"{MARK}={os.environ[MARK]}".encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    processes[entry.name] = b"spawn_main" in (entry / "cmdline").read_bytes()
        return processes


def main() -> None:
    scratch, kind, trials, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.environ[MARK] = str(os.getpid())
    all_trials = Trials(kind, scratch, seed)
    for number in range(trials):
        all_trials.run_trial(number)
    print(json.dumps(all_trials.finish()))
