"""What `labelahead study fidelity` measures: predicted changes beside those of real training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from labelahead.acquisition import flip, mlmoc, variance, view
from labelahead.laboratory.experiment import Cell, Row
from labelahead.laboratory.fidelity_training import continued
from labelahead.laboratory.materials import items, one_hot, some
from labelahead.lookahead import lookahead
from labelahead.models import build, spec
from labelahead.posterior import Posterior, prior
from labelahead.tangent import kernel
from labelahead.train import predict, recipe, train

__all__ = ["agreement", "measure", "rank", "same_steps"]

KINDS = ("pseudo", "trace", "full")


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
    def known(self) -> slice:
        """The labelled items."""
        return slice(0, self.n)

    @property
    def asked(self) -> slice:
        """The candidates."""
        return slice(self.n, self.n + self.q)

    @property
    def seen(self) -> slice:
        """The evaluation points."""
        return slice(self.n + self.q, len(self.x))

    def at(self, part: slice) -> Tensor:
        """Positions of a part."""
        return torch.arange(len(self.x))[part]


def measure(s: Any, cell: Cell) -> Sequence[Row]:
    """The rows of one cell of the study."""
    if cell["part"] == "cold":
        from labelahead.laboratory.fidelity_cold import cold

        return cold(s, cell)
    return warm(s, cell)


def stage(s: Any, cell: Cell, q: int) -> Stage:
    """The items of a seed, and the network trained on the labelled ones as the product does it."""
    found, seed = items(s.data, s.root), cell["seed"]
    at = some(found, s.initial + q + s.evaluation, seed, "fidelity")
    x, labels = found.inputs[at], found.labels[at]
    model = build(cell["model"], found.shape, found.classes, width=cell["width"], seed=seed)
    how = replace(recipe(cell["model"]), steps=cell["before"])
    train(model, x[: s.initial], labels[: s.initial], found.classes, how, seed=seed)
    return Stage(model, x, labels, one_hot(labels, found.classes), s.initial, q)


def warm(s: Any, cell: Cell) -> list[Row]:
    """Look-ahead from the trained network against gradient descent that goes on from there."""
    image = spec(cell["model"]).inputs == "image"
    st = stage(s, cell, s.conv_candidates if image else s.candidates)
    f = predict(st.model, st.x).double()
    thetas = {kind: kernel(st.model, st.x, kind=kind).double() for kind in KINDS}
    guess = torch.zeros_like(f).scatter_(1, f.argmax(1)[:, None], 1.0)[st.asked]
    true = st.y[st.asked]
    wrong = (guess != true).any(1).nonzero().squeeze(1)  # only they need a second training
    every = torch.cat([torch.arange(st.q), wrong])
    out, rate = continued(
        st.model, st.x[st.known], st.y[st.known].to(st.x), st.x[st.asked][every],
        torch.cat([true, guess[wrong]]), st.x[st.seen], rate=s.step / stiffness(thetas["full"], st),
        marks=s.marks, momentum=s.momentum, chunk=s.chunk,
    )  # fmt: skip
    out = out.double()
    real = out[:, : st.q] - out[:, -1:]  # (T, q, e, C)
    posts = {k: posterior(f, theta, st, s.noise) for k, theta in thetas.items()}
    guesses = {k: [ahead(post, st)] * len(s.marks) for k, post in posts.items()}
    stepped = same_steps(f, thetas["full"], st, rate, s.momentum, s.marks)
    guesses["full, same steps"] = list(stepped)
    surprise = (true - f[st.asked]).norm(dim=1)
    common: dict[str, Any] = {
        "train_loss": float((f - st.y)[st.known].square().sum(1).mean() / 2),
        "accuracy": float((f.argmax(1) == st.labels)[st.seen].double().mean()),
        "rate": rate,
    }
    rows: list[Row] = []
    for kind, each in guesses.items():
        for mark, p, r in zip(s.marks, each, real, strict=True):
            rows.append({"row": "summary", "kernel": kind, "steps": mark, **common,
                         **agreement(p, r, surprise)})  # fmt: skip
    rows += _candidates(guesses, real[-1], surprise)
    after = out[-1, : st.q].clone()
    after[wrong] = out[-1, st.q : -1]
    return rows + _scores(posts["pseudo"], st, f, real[-1], out[-1], after)


def _candidates(guesses: dict[str, list[Tensor]], real: Tensor, surprise: Tensor) -> list[Row]:
    """One row a candidate: sizes of the predicted and of the real change."""
    sizes = {k: v[-1].flatten(1).norm(dim=1) for k, v in guesses.items()}
    size = real.flatten(1).norm(dim=1)
    return [
        {"row": "candidate", "candidate": j, "real": float(size[j]), "residual": float(surprise[j]),
         **{f"predicted_{k}": float(sizes[k][j]) for k in KINDS}}
        for j in range(len(size))
    ]  # fmt: skip


def _scores(
    post: Posterior, st: Stage, f: Tensor, real: Tensor, out: Tensor, after: Tensor
) -> list[Row]:
    """How the scores, taken before the label is known, rank what the label really does.

    out: outputs at the evaluation points after training with the true label (the last one:
    without). after: the same with the network's own guess for the label, as MLMOC supposes.
    """
    here, there = st.at(st.asked), st.at(st.seen)
    now, y, without = f[st.seen], st.y[st.seen], out[-1]
    top = f[st.asked].topk(2, dim=1).values
    v = view(post, here, there)
    scores = {
        "MLMOC": mlmoc(v), "flip": flip(v), "variance": variance(v),
        "small margin": top[:, 1] - top[:, 0],
    }  # fmt: skip
    errors = (out[: st.q] - y).square().sum((1, 2))
    truths = {
        "mlmoc": (after - now).norm(dim=2).sum(1),
        "change": real.norm(dim=2).sum(1),
        "decisions": (out[: st.q].argmax(2) != without.argmax(1)).sum(1),
        "gain": (without - y).square().sum() - errors,
    }
    predicted = ahead(post, st)
    mean = post.mean[st.seen]
    scores["look-ahead, true label"] = predicted.norm(dim=2).sum(1)
    fall = (mean - y).square().sum() - (mean + predicted - y).square().sum((1, 2))
    told = {k: {t: rank(v, real) for t, real in truths.items()} for k, v in scores.items()}
    told["look-ahead, true label"]["gain"] = rank(fall, truths["gain"])
    return [{"row": "score", "score": k, **v} for k, v in told.items()]


def posterior(f: Tensor, theta: Tensor, st: Stage, noise: float) -> Posterior:
    """The linearised network given the labelled items, as `Situation.posterior` makes it."""
    return prior(f, theta, noise=noise).condition(st.at(st.known), st.y[st.known])


def ahead(post: Posterior, st: Stage) -> Tensor:
    """(q, e, C): what each candidate's true label changes, f₊ − f_lin (LA-12)."""
    found = lookahead(post, st.at(st.asked), st.y[st.asked], evaluate=st.at(st.seen))
    return torch.cat(list(found)) - post.mean[st.seen]


def same_steps(
    f: Tensor, theta: Tensor, st: Stage, rate: float, momentum: float, marks: Sequence[int]
) -> Tensor:
    """(T, q, e, C): the change if the linearised network took the very steps of the real one.

    Without regulariser and stopped at the same time: for a network that is linear in its weights
    this is what `continued` finds, exactly. theta: the full kernel.
    """
    c = f.shape[1]
    reach = theta[st.seen.start * c :]

    def moved(at: Tensor) -> Tensor:
        rows = (at[:, None] * c + torch.arange(c)).flatten()
        values, vectors = torch.linalg.eigh(theta[rows][:, rows])
        part = vectors.T @ (st.y - f)[at].flatten()
        ways = heavy_ball(values, rate, momentum, marks)  # (T, n·C)
        found: Tensor = (ways * part) @ vectors.T @ reach[:, rows].T
        return found.view(len(marks), -1, c)

    known = st.at(st.known)
    without = moved(known)
    return (
        torch.stack([moved(torch.cat([known, j[None]])) for j in st.at(st.asked)], 1)
        - without[:, None]
    )


def heavy_ball(values: Tensor, rate: float, momentum: float, marks: Sequence[int]) -> Tensor:
    """(T, r): how far the weights go along eigenvectors of these values (r,), per unit residual.

    A residual e falls by λ times the way a: v ← μv + (1 − λa), a ← a + ηv. As steps go on, a
    approaches 1/λ.
    """
    way, speed, found = torch.zeros_like(values), torch.zeros_like(values), []
    for step in range(1, marks[-1] + 1):
        speed = momentum * speed + (1 - values * way)
        way = way + rate * speed
        if step in marks:
            found.append(way)
    return torch.stack(found)


def stiffness(theta: Tensor, st: Stage) -> float:
    """A bound on the largest eigenvalue of the full kernel of labelled items and any candidate."""
    c = st.y.shape[1]
    known = theta[: st.n * c, : st.n * c]
    blocks = torch.stack([theta[i * c : (i + 1) * c, i * c : (i + 1) * c]
                          for i in range(st.n, st.n + st.q)])  # fmt: skip
    # λ_max of a positive matrix is at most the sum of those of its diagonal blocks
    top = torch.linalg.eigvalsh(blocks).max()
    return float(torch.linalg.eigvalsh(known)[-1] + top)


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
