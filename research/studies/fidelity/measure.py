"""What `python -m research study fidelity` measures.

Predicted changes beside those of real training.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call, vmap

from labelahead.acquisition import flip, mlmoc, variance
from labelahead.acquisition.pool_view import view
from labelahead.errors import InputError, NumericalError
from labelahead.gp.lookahead import lookahead
from labelahead.gp.posterior import Posterior, prior
from labelahead.models import build_model, get_model_spec
from labelahead.models.training import get_default_training, predict, train
from labelahead.ntk import kernel
from research.studies.design import Cell, Row
from research.studies.study_data import items, one_hot, some

__all__ = [
    "agreement",
    "continue_training",
    "rows_of",
    "same_steps",
    "score_repetitions",
    "side_by_side",
]

KINDS = ("pseudo", "trace", "full")
HALVINGS = 6  # of the rate, before descent counts as impossible
RUNAWAY = 2.0  # a loss so many times the first one has run away


def rows_of(s: Any, cell: Cell) -> Sequence[Row]:
    """The rows of one cell of the study."""
    return {"warm": warm, "cold": cold}[cell["part"]](s, cell)


@dataclass(frozen=True, eq=False)
class Stage:
    """A trained network, and the items it is looked at with: labelled, candidates, evaluation."""

    model: nn.Module
    x: Tensor  # (n + q + e, ...)
    labels: Tensor  # (n + q + e,)
    y: Tensor  # (n + q + e, C)
    n: int
    q: int

    @property
    def labelled_rows(self) -> slice:
        """The labelled items."""
        return slice(0, self.n)

    @property
    def candidate_rows(self) -> slice:
        """The candidates."""
        return slice(self.n, self.n + self.q)

    @property
    def evaluation_rows(self) -> slice:
        """The evaluation points."""
        return slice(self.n + self.q, len(self.x))

    def at(self, part: slice) -> Tensor:
        """Positions of a part."""
        return torch.arange(len(self.x))[part]


def stage(s: Any, cell: Cell, q: int) -> Stage:
    """The items of a seed, and the network trained on the labelled ones as the product does it."""
    data, seed = items(s.data, s.root), cell["seed"]
    at = some(data, s.initial + q + s.evaluation, seed, "fidelity")
    x, labels = data.inputs[at], data.labels[at]
    model = build_model(cell["model"], data.shape, data.classes, width=cell["width"], seed=seed)
    how = replace(get_default_training(cell["model"]), steps=cell["before"])
    train(model, x[: s.initial], labels[: s.initial], data.classes, how, seed=seed)
    return Stage(model, x, labels, one_hot(labels, data.classes), s.initial, q)


def warm(s: Any, cell: Cell) -> list[Row]:
    """Look-ahead from the trained network against gradient descent that goes on from there."""
    image = get_model_spec(cell["model"]).inputs == "image"
    st = stage(s, cell, s.conv_candidates if image else s.candidates)
    f = predict(st.model, st.x).double()
    thetas = {kind: kernel(st.model, st.x, kind=kind).double() for kind in KINDS}
    guess = torch.zeros_like(f).scatter_(1, f.argmax(1)[:, None], 1.0)[st.candidate_rows]
    true = st.y[st.candidate_rows]
    wrong = (guess != true).any(1).nonzero().squeeze(1)  # only they need a second training
    every = torch.cat([torch.arange(st.q), wrong])
    extra = st.x[st.candidate_rows][every], torch.cat([true, guess[wrong]])
    out, rate = _descent(s, st, st.model, thetas["full"], extra, s.marks)
    out = out.double()
    real = out[:, : st.q] - out[:, -1:]  # (T, q, e, C)
    posts = {k: posterior(f, theta, st, s.noise) for k, theta in thetas.items()}
    guesses = {k: [ahead(post, st)] * len(s.marks) for k, post in posts.items()}
    stepped = same_steps(f, thetas["full"], st, rate, s.momentum, s.marks)
    guesses["full, same steps"] = list(stepped)
    surprise = (true - f[st.candidate_rows]).norm(dim=1)
    common: dict[str, Any] = {
        "train_loss": float((f - st.y)[st.labelled_rows].square().sum(1).mean() / 2),
        "accuracy": float((f.argmax(1) == st.labels)[st.evaluation_rows].double().mean()),
        "rate": rate,
    }
    rows: list[Row] = []
    for kind, each in guesses.items():
        for mark, p, r in zip(s.marks, each, real, strict=True):
            rows.append(
                {
                    "row": "summary",
                    "kernel": kind,
                    "steps": mark,
                    **common,
                    **agreement(p, r, surprise),
                }
            )
    rows += _candidates(guesses, real[-1], surprise)
    after = out[-1, : st.q].clone()
    after[wrong] = out[-1, st.q : -1]
    return rows + _scores(posts["pseudo"], st, f, real[-1], out[-1], after)


def _candidates(guesses: dict[str, list[Tensor]], real: Tensor, surprise: Tensor) -> list[Row]:
    """One row a candidate: sizes of the predicted and of the real change."""
    sizes = {k: v[-1].flatten(1).norm(dim=1) for k, v in guesses.items()}
    size = real.flatten(1).norm(dim=1)
    return [
        {
            "row": "candidate",
            "candidate": j,
            "real": float(size[j]),
            "residual": float(surprise[j]),
            **{f"predicted_{k}": float(sizes[k][j]) for k in KINDS},
        }
        for j in range(len(size))
    ]


def _scores(
    post: Posterior, st: Stage, f: Tensor, real: Tensor, out: Tensor, after: Tensor
) -> list[Row]:
    """How the scores, taken before the label is known, rank what the label really does.

    out: outputs at the evaluation points after training with the true label (the last one:
    without). after: the same with the network's own guess for the label, as MLMOC supposes.
    """
    here, there = st.at(st.candidate_rows), st.at(st.evaluation_rows)
    now, y, without = f[st.evaluation_rows], st.y[st.evaluation_rows], out[-1]
    top = f[st.candidate_rows].topk(2, dim=1).values
    v = view(post, here, there)
    scores = {
        "MLMOC": mlmoc(v),
        "flip": flip(v),
        "variance": variance(v),
        "small margin": top[:, 1] - top[:, 0],
    }
    errors = (out[: st.q] - y).square().sum((1, 2))
    truths = {
        "mlmoc": (after - now).norm(dim=2).sum(1),
        "change": real.norm(dim=2).sum(1),
        "decisions": (out[: st.q].argmax(2) != without.argmax(1)).sum(1),
        "gain": (without - y).square().sum() - errors,
    }
    predicted = ahead(post, st)
    mean = post.mean[st.evaluation_rows]
    scores["look-ahead, true label"] = predicted.norm(dim=2).sum(1)
    fall = (mean - y).square().sum() - (mean + predicted - y).square().sum((1, 2))
    ranks = {k: {t: rank(v, real) for t, real in truths.items()} for k, v in scores.items()}
    ranks["look-ahead, true label"]["gain"] = rank(fall, truths["gain"])
    return [{"row": "score", "score": k, **v} for k, v in ranks.items()]


def posterior(f: Tensor, theta: Tensor, st: Stage, noise: float) -> Posterior:
    """The linearised network given the labelled items, as `QueryContext.posterior` makes it."""
    return prior(f, theta, noise=noise).condition(st.at(st.labelled_rows), st.y[st.labelled_rows])


def ahead(post: Posterior, st: Stage) -> Tensor:
    """(q, e, C): what each candidate's true label changes, f₊ − f_lin (LA-12)."""
    after = lookahead(
        post, st.at(st.candidate_rows), st.y[st.candidate_rows], evaluate=st.at(st.evaluation_rows)
    )
    return torch.cat(list(after)) - post.mean[st.evaluation_rows]


def cold(s: Any, cell: Cell) -> list[Row]:
    """Look-ahead against training that goes on, that begins again, and against no label at all."""
    st = stage(s, cell, s.cold_candidates)
    shape, classes = tuple(st.x.shape[1:]), st.y.shape[1]

    def fresh(seed: int) -> nn.Module:
        return build_model(cell["model"], shape, classes, width=cell["width"], seed=seed)

    f = predict(st.model, st.x).double()
    guess = ahead(posterior(f, kernel(st.model, st.x).double(), st, s.noise), st)
    surprise = (st.y - f)[st.candidate_rows].norm(dim=1)
    new, other = fresh(cell["seed"]), fresh(cell["seed"] + 1000)
    changes = {
        "warm, gradient descent": _run_gradient_descent(s, st, st.model, s.marks[-1]),
        "warm, the usual training": _run_training(s, cell, st, st.model),
        "cold, gradient descent": _run_gradient_descent(s, st, new, s.cold_steps),
        "cold, the usual training": _run_training(s, cell, st, new),
    }
    rows: list[Row] = [
        {"kind": kind, "label": True, **score_repetitions(guess, real, surprise)}
        for kind, real in changes.items()
    ]
    for kind, first, second in (
        ("cold, no label: other order", new, new),
        ("cold, no label: other weights", new, other),
    ):
        noise = _noise(s, cell, st, first, second)
        alike = score_repetitions(guess, noise.expand(st.q, *noise.shape), surprise)
        rows.append(
            {
                "kind": kind,
                "label": False,
                **{k: alike[k] for k in ("predicted", "real", "ratio", "cosine")},
            }
        )
    return rows


def _descent(
    s: Any,
    st: Stage,
    model: nn.Module,
    theta: Tensor,
    extra: tuple[Tensor, Tensor],
    marks: Sequence[int],
) -> tuple[Tensor, float]:
    """(T, q + 1, e, C): gradient descent from these weights, with each extra item and without; and
    its rate.

    theta: the full kernel of labelled items and candidates at these weights.
    """
    return continue_training(
        model,
        st.x[st.labelled_rows],
        st.y[st.labelled_rows].to(st.x),
        *extra,
        st.x[st.evaluation_rows],
        rate=s.step / stiffness(theta, st),
        marks=marks,
        momentum=s.momentum,
        chunk=s.chunk,
    )


def _run_gradient_descent(s: Any, st: Stage, model: nn.Module, steps: int) -> Tensor:
    """(q, 1, e, C): after so many steps from these weights, with each candidate minus without."""
    theta = kernel(model, st.x[: st.n + st.q], kind="full").double()
    out, _ = _descent(
        s, st, model, theta, (st.x[st.candidate_rows], st.y[st.candidate_rows]), (steps,)
    )
    return (out[0, :-1] - out[0, -1])[:, None].double()


def _run_training(s: Any, cell: Cell, st: Stage, start: nn.Module) -> Tensor:
    """(q, R, e, C): the recipe from these weights, with each candidate minus without.

    One seed a repetition, for both. It does not make their batches alike: one more item, another
    shuffle. That is what anybody sees who retrains.
    """
    known = st.at(st.labelled_rows)
    without = torch.stack([_outputs(cell, st, start, known, r) for r in range(s.repeats)])
    changes = [
        torch.stack(
            [_outputs(cell, st, start, torch.cat([known, j[None]]), r) for r in range(s.repeats)]
        )
        - without
        for j in st.at(st.candidate_rows)
    ]
    return torch.stack(changes)


def _noise(s: Any, cell: Cell, st: Stage, first: nn.Module, second: nn.Module) -> Tensor:
    """(R, e, C): two trainings on the same labels, in another order, perhaps from other weights."""
    known = st.at(st.labelled_rows)
    return torch.stack(
        [
            _outputs(cell, st, first, known, r) - _outputs(cell, st, second, known, 500 + r)
            for r in range(s.repeats)
        ]
    )


def _outputs(cell: Cell, st: Stage, start: nn.Module, at: Tensor, seed: int) -> Tensor:
    """(e, C) at the evaluation points, after the recipe on the items `at` from these weights."""
    model = copy.deepcopy(start)
    how = replace(get_default_training(cell["model"]), steps=cell["before"])
    train(model, st.x[at], st.labels[at], st.y.shape[1], how, seed=7919 * cell["seed"] + seed)
    return predict(model, st.x[st.evaluation_rows]).double()


def score_repetitions(guess: Tensor, real: Tensor, surprise: Tensor) -> Mapping[str, Any]:
    """Changes of R repetitions (q, R, e, C) against the predicted (q, e, C).

    The agreement is that of one repetition, averaged over them; mean_*: that of their mean.
    repeats: the part of the squared size that comes again, mean of ⟨Δ_r, Δ_s⟩ over r ≠ s over the
    mean of ‖Δ_r‖².
    """
    single = [agreement(guess, real[:, r], surprise) for r in range(real.shape[1])]
    averages: dict[str, Any] = {k: sum(one[k] for one in single) / len(single) for k in single[0]}
    if real.shape[1] > 1:
        flat = real.flatten(2).double()
        gram = flat @ flat.mT  # (q, R, R)
        own = gram.diagonal(dim1=1, dim2=2).sum(1)
        r = real.shape[1]
        cross = (gram.sum((1, 2)) - own) / (r * (r - 1))
        averages["repeats"] = float(cross.sum() / (own / r).sum())
        mean = agreement(guess, real.mean(1), surprise)
        averages |= {
            "mean_cosine": mean["cosine"],
            "mean_spearman": mean["spearman"],
            "mean_ratio": mean["ratio"],
        }
    return averages


def agreement(predicted: Tensor, real: Tensor, surprise: Tensor) -> dict[str, float]:
    """Predicted and real changes (q, e, C) compared; surprise (q,): ‖y' − f(x')‖, the null.

    partial: Spearman's correlation of both sizes with the residual's rank taken out of each: what
    look-ahead knows of the order beyond how wrong the network is at x'.
    """
    p, r = predicted.flatten(1).double(), real.flatten(1).double()
    sizes, truth = p.norm(dim=1), r.norm(dim=1)
    cosines = (p * r).sum(1) / (sizes * truth).clamp_min(1e-300)
    both, one, two = rank(sizes, truth), rank(surprise, truth), rank(surprise, sizes)
    rest = max((1 - one**2) * (1 - two**2), 1e-12) ** 0.5
    return {
        "spearman": both,
        "null": one,
        "partial": float(np.clip((both - one * two) / rest, -1, 1)),
        "cosine": float(cosines.mean()),
        "ratio": float((sizes / truth.clamp_min(1e-9)).median()),
        "predicted": float(sizes.mean()),
        "real": float(truth.mean()),
    }


def rank(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation; 0 where one of them is constant and orders nothing."""
    if bool((a == a[0]).all()) or bool((b == b[0]).all()):
        return 0.0
    return float(stats.spearmanr(a.numpy(), b.numpy()).statistic)


def continue_training(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    extra: Tensor,
    extra_targets: Tensor,
    watch: Tensor,
    *,
    rate: float,
    marks: Sequence[int],
    momentum: float = 0.9,
    chunk: int = 64,
) -> tuple[Tensor, float]:
    """`side_by_side` for any number of candidates, and the rate that was stable.

    Where gradient descent diverges, the rate is halved and all copies begin again: a difference
    of two runs means something only if both took the same steps.
    """
    for _ in range(HALVINGS + 1):
        parts = [
            side_by_side(
                model, inputs, targets, z, t, watch, rate=rate, marks=marks, momentum=momentum
            )
            for z, t in zip(
                torch.split(extra, chunk), torch.split(extra_targets, chunk), strict=True
            )
        ]
        outputs = torch.cat([p[:, :-1] for p in parts] + [parts[0][:, -1:]], 1)
        if bool(torch.isfinite(outputs).all()):
            return outputs, rate
        rate /= 2
    raise NumericalError(
        f"gradient descent diverged, also at the rate {rate:.3g}; expected a finite loss: scale "
        "the inputs to order one"
    )


def side_by_side(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    extra: Tensor,
    extra_targets: Tensor,
    watch: Tensor,
    *,
    rate: float,
    marks: Sequence[int],
    momentum: float = 0.9,
) -> Tensor:
    """(T, q + 1, e, C): outputs at `watch` after marks[t] steps; NaN once the loss has run away.

    Copy j < q of the network sees inputs (n, ...) and extra[j], the last one inputs alone. All
    descend ½ Σ ‖y − f(x)‖² over their whole set with heavy-ball momentum, in eval mode: BatchNorm
    keeps its running statistics, as the tangent kernel takes it to. `model` stays as it is.
    """
    if list(marks) != sorted(set(marks)) or not marks or marks[0] < 1:
        raise InputError(f"marks are {list(marks)}; expected growing numbers of steps from 1")
    copies = len(extra) + 1
    z = torch.cat([extra, extra[:1]])
    t = torch.cat([extra_targets, extra_targets[:1]])[:, None].to(targets)
    y = torch.cat([targets.expand(copies, *targets.shape), t], 1)
    weight = torch.ones_like(y[..., :1])
    weight[-1, -1] = 0.0  # the last copy has no candidate
    fixed = dict(model.named_buffers())
    live = {
        k: p.detach().expand(copies, *p.shape).clone().requires_grad_()
        for k, p in model.named_parameters()
    }
    speed = {k: torch.zeros_like(p) for k, p in live.items()}

    def out(p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, (dict(p), fixed), (x,))
        return outputs

    forward = vmap(lambda p, one: out(p, torch.cat([inputs, one[None]])))
    look = vmap(out, in_dims=(0, None))
    model.eval()
    seen: list[Tensor] = []
    first = 0.0
    for step in range(1, marks[-1] + 1):
        losses = 0.5 * (weight * (forward(live, z) - y).square()).sum((1, 2))
        worst = float(losses.detach().max())
        first = first or worst
        # Stable descent of a linearised network never exceeds its first loss. A network that does
        # may settle all the same, with its units dead: no measurement of anything.
        if not worst <= RUNAWAY * first:
            return torch.full((len(marks), copies, len(watch), y.shape[2]), float("nan")).to(y)
        slopes = torch.autograd.grad(losses.sum(), list(live.values()))
        with torch.no_grad():
            for (name, p), slope in zip(live.items(), slopes, strict=True):
                p -= rate * speed[name].mul_(momentum).add_(slope)
            if step in marks:
                seen.append(look(live, watch))
    return torch.stack(seen)


def same_steps(
    f: Tensor, theta: Tensor, st: Stage, rate: float, momentum: float, marks: Sequence[int]
) -> Tensor:
    """(T, q, e, C): the change if the linearised network took the very steps of the real one.

    Without regulariser and stopped at the same time: for a network that is linear in its weights
    this is what `continue_training` finds, exactly. theta: the full kernel.
    """
    c = f.shape[1]
    reach = theta[st.evaluation_rows.start * c :]

    def moved(at: Tensor) -> Tensor:
        rows = (at[:, None] * c + torch.arange(c)).flatten()
        values, vectors = torch.linalg.eigh(theta[rows][:, rows])
        part = vectors.T @ (st.y - f)[at].flatten()
        ways = heavy_ball(values, rate, momentum, marks)  # (T, n·C)
        change: Tensor = (ways * part) @ vectors.T @ reach[:, rows].T
        return change.view(len(marks), -1, c)

    known = st.at(st.labelled_rows)
    without = moved(known)
    return (
        torch.stack([moved(torch.cat([known, j[None]])) for j in st.at(st.candidate_rows)], 1)
        - without[:, None]
    )


def heavy_ball(values: Tensor, rate: float, momentum: float, marks: Sequence[int]) -> Tensor:
    """(T, r): how far the weights go along eigenvectors of these values (r,), per unit residual.

    A residual e falls by λ times the way a: v ← μv + (1 − λa), a ← a + ηv. As steps go on, a
    approaches 1/λ.
    """
    way, speed, seen = torch.zeros_like(values), torch.zeros_like(values), []
    for step in range(1, marks[-1] + 1):
        speed = momentum * speed + (1 - values * way)
        way = way + rate * speed
        if step in marks:
            seen.append(way)
    return torch.stack(seen)


def stiffness(theta: Tensor, st: Stage) -> float:
    """A bound on the largest eigenvalue of the full kernel of labelled items and any candidate."""
    c = st.y.shape[1]
    known = theta[: st.n * c, : st.n * c]
    blocks = torch.stack(
        [theta[i * c : (i + 1) * c, i * c : (i + 1) * c] for i in range(st.n, st.n + st.q)]
    )
    # λ_max of a positive matrix is at most the sum of those of its diagonal blocks
    top = torch.linalg.eigvalsh(blocks).max()
    return float(torch.linalg.eigvalsh(known)[-1] + top)
