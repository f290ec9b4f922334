"""One row of the kernel benchmark: every contender on one network, size and thread count."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import kernel_roofline
import networks
import neural_tangents_competitor as rival
from contenders import FailedError, Limits, Outcome, Task, Worker, torch_worker
from kernel_worker import GEMM_SIZE

GEMM_FLOPS = 2.0 * GEMM_SIZE**3
BLOCKS = (4, 8, 10, 20)  # blocks a side that nt.batch is tried with until its parts fit
DOUBLE_SAMPLES = 4  # for the agreement in float64; XLA's convolutions are very slow there
DOUBLE_SECONDS = 300.0


@dataclass(frozen=True)
class Setup:
    """What holds for all cases of a run."""

    limits: Limits
    rivals: tuple[str, ...]
    implementations: tuple[str, ...]
    folder: Path  # of weights, inputs and kernels; temporary
    patience: float  # seconds beyond which a blocked computation is timed on a part


def progress(text: str) -> None:
    """Tell what is under way; on stderr, so that stdout holds the table alone."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def export_network(setup: Setup, network: str, n: int, dtype: str = "float32") -> Path:
    """The file with the network's weights and at least n inputs; written once."""
    path = setup.folder / f"{network}-{n}-{dtype}.npz"
    if not path.exists():
        networks.export(network, n, path, dtype)
    return path


def repetitions(outcome: Outcome) -> int:
    """The faster, the more: twenty for milliseconds, three up to half a minute, then once."""
    best = outcome.best or 0.0
    return 20 if best < 0.2 else 5 if best < 2 else 3 if best < 30 else 1


def interleave(
    starters: dict[str, Callable[[], Worker]], kept: Callable[[str], Path]
) -> dict[str, Outcome]:
    """Run all contenders in turn, round after round; each lives in its own process throughout."""
    outcomes = {name: Outcome() for name in starters}
    workers: dict[str, Worker] = {}
    with ExitStack() as stack:

        def run_guarded(name: str, action: Callable[[], None]) -> None:
            try:
                action()
            except FailedError as failure:
                outcomes[name].failure = str(failure)
                progress(f"    {name}: {failure}")

        for name, start in starters.items():
            workers[name] = stack.enter_context(start())
            run_guarded(name, workers[name].ready)
        for turn in range(20):
            for name, outcome in outcomes.items():
                if outcome.failure or turn >= repetitions(outcome):
                    continue
                keep = kept(name) if turn == 0 else None
                run_guarded(name, lambda n=name, o=outcome, k=keep: workers[n].run(o, k))
                if turn == 0 and outcome.seconds:
                    progress(f"    {name}: {outcome.seconds[0]:.3f} s, {outcome.peak_mb:.0f} MB")
    return outcomes


def once(start: Callable[[], Worker], keep: Path | None = None) -> Outcome:
    """A contender that runs a single time, for its memory or its kernel."""
    outcome = Outcome()
    try:
        with start() as worker:
            worker.ready()
            worker.run(outcome, keep)
    except FailedError as failure:
        outcome.failure = str(failure)
    return outcome


def disagreement(kernel: Path, other: Path) -> float | None:
    """Largest |K − K'| relative to √(K_ii K_jj), over the samples that both hold."""
    if not (kernel.exists() and other.exists()):
        return None
    ours, theirs = np.load(kernel), np.load(other)
    n = min(len(ours), len(theirs))
    ours, theirs = ours[:n, :n], theirs[:n, :n]
    scale = np.sqrt(np.diag(theirs))
    return float(np.max(np.abs(ours - theirs) / np.outer(scale, scale)))


def neural_tangents_blocks(task: Task, setup: Setup, keep: Path, smallest: int) -> Outcome:
    """nt.batch with the fewest blocks a side, at least `smallest`, whose parts fit."""
    outcome = Outcome(failure="not tried")
    for blocks in (b for b in BLOCKS if b >= smallest and task.n % b == 0):
        outcome = rival.in_blocks(task, setup.limits, blocks, keep, setup.patience)
        progress(f"    nt.batch, {blocks} blocks a side: {outcome.best} s {outcome.failure}")
        if not outcome.failure:
            break
    return outcome


def compare(task: Task, setup: Setup, kept: Callable[[str], Path]) -> dict[str, Outcome]:
    """All contenders of one case, ours first."""
    limits, wanted = setup.limits, setup.rivals
    # The rate of a plain matrix product is taken in turn with the rest: it shares their weather.
    torch_methods = ["ours", "gemm", *(name for name in ("vmap", "loop") if name in wanted)]
    starters = {name: lambda name=name: torch_worker(name, task, limits) for name in torch_methods}
    surveyed: dict[str, Outcome] = {}
    if "nt" in wanted:
        surveyed = rival.survey(task, limits, setup.implementations)
        chosen = rival.fastest(surveyed)
        each = {k: v.failure or round(v.best or 0, 3) for k, v in surveyed.items()}
        progress(f"    neural-tangents, one run each: {each}")
        if chosen:
            starters["nt"] = lambda: rival.worker(task, chosen, limits)
    outcomes = interleave(starters, kept)
    if "nt" in outcomes:
        outcomes["nt"].notes["implementation"] = chosen
    outcomes |= {f"nt {name}": outcome for name, outcome in surveyed.items()}
    if "vmap" in wanted:
        outcomes["vmap-plain"] = once(lambda: torch_worker("vmap-plain", task, limits))
    if "nt-batch" in wanted and task.n >= 1000:
        outcomes["nt-batch"] = neural_tangents_blocks(task, setup, kept("nt-batch"), BLOCKS[0])
    return outcomes


def agreement_in_double(network: str, setup: Setup) -> dict[str, float | None]:
    """Ours against the rivals in float64 on a few samples, where no ReLU kink can blur it."""
    path = export_network(setup, network, DOUBLE_SAMPLES, "float64")
    task = Task(network, path, DOUBLE_SAMPLES, 1)

    def kernel_path(name: str) -> Path:
        return setup.folder / f"{network}-float64-{name}.npy"

    limits = replace(setup.limits, seconds=DOUBLE_SECONDS)
    names = ["ours", *(name for name in ("vmap", "nt") if name in setup.rivals)]
    for name in names:
        if name == "nt":
            outcome = once(
                lambda: rival.worker(task, "JACOBIAN_CONTRACTION", limits), kernel_path(name)
            )
        else:
            outcome = once(lambda name=name: torch_worker(name, task, limits), kernel_path(name))
        progress(f"    {name}: {outcome.failure or outcome.seconds[0]}")
    return {name: disagreement(kernel_path("ours"), kernel_path(name)) for name in names[1:]}


def run_case(network: str, n: int, threads: int, setup: Setup) -> dict[str, Any]:
    """Measure one case; what the table and the results file need of it."""
    task = Task(network, export_network(setup, network, n), n, threads)

    def kernel_path(name: str) -> Path:
        return setup.folder / f"{network}-{n}-{threads}-{name}.npy"

    outcomes = compare(task, setup, kernel_path)
    rate = GEMM_FLOPS / min(outcomes.pop("gemm").seconds)
    model, x = networks.load(network, task.path)
    work = kernel_roofline.flops(model, x[0], n)
    agreement = {name: disagreement(kernel_path("ours"), kernel_path(name)) for name in outcomes}
    for name in outcomes:
        kernel_path(name).unlink(missing_ok=True)
    return {
        "network": network,
        "n": n,
        "threads": threads,
        "parameters": sum(p.numel() for p in model.parameters()),
        "contenders": {name: outcome.as_json() for name, outcome in outcomes.items()},
        "disagreement": {k: v for k, v in agreement.items() if v is not None and k != "ours"},
        "flops": work,
        "gemm_flops_per_second": rate,
        "roofline_seconds": sum(work.values()) / rate,
    }
