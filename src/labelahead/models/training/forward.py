"""Forward passes: a network's outputs, and what goes into its last layer, for many items.

Inputs may lie elsewhere than the network, in another precision; they are taken a few at a time.
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

# samples a pass of inputs that are not one tensor: what a network does with them cannot be told by
# size
SAMPLES_BATCH_ROWS = 64


def predict(model: nn.Module, inputs: Inputs, *, batch: int | None = None) -> Tensor:
    """Outputs (n, C) in eval mode, without gradients; the network's modes are as before afterwards.

    batch: samples a forward pass; by default from the size of one input.

    >>> from labelahead.models.training import predict
    >>> predict(build_model("mlp", (4,), 2), x).shape
    torch.Size([40, 2])
    """
    inputs = check_inputs(inputs)
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise InputError(f"batch is {batch!r}; expected a whole number of at least 1, or None")
    device, dtype = get_device_and_dtype(model, inputs)
    with eval_mode(model), torch.no_grad():
        rows = batch or choose_batch_rows(inputs)
        parts = [
            run_forward(model, inputs[start : start + rows].to(device=device, dtype=dtype))
            for start in range(0, len(inputs), rows)
        ]
    out = torch.cat(parts)
    if not bool(torch.isfinite(out).all()):
        bad = int((~torch.isfinite(out)).any(1).sum())
        raise NumericalError(
            f"the network's outputs are NaN or infinite for {bad} of {len(out)} inputs; expected "
            "finite numbers: check its weights, and train it with a smaller rate"
        )
    return out


def compute_penultimate_features(model: nn.Module, inputs: Inputs) -> Tensor:
    """(n, h): the input of the linear layer that is called last, in eval mode.

    Several tokens a sample are averaged. A network without a linear layer gives its outputs.
    """
    inputs = check_inputs(inputs)
    device, dtype = get_device_and_dtype(model, inputs)
    last: list[Tensor] = []

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        last[:] = [given[0].detach()]

    hooks = [m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, nn.Linear)]
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
    """Outputs (n, C) with dropout on the input of the linear layer that is called last, all else in
    eval mode.

    A network without a linear layer has its outputs dropped.
    """
    inputs = check_inputs(inputs)
    device, dtype = get_device_and_dtype(model, inputs)
    called: list[nn.Module] = []

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        called[:] = [module]

    def drop(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return apply_dropout(given[0], rate, rng), *given[1:]

    hooks = [m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, nn.Linear)]
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
    """Each entry zero with probability `rate`, else divided by 1 − rate."""
    kept = torch.rand(values.shape, generator=rng) >= rate
    return values * kept.to(values) / (1 - rate)


def _average_tokens(values: Tensor, n: int) -> Tensor:
    """One row a sample: tokens between the first and the last dimension are averaged."""
    if values.shape[0] != n:
        raise ModelError(
            f"the last linear layer saw {tuple(values.shape)} for {n} samples; expected samples "
            "first: this strategy needs an embedding a sample, choose another one"
        )
    return values if values.dim() == 2 else values.flatten(1, -2).mean(1)


def check_inputs(inputs: Inputs) -> Tensor | Samples:
    """At least one sample, finite throughout, or an `InputError`.

    A mapping or tuple comes back as `Samples`.
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
    if inputs.is_floating_point() and not bool(torch.isfinite(inputs.sum())):
        bad = ~torch.isfinite(inputs.reshape(len(inputs), -1)).all(1)
        if bool(bad.any()):
            raise InputError(
                f"inputs hold NaN or infinity in {int(bad.sum())} of {len(inputs)} samples; "
                "expected finite numbers: repair or drop those samples"
            )
    return inputs


def get_device_and_dtype(
    model: nn.Module, inputs: Tensor | Samples
) -> tuple[torch.device, torch.dtype]:
    """Where the network's weights are, and the dtype its inputs need: integers stay integers."""
    weights = next((p for p in model.parameters() if p.is_floating_point()), None)
    if isinstance(inputs, Samples):
        like = list_tensors(inputs[:1].read())[0] if weights is None else weights
        return like.device, like.dtype if like.is_floating_point() else torch.get_default_dtype()
    like = inputs if weights is None else weights
    return like.device, like.dtype if inputs.is_floating_point() else inputs.dtype


def choose_batch_rows(inputs: Tensor | Samples) -> int:
    """Samples a forward pass without gradients.

    Activations of images should stay in the cache: 64 of 28x28 pixels were two to three times
    faster than 1,024 of them. Fewer than 32 were never faster, up to a third slower (ResNet18,
    64x64 pixels, one core). Vectors are matrix products, which gain from size.
    """
    if isinstance(inputs, Samples):
        return SAMPLES_BATCH_ROWS
    budget = 1 << (18 if inputs.dim() == 2 else 16)
    return max(32, min(1024, budget // max(1, inputs[0].numel())))


def run_forward(model: nn.Module, inputs: Inputs) -> Tensor:
    """Outputs (n, C), or an error that says what the network did instead."""
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
        got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ModelError(
            f"the network returned {got} for {n} samples; expected a tensor "
            f"({n}, C): wrap it in a module that returns class scores alone"
        )
    return out
