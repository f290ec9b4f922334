"""Time and peak memory of the pseudo-NTK against its rivals: one table of ratios from one run.

    python research/benchmarks/kernel.py [--threads 1 2] [--sizes 200 1000] [--networks ...]
    [--rivals ...]

Results go to research/benchmarks/results/kernel.json after every case, so a run that was stopped
can be taken up again with --resume. Rivals: vmap, loop, nt (neural-tangents), nt-batch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch

import neural_tangents_competitor as rival
from contenders import HERE, Limits
from kernel_cases import Setup, agreement_in_double, progress, run_case
from kernel_table import render
from networks import INPUT_SEED, NETWORKS, WEIGHT_SEED

COMPETITORS = ("vmap", "loop", "nt", "nt-batch")
RESULTS = HERE / "results" / "kernel.json"
LARGE_MLP = 4000  # where only neural-tangents can follow


def arguments() -> argparse.Namespace:
    """The command line; --quick narrows whatever was not asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS))
    parser.add_argument("--rivals", nargs="*", choices=COMPETITORS)
    parser.add_argument("--quick", action="store_true", help="a taste, in under three minutes")
    parser.add_argument("--resume", action="store_true", help="skip the cases already measured")
    parser.add_argument("--ours-only", action="store_true", help="renew our numbers, keep rivals'")
    parser.add_argument(
        "--times-only",
        action="store_true",
        help="leave agreement in float64 to a run with --resume",
    )
    parser.add_argument("--memory-gb", type=float, help="what a contender may use in all")
    parser.add_argument("--seconds", type=float, default=2400, help="limit for one computation")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    quick = given.quick
    given.threads = given.threads or ([1] if quick else [1, 2])
    given.sizes = given.sizes or ([100] if quick else [200, 1000])
    given.networks = given.networks or (["mlp", "cnn"] if quick else list(NETWORKS))
    if given.rivals is None:
        given.rivals = ["vmap", "loop", "nt"] if quick else list(COMPETITORS)
    if quick and given.results == RESULTS:
        given.results = RESULTS.with_name("kernel-quick.json")
    given.memory_gb = given.memory_gb or 0.6 * _memory_gb()
    return given


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def description(given: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gb": round(_memory_gb(), 1),
            "system": platform.platform(),
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "labelahead": importlib.metadata.version("labelahead"),
            "neural-tangents environment": list(rival.PINS),
        },
        "seeds": {"weights": WEIGHT_SEED, "inputs": INPUT_SEED},
        "settings": {
            "dtype": "float32",
            "threads": given.threads,
            "sizes": given.sizes,
            "networks": given.networks,
            "rivals": given.rivals,
            "memory_limit_gb": round(given.memory_gb, 1),
        },
    }


def case_list(given: argparse.Namespace) -> list[tuple[str, int, int]]:
    """(network, n, threads) in the order of the table; the large MLP only in a full run."""
    cases = []
    for network in given.networks:
        sizes = list(given.sizes)
        if network == "mlp" and 1000 in sizes and "nt" in given.rivals:
            sizes.append(LARGE_MLP)
        cases += [(network, n, threads) for n in sizes for threads in given.threads]
    return cases


def setup_for(given: argparse.Namespace, folder: Path, n: int) -> Setup:
    """Limits and rivals of one case: at N=4000 the torch rivals' gradients alone are 11 GB."""
    memory_mb = given.memory_gb * 1024
    rivals = [] if given.ours_only else given.rivals
    if n >= LARGE_MLP:
        rivals = [name for name in rivals if name.startswith("nt")]
    names = rival.SERIOUS if given.quick else rival.IMPLEMENTATIONS
    limits = Limits(memory_mb, given.seconds, 0.7 * memory_mb)
    return Setup(limits, tuple(rivals), names, folder, 60.0)


def merge_results(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """Renewed numbers of ours beside what was known of the rivals."""
    if old is None:
        return new
    return new | {
        "contenders": old["contenders"] | new["contenders"],
        "disagreement": old["disagreement"] | new["disagreement"],
    }


def write(results: dict[str, Any], path: Path) -> None:
    """Replace the results file in one step, so that a kill cannot leave half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(path)


def measure(given: argparse.Namespace, results: dict[str, Any], folder: Path) -> None:
    """All cases that are still to be measured, written out one by one."""
    cases = case_list(given)
    known = results["cases"]
    for position, (network, n, threads) in enumerate(cases, 1):
        key = f"{network}/{n}/{threads}"
        if given.resume and key in known:
            continue
        progress(f"[{position}/{len(cases)}] {network}, N={n}, {threads} thread(s)")
        case = run_case(network, n, threads, setup_for(given, folder, n))
        known[key] = merge_results(known.get(key), case) if given.ours_only else case
        write(results, given.results)
    for network in given.networks:
        done = results["disagreement_float64"]
        if not (given.ours_only or given.times_only or (given.resume and network in done)):
            progress(f"agreement in float64: {network}")
            done[network] = agreement_in_double(network, setup_for(given, folder, 0))
            write(results, given.results)


def main() -> None:
    """Measure, then print the table."""
    given = arguments()
    if any(name.startswith("nt") for name in given.rivals) and not given.ours_only:
        rival.ensure_environment()
    results: dict[str, Any] = {"cases": {}, "disagreement_float64": {}}
    if (given.resume or given.ours_only) and given.results.exists():
        results = json.loads(given.results.read_text())
    results |= description(given)
    with tempfile.TemporaryDirectory() as folder:
        measure(given, results, Path(folder))
    write(results, given.results)
    print(render(results))


if __name__ == "__main__":
    main()
