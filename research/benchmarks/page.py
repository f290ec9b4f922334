"""How long a person waits at the labelling page, and what it bears.

Latency: from the key's press to the next item painted, in Chromium, at pools of 1,000, 4,000 and
20,000 pictures, with the learner that needs no training, and at up to 4,000 beside a network that
is retrained all the time (after every 5 answers); the time the server takes is beside it, also when
thousands of answers were given. Load: 100 people at once for 60 s over the HTTP interface, when
5,000 answers were given, with and without a kernel; every acknowledged answer has to be in the
record, and no item may be with two people at once.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from contenders import HERE
from labelahead.errors import LabelaheadError
from labelahead.server.client import Client
from labelahead.simulation.comparison.execution import describe_machine as machine

RESULTS = HERE / "results" / "page.json"
GOALS = {("mlp", 4000): 150.0, ("exact", 4000): 80.0, ("exact", 20000): 150.0}  # ms, p95
TRAINED_UP_TO = 4000  # items of the pools at which a network is trained beside the answers
WATCH = """() => {
  const stage = document.getElementById('stage');
  window.painted = [];
  document.addEventListener('keydown', () => {
    const start = performance.now(), before = stage.dataset.position;
    const look = () => {
      if (stage.dataset.position === before) return requestAnimationFrame(look);
      const picture = document.querySelector('#item img');
      const end = () => requestAnimationFrame(() => setTimeout(
        () => window.painted.push(performance.now() - start)));
      if (picture && !picture.complete) picture.addEventListener('load', end, {once: true});
      else end();
    };
    look();
  }, true);
}"""


def pool(n: int, data: Path | None, target: Path) -> np.ndarray:
    """n pictures of 28×28 as an .npz without labels; MNIST, or random strokes."""
    rng = np.random.default_rng(0)
    if data is not None:
        from labelahead.data import load

        mnist, answers = load("mnist", root=data)
        keep = rng.permutation(60000)[:n]
        images = np.stack([np.asarray(mnist.inputs[int(i), 0]) for i in keep])
        images = np.clip((images - images.min()) / (images.max() - images.min()) * 255, 0, 255)
        labels = np.array([answers(int(i)) for i in keep])
    else:
        labels = rng.integers(0, 10, n)
        shapes = rng.random((10, 28, 28)) > 0.8
        images = 255 * np.clip(shapes[labels] * 0.7 + rng.random((n, 28, 28)) * 0.3, 0, 1)
    np.savez(target, x=images.astype(np.uint8)[..., None])
    return labels


class Server:
    """`labelahead label` in a process of its own."""

    def __init__(
        self, data: Path, out: Path, every: int, model: str, labels: Path | None = None
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.out = f"http://127.0.0.1:{port}", out
        names = ",".join(str(i) for i in range(10))
        command = [
            sys.executable,
            "-m",
            "labelahead",
            "label",
            str(data),
            "--classes",
            names,
            "--out",
            str(out),
            "--no-browser",
            "--port",
            str(port),
            "--retrain-every",
            str(every),
            "--threads",
            "1",
            "--model",
            model,
            "--overlap",
            "0",
        ]
        command += ["--labels", str(labels)] if labels else []
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True
        )
        for _ in range(1200):
            try:
                urllib.request.urlopen(self.url + "/api/health", timeout=5).read()
                return
            except OSError:
                time.sleep(0.1)
            if self.process.poll() is not None:
                break
        raise SystemExit("the server did not start")

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(20)


def quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 1),
        "p95": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 1),
        "max": round(ordered[-1], 1),
        "n": len(ordered),
    }


def write_label_file(labels: np.ndarray, count: int, path: Path) -> Path | None:
    """So many labels as a file to take in."""
    if not count:
        return None
    path.write_text(
        "item,label,who\n" + "".join(f"{i},{labels[i]},p{i % 100:02d}\n" for i in range(count))
    )
    return path


def latency(n: int, model: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Keys pressed in a browser, a network training beside it if it is one that is trained."""
    from playwright.sync_api import sync_playwright

    labels = pool(n, given.data, folder / "pool.npz")
    server = Server(folder / "pool.npz", folder / "out", 5 if model != "exact" else 10, model)
    chromium = next(c for c in ("chromium", "chromium-browser", "google-chrome") if shutil.which(c))
    try:
        with sync_playwright() as p:
            browser = p.chromium.launch(
                executable_path=shutil.which(chromium),
                args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            )
            page = browser.new_page()
            page.goto(server.url)
            page.wait_for_selector("#stage[data-position]:not([data-position=''])")
            press(page, labels, 12)  # so that there is something to train on
            client = Client(server.url, who="watcher")
            wait_for_round(client)
            page.evaluate(WATCH)
            busy = press(page, labels, given.answers, client, given.pause)
            times = page.evaluate("() => window.painted")
            browser.close()
        server_alone = answer_over_http(client, labels, given.answers, given.pause)
        return {
            "pool": n,
            "model": model,
            **quantiles(times),
            "training_share": round(busy, 2),
            "pause_ms": given.pause,
            "server": server_alone,
        }
    finally:
        server.stop()


def answer_over_http(
    client: Client, labels: np.ndarray, count: int, pause: float
) -> dict[str, float]:
    """The same over HTTP, without a browser: what the server takes."""
    asked, times = client.get_query(), list[float]()
    for _ in range(count):
        at, start = asked["position"], time.perf_counter()
        asked = client.add_answer(at, int(labels[at]))["next"]
        times.append(1000 * (time.perf_counter() - start))
        time.sleep(pause / 1000)
    return quantiles(times)


def wait_for_round(client: Client) -> None:
    for _ in range(1200):
        if (client.progress()["training"]["round"] or 0) >= 1:
            return
        time.sleep(0.5)
    raise SystemExit("no training came to an end in ten minutes")


def press(
    page: Any, labels: np.ndarray, count: int, client: Client | None = None, pause: float = 150
) -> float:
    """Answer so many questions by key; the share of them during which a training ran."""
    busy = 0
    for _ in range(count):
        stage = page.locator("#stage")
        position = stage.get_attribute("data-position")
        digit = int(labels[int(position)])
        page.keyboard.press(str(digit))  # a class of one character has it as its key
        page.wait_for_selector(f"#stage:not([data-position='{position}'])")
        page.wait_for_timeout(pause)  # somebody looks
        if client is not None:
            busy += client.progress()["training"]["state"] not in ("idle", "waiting")
    return busy / count


def measure_server(n: int, before: int, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The server's own part of an answer, when so many were given before."""
    labels = pool(n, given.data, folder / "pool.npz")
    server = Server(
        folder / "pool.npz",
        folder / "out",
        10,
        "exact",
        write_label_file(labels, before, folder / "labels.csv"),
    )
    try:
        client = Client(server.url, who="watcher")
        wait_for_round(client)
        client.wait()
        return {
            "pool": n,
            "before": before,
            **answer_over_http(client, labels, given.answers, given.pause),
        }
    finally:
        server.stop()


def processor_seconds(pid: int) -> float:
    """What a process has worked so far; of others on the machine it does not depend."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(kernel: bool, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Many people at once, when many answers were given.

    kernel: whether there is one to learn with.
    """
    labels = pool(given.before + 15_000, given.data, folder / "pool.npz")
    before = write_label_file(labels, given.before, folder / "labels.csv")
    server = Server(
        folder / "pool.npz",
        folder / "out",
        10 if kernel else 10**9,
        "exact" if kernel else "cnn",
        before,
    )
    if kernel:
        wait_for_round(Client(server.url, who="watcher"))
    held: Counter[int] = Counter()
    guard, times = threading.Lock(), list[float]()
    said: list[tuple[str, int]] = []
    double, failed = [], []
    worked = processor_seconds(server.process.pid)
    end = time.monotonic() + given.seconds

    def annotate(name: str) -> None:
        client = Client(server.url, who=name)
        asked = client.get_query()
        while time.monotonic() < end and not asked.get("done"):
            at = asked["position"]
            with guard:
                held[at] += 1
                if held[at] > 1:
                    double.append(at)
            start = time.perf_counter()
            try:
                answer = client.add_answer(at, int(labels[at]))
            except LabelaheadError as error:
                failed.append(str(error))
                return
            with guard:
                times.append(1000 * (time.perf_counter() - start))
                said.append((name, at))
            asked = answer["next"]

    try:
        people = [
            threading.Thread(target=annotate, args=(f"p{i:02d}",)) for i in range(given.people)
        ]
        for person in people:
            person.start()
        for person in people:
            person.join()
        worked = processor_seconds(server.process.pid) - worked
    finally:
        os.killpg(server.process.pid, signal.SIGKILL)  # what is acknowledged has to survive
        server.process.wait()
    with sqlite3.connect(next((folder / "out").glob("*.db"))) as book:
        kept = set(book.execute("select who, position from events where kind = 'label'"))
    lost = [s for s in said if s not in kept]
    return {
        "people": given.people,
        "kernel": kernel,
        "before": given.before,
        "seconds": given.seconds,
        "answers": len(said),
        "per_second": round(len(said) / given.seconds, 1),
        "processor_ms": round(
            1000 * worked / max(1, len(said)), 1
        ),  # of the server, an answer, learning included
        **quantiles(times),
        "lost": len(lost),
        "double": len(double),
        "failed": failed[:3],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with mnist/; without: random pictures")
    parser.add_argument("--pools", type=int, nargs="*", default=[1000, 4000, 20000])
    parser.add_argument("--answers", type=int, default=60)
    parser.add_argument("--pause", type=float, default=150, help="ms between two answers")
    parser.add_argument("--people", type=int, default=100)
    parser.add_argument(
        "--given-before",
        type=int,
        nargs="*",
        default=[1000, 5000],
        help="for the server's own part",
    )
    parser.add_argument(
        "--before", type=int, default=5000, help="answers that were given when the people come"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--models", nargs="*", default=["exact", "mlp"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "latency": [], "server": [], "load": []}

    def keep(part: str, measure: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """One measurement in a folder of its own.

        What was measured before it is on the disk if it fails.
        """
        with tempfile.TemporaryDirectory() as folder:
            row = measure(Path(folder)) | {"load_average": round(os.getloadavg()[0], 1)}
        results[part].append(row)
        given.results.write_text(json.dumps(results, indent=1) + "\n")
        return row

    for model in given.models:
        for n in given.pools:
            if model != "exact" and n > TRAINED_UP_TO:
                continue
            row = keep("latency", lambda folder, n=n, model=model: latency(n, model, given, folder))
            goal = f"goal {GOALS[model, n]:.0f}" if (model, n) in GOALS else ""
            print(
                f"{model}, pool {n:6}: key to next item painted p50 {row['p50']} ms, p95 "
                f"{row['p95']} ms "
                f"({row['n']} answers, training during {row['training_share']:.0%}) {goal}; "
                f"server p50 {row['server']['p50']}, p95 {row['server']['p95']}",
                flush=True,
            )
    largest = max(given.pools, default=1000)
    for before in given.given_before:
        row = keep(
            "server", lambda folder, before=before: measure_server(largest, before, given, folder)
        )
        print(f"server's own part: {row} (goal p95 30)", flush=True)
    for kernel in (False, True):
        print(
            f"load: {keep('load', lambda folder, kernel=kernel: load(kernel, given, folder))}",
            flush=True,
        )


if __name__ == "__main__":
    main()
