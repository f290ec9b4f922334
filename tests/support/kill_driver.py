"""Kill a campaign at random moments and resume it; print one JSON line.

Run by tests/system/test_campaign_kill.py in a separate process that forks: torch is imported once,
and no thread has run before a fork.
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
from labelahead.simulation.run import RunCallbacks, resume, run  # noqa: E402
from labelahead.strategies.base import QueryConfig  # noqa: E402
from tests.support.campaigns import data  # noqa: E402

LABELS, ROUNDS = 26, 6


def make_campaign(mode: str, start: str) -> Campaign:
    return Campaign(
        model=Network("mlp", 16),
        training={"steps": 30, "start": start},
        asking=QueryConfig("flip", mode),
        budget=Budget(initial=6, labels=LABELS, retrain_every=4),
        threads=1,
    )


def count_labels(folder: Path) -> int:
    path = folder / "labels.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def fork_campaign(work) -> tuple[int, BinaryIO]:
    """Fork a child that runs `work`; return its pid and a pipe with one byte per accepted label."""
    reader, pipe = os.pipe()
    pid = os.fork()
    if pid:
        os.close(pipe)
        return pid, os.fdopen(reader, "rb")
    status = 1
    try:

        def on_progress(what: str, done: int, total: int) -> None:
            if what in ("asking", "first labels") and done:
                os.write(pipe, b".")

        work(on_progress)
        status = 0
    finally:
        os._exit(status)


def read_result(folder: Path) -> list[object]:
    """Return labels without times, rounds without seconds, and the last weights."""
    ignored_keys = {"time", "seconds"}
    rows = [
        {k: v for k, v in json.loads(line).items() if k not in ignored_keys}
        for name in ("labels.jsonl", "rounds.jsonl")
        for line in (folder / name).read_text().splitlines()
    ]
    weights_path = sorted((folder / "weights").glob("round-*.pt"))[-1]
    state = torch.load(weights_path, weights_only=True)
    return [*rows, weights_path.name, {k: v.tolist() for k, v in state.items()}]


def main(scratch: Path, trials: int, seed: int) -> None:
    rng = random.Random(seed)
    killed = lost = different = 0
    for trial in range(trials):
        mode, start = rng.choice(["sequential", "greedy"]), rng.choice(["cold", "warm"])
        reference = scratch / f"whole-{mode}-{start}"
        if not reference.exists():
            start_time = time.perf_counter()
            run(make_campaign(mode, start), data=data(), out=reference)
            (reference / "took").write_text(str(time.perf_counter() - start_time))
        seconds = float((reference / "took").read_text())
        folder = scratch / f"trial-{trial}"
        first, accepted = True, 0
        while True:
            exists = (folder / "config.toml").exists()

            def work(on_progress, exists=exists, folder=folder, mode=mode, start=start):
                callbacks = RunCallbacks(on_progress)
                if exists:
                    resume(folder, data=data(), callbacks=callbacks)
                else:
                    run(make_campaign(mode, start), data=data(), out=folder, callbacks=callbacks)

            pid, accepted_labels = fork_campaign(work)
            if first or rng.random() < 0.5:
                # Kill after a number of labels and a part of a round, independent of the speed.
                accepted_now = len(
                    accepted_labels.read(rng.randint(0, LABELS - count_labels(folder)))
                )
                time.sleep(rng.random() * min(seconds / ROUNDS, 0.2))
                os.kill(pid, signal.SIGKILL)
                killed += os.waitpid(pid, 0)[1] == signal.SIGKILL
                accepted_now += len(accepted_labels.read())
                accepted = accepted_now if first else accepted
                lost += max(0, accepted - count_labels(folder))
                first = False
                continue
            accepted_labels.read()
            if os.waitpid(pid, 0)[1] != 0:
                print(json.dumps({"failed": trial}))
                return
            break
        different += read_result(folder) != read_result(reference)
        shutil.rmtree(folder)
    print(json.dumps({"killed": killed, "lost": lost, "different": different}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
