"""Scores of dynamicAL for a pool, against per-sample gradients by BackPACK and by torch.func.

    python research/benchmarks/dynamics.py [--items 5000] [--rounds 5] [--cases cnn-10 ...]
    [--quick]

Every contender has a process of its own, on one core; rounds alternate between them, and a ratio is
the median of the rounds' ratios, so that a noisy minute hits all. All must agree on the scores.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contenders import HERE, FailedError, Limits, Outcome, Worker
from dynamics_worker import GAMMA, LABELS, SHAPE, WIDTH
from kernel import _memory_gb, _processor, write
from networks import INPUT_SEED, WEIGHT_SEED

RESULTS = HERE / "results" / "dynamics.json"
CASES = {"cnn-10": ("cnn", 10), "cnn-100": ("cnn", 100), "resnet18-10": ("resnet18", 10)}
COMPETITORS = ("backpack", "vmap")
CONTENDERS = ("ours", "pass", "forward", *COMPETITORS)
POOLS = (1250, 5000, 20000)  # whose peak memory is compared
SLOW = 45.0  # seconds after which a contender is timed three times at most
TOLERANCE = 1e-4  # of the largest score
PASSES, RATIO, GROWTH = 4.0, 2.0, 1.25  # the goals


def start(method: str, case: str, items: int, given: argparse.Namespace) -> Worker:
    network, classes = CASES[case]
    numbers = [str(classes), str(items), str(given.threads)]
    command = [sys.executable, str(HERE / "dynamics_worker.py"), method, network, *numbers]
    return Worker(command, Limits(given.memory_mb, given.seconds, 0))


def time_contenders(case: str, given: argparse.Namespace, folder: Path) -> dict[str, Outcome]:
    """All contenders, prepared one after the other and then run in turn."""
    outcomes = {name: Outcome() for name in CONTENDERS}
    with ExitStack() as stack:
        workers = {}
        for name in CONTENDERS:
            workers[name] = stack.enter_context(start(name, case, given.items, given))
            attempt(workers, outcomes, name, lambda worker, _: worker.ready(given.seconds))
        for round_ in range(given.rounds):
            for name in list(workers):
                if round_ >= 3 and outcomes[name].seconds[-1] > SLOW:
                    continue
                keep = None if round_ else folder / f"{case}-{name}.npy"
                attempt(workers, outcomes, name, lambda w, o, keep=keep: w.run(o, keep))
                outcome = outcomes[name].failure or f"{outcomes[name].seconds[-1]:.2f} s"
                print(f"  {case} {name}: {outcome}", file=sys.stderr, flush=True)
    return outcomes


def attempt(workers: dict[str, Worker], outcomes: dict[str, Outcome], name: str, what: Any) -> None:
    """A rival that fails is out, with its reason; if we fail, so does the benchmark."""
    try:
        what(workers[name], outcomes[name])
    except FailedError as failure:
        if name not in COMPETITORS:
            raise
        outcomes[name].failure = str(failure)
        del workers[name]


def peaks(case: str, given: argparse.Namespace) -> dict[int, float]:
    """Peak memory of ours beyond the pool itself, in MB, for pools of several sizes."""
    peaks = {}
    for items in given.pools:
        outcome = Outcome()
        with start("ours", case, items, given) as worker:
            worker.ready(given.seconds)
            worker.run(outcome)
        peaks[items] = outcome.peak_mb
        print(f"  {case}, pool of {items}: {outcome.peak_mb:.0f} MB", file=sys.stderr, flush=True)
    return peaks


def ratio(one: Outcome, other: Outcome) -> float:
    """Median over the rounds of how many times longer `one` takes."""
    return statistics.median(a / b for a, b in zip(one.seconds, other.seconds, strict=False))


def disagreement(case: str, outcomes: dict[str, Outcome], folder: Path) -> dict[str, float]:
    """How far a rival's scores are from ours, in units of the largest, for 99.5 % of the items.

    In float32 an activation within rounding of zero may fall on either side of a ReLU's kink, and
    that item's gradient then differs; exactness itself is tested in float64.
    """
    scores = {
        n: np.load(folder / f"{case}-{n}.npy")
        for n in ("ours", *COMPETITORS)
        if not outcomes[n].failure
    }
    ours = scores.pop("ours")
    top = np.abs(ours).max()
    return {n: float(np.quantile(np.abs(s - ours), 0.995) / top) for n, s in scores.items()}


def measure_case(case: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    outcomes = time_contenders(case, given, folder)
    ours = outcomes["ours"]
    return {
        "contenders": {
            name: {**one.as_json(), "median_seconds": statistics.median(one.seconds or [0.0])}
            for name, one in outcomes.items()
        },
        "passes": ratio(ours, outcomes["pass"]),
        "forward_in_passes": ratio(outcomes["forward"], outcomes["pass"]),
        "ratios": {n: ratio(outcomes[n], ours) for n in COMPETITORS if not outcomes[n].failure},
        "disagreement": disagreement(case, outcomes, folder),
        "peak_mb_by_pool": peaks(case, given),
    }


def table(cases: dict[str, Any]) -> list[str]:
    """One line a contender."""
    times = f"{'median s':>9} {'passes':>7} {'x ours':>7}"
    lines = [f"{'case':12} {'contender':9} {times} {'peak MB':>8} {'differs':>8}"]
    for case, row in cases.items():
        unit = row["contenders"]["pass"]["median_seconds"]
        for name, o in row["contenders"].items():
            if o["failure"]:
                lines.append(f"{case:12} {name:9} {o['failure']}")
                continue
            seconds = o["median_seconds"]
            times = f"{row['ratios'][name]:7.2f}" if name in COMPETITORS else " " * 7
            differs = f"{row['disagreement'][name]:8.0e}" if name in COMPETITORS else ""
            how = f"  {o['form']}, chunk {o['chunk']}" if "form" in o else ""
            lines.append(
                f"{case:12} {name:9} {seconds:9.2f} {seconds / unit:7.2f} {times} "
                f"{o['peak_mb']:8.0f} {differs:8}{how}"
            )
        pools = ", ".join(f"{mb:.0f} MB at {n}" for n, mb in row["peak_mb_by_pool"].items())
        lines.append(f"{case:12} our peak beyond the pool: {pools}")
    return lines


def goals(cases: dict[str, Any]) -> list[str]:
    """One line a goal: what was hoped for, what was measured, met or missed."""
    lines = []
    for case, row in cases.items():
        passes = row["passes"]
        lines.append(_line(f"{case}: at most {PASSES:.0f} passes", passes <= PASSES, passes))
        for name, times in row["ratios"].items():
            lines.append(_line(f"{case}: {RATIO:.0f} times {name}'s speed", times >= RATIO, times))
        sizes = list(row["peak_mb_by_pool"].values())
        if len(sizes) > 1:
            growth = sizes[-1] / sizes[0]
            what = f"{case}: memory of the largest pool at most {GROWTH} of the smallest's"
            lines.append(_line(what, growth <= GROWTH, growth))
    return lines


def _line(what: str, met: bool, value: float) -> str:
    return f"{'met' if met else 'MISSED':7} {what}: {value:.2f}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--pools", type=int, nargs="*", help="for the peak memory of ours")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small pools: a taste, no result")
    parser.add_argument("--seconds", type=float, default=2400, help="limit for one computation")
    parser.add_argument("--memory-mb", type=float, default=0.6 * 1024 * _memory_gb())
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.items = given.items or (256 if given.quick else 5000)
    given.rounds = given.rounds or (3 if given.quick else 5)
    if given.pools is None:
        given.pools = [250, 1000] if given.quick else list(POOLS)
    if given.quick and given.results == RESULTS:
        given.results = RESULTS.with_name("dynamics-quick.json")
    return given


def description(given: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on."""
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(given).items()}
    names = ("labelahead", "torch", "backpack-for-pytorch")
    return {
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gb": round(_memory_gb(), 1),
            "system": platform.platform(),
        },
        "versions": {name: importlib.metadata.version(name) for name in names},
        "seeds": {"weights": WEIGHT_SEED, "inputs": INPUT_SEED},
        "settings": {
            **settings,
            "dtype": "float32",
            "labels": LABELS,
            "gamma": GAMMA,
            "width": WIDTH,
            "shape": SHAPE,
        },
    }


def main() -> None:
    given, before = arguments(), os.getloadavg()[0]
    torch.set_num_threads(given.threads)
    results: dict[str, Any] = {**description(given), "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        for case in given.cases:
            results["cases"][case] = measure_case(case, given, Path(folder))
            results["load"] = [before, os.getloadavg()[0]]
            results["goals"] = goals(results["cases"])
            write(results, given.results)
    print("\n".join([*table(results["cases"]), *results["goals"]]))
    worst = max(
        (d for row in results["cases"].values() for d in row["disagreement"].values()), default=0.0
    )
    if worst > TOLERANCE:
        raise SystemExit(f"the contenders disagree: by {worst:.0e} of the largest score")


if __name__ == "__main__":
    main()
