"""What `labelahead study lookahead` measures: one campaign, its queries timed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelahead.campaign import run
from labelahead.config import parse
from labelahead.laboratory.experiment import Cell, Row
from labelahead.laboratory.materials import one_hot
from labelahead.laboratory.quality import regress
from labelahead.prepare import prepare
from labelahead.strategy import find
from labelahead.strategy.rivals import DEPTH
from labelahead.tangent import infinite_kernel

__all__ = ["ARMS", "Arm", "measure", "process_outputs"]


@dataclass(frozen=True)
class Arm:
    """One way to choose: the strategy, what the paper calls it, whether it sees few candidates."""

    strategy: str
    paper: str
    few: bool = False


ARMS = {
    "random": Arm("random", "NN Random"),
    "ntk": Arm("mlmoc", "NN NTK"),
    "ntk-solve": Arm("ntk-solve", "NTK w/o block"),
    "ntk-few": Arm("mlmoc", "–", few=True),
    "naive": Arm("naive", "Naive", few=True),
    "one-step": Arm("one-step", "NN 1-step"),
    "infinite-ntk": Arm("infinite-ntk", "NN Inf NTK"),
    "gp": Arm("gp", "GP"),
}
NOT_ASKING = ("train", "test", "leave-one-out")


def measure(s: Any, cell: Cell) -> Sequence[Row]:
    """A campaign; of `random` and `gp` also what a Gaussian process makes of the labels."""
    arm = ARMS[cell["arm"]]
    count = s.few if arm.few else s.candidates
    tables: dict[str, Any] = {
        "seed": cell["seed"],
        "data": {"name": s.data, "root": s.root},
        "model": {"name": s.model, "width": s.width},
        "training": {} if s.steps is None else {"steps": s.steps},
        # The paper takes the best scores at once.
        "asking": {"strategy": arm.strategy, "mode": "top", "kernel": s.kernel,
                   "candidates": count, "evaluation": None, "retrainings": None},
        "budget": {"initial": s.initial, "retrain_every": s.query,
                   "labels": s.initial + s.query * s.rounds},
        "threads": 1,
    }  # fmt: skip
    done = run(parse(tables))
    own = _process_accuracy(done) if cell["arm"] in ("random", "gp") else {}
    rows: list[Row] = []
    for r in done.rounds:
        asking = sum(v for k, v in r.seconds.items() if k not in NOT_ASKING)
        rows.append({
            "round": r.number, "labels": r.labels, "accuracy": r.accuracy,
            "process_accuracy": own.get(r.labels), "candidates": count,
            "seconds": round(asking, 6) if r.asked else None,
            "train_seconds": round(r.seconds["train"], 4),
        })  # fmt: skip
    return rows


def _process_accuracy(done: Any) -> dict[int, float]:
    """By number of labels: test accuracy of the Gaussian process alone, which is the paper's GP."""
    ready = prepare(done.campaign)
    assert ready.answers is not None
    chosen, test = done.pool.labelled, ready.data.test
    x, y = ready.inputs[chosen], ready.answers.take(chosen)
    truth = ready.answers.take(test)
    noise = done.campaign.asking.noise or find("gp").noise
    found = {}
    for r in done.rounds:
        n = r.labels
        out = process_outputs(x[:n], y[:n], ready.inputs[test], len(ready.data.classes), noise)
        found[n] = float((out.argmax(1) == truth).double().mean())
    return found


def process_outputs(x: Tensor, y: Tensor, test: Tensor, classes: int, noise: float) -> Tensor:
    """(t, C) mean of the process with the limit's kernel and prior mean zero."""
    a, b = x.to(torch.float64), test.to(torch.float64)
    prior, cross = infinite_kernel(a, depth=DEPTH), infinite_kernel(b, a, depth=DEPTH)
    return regress(prior, cross, one_hot(y, classes), noise)[0]
