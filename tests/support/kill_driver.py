"""Kills a campaign at random moments and resumes it; prints one JSON line. Run by test_kill.py.

A process of its own that forks: torch is imported once, and no thread has run before a fork.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parents[2]))

from labelahead.campaign.config import Budget, Campaign, Network  # noqa: E402
from labelahead.campaign.run import resume, run  # noqa: E402
from labelahead.strategies.asking import Asking  # noqa: E402
from tests.support.campaigns import data  # noqa: E402


def campaign(mode: str, start: str) -> Campaign:
    return Campaign(
        model=Network("mlp", 16),
        training={"steps": 30, "start": start},
        asking=Asking("flip", mode),
        budget=Budget(initial=6, labels=26, retrain_every=4),
        threads=1,
    )


def child(go, pipe: int) -> int:
    """Fork, run, and write a byte for every label that has been accepted."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:

        def tell(what: str, done: int, total: int) -> None:
            if what in ("asking", "first labels") and done:
                os.write(pipe, b".")

        go(tell)
        status = 0
    finally:
        os._exit(status)


def content(folder: Path) -> list[object]:
    """All that must be equal: labels without times, rounds without seconds, the last weights."""
    drop = {"time", "seconds"}
    rows = [
        {k: v for k, v in json.loads(line).items() if k not in drop}
        for name in ("labels.jsonl", "rounds.jsonl")
        for line in (folder / name).read_text().splitlines()
    ]
    last = sorted((folder / "weights").glob("round-*.pt"))[-1]
    state = torch.load(last, weights_only=True)
    return [*rows, last.name, {k: v.tolist() for k, v in state.items()}]


def main(scratch: Path, trials: int, seed: int) -> None:
    rng = random.Random(seed)
    killed = lost = different = 0
    for trial in range(trials):
        mode, start = rng.choice(["sequential", "greedy"]), rng.choice(["cold", "warm"])
        wanted = scratch / f"whole-{mode}-{start}"
        if not wanted.exists():
            begin = time.perf_counter()
            run(campaign(mode, start), data=data(), out=wanted)
            (wanted / "took").write_text(str(time.perf_counter() - begin))
        took = float((wanted / "took").read_text())
        folder = scratch / f"trial-{trial}"
        reader, writer = os.pipe()
        first, accepted = True, 0
        while True:
            begun = (folder / "config.toml").exists()

            def go(tell, begun=begun, folder=folder, mode=mode, start=start):
                if begun:
                    resume(folder, data=data(), progress=tell)
                else:
                    run(campaign(mode, start), data=data(), out=folder, progress=tell)

            pid = child(go, writer)
            if first or rng.random() < 0.5:
                time.sleep(rng.random() * took)
                os.kill(pid, signal.SIGKILL)
                killed += os.waitpid(pid, 0)[1] == signal.SIGKILL
                os.set_blocking(reader, False)
                with contextlib.suppress(BlockingIOError):
                    told = len(os.read(reader, 1 << 16))
                    accepted = told if first else accepted
                path = folder / "labels.jsonl"
                there = path.read_bytes().count(b"\n") if path.exists() else 0
                lost += max(0, accepted - there)
                first = False
                continue
            if os.waitpid(pid, 0)[1] != 0:
                print(json.dumps({"failed": trial}))
                return
            break
        different += content(folder) != content(wanted)
        shutil.rmtree(folder)
    print(json.dumps({"killed": killed, "lost": lost, "different": different}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
