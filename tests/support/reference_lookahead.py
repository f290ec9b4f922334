"""Naive float64 twins of posterior, look-ahead and acquisition functions: loops and refits."""

import math
from dataclasses import dataclass

import torch
from scipy import integrate
from torch import Tensor

from labelahead.gp.posterior import Posterior, prior

TOLERANCE = 1e-9  # relative to the largest entry; float64 throughout
KINDS = ("dense-scalar", "dense-full", "low-rank", "low-rank-full")


def close(a: Tensor, b: Tensor, tolerance: float = TOLERANCE) -> None:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    scale = max(1.0, float(b.abs().max()) if b.numel() else 1.0)
    error = float((a - b).abs().max()) if b.numel() else 0.0
    assert error <= tolerance * scale, f"differ by {error:.3g} at scale {scale:.3g}"


@dataclass
class Problem:
    """A synthetic network: outputs (n, C), kernel (n·b, n·b), features (n·b, k), true targets."""

    outputs: Tensor
    kernel: Tensor
    features: Tensor
    targets: Tensor
    kind: str
    noise: float = 1e-3
    noises: Tensor | None = None  # (n,) relative noise of a label at each point; None: `noise`

    @property
    def b(self) -> int:
        return len(self.kernel) // len(self.outputs)

    @property
    def sigma(self) -> float:
        return self.noise * float(self.kernel.diagonal().mean())

    def sigmas(self, at) -> Tensor:
        """Noise variances (q·b,) of labels at points (q,)."""
        scale = float(self.kernel.diagonal().mean())
        every = self.noises
        if every is None:
            every = torch.full((len(self.outputs),), self.noise, dtype=torch.float64)
        return (every * scale)[list(map(int, at))].repeat_interleave(self.b)

    def prior(self) -> Posterior:
        if self.kind.startswith("dense"):
            return prior(self.outputs, self.kernel, noise=self.noise)
        return prior(self.outputs, features=self.features, noise=self.noise)


def problem(
    kind: str, n: int = 24, classes: int = 3, seed: int = 0, rank: int = 40, **kw
) -> Problem:
    rng = torch.Generator().manual_seed(seed)
    b = classes if kind.endswith("full") else 1
    # A decaying spectrum, as tangent kernels have.
    scales = torch.arange(1, rank + 1, dtype=torch.float64) ** -0.5
    features = torch.randn(n * b, rank, generator=rng, dtype=torch.float64) * scales
    outputs = torch.randn(n, classes, generator=rng, dtype=torch.float64) * 0.4 + 1 / classes
    label = torch.randint(classes, (n,), generator=rng)
    targets = torch.nn.functional.one_hot(label, classes).double()
    return Problem(outputs, features @ features.T, features, targets, kind, **kw)


def flat(at, b: int) -> list[int]:
    return [int(i) * b + c for i in at for c in range(b)]


def refit(p: Problem, labelled, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute (LA-11) from scratch: mean (n, C) and covariance (n·b, n·b)."""
    b = p.b
    if len(labelled) == 0:
        return p.outputs.clone(), p.kernel.clone()
    x = flat(labelled, b)
    system = p.kernel[x][:, x] + torch.diag(p.sigmas(labelled))
    residual = (targets - p.outputs[list(map(int, labelled))]).reshape(len(x), -1)
    mean = p.outputs + (p.kernel[:, x] @ torch.linalg.solve(system, residual)).reshape(
        p.outputs.shape
    )
    return mean, p.kernel - p.kernel[:, x] @ torch.linalg.solve(system, p.kernel[x])


def predictions(p: Problem, labelled, targets: Tensor, candidate: int, label: Tensor) -> Tensor:
    """Compute f₊ at all points (n, C), by refitting with one more label."""
    return refit(p, [*map(int, labelled), candidate], torch.cat([targets, label[None]]))[0]


def predictions_without_own_change(
    p: Problem, labelled, targets: Tensor, candidate: int, label: Tensor
) -> Tensor:
    """Compute f₊ at all points (n, C), except for the candidate, which stays at f_lin."""
    after = predictions(p, labelled, targets, candidate, label)
    after[candidate] = refit(p, labelled, targets)[0][candidate]
    return after


def one_hot(c: int, classes: int) -> Tensor:
    return torch.eye(classes, dtype=torch.float64)[c]


def simplex(z: Tensor) -> Tensor:
    """Project one vector (C,) onto the simplex, by sorting."""
    s = sorted(z.tolist(), reverse=True)
    total, tau = 0.0, 0.0
    for i, value in enumerate(s):
        total += value
        if value - (total - 1) / (i + 1) > 0:
            tau = (total - 1) / (i + 1)
    return (z - tau).clamp_min(0)


def probability(z: Tensor, method: str) -> Tensor:
    return simplex(z) if method == "simplex" else torch.softmax(z, 0)


def _entropy(p: Tensor) -> float:
    return -sum(float(v) * math.log(float(v)) for v in p if float(v) > 0)


def _norm(v: Tensor, squared: bool) -> float:
    return float((v * v).sum()) if squared else float(v.norm())


def mlmoc(p, labelled, targets, candidates, evaluation, squared=False, baseline="outputs"):
    now = p.outputs if baseline == "outputs" else refit(p, labelled, targets)[0]
    scores = []
    for j in candidates:
        label = one_hot(int(now[j].argmax()), p.outputs.shape[1])
        after = predictions_without_own_change(p, labelled, targets, int(j), label)
        scores.append(sum(_norm(after[x] - now[x], squared) for x in evaluation))
    return torch.tensor(scores, dtype=torch.float64)


def changes(p, labelled, targets, candidates, evaluation, baseline="outputs"):
    """Count changed classes; 1e-6 of the change of the outputs breaks ties."""
    now = p.outputs if baseline == "outputs" else refit(p, labelled, targets)[0]
    scores = []
    for j in candidates:
        label = one_hot(int(now[j].argmax()), p.outputs.shape[1])
        after = predictions_without_own_change(p, labelled, targets, int(j), label)
        changed = sum(int(after[x].argmax()) != int(now[x].argmax()) for x in evaluation)
        scores.append(changed + 1e-6 * sum(_norm(after[x] - now[x], False) for x in evaluation))
    return torch.tensor(scores, dtype=torch.float64)


def emoc(
    p,
    labelled,
    targets,
    candidates,
    evaluation,
    squared=False,
    baseline="outputs",
    probability="simplex",
):
    now = p.outputs if baseline == "outputs" else refit(p, labelled, targets)[0]
    scores = []
    for j in candidates:
        total = 0.0
        for c, weight in enumerate(globals()["probability"](now[j], probability)):
            label = one_hot(c, p.outputs.shape[1])
            after = predictions_without_own_change(p, labelled, targets, int(j), label)
            total += float(weight) * sum(_norm(after[x] - now[x], squared) for x in evaluation)
        scores.append(total)
    return torch.tensor(scores, dtype=torch.float64)


def eer(p, labelled, targets, candidates, evaluation, probability="simplex", baseline="outputs"):
    project = globals()["probability"]
    now = p.outputs if baseline == "outputs" else refit(p, labelled, targets)[0]
    scores = []
    for j in candidates:
        total = 0.0
        for c, weight in enumerate(project(now[j], probability)):
            label = one_hot(c, p.outputs.shape[1])
            after = predictions_without_own_change(p, labelled, targets, int(j), label)
            entropy = sum(_entropy(project(after[x], probability)) for x in evaluation)
            total -= float(weight) * entropy
        scores.append(total)
    return torch.tensor(scores, dtype=torch.float64)


def _variance_reductions(p: Problem, cov: Tensor, x: int, j: int) -> tuple[Tensor, Tensor]:
    """Return k(x,x) and its reduction by a label at j, b×b each."""
    at, to = flat([x], p.b), flat([j], p.b)
    u = cov[to][:, to] + torch.diag(p.sigmas([j]))
    k = cov[at][:, to]
    return cov[at][:, at], k @ torch.linalg.inv(u) @ k.T


def variance(p, labelled, targets, candidates, evaluation):
    """Σₓ k²/u; trace form for blocks: tr(u⁻¹ Σ k kᵀ)."""
    _, cov = refit(p, labelled, targets)
    scores = [
        sum(
            float(_variance_reductions(p, cov, x, j)[1].trace())
            for x in evaluation
            if int(x) != int(j)
        )
        for j in candidates
    ]
    return torch.tensor(scores, dtype=torch.float64)


def amplitude(p: Problem, labelled, targets: Tensor) -> float:
    classes = p.outputs.shape[1]
    scale = float(p.kernel.diagonal().mean())
    x = flat(labelled, p.b)
    if x:
        system = p.kernel[x][:, x] + torch.diag(p.sigmas(labelled))
        centred = (targets - targets.mean(0)).reshape(len(x), -1)
        value = float((centred * torch.linalg.solve(system, centred)).sum())
        if value > 1e-9:
            return value / (len(labelled) * classes)
    return (1 / classes) * (1 - 1 / classes) / scale


def _phi(t: float) -> float:
    return 0.5 * math.erfc(-t / math.sqrt(2))


def flip(p, labelled, targets, candidates, evaluation, include_candidate=False, variance_scale=0.3):
    mean, cov = refit(p, labelled, targets)
    a2, classes = variance_scale * amplitude(p, labelled, targets), p.outputs.shape[1]
    scores = []
    for j in candidates:
        total = 0.0
        for x in evaluation:
            if int(x) == int(j) and not include_candidate:
                continue
            first, second = mean[x].argsort(descending=True)[:2]
            gap = float(mean[x, first] - mean[x, second])
            now, fall = _variance_reductions(p, cov, x, j)
            if p.b == 1:
                v, v_fall = 2 * float(now), 2 * float(fall)
            else:
                e = one_hot(int(first), classes) - one_hot(int(second), classes)
                v, v_fall = float(e @ now @ e), float(e @ fall @ e)
            total += _phi(-gap / math.sqrt(a2 * v)) - _phi(-gap / math.sqrt(a2 * (v - v_fall)))
        scores.append(total)
    return torch.tensor(scores, dtype=torch.float64)


def gain_by_quadrature(h: float, rho: float) -> float:
    """(1/π) ∫₀^{asin ρ} exp(−h²/(2 sin²ψ)) dψ (docs/method.md), by adaptive quadrature."""
    if rho <= 0:
        return 0.0

    def integrand(psi: float) -> float:
        ratio = h / math.sin(psi) if psi > 0 else math.inf * h if h else 0.0
        return math.exp(-ratio * ratio / 2)

    end = math.asin(min(rho, 1.0))
    breakpoints = [
        h * scale for scale in (0.1, 0.3, 1, 3, 10, 100, 1e4) if 0 < h * scale < end
    ]  # where the integrand rises from 0 to 1
    value, _ = integrate.quad(
        integrand, 0, end, epsabs=1e-12, limit=400, points=breakpoints or None
    )
    return value / math.pi


def gain_by_labels(h: float, rho: float, there: float) -> float:
    """Return the gain if a label reveals only the sign at x' (Zhao, Dougherty, Yoon, Alexander &
    Qian 2021).

    For two classes: the reduction of the error is Σ_y' max_y p(y, y') − max_y p(y), a
    one-dimensional integral for each pair of labels. there: the mean at x' over its standard
    deviation, noise included; rho: the correlation with the gap.
    """

    def both(z: float, sign: int) -> float:
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return density * math.erfc(-sign * (h + rho * z) / math.sqrt(2 - 2 * rho * rho)) / 2

    after = 0.0
    for low, high in (
        (-there, math.inf),
        (-math.inf, -there),
    ):  # a label of the first class, of the second
        after += max(integrate.quad(both, low, high, (sign,), epsabs=1e-12)[0] for sign in (1, -1))
    return after - math.erfc(-abs(h) / math.sqrt(2)) / 2


def resolve(p, labelled, targets, candidates, evaluation, exact=True):
    mean, cov = refit(p, labelled, targets)
    a2, classes = amplitude(p, labelled, targets), p.outputs.shape[1]
    scores = []
    for j in candidates:
        total = 0.0
        for x in evaluation:
            if int(x) == int(j):
                continue
            first, second = mean[x].argsort(descending=True)[:2]
            gap = float(mean[x, first] - mean[x, second])
            now, fall = _variance_reductions(p, cov, x, j)
            if p.b > 1:
                e = one_hot(int(first), classes) - one_hot(int(second), classes)
                now, fall = e @ now @ e / 2, e @ fall @ e / 2
            total += gain_by_quadrature(
                gap / math.sqrt(2 * a2 * float(now)), math.sqrt(float(fall / now))
            )
        scores.append(total)
    return torch.tensor(scores, dtype=torch.float64)
