"""Kills a campaign at random moments and resumes it; prints one JSON line. Run by test_kill.py.

A process of its own that forks: torch is imported once, and no thread has run before a fork.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import BinaryIO

import torch

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parents[2]))

from labelahead.learner.config import Budget, Campaign, Network  # noqa: E402
from labelahead.simulation.run import resume, run  # noqa: E402
from labelahead.strategies.base import QueryConfig  # noqa: E402
from tests.support.campaigns import data  # noqa: E402

LABELS, ROUNDS = 26, 6


def campaign(mode: str, start: str) -> Campaign:
    return Campaign(
        model=Network("mlp", 16),
        training={"steps": 30, "start": start},
        asking=QueryConfig("flip", mode),
        budget=Budget(initial=6, labels=LABELS, retrain_every=4),
        threads=1,
    )


def labels(folder: Path) -> int:
    path = folder / "labels.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def child(go) -> tuple[int, BinaryIO]:
    """Fork and run; a file with a byte for every label that has been accepted."""
    reader, pipe = os.pipe()
    pid = os.fork()
    if pid:
        os.close(pipe)
        return pid, os.fdopen(reader, "rb")
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
        first, accepted = True, 0
        while True:
            begun = (folder / "config.toml").exists()

            def go(tell, begun=begun, folder=folder, mode=mode, start=start):
                if begun:
                    resume(folder, data=data(), progress=tell)
                else:
                    run(campaign(mode, start), data=data(), out=folder, progress=tell)

            pid, told = child(go)
            if first or rng.random() < 0.5:
                # So many labels and a part of a round later: how fast the machine is just now does
                # not matter.
                accepted_now = len(told.read(rng.randint(0, LABELS - labels(folder))))
                time.sleep(rng.random() * min(took / ROUNDS, 0.2))
                os.kill(pid, signal.SIGKILL)
                killed += os.waitpid(pid, 0)[1] == signal.SIGKILL
                accepted_now += len(told.read())
                accepted = accepted_now if first else accepted
                lost += max(0, accepted - labels(folder))
                first = False
                continue
            told.read()
            if os.waitpid(pid, 0)[1] != 0:
                print(json.dumps({"failed": trial}))
                return
            break
        different += content(folder) != content(wanted)
        shutil.rmtree(folder)
    print(json.dumps({"killed": killed, "lost": lost, "different": different}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
