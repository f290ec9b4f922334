"""Naïve look-ahead: really train on every candidate with its predicted label (LA, Figure 1a)."""

import copy
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from labelahead.acquisition.probability import softmax
from labelahead.models.layers import ACTIVATIONS
from labelahead.models.training import Training, predict, train
from labelahead.models.training.fit import batches, make_optimiser, rates
from labelahead.models.training.forward import place
from labelahead.strategies.base import Ask, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext

__all__ = ["EPOCHS", "NAIVE", "alike", "one_by_one", "retrained", "together"]

log = logging.getLogger("labelahead")

EPOCHS = 15  # as the paper retrains
# Weights in networks that are trained at once. On one core, 48 of 26,000 weights took 0.27 of the
# time of one after the other, 8 at a time 0.40.
STACK = 1 << 21
FIRST = 8  # networks at once, to forecast the rest by
RUNAWAY = 1e3  # outputs this large are suspect: targets are of order one
LONG = 10.0  # seconds from which a forecast is a warning
_PLAIN = (nn.Sequential, nn.Flatten, nn.Linear, nn.Identity, *ACTIVATIONS.values())


def _pick(s: QueryContext, q: int, rng: torch.Generator, mode: str, ask: Ask | None) -> QueryBatch:
    """The q candidates that change the outputs most.

    Σₓ ‖f₊(x) − f(x)‖₂ over x ≠ x', y' = argmax f(x').
    """
    most = s.asking.retrainings
    some = s.candidates if most is None else s.candidates[: max(most, q)]
    there = s.candidates if s.asking.evaluation is None else s.candidates[: s.asking.evaluation]
    now = s.start[len(s.labelled) :][: len(there)].double()
    guess = s.candidate_outputs[: len(some)].argmax(1).cpu()
    how = brief(s.training or Training(loss=s.loss), len(s.labelled) + 1)  # type: ignore[arg-type]
    seed = int(torch.randint(2**31, (1,), generator=rng))
    changes: list[Tensor] = []
    begun = time.perf_counter()
    with s.timed("retrain"):
        for after in retrained(s, some, guess, there, how, seed):
            outputs = softmax(after) if s.loss == "cross-entropy" else after
            size = (outputs.double() - now).norm(dim=2)
            first = sum(map(len, changes))  # both lists begin with the same candidates
            size[:, first:].fill_diagonal_(
                0.0
            )  # what changes at the candidate itself does not count
            changes.append(size.sum(1))
            if len(changes) == 1:
                _forecast(len(some), (time.perf_counter() - begun) / len(after))
    scores = torch.cat(changes).cpu()
    order = torch.sort(scores, descending=True, stable=True).indices[:q]
    return QueryBatch(some[order], scores[order])


def brief(training: Training, items: int) -> Training:
    """So many epochs of the campaign's own training, but no more steps than that has."""
    training = training.counted(items)
    steps = min(training.steps, EPOCHS * -(-items // training.batch))
    return replace(training, steps=steps, stop_accuracy=None)


def _forecast(count: int, seconds: float) -> None:
    total = count * seconds
    log.log(
        logging.WARNING if total > LONG else logging.INFO,
        "naive look-ahead: %d retrainings of about %.2g seconds = %.2g minutes; `retrainings` "
        "limits them",
        count,
        seconds,
        total / 60,
    )


def retrained(
    s: QueryContext, at: Tensor, labels: Tensor, there: Tensor, how: Training, seed: int
) -> Iterator[Tensor]:
    """Outputs (≤q, e, C) at `there` after training on the labels so far and item at[j] alone.

    at: (q,) and there: (e,), positions in the data set; labels: (q,) hypothetical ones. Training
    goes on from the present weights, in the same order for all: what differs is owed to the item.
    """
    if not alike(s.model) or not isinstance(s.inputs, Tensor) or how.augment is not None:
        yield from one_by_one(s, at, labels, there, how, seed)
        return
    most = max(1, STACK // sum(p.numel() for p in s.model.parameters()))
    parts = [*torch.split(at[:FIRST], most), *torch.split(at[FIRST:], most)]
    done = 0
    for here in filter(len, parts):
        given = labels[done : done + len(here)]
        done += len(here)
        after = together(s, here, given, there, how, seed)
        bad = ~(after.abs().flatten(1).amax(1) < RUNAWAY)  # NaN is bad, too
        if bool(bad.any()):  # `train` sees a divergence, and begins again at a smaller rate
            again = one_by_one(s, here[bad.cpu()], given[bad.cpu()], there, how, seed)
            after[bad] = torch.cat(list(again)).to(after)
        yield after


def one_by_one(
    s: QueryContext, at: Tensor, labels: Tensor, there: Tensor, how: Training, seed: int
) -> Iterator[Tensor]:
    """`retrained` for any network, by `train`: (1, e, C) at a time."""
    before, model = s.model.state_dict(), copy.deepcopy(s.model)
    evaluation = s.inputs[there]
    classes = s.outputs.shape[1]
    for i, label in zip(at[:, None], labels[:, None], strict=True):
        model.load_state_dict(before)
        x, y = s.inputs[torch.cat([s.labelled, i])], torch.cat([s.labels, label])
        train(model, x, y, classes, how, seed=seed)
        yield predict(model, evaluation)[None]


def alike(model: nn.Module) -> bool:
    """Whether many copies can be trained in one go: dense layers alone, nothing drawn or shared.

    Convolutions are left out: 16 convnets of 8 channels took 0.36 of the time of one after the
    other, but of 32 channels the same time, and most such networks have BatchNorm.
    """
    weights = [p for m in model.modules() for p in m.parameters(recurse=False)]
    return (
        isinstance(model, nn.Sequential)
        and all(type(m) in _PLAIN for m in model.modules())
        and len({id(p) for p in weights}) == len(weights)
        and all(p.requires_grad for p in weights)
    )


def together(
    s: QueryContext, at: Tensor, labels: Tensor, there: Tensor, how: Training, seed: int
) -> Tensor:
    """`retrained` for all of `at` at once: the same steps as `train`, weights stacked (q, ...)."""
    n, q, classes = len(s.labelled), len(at), s.outputs.shape[1]
    device, _ = place(s.model, s.inputs)
    x, new = s.learnt.rows(torch.cat([s.labelled, at[:1]])), s.learnt.rows(at)
    y = F.one_hot(torch.cat([s.labels, labels[:1]]), classes).to(s.outputs)
    new_y = F.one_hot(labels, classes).to(s.outputs)
    weights = {
        k: p.detach().expand(q, *p.shape).clone().requires_grad_()
        for k, p in s.model.named_parameters()
    }
    forward = _stacked(s.model)
    optimiser = make_optimiser(list(weights.values()), how, how.rate)
    order = batches(n + 1, how.batch, how.steps, seed, pairs=False)
    with torch.enable_grad():
        for part, rate in zip(order, rates(how, how.rate), strict=True):
            rows = torch.arange(n + 1) if part is None else part
            mine = (rows == n).nonzero().flatten().to(device)
            rows = rows.to(device)
            seen, target = x[rows], y[rows]
            if len(mine):  # the one row in which the networks' lessons differ
                seen = seen.expand(q, *seen.shape).index_copy(1, mine, new[:, None])
                target = target.expand(q, *target.shape).index_copy(1, mine, new_y[:, None])
            optimiser.param_groups[0]["lr"] = rate
            optimiser.zero_grad(set_to_none=True)
            _loss(forward(weights, seen, bool(len(mine))), target, how.loss).backward()  # type: ignore[no-untyped-call]
            _clip(list(weights.values()), how.clip)
            optimiser.step()
    with torch.no_grad():
        return forward(weights, s.learnt.rows(there), False)


def _stacked(model: nn.Module) -> Callable[[dict[str, Tensor], Tensor, bool], Tensor]:
    """(weights (q, ...), inputs, whether each network has its own) -> outputs (q, n, C)."""

    def one(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(model, weights, (x,))
        return out

    own, shared = vmap(one, (0, 0)), vmap(one, (0, None))

    def forward(weights: dict[str, Tensor], x: Tensor, apart: bool) -> Tensor:
        out: Tensor = (own if apart else shared)(weights, x)
        return out

    return forward


def _loss(outputs: Tensor, targets: Tensor, kind: str) -> Tensor:
    """The sum over networks of the mean over their samples, as `train` has it."""
    targets = targets.expand_as(outputs)
    if kind == "cross-entropy":
        return -(targets * outputs.log_softmax(2)).sum() / outputs.shape[1]
    return 0.5 * (outputs - targets).square().sum() / outputs.shape[1]


def _clip(weights: list[Tensor], most: float | None) -> None:
    """Each network's gradient cut to that norm, as `clip_grad_norm_` does."""
    if most is None:
        return
    grads = [p.grad for p in weights if p.grad is not None]
    size = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
    scale = (most / (size + 1e-6)).clamp_max(1.0)
    for g in grads:
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))


NAIVE = Strategy(
    "naive",
    "studies: mlmoc's question answered by retraining for every item; minutes to hours",
    "Mohamadi, Bae & Sutherland 2022, Making Look-Ahead Active Learning Feasible with NTKs",
    _pick,
    needs_network=True,
)
