"""What `python -m research study kernel` measures, one function a part."""

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from labelahead.models import build_model
from labelahead.models.training import Training, predict, train
from labelahead.models.training.fit import find_batchnorms, recompute_batchnorm_statistics
from labelahead.ntk import kernel
from labelahead.seeds import make_generator
from research.studies.design import Cell, Row
from research.studies.quality import (
    KINDS,
    KernelQuality,
    compare_kernels,
    extreme_eigenvalues,
    regress,
)
from research.studies.study_data import StudyData, items, one_hot, peak_memory, share_right, some

__all__ = ["KEPT", "NETWORKS", "draw_truncated_weights", "pn_bound", "record_weights", "rows_of"]

NETWORKS = ("fcn", "convnet", "resnet18", "wrn16")
CONFIDENCE = 0.05  # δ of PN's bound
KEPT = 0.87962566  # deviation of a standard normal cut off at two deviations

Labelled = tuple[Tensor, Tensor]  # items (n, ...) and classes (n,)


def rows_of(s: Any, cell: Cell) -> Sequence[Row]:
    """The rows of one cell of the study."""
    parts = {"rate": rate, "variants": variants, "bound": bound, "training": training}
    return parts[cell["part"]](s, cell)


def network(data: StudyData, cell: Cell, **options: Any) -> nn.Module:
    """The cell's network with new weights."""
    name, width = cell["network"], cell["width"]
    if name == "wrn16":  # PN, appendix A: two groups, and a stem as wide as the first
        options |= {"groups": 2, "stem": round(16 * width)}
    else:
        width = int(width)
    return build_model(name, data.shape, data.classes, width=width, seed=cell["seed"], **options)


def set_batch_statistics(model: nn.Module, x: Tensor) -> nn.Module:
    """In eval mode, BatchNorm's statistics those of x: a new network's are of no data at all."""
    recompute_batchnorm_statistics(model, find_batchnorms(model), x)
    return model.eval()


def rate(s: Any, cell: Cell) -> list[Row]:
    """Distances at initialisation, on few items (PN Figs 2, 3; theory: width^(−1/2))."""
    data = items(s.data, s.root)
    model = network(data, cell)
    return [_distances(s, data, model, cell["seed"])]


def variants(s: Any, cell: Cell) -> list[Row]:
    """The same for the fcn with another activation, or with truncated weights (TH A.7.5)."""
    data, cut = items(s.data, s.root), cell["variant"] == "truncated"
    model = network(data, cell, activation="relu" if cut else cell["variant"])
    if cut:
        draw_truncated_weights(model, cell["seed"])
    return [_distances(s, data, model, cell["seed"])]


def _distances(s: Any, data: StudyData, model: nn.Module, seed: int) -> Row:
    at = some(data, max(s.rate_items, min(s.items, len(data.inputs))), seed)
    set_batch_statistics(model, data.inputs[at])
    return _in_row(compare_kernels(model, data.inputs[at[: s.rate_items]]))


def _in_row(quality: KernelQuality) -> dict[str, Any]:
    row: dict[str, Any] = {
        "classes": quality.classes,
        "diagonal": quality.diagonal,
        "off_diagonal": quality.off_diagonal,
        "off_over_on": quality.off_diagonal / quality.diagonal,
        "norm": quality.norm,
    }
    for kind in KINDS:
        row[f"distance_{kind}"] = quality.distances[kind]
        row[f"error_{kind}"] = quality.errors[kind]
    return row


def draw_truncated_weights(model: nn.Module, seed: int) -> None:
    """Draw every weight matrix anew, in place, from a normal cut at ±2, with the same deviation."""
    rng = make_generator(seed, "truncated")
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            std = float(layer.weight.detach().std()) / KEPT
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std, generator=rng)


def bound(s: Any, cell: Cell) -> list[Row]:
    """PN's explicit bound (PN-22) beside the distance that it bounds, pair by pair of items."""
    data = items(s.data, s.root)
    x = data.inputs[some(data, s.bound_items, cell["seed"])]
    model = network(data, cell).eval()
    trunk = nn.Sequential(*list(model.children())[:-1]).eval()  # all but the read-out
    n, C, w = len(x), data.classes, int(cell["width"])
    theta = kernel(model, x, kind="full").double().reshape(n, C, n, C).permute(0, 2, 1, 3)
    inner = kernel(trunk, x, kind="full").reshape(n, w, n, w).abs().amax((1, 3)).double()
    pseudo = theta.sum((2, 3)) / C
    gap = (pseudo[..., None, None] * torch.eye(C) - theta).flatten(2).norm(dim=2)
    norm = theta.flatten(2).norm(dim=2)
    above = pn_bound(inner, C, CONFIDENCE)
    relative = (gap / norm).mean()
    return [
        {
            "distance": float(gap.mean()),
            "bound": float(above.mean()),
            "tightness": float((gap / above).mean()),
            "relative": float(relative),
            "relative_bound": float((above / norm).mean()),
            "scaled": float(relative) * w**0.5,
            "violated": int((gap > above).sum()),
        }
    ]


def pn_bound(largest: Tensor, classes: int, delta: float) -> Tensor:
    """PN-22 on ‖Θ̂⊗I − Θ‖_F, its factor 1/√w taken off both sides.

    largest: the largest entry, in size, of the kernel of the last hidden layer.
    """
    logarithm = math.log(8 * classes**2 / delta)
    factor: float = 8 * classes * max(logarithm**0.5, 2**0.5 * logarithm)
    return factor * largest


def training(s: Any, cell: Cell) -> list[Row]:
    """Everything at every checkpoint of one run of SGD (PN Figs 2 to 8, 12)."""
    data, seed = items(s.data, s.root), cell["seed"]
    at = some(data, s.items, seed)
    x, y = data.inputs[at], data.labels[at]
    order = torch.randperm(len(data.test_inputs), generator=make_generator(seed, "test items"))[
        : s.test
    ]
    test = data.test_inputs[order], data.test_labels[order]
    model = network(data, cell)
    wanted = {round(part * s.steps): part for part in s.checkpoints}
    how = Training(
        loss=s.loss,
        optimiser="sgd",
        rate=s.rate,
        schedule="constant",
        momentum=s.momentum,
        weight_decay=s.weight_decay,
        steps=s.steps,
        batch=s.batch,
    )
    with record_weights(model, wanted) as states:
        done = train(model, x, y, data.classes, how, seed=seed)
    rows: list[Row] = []
    for step, part in wanted.items():
        model.load_state_dict(states[step])
        set_batch_statistics(model, x)
        now = copy.deepcopy(model).double()
        row = _quality(s, now, (x.double(), y), (test[0].double(), test[1]))
        rows.append({"checkpoint": part, "step": step, "learning_rate": done.rate, **row})
    return rows


@contextmanager
def record_weights(model: nn.Module, steps: Any) -> Iterator[dict[int, dict[str, Tensor]]]:
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


def _quality(s: Any, model: nn.Module, known: Labelled, test: Labelled) -> dict[str, Any]:
    """One network: kernels, spectra and regression."""
    began = time.perf_counter()
    quality = compare_kernels(model, known[0], keep=True)
    seconds = time.perf_counter() - began
    assert quality.full is not None
    row = _in_row(quality) | _spectra(quality)
    row |= _regression(s, model, quality, known, test)
    row |= {
        "rows_of_full": len(quality.full),
        "kernel_seconds": round(seconds, 4),
        "kernel_megabytes": quality.held / 1e6,
        "peak_megabytes": peak_memory() / 1e6,
    }
    return row


def _spectra(quality: KernelQuality) -> dict[str, Any]:
    assert quality.full is not None
    row: dict[str, Any] = {}
    for kind, matrix in {"full": quality.full, **quality.kernels}.items():
        ends = extreme_eigenvalues(matrix)  # K⊗I has the eigenvalues of K
        row |= {
            f"largest_{kind}": ends.largest,
            f"smallest_{kind}": ends.smallest,
            f"condition_{kind}": ends.condition,
        }
    for kind in KINDS:
        for name in ("largest", "smallest", "condition"):
            ours, full = row[f"{name}_{kind}"], row[f"{name}_full"]
            known = ours is not None and full is not None
            if name == "smallest":  # rounding is not compared with rounding
                known = row["condition_full"] is not None and row[f"condition_{kind}"] is not None
            row[f"{name}_gap_{kind}"] = abs(ours - full) / abs(full) if known else None
    return row


def _regression(
    s: Any, model: nn.Module, quality: KernelQuality, known: Labelled, test: Labelled
) -> dict[str, Any]:
    """f_lin by the full kernel (PN-5) and by each scalar one (PN-6)."""
    (x, y), (t, truth) = known, test
    C, m = quality.classes, len(t)
    f, left = predict(model, t).double(), one_hot(y, C) - predict(model, x).double()
    cross = kernel(model, t, x, kind="full").double()
    assert quality.full is not None
    step, _ = regress(quality.full, cross, left.reshape(-1, 1), s.noise)
    full = step.reshape(m, C)
    blocks = cross.reshape(m, C, len(x), C).permute(0, 2, 1, 3)
    on = blocks.diagonal(dim1=2, dim2=3)
    scalar = {"pseudo": blocks.sum((2, 3)) / C, "single": on[..., 0], "trace": on.mean(2)}
    row: dict[str, Any] = {
        "accuracy_f": share_right(f, truth),
        "accuracy_full": share_right(f + full, truth),
        "train_accuracy": share_right(predict(model, x), y),
        "residual": float(left.norm() / one_hot(y, C).norm()),
    }
    for kind in KINDS:
        ours, _ = regress(quality.kernels[kind], scalar[kind], left, s.noise)
        gap = float((ours - full).norm())
        row |= {
            f"accuracy_{kind}": share_right(f + ours, truth),
            f"output_gap_{kind}": gap / float((f + full).norm()),
            f"step_gap_{kind}": gap / float(full.norm()),
        }
    return row
