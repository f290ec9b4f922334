"""The labelled set as training wants it: checked, on the network's device, in fair batches."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from labelahead.errors import InputError, ModelError, NumericalError

__all__ = ["batches", "check_set", "forward", "place", "rows_at_once", "trainable"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def check_set(inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Labels as int64 (n,), after a look at everything that could be wrong with them."""
    check_inputs(inputs)
    if not isinstance(labels, Tensor) or labels.dtype not in _INTEGERS:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(
            f"labels are {kind}; expected class numbers as an integer tensor (n,): "
            "convert them with torch.as_tensor(labels).long()"
        )
    if labels.shape != inputs.shape[:1]:
        raise InputError(
            f"labels have shape {tuple(labels.shape)} and inputs {tuple(inputs.shape)}; expected "
            f"one label for each of the {len(inputs)} inputs, shape ({len(inputs)},)"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"labels reach from {low} to {high}; expected class numbers from 0 to {classes - 1}"
        )
    return labels.detach().long()


def check_inputs(inputs: Tensor) -> None:
    """Raise `InputError` unless `inputs` is a tensor of at least one sample, finite throughout."""
    if not isinstance(inputs, Tensor):
        raise InputError(
            f"inputs are a {type(inputs).__name__}; expected a tensor (n, ...): convert them with "
            "torch.as_tensor"
        )
    if inputs.ndim == 0 or inputs.numel() == 0:
        raise InputError(
            f"inputs have shape {tuple(inputs.shape)}; expected (n, ...) with at least one sample"
        )
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs.sum())):
        bad = ~torch.isfinite(inputs.reshape(len(inputs), -1)).all(1)
        if bool(bad.any()):
            raise InputError(
                f"inputs hold NaN or infinity in {int(bad.sum())} of {len(inputs)} samples; "
                "expected finite numbers: repair or drop those samples"
            )


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that require a gradient: at least one, all finite."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}: wrap it in one")
    everything = list(model.named_parameters())
    for name, p in everything:
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ModelError(
                f"parameter {name!r} has no shape yet: pass one batch through the lazy layers first"
            )
        if not bool(torch.isfinite(p.detach()).all()):
            raise NumericalError(
                f"parameter {name!r} holds NaN or infinity before training; expected sound "
                "weights: start from new ones"
            )
    chosen = [p for _, p in everything if p.requires_grad]
    if not chosen:
        raise ModelError(
            f"none of the network's {len(everything)} parameters requires a gradient; expected "
            "something to train: unfreeze some with requires_grad_(True)"
        )
    return chosen


def place(model: nn.Module, inputs: Tensor) -> tuple[torch.device, torch.dtype]:
    """Where the network's weights are, and the dtype its inputs need: integers stay integers."""
    like = next((p for p in model.parameters() if p.is_floating_point()), inputs)
    return like.device, like.dtype if inputs.is_floating_point() else inputs.dtype


def forward(model: nn.Module, x: Tensor) -> Tensor:
    """Outputs (n, C), or an error that says what the network did instead."""
    try:
        out = model(x)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        if isinstance(error, (torch.OutOfMemoryError, NotImplementedError)):
            raise
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        hint = "check their shape" if x.is_floating_point() else "inputs.float(), if real numbers"
        raise InputError(
            f"the network's forward failed on inputs of shape {tuple(x.shape)} {x.dtype} ({cause});"
            f" expected inputs that it takes: {hint}"
        ) from error
    if isinstance(out, Tensor) and out.shape == x.shape[:1]:
        out = out[:, None]
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != len(x):
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ModelError(
            f"the network returned {got} for {len(x)} samples; expected a tensor "
            f"({len(x)}, C): wrap it in a module that returns class scores alone"
        )
    return out


def rows_at_once(inputs: Tensor) -> int:
    """Samples a forward pass without gradients.

    Activations of images should stay in the cache: 64 of 28x28 pixels were two to three times
    faster than 1,024 of them. Vectors are matrix products, which gain from size.
    """
    budget = 1 << (18 if inputs.dim() == 2 else 16)
    return max(8, min(1024, budget // max(1, inputs[0].numel())))


def batches(n: int, size: int, steps: int, seed: int, *, pairs: bool) -> Iterator[Tensor | None]:
    """Positions of each of `steps` batches; None stands for the whole set.

    Every epoch is shuffled anew and cut into equal parts of at most `size`, so that no update is
    left to a small remainder. `pairs`: no part of one sample, for BatchNorm's sake, as long as
    there are two.
    """
    parts = -(-n // size)
    if pairs and n // parts < 2:
        parts = max(1, n // 2)
    if parts == 1:
        yield from (None for _ in range(steps))
        return
    rng = torch.Generator().manual_seed(seed)
    taken = 0
    while True:
        for part in torch.randperm(n, generator=rng).tensor_split(parts):
            if taken == steps:
                return
            taken += 1
            yield part
