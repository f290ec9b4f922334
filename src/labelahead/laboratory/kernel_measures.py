"""What `labelahead study kernel` measures, one function a part."""

import copy
import math
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from labelahead.laboratory.experiment import Cell, Row
from labelahead.laboratory.materials import Items, items, one_hot, some
from labelahead.laboratory.quality import (
    KINDS,
    Comparison,
    compare_kernels,
    extreme_eigenvalues,
    regress,
)
from labelahead.models import build
from labelahead.situation import stream
from labelahead.tangent import kernel
from labelahead.train import Training, predict, train
from labelahead.train.norms import learning_norms, settle

__all__ = ["measure", "pn_bound", "truncated"]

CONFIDENCE = 0.05  # δ of PN's bound
KEPT = 0.87962566  # deviation of a standard normal cut off at two deviations


def measure(s: Any, cell: Cell) -> Sequence[Row]:
    """The rows of one cell of the study."""
    parts = {"rate": rate, "variants": variants, "bound": bound, "training": training}
    return parts[cell["part"]](s, cell)


def network(found: Items, cell: Cell, **options: Any) -> nn.Module:
    """The cell's network with new weights."""
    name, width = cell["network"], cell["width"]
    if name == "wrn16":  # PN, appendix A: two groups, and a stem as wide as the first
        options |= {"groups": 2, "stem": round(16 * width)}
    else:
        width = int(width)
    return build(name, found.shape, found.classes, width=width, seed=cell["seed"], **options)


def settled(model: nn.Module, x: Tensor) -> nn.Module:
    """In eval mode, BatchNorm's statistics those of x: a new network's are of no data at all."""
    settle(model, learning_norms(model), x)
    return model.eval()


def rate(s: Any, cell: Cell) -> list[Row]:
    """Distances at initialisation, on few items (PN Figs 2, 3; theory: width^(−1/2))."""
    found = items(s.data, s.root)
    model = network(found, cell)
    return [_distances(s, found, model, cell["seed"])]


def variants(s: Any, cell: Cell) -> list[Row]:
    """The same for the fcn with another activation, or with truncated weights (TH A.7.5)."""
    found, cut = items(s.data, s.root), cell["variant"] == "truncated"
    model = network(found, cell, activation="relu" if cut else cell["variant"])
    if cut:
        truncated(model, cell["seed"])
    return [_distances(s, found, model, cell["seed"])]


def _distances(s: Any, found: Items, model: nn.Module, seed: int) -> Row:
    at = some(found, max(s.rate_items, min(s.items, len(found.inputs))), seed)
    settled(model, found.inputs[at])
    got = compare_kernels(model, found.inputs[at[: s.rate_items]])
    return _in_row(got)


def _in_row(got: Comparison) -> dict[str, Any]:
    row: dict[str, Any] = {
        "classes": got.classes, "diagonal": got.diagonal, "off_diagonal": got.off_diagonal,
        "off_over_on": got.off_diagonal / got.diagonal, "norm": got.norm,
    }  # fmt: skip
    for kind in KINDS:
        row[f"distance_{kind}"] = got.distances[kind]
        row[f"error_{kind}"] = got.errors[kind]
    return row


def truncated(model: nn.Module, seed: int) -> None:
    """Draw every weight matrix anew, in place, from a normal cut at ±2, with the same deviation."""
    rng = stream(seed, "truncated")
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            std = float(layer.weight.detach().std()) / KEPT
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std, generator=rng)


def bound(s: Any, cell: Cell) -> list[Row]:
    """PN's explicit bound (PN-22) beside the distance that it bounds, pair by pair of items."""
    found = items(s.data, s.root)
    x = found.inputs[some(found, s.bound_items, cell["seed"])]
    model = network(found, cell).eval()
    trunk = nn.Sequential(*list(model.children())[:-1]).eval()  # all but the read-out
    n, C, w = len(x), found.classes, int(cell["width"])
    theta = kernel(model, x, kind="full").double().reshape(n, C, n, C).permute(0, 2, 1, 3)
    inner = kernel(trunk, x, kind="full").reshape(n, w, n, w).abs().amax((1, 3)).double()
    pseudo = theta.sum((2, 3)) / C
    gap = (pseudo[..., None, None] * torch.eye(C) - theta).flatten(2).norm(dim=2)
    norm = theta.flatten(2).norm(dim=2)
    above = pn_bound(inner, C, CONFIDENCE)
    relative = (gap / norm).mean()
    return [{
        "distance": float(gap.mean()), "bound": float(above.mean()),
        "tightness": float((gap / above).mean()), "relative": float(relative),
        "relative_bound": float((above / norm).mean()), "scaled": float(relative) * w**0.5,
        "violated": int((gap > above).sum()),
    }]  # fmt: skip


def pn_bound(largest: Tensor, classes: int, delta: float) -> Tensor:
    """PN-22 on ‖Θ̂⊗I − Θ‖_F, its factor 1/√w taken off both sides.

    largest: the largest entry, in size, of the kernel of the last hidden layer.
    """
    logarithm = math.log(8 * classes**2 / delta)
    factor: float = 8 * classes * max(logarithm**0.5, 2**0.5 * logarithm)
    return factor * largest


def training(s: Any, cell: Cell) -> list[Row]:
    """Everything at every checkpoint of one run of SGD (PN Figs 2 to 8, 12)."""
    found, seed = items(s.data, s.root), cell["seed"]
    at = some(found, s.items, seed)
    x, y = found.inputs[at], found.labels[at]
    order = torch.randperm(len(found.test_inputs), generator=stream(seed, "test items"))[: s.test]
    test = found.test_inputs[order], found.test_labels[order]
    model = network(found, cell)
    wanted = {round(part * s.steps): part for part in s.checkpoints}
    how = Training(
        loss=s.loss, optimiser="sgd", rate=s.rate, schedule="constant", momentum=s.momentum,
        weight_decay=s.weight_decay, steps=s.steps, batch=s.batch,
    )  # fmt: skip
    with noted(model, wanted) as states:
        done = train(model, x, y, found.classes, how, seed=seed)
    rows: list[Row] = []
    for step, part in wanted.items():
        model.load_state_dict(states[step])
        settled(model, x)
        now = copy.deepcopy(model).double()
        row = _quality(s, now, (x.double(), y), (test[0].double(), test[1]), found.classes)
        rows.append({"checkpoint": part, "step": step, "learning_rate": done.rate, **row})
    return rows


@contextmanager
def noted(model: nn.Module, steps: Any) -> Iterator[dict[int, dict[str, Tensor]]]:
    """The weights of `model` after so many steps of whichever optimiser runs inside.

    An attempt that diverged counts for nothing: the next has an optimiser of its own.
    """
    states = {0: copy.deepcopy(model.state_dict())}
    now: list[Any] = [None, 0]

    def note(optimiser: Optimizer, *_: Any) -> None:
        if optimiser is not now[0]:
            now[:] = [optimiser, 0]
        now[1] += 1
        if now[1] in steps:
            states[now[1]] = copy.deepcopy(model.state_dict())

    handle = register_optimizer_step_post_hook(note)
    try:
        yield states
    finally:
        handle.remove()


def _quality(
    s: Any,
    model: nn.Module,
    known: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: int,
) -> dict[str, Any]:
    """One network: kernels, spectra and regression."""
    began = time.perf_counter()
    got = compare_kernels(model, known[0], keep=True)
    seconds = time.perf_counter() - began
    assert got.full is not None
    row = _in_row(got) | _spectra(got)
    row |= _regression(s, model, got, known, test, classes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    row |= {
        "rows_of_full": len(got.full), "kernel_seconds": round(seconds, 4),
        "kernel_megabytes": got.held / 1e6,
        "peak_megabytes": peak / (1e6 if sys.platform == "darwin" else 1e3),
    }  # fmt: skip
    return row


def _spectra(got: Comparison) -> dict[str, Any]:
    assert got.full is not None
    found = {"full": got.full, **got.kernels}
    row: dict[str, Any] = {}
    for kind, matrix in found.items():
        ends = extreme_eigenvalues(matrix)  # K⊗I has the eigenvalues of K
        row |= {
            f"largest_{kind}": ends.largest, f"smallest_{kind}": ends.smallest,
            f"condition_{kind}": ends.condition,
        }  # fmt: skip
    for kind in KINDS:
        for name in ("largest", "smallest", "condition"):
            ours, full = row[f"{name}_{kind}"], row[f"{name}_full"]
            known = ours is not None and full is not None
            if name == "smallest":  # rounding is not compared with rounding
                known = row["condition_full"] is not None and row[f"condition_{kind}"] is not None
            row[f"{name}_gap_{kind}"] = abs(ours - full) / abs(full) if known else None
    return row


def _regression(
    s: Any,
    model: nn.Module,
    got: Comparison,
    known: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: int,
) -> dict[str, Any]:
    """f_lin by the full kernel (PN-5) and by each scalar one (PN-6)."""
    (x, y), (t, truth) = known, test
    C, m = classes, len(t)
    f, left = predict(model, t).double(), one_hot(y, C) - predict(model, x).double()
    cross = kernel(model, t, x, kind="full").double()
    assert got.full is not None
    step, _ = regress(got.full, cross, left.reshape(-1, 1), s.noise)
    full = step.reshape(m, C)
    blocks = cross.reshape(m, C, len(x), C).permute(0, 2, 1, 3)
    on = blocks.diagonal(dim1=2, dim2=3)
    scalar = {"pseudo": blocks.sum((2, 3)) / C, "single": on[..., 0], "trace": on.mean(2)}

    def right(outputs: Tensor) -> float:
        return float((outputs.argmax(1) == truth).double().mean())

    row: dict[str, Any] = {
        "accuracy_f": right(f), "accuracy_full": right(f + full),
        "train_accuracy": float((predict(model, x).argmax(1) == y).double().mean()),
        "residual": float(left.norm() / one_hot(y, C).norm()),
    }  # fmt: skip
    for kind in KINDS:
        ours, _ = regress(got.kernels[kind], scalar[kind], left, s.noise)
        gap = float((ours - full).norm())
        row |= {
            f"accuracy_{kind}": right(f + ours),
            f"output_gap_{kind}": gap / float((f + full).norm()),
            f"step_gap_{kind}": gap / float(full.norm()),
        }  # fmt: skip
    return row
