"""A million items on a real Dask cluster on loopback: time, memory, how it grows, and what sampling costs.

    make bench-scale [ARGS="--quick"]

Features: sentence embeddings (384) of 3,600 Reuters texts, each repeated with Gaussian noise of 0.4 of its length: real
directions and classes, but made up in number. A scheduler and workers are processes of their own, one thread each, with
Dask's own settings (nanny). Every time is the best of three, since the machine is shared; processor seconds of the
workers stand beside it. Rivals are given the same pool in one process, as they are made (benchmarks/scale_rivals.py).
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from distributed import Client

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from labelahead.scale import LargePool, LocalProcesses, embed  # noqa: E402
from results.texts import make  # noqa: E402
from tests.support.clusters import Cluster  # noqa: E402

ROWS = 31_250  # of a file
LABELS, EVALUATION, NOISE = 300, 1000, 0.4
RIVALS = (("modAL", "margin"), ("modAL", "expected error"), ("skactiveml", "margin"), ("skactiveml", "coverage"))
SAMPLES = ((1000, 0), (1000, 1000), (2000, 0), (2000, 1000), (4000, 0), (4000, 500))  # evaluation, finalists
LIMIT = 300  # seconds that a rival is given


def base() -> tuple[np.ndarray, np.ndarray]:
    arrays = np.load(make("r52", Path("runs/texts"), npz=True))
    x = np.concatenate([arrays["x_train"], arrays["x_test"]])
    return x, np.concatenate([arrays["y_train"], arrays["y_test"]])


def files(folder: Path, n: int) -> np.ndarray:
    """The pool in files of ROWS; the class of every item."""
    x, y = base()
    folder.mkdir(parents=True, exist_ok=True)
    of = np.random.default_rng(0).integers(len(x), size=n)
    for i in range(0, n, ROWS):
        path = folder / f"{i // ROWS:04d}.npy"
        if not path.exists():
            rng = np.random.default_rng(1 + i)
            some = x[of[i : i + ROWS]]
            noise = rng.standard_normal(some.shape, dtype=np.float32) * (NOISE / math.sqrt(x.shape[1]))
            np.save(path, (some + noise).astype(np.float16))
    return y[of]


def stores(root: Path, n: int, sizes: list[int]) -> tuple[dict[int, Path], dict[str, str], float]:
    """A store of the first so many items for every size; the labels of some of the first; seconds to read them all."""
    classes = files(root / "pool", n)
    made, seconds = {}, 0.0
    local = LocalProcesses(2)
    for size in sizes:
        part = root / f"pool-{size}"
        part.mkdir(exist_ok=True)
        for i in range(0, size, ROWS):
            link = part / f"{i // ROWS:04d}.npy"
            if not link.exists() and i + ROWS <= size:
                os.link(root / "pool" / link.name, link)
            elif not link.exists():
                np.save(link, np.load(root / "pool" / link.name, mmap_mode="r")[: size - i])
        began = time.perf_counter()
        embed(part, root / f"store-{size}", executor=local)
        seconds = time.perf_counter() - began
        made[size] = root / f"store-{size}"
    local.close()
    at = np.random.default_rng(2).permutation(min(sizes))[:LABELS]
    return made, {f"{i // ROWS:04d}.npy:{i % ROWS}": str(classes[i]) for i in at.tolist()}, seconds


def processes(cluster: Cluster) -> list[psutil.Process]:
    """The workers themselves, below their nannies."""
    found = [p for w in cluster.workers for p in psutil.Process(w.pid).children(recursive=True)]
    return [p for p in found if "spawn_main" in " ".join(p.cmdline()) or "worker" in " ".join(p.cmdline())]


def busy(of: list[psutil.Process]) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in of)


def peak(of: list[psutil.Process]) -> float:
    def high(pid: int) -> float:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

    return max(high(p.pid) for p in of)


def scored(root: Path, workers: int, made: dict[int, Path], labels: dict, repeats: int, strategy: str) -> list[dict]:
    """Every size scored by so many workers."""
    rows = []
    with Cluster(root, workers=workers, nanny=True) as cluster, Client(cluster.address) as client:
        client.wait_for_workers(workers)
        team = processes(cluster)
        assert len(team) >= workers, team
        for size, store in made.items():
            walls, cpus = [], []
            for _ in range(repeats):
                pool, before, began = LargePool(store, executor=client), busy(team), time.perf_counter()
                held = pool.hold(labels, strategy=strategy, evaluation=EVALUATION)
                walls.append(time.perf_counter() - began)
                cpus.append(busy(team) - before)
            row = {"workers": workers, "items": size, "strategy": strategy, "seconds": min(walls), "every": walls}
            row |= {"worker_cpu_seconds": min(cpus), "worker_peak_mb": peak(team)}
            row["mixture"] = list(held.model.weights())
            rows.append(row)
            print(
                f"{strategy} {size:9,} items, {workers} workers: {min(walls):6.1f} s, {min(cpus):6.1f} s of their "
                f"processors, peak {row['worker_peak_mb']:.0f} MB",
                flush=True,
            )
    return rows


def absorbing(store: Path, labels: dict, executor: object) -> dict:
    """A label more among the candidates held: told, scored, the best one found."""
    belief = LargePool(store, executor=executor).hold(labels, evaluation=EVALUATION).belief()
    belief.best("resolve")
    known, took = dict(belief.labels), []
    for _ in range(15):
        position = belief.best("resolve")[0]
        began = time.perf_counter()
        known[position] = 0
        belief = belief.told(known)
        belief.best("resolve")
        took.append(1e3 * (time.perf_counter() - began))
    print(f"a label absorbed, {len(belief.points):,} items held: {statistics.median(took):.0f} ms", flush=True)
    return {"held": len(belief.points), "median_ms": statistics.median(took), "least_ms": min(took)}


def sampling(store: Path, labels: dict, executor: object, strategies: list[str], many: tuple) -> list[dict]:
    """How many of the best 100 are those of an evaluation by all items."""
    rows = []
    pool = LargePool(store, executor=executor)
    for strategy in strategies:
        every = pool.hold(labels, strategy=strategy, evaluation=len(pool), candidates=100).best.positions.tolist()
        for evaluation, finalists in many:
            how = {"evaluation": evaluation, "candidates": max(100, finalists), "finalists": finalists}
            some = pool.hold(labels, strategy=strategy, **how).best.positions[:100].tolist()
            overlap = len(set(every) & set(some)) / 100
            rows.append({"strategy": strategy, "items": len(pool), "overlap": overlap, **how})
            by = f"{evaluation:,} of {len(pool):,} evaluated, {finalists:,} finalists"
            print(f"{strategy}, {by}: {overlap:.2f} of the best 100", flush=True)
    return rows


def rivals(root: Path, python: Path, sizes: list[int], labels: dict) -> list[dict]:
    """Other libraries on the same pool, each in a process of its own, as far as they go."""
    (root / "labels.json").write_text(json.dumps(labels))
    rows = []
    for library, way in RIVALS:
        for size in sizes:
            command = [str(python), str(HERE / "scale_rivals.py"), library, way, str(root / f"pool-{size}"), str(root)]
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=dict(os.environ))
                said = run.stdout.strip().splitlines()
                row = json.loads(said[-1]) if run.returncode == 0 else {"stopped": run.stderr.strip()[-200:]}
            except subprocess.TimeoutExpired:
                row = {"stopped": f"not done after {LIMIT} s"}
            rows.append({"library": library, "way": way, "items": size, **row})
            print(rows[-1], flush=True)
            if "stopped" in row:
                break
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth, to see that it runs; nothing is written")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=["scores", "label", "sampling", "rivals"])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scale.json")
    parser.add_argument("--peers", type=Path, default=Path(".venv-peers/bin/python"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    root = Path("runs/scale")
    n = 125_000 if given.quick else 1_000_000
    sizes = [31_250, n] if given.quick else [125_000, 250_000, 500_000, n]
    small = 31_250 if given.quick else 50_000
    made, labels, reading = stores(root, n, [small, *sizes])
    report = json.loads(given.out.read_text()) if given.out.exists() else {}
    report["about"] = {"load": os.getloadavg()[0], "cores": os.cpu_count(), "torch": torch.__version__}
    report["reading_seconds"] = reading
    main_sizes = {size: made[size] for size in sizes}
    if "scores" in given.only:
        both = scored(root, 2, main_sizes, labels, given.repeats, "resolve")
        one = scored(root, 1, {n: made[n]}, labels, given.repeats, "resolve")
        for strategy in ("variance", "flip", "mlmoc"):
            both += scored(root, 2, {n: made[n]}, labels, 1, strategy)
        resolve = {row["items"]: row for row in both if row["strategy"] == "resolve"}
        first, last = resolve[sizes[0]], resolve[n]

        def exponent(what: str) -> float:
            return math.log(last[what] / first[what]) / math.log(n / sizes[0])

        report["scores"] = [*both, *one]
        report["exponent"] = {what: exponent(what) for what in ("seconds", "worker_cpu_seconds")}
        report["two_against_one"] = one[0]["seconds"] / last["seconds"]
        print(f"exponents {report['exponent']}; two workers {report['two_against_one']:.2f} times one", flush=True)
    local = LocalProcesses(2)
    if "label" in given.only:
        report["label"] = absorbing(made[small], labels, local)
    if "sampling" in given.only:
        many = ((500, 0), (500, 500)) if given.quick else SAMPLES
        report["sampling"] = sampling(made[small], labels, local, ["resolve", "variance", "flip", "mlmoc"], many)
    local.close()
    if "rivals" in given.only and given.peers.exists():
        report["rivals"] = rivals(root, given.peers, [small, *sizes], labels)
    if not given.quick:
        given.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
