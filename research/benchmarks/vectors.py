"""Memory and time for a file of a million vectors of one's own, read in place.

    make bench-vectors [ARGS="--items 1000000 --only embed,query,predict,learner"]

The file has 768 float16 numbers an item (1.5 GB for a million), drawn around 20 class centres. `pool
embed`, `pool query` (300 labels) and `pool predict` run as commands with one local process;
`learner` is `Learner(exact(vectors))` on the first 200,000 rows of the same file, mapped into
memory, with ten labels and one query. Peak memory is the largest VmHWM of a single process, sampled ten times
a second; it counts pages of the file that are mapped. Processor time is that of all processes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from timing import measure_processor_seconds

WIDTH, CLASSES, BLOCK_ITEMS = 768, 20, 50_000
LABELS, LEARNER_ITEMS = 300, 200_000
RESULTS = Path(__file__).parent / "results" / "vectors.json"
LEARNER = """
import sys, numpy as np, labelahead as la
x = np.load(sys.argv[1], mmap_mode="r")[: int(sys.argv[2])]
labels = np.load(sys.argv[3])
learner = la.Learner(la.exact(x, 20), x, "resolve", seed=0)
learner.teach(range(10), labels[:10].tolist())
print(learner.query(1))
"""


def write_vectors(path, count):
    """Write vectors and return their classes (n,)."""
    rng = np.random.default_rng(0)
    values = np.lib.format.open_memmap(path, "w+", np.float16, (count, WIDTH))
    centres = rng.standard_normal((CLASSES, WIDTH), dtype=np.float32) / 2
    labels = rng.integers(0, CLASSES, count)
    for at in range(0, count, BLOCK_ITEMS):
        some = labels[at : at + BLOCK_ITEMS]
        noise = rng.standard_normal((len(some), WIDTH), dtype=np.float32)
        values[at : at + BLOCK_ITEMS] = centres[some] + noise
    values.flush()
    return labels


def read_peak_megabytes(session):
    """Return the largest peak memory of the processes of a session, in MB."""
    peak = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            lines = (folder / "status").read_text().splitlines()
        except OSError:  # the process ended meanwhile
            continue
        if int(stat[3]) == session:
            found = [float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")]
            peak = max([peak, *found])
    return peak


def measure(name, command):
    """Run a command; print and return seconds and peak memory."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], start_new_session=True, stdout=subprocess.DEVNULL
    )
    peak = busy = 0.0
    while process.poll() is None:
        peak = max(peak, read_peak_megabytes(process.pid))
        busy = max(busy, measure_processor_seconds(process.pid))
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{name} failed with exit code {process.returncode}")
    wall = time.perf_counter() - start
    print(
        f"{name:8s} {wall:7.1f} s, {busy:7.1f} s of processor time, peak {peak:6.0f} MB", flush=True
    )
    return {"wall": wall, "processor": busy, "peak_mb": peak}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--only", default="embed,query,predict,learner")
    parser.add_argument("--folder", type=Path, help="for the file, 1.5 GB (default: temporary)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        root = Path(place)
        labels = write_vectors(root / "vectors.npy", given.items)
        np.save(root / "labels.npy", labels)
        rows = np.random.default_rng(1).choice(given.items, LABELS, replace=False)
        lines = [f"vectors.npy:{row},c{labels[row]}" for row in rows]
        (root / "labels.csv").write_text("\n".join(["id,label", *lines]) + "\n")
        pool = ["-m", "labelahead", "pool"]
        store, known = str(root / "store"), ["--labels", str(root / "labels.csv")]
        commands = {
            "embed": [*pool, "embed", str(root / "vectors.npy"), "--store", store],
            "query": [*pool, "query", store, *known, "--n", "20"],
            "predict": [*pool, "predict", store, *known, "--out", str(root / "predictions")],
            "learner": [
                *("-c", LEARNER, str(root / "vectors.npy")),
                *(str(min(LEARNER_ITEMS, given.items)), str(root / "labels.npy")),
            ],
        }
        print(
            f"{given.items:,} x {WIDTH} float16, {os.environ.get('OMP_NUM_THREADS', 'all')} threads"
        )
        for name in given.only.split(","):
            one = [] if name == "learner" else ["--workers", "1"]
            results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
            results[name] = {"items": given.items, **measure(name, [*commands[name], *one])}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
