"""neural-tangents 0.6.5, in its own virtual environment, with its best implementation.

jax 0.4.25 is the newest version with which all of its implementations work: from 0.4.26 on
STRUCTURED_DERIVATIVES, often its best, dies on `jax.interpreters.ad.source_info_util`. tf2jax 0.3.7
asks for a newer jax than that, and numpy 2 for a newer jaxlib; hence the other pins.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from contenders import HERE, FailedError, Limits, Outcome, Task, Worker

PINS = (
    "neural-tangents==0.6.5",
    "jax==0.4.25",
    "jaxlib==0.4.25",
    "numpy==1.26.4",
    "scipy==1.12.0",
    "tf2jax==0.3.6",
    "tensorflow==2.15.1",
)
ENVIRONMENT = HERE.parents[1] / ".venv-neural-tangents"
# AUTO only chooses among the others, by counting FLOPs; it is timed to show what that choice costs.
IMPLEMENTATIONS = ("STRUCTURED_DERIVATIVES", "JACOBIAN_CONTRACTION", "NTK_VECTOR_PRODUCTS", "AUTO")
SERIOUS = ("STRUCTURED_DERIVATIVES", "JACOBIAN_CONTRACTION")
PILOT = 20  # samples on which NTK_VECTOR_PRODUCTS, quadratic in n, is tried first


def ensure_environment() -> None:
    """Create the virtual environment unless it is there with these very pins."""
    stamp = ENVIRONMENT / "pins.txt"
    if stamp.exists() and stamp.read_text().split() == list(PINS):
        return
    print("creating the virtual environment of neural-tangents (2 GB, some minutes)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *PINS], check=True)
    stamp.write_text("\n".join(PINS))


def worker(task: Task, implementation: str, limits: Limits, batch: int = 0) -> Worker:
    """A worker that computes the kernel; batch > 0 does so in blocks, with `nt.batch`."""
    python = str(ENVIRONMENT / "bin" / "python")
    script = str(HERE / "neural_tangents_worker.py")
    numbers = [str(task.n), str(task.threads), implementation, str(batch)]
    return Worker([python, script, task.network, str(task.path), *numbers], limits)


def attempt(
    task: Task, implementation: str, limits: Limits, batch: int = 0, keep: Path | None = None
) -> Outcome:
    """Compile, warm up, time once (five times if quick); a failure becomes part of the outcome."""
    outcome = Outcome(notes={"implementation": implementation})
    try:
        with worker(task, implementation, limits, batch) as process:
            process.ready()
            if not batch:  # in blocks, compiling was a warm-up already
                process.run(Outcome())
            process.run(outcome, keep)
            while outcome.seconds[0] < 1 and len(outcome.seconds) < 5:
                process.run(outcome)
    except FailedError as failure:
        outcome.failure = str(failure)
    return outcome


def _predict_seconds(task: Task, limits: Limits) -> float | None:
    """Seconds that NTK_VECTOR_PRODUCTS would take, from a pilot."""
    pilot = attempt(replace(task, n=PILOT), "NTK_VECTOR_PRODUCTS", limits)
    return pilot.best * (task.n / PILOT) ** 2 if pilot.best else None


def limit_seconds(limits: Limits, outcomes: dict[str, Outcome]) -> Limits:
    """Nobody is waited for much longer than the best so far took."""
    times = [outcome.best for outcome in outcomes.values() if outcome.best]
    return replace(limits, seconds=min([limits.seconds, *(max(30.0, 4 * t) for t in times)]))


def survey(task: Task, limits: Limits, names: tuple[str, ...]) -> dict[str, Outcome]:
    """Time every implementation once; hopeless ones are stopped, and the reason is kept."""
    outcomes: dict[str, Outcome] = {}
    for name in names:
        tight = limit_seconds(limits, outcomes)
        if name == "NTK_VECTOR_PRODUCTS":
            predicted = _predict_seconds(task, tight)
            if predicted is None or predicted > tight.seconds:
                reason = "failed" if predicted is None else f"{predicted:.0f} s predicted"
                outcomes[name] = Outcome(failure=f"{reason} from n={PILOT}")
                continue
        outcomes[name] = attempt(task, name, tight)
    return outcomes


def fastest(outcomes: dict[str, Outcome]) -> str | None:
    """The fastest implementation that finished, if any; never AUTO, which is one of the others."""
    finished = {k: outcome.best for k, outcome in outcomes.items() if outcome.best and k != "AUTO"}
    return min(finished, key=lambda name: finished[name]) if finished else None


def in_blocks(task: Task, limits: Limits, blocks: int, keep: Path, patience: float) -> Outcome:
    """`nt.batch` with that many blocks a side, by the better of its two serious implementations.

    Every pair of blocks costs the same, so two blocks a side are timed first; all of them only if
    that promises to take less than `patience` seconds, else the time is extrapolated.
    """
    batch = task.n // blocks
    part = replace(task, n=2 * batch)
    kept = {name: keep.with_stem(f"{keep.stem}-{name}") for name in SERIOUS}
    outcomes: dict[str, Outcome] = {}
    for name in SERIOUS:
        outcomes[name] = attempt(part, name, limit_seconds(limits, outcomes), batch, kept[name])
    best = fastest(outcomes)
    if best is None:
        return Outcome(failure="; ".join(outcome.failure for outcome in outcomes.values()))
    outcome = outcomes[best]
    kept[best].rename(keep)
    outcome.scale = (task.n / part.n) ** 2
    if outcome.best is not None and outcome.best < patience:
        outcome = attempt(task, best, limits, batch, keep)
        part = task
    outcome.notes.update(blocks_a_side=blocks, batch_size=batch, samples_timed=part.n)
    return outcome
