"""What `python -m research study lookahead` measures: one campaign, its queries timed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelahead.simulation.comparison.summary import query_seconds
from labelahead.simulation.run import Result
from labelahead.strategies.baselines import matching_infinite_kernel
from research.studies.design import Cell, Row
from research.studies.quality import regress
from research.studies.study_data import campaign, one_hot, prepare_with_answers, share_right

__all__ = ["WAYS", "process_outputs", "rows_of"]


@dataclass(frozen=True)
class Way:
    """One way to choose: the strategy, what the paper calls it, whether it sees few candidates, and
    the mode.
    """

    strategy: str
    paper: str
    few: bool = False
    mode: str = "top"  # the paper takes the best scores at once


WAYS = {
    "random": Way("random", "NN Random"),
    "ntk": Way("mlmoc", "NN NTK"),
    "ntk-solve": Way("ntk-solve", "NTK w/o block"),
    "ntk-few": Way("mlmoc", "–", few=True),
    "naive": Way("naive", "Naive", few=True),
    "one-step": Way("one-step", "NN 1-step"),
    "infinite-ntk": Way("infinite-ntk", "NN Inf NTK"),
    "gp": Way("gp", "GP"),
    "ntk-sequential": Way("mlmoc", "Sequential NTK", mode="sequential"),
    "emoc": Way("emoc", "EMOC"),
    "eer": Way("eer", "EER"),
}
# How the paper trains (LA §5): 200 epochs, going on from the last round's weights (its Algorithm
# 1); its largest rate of 1.0 for PyTorch's mean over ten outputs is 0.2 here.
PAPER_RECIPE = {
    "optimiser": "sgd",
    "rate": 0.2,
    "schedule": "one-cycle",
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "steps": 400,
    "batch": 128,
    "start": "warm",
}


def rows_of(s: Any, cell: Cell) -> Sequence[Row]:
    """A campaign; of `random` and `gp`, where there is one, also what a Gaussian process makes of
    the labels.
    """
    way = WAYS[cell["arm"]]
    count = s.few if way.few else s.candidates
    done = campaign(
        s,
        cell["seed"],
        asking={
            "strategy": way.strategy,
            "mode": way.mode,
            "kernel": s.kernel,
            "candidates": count,
            "evaluation": None,
            "retrainings": None,
        },
        training=(PAPER_RECIPE if s.recipe == "paper" else {})
        | ({} if s.steps is None else {"steps": s.steps}),
        batch=s.query,
        rounds=s.rounds,
    )
    own = _process_accuracy(done) if "gp" in s.arms and cell["arm"] in ("random", "gp") else {}
    return [
        {
            "round": r.number,
            "labels": r.labels,
            "accuracy": r.accuracy,
            "process_accuracy": own.get(r.labels),
            "candidates": count,
            "seconds": round(query_seconds(r), 6) if r.asked else None,
            "train_seconds": round(r.seconds["train"], 4),
        }
        for r in done.rounds
    ]


def _process_accuracy(done: Result) -> dict[int, float]:
    """By number of labels: test accuracy of the Gaussian process alone, which is the paper's GP."""
    ready, answers = prepare_with_answers(done)
    chosen, test = done.pool.labelled, ready.data.test
    x, y, truth = ready.rows[chosen], answers.take(chosen), answers.take(test)
    noise, classes = done.campaign.asking.noise or 1e-3, len(ready.data.classes)
    like = ready.network(classes, 0)
    a, b = x.to(torch.float64), ready.rows[test].to(torch.float64)
    prior, cross = matching_infinite_kernel(like, a), matching_infinite_kernel(like, b, a)
    return {
        n: share_right(process_outputs(prior[:n, :n], cross[:, :n], y[:n], classes, noise), truth)
        for n in (r.labels for r in done.rounds)
    }


def process_outputs(prior: Tensor, cross: Tensor, y: Tensor, classes: int, noise: float) -> Tensor:
    """(t, C) mean of the process with the limit's kernel, of the labelled items and across, and
    prior mean zero.
    """
    return regress(prior, cross, one_hot(y, classes), noise)[0]
