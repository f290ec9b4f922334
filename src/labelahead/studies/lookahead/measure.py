"""What `labelahead study lookahead` measures: one campaign, its queries timed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelahead.campaign.run import Result
from labelahead.compare.summary import asking_seconds
from labelahead.strategies.rivals import DEPTH
from labelahead.studies.design import Cell, Row
from labelahead.studies.materials import answered, campaign, one_hot, share_right
from labelahead.studies.quality import regress
from labelahead.tangent import infinite_kernel

__all__ = ["WAYS", "process_outputs", "rows_of"]


@dataclass(frozen=True)
class Way:
    """One way to choose: the strategy, what the paper calls it, whether it sees few candidates."""

    strategy: str
    paper: str
    few: bool = False


WAYS = {
    "random": Way("random", "NN Random"),
    "ntk": Way("mlmoc", "NN NTK"),
    "ntk-solve": Way("ntk-solve", "NTK w/o block"),
    "ntk-few": Way("mlmoc", "–", few=True),
    "naive": Way("naive", "Naive", few=True),
    "one-step": Way("one-step", "NN 1-step"),
    "infinite-ntk": Way("infinite-ntk", "NN Inf NTK"),
    "gp": Way("gp", "GP"),
}


def rows_of(s: Any, cell: Cell) -> Sequence[Row]:
    """A campaign; of `random` and `gp` also what a Gaussian process makes of the labels."""
    way = WAYS[cell["arm"]]
    count = s.few if way.few else s.candidates
    done = campaign(
        s,
        cell["seed"],
        asking={
            "strategy": way.strategy,
            "mode": "top",  # the paper takes the best scores at once
            "kernel": s.kernel,
            "candidates": count,
            "evaluation": None,
            "retrainings": None,
        },
        training={} if s.steps is None else {"steps": s.steps},
        batch=s.query,
        rounds=s.rounds,
    )
    own = _process_accuracy(done) if cell["arm"] in ("random", "gp") else {}
    return [
        {
            "round": r.number,
            "labels": r.labels,
            "accuracy": r.accuracy,
            "process_accuracy": own.get(r.labels),
            "candidates": count,
            "seconds": round(asking_seconds(r), 6) if r.asked else None,
            "train_seconds": round(r.seconds["train"], 4),
        }
        for r in done.rounds
    ]


def _process_accuracy(done: Result) -> dict[int, float]:
    """By number of labels: test accuracy of the Gaussian process alone, which is the paper's GP."""
    ready, answers = answered(done)
    chosen, test = done.pool.labelled, ready.data.test
    x, y, truth = ready.rows[chosen], answers.take(chosen), answers.take(test)
    noise = done.campaign.asking.noise or 1e-3
    by_labels = {}
    for r in done.rounds:
        n = r.labels
        out = process_outputs(x[:n], y[:n], ready.rows[test], len(ready.data.classes), noise)
        by_labels[n] = share_right(out, truth)
    return by_labels


def process_outputs(x: Tensor, y: Tensor, test: Tensor, classes: int, noise: float) -> Tensor:
    """(t, C) mean of the process with the limit's kernel and prior mean zero."""
    a, b = x.to(torch.float64), test.to(torch.float64)
    prior, cross = infinite_kernel(a, depth=DEPTH), infinite_kernel(b, a, depth=DEPTH)
    return regress(prior, cross, one_hot(y, classes), noise)[0]
