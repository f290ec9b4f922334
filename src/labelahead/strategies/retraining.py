"""Naive look-ahead: train on every candidate with its predicted label (LA, Figure 1a)."""

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
from labelahead.devices import to_float64
from labelahead.models.layers import ACTIVATIONS
from labelahead.models.training import Training, predict, train
from labelahead.models.training.fit import iter_batches, iter_learning_rates, make_optimiser
from labelahead.models.training.forward import get_device_and_dtype
from labelahead.strategies.base import Oracle, QueryBatch, Strategy
from labelahead.strategies.context import QueryContext

__all__ = [
    "NAIVE",
    "RETRAIN_EPOCHS",
    "can_stack",
    "retrain_candidates",
    "retrain_sequentially",
    "retrain_stacked",
]

log = logging.getLogger("labelahead")

RETRAIN_EPOCHS = 15  # as in the paper
# Total weights of networks that are trained together. On one core, 48 networks of 26,000 weights
# took 0.27 of the sequential time, 8 at a time 0.40.
MAX_STACKED_WEIGHTS = 1 << 21
FIRST_BATCH_NETWORKS = 8  # size of the first batch, which predicts the total time
DIVERGENCE_THRESHOLD = 1e3  # outputs this large are suspect: targets are of order one
WARN_SECONDS = 10.0  # a longer expected time is logged as a warning
_STACKABLE_LAYERS = (nn.Sequential, nn.Flatten, nn.Linear, nn.Identity, *ACTIVATIONS.values())


def _select_naive(
    context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
) -> QueryBatch:
    """Select the q candidates whose label would change the outputs most.

    The score is Σₓ ‖f₊(x) − f(x)‖₂ over x ≠ x' with y' = argmax f(x').
    """
    max_items = context.query_config.retrainings
    retrained = context.candidates if max_items is None else context.candidates[: max(max_items, q)]
    evaluation = (
        context.candidates
        if context.query_config.evaluation is None
        else context.candidates[: context.query_config.evaluation]
    )
    now = context.start[len(context.labelled) :][: len(evaluation)]
    now = to_float64(now)
    guess = context.candidate_outputs[: len(retrained)].argmax(1).cpu()
    full_training = context.training or Training(loss=context.loss)  # type: ignore[arg-type]
    training = shorten_training(full_training, len(context.labelled) + 1)
    seed = int(torch.randint(2**31, (1,), generator=rng))
    changes: list[Tensor] = []
    start_time = time.perf_counter()
    with context.time_stage("retrain"):
        for after in retrain_candidates(context, retrained, guess, evaluation, training, seed):
            outputs = softmax(after) if context.loss == "cross-entropy" else after
            size = (to_float64(outputs) - now).norm(dim=2)
            first = sum(map(len, changes))  # both lists begin with the same candidates
            size[:, first:].fill_diagonal_(0.0)  # the change at the candidate itself does not count
            changes.append(size.sum(1))
            if len(changes) == 1:
                _log_expected_time(len(retrained), (time.perf_counter() - start_time) / len(after))
    scores = torch.cat(changes).cpu()
    order = torch.sort(scores, descending=True, stable=True).indices[:q]
    return QueryBatch(retrained[order], scores[order])


def shorten_training(training: Training, items: int) -> Training:
    """Limit the campaign's own training to `RETRAIN_EPOCHS` epochs, but not above its own number of
    steps.
    """
    training = training.with_epochs_as_steps(items)
    steps = min(training.steps, RETRAIN_EPOCHS * -(-items // training.batch))
    return replace(training, steps=steps, stop_accuracy=None)


def _log_expected_time(count: int, seconds: float) -> None:
    total = count * seconds
    log.log(
        logging.WARNING if total > WARN_SECONDS else logging.INFO,
        "naive look-ahead: %d retrainings of about %.2g seconds = %.2g minutes; `retrainings` "
        "limits them",
        count,
        seconds,
        total / 60,
    )


def retrain_candidates(
    context: QueryContext,
    at: Tensor,
    labels: Tensor,
    evaluation: Tensor,
    training: Training,
    seed: int,
) -> Iterator[Tensor]:
    """Yield outputs (≤q, e, C) at `evaluation` after training on the labels so far and one item at[j].

    Training continues from the current weights, with the same batches for all items, so that
    differences are due to the item.

    Args:
        context: The query context.
        at: (q,) positions of the items.
        labels: (q,) hypothetical labels.
        evaluation: (e,) positions at which outputs are evaluated.
        training: The training.
        seed: Of the batches.
    """
    if (
        not can_stack(context.model)
        or not isinstance(context.inputs, Tensor)
        or training.augment is not None
    ):
        yield from retrain_sequentially(context, at, labels, evaluation, training, seed)
        return
    max_networks = max(1, MAX_STACKED_WEIGHTS // sum(p.numel() for p in context.model.parameters()))
    parts = [
        *torch.split(at[:FIRST_BATCH_NETWORKS], max_networks),
        *torch.split(at[FIRST_BATCH_NETWORKS:], max_networks),
    ]
    done = 0
    for here in filter(len, parts):
        given = labels[done : done + len(here)]
        done += len(here)
        after = retrain_stacked(context, here, given, evaluation, training, seed)
        bad = ~(after.abs().flatten(1).amax(1) < DIVERGENCE_THRESHOLD)  # NaN is bad, too
        if bool(bad.any()):  # `train` detects divergence and restarts with a smaller rate
            again = retrain_sequentially(
                context, here[bad.cpu()], given[bad.cpu()], evaluation, training, seed
            )
            after[bad] = torch.cat(list(again)).to(after)
        yield after


def retrain_sequentially(
    context: QueryContext,
    at: Tensor,
    labels: Tensor,
    evaluation: Tensor,
    training: Training,
    seed: int,
) -> Iterator[Tensor]:
    """Do the same as `retrain_candidates` for any network, one item at a time: yield (1, e, C)."""
    before, model = context.model.state_dict(), copy.deepcopy(context.model)
    evaluation_inputs = context.inputs[evaluation]
    classes = context.outputs.shape[1]
    for i, label in zip(at[:, None], labels[:, None], strict=True):
        model.load_state_dict(before)
        x, y = context.inputs[torch.cat([context.labelled, i])], torch.cat([context.labels, label])
        train(model, x, y, classes, training, seed=seed)
        yield predict(model, evaluation_inputs)[None]


def can_stack(model: nn.Module) -> bool:
    """Return whether many copies can be trained at once: dense layers only, no randomness, no shared
    weights.

    Convolutions are excluded: 16 networks with 8 channels took 0.36 of the sequential time, but
    with 32 channels the same time, and most such networks have BatchNorm.
    """
    weights = [p for m in model.modules() for p in m.parameters(recurse=False)]
    return (
        isinstance(model, nn.Sequential)
        and all(type(m) in _STACKABLE_LAYERS for m in model.modules())
        and len({id(p) for p in weights}) == len(weights)
        and all(p.requires_grad for p in weights)
    )


def retrain_stacked(
    context: QueryContext,
    at: Tensor,
    labels: Tensor,
    evaluation: Tensor,
    training: Training,
    seed: int,
) -> Tensor:
    """Do the same as `retrain_candidates` for all of `at` at once, with weights stacked (q, ...)."""
    n, q, classes = len(context.labelled), len(at), context.outputs.shape[1]
    device, _ = get_device_and_dtype(context.model, context.inputs)
    x, new = context.fitted.rows(torch.cat([context.labelled, at[:1]])), context.fitted.rows(at)
    y = F.one_hot(torch.cat([context.labels, labels[:1]]), classes).to(context.outputs)
    new_y = F.one_hot(labels, classes).to(context.outputs)
    weights = {
        k: p.detach().expand(q, *p.shape).clone().requires_grad_()
        for k, p in context.model.named_parameters()
    }
    forward = _make_stacked_forward(context.model)
    optimiser = make_optimiser(list(weights.values()), training, training.rate)
    order = iter_batches(n + 1, training.batch, training.steps, seed, pairs=False)
    with torch.enable_grad():
        for part, rate in zip(order, iter_learning_rates(training, training.rate), strict=True):
            rows = torch.arange(n + 1) if part is None else part
            new_row = (rows == n).nonzero().flatten().to(device)
            rows = rows.to(device)
            batch_inputs, target = x[rows], y[rows]
            if len(new_row):  # the only row that differs between the networks
                batch_inputs = batch_inputs.expand(q, *batch_inputs.shape).index_copy(
                    1, new_row, new[:, None]
                )
                target = target.expand(q, *target.shape).index_copy(1, new_row, new_y[:, None])
            optimiser.param_groups[0]["lr"] = rate
            optimiser.zero_grad(set_to_none=True)
            _stacked_loss(
                forward(weights, batch_inputs, bool(len(new_row))), target, training.loss
            ).backward()  # type: ignore[no-untyped-call]
            _clip_gradients(list(weights.values()), training.clip)
            optimiser.step()
    with torch.no_grad():
        return forward(weights, context.fitted.rows(evaluation), False)


def _make_stacked_forward(model: nn.Module) -> Callable[[dict[str, Tensor], Tensor, bool], Tensor]:
    """Return (weights (q, ...), inputs, whether inputs differ per network) -> outputs (q, n, C)."""

    def call_one(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(model, weights, (x,))
        return out

    own, shared = vmap(call_one, (0, 0)), vmap(call_one, (0, None))

    def forward(weights: dict[str, Tensor], x: Tensor, inputs_differ: bool) -> Tensor:
        out: Tensor = (own if inputs_differ else shared)(weights, x)
        return out

    return forward


def _stacked_loss(outputs: Tensor, targets: Tensor, kind: str) -> Tensor:
    """Return the sum over networks of their mean loss, as in `train`."""
    targets = targets.expand_as(outputs)
    if kind == "cross-entropy":
        return -(targets * outputs.log_softmax(2)).sum() / outputs.shape[1]
    return 0.5 * (outputs - targets).square().sum() / outputs.shape[1]


def _clip_gradients(weights: list[Tensor], max_norm: float | None) -> None:
    """Clip each network's gradient to this norm, as `clip_grad_norm_` does."""
    if max_norm is None:
        return
    grads = [p.grad for p in weights if p.grad is not None]
    size = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
    scale = (max_norm / (size + 1e-6)).clamp_max(1.0)
    for g in grads:
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))


NAIVE = Strategy(
    "naive",
    "studies: mlmoc's score by retraining for every item; minutes to hours",
    "Mohamadi, Bae & Sutherland 2022, Making Look-Ahead Active Learning Feasible with NTKs",
    _select_naive,
    needs_network=True,
)
