"""A million items on a real Dask cluster on loopback: time, memory, how it grows, and what sampling
costs.

    make bench-scale [ARGS="--quick"]

Features: sentence embeddings (384) of 3,600 Reuters texts, each repeated with Gaussian noise of 0.4
of its length: real directions and classes, but made up in number. A scheduler and workers are
processes of their own, one thread each, with Dask's own settings (nanny), and have scored something
before the clock starts: imports are not in it. Every time is the best of the repeats, since the
machine is shared; all of them and processor seconds of the workers stand beside it. What sampling
costs is read off `labelahead pool oracle` itself. Rivals are given the same pool in one process, as
they are made (research/benchmarks/scale_competitors.py).
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
sys.path.append(str(HERE.parents[1]))

from labelahead.outofcore import LargePool, LocalProcesses, embed  # noqa: E402
from labelahead.outofcore.execution import connect_executor  # noqa: E402
from research.results.texts import make  # noqa: E402
from tests.support.clusters import Cluster  # noqa: E402

ROWS = 31_250  # of a file
LABELS, EVALUATION, NOISE = 300, 1000, 0.4
COMPETITORS = (
    ("modAL", "margin"),
    ("modAL", "expected error"),
    ("skactiveml", "margin"),
    ("skactiveml", "coverage"),
)
FEW = {
    "expected error": (100, 1000),
    "coverage": (5000, 10_000, 20_000),
}  # items that slow ways are given before all
BEST = 100
WAYS = {  # of asking for the best, as options of the command
    "top, as it comes": ["--mode", "top"],
    "top by the sample alone": ["--mode", "top", "--evaluation", "1000", "--finalists", "0"],
    "top by a larger sample": ["--mode", "top", "--evaluation", "2000", "--finalists", "0"],
    "top, fewer finalists": ["--mode", "top", "--evaluation", "2000", "--finalists", "500"],
    "greedy, as it comes": ["--mode", "greedy"],
}
LIMIT = 60  # seconds that a rival is given


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
            noise = rng.standard_normal(some.shape, dtype=np.float32) * (
                NOISE / math.sqrt(x.shape[1])
            )
            np.save(path, (some + noise).astype(np.float16))
    return y[of]


def stores(
    root: Path, n: int, sizes: list[int]
) -> tuple[dict[int, Path], dict[str, str], float, np.ndarray]:
    """A store of the first so many items for every size.

    Labels of some of the first; seconds to read; all classes.
    """
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
    return (
        made,
        {f"{i // ROWS:04d}.npy:{i % ROWS}": str(classes[i]) for i in at.tolist()},
        seconds,
        classes,
    )


def processes(cluster: Cluster) -> list[psutil.Process]:
    """The workers themselves, below their nannies."""
    found = [p for w in cluster.workers for p in psutil.Process(w.pid).children(recursive=True)]
    return [
        p
        for p in found
        if "spawn_main" in " ".join(p.cmdline()) or "worker" in " ".join(p.cmdline())
    ]


def busy(of: list[psutil.Process]) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in of)


def peak(of: list[psutil.Process]) -> float:
    def high(pid: int) -> float:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

    return max(high(p.pid) for p in of)


def score_stores(
    root: Path, workers: int, made: dict[int, Path], labels: dict, repeats: int, strategy: str
) -> list[dict]:
    """Every size scored by so many workers."""
    rows = []
    with Cluster(root, workers=workers, nanny=True) as cluster, Client(cluster.address) as client:
        client.wait_for_workers(workers)
        team = processes(cluster)
        assert len(team) >= workers, team
        # Of the scheduler, the workers' nannies and this process: what two workers on two cores
        # have to share.
        rest = [psutil.Process(p.pid) for p in (cluster.scheduler, *cluster.workers)] + [
            psutil.Process()
        ]
        first = next(iter(made.values()))
        LargePool(first, executor=client).select_subset(
            labels, strategy=strategy, evaluation=10, candidates=10
        )
        for size, store in made.items():
            walls, cpus, beside = [], [], []
            for _ in range(repeats):
                pool, before, others = LargePool(store, executor=client), busy(team), busy(rest)
                began = time.perf_counter()
                held = pool.select_subset(labels, strategy=strategy, evaluation=EVALUATION)
                walls.append(time.perf_counter() - began)
                cpus.append(busy(team) - before)
                beside.append(busy(rest) - others)
            row = {
                "workers": workers,
                "items": size,
                "strategy": strategy,
                "seconds": min(walls),
                "every": walls,
            }
            row |= {
                "worker_cpu_seconds": min(cpus),
                "other_cpu_seconds": min(beside),
                "worker_peak_mb": peak(team),
            }
            row["mixture"] = list(held.model.get_mixture())
            rows.append(row)
            print(
                f"{strategy} {size:9,} items, {workers} workers: {min(walls):6.1f} s, "
                f"{min(cpus):6.1f} s of their "
                f"processors and {min(beside):.1f} s of all others', peak "
                f"{row['worker_peak_mb']:.0f} MB",
                flush=True,
            )
    return rows


def by_turns(root: Path, store: Path, size: int, labels: dict, repeats: int) -> dict:
    """Two workers and one by turns, so that what else the machine does meets both.

    Also who else takes processors.
    """
    rows: list[dict] = []
    for _ in range(repeats):
        for workers in (2, 1):
            rows += score_stores(root, workers, {size: store}, labels, 1, "resolve")
    best = {w: min(row["seconds"] for row in rows if row["workers"] == w) for w in (1, 2)}
    print(f"two workers {best[1] / best[2]:.2f} times one; loads {os.getloadavg()}", flush=True)
    return {"rows": rows, "ratio": best[1] / best[2], "load": os.getloadavg()}


def absorbing(store: Path, labels: dict, executor: object) -> dict:
    """A label more among the candidates held: told, scored, the best one found."""
    pool_posterior = (
        LargePool(store, executor=executor)
        .select_subset(labels, evaluation=EVALUATION)
        .build_posterior()
    )
    pool_posterior.best("resolve")
    known, took = dict(pool_posterior.labels), []
    for _ in range(15):
        position = pool_posterior.best("resolve")[0]
        began = time.perf_counter()
        known[position] = 0
        pool_posterior = pool_posterior.with_labels(known)
        pool_posterior.best("resolve")
        took.append(1e3 * (time.perf_counter() - began))
    print(
        f"a label absorbed, {len(pool_posterior.points):,} items held: {statistics.median(took):.0f} ms",
        flush=True,
    )
    return {
        "held": len(pool_posterior.points),
        "median_ms": statistics.median(took),
        "least_ms": min(took),
    }


def sampling(
    root: Path, store: Path, labels: dict, classes: np.ndarray, executor: object
) -> list[dict]:
    """How many of the best 100 by the command are those of all items against all, and what labels
    of them bring.
    """
    pool = LargePool(store, executor=executor)
    began = time.perf_counter()
    best = pool.select_subset(labels, evaluation=len(pool), candidates=BEST).best
    took = time.perf_counter() - began
    label_file = root / "labels.csv"
    label_file.write_text(
        "item,label\n" + "".join(f"{name},{label}\n" for name, label in labels.items())
    )
    every = set(best.positions.tolist())
    rows = [
        {
            "way": "all against all",
            "seconds": took,
            "accuracy": _right(pool, labels, sorted(every), classes),
        }
    ]
    for way, options in WAYS.items():
        command = [
            sys.executable,
            "-m",
            "labelahead",
            "pool",
            "query",
            str(store),
            "--labels",
            str(label_file),
            *options,
        ]
        began = time.perf_counter()
        run = subprocess.run(
            [*command, "--n", str(BEST), "--format", "json"], capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        took, asked = (
            time.perf_counter() - began,
            [row["position"] for row in json.loads(run.stdout)],
        )
        rows.append(
            {
                "way": way,
                "options": options,
                "seconds": took,
                "overlap": len(every & set(asked)) / BEST,
            }
        )
        rows[-1]["accuracy"] = _right(pool, labels, asked, classes)
    spread = pool.sample_positions(
        BEST, pool.resolve_labels(labels, (), executor).positions, 7
    ).tolist()
    rows.append({"way": "random", "accuracy": _right(pool, labels, spread, classes)})
    rows.append({"way": "none", "accuracy": _right(pool, labels, [], classes)})
    for row in rows:
        print({key: value for key, value in row.items() if key != "options"}, flush=True)
    return rows


def _right(pool: LargePool, labels: dict, more: list[int], classes: np.ndarray) -> float:
    """Share of 10,000 random items that are predicted right once these have labels too."""
    known = labels | {f"{p // ROWS:04d}.npy:{p % ROWS}": str(classes[p]) for p in more}
    with connect_executor(pool._executor) as engine:
        labelled = pool.resolve_labels(known, (), engine)
        at = pool.sample_positions(10_000, labelled.positions, 11)
        rows, _ = pool.read_items(torch.cat([labelled.positions, at]), engine)
    guess = pool.fit(labelled, rows)(rows[len(labelled.positions) :]).argmax(1)
    names = np.array(labelled.classes)
    return float((names[guess.numpy()] == classes[at.numpy()].astype(str)).mean())


def rivals(root: Path, python: Path, sizes: list[int], labels: dict) -> list[dict]:
    """Other libraries on the same pool, each in a process of its own, as far as they go."""
    (root / "labels.json").write_text(json.dumps(labels))
    rows = []
    for library, way in COMPETITORS:
        for size in (*FEW.get(way, ()), *sizes):
            some = [] if size in sizes else [str(size)]
            pool = root / f"pool-{max(size, min(sizes))}"
            command = [
                str(python),
                str(HERE / "scale_competitors.py"),
                library,
                way,
                str(pool),
                str(root),
                *some,
            ]
            try:
                run = subprocess.run(
                    command, capture_output=True, text=True, timeout=LIMIT, env=dict(os.environ)
                )
                said = run.stdout.strip().splitlines()
                row = (
                    json.loads(said[-1])
                    if run.returncode == 0
                    else {"stopped": run.stderr.strip()[-200:]}
                )
            except subprocess.TimeoutExpired:
                row = {"stopped": f"not done after {LIMIT} s"}
            rows.append({"library": library, "way": way, "items": size, **row})
            print(rows[-1], flush=True)
            if "stopped" in row:
                break
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth, to see that it runs; nothing is written"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", nargs="*", default=["scores", "label", "sampling", "rivals"], help="also: turns"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scale.json")
    parser.add_argument("--peers", type=Path, default=Path(".venv-competitors/bin/python"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    root = Path("runs/scale")
    n = 125_000 if given.quick else 1_000_000
    sizes = [31_250, n] if given.quick else [125_000, 250_000, 500_000, n]
    small = 31_250 if given.quick else 50_000
    made, labels, reading, classes = stores(root, n, [small, *sizes])
    whole = set(given.only) >= {"scores", "label", "sampling", "rivals"}
    report: dict = json.loads(given.out.read_text()) if given.out.exists() and not whole else {}
    about = {
        "load": os.getloadavg(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "rivals_limit": LIMIT,
    }
    about |= {"repeats": given.repeats, "began": time.strftime("%Y-%m-%d %H:%M")}
    report["about" if whole else f"about {' '.join(given.only)}"] = (
        about  # parts that were read at another time stay
    )
    report["reading_seconds"] = reading
    main_sizes = {size: made[size] for size in sizes}

    def save() -> None:
        about["load_at_the_end"] = os.getloadavg()
        if not given.quick:
            given.out.write_text(json.dumps(report, indent=1) + "\n")

    if "scores" in given.only:
        both = score_stores(root, 2, main_sizes, labels, given.repeats, "resolve")
        one = score_stores(root, 1, {n: made[n]}, labels, given.repeats, "resolve")
        for strategy in ("variance", "flip", "mlmoc"):
            both += score_stores(root, 2, {n: made[n]}, labels, 1, strategy)
        resolve = {row["items"]: row for row in both if row["strategy"] == "resolve"}
        first, last = resolve[sizes[0]], resolve[n]

        def exponent(what: str) -> float:
            return math.log(last[what] / first[what]) / math.log(n / sizes[0])

        report["scores"] = [*both, *one]
        report["exponent"] = {what: exponent(what) for what in ("seconds", "worker_cpu_seconds")}
        report["two_against_one"] = one[0]["seconds"] / last["seconds"]
        print(
            f"exponents {report['exponent']}; two workers {report['two_against_one']:.2f} times "
            "one",
            flush=True,
        )
        save()
    if "turns" in given.only:
        report["two_by_turns"] = by_turns(root, made[n], n, labels, given.repeats)
        save()
    local = LocalProcesses(2)
    if "label" in given.only:
        report["label"] = absorbing(made[small], labels, local)
    if "sampling" in given.only:
        report["sampling"] = sampling(root, made[small], labels, classes, local)
    local.close()
    save()
    if "rivals" in given.only and given.peers.exists():
        report["rivals"] = rivals(root, given.peers, [small, *sizes], labels)
    save()


if __name__ == "__main__":
    main()
