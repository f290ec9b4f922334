"""Forward passes over many items: outputs of a network and inputs of its last layer.

Inputs may be on another device or in another precision than the network; they are moved batch by
batch.
"""

from typing import Any

import torch
from torch import Tensor, nn

from labelahead.batching import (
    Inputs,
    Samples,
    as_inputs,
    call_model,
    count_samples,
    describe_batch,
    list_tensors,
    read_batch,
)
from labelahead.errors import InputError, ModelError, NumericalError
from labelahead.models.layers import eval_mode

__all__ = [
    "apply_dropout",
    "check_inputs",
    "choose_batch_rows",
    "compute_penultimate_features",
    "eval_mode",
    "get_device_and_dtype",
    "predict",
    "predict_with_dropout",
    "run_forward",
]

# Samples per forward pass for inputs that are not a single tensor, whose cost is not known from
# their size.
SAMPLES_BATCH_ROWS = 64
CHECK_BLOCK_NUMBERS = 1 << 23  # checked at a time for NaN and infinity: 16 MB of float16


def predict(model: nn.Module, inputs: Inputs, *, batch: int | None = None) -> Tensor:
    """Return outputs (n, C) in eval mode, without gradients; module modes are restored.

    Args:
        model: the network.
        inputs: (n, ...) inputs of any form.
        batch: samples per forward pass; default: depends on the size of one input. It is halved
            while the device runs out of memory.

    Raises:
        NumericalError: if outputs are not finite.

    >>> from labelahead.models.training import predict
    >>> predict(build_model("mlp", (4,), 2), x).shape
    torch.Size([40, 2])
    """
    inputs = check_inputs(inputs)
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise InputError(f"batch is {batch!r}; expected a whole number of at least 1, or None")
    device, dtype = get_device_and_dtype(model, inputs)
    rows = min(batch or choose_batch_rows(inputs), len(inputs))
    with eval_mode(model), torch.no_grad():
        while True:
            try:
                parts = [
                    run_forward(model, inputs[start : start + rows].to(device=device, dtype=dtype))
                    for start in range(0, len(inputs), rows)
                ]
                break
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise
            rows = -(-rows // 2)
    out = torch.cat(parts)
    if not bool(torch.isfinite(out).all()):
        bad = int((~torch.isfinite(out)).any(1).sum())
        raise NumericalError(
            f"the network's outputs are NaN or infinite for {bad} of {len(out)} inputs; expected "
            "finite numbers: check its weights, and train it with a smaller rate"
        )
    return out


def compute_penultimate_features(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return (n, h): the input of the linear layer that is called last, in eval mode.

    Tokens of a sample are averaged. Without a linear layer the outputs are returned.
    """
    inputs = check_inputs(inputs)
    device, dtype = get_device_and_dtype(model, inputs)
    last: list[Tensor] = []

    def record_inputs(module: nn.Module, given: tuple[Any, ...]) -> None:
        last[:] = [given[0].detach()]

    hooks = [
        m.register_forward_pre_hook(record_inputs)
        for m in model.modules()
        if isinstance(m, nn.Linear)
    ]
    parts = []
    try:
        with eval_mode(model), torch.no_grad():
            rows = choose_batch_rows(inputs)
            for start in range(0, len(inputs), rows):
                part = inputs[start : start + rows]
                last.clear()
                out = run_forward(model, part.to(device=device, dtype=dtype))
                parts.append(_average_tokens(last[0] if last else out, len(part)))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(parts)


def predict_with_dropout(
    model: nn.Module, inputs: Inputs, rate: float, rng: torch.Generator
) -> Tensor:
    """Return outputs (n, C) with dropout on the input of the linear layer that is called last.

    Everything else is in eval mode. Without a linear layer the outputs themselves are dropped.

    Args:
        model: the network.
        inputs: (n, ...) inputs of any form.
        rate: the probability of dropping an entry.
        rng: draws the entries.
    """
    inputs = check_inputs(inputs)
    device, dtype = get_device_and_dtype(model, inputs)
    called: list[nn.Module] = []

    def record_inputs(module: nn.Module, given: tuple[Any, ...]) -> None:
        called[:] = [module]

    def drop(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return apply_dropout(given[0], rate, rng), *given[1:]

    hooks = [
        m.register_forward_pre_hook(record_inputs)
        for m in model.modules()
        if isinstance(m, nn.Linear)
    ]
    try:
        with eval_mode(model), torch.no_grad():
            run_forward(model, inputs[:1].to(device=device, dtype=dtype))
        if not called:
            return apply_dropout(predict(model, inputs), rate, rng)
        hooks.append(called[0].register_forward_pre_hook(drop))
        return predict(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()


def apply_dropout(values: Tensor, rate: float, rng: torch.Generator) -> Tensor:
    """Set each entry to zero with probability `rate`, and divide the others by 1 - rate."""
    kept = torch.rand(values.shape, generator=rng) >= rate
    return values * kept.to(values) / (1 - rate)


def _average_tokens(values: Tensor, n: int) -> Tensor:
    """Return one row per sample, averaging the dimensions between the first and the last."""
    if values.shape[0] != n:
        raise ModelError(
            f"the last linear layer saw {tuple(values.shape)} for {n} samples; expected samples "
            "first: this strategy needs an embedding a sample, choose another one"
        )
    return values if values.dim() == 2 else values.flatten(1, -2).mean(1)


def check_inputs(inputs: Inputs) -> Tensor | Samples:
    """Check that there is at least one sample and that all are finite.

    A mapping or tuple is returned as `Samples`.

    Raises:
        InputError: otherwise.
    """
    inputs = as_inputs(inputs)
    if isinstance(inputs, Samples):
        if not len(inputs):
            raise InputError("there are no inputs; expected at least one sample")
        return inputs
    if inputs.ndim == 0 or inputs.numel() == 0:
        raise InputError(
            f"inputs have shape {tuple(inputs.shape)}; expected (n, ...) with at least one sample"
        )
    if inputs.is_floating_point():
        # In blocks: a comparison with infinity copies what it compares.
        rows = max(1, CHECK_BLOCK_NUMBERS * len(inputs) // inputs.numel())
        bad = sum(_count_bad_samples(block) for block in torch.split(inputs, rows))
        if bad:
            raise InputError(
                f"inputs hold NaN or infinity in {bad} of {len(inputs)} samples; "
                "expected finite numbers: repair or drop those samples"
            )
    return inputs


def _count_bad_samples(inputs: Tensor) -> int:
    """Return the number of samples with NaN or infinity among inputs (n, ...)."""
    if bool(torch.isfinite(inputs.sum())):
        return 0
    return int((~torch.isfinite(inputs.reshape(len(inputs), -1)).all(1)).sum())


def get_device_and_dtype(
    model: nn.Module, inputs: Tensor | Samples
) -> tuple[torch.device, torch.dtype]:
    """Return the device of the network and the dtype of its inputs; integers stay integers."""
    weights = next((p for p in model.parameters() if p.is_floating_point()), None)
    if isinstance(inputs, Samples):
        like = list_tensors(inputs[:1].read())[0] if weights is None else weights
        return like.device, like.dtype if like.is_floating_point() else torch.get_default_dtype()
    like = inputs if weights is None else weights
    return like.device, like.dtype if inputs.is_floating_point() else inputs.dtype


def choose_batch_rows(inputs: Tensor | Samples) -> int:
    """Return the number of samples per forward pass without gradients.

    Activations of images should stay in the cache: batches of 64 images of 28x28 pixels were two to
    three times faster than batches of 1,024. Batches below 32 were never faster and up to a third
    slower (ResNet18, 64x64 pixels, one core). Vectors are matrix products, which gain from size.
    """
    if isinstance(inputs, Samples):
        return SAMPLES_BATCH_ROWS
    budget = 1 << (18 if inputs.dim() == 2 else 16)
    return max(32, min(1024, budget // max(1, inputs[0].numel())))


def run_forward(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return outputs (n, C) of the network.

    Raises:
        InputError: if its forward fails on the inputs.
        ModelError: if it returns anything but (n, C).
    """
    x, n = read_batch(inputs), count_samples(inputs)
    try:
        out = call_model(model, x)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        if isinstance(error, (torch.OutOfMemoryError, NotImplementedError)):
            raise
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        whole = isinstance(x, Tensor) and not x.is_floating_point()
        hint = "inputs.float(), if real numbers" if whole else "check their shape"
        raise InputError(
            f"the network's forward failed on inputs of shape {describe_batch(x)} ({cause});"
            f" expected inputs that it takes: {hint}"
        ) from error
    if isinstance(out, Tensor) and out.shape == (n,):
        out = out[:, None]
    if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != n:
        description = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ModelError(
            f"the network returned {description} for {n} samples; expected a tensor "
            f"({n}, C): wrap it in a module that returns class scores alone"
        )
    return out
