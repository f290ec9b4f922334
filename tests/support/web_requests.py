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
from labelahead.server.session import TEMPORARY_PREFIX, open_session
from tests.support.waiting import until
from tests.support.web_sessions import photo, photos

ITEMS, GRID_ITEMS, ROWS, NEW = 192, 24, 100, 5
CLASSES = ("cat", "dog", "fox")
MAX_KILL_DELAY_SECONDS = 0.3  # seconds until a kill that nothing is waited for
MAX_REQUESTS_BEFORE_KILL = 3  # requests that are acknowledged before any other
EventRow = tuple[str, str, int | None, int | None]  # kind, who, position, label


@dataclass(frozen=True)
class Step:
    """A request, and the events that it must leave."""

    send: Callable[[Client], object]
    events: list[EventRow]


def make_import(n: int, scratch: Path) -> Step:
    """A file of a hundred labels, with a class that is new now and then."""
    who, number = f"file{n}", {name: i for i, name in enumerate(CLASSES)}
    new = len(CLASSES) + n // 5
    named = CLASSES if n % 5 else (f"new{n}", *CLASSES[:2])
    rows = [((37 * n + i) % ITEMS, named[i % 3]) for i in range(ROWS)]
    events: list[EventRow] = [("label", who, p, number.get(name, new)) for p, name in rows]

    def send(page: Client) -> None:
        path = scratch / "import.csv"
        names = sorted(f"{p:02d}.png" for p in range(ITEMS))
        path.write_text(
            "item,label,who\n" + "".join(f"{names[p]},{name},{who}\n" for p, name in rows)
        )
        page.bring_in(path)

    return Step(send, events if n % 5 else [("class", who, None, new), *events])


def make_export(n: int, scratch: Path) -> Step:
    """An answer, and then all that is known as a file or a folder, which nobody keeps."""
    position, label, form = n % ITEMS, n % 3, ("folders", "hf", "csv", "label-studio")[n % 4]

    def send(page: Client) -> None:
        page.answer(position, label, key=f"k{n}")
        for _ in range(3):
            page.export(form, scratch / "sent").unlink()

    return Step(send, [("label", "anna", position, label)])


def make_confirmation(n: int, scratch: Path) -> Step:
    """A grid of 24, and all of it taken back."""
    turn, back = divmod(n, 2)
    at = [(GRID_ITEMS * turn + i) % ITEMS for i in range(GRID_ITEMS)]
    if back:
        return Step(lambda page: undone(page, n), [("undo", "anna", p, None) for p in reversed(at)])
    events: list[EventRow] = [("confirm", "anna", p, turn % 3) for p in at]
    return Step(lambda page: page.confirm(at, turn % 3, key=f"k{n}"), events)


def make_class_change(n: int, scratch: Path) -> Step:
    """A class is renamed, another merged and brought back, removed and brought back."""
    what = ("rename", "merge", "undo", "remove", "undo")[n % 5]
    if what == "undo":
        return Step(lambda page: undone(page, n), [("undo", "anna", None, None)])
    number, name = {"rename": (0, f"name {n}"), "merge": (2, "dog"), "remove": (2, None)}[what]
    body = {"kind": what, "name": name, "key": f"k{n}"}
    return Step(
        lambda page: page._post(f"/api/classes/{number}", body), [(what, "anna", None, number)]
    )


def make_new_files(n: int, scratch: Path) -> Step:
    """A label for an item; new files come between two servers."""
    return Step(
        lambda page: page.answer(n % ITEMS, n % 3, key=f"k{n}"),
        [("label", "anna", n % ITEMS, n % 3)],
    )


def undone(page: Client, n: int) -> object:
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
    """One folder of labels, and one server after the other."""

    def __init__(self, kind: str, scratch: Path, seed: int) -> None:
        self.kind, self.scratch, self.random = kind, scratch, random.Random(seed)
        self.data, self.out = photos(scratch / "set", ITEMS), scratch / "out"
        self.acknowledged, self.killed, self.rooms, self.workers, self.unsaid = 0, 0, 0, 0, 0
        self.seconds = 0.0  # that the last request took
        self.items: list[str] = []
        self.bad: list[str] = []

    def run_trial(self, number: int) -> None:
        """Start, send, kill, look."""
        if self.kind == "grow":
            for i in range(NEW):
                photo(self.data / f"new-{number:03d}-{i}.png", (9 * i, number % 256, 99))
        pid, port = self.fork_server()
        early = self.kind == "grow" and number % 2  # in the midst of taking the files in
        if not early and not self.is_up(pid, port):
            self.bad.append(f"trial {number}: the server did not start")
            return
        if not early:
            self.bad += [f"trial {number}: {left.name} was left" for left in self.list_leftovers()]
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
            )  # in the midst of the next, or of the one after it
        marked = self.find_processes()
        os.kill(pid, signal.SIGKILL)
        self.killed += os.waitpid(pid, 0)[1] == signal.SIGKILL
        sender.join()
        self.rooms += any(left.name.startswith(TEMPORARY_PREFIX) for left in self.list_leftovers())
        self.workers += any(worker for worker in marked.values())
        until(
            lambda: not marked.keys() & self.find_processes().keys(),
            lambda: f"left: {self.find_processes()}",
        )
        self.check_journal(number)

    def send(self, page: Client) -> None:
        """One request after the other, from the first that was not acknowledged, until the server
        is gone.
        """
        with suppress(
            LabelaheadError, OSError, HTTPException
        ):  # the last: a reply that was cut short
            for n in count(self.acknowledged):
                step, began = REQUEST_KINDS[self.kind](n, self.scratch), time.monotonic()
                step.send(page)
                self.acknowledged, self.seconds = n + 1, time.monotonic() - began
        (self.scratch / "sent").unlink(missing_ok=True)

    def check_journal(self, number: int) -> None:
        """What is on the disk is what was acknowledged, and at most one request more, whole."""
        if self.kind == "grow" and not (self.out / "labels.db").exists():
            return  # killed before anything began
        items, events = read_journal(self.out)
        said = [(e.kind, e.who, e.position, e.label) for e in events]
        steps = [
            REQUEST_KINDS[self.kind](n, self.scratch).events for n in range(self.acknowledged + 1)
        ]
        wanted: list[list[EventRow]] = [[("class", "", None, c) for c in range(len(CLASSES))]]
        for step in steps:
            wanted.append([*wanted[-1], *step])
        if said not in wanted[-2:] and (
            self.acknowledged or said
        ):  # no class yet: killed while it began
            self.bad.append(
                f"trial {number}: {len(said)} events, expected {len(wanted[-2])} or "
                f"{len(wanted[-1])}"
            )
        self.unsaid += said == wanted[-1]
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
        """A last server, which is sent what was not acknowledged, and ends in peace."""
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
        self.bad += [f"{left.name} was left at the end" for left in self.list_leftovers()]
        self.unsaid, before = 0, self.unsaid
        self.acknowledged -= 1  # exactly so many
        self.check_journal(-1)
        self.bad += [] if self.unsaid else ["what was sent again counts twice, or not at all"]
        told = {"killed": self.killed, "acknowledged": self.acknowledged + 1, "rooms": self.rooms}
        return {
            "kind": self.kind,
            "bad": self.bad,
            **told,
            "workers": self.workers,
            "unsaid": before,
        }

    def fork_server(self) -> tuple[int, int]:
        """A server, and its port."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pid = os.fork()
        if pid:
            return pid, port
        try:
            tables = {"data": {"name": str(self.data)}, "model": {"name": "mlp"}, "threads": 1}
            with open_session(parse_campaign(tables), self.out, classes=CLASSES) as session:
                serve(session, port=port, browser=False, tell=lambda url: None)
        finally:
            os._exit(1)

    def is_up(self, pid: int, port: int) -> bool:
        """Whether the server answers, once it does or is gone."""

        def settled() -> str:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                return "up"
            return "gone" if os.waitpid(pid, os.WNOHANG)[0] else ""

        return until(settled) == "up"

    def list_leftovers(self) -> list[Path]:
        return (
            [*self.out.glob(f"{TEMPORARY_PREFIX}*"), *self.out.glob("*.partial")]
            if self.out.exists()
            else []
        )

    def find_processes(self) -> dict[str, bool]:
        """Processes that the servers started -> whether it is a worker."""
        there, mark = {}, f"{MARK}={os.environ[MARK]}".encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    there[entry.name] = b"spawn_main" in (entry / "cmdline").read_bytes()
        return there


def main() -> None:
    scratch, kind, trials, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.environ[MARK] = str(os.getpid())
    these = Trials(kind, scratch, seed)
    for number in range(trials):
        these.run_trial(number)
    print(json.dumps(these.finish()))
