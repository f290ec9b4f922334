"""What was tried to make `flip` and `resolve` better.

Variants, and some other strategies beside them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.special import ndtr, owens_t
from torch import Tensor
from torch.nn.functional import one_hot

from labelahead.acquisition import batch_selection as select
from labelahead.acquisition.functions import flip, tabulate_gain
from labelahead.acquisition.pool_view import View
from labelahead.errors import InputError
from labelahead.inference.network import NetworkLearner
from labelahead.inference.pool_posterior import PoolPosterior
from labelahead.strategies.base import Oracle, QueryBatch, QueryConfig, Strategy
from labelahead.strategies.context import QueryContext
from labelahead.strategies.lookahead import make_lookahead_strategy

DEFAULT = "flip"
PLAIN = "plain"  # the variant that the others are changes of: `flip` as first built
PRESENT = "own item left out + amplitude x 0.3"  # the variant that `flip` is now
LOO = "leave-one-out"
GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # regularisers that leave-one-out chooses from
CHUNK = 64  # candidates scored at a time, as in `flip`


@dataclass(frozen=True)
class Named:
    """A strategy of labelahead, as it is."""

    strategy: str

    def asking(self, usual: QueryConfig) -> QueryConfig:
        """How a campaign asks that would ask as `usual` otherwise."""
        return replace(usual, strategy=self.strategy)


@dataclass(frozen=True)
class Flip:
    """`flip` as first built, one by one on true labels, with something changed.

    own: whether an item's own term counts; without it two classes only. amplitude: times the
    kernel's own a². greedy: on predicted labels. noise: relative regulariser; None: flip's own
    1e-3. kernel: None: the campaign's.
    unit: the kernel is scaled to a diagonal of ones. start: where the posterior begins: at the
    network, at the mean label everywhere, or half-way between the network and the kernel
    regression from the mean label. networks: outputs and kernels are means over so many.
    """

    score: Literal["flips", "improvement"] = "flips"
    classes: int = 2
    own: bool = True
    amplitude: float = 1.0
    greedy: bool = False
    kernel: Literal["trace"] | None = None
    noise: float | Literal["leave-one-out"] | None = None
    unit: bool = False
    start: Literal["network", "mean", "half-way"] = "network"
    networks: int = 1
    candidates: int | None = None

    def asking(self, usual: QueryConfig) -> QueryConfig:
        """How a campaign asks that would ask as `usual` otherwise."""
        mode = "greedy" if self.greedy else "sequential"
        return replace(
            usual,
            strategy=Strategy(
                "flip, changed", "what was tried", "labelahead", self.select_batch, (mode,)
            ),
            mode=None,
            candidates=self.candidates or usual.candidates,
            kernel=self.kernel or usual.kernel,
            noise=self.noise if isinstance(self.noise, float) else usual.noise,
        )

    def select_batch(
        self, s: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
    ) -> QueryBatch:
        """As `flip` picks, but for what is changed."""
        pool_posterior = self._pool_posterior(s, rng)
        if mode == "greedy":
            chosen = select.greedy(
                pool_posterior.view, self._scores(), q, rng, hypothetical_label="mean"
            )
            return QueryBatch(pool_posterior.points[chosen.positions], chosen.scores)
        return QueryBatch(*pool_posterior.select_batch(self._scores(), q, rng, mode, oracle))

    def _scores(self) -> Callable[..., Tensor]:
        if self.score == "improvement":
            return partial(improvement, amplitude=self.amplitude)
        if self.classes == 2 and (self.amplitude == 1 or not self.own):
            return partial(flip, include_candidate=self.own, variance_scale=self.amplitude)
        return partial(flips, classes=self.classes, amplitude=self.amplitude)

    def _pool_posterior(self, s: QueryContext, rng: torch.Generator) -> PoolPosterior:
        """As `QueryContext.pool_posterior`, but for what is changed."""
        f, theta = self._network(s, rng)
        if self.unit:
            scale = theta.diagonal().clamp_min(1e-12).rsqrt()
            theta = theta * scale[:, None] * scale[None]
        known, targets = len(s.labelled), one_hot(s.labels, f.shape[1]).double()
        if self.noise == LOO:
            noise = by_leave_one_out(theta[:known, :known].double(), targets)
            s = replace(s, query_config=replace(s.query_config, noise=noise))
        average = targets.mean(0).to(f).expand_as(f).clone()
        if self.start == "mean":
            f = average
        elif self.start == "half-way":
            regressed = s.condition_posterior(average, {"kernel": theta}).posterior.mean
            f = 0.5 * (f.double() + regressed).to(f)
        return s.condition_posterior(f, {"kernel": theta})

    def _network(self, s: QueryContext, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Outputs and kernel at `s.points`: the network's, or means over several."""
        f, theta = s.start, s.kernel_arguments["kernel"]
        if self.networks == 1:
            return f, theta
        assert s.fresh is not None
        assert s.training is not None
        learner = NetworkLearner(s.inputs, f.shape[1], s.fresh, s.training)
        outputs, kernels = [f], [theta]
        for _ in range(self.networks - 1):
            seed = int(torch.randint(2**31, (1,), generator=rng))
            other = learner.fit(s.labelled, s.labels, seed=seed)
            outputs.append(other.outputs(s.points))
            kernels.append(other.kernel_arguments(s.points, s.query_config.kernel)["kernel"])
        # Scaled, so that none counts for more because its gradients are larger.
        scaled: Any = sum(k / k.diagonal().mean() for k in kernels)
        total: Any = sum(outputs)
        return total / self.networks, scaled / self.networks


def flips(
    view: View, rng: torch.Generator | None = None, *, classes: int = 2, amplitude: float = 1.0
) -> Tensor:
    """Expected reduction of flips of the first class with each of the next ones. (m,).

    As `flip` with include_candidate=True and variance_scale=amplitude, summed over the pairs of the largest entry of
    f_lin(x) with the following classes − 1; scalar kernels only.
    """
    gaps, spread = _gaps(view, classes)
    tiny = 1e-14 * view.posterior.scale
    # Φ(−m/√(a²v)) = ½ − ½ erf(m/√(2a²v)); v is twice `spread`
    reach = (gaps / math.sqrt(4 * amplitude * view.posterior.amplitude())).T
    now = (spread.clamp_min(tiny).rsqrt() * reach).erf()
    parts = []
    for pairs in torch.split(torch.arange(len(view.candidates)), CHUNK):
        left = _remaining_variance(view, pairs, spread).clamp_min(tiny).rsqrt()
        each = [((left * r).erf() - before).sum(1) for r, before in zip(reach, now, strict=True)]
        parts.append(torch.stack(each).sum(0))
    return 0.5 * torch.cat(parts).double()


def improvement(
    view: View, rng: torch.Generator | None = None, *, amplitude: float = 1.0
) -> Tensor:
    """Expected rise of the larger of the top two outputs when a label is known. (m,).

    A label at x' moves their gap m(x) by a normal step of variance s² = a²(v − v₊), so that the
    second is ahead by E max(0, −(m + s z)) = s φ(m/s) − m Φ(−m/s); summed over x.
    """
    gaps, spread = _gaps(view, 2)
    gap = gaps[:, 0]
    square = amplitude * view.posterior.amplitude()
    parts = []
    for pairs in torch.split(torch.arange(len(view.candidates)), CHUNK):
        fallen = spread - _remaining_variance(view, pairs, spread).clamp_min(0)
        step = (fallen.clamp_min(1e-12 * view.posterior.scale) * 2 * square).sqrt()
        z = gap / step
        density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        tail = 0.5 * torch.erfc(z / math.sqrt(2))
        parts.append((step * density - gap * tail).sum(1))
    return torch.cat(parts).double()


def _gaps(view: View, classes: int) -> tuple[Tensor, Tensor]:
    """(e, classes − 1) the largest entry of f_lin minus the next ones; (e,) half of v."""
    post = view.posterior
    top = post.mean[view.evaluation].topk(min(classes, post.classes), dim=1).values
    dtype = post.covariance.prior.dtype
    return (top[:, :1] - top[:, 1:]).to(dtype), post.variance()[view.evaluation].to(dtype)


def _remaining_variance(view: View, pairs: Tensor, spread: Tensor) -> Tensor:
    """(q, e) half of v₊, what is left of it after candidate x' is labelled: k(x,x) − k(x,x')²/u."""
    k, factors = view.covariance(pairs), view.innovation_factors()[pairs]
    scaled = factors[:, 0].reciprocal().to(k.dtype) * k
    return torch.addcmul(spread, scaled, scaled, value=-1)


def by_leave_one_out(theta: Tensor, targets: Tensor) -> float:
    """Of GRID the relative regulariser with the least squared error on the label left out.

    The error is (A⁻¹Y)ᵢ/(A⁻¹)ᵢᵢ with A = Θ + σI, for targets less their mean.
    """
    y, scale = targets - targets.mean(0), theta.diagonal().mean()
    errors = []
    for noise in GRID:
        inverse = torch.linalg.inv(theta + noise * scale * torch.eye(len(theta)).to(theta))
        errors.append(float(((inverse @ y) / inverse.diagonal()[:, None]).square().mean()))
    return GRID[errors.index(min(errors))]


def resolves(view: View, rng: torch.Generator | None = None, *, rivals: int = 1) -> Tensor:
    """As `resolve`, summed over the pairs of the leading class with so many of the next ones. (m,).

    Scalar kernels only, which have one ρ for all pairs of a point.
    """
    gaps, spread = _gaps(view, 1 + rivals)
    heights = (gaps / (2 * view.posterior.amplitude() * spread[:, None]).sqrt()).T
    tables = [tabulate_gain(h.contiguous()) for h in heights]
    parts = []
    for pairs in torch.split(torch.arange(len(view.candidates)), CHUNK):
        explained = (1 - _remaining_variance(view, pairs, spread) / spread).clamp_(0, 1)
        gains = torch.stack([gain(explained.clone()) for gain in tables]).sum(0)
        gains[view.candidates[pairs, None] == view.evaluation] = 0.0
        parts.append(gains.sum(1))
    return torch.cat(parts).double()


def by_labels(view: View, rng: torch.Generator | None = None) -> Tensor:
    """Error reduction by the two labels that an item may have (Zhao, Dougherty, Yoon, Alexander &
    Qian 2021). (m,).

    With h and t the gaps at x and x' over their standard deviations, that of x' with its noise, ρ
    their correlation and y, y' their signs: Σₓ [Σ_y' max_y P(y, y') − max_y P(y)], x' itself aside.
    P by Owen's T; scalar kernels only.
    """
    if view.posterior.classes != 2:
        raise InputError(f"there are {view.posterior.classes} classes; expected two")
    mean, wide = view.posterior.mean, math.sqrt(2 * view.posterior.amplitude())
    spread = view.posterior.variance()[view.evaluation].double().sqrt()
    root = view.innovation_factors()[:, 0, 0].double()  # √u
    h = ((mean[:, 0] - mean[:, 1])[view.evaluation] / (wide * spread)).numpy()
    t = ((mean[:, 0] - mean[:, 1])[view.candidates] / (wide * root)).numpy()
    parts = []
    for pairs in torch.split(torch.arange(len(view.candidates)), CHUNK):
        rho = (
            (view.covariance(pairs).double() / (root[pairs, None] * spread))
            .clamp(-ALL_BUT_ONE, ALL_BUT_ONE)
            .numpy()
        )
        first, other = ndtr(h)[None], ndtr(t[pairs.numpy()])[:, None]
        both = _both_positive(h[None], t[pairs.numpy()][:, None], rho)
        after = np.maximum(both, other - both) + np.maximum(first - both, 1 - first - other + both)
        gain = torch.from_numpy(after - np.maximum(first, 1 - first)).clamp_min_(0)
        gain[view.candidates[pairs, None] == view.evaluation] = 0.0
        parts.append(gain.sum(1))
    return torch.cat(parts)


ALL_BUT_ONE = 1 - 1e-9


def _both_positive(h: np.ndarray, t: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """P(x > −h, z > −t) of two standard normals that are correlated, in Owen's form."""
    h, t = (
        np.where(np.abs(v) < 1e-12, 1e-12, v) for v in (h, t)
    )  # it divides by both; the limit is reached from above
    root = np.sqrt(1 - rho * rho)
    tails = owens_t(h, (t / h - rho) / root) + owens_t(t, (h / t - rho) / root)
    value: np.ndarray = (ndtr(h) + ndtr(t)) / 2 - tails - np.where(h * t > 0, 0.0, 0.5)
    return value


@dataclass(frozen=True)
class Scored:
    """Look-ahead by an acquisition function of one's own."""

    score: Callable[..., Tensor]

    def asking(self, usual: QueryConfig) -> QueryConfig:
        """How a campaign asks that would ask as `usual` otherwise."""
        return replace(
            usual,
            strategy=make_lookahead_strategy("changed", "what was tried", "labelahead", self.score),
        )


class Variant(NamedTuple):
    """about: what was changed, in words. how: `flip` as first built, changed, or a strategy."""

    about: str
    how: Flip | Named | Scored

    @property
    def rival(self) -> bool:
        """Another strategy, here for orientation."""
        return isinstance(self.how, Named)


_OTHERS = "summed over all items but the one that is asked for"
_LOW = "amplitude of the prior × 0.3"
_HALF = "begins half-way between the network and the kernel regression from the mean label"
VARIANTS: dict[str, Variant] = {
    PLAIN: Variant("as first built", Flip()),
    "own item left out": Variant(_OTHERS, Flip(own=False)),
    PRESENT: Variant(f"{_OTHERS}, {_LOW}: the default now", Flip(own=False, amplitude=0.3)),
    "greedy": Variant("one by one on predicted labels instead of true ones", Flip(greedy=True)),
    **{
        f"noise {text}": Variant(f"regulariser {text} instead of 1e-3", Flip(noise=float(text)))
        for text in ("1e-4", "1e-2", "3e-2", "1e-1", "1")
    },
    "noise by leave-one-out": Variant(
        "regulariser from 1e-4 to 1, chosen by leave-one-out in every round", Flip(noise=LOO)
    ),
    "unit diagonal": Variant("kernel scaled to a diagonal of ones", Flip(unit=True)),
    "unit diagonal + noise 1e-2": Variant(
        "kernel scaled to a diagonal of ones, regulariser 1e-2", Flip(unit=True, noise=1e-2)
    ),
    **{
        f"amplitude x {text}": Variant(
            f"amplitude of the prior × {text}", Flip(amplitude=float(text))
        )
        for text in ("0.1", "0.3", "3")
    },
    "amplitude x 0.3 + noise 1e-2": Variant(
        f"{_LOW}, regulariser 1e-2", Flip(amplitude=0.3, noise=1e-2)
    ),
    "amplitude x 0.3 + 3000 candidates": Variant(
        f"{_LOW}, 3,000 candidates (summed over 1,000: most curves come out the same)",
        Flip(amplitude=0.3, candidates=3000),
    ),
    "four classes": Variant(
        "flips of the first class with the next three instead of the next", Flip(classes=4)
    ),
    "expected improvement": Variant(
        "expected rise of the larger output instead of flips, amplitude × 10",
        Flip(score="improvement", amplitude=10.0),
    ),
    "mean start": Variant(
        "kernel regression begins at the mean label instead of at the network", Flip(start="mean")
    ),
    "half-way start": Variant(_HALF, Flip(start="half-way")),
    "half-way start + noise 1e-2": Variant(
        f"{_HALF}, regulariser 1e-2", Flip(start="half-way", noise=1e-2)
    ),
    "half-way start + unit diagonal": Variant(
        f"{_HALF}, kernel scaled to a diagonal of ones", Flip(start="half-way", unit=True)
    ),
    "three networks": Variant("outputs and kernel are means over three networks", Flip(networks=3)),
    "three networks + amplitude x 0.3": Variant(
        "outputs and kernel are means over three networks, amplitude of the prior × 0.3",
        Flip(networks=3, amplitude=0.3),
    ),
    "trace kernel": Variant("trace kernel instead of the pseudo-kernel", Flip(kernel="trace")),
    **{
        name: Variant(f"another strategy: `{name}`", Named(name))
        for name in ("random", "margin", "badge", "typiclust", "variance")
    },
}
RESOLVE = "resolve"
# Tried against `resolve` as it is: where there are many classes, and where there are two.
MANY_CLASSES: dict[str, Variant] = {
    RESOLVE: Variant("as it is", Named(RESOLVE)),
    **{
        f"resolve, {rivals} rivals": Variant(
            f"the leading class against its {rivals} nearest",
            Scored(partial(resolves, rivals=rivals)),
        )
        for rivals in (2, 4, 8)
    },
    "uherding": Variant("`uherding`", Named("uherding")),
}
TWO_CLASSES: dict[str, Variant] = {
    RESOLVE: Variant("as it is", Named(RESOLVE)),
    "by labels": Variant("error reduction by labels (Zhao et al. 2021)", Scored(by_labels)),
    **{
        name: Variant(f"`{name}`", Named(name)) for name in ("flip", "uherding", "margin", "random")
    },
}
