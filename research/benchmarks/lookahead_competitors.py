"""What the look-ahead is measured with, against and on: stop-watch, rivals, networks."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import labelahead as la

CLASSES = 10


def best_of(call: Callable[[], Any], runs: int = 3) -> tuple[float, Any]:
    best = math.inf
    for _ in range(runs):
        begin = time.perf_counter()
        value = call()
        best = min(best, time.perf_counter() - begin)
    return best, value


def table(title: str, rows: list[dict[str, object]]) -> None:
    print(f"\n{title}")
    cells = [list(rows[0])] + [[str(v) for v in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    for line in cells:
        print("  " + "  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)))
    print(flush=True)


def gemm_rate(dtype: torch.dtype) -> float:
    """GFLOP/s of a 2048³ product: how much of the machine we had."""
    a = torch.randn(2048, 2048, dtype=dtype)
    return 2 * 2048**3 / best_of(lambda: a @ a, 4)[0] / 1e9


@dataclass
class Pool:
    """n points: outputs (n, C), one-hot truth (n, C), tangent kernel (n, n) float32."""

    outputs: Tensor
    truth: Tensor
    kernel: Tensor
    model: torch.nn.Module | None = None  # the network it is the kernel of, and
    x: Tensor | None = None  # its inputs, where features are asked for


def make_pool(n: int, seed: int, *, width: int = 128) -> Pool:
    """Ten clusters in 64 dimensions and a two-layer ReLU network with half-trained outputs.

    The kernel is that network's exact single-logit tangent kernel, written out:
    (x·x')(g·g') + h·h', g = a∘1[Wx>0]: pools of any size in no time, for timing scores only.
    """
    rng = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 64, generator=rng)
    label = torch.randint(CLASSES, (n,), generator=rng)
    x = centres[label] + 0.9 * torch.randn(n, 64, generator=rng)
    w = torch.randn(width, 64, generator=rng) / 8
    a = torch.randn(width, generator=rng) / width**0.5
    hidden = x @ w.T
    g, h = (hidden > 0) * a, hidden.clamp_min(0) / width**0.5
    x = x / 8
    kernel = (x @ x.T).mul_(g @ g.T).addmm_(h, h.T)
    kernel = (kernel + kernel.T).div_(2)
    truth = torch.nn.functional.one_hot(label, CLASSES).float()
    # most points all but decided, one in four still open between classes
    doubt = torch.where(torch.rand(n, 1, generator=rng) < 0.25, 0.35, 0.05)
    outputs = truth * (1 - 1.5 * doubt) + doubt * torch.randn(n, CLASSES, generator=rng)
    return Pool(outputs.double(), truth.double(), kernel)


def digits_pool(seed: int, labels: int, network: str) -> Pool:
    """scikit-learn's digits, shuffled; a network trained on the first `labels`; its pseudo-NTK."""
    torch.manual_seed(seed)
    images, label = load_digits(return_X_y=True)
    order = torch.randperm(len(label))
    x = torch.as_tensor(images).float()[order] / 8 - 1
    truth = torch.nn.functional.one_hot(torch.as_tensor(label), CLASSES).float()[order]
    model = NETWORKS[network]()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(150):
        optimiser.zero_grad()
        (model(x[:labels]) - truth[:labels]).square().sum(1).mean().backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        outputs = model(x)
    return Pool(outputs.double(), truth.double(), la.kernel(model, x), model, x)


def mlp() -> torch.nn.Module:
    """64-256-256-10, 85,000 weights."""
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES)
    )


def cnn() -> torch.nn.Module:
    """Three convolutions of 16-32-64 channels, 39,000 weights."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


NETWORKS = {"mlp": mlp, "cnn": cnn}


def plain_solve(
    pool: Pool, labelled: Tensor, candidates: Tensor, some: Tensor, noise: float
) -> Tensor:
    """MLMOC by (LA-11) as one would write it down: border the system, solve it, predict."""
    kernel, f = pool.kernel, pool.outputs
    sigma = noise * float(kernel.diagonal().double().mean())
    reach, scores = kernel[candidates][:, labelled].double(), []
    known = kernel[labelled[:, None], labelled].double() + sigma * torch.eye(
        len(labelled), dtype=torch.float64
    )
    drift = reach @ torch.linalg.solve(
        known, pool.truth[labelled] - f[labelled]
    )  # at x' itself this alone counts
    for j in some:
        plus = torch.cat([labelled, j[None]])
        system = kernel[plus[:, None], plus].double() + sigma * torch.eye(
            len(plus), dtype=torch.float64
        )
        target = pool.truth[plus].clone()
        target[-1] = torch.nn.functional.one_hot(f[j].argmax(), CLASSES)
        weights = torch.linalg.solve(system, target - f[plus])
        bordered = torch.cat([reach, kernel[candidates, j].double()[:, None]], 1)
        after = f[candidates] + bordered @ weights
        change = torch.where((candidates == j)[:, None], drift, after - f[candidates])
        scores.append(change.norm(dim=1).sum())
    return torch.stack(scores)


def paper_block(
    pool: Pool, labelled: Tensor, candidates: Tensor, noise: float, chunk: int = 64
) -> Tensor:
    """MLMOC by the paper's block formula (LA-12), errata corrected, a chunk of candidates at once.

    v and u per candidate, f₊ for every pair as a C-vector: matrix products throughout, solves in
    float64 and pairs in the kernel's dtype, as ours.
    """
    kernel, f = pool.kernel, pool.outputs
    sigma = noise * float(kernel.diagonal().double().mean())
    xx = kernel[labelled][:, labelled].double()
    lower = torch.linalg.cholesky(xx + sigma * torch.eye(len(labelled), dtype=torch.float64))
    cross = kernel[labelled][:, candidates].double()
    v = torch.cholesky_solve(cross, lower)
    residual = pool.truth[labelled] - f[labelled]
    u = kernel.diagonal().double()[candidates] - (cross * v).sum(0) + sigma
    f_lin = f[candidates] + v.T @ residual
    label = torch.nn.functional.one_hot(f[candidates].argmax(1), CLASSES).double()
    right = (v.T @ residual - (label - f[candidates])) / u[:, None]
    reach, v32 = cross.T.to(kernel.dtype).contiguous(), v.to(kernel.dtype)
    pairs = kernel[candidates][:, candidates]
    now, start, push = (t.to(kernel.dtype) for t in (f[candidates], f_lin, right))
    scores = []
    for lo in range(0, len(candidates), chunk):
        hi = lo + chunk
        left = (reach @ v32[:, lo:hi] - pairs[:, lo:hi]).T
        after = start + left[:, :, None] * push[lo:hi, None, :]
        size = (after - now).norm(dim=2)
        size[:, lo:hi].fill_diagonal_(0.0)  # at x' itself the drift alone counts
        scores.append(size.sum(1) + (start - now)[lo:hi].norm(dim=1))
    return torch.cat(scores).double()
