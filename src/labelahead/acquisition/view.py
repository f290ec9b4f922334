"""All that a strategy may see: predictions, covariance, who is labelled. No label of the pool."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from labelahead import checks
from labelahead.acquisition.cross import Cross, cross
from labelahead.acquisition.probability import probabilities
from labelahead.checks import Positions
from labelahead.covariance import take
from labelahead.errors import InputError
from labelahead.linalg import block_solve
from labelahead.lookahead import innovation
from labelahead.posterior import Posterior, Step

__all__ = ["SOURCES", "Moments", "View", "view"]

SOURCES = ("outputs", "linearised")


class Moments(NamedTuple):
    """Sums over evaluation points x, for every candidate x' that the view began with."""

    squares: Tensor  # (m, b, b): Σₓ k(x',x) k(x,x')
    drift: Tensor  # (m, b, C/b): Σₓ k(x',x) d(x), with d = f_lin − f


@dataclass
class _Known:
    """What a view has worked out so far; filled on demand."""

    cross: Cross | None = None
    moments: Moments | None = None  # for the candidates that `cross` began with
    factors: Tensor | None = None
    drift: Tensor | None = None
    labels: Tensor | None = None  # (n,) argmax f


class View:
    """A posterior, the candidates among its points, and the points that criteria sum over.

    posterior: the present one. candidates: (m,) unlabelled positions. evaluation: (e,) positions.
    embedding: (n, h) or None. An immutable value: `condition` returns a new view, and the two share
    what the label did not change.
    """

    def __init__(
        self,
        posterior: Posterior,
        candidates: Tensor,
        evaluation: Tensor,
        embedding: Tensor | None,
        *,
        hold: bool = False,
        rows: Tensor | None = None,
        known: _Known | None = None,
    ) -> None:
        self.posterior = posterior
        self.candidates = candidates
        self.evaluation = evaluation
        self.embedding = embedding
        self._hold = hold
        # Which rows of the shared sums belong to the candidates that are left.
        device = candidates.device
        self._rows = torch.arange(len(candidates), device=device) if rows is None else rows
        self._known = _Known() if known is None else known

    def __repr__(self) -> str:
        return (
            f"View({len(self.candidates)} candidates, {len(self.evaluation)} evaluation points, "
            f"{len(self.labelled)} labelled, {self.posterior.classes} outputs)"
        )

    @property
    def labelled(self) -> Tensor:
        """(L,) positions labelled so far."""
        return self.posterior.labelled

    @property
    def outputs(self) -> Tensor:
        """(n, C) the network's outputs f."""
        return self.posterior.outputs

    def values(self, source: str) -> Tensor:
        """(n, C): f for source "outputs", f_lin for "linearised"."""
        if source not in SOURCES:
            raise InputError(f"source is {source!r}; expected one of {', '.join(SOURCES)}")
        return self.outputs if source == "outputs" else self.posterior.mean

    def probabilities(self, method: str = "simplex", source: str = "outputs") -> Tensor:
        """(m, C) class probabilities of the candidates."""
        values = take(self.values(source), self.candidates, 0)
        # classes first: sums over them then run along long rows
        return probabilities(values.T.contiguous(), method, 0).T.contiguous()

    def predicted(self, source: str = "outputs") -> Tensor:
        """(m, C) one-hot most likely labels of the candidates."""
        if self.posterior.classes < 2:
            raise InputError(
                "the network has one output, so there is no most likely class; expected two or "
                "more: use `variance`, which needs no label"
            )
        if source == "outputs":  # f does not change from view to view
            if self._known.labels is None:
                self._known.labels = self.outputs.argmax(1)
            best = self._known.labels[self.candidates]
        else:
            best = self.values(source)[self.candidates].argmax(1)
        return self.outputs.new_zeros(len(best), self.posterior.classes).scatter_(
            1, best[:, None], 1.0
        )

    def push(self, targets: Tensor, which: Tensor | None = None) -> Tensor:
        """u⁻¹ (y' − f_lin(x')): what a label pushes with, (q, C) -> (q, b, C/b).

        which: (q,) indices into `candidates`, default all of them.
        """
        factors, at = self.innovations(), self.candidates
        if which is not None:
            factors, at = factors[which], at[which]
        surprise = targets - self.posterior.mean[at]
        return block_solve(factors, surprise.view(len(at), self.posterior.width, -1))

    def innovations(self) -> Tensor:
        """Cholesky factors of u = k(x',x') + σI: (m, b, b)."""
        if self._known.factors is None:
            self._known.factors = innovation(self.posterior, self.candidates)
        return self._known.factors

    def drift(self) -> Tensor:
        """d = f_lin − f at the evaluation points, (e, C)."""
        if self._known.drift is None:
            at = self.evaluation
            self._known.drift = take(self.posterior.mean, at, 0) - take(self.outputs, at, 0)
        return self._known.drift

    def covariance(self, which: Tensor) -> Tensor:
        """k between some candidates and all evaluation points, in the kernel's dtype.

        which: (q,) indices into `candidates`. (q, e); full kernel: (q, C, e, C). Do not modify.
        """
        flat = self._cross().rows(self.posterior.flat(self._rows[which]))
        if self.posterior.width == 1:
            return flat
        b = self.posterior.width
        return flat.view(len(which), b, len(self.evaluation), b)

    def moments(self) -> Moments:
        """Sums over the evaluation points, one row per candidate."""
        every = self._moments()
        return Moments(every.squares[self._rows], every.drift[self._rows])

    def _cross(self) -> Cross:
        if self._known.cross is None:
            self._known.cross = cross(self.posterior, self.candidates, self.evaluation, self._hold)
        return self._known.cross

    def _moments(self) -> Moments:
        if self._known.moments is None:
            k, b = self._cross(), self.posterior.width
            drift = k.product(self.posterior.folded(self.drift()))
            squares, variances = k.squares(b)
            if variances is not None:
                self.posterior.note_variance(self.candidates, variances)
            self._known.moments = Moments(squares, drift.view(len(squares), b, -1))
        return self._known.moments

    def condition(self, at: Positions, targets: Tensor) -> "View":
        """The view after labels arrive: at (q,) positions, targets (q, C).

        Picked candidates leave `candidates`. `evaluation` stays as given: a labelled point's
        covariance is of the order of σ, so it adds the same to every candidate's sum. What has
        been computed is corrected, not dropped: k −= w wᵀ, and with z = k w (METHOD §8)

            s −= 2 w z − w² ‖w‖²,    k d' = k d + z g − w (w·d'),    d' = d + w g.
        """
        step = self.posterior.step(at, targets)
        keep = ~step.posterior.is_labelled[self.candidates]
        known, before = _Known(labels=self._known.labels), self._known.cross
        if before is not None and step.fall is not None:
            known.cross, current = before.less(step)
            if self._known.moments is not None and current:
                known.moments = self._fallen(before, step)
        return View(
            step.posterior,
            self.candidates[keep],
            self.evaluation,
            self.embedding,
            hold=self._hold,
            rows=self._rows[keep] if known.cross is not None else None,
            known=known,
        )

    def _fallen(self, before: Cross, step: Step) -> Moments:
        """The moments after a step, from those before it and one product with k."""
        assert step.fall is not None
        squares, drift = self._moments()
        m, b, p = drift.shape
        w_rows, w_cols = take(step.fall, before.at_rows, 1), take(step.fall, before.at_cols, 1)
        z = before.against(step)
        after = step.posterior.folded(self.drift()) + w_cols.T @ step.gain
        inner, met = w_cols @ w_cols.T, w_cols @ after
        if len(w_rows) == 1:  # one label of a scalar kernel: fused passes instead of products
            w = w_rows[0].view(m, 1, 1)
            moved = drift.addcmul(z.view(m, 1, 1), step.gain).addcmul_(w, met, value=-1)
            return Moments(squares + w * (inner * w - 2 * z.view(m, 1, 1)), moved)
        moved = drift.reshape(m * b, p) + z @ step.gain - w_rows.T @ met
        w_blocks, z_blocks = w_rows.T.reshape(m, b, -1), z.view(m, b, -1)
        twice = w_blocks @ z_blocks.mT
        squares = squares - twice - twice.mT + w_blocks @ inner @ w_blocks.mT
        return Moments(squares, moved.view(m, b, p))


def view(
    posterior: Posterior,
    candidates: Positions,
    evaluation: Positions | None = None,
    embedding: Tensor | None = None,
    *,
    hold: bool = False,
) -> View:
    """What a strategy sees: a posterior and which of its n points may be labelled next.

    candidates: (m,) distinct unlabelled positions. evaluation: (e,) positions whose predictions
    matter, default the candidates (as in LA-13). embedding: (n, h) for strategies that need one.
    hold: keep k(candidates, evaluation) in memory also where the kernel is given by features: m·e
    numbers, and labels that come one by one cost a fraction.
    """
    at = posterior.positions(candidates, "candidates")
    posterior.require_unlabelled(at, "candidates")
    where = at
    if evaluation is not None:
        where = posterior.positions(evaluation, "evaluation")
    if embedding is not None:
        embedding = checks.finite(
            checks.floating(embedding, "embedding", "(n, h)", (2,)), "embedding"
        )
        if len(embedding) != posterior.points:
            raise InputError(
                f"embedding has {len(embedding)} rows; expected {posterior.points}, one per point"
            )
    return View(posterior, at, where, embedding, hold=hold)
