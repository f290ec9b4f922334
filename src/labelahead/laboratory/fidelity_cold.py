"""The cold part of `labelahead study fidelity`: one label's effect beside the noise of training."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.laboratory.experiment import Cell, Row
from labelahead.laboratory.fidelity_measures import (
    Stage,
    agreement,
    ahead,
    posterior,
    stage,
    stiffness,
)
from labelahead.laboratory.fidelity_training import continued
from labelahead.models import build
from labelahead.tangent import kernel
from labelahead.train import predict, recipe, train

__all__ = ["cold", "repeated"]


def cold(s: Any, cell: Cell) -> list[Row]:
    """Look-ahead against training that goes on, that begins again, and against no label at all."""
    st = stage(s, cell, s.cold_candidates)
    shape, classes = tuple(st.x.shape[1:]), st.y.shape[1]

    def fresh(seed: int) -> nn.Module:
        return build(cell["model"], shape, classes, width=cell["width"], seed=seed)

    f = predict(st.model, st.x).double()
    guess = ahead(posterior(f, kernel(st.model, st.x).double(), st, s.noise), st)
    surprise = (st.y - f)[st.asked].norm(dim=1)
    new, other = fresh(cell["seed"]), fresh(cell["seed"] + 1000)
    changes = {
        "warm, gradient descent": _descent(s, st, st.model, s.marks[-1])[:, None],
        "warm, the usual training": _trained(s, cell, st, st.model),
        "cold, gradient descent": _descent(s, st, new, s.cold_steps)[:, None],
        "cold, the usual training": _trained(s, cell, st, new),
    }
    rows: list[Row] = [
        {"kind": kind, "label": True, **repeated(guess, real, surprise)}
        for kind, real in changes.items()
    ]
    for kind, first, second in (
        ("cold, no label: other order", new, new),
        ("cold, no label: other weights", new, other),
    ):
        noise = _noise(s, cell, st, first, second)
        found = repeated(guess, noise.expand(st.q, *noise.shape), surprise)
        kept = ("predicted", "real", "ratio", "cosine")
        rows.append({"kind": kind, "label": False, **{k: found[k] for k in kept}})
    return rows


def repeated(guess: Tensor, real: Tensor, surprise: Tensor) -> Mapping[str, Any]:
    """Changes of R repetitions (q, R, e, C) against the predicted (q, e, C).

    The agreement is that of one repetition, averaged over them; mean_*: that of their mean.
    repeats: the part of the squared size that comes again, mean of ⟨Δ_r, Δ_s⟩ over r ≠ s over the
    mean of ‖Δ_r‖².
    """
    single = [agreement(guess, real[:, r], surprise) for r in range(real.shape[1])]
    found: dict[str, Any] = {k: sum(one[k] for one in single) / len(single) for k in single[0]}
    if real.shape[1] > 1:
        flat = real.flatten(2).double()
        gram = flat @ flat.mT  # (q, R, R)
        own = gram.diagonal(dim1=1, dim2=2).sum(1)
        r = real.shape[1]
        cross = (gram.sum((1, 2)) - own) / (r * (r - 1))
        found["repeats"] = float(cross.sum() / (own / r).sum())
        mean = agreement(guess, real.mean(1), surprise)
        found |= {"mean_cosine": mean["cosine"], "mean_spearman": mean["spearman"],
                  "mean_ratio": mean["ratio"]}  # fmt: skip
    return found


def _descent(s: Any, st: Stage, model: nn.Module, steps: int) -> Tensor:
    """(q, e, C): gradient descent from these weights, with each candidate minus without."""
    theta = kernel(model, st.x[: st.n + st.q], kind="full").double()
    out, _ = continued(
        model, st.x[st.known], st.y[st.known].to(st.x), st.x[st.asked], st.y[st.asked],
        st.x[st.seen], rate=s.step / stiffness(theta, st), marks=(steps,), momentum=s.momentum,
        chunk=s.chunk,
    )  # fmt: skip
    return (out[0, :-1] - out[0, -1]).double()


def _trained(s: Any, cell: Cell, st: Stage, start: nn.Module) -> Tensor:
    """(q, R, e, C): the recipe from these weights, with each candidate minus without.

    One seed a repetition, for both. It does not make their batches alike: one more item, another
    shuffle. That is what anybody sees who retrains.
    """
    known = st.at(st.known)
    without = torch.stack([_outputs(cell, st, start, known, r) for r in range(s.repeats)])
    found = [
        torch.stack(
            [_outputs(cell, st, start, torch.cat([known, j[None]]), r) for r in range(s.repeats)]
        )
        - without
        for j in st.at(st.asked)
    ]
    return torch.stack(found)


def _noise(s: Any, cell: Cell, st: Stage, first: nn.Module, second: nn.Module) -> Tensor:
    """(R, e, C): two trainings on the same labels, in another order, perhaps from other weights."""
    known = st.at(st.known)
    return torch.stack(
        [
            _outputs(cell, st, first, known, r) - _outputs(cell, st, second, known, 500 + r)
            for r in range(s.repeats)
        ]
    )


def _outputs(cell: Cell, st: Stage, start: nn.Module, at: Tensor, seed: int) -> Tensor:
    """(e, C) at the evaluation points, after the recipe on the items `at` from these weights."""
    model = copy.deepcopy(start)
    how = replace(recipe(cell["model"]), steps=cell["before"])
    train(model, st.x[at], st.labels[at], st.y.shape[1], how, seed=7919 * cell["seed"] + seed)
    return predict(model, st.x[st.seen]).double()
