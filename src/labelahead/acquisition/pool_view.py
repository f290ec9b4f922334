"""What an acquisition function sees: the posterior, the candidates and the evaluation points.

Every acquisition function needs k(candidates, evaluation). It is expensive to form, (m·b, e·b), and
a new label changes all of it by a matrix of low rank. So it is formed once, and the downdates since
then are stored beside it: a sequential step is one matrix-vector product and copies nothing.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from labelahead.acquisition.probability import probabilities
from labelahead.errors import InputError
from labelahead.gp import checks
from labelahead.gp.checks import Noise, Positions
from labelahead.gp.covariance import Covariance, LowRankKernel, take
from labelahead.gp.linalg import block_solve, symmetric_product
from labelahead.gp.lookahead import innovation_factors
from labelahead.gp.posterior import Posterior, PosteriorUpdate

__all__ = ["View", "view"]

MAX_PENDING_ROWS = 64  # downdate rows stored beside a block before they are merged into it
ROWS_PER_CHUNK = 256


@dataclass(frozen=True, eq=False)
class StoredCrossCovariance:
    """k(candidates, evaluation) in memory, for the candidates of the first view.

    k = block − pending_rowsᵀ pending_cols, with the downdates since the block was formed. Sums over
    it are float64, blocks of it have the kernel's dtype.
    """

    block: Tensor  # (m·b, e·b), never modified
    at_rows: Tensor  # (m·b,) flat positions
    at_cols: Tensor  # (e·b,)
    symmetric: bool = False  # evaluation = candidates
    pending_rows: Tensor | None = None  # (t, m·b)
    pending_cols: Tensor | None = None  # (t, e·b)

    def rows(self, candidate_rows: Tensor) -> Tensor:
        """Rows (q,) of the flat candidates, pending downdates included: (q, e·b). Do not modify."""
        rows = take(self.block, candidate_rows, 0)
        if self.pending_rows is None or self.pending_cols is None:
            return rows
        left = self.pending_rows[:, candidate_rows].T.to(rows.dtype)
        return torch.addmm(rows, left, self.pending_cols.to(rows.dtype), alpha=-1)

    def product(self, right: Tensor) -> Tensor:
        """Compute k right by one pass over the block: (e·b, p) -> (m·b, p)."""
        narrow = right.to(self.block.dtype)
        if right.shape[1] == 1:  # Bound by memory: gemv, or symv, which reads half.
            product = symmetric_product if self.symmetric else torch.mv
            out = product(self.block, narrow[:, 0])[:, None].to(torch.float64)
        else:
            out = (self.block @ narrow).to(torch.float64)
        if self.pending_rows is not None and self.pending_cols is not None:
            out = out - self.pending_rows.T @ (self.pending_cols @ right)
        return out

    def squares(self, b: int) -> tuple[Tensor, Tensor | None]:
        """Σₓ k(x',x) k(x',x)ᵀ for every candidate, (m, b, b), and None for the variances."""
        parts, size = [], max(1, ROWS_PER_CHUNK // b) * b
        every = torch.arange(len(self.block), device=self.block.device)
        for lo in range(0, len(every), size):
            part = self.rows(every[lo : lo + size])
            if b == 1:
                parts.append(torch.linalg.vector_norm(part, dim=1).square().view(-1, 1, 1))
            else:
                grid = part.view(-1, b, part.shape[1])
                parts.append(grid @ grid.mT)
        return torch.cat(parts).to(torch.float64), None

    def multiply_downdate(self, step: PosteriorUpdate) -> Tensor:
        """Multiply k by the downdate at the evaluation points, (m·b, q): one product per step."""
        assert step.downdate is not None
        return self.product(take(step.downdate, self.at_cols, 1).T)

    def update(self, step: PosteriorUpdate) -> tuple["StoredCrossCovariance", bool]:
        """Return k after `step`, and whether its sums can be updated rather than recomputed.

        The downdate is appended; many pending rows are merged into a new block.
        """
        assert step.downdate is not None
        rows, cols = take(step.downdate, self.at_rows, 1), take(step.downdate, self.at_cols, 1)
        if self.pending_rows is not None and self.pending_cols is not None:
            rows, cols = torch.cat([self.pending_rows, rows]), torch.cat([self.pending_cols, cols])
        if len(rows) <= MAX_PENDING_ROWS:
            return replace(self, pending_rows=rows, pending_cols=cols), True
        left, right = rows.to(self.block.dtype), cols.to(self.block.dtype)
        folded = torch.addmm(self.block, left.T, right, alpha=-1)
        return replace(self, block=folded, pending_rows=None, pending_cols=None), False


@dataclass(frozen=True, eq=False)
class ProjectedCrossCovariance:
    """k(candidates, evaluation) by features: k = Ψ_c (I − VᵀV) Ψ_eᵀ, never formed.

    Sums over x use the k×k Gram matrix Ψ_eᵀΨ_e, which labels do not change.
    """

    covariance: Covariance
    at_rows: Tensor
    at_cols: Tensor
    _cache: dict[str, Tensor] = field(default_factory=dict)

    @property
    def kernel(self) -> LowRankKernel:
        """The prior kernel, which holds the features."""
        assert isinstance(self.covariance.prior, LowRankKernel)
        return self.covariance.prior

    def rows(self, candidate_rows: Tensor) -> Tensor:
        """Rows (q,) of the flat candidates: (q, e·b), computed on every call."""
        return self.covariance.block(self.at_rows[candidate_rows], self.at_cols)

    def gram(self) -> Tensor:
        """Ψ_eᵀ Ψ_e: (k, k), products in the features' dtype, summed in float64; cached."""
        if "gram" not in self._cache:
            self._cache["gram"] = _gram(take(self.kernel.features, self.at_cols, 0))
        return self._cache["gram"]

    def _multiply_projected(self, weights: Tensor) -> Tensor:
        """Ψ_c (I − VᵀV) weights: (k, p) -> (m·b, p)."""
        rest = self.kernel.project_out(self.covariance.factors, weights.T)
        psi = take(self.kernel.features, self.at_rows, 0)
        rest = rest.to(psi.dtype)
        # With few columns this is several times as fast as psi @ rest.T.
        out = (psi @ rest[0])[None] if len(rest) == 1 else rest @ psi.T
        return out.T.to(torch.float64)

    def product(self, right: Tensor) -> Tensor:
        """Compute k right by two passes over the features: (e·b, p) -> (m·b, p)."""
        psi = take(self.kernel.features, self.at_cols, 0)
        return self._multiply_projected((right.T.to(psi.dtype) @ psi).T.to(torch.float64))

    def squares(self, b: int) -> tuple[Tensor, Tensor | None]:
        """ψ A G A ψᵀ and the candidates' variances ψ A ψᵀ, A = I − VᵀV: (m, b, b) each, O(m k²).

        The order matters in float32. A is formed in float64 and ψA is multiplied out first: where
        labels determine a point it is small, and stays small. Measured at σ = 1e-5 of the scale,
        on exact copies of labelled points: u within 0.3 %, squares within 1 %; rounding A G A
        instead is wrong by a factor of 20, and ‖ψ‖² − ‖Vψ‖² in float32 by 14 %.
        """
        dtype, features = self.kernel.dtype, self.kernel.features
        rest_of = torch.eye(features.shape[1], dtype=torch.float64, device=features.device)
        for factor in self.covariance.factors:
            rest_of.addmm_(factor.T, factor, alpha=-1)
        rest_of, gram = rest_of.to(dtype), self.gram().to(dtype)
        parts, variances = [], []
        size = max(1, 4 * ROWS_PER_CHUNK // b) * b
        for lo in range(0, len(self.at_rows), size):
            psi = take(features, self.at_rows[lo : lo + size], 0)
            rest = psi @ rest_of
            if b == 1:
                parts.append(_quadratic_form(rest, gram).view(-1, 1, 1))
                variances.append((psi * rest).sum(1, dtype=torch.float64).view(-1, 1, 1))
            else:
                grid = rest.view(-1, b, len(gram))
                parts.append(grid @ gram @ grid.mT)
                variances.append(psi.reshape(grid.shape) @ grid.mT)
        return torch.cat(parts).to(torch.float64), torch.cat(variances).to(torch.float64)

    def multiply_downdate(self, step: PosteriorUpdate) -> Tensor:
        """Multiply k by the downdate: Ψ_c A G Fᵀ, one pass over the features."""
        return self._multiply_projected(self.gram() @ step.factor.T)

    def update(self, step: PosteriorUpdate) -> tuple["ProjectedCrossCovariance", bool]:
        """Return k after `step`: only V grows, the Gram matrix stays valid."""
        covariance = step.posterior.covariance
        return ProjectedCrossCovariance(covariance, self.at_rows, self.at_cols, self._cache), True


CrossCovariance = StoredCrossCovariance | ProjectedCrossCovariance


def make_cross_covariance(
    posterior: Posterior,
    candidates: Tensor,
    evaluation: Tensor,
    cache_cross_covariance: bool = False,
) -> CrossCovariance:
    """Return k(candidates, evaluation): projected for a low-rank kernel, else stored.

    cache_cross_covariance: store it in any case, m·e numbers, which makes later steps cheap.
    """
    rows, cols = posterior.flat_positions(candidates), posterior.flat_positions(evaluation)
    covariance = posterior.covariance
    if isinstance(covariance.prior, LowRankKernel) and not cache_cross_covariance:
        return ProjectedCrossCovariance(covariance, rows, cols)
    return StoredCrossCovariance(covariance.block(rows, cols), rows, cols, torch.equal(rows, cols))


def _gram(psi: Tensor) -> Tensor:
    """Compute Ψᵀ Ψ in float64, one triangle multiplied and mirrored: (e, k) -> (k, k)."""
    k = psi.shape[1]
    out = torch.zeros((k, k), dtype=torch.float64, device=psi.device)
    panel = max(1, -(-k // 4))
    for lo in range(0, len(psi), 16 * ROWS_PER_CHUNK):
        part = psi[lo : lo + 16 * ROWS_PER_CHUNK]
        for left in range(0, k, panel):
            right = slice(left, None)
            out[left : left + panel, right] += part[:, left : left + panel].T @ part[:, right]
    return out.triu() + out.triu(1).T


def _quadratic_form(rows: Tensor, gram: Tensor) -> Tensor:
    """Compute rᵀ G r for every row r of (q, k), G symmetric (k, k), reading one triangle: (q,)."""
    k, total = len(gram), torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    panel = max(1, -(-k // 8))
    for lo in range(0, k, panel):
        hi = min(k, lo + panel)
        half = gram[:hi, lo:hi].clone()
        half[:lo] *= 2  # The part above the diagonal block also stands for its mirror image.
        total += torch.linalg.vecdot(rows[:, :hi] @ half, rows[:, lo:hi])
    return total


BASELINE_NAMES = ("outputs", "linearised")
GOALS = ("accuracy", "macro-f1")


class Moments(NamedTuple):
    """Sums over evaluation points x, one row per candidate x'."""

    squares: Tensor  # (m, b, b): Σₓ k(x',x) k(x,x')
    drift: Tensor  # (m, b, C/b): Σₓ k(x',x) d(x), with d = f_lin − f


@dataclass
class _ViewCache:
    """Results of a view so far; filled on demand."""

    cross_covariance: CrossCovariance | None = None
    # Moments of the candidates of `cross_covariance`, with the terms of the candidates themselves.
    moments: Moments | None = None
    innovation_factors: dict[float | None, Tensor] = field(default_factory=dict)  # by noise
    drift: Tensor | None = None
    labels: Tensor | None = None  # (n,) argmax f
    evaluation_index: Tensor | None = None  # (m,)
    # (m,) rows of the shared sums that belong to the remaining candidates; None: all of them.
    rows: Tensor | None = None


class View:
    """A posterior, its candidates, and the points that acquisition functions sum over.

    A view is immutable: `condition` returns a new one, and the two share results that the label
    does not change.

    Attributes:
        posterior: The present posterior.
        candidates: (m,) unlabelled positions.
        evaluation: (e,) positions.
        embedding: (n, h) or None.
        baseline: The predictions from which changes are measured and hypothetical labels are taken:
            "outputs" (f, of a network trained on all labels) or "linearised" (f_lin, once there are
            labels that the network was not trained on).
        noise: Relative noise of the source that would give the next label; None: that of the prior.
        goal: "accuracy": evaluation points weigh the same. "macro-f1": by `point_weights`.

    >>> pool_view.candidates.tolist(), pool_view.labelled.tolist()
    ([2, 3, 4, 5], [0, 1])
    >>> after = pool_view.condition([4], torch.eye(3)[[2]])  # a label arrives
    >>> after.candidates.tolist(), after.labelled.tolist()
    ([2, 3, 5], [0, 1, 4])
    """

    def __init__(
        self,
        posterior: Posterior,
        candidates: Tensor,
        evaluation: Tensor,
        embedding: Tensor | None,
        *,
        baseline: str = "outputs",
        noise: float | None = None,
        cache_cross_covariance: bool = False,
        cache: _ViewCache | None = None,
    ) -> None:
        self.goal = "accuracy"  # changed by `with_goal`
        if baseline not in BASELINE_NAMES:
            raise InputError(
                f"baseline is {baseline!r}; expected one of {', '.join(BASELINE_NAMES)}"
            )
        self.baseline = baseline
        self.noise = noise
        self.posterior = posterior
        self.candidates = candidates
        self.evaluation = evaluation
        self.embedding = embedding
        self._cache_cross_covariance = cache_cross_covariance
        self._cache = _ViewCache() if cache is None else cache
        rows = self._cache.rows
        self._rows = (
            torch.arange(len(candidates), device=candidates.device) if rows is None else rows
        )

    def __repr__(self) -> str:
        return (
            f"View({len(self.candidates)} candidates, {len(self.evaluation)} evaluation points, "
            f"{len(self.labelled)} labelled, {self.posterior.classes} outputs)"
        )

    @property
    def labelled(self) -> Tensor:
        """(L,) labelled positions."""
        return self.posterior.labelled

    @property
    def outputs(self) -> Tensor:
        """(n, C) the network's outputs f."""
        return self.posterior.outputs

    def with_baseline(self, baseline: str) -> "View":
        """Return the view with another baseline.

        Args:
            baseline: "outputs" for the network's f, "linearised" for f_lin.

        Returns:
            A view that shares everything computed so far.

        >>> pool_view.with_baseline("linearised").baseline
        'linearised'
        """
        if baseline == self.baseline:
            return self
        return self._copy(baseline=baseline, noise=self.noise)

    def with_noise(self, noise: float | None) -> "View":
        """Return the view in which another source would give the next label: u = k(x',x') + σ_s.

        Args:
            noise: Relative noise of that source; None: that of the prior.

        Returns:
            A view that shares everything computed so far.

        >>> careless = pool_view.with_noise(1.0)
        >>> bool((la.acquisition.variance(careless) < la.acquisition.variance(pool_view)).all())
        True
        """
        self.posterior.check_noise(noise, 1)
        return self._copy(baseline=self.baseline, noise=noise)

    def with_goal(self, goal: str) -> "View":
        """Return the view with another goal.

        Args:
            goal: "accuracy", or "macro-f1": evaluation points weigh `point_weights`.

        Returns:
            A view that shares everything computed so far.

        >>> pool_view.with_goal("macro-f1").goal
        'macro-f1'
        """
        if goal not in GOALS:
            raise InputError(f"goal is {goal!r}; expected one of {', '.join(GOALS)}")
        if goal == self.goal:
            return self
        return self._copy(baseline=self.baseline, noise=self.noise)._set_goal(goal)

    def _set_goal(self, goal: str) -> "View":
        """Set the goal of a new view."""
        self.goal = goal
        return self

    def _copy(self, *, baseline: str, noise: float | None) -> "View":
        """Return the same view with another baseline or noise, and the same cache."""
        return View(
            self.posterior,
            self.candidates,
            self.evaluation,
            self.embedding,
            baseline=baseline,
            noise=noise,
            cache_cross_covariance=self._cache_cross_covariance,
            cache=self._cache,
        )._set_goal(self.goal)

    def values(self, source: str | None = None) -> Tensor:
        """(n, C): f for source "outputs", f_lin for "linearised"; None: the view's baseline."""
        source = self.baseline if source is None else source
        if source not in BASELINE_NAMES:
            raise InputError(f"source is {source!r}; expected one of {', '.join(BASELINE_NAMES)}")
        return self.outputs if source == "outputs" else self.posterior.mean

    def probabilities(self, method: str = "simplex", source: str | None = None) -> Tensor:
        """(m, C) class probabilities of the candidates."""
        values = take(self.values(source), self.candidates, 0)
        # With classes on the first axis sums over them run along long rows.
        return probabilities(values.T.contiguous(), method, 0).T.contiguous()

    def predicted_targets(self, source: str | None = None) -> Tensor:
        """(m, C) one-hot targets of the candidates' most likely classes."""
        source = self.baseline if source is None else source
        if self.posterior.classes < 2:
            raise InputError(
                "the network has one output, so there is no most likely class; expected two or "
                "more: use `variance`, which needs no label"
            )
        if source == "outputs":  # f is the same in all later views.
            if self._cache.labels is None:
                self._cache.labels = self.outputs.argmax(1)
            best = self._cache.labels[self.candidates]
        else:
            best = self.values(source)[self.candidates].argmax(1)
        return self.outputs.new_zeros(len(best), self.posterior.classes).scatter_(
            1, best[:, None], 1.0
        )

    def scaled_residuals(self, targets: Tensor, candidate_rows: Tensor | None = None) -> Tensor:
        """u⁻¹ (y' − f_lin(x')), which k(x,x') maps to the change at x: (q, C) -> (q, b, C/b).

        which: (q,) indices into `candidates`, default all of them.
        """
        factors, at = self.innovation_factors(), self.candidates
        if candidate_rows is not None:
            factors, at = factors[candidate_rows], at[candidate_rows]
        surprise = targets - self.posterior.mean[at]
        return block_solve(factors, surprise.view(len(at), self.posterior.width, -1))

    def innovation_factors(self) -> Tensor:
        """Cholesky factors of u = k(x',x') + σI: (m, b, b)."""
        known = self._cache.innovation_factors
        if self.noise not in known:
            known[self.noise] = innovation_factors(self.posterior, self.candidates, self.noise)
        return known[self.noise]

    def point_weights(self) -> Tensor | None:
        """(e,) weights of the evaluation points, 1 on average; None if all weigh the same.

        For the goal "macro-f1" a point weighs the inverse expected share of its predicted class,
        1 / Σₓ p_c(x), with the simplex probabilities of f_lin: one more correct prediction raises
        the F1 of a class by about so much.
        """
        if self.goal == "accuracy" or not len(self.evaluation):
            return None
        mean = take(self.posterior.mean, self.evaluation, 0)
        predicted = mean.argmax(1)
        members = probabilities(mean.T.contiguous(), "simplex", 0).sum(1)  # (C,)
        weights = members[predicted].reciprocal()
        return weights / weights.mean()

    def drift(self) -> Tensor:
        """d = f_lin − f at the evaluation points, (e, C)."""
        if self._cache.drift is None:
            at = self.evaluation
            self._cache.drift = take(self.posterior.mean, at, 0) - take(self.outputs, at, 0)
        return self._cache.drift

    def covariance(self, candidate_rows: Tensor) -> Tensor:
        """Covariance between some candidates and all evaluation points, in the kernel's dtype.

        which: (q,) indices into `candidates`. (q, e); full kernel: (q, C, e, C). Do not modify.
        """
        flat = self._cross_covariance().rows(
            self.posterior.flat_positions(self._rows[candidate_rows])
        )
        if self.posterior.width == 1:
            return flat
        b = self.posterior.width
        return flat.view(len(candidate_rows), b, len(self.evaluation), b)

    def evaluation_index(self) -> Tensor:
        """(m,) index of each candidate among the evaluation points; −1 if it is not one of them."""
        if self._cache.evaluation_index is None:
            order = self.evaluation.argsort()
            if not len(order):
                self._cache.evaluation_index = torch.full_like(self.candidates, -1)
            else:
                index = torch.searchsorted(self.evaluation[order], self.candidates).clamp_max_(
                    len(order) - 1
                )
                found = order[index]
                self._cache.evaluation_index = torch.where(
                    self.evaluation[found] == self.candidates, found, -1
                )
        return self._cache.evaluation_index

    def moments(self) -> Moments:
        """Sums over the evaluation points other than the candidate itself, one row per candidate."""
        every = self._moments()
        squares, drift = every.squares[self._rows], every.drift[self._rows]
        index = self.evaluation_index()
        rows = (index >= 0).nonzero()[:, 0]
        if not len(rows):
            return Moments(squares, drift)
        b = self.posterior.width
        variance = self.posterior.variance().view(-1, b, b)[self.candidates[rows]]
        shift = self.drift()[index[rows]].view(len(rows), b, -1)
        squares[rows] -= variance @ variance.mT if b > 1 else variance.square()
        drift[rows] -= variance @ shift if b > 1 else variance * shift
        if b == 1:
            squares.clamp_min_(0.0)  # Rounding can make the sum negative if it had one term only.
        return Moments(squares, drift)

    def _cross_covariance(self) -> CrossCovariance:
        if self._cache.cross_covariance is None:
            self._cache.cross_covariance = make_cross_covariance(
                self.posterior, self.candidates, self.evaluation, self._cache_cross_covariance
            )
        return self._cache.cross_covariance

    def _moments(self) -> Moments:
        if self._cache.moments is None:
            k, b = self._cross_covariance(), self.posterior.width
            drift = k.product(self.posterior.flatten_outputs(self.drift()))
            squares, variances = k.squares(b)
            if variances is not None:
                self.posterior.cache_variance(self.candidates, variances)
            self._cache.moments = Moments(squares, drift.view(len(squares), b, -1))
        return self._cache.moments

    def condition(
        self, at: Positions, targets: Tensor, noise: Noise = None, *, allow_labelled: bool = False
    ) -> "View":
        """Return the view given further labels: at (q,) positions, targets (q, C).

        `noise` and `allow_labelled` are those of `Posterior.condition`; the noise defaults to that
        of the view. Candidates that receive a label leave `candidates`. `evaluation` stays as
        given: a labelled point's covariance is of the order of σ, so it adds the same to every
        candidate's sum. Results so far are updated, not recomputed. The network is not trained on
        the new labels, so the baseline becomes f_lin. k −= w wᵀ, and with z = k w

            s −= 2 w z − w² ‖w‖²,    k d' = k d + z g − w (w·d'),    d' = d + w g.
        """
        noise = self.noise if noise is None else noise
        step = self.posterior.compute_update(at, targets, noise, allow_labelled=allow_labelled)
        new = step.posterior.labelled[len(self.posterior.labelled) :]
        keep = ~torch.isin(self.candidates, new)
        cache, before = _ViewCache(labels=self._cache.labels), self._cache.cross_covariance
        if before is not None and step.downdate is not None:
            cache.cross_covariance, current = before.update(step)
            if self._cache.moments is not None and current:
                cache.moments = self._update_moments(before, step)
            cache.rows = self._rows[keep]
        return View(
            step.posterior,
            self.candidates[keep],
            self.evaluation,
            self.embedding,
            baseline="linearised",
            noise=self.noise,
            cache_cross_covariance=self._cache_cross_covariance,
            cache=cache,
        )._set_goal(self.goal)

    def with_posterior(self, posterior: Posterior) -> "View":
        """Return the view of a posterior with the same labelled points, and hence the same k.

        The posterior may have other targets or more classes.
        """
        k, cache = (
            self._cache.cross_covariance,
            _ViewCache(
                cross_covariance=self._cache.cross_covariance,
                innovation_factors=self._cache.innovation_factors.copy(),
                rows=self._rows if self._cache.cross_covariance is not None else None,
            ),
        )
        other = View(
            posterior,
            self.candidates,
            self.evaluation,
            self.embedding,
            baseline=self.baseline,
            noise=self.noise,
            cache_cross_covariance=self._cache_cross_covariance,
            cache=cache,
        )._set_goal(self.goal)
        if k is not None and self._cache.moments is not None:
            squares = self._cache.moments.squares
            drift = k.product(posterior.flatten_outputs(other.drift()))
            cache.moments = Moments(squares, drift.view(len(squares), posterior.width, -1))
        return other

    def _update_moments(self, before: CrossCovariance, step: PosteriorUpdate) -> Moments:
        """Compute the moments after a step from those before it and one product with k."""
        assert step.downdate is not None
        squares, drift = self._moments()
        m, b, p = drift.shape
        w_rows, w_cols = (
            take(step.downdate, before.at_rows, 1),
            take(step.downdate, before.at_cols, 1),
        )
        z = before.multiply_downdate(step)
        after = step.posterior.flatten_outputs(self.drift()) + w_cols.T @ step.whitened_residual
        inner, met = w_cols @ w_cols.T, w_cols @ after
        if len(w_rows) == 1:  # For one label of a scalar kernel fused passes replace products.
            w = w_rows[0].view(m, 1, 1)
            moved = drift.addcmul(z.view(m, 1, 1), step.whitened_residual).addcmul_(
                w, met, value=-1
            )
            return Moments(squares + w * (inner * w - 2 * z.view(m, 1, 1)), moved)
        moved = drift.reshape(m * b, p) + z @ step.whitened_residual - w_rows.T @ met
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
    baseline: str = "outputs",
    noise: float | None = None,
    allow_labelled: bool = False,
    cache_cross_covariance: bool = False,
) -> View:
    """Build the view of a posterior for acquisition functions.

    Args:
        posterior: The present posterior.
        candidates: (m,) distinct unlabelled positions that may be labelled next.
        evaluation: (e,) positions whose predictions matter; default: the candidates (as in LA-13).
        embedding: (n, h) for strategies that need one.
        baseline: "outputs" if the outputs are those of a network trained on all labels;
            "linearised" if they are a prior mean, or labels have arrived since.
        noise: Relative noise of the source that would give the next label (a person, a language
            model); default: that of the prior. `View.with_noise` changes it at no cost.
        allow_labelled: Whether candidates may have a label already: what a second label, of another
            source, would bring. Condition with `allow_labelled=True` then, too.
        cache_cross_covariance: Store k(candidates, evaluation), m·e numbers, even if the kernel is
            given by features: labels that arrive one by one then cost a fraction.

    Returns:
        The view.

    Raises:
        InputError: If candidates are labelled or repeated, or positions or the embedding do not fit.

    >>> pool_view = la.acquisition.view(post, [2, 3], evaluation=[4, 5])  # label 2 or 3 to predict 4 and 5
    >>> la.acquisition.variance(pool_view).shape
    torch.Size([2])
    """
    at = posterior.check_positions(candidates, "candidates")
    if not allow_labelled:
        posterior.require_unlabelled(at, "candidates")
    posterior.check_noise(noise, 1)
    where = at
    if evaluation is not None:
        where = posterior.check_positions(evaluation, "evaluation")
    if embedding is not None:
        embedding = checks.check_finite(
            checks.check_floating(embedding, "embedding", "(n, h)", (2,)), "embedding"
        )
        if len(embedding) != posterior.points:
            raise InputError(
                f"embedding has {len(embedding)} rows; expected {posterior.points}, one per point"
            )
    return View(
        posterior,
        at,
        where,
        embedding,
        baseline=baseline,
        noise=noise,
        cache_cross_covariance=cache_cross_covariance,
    )
