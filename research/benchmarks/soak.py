"""Twenty minutes of ill-treatment: people answer, correct, undo and import while the server is
killed again and again.

Two sessions on one machine, each with several people over HTTP. Every minute or so one server is
killed (`kill -9`) and started again by its own command. At the end: is every acknowledged answer in
the record, and none twice; has memory stayed flat (median of the last fifth against the first fifth
after 500 answers, between two kills); is anybody left?

With --orphans 30 instead: a server that looks at pictures is killed so many times, at random
moments from the birth of its worker on, and this prints how long the worker outlives it.
"""

import argparse
import contextlib
import os
import random
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from labelahead.errors import LabelaheadError
from labelahead.server.client import Client

CLASSES = [str(i) for i in range(10)]
WORK = """
import pathlib, torch

def embed(pictures):
    pathlib.Path({begun!r}).touch()
    x = torch.rand(2000, 2000)
    for _ in range(1000):
        x = torch.tanh(x @ x / 500)
    return pictures.float().mean((2, 3))
"""
MARK = f"LABELAHEAD_SOAK={os.getpid()}".encode()


class Session:
    """One server, its people and what they were told."""

    def __init__(self, folder: Path, items: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.truth = rng.integers(0, 10, items)
        rows = rng.normal(size=(10, 64))[self.truth] + 1.5 * rng.normal(size=(items, 64))
        self.folder, self.random = folder, random.Random(seed)
        folder.mkdir()
        np.savez(folder / "pool.npz", x=rows.astype(np.float32))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.said: list[
            tuple[str, int, int, int]
        ] = []  # (who, position, label, seq) that were acknowledged
        self.undone: set[int] = set()
        self.memory: list[tuple[int, int, int]] = []  # (server's life, answers, MB)
        self.life, self.lock, self.kills = 0, threading.Lock(), 0
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "labelahead",
            "label",
            str(self.folder / "pool.npz"),
            "--no-browser",
        ]
        command += [
            "--classes",
            ",".join(CLASSES),
            "--out",
            str(self.folder / "out"),
            "--port",
            str(self.port),
        ]
        command += ["--threads", "1"]
        log = (self.folder / "log").open("ab")
        marked = os.environ | {"LABELAHEAD_SOAK": str(os.getpid())}
        process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env=marked
        )
        client = Client(f"http://127.0.0.1:{self.port}/", who="watcher")
        for _ in range(600):
            with contextlib.suppress(LabelaheadError, OSError):
                client.session()
                return process
            time.sleep(0.2)
        raise SystemExit(f"the server did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1
        self.life += 1
        self.process = self.start()

    def person(self, name: str, end: float) -> None:
        """Answers; now and then a correction, an undo, an import of what is known."""
        client, mind = Client(f"http://127.0.0.1:{self.port}/", who=name), random.Random(name)
        while time.monotonic() < end:
            try:
                asked = client.get_query()
                while time.monotonic() < end and not asked.get("done"):
                    asked = self.one(client, name, asked, mind)
                    time.sleep(mind.uniform(0, 0.1))
                time.sleep(0.5)  # the last items are with others, or all is done
            except (LabelaheadError, OSError):
                time.sleep(0.5)  # killed, perhaps; nothing was acknowledged

    def one(self, client: Client, name: str, asked: dict, mind: random.Random) -> dict:
        at = asked["position"]
        label = int(self.truth[at]) if mind.random() < 0.95 else mind.randrange(10)
        done = client.add_answer(at, label)
        with self.lock:
            self.said.append((name, at, label, done["event"]["seq"]))
            mine = [s for s in self.said if s[0] == name and s[3] not in self.undone]
        if mind.random() < 0.1:
            back = client.undo()
            if back["undone"]:
                with self.lock:
                    self.undone.add(back["undone"]["seq"])
                return back["next"]
        elif mind.random() < 0.1 and mine:
            _, old, label, _ = mind.choice(mine)
            again = client.add_answer(old, int(self.truth[old]))
            with self.lock:
                self.said.append((name, old, int(self.truth[old]), again["event"]["seq"]))
            return again["next"]
        elif mind.random() < 0.005:
            path = self.folder / f"{name}.csv"
            some = mind.sample(range(len(self.truth)), 5)
            path.write_text("item,label\n" + "".join(f"{p},{self.truth[p]}\n" for p in some))
            client.import_labels(path)
        return done["next"]

    def watch(self, end: float) -> None:
        while time.monotonic() < end:
            with contextlib.suppress(OSError, StopIteration):
                status = Path(f"/proc/{self.process.pid}/status").read_text()
                size = (
                    int(
                        next(
                            line for line in status.splitlines() if line.startswith("VmRSS")
                        ).split()[1]
                    )
                    // 1024
                )
                self.memory.append((self.life, len(self.said), size))
            time.sleep(1)

    def verdict(self) -> tuple[int, int, float]:
        """Lost, doubled, growth of memory after the first 500 answers of the longest life."""
        with sqlite3.connect(self.folder / "out" / "labels.db") as db:
            rows = db.execute(
                "SELECT seq, who, position, label FROM events WHERE kind = 'label'"
            ).fetchall()
        kept = {(who, position, label, seq) for seq, who, position, label in rows}
        lost = sum(entry not in kept for entry in self.said)
        doubled = len(self.said) - len(set(self.said))
        lives = [[m for m in self.memory if m[0] == life] for life in range(self.life + 1)]
        longest = max(lives, key=lambda rows: rows[-1][1] - rows[0][1] if rows else 0)
        after = [size for _, said, size in longest if said - longest[0][1] >= 500] or [
            m[2] for m in longest
        ]
        fifth = max(1, len(after) // 5)
        return lost, doubled, statistics.median(after[-fifth:]) / statistics.median(after[:fifth])


def list_left_processes() -> list[str]:
    """Processes that the servers started, or themselves: they all inherit a mark."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                entry.name.isdigit()
                and int(entry.name) != os.getpid()
                and MARK in (entry / "environ").read_bytes()
            ):
                found.append(entry.name)
    return found


def orphans(kills: int, folder: Path) -> None:
    """How long a worker outlives its server, which is killed while it starts, imports or looks at
    pictures.
    """
    begun, lives, embedding = folder / "begun", list[float](), 0
    (folder / "own.py").write_text(WORK.format(begun=str(begun)))
    np.savez(
        folder / "pool.npz",
        x=np.random.default_rng(0).integers(0, 255, (300, 32, 32, 3), dtype=np.uint8),
    )
    command = [
        sys.executable,
        "-m",
        "labelahead",
        "label",
        str(folder / "pool.npz"),
        "--classes",
        "a,b",
        "--no-browser",
    ]
    command += [
        "--model",
        "exact",
        "--embedding",
        f"{folder / 'own.py'}:embed",
        "--threads",
        "1",
        "--port",
        "0",
    ]
    marked = os.environ | {"LABELAHEAD_SOAK": str(os.getpid())}
    for number in range(kills):
        begun.unlink(missing_ok=True)
        more = ["--out", str(folder / str(number))]
        server = subprocess.Popen(
            command + more, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=marked
        )
        while not workers():
            time.sleep(0.01)
            if server.poll() is not None:
                raise SystemExit("the server did not start")
        while (
            number % 2 and not begun.exists()
        ):  # every other one is killed in the midst of an embedding
            time.sleep(0.01)
        time.sleep(random.uniform(0, 2))
        embedding += begun.exists()
        server.kill()
        server.wait()
        since = time.monotonic()
        while list_left_processes():
            time.sleep(0.002)
        lives.append(time.monotonic() - since)
    lives.sort()
    print(
        f"{kills} kills, {embedding} of them in the midst of an embedding: the worker was gone "
        "after "
        f"p50 {statistics.median(lives):.3f} s, p95 {lives[int(0.95 * len(lives))]:.3f} s, max "
        f"{lives[-1]:.3f} s "
        f"(load {os.getloadavg()[0]:.1f})"
    )


def workers() -> list[str]:
    """Those of the processes that are left which are no server."""
    return [
        pid
        for pid in list_left_processes()
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--orphans", type=int, metavar="KILLS", help="how long workers outlive their servers"
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--people", type=int, default=4, help="in each session")
    parser.add_argument("--items", type=int, default=4000)
    parser.add_argument(
        "--calm",
        type=float,
        default=0.4,
        help="share of the time at the end without kills, for memory",
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.orphans:
            orphans(given.orphans, Path(folder))
            return
        sessions = [Session(Path(folder) / str(i), given.items, i) for i in range(2)]
        begin = time.monotonic()
        end = begin + 60 * given.minutes
        threads = [threading.Thread(target=s.watch, args=(end,)) for s in sessions]
        threads += [
            threading.Thread(target=s.person, args=(f"p{i}", end))
            for s in sessions
            for i in range(given.people)
        ]
        for thread in threads:
            thread.start()
        while time.monotonic() < end:
            time.sleep(min(max(end - time.monotonic(), 0.1), random.uniform(10, 60)))
            if time.monotonic() < begin + 60 * given.minutes * (1 - given.calm):
                random.choice(sessions).kill()
            counts = ", ".join(
                f"{len(s.said)} answers, {s.memory[-1][2] if s.memory else 0} MB" for s in sessions
            )
            print(f"{(time.monotonic() - begin) / 60:5.1f} min: {counts}", flush=True)
        for thread in threads:
            thread.join()
        for s in sessions:
            s.process.send_signal(signal.SIGINT)
        for s in sessions:
            s.process.wait(60)
        time.sleep(3)
        remaining = list_left_processes()
        verdicts = [s.verdict() for s in sessions]
        answers, kills = sum(len(s.said) for s in sessions), sum(s.kills for s in sessions)
    undone = sum(len(s.undone) for s in sessions)
    lost, doubled = sum(v[0] for v in verdicts), sum(v[1] for v in verdicts)
    growth = max(v[2] for v in verdicts)
    flat = "flat" if growth <= 1.2 else "NOT FLAT"
    print(
        f"{answers} answers, {undone} undone, {kills} kills: {lost} lost, {doubled} doubled, "
        f"RSS {flat} ({growth:.2f} times after the first 500), {len(remaining)} processes left"
    )
    sys.exit(bool(lost or doubled or remaining or growth > 1.2))


if __name__ == "__main__":
    main()
