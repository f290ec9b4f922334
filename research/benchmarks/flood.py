"""How long the labelling page takes to answer while silent connections flood it, beside plain
uvicorn.

Both servers serve the same page on loopback, one after the other in the same run: the command
`labelahead label`, and uvicorn with its own protocol and no limits. A process opens connections at
a fixed rate and sends nothing; meanwhile one client at a time opens a connection, asks for
/api/health and measures how long the answer takes. A request that is not answered in `TIMEOUT`
seconds counts as that long. Connections and seconds are bounded. How many connections the server
holds is read from /proc (Linux).
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from contenders import HERE

RESULTS = HERE / "results" / "flood.json"
TIMEOUT = 10.0  # seconds
MAX_CONNECTIONS = 15_000
PAUSE = 0.02  # seconds between two requests
CLASSES = ["a", "b"]


def serve_plain(data: Path, out: Path) -> None:
    """The page by uvicorn alone, until this process is ended."""
    import uvicorn

    from labelahead.learner.config import parse_campaign
    from labelahead.server.app import create_app
    from labelahead.server.session import SessionOptions, open_session

    with open_session(
        parse_campaign({"data": {"name": str(data)}, "threads": 1}), out, SessionOptions(CLASSES)
    ) as session:
        session.schedule.start()
        listening = socket.create_server(("127.0.0.1", 0))
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
        config = uvicorn.Config(
            create_app(session.service, session.schedule), log_level="error", lifespan="off"
        )
        uvicorn.Server(config).run(sockets=[listening])


def flood(port: int, rate: float, seconds: float) -> None:
    """Open connections at this rate and keep them; print how many there were."""
    held, began = [], time.monotonic()
    while time.monotonic() - began < seconds and len(held) < MAX_CONNECTIONS:
        due = min(int((time.monotonic() - began) * rate), MAX_CONNECTIONS)
        for _ in range(due - len(held)):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            held.append(one)
        time.sleep(0.002)
    print(len(held), flush=True)


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[tuple[int, int]]:
    """The port and the process of a server, once it has printed its address."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        found = next(
            (m for line in process.stdout if (m := re.search(r"http://127\.0\.0\.1:(\d+)/", line))),
            None,
        )
        if found is None:
            raise SystemExit(f"{' '.join(command)} did not start")
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.wait(60)


def latency(port: int) -> float:
    """Seconds until one request on a new connection is answered."""
    began = time.perf_counter()
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        asking.request("GET", "/api/health")
        asking.getresponse().read()
    except OSError:
        return TIMEOUT
    finally:
        asking.close()
    return time.perf_counter() - began


def count_sockets(process: int) -> int:
    """Sockets that a process has open."""
    folder, count = f"/proc/{process}/fd", 0
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # closed meanwhile
            count += os.readlink(f"{folder}/{name}").startswith("socket:")
    return count


def latencies(port: int, process: int, seconds: float) -> dict[str, float]:
    """In milliseconds, for so long; and the most sockets that the server had meanwhile."""
    end, taken, sockets = time.monotonic() + seconds, list[float](), 0
    while time.monotonic() < end:
        taken.append(1000 * latency(port))
        sockets = max(sockets, count_sockets(process))
        time.sleep(PAUSE)
    ordered = sorted(taken)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    rounded = {"median": statistics.median(ordered), "p95": p95, "max": ordered[-1]}
    unanswered = sum(t >= 1000 * TIMEOUT for t in ordered)
    counts = {"requests": len(ordered), "unanswered": unanswered, "most_sockets": sockets}
    return {**{name: round(ms, 2) for name, ms in rounded.items()}, **counts}


def measure(command: list[str], rate: float, seconds: float) -> dict[str, object]:
    """One server without and with the flood."""
    with running(command) as (port, process):
        while time.sleep(0.2) or latency(port) >= TIMEOUT:
            pass
        wait_until_idle(port)
        quiet = latencies(port, process, seconds / 2)
        flooding = subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--flood",
                str(port),
                "--rate",
                str(rate),
                "--seconds",
                str(seconds),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        time.sleep(min(2.0, seconds / 4))  # the first connections
        flooded = latencies(port, process, seconds - min(2.0, seconds / 4))
        said, _ = flooding.communicate(timeout=60 + seconds)
        return {"quiet": quiet, "flooded": flooded, "silent_connections": int(said)}


def wait_until_idle(port: int) -> None:
    """Until the first training is done: it would compete for the processor."""
    while True:
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        asking.request("GET", "/api/progress")
        if json.load(asking.getresponse())["training"]["idle"]:
            return
        asking.close()
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1000, help="silent connections a second")
    parser.add_argument("--seconds", type=float, default=10, help="of the flood, at each server")
    parser.add_argument(
        "--flood",
        type=int,
        metavar="PORT",
        help="only open connections (used by the benchmark itself)",
    )
    parser.add_argument(
        "--plain", nargs=2, type=Path, metavar=("DATA", "OUT"), help="only serve, as above"
    )
    given = parser.parse_args()
    if given.flood:
        flood(given.flood, given.rate, given.seconds)
        return
    if given.plain:
        serve_plain(*given.plain)
        return
    with tempfile.TemporaryDirectory() as room:
        data = Path(room) / "items.npz"
        np.savez(data, x=np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32))
        label = [
            "-m",
            "labelahead",
            "label",
            str(data),
            "--classes",
            ",".join(CLASSES),
            "--out",
            f"{room}/labelahead",
        ]
        commands = {
            "uvicorn": [sys.executable, __file__, "--plain", str(data), f"{room}/uvicorn"],
            "labelahead": [sys.executable, *label, "--no-browser", "--port", "0", "--threads", "1"],
        }
        results = {
            name: measure(command, given.rate, given.seconds) for name, command in commands.items()
        }
    for name, result in results.items():
        print(f"{name:11} without flood {result['quiet']}")
        print(
            f"{'':11} flooded       {result['flooded']}, {result['silent_connections']} silent "
            "connections"
        )
    ours, theirs = (results[name]["flooded"]["median"] for name in ("labelahead", "uvicorn"))
    print(f"median latency in the flood, labelahead / plain uvicorn: {ours / theirs:.2f}")
    load = os.getloadavg()[0]
    RESULTS.write_text(
        json.dumps(
            {"rate": given.rate, "seconds": given.seconds, "load": round(load, 1), **results},
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
