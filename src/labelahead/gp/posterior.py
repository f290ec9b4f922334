"""Linearised regression: what a network predicts after training on labels, without training.

    f_lin(x) = f(x) + Θ(x,X) (Θ(X,X) + σ I)⁻¹ (Y − f(X))                               (LA-10)
    k(x,x')  = Θ(x,x') − Θ(x,X) (Θ(X,X) + σ I)⁻¹ Θ(X,x')

`prior(f, Θ)` has no labels; `.condition(at, targets)` adds some and returns a new `Posterior`.
One verb serves the labelled set, a greedy batch, a single new label and the look-ahead. σ is fixed
by the prior, so conditioning in any order and in any portions gives the same answer. Labels of
sources that err more or less often have a noise of their own: σI becomes a diagonal matrix D.

Precision: solves and everything of size n×C or r×d are float64 whatever the kernel's dtype; blocks
of the covariance keep the kernel's dtype. Float32 solves were measured and refused (digits, 400
labels, with and without copies of points): iterative refinement mends f_lin (2e-4 -> 1e-7 -> 1e-10
at condition 1e5) but not with copies at noise 1e-6 (stuck at 3e-5), and it does not touch u, which
is wrong by 2e-4 and negative at labelled points once noise <= 1e-6; with copies at 1e-7 the
factorisation fails. The float64 factor and solves are a third of the time of scoring.
"""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from labelahead.devices import to_float64
from labelahead.errors import InputError
from labelahead.gp import checks
from labelahead.gp.checks import Noise, Positions
from labelahead.gp.covariance import (
    CosineKernel,
    Covariance,
    DenseKernel,
    Kernel,
    LeadingRowsKernel,
    LowRankKernel,
    NystromKernel,
)
from labelahead.gp.linalg import cholesky, solve_factored, whiten

__all__ = ["NystromLabels", "Posterior", "PosteriorUpdate", "prior"]

LABELLED_KERNEL = "the kernel of the labelled points"
# Relative to the scale: with a smaller σ, dividing a float32 kernel by σ loses too many digits.
MIN_REVISABLE_NOISE = 1e-4
# With at most this many factor rows an update evaluates its downdate at every position.
MAX_DENSE_DOWNDATE_ROWS = 64


class PosteriorUpdate(NamedTuple):
    """The result of conditioning on q labels, and what it changed.

    With D the downdate and z the whitened residual: k_new = k − DᵀD, mean_new = mean + Dᵀz.
    """

    posterior: "Posterior"
    factor: Tensor  # (q·b, d) factor rows
    downdate: Tensor | None  # (q·b, N) factor rows at every position; None for many labels
    whitened_residual: Tensor  # (q·b, C/b) L⁻¹(Y − mean)


class NystromLabels(NamedTuple):
    """Labels of an approximate posterior (`gp.nystrom.approximate_posterior`)."""

    positions: Tensor  # (S,) in the order in which they were labelled
    targets: Tensor  # (S, C)
    weights: Tensor  # (S, C) α
    leave_one_out_mean: Tensor  # (S, C) each label predicted from the others
    leave_one_out_variance: Tensor  # (S,) of these predictions
    noise: Tensor  # (S,) of each label, plus the mean variance that the features miss
    label_noise: Tensor | None  # (S,) of each label alone, absolute; None: σ


@dataclass(frozen=True, eq=False)
class Posterior:
    """Mean and covariance of the linearised network at n points, given labels at some of them.

    Attributes:
        outputs: (n, C) f, the network's present outputs.
        mean: (n, C) f_lin.
        noise: σ, absolute: the noise of labels that have none of their own.
        scale: Mean diagonal of the prior kernel.
        labelled: (L,) positions in the order in which they were conditioned on. One occurs several
            times if it has several labels.
        targets: (L, C).
        jitter: The largest value that a Cholesky factorisation had to add; normally 0.0.
        width: b, kernel rows per point: 1 for a scalar kernel, C for the full one.
        is_labelled: (n,) bool.
        nystrom_labels: Labels of an approximate posterior, which precede those in `labelled`.
        label_noise: (L,) absolute noise of each label in `labelled`; None: σ.

    >>> bool(torch.allclose(post.mean[0], one_hot[0].double(), atol=0.01))  # fits the first label
    True
    >>> after = post.condition([2], one_hot[[2]])
    >>> after.labelled.tolist(), bool(after.variance()[3] <= post.variance()[3])
    ([0, 1, 2], True)
    """

    outputs: Tensor
    mean: Tensor
    covariance: Covariance
    noise: float
    scale: float
    labelled: Tensor
    targets: Tensor
    jitter: float
    width: int
    is_labelled: Tensor = field(repr=False)  # (n,) bool
    _white: Tensor = field(repr=False)  # (r, C/b + b): L⁻¹ of the targets and of the ones
    _cache: dict[str, Tensor] = field(default_factory=dict, repr=False)
    # (s, C + 1) Wᵀ _white of the labels before `restricted_to`, which drops their factor rows.
    _explained: Tensor | None = field(default=None, repr=False)
    nystrom_labels: NystromLabels | None = field(default=None, repr=False)
    _amplitude: float | None = field(default=None, repr=False)  # from the Nyström labels
    label_noise: Tensor | None = field(default=None, repr=False)

    @property
    def points(self) -> int:
        """n."""
        return self.outputs.shape[0]

    @property
    def classes(self) -> int:
        """C."""
        return self.outputs.shape[1]

    def flat_positions(self, at: Tensor) -> Tensor:
        """Convert positions (q,) to flat positions (q·b,) of the kernel."""
        if self.width == 1:
            return at
        inner = torch.arange(self.width, device=at.device)
        return (at[:, None] * self.width + inner).reshape(-1)

    def flatten_outputs(self, values: Tensor) -> Tensor:
        """Reshape vectors per point (q, C) to rows per flat position (q·b, C/b)."""
        return values.reshape(-1, self.classes // self.width)

    def condition(
        self, at: Positions, targets: Tensor, noise: Noise = None, *, allow_labelled: bool = False
    ) -> "Posterior":
        """Return the posterior given further labels.

        Args:
            at: (q,) distinct unlabelled positions.
            targets: (q, C), or class numbers (q,).
            noise: (q,) relative noise of each label, in the unit of `prior(noise=...)`, or one
                number for all of them; default: the noise of the prior.
            allow_labelled: Whether positions may repeat and may be labelled already: each label is
                one more observation of the same point. `combine_labels` reduces the labels of a
                point to one instead, with the same predictions.

        >>> careless = post.condition([2], one_hot[[2]], noise=10.0)
        >>> bool(careless.mean[2, 2] < post.condition([2], one_hot[[2]]).mean[2, 2])
        True
        """
        return self.compute_update(at, targets, noise, allow_labelled=allow_labelled).posterior

    def compute_update(
        self, at: Positions, targets: Tensor, noise: Noise = None, *, allow_labelled: bool = False
    ) -> PosteriorUpdate:
        """Do the work of `condition`, and return what changed as well."""
        at = self.check_positions(at, "at", distinct=not allow_labelled)
        if not allow_labelled:
            self.require_unlabelled(at, "at")
        targets = self.check_targets(targets, len(at))
        added = self.check_noise(noise, len(at))
        where, kernel = self.flat_positions(at), self.covariance.prior
        rows = self.covariance.rows(where)
        system = kernel.evaluate_at(rows, where)
        system = (system + system.T) / 2
        system.diagonal().add_(self._flatten_noise(self.noise_at(at, added)))
        lower, jitter = cholesky(system, scale=self.scale, what=LABELLED_KERNEL)
        factor = whiten(lower, rows, overwrite=True)
        whitened_residual = whiten(lower, self.flatten_outputs(targets - self.mean[at]))
        narrow = len(factor) <= MAX_DENSE_DOWNDATE_ROWS or factor.shape[1] == kernel.size
        downdate = kernel.evaluate_everywhere(factor) if narrow else None
        shift = (
            whitened_residual.T @ downdate
            if downdate is not None
            else kernel.evaluate_everywhere(whitened_residual.T @ factor)
        )
        cache = {}
        if downdate is not None and "variance" in self._cache:
            cache["variance"] = self._cache["variance"] - _gram_blocks(downdate, self.width)
        after = replace(
            self,
            mean=self.mean + shift.T.reshape(self.mean.shape),
            covariance=self.covariance.subtract_factor(factor),
            labelled=torch.cat([self.labelled, at]),
            targets=torch.cat([self.targets, targets]),
            jitter=max(self.jitter, jitter),
            is_labelled=self.is_labelled.index_fill(0, at, True),
            _white=torch.cat(
                [self._white, whiten(lower, self._unexplained_targets(where, targets))]
            ),
            _cache=cache,
            label_noise=self._append_noise(added, len(at)),
        )
        return PosteriorUpdate(after, factor, downdate, whitened_residual)

    def with_classes(self, classes: int) -> "Posterior":
        """Return the posterior with more classes, for which f = 0 and which no label has.

        Scalar kernel.
        """
        if self.width != 1 or classes < self.classes:
            raise InputError(
                f"cannot extend a posterior with {self.classes} classes and {self.width} kernel "
                f"rows per point to {classes} classes; expected more classes and a scalar kernel"
            )
        more = classes - self.classes
        outputs, mean, targets = (
            pad(x, (0, more)) for x in (self.outputs, self.mean, self.targets)
        )
        widened = replace(
            self, outputs=outputs, mean=mean, targets=targets, _cache=self._cache.copy()
        )
        explained = None if self._explained is None else _pad_classes(self._explained, more)
        nystrom_labels = self.nystrom_labels
        if nystrom_labels is not None:
            targets, weights, leave_one_out_mean = (
                pad(x, (0, more))
                for x in (
                    nystrom_labels.targets,
                    nystrom_labels.weights,
                    nystrom_labels.leave_one_out_mean,
                )
            )
            nystrom_labels = nystrom_labels._replace(
                targets=targets, weights=weights, leave_one_out_mean=leave_one_out_mean
            )
        return replace(
            widened,
            _white=_pad_classes(self._white, more),
            _explained=explained,
            nystrom_labels=nystrom_labels,
        )

    @property
    def can_revise_labels(self) -> bool:
        """Whether labels can be changed and removed without a new posterior.

        Both divide by σ, so σ must not be too small.
        """
        complete = self.width == 1 and self._explained is None
        least = self.noise
        if self.label_noise is not None and len(self.label_noise):
            least = float(self.label_noise.min())
        return complete and self.jitter == 0.0 and least >= MIN_REVISABLE_NOISE * self.scale

    def noise_at(self, at: Tensor, noise: Tensor | None = None) -> Tensor:
        """Noise variance of new labels at (q,), plus the residual variance of a `NystromKernel`.

        noise: (q,) absolute noise of the labels; None: σ.
        """
        kernel = self.covariance.prior
        out = self.mean.new_full((len(at),), self.noise) if noise is None else noise
        return out + kernel.residual_variance[at] if isinstance(kernel, NystromKernel) else out

    def noise_of_labels(self) -> Tensor:
        """Noise variance (L,) of every label, in the order of `all_labels`.

        Residual variance of a `NystromKernel` is noise, too.
        """
        later = self.noise_at(self.labelled, self.label_noise)
        if self.nystrom_labels is None:
            return later
        return torch.cat([self.nystrom_labels.noise, later])

    def check_noise(self, noise: Noise, q: int) -> Tensor | None:
        """Check relative noises, one number or (q,), and return them as absolute ones (q,)."""
        if noise is None:
            return None
        return checks.check_noise(noise, q).to(self.outputs) * self.scale

    def _flatten_noise(self, noise: Tensor) -> Tensor:
        """Noise per label (q,) to noise per flat position (q·b,)."""
        return noise if self.width == 1 else noise.repeat_interleave(self.width)

    def _append_noise(self, added: Tensor | None, q: int) -> Tensor | None:
        """Noise of all labels after q more; None while every label has σ."""
        if self.label_noise is None and added is None:
            return None
        before = self.label_noise
        if before is None:
            before = self.mean.new_full((len(self.labelled),), self.noise)
        return torch.cat([before, self.mean.new_full((q,), self.noise) if added is None else added])

    def all_labels(self) -> tuple[Tensor, Tensor]:
        """Positions (L,) and targets (L, C) of all labels, the Nyström labels first."""
        if self.nystrom_labels is None:
            return self.labelled, self._own_targets
        return torch.cat([self.nystrom_labels.positions, self.labelled]), torch.cat(
            [self.nystrom_labels.targets, self.targets]
        )

    def with_targets(self, which: Tensor, targets: Tensor) -> "Posterior":
        """Return the posterior with other targets for some labels. Scalar kernel, σ > 0.

        The covariance does not depend on the targets. With A = (Θ(X,X) + D)⁻¹ a labelled point's
        column of it is k(x,xⱼ) = σⱼ (Θ(x,X) A)ⱼ, so that k(x,xⱼ)/σⱼ is what a unit change of target j
        adds to every output. The whitened targets need L⁻¹eⱼ: W(xⱼ) = L⁻¹(Θ(X,X) + D)eⱼ − σⱼL⁻¹eⱼ =
        Lᵀeⱼ − σⱼL⁻¹eⱼ gives its entries below j directly, and entry j by a quadratic equation.

        Args:
            which: (q,) indices into `all_labels`.
            targets: (q, C).
        """
        kernel, nystrom_labels = self.covariance.prior, self.nystrom_labels
        at, before = self.all_labels()
        change, at = targets - before[which], at[which]
        noise = self.noise_of_labels()[which]
        columns = kernel.evaluate_everywhere(self.covariance.rows(at)) / noise[:, None]
        if nystrom_labels is not None:
            every, first = before.index_copy(0, which, targets), len(nystrom_labels.positions)
            return replace(
                self,
                mean=self.mean + columns.T @ change,
                targets=every[first:],
                nystrom_labels=nystrom_labels._replace(targets=every[:first]),
                _cache=self._cache.copy(),
            )
        kernel_rows = torch.cat(
            [kernel.evaluate_at(factor, at) for factor in self.covariance.factors]
        )
        row = torch.arange(len(kernel_rows), device=kernel_rows.device)[:, None]
        diagonal = 1 / _solve_pivot(kernel_rows[which, torch.arange(len(which))], noise)
        inverse = torch.where(
            row > which, kernel_rows / -noise, torch.where(row == which, diagonal, 0.0)
        )
        white = self._white.clone()
        white[:, : self.classes] += inverse @ change
        return replace(
            self,
            mean=self.mean + columns.T @ change,
            targets=self.targets.index_copy(0, which, targets),
            _white=white,
            _cache=self._cache.copy(),  # It depends on the covariance alone.
        )

    def without_last_labels(self, q: int) -> "Posterior":
        """Return the posterior without the last q labels. Scalar kernel, σ > 0."""
        post = self
        for _ in range(q):
            at, row = post.labelled[-1], post.covariance.factors[-1][-1:]
            downdate, noise = (
                post.covariance.prior.evaluate_everywhere(row)[0],
                post.noise_of_labels()[-1],
            )
            # At the label itself f_lin moved by d·z, with d the downdate, z the whitened residual
            # and d = l − σ/l, so that y − f_lin = (σ/l) z.
            whitened_residual = (
                (post.targets[-1] - post.mean[at]) * _solve_pivot(downdate[at], noise) / noise
            )
            post = replace(
                post,
                mean=post.mean - downdate[:, None] * whitened_residual,
                covariance=post.covariance.without_last_row(),
                labelled=post.labelled[:-1],
                targets=post.targets[:-1],
                is_labelled=post.is_labelled.index_fill(0, at, post._has_other_label(at)),
                _white=post._white[:-1],
                _cache={},
                label_noise=None if post.label_noise is None else post.label_noise[:-1],
            )
        return post

    def _has_other_label(self, at: Tensor) -> bool:
        """Whether a position has a label besides the last one."""
        return bool((self.all_labels()[0][:-1] == at).any())

    def with_points(self, units: Tensor, outputs: Tensor) -> "Posterior":
        """Return the posterior at more points, which are appended to the present ones.

        Results at the present points are reused, so that a large pool can be processed in blocks.

        Args:
            units: (q, d) unit vectors for a `CosineKernel`; (q, k) features for a `LowRankKernel`.
            outputs: (q, C) f at the new points.
        """
        kernel = self.covariance.prior
        if not isinstance(kernel, CosineKernel | LowRankKernel) or self.width != 1:
            raise InputError(
                f"the kernel is a {type(kernel).__name__} with {self.width} rows per point; "
                "expected a scalar kernel of the cosine or of features, which can be evaluated at "
                "further points"
            )
        if not len(units):
            return self
        if isinstance(kernel, LowRankKernel):
            return self._with_feature_points(kernel, units, outputs.to(self.outputs))
        more = CosineKernel(torch.cat([kernel.unit_vectors, units]), kernel.function)
        at = torch.arange(self.points, more.size, device=units.device)
        new, cache = outputs.to(self.outputs), {}
        mean, factors = new, self.covariance.factors
        if factors:
            lower = cache["factor"] = self.cholesky_factor()
            downdate = whiten(
                lower, more.prior_block(self.labelled, at).to(torch.float64), overwrite=True
            )
            whitened_residual = whiten(lower, self.targets - self.outputs[self.labelled])
            mean = new + downdate.T @ whitened_residual
            # In label order the rows of all factors are L⁻¹ Θ(X, ·), whatever the batches were.
            factors = (
                torch.cat([torch.cat(factors) if len(factors) > 1 else factors[0], downdate], 1),
            )
        return replace(
            self,
            outputs=torch.cat([self.outputs, new]),
            mean=torch.cat([self.mean, mean]),
            covariance=Covariance(more, factors),
            is_labelled=torch.nn.functional.pad(self.is_labelled, (0, len(units))),
            _cache=cache,
        )

    def _with_feature_points(
        self, kernel: LowRankKernel, features: Tensor, outputs: Tensor
    ) -> "Posterior":
        """Add points with features (q, k): factor rows over features apply to any point."""
        mean, cache = outputs, {}
        if len(self.labelled):
            weights = kernel.rows(self.labelled).T @ self.weights()  # (k, C)
            cache["factor"] = self.cholesky_factor()
            mean = outputs + features.to(torch.float64) @ weights
        return replace(
            self,
            outputs=torch.cat([self.outputs, outputs]),
            mean=torch.cat([self.mean, mean]),
            covariance=Covariance(
                LowRankKernel(torch.cat([kernel.features, features])), self.covariance.factors
            ),
            is_labelled=pad(self.is_labelled, (0, len(features))),
            _cache=cache,
        )

    def restricted_to(self, at: Tensor, rows: Tensor) -> "Posterior":
        """Return the posterior at some points; only the first s of them can be labelled later.

        The present covariance becomes the prior of the result, so that a further label costs s·p
        operations. `labelled` of the result holds later labels only. Scalar kernel.

        Args:
            at: (p,) positions.
            rows: (s, p) the present covariance between the first s of them and all p.
        """
        if self.width != 1:
            raise InputError(f"{self.width} kernel rows per point; expected a scalar kernel")
        zeros = self.mean.new_zeros((len(rows), self.classes))
        unexplained = self._unexplained_targets(at[: len(rows)], zeros)  # of [0, 1]
        explained = torch.cat([zeros, torch.ones_like(unexplained[:, :1])], 1) - unexplained
        return replace(
            self,
            outputs=self.outputs[at],
            mean=self.mean[at],
            covariance=Covariance(LeadingRowsKernel(rows, self.variance()[at])),
            labelled=self.labelled[:0],
            is_labelled=self.is_labelled[at],
            _cache={},
            _explained=explained,
            nystrom_labels=None,
            label_noise=None,
        )

    def system_matrix(self, at: Tensor | None = None) -> Tensor:
        """Θ(X,X) + D of the labels: (L·b, L·b), float64, a new copy.

        at: (q,) positions to use instead of the labelled ones, with noise σ.
        """
        noise = self.label_noise if at is None else None
        at = self.labelled if at is None else at
        if not len(at):
            raise InputError(
                "the posterior holds no label; expected at least one: condition it first"
            )
        where = self.flat_positions(at)
        theta = self.covariance.prior
        system = theta.evaluate_at(theta.rows(where), where).clone()
        if noise is None:
            system.diagonal().add_(self.noise + self.jitter)
        else:
            system.diagonal().add_(self._flatten_noise(noise) + self.jitter)
        return system

    def cholesky_factor(self) -> Tensor:
        """Lower Cholesky factor of `system_matrix()`: (L·b, L·b), cached."""
        if "factor" not in self._cache:
            self._cache["factor"], _ = cholesky(
                self.system_matrix(), scale=self.scale, what=LABELLED_KERNEL
            )
        return self._cache["factor"]

    @property
    def _own_targets(self) -> Tensor:
        """Targets of `labelled`; a restricted posterior keeps earlier ones too, for `amplitude`."""
        return self.targets[len(self.targets) - len(self.labelled) :]

    def weights(self) -> Tensor:
        """Dual weights α = (Θ(X,X) + D)⁻¹ (Y − f(X)): (L, C), in the order of `all_labels`.

        Of a restricted posterior, those of the later labels.
        """
        if self.nystrom_labels is None and self._explained is None:
            residual = self.flatten_outputs(self.targets - self.outputs[self.labelled])
            return solve_factored(self.cholesky_factor(), residual).view(self.targets.shape)
        # For the later labels Y − f_lin(X) = Dα.
        noise = self.noise_at(self.labelled, self.label_noise)
        later = (self._own_targets - self.mean[self.labelled]) / noise[:, None]
        if self.nystrom_labels is None:
            return later
        return torch.cat([self.nystrom_labels.weights, later])

    def _unexplained_targets(self, where: Tensor, targets: Tensor) -> Tensor:
        """[Y, 1] at new points minus what the rows of W explain of them: (q·b, C/b + b)."""
        ones = torch.eye(self.width, dtype=torch.float64, device=targets.device)
        out = torch.cat([self.flatten_outputs(targets), ones.repeat(len(targets), 1)], 1)
        if self._explained is not None:
            out -= self._explained[where]
        start = len(self._white) - self.covariance.rank
        for factor in self.covariance.factors:
            stop = start + len(factor)
            out -= self.covariance.prior.evaluate_at(factor, where).T @ self._white[start:stop]
            start = stop
        return out

    def check_positions(self, at: Positions, what: str, *, distinct: bool = True) -> Tensor:
        """Check positions and return them as an int64 tensor (q,) on the posterior's device."""
        return checks.check_positions(at, what, self.points, distinct=distinct).to(
            self.outputs.device
        )

    def check_targets(self, targets: Tensor, q: int) -> Tensor:
        """Check targets and return them as float64 (q, C); class numbers (q,) become one-hot."""
        return checks.check_targets(targets, q, self.classes).to(self.outputs)

    def require_unlabelled(self, at: Tensor, what: str) -> None:
        """Raise if any of the positions (q,) has been conditioned on already."""
        repeated = at[self.is_labelled[at]]
        if len(repeated):
            raise InputError(
                f"{what} holds {len(repeated)} positions that are already labelled (first: "
                f"{int(repeated[0])}); expected unlabelled ones: leave them out"
            )

    def covariance_columns(self, at: Positions) -> Tensor:
        """Columns of the covariance: (n, q) in the kernel's dtype; full kernel: (n, C, q, C)."""
        everywhere = torch.arange(self.points, device=self.outputs.device)
        return self.covariance_block(everywhere, at)

    def covariance_block(self, rows: Positions, cols: Positions) -> Tensor:
        """The covariance between points: (p, q) in the kernel's dtype; full: (p, C, q, C)."""
        p = self.check_positions(rows, "rows", distinct=False)
        q = self.check_positions(cols, "cols", distinct=False)
        flat = self.covariance.block(self.flat_positions(p), self.flat_positions(q))
        if self.width == 1:
            return flat
        return flat.view(len(p), self.width, len(q), self.width)

    def variance(self) -> Tensor:
        """Posterior variances (n,), float64; for the full kernel the C×C blocks (n, C, C)."""
        if "variance" not in self._cache:
            self._cache["variance"] = self.covariance.diagonal(self.width)
        blocks = self._cache["variance"]
        # Exact variances are never negative, but rounding can make them so at labelled points.
        return blocks[:, 0, 0].clamp_min(0.0) if self.width == 1 else blocks

    def cache_variance(self, at: Tensor, blocks: Tensor) -> None:
        """Store variance blocks (q, b, b) of points (q,) for a later call of `variance`."""
        if "variance" in self._cache:
            return
        full = blocks.new_empty((self.points, self.width, self.width))
        missing = torch.ones_like(self.is_labelled).index_fill_(0, at, False).nonzero().squeeze(1)
        full[at] = blocks
        if len(missing):
            full[missing] = self.covariance.diagonal(self.width, self.flat_positions(missing))
        self._cache["variance"] = full

    def output_amplitudes(self) -> Tensor:
        """Estimate the kernel's scale for each output: (C,).

        As `amplitude`, which is the mean over outputs, but that mean counts as one more label: an
        output whose labels are all equal has an amplitude, too.
        """
        p, overall, labels = self.classes // self.width, self.amplitude(), len(self.targets)
        if not labels or self.width != 1:
            return self.mean.new_full((self.classes,), overall)
        average = self.targets.mean(0).reshape(self.width, p)
        spread = self._white[:, :p] - self._white[:, p:] @ average
        return (spread.square().sum(0) + overall) / (labels + 1)

    def amplitude(self) -> float:
        """Estimate the kernel's scale from the labels: a² = ‖L⁻¹(Y − mean Y)‖²_F/(L·C).

        Without labels, or if all have the same target, the scale is not identified. Then a² is the
        variance of one-hot targets of equally frequent classes, (1/C)(1 − 1/C), over the mean
        diagonal of the prior kernel.
        """
        if self._amplitude is not None:
            return self._amplitude
        p, c = self.classes // self.width, self.classes
        if len(self.targets) > 0:
            average = self.targets.mean(0).reshape(self.width, p)
            spread = self._white[:, :p] - self._white[:, p:] @ average
            value = float(spread.square().sum()) / (len(self.targets) * c)
            if value * self.scale > 1e-12 * max(1.0, float(self.targets.square().mean())):
                return value
        return (1 / c) * (1 - 1 / c) / self.scale if c > 1 else 1.0 / self.scale


def _pad_classes(white: Tensor, more: int) -> Tensor:
    """Insert columns of zeros for new classes into [·Y, ·1]."""
    return torch.cat([pad(white[:, :-1], (0, more)), white[:, -1:]], 1)


def _solve_pivot(downdate: Tensor, noise: Tensor) -> Tensor:
    """l > 0 with l − σ/l = downdate."""
    return (downdate + (downdate.square() + 4 * noise).sqrt()) / 2


def prior(
    outputs: Tensor,
    kernel: Tensor | CosineKernel | None = None,
    *,
    features: Tensor | None = None,
    noise: float = 1e-5,
    scale: float | None = None,
) -> Posterior:
    """Build the posterior without labels: mean f, covariance Θ.

    Kernel and features are referenced, not copied.

    Args:
        outputs: (n, C) the network's outputs at every point of one index space (labelled,
            candidates and evaluation points alike).
        kernel: (n, n) for a scalar tangent kernel, (n·C, n·C) with index i·C + c for the full one.
        features: (n, k) [full: (n·C, k)] with Θ = ΨΨᵀ, instead of a kernel.
        noise: Relative regulariser λ; σ = λ·mean diag Θ is added to Θ(X,X) and to u. 1e-5 survives
            duplicate points in float32; `flip` was studied with 1e-3, and a large value (0.1) keeps
            MLMOC away from near-copies of labelled points.
        scale: Mean diag Θ, if it is that of a larger pool; default: of these points.

    Returns:
        A posterior without labels: call `condition` to add some.

    Raises:
        InputError: If shapes do not fit, entries are not finite, or the kernel is not symmetric.

    >>> before = la.prior(outputs, K, noise=1e-3)
    >>> bool(torch.allclose(before.mean, outputs.double())), len(before.labelled)
    (True, 0)
    """
    f = checks.check_finite(checks.check_floating(outputs, "outputs", "(n, C)", (2,)), "outputs")
    f = to_float64(f)  # on the CPU for devices without float64
    if not (isinstance(noise, int | float) and math.isfinite(noise) and noise >= 0):
        raise InputError(f"noise is {noise!r}; expected a finite number >= 0, such as 1e-5")
    if isinstance(kernel, Tensor) and kernel.device == outputs.device:
        kernel = kernel.to(f.device)
    if isinstance(features, Tensor) and features.device == outputs.device:
        features = features.to(f.device)
    theta, width = _check_kernel(kernel, features, *f.shape)
    if scale is None:
        scale = float(theta.diagonal((), 1).mean())
    if not (scale > 0 and math.isfinite(scale)):
        raise InputError(
            f"the kernel's mean diagonal is {scale:.3g}; expected a positive finite number: a "
            "network whose gradients vanish everywhere has no tangent kernel to work with"
        )
    empty = torch.zeros((0, f.shape[1]), dtype=torch.float64, device=f.device)
    return Posterior(
        outputs=f,
        mean=f,
        covariance=Covariance(theta),
        noise=noise * scale,
        scale=scale,
        labelled=torch.zeros(0, dtype=torch.int64, device=f.device),
        targets=empty,
        jitter=0.0,
        width=width,
        is_labelled=torch.zeros(len(f), dtype=torch.bool, device=f.device),
        _white=empty.new_zeros((0, f.shape[1] // width + width)),
    )


def _check_kernel(
    kernel: Tensor | CosineKernel | None, features: Tensor | None, n: int, c: int
) -> tuple[Kernel, int]:
    """Check the arguments and return the prior kernel and its rows per point."""
    if (kernel is None) == (features is None):
        both = "neither" if kernel is None else "both"
        raise InputError(f"{both} of kernel and features given; expected exactly one of them")
    if isinstance(kernel, CosineKernel):
        if kernel.size != n:
            raise InputError(
                f"kernel has {kernel.size} points; expected {n}, to match outputs ({n}, {c})"
            )
        return kernel, 1
    if kernel is not None:
        theta = checks.check_floating(kernel, "kernel", "(n, n) or (n*C, n*C)", (2,))
        if theta.shape not in ((n, n), (n * c, n * c)):
            raise InputError(
                f"kernel has shape {tuple(theta.shape)}; expected ({n}, {n}), or "
                f"({n * c}, {n * c}) for the full kernel, to match outputs ({n}, {c})"
            )
        checks.check_symmetric(theta, "kernel")
        return DenseKernel(theta), len(theta) // n
    psi = checks.check_floating(features, "features", "(n, k) or (n*C, k)", (2,))
    if psi.shape[0] not in (n, n * c):
        raise InputError(
            f"features has {psi.shape[0]} rows; expected {n}, or {n * c} for the full kernel, to "
            f"match outputs ({n}, {c})"
        )
    # NaN and infinity survive a sum with positive weights: one product replaces an n×k mask.
    probe = psi @ torch.ones(psi.shape[1], dtype=psi.dtype, device=psi.device)
    if not bool(torch.isfinite(probe).all()):
        raise InputError(
            f"features {tuple(psi.shape)} holds NaN or infinite entries; expected finite numbers: "
            "check the network's weights and inputs"
        )
    return LowRankKernel(psi), len(psi) // n


def _gram_blocks(downdate: Tensor, b: int) -> Tensor:
    """Diagonal blocks of fallᵀ downdate: (q, N) -> (N/b, b, b)."""
    rows = downdate.view(len(downdate), -1, b).permute(1, 2, 0)
    return rows @ rows.mT if b > 1 else rows.square().sum(-1, keepdim=True)
