"""What `python -m research study dynamics` measures, one function a part."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from labelahead.gp.dynamics import alignment, dynamics_mse, generalisation_bound, mmd, residuals
from labelahead.gp.flow import gradient_flow
from labelahead.models import build_model
from labelahead.models.training import Training, predict, train
from labelahead.ntk import infinite_kernel, kernel
from labelahead.seeds import make_generator
from labelahead.simulation.comparison.summary import query_seconds
from labelahead.simulation.run import Result
from labelahead.strategies.dynamical import dynamics, gains, total_gradient
from research.studies.design import Cell, Row
from research.studies.study_data import (
    StudyData,
    campaign,
    items,
    one_hot,
    prepare_with_answers,
    share_right,
    some,
)

__all__ = [
    "correlation",
    "fresh_kernel",
    "identity",
    "network",
    "ratio",
    "rounds",
    "rows_of",
    "single_and_joint",
]


INFINITE = "infinite"  # among networks whose kernel is taken


def rows_of(s: Any, cell: Cell) -> Sequence[Row]:
    """The rows of one cell of the study."""
    made = {"identity": identity, "ratio": ratio, "correlation": correlation, "rounds": rounds}
    return made[cell["part"]](s, cell)


def identity(s: Any, cell: Cell) -> list[Row]:
    """G(S) by its definition, Σᵢⱼ dᵢᵀ Θ(xᵢ,xⱼ) dⱼ, and as ‖∇L(S)‖² (DY-8); float64."""
    data = items(s.data, s.root)
    at = some(data, min(s.identity_items, s.initial), cell["seed"])
    x, y = data.inputs[at].double(), data.labels[at]
    model = network(s, data, cell["seed"]).double().eval()
    d = residuals(predict(model, x), y)
    full = kernel(model, x, kind="full")
    defined = float(d.flatten() @ full @ d.flatten())
    square = dynamics(model, x, d)
    return [
        {
            "items": len(at),
            "definition": defined,
            "gradient": square,
            "relative_difference": abs(defined - square) / square,
        }
    ]


def ratio(s: Any, cell: Cell) -> list[Row]:
    """R(Q|S) of random batches and of the batch that dynamicAL takes, along training (DY-14)."""
    data, seed = items(s.data, s.root), cell["seed"]
    at = some(data, s.initial + s.pool, seed)
    mine, pool = at[: s.initial], at[s.initial :]
    x, y = data.inputs[mine], data.labels[mine]
    model = network(s, data, seed)
    rows: list[Row] = []
    per_epoch, before = -(-s.initial // s.train_batch), 0
    for epoch in s.epochs:
        if epoch > before:
            steps = (epoch - before) * per_epoch
            how = _training(s, steps=steps, stop_accuracy=None)
            train(model, x, y, data.classes, how, seed=seed + epoch)
            before = epoch
        model.eval()
        right = share_right(predict(model, x), y)
        for row in _ratios(s, model, x, y, data.inputs[pool], seed):
            rows.append({"epoch": epoch, "train_accuracy": right, **row})
    return rows


def _ratios(s: Any, model: Any, x: Tensor, y: Tensor, pool: Tensor, seed: int) -> list[Row]:
    """Mean R over random batches of each size, and R of the best ones by score."""
    towards = total_gradient(model, x, residuals(predict(model, x), y))
    out = predict(model, pool)
    guess = residuals(out, out.argmax(1))
    squares = gains(model, pool, guess, towards, 0.0).double()
    order = (gains(model, pool, guess, towards, 2.0)).argsort(descending=True)
    rows: list[Row] = []
    for batch in s.batches:
        rng = make_generator(seed, "draws", batch)
        picks = [torch.randperm(len(pool), generator=rng)[:batch] for _ in range(s.ratio_draws)]
        drawn = [single_and_joint(model, pool, guess, towards, squares, q) for q in picks]
        values = torch.tensor([single / joint for single, joint in drawn]).double()
        sums = torch.tensor(drawn).double().sum(0)
        single, joint = single_and_joint(model, pool, guess, towards, squares, order[:batch])
        rows.append(
            {
                "batch": batch,
                "ratio": float(values.mean()),
                "sd": float(values.std()),
                "ratio_of_means": float(sums[0] / sums[1]),
                "selected": single / joint,
            }
        )
    return rows


def single_and_joint(
    model: Any, pool: Tensor, guess: Tensor, towards: dict[str, Tensor], squares: Tensor, q: Tensor
) -> tuple[float, float]:
    """Σ_Q Δ(x|S) and Δ(Q|S); the pairs of DY-13 are in the square of the summed gradient."""
    g = total_gradient(model, pool[q], guess[q])
    cross = 2 * sum(float((g[k].double() * towards[k].double()).sum()) for k in g)
    joint = sum(float(v.double().square().sum()) for v in g.values())
    return float(squares[q].sum()) + cross, joint + cross


def correlation(s: Any, cell: Cell) -> list[Row]:
    """G_MSE, A and B of S ∪ Q for random Q, with f as it is after training time t on S.

    The kernel is that of a fresh network, f starts at zero (the paper's wide limit), t counts in
    units of one over the kernel's mean diagonal times |S|. Without training (t = 0) f vanishes and
    G_MSE is A itself.
    """
    data, seed = items(s.data, s.root), cell["seed"]
    at = some(data, s.initial + s.pool, seed, "correlation")
    n, pool = s.initial, torch.arange(s.initial, s.initial + s.pool)
    theta = fresh_kernel(s, data.inputs[at], data.classes, seed)
    y = one_hot(data.labels[at], data.classes)
    times = [t / n if not math.isinf(t) else t for t in s.times]
    flows = gradient_flow(torch.zeros_like(y), theta, torch.arange(n), y[:n], times, noise=1e-6)
    rng, rows = make_generator(seed, "draws"), list[Row]()
    pseudo = one_hot(flows[-1].argmax(1), data.classes)
    pseudo[:n] = y[:n]
    for draw in range(s.draws):
        q = pool[torch.randperm(len(pool), generator=rng)[: s.correlation_batch]]
        both = torch.cat([torch.arange(n), q])
        K, Y = theta[both][:, both], y[both]
        row = {"draw": draw, "alignment": alignment(K, Y), "bound": generalisation_bound(K, Y)}
        for t, f in zip(s.times, flows, strict=True):
            row[f"true_{t:g}"] = dynamics_mse(K, f[both], Y)
            row[f"pseudo_{t:g}"] = dynamics_mse(K, f[both], pseudo[both])
        rows.append(row)
    return rows


def rounds(s: Any, cell: Cell) -> list[Row]:
    """A campaign as the paper runs it; accuracy, MMD and B after every round."""
    strategy, _, mode = cell["strategy"].partition(":")
    done = campaign(
        s,
        cell["seed"],
        asking={
            "strategy": strategy,
            "mode": mode or None,
            "gamma": float(cell["gamma"]),
            "candidates": s.candidates,
        },
        training=asdict(_training(s, start=cell["start"])),
        batch=cell["batch"],
        rounds=cell["rounds"],
    )
    spread = _distances(s, cell, done) if cell["kernel"] else {}
    return [
        {
            "round": r.number,
            "labels": r.labels,
            "accuracy": r.accuracy,
            "steps": r.steps,
            "train_accuracy": r.train_accuracy,
            "asking_seconds": round(query_seconds(r), 4),
            "train_seconds": round(r.seconds["train"], 4),
            **spread.get(r.labels, {}),
        }
        for r in done.rounds
    ]


def _distances(s: Any, cell: Cell, done: Result) -> dict[int, dict[str, float]]:
    """By number of labels: MMD between the first and all labels (DY-33), and B (DY-18)."""
    ready, answers = prepare_with_answers(done)
    chosen, classes = done.pool.labelled, len(ready.data.classes)
    theta = fresh_kernel(s, ready.rows[chosen], classes, cell["seed"])
    y = one_hot(answers.take(chosen), classes)
    by_labels: dict[int, dict[str, float]] = {}
    for r in done.rounds:
        n = r.labels
        K = theta[:n, :n]
        square, bound = mmd(K, s.initial), generalisation_bound(K, y[:n])
        distance = max(square, 0.0) ** 0.5  # unbiased, so it can fall below zero
        by_labels[n] = {
            "mmd_squared": square,
            "mmd": distance,
            "bound": bound,
            "mmd_over_bound": distance / bound,
        }
    return by_labels


def fresh_kernel(s: Any, x: Tensor, classes: int, seed: int) -> Tensor:
    """A fresh network's kernel, mean diagonal 1: MMD/B grows with the scale, so one is fixed.

    kernel_model "infinite": that of infinite width, convolutional, of images averaged to
    kernel_side pixels a side.
    """
    if s.kernel_model == INFINITE:
        sides = min(s.kernel_side, x.shape[2]), min(s.kernel_side, x.shape[3])
        K = infinite_kernel(
            functional.adaptive_avg_pool2d(x.double(), sides),
            network="conv",
            depth=(s.kernel_depth or 4) - 1,
        )
        return K / K.diagonal().mean()
    more = {} if s.kernel_depth is None else {"depth": s.kernel_depth}
    shape = tuple(x.shape[1:])
    model = build_model(s.kernel_model, shape, classes, width=s.kernel_width, seed=seed, **more)
    K = kernel(model.eval(), x, kind="pseudo").double()
    return K / K.diagonal().mean()


def network(s: Any, data: StudyData, seed: int) -> Any:
    """New weights."""
    return build_model(s.model, data.shape, data.classes, width=s.width, seed=seed)


def _training(s: Any, **changes: Any) -> Training:
    """As the paper trains: cross-entropy, constant rate, until the training set is learnt."""
    settings = {
        "loss": "cross-entropy",
        "optimiser": "adam",
        "rate": s.rate,
        "schedule": "constant",
        "steps": s.steps,
        "batch": s.train_batch,
        "start": "warm",
        "stop_accuracy": s.stop_accuracy,
    } | changes
    return Training(**settings)
