"""Check the conditions under which a network has a tangent kernel.

The kernel is a Gram matrix of per-sample gradients, so a sample's output must depend on that sample
alone and must be deterministic. Conditions that the modules show are checked here before any work;
the probe in `plan` finds the rest.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.batching import (
    Batch,
    Inputs,
    Samples,
    call_model,
    count_samples,
    list_tensors,
    load_inputs,
    map_tensors,
    read_batch,
    take_samples,
)
from labelahead.errors import (
    DeviceError,
    InputError,
    LabelaheadError,
    ModelError,
    NumericalError,
    did_you_mean,
)
from labelahead.ntk.layers import NestedDerivativeError, fast_layers_mode

__all__ = [
    "COMPILED_PREFIX",
    "ConstantParameterError",
    "ParamFilter",
    "cache_parts",
    "check_inputs",
    "check_model",
    "check_numbers",
    "choose_parameters",
    "copy_batch",
    "get_parts",
    "is_finite",
    "move_samples",
    "run_forward",
    "unwrap_compiled",
]

ParamFilter = Iterable[str] | Callable[[str, nn.Parameter], bool] | None
"""Names, module prefixes or wildcards; a predicate; or None for the trainable parameters."""

COMPILED_PREFIX = "_orig_mod."  # before the names of a compiled module's parameters
_BATCHNORM_TYPE = nn.modules.batchnorm._BatchNorm
_DROPOUT_TYPES = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNN, nn.LSTM, nn.GRU)


class ConstantParameterError(Exception):
    """The forward differentiates by a parameter that was not chosen.

    Its argument is the error to raise if that is not the reason.
    """


def unwrap_compiled(model: nn.Module) -> nn.Module:
    """Return the plain module behind `torch.compile`, whose fused graph hides the parameters."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


Parts = tuple[list[nn.Module], list[nn.Parameter], list[Tensor]]
_known: ContextVar[tuple[nn.Module, Parts] | None] = ContextVar("parts", default=None)


@contextmanager
def cache_parts(model: nn.Module, parts: Parts) -> Iterator[None]:
    """Cache the network's parts while gradients are computed: changes by a forward are undone."""
    before = _known.set((model, parts))
    try:
        yield
    finally:
        _known.reset(before)


def get_parts(model: nn.Module) -> Parts:
    """List modules, parameters and buffers, each at least once.

    Torch's own iterators take as long as a small network.
    """
    known = _known.get()
    if known is not None and known[0] is model:
        return known[1]
    modules: dict[nn.Module, None] = {}
    stack: list[nn.Module | None] = [model]
    scripted = torch.jit.ScriptModule
    while stack:
        module = stack.pop()
        if module is None or module in modules:
            continue
        modules[module] = None
        if isinstance(module, scripted):  # keeps its tables elsewhere
            return list(model.modules()), list(model.parameters()), list(model.buffers())
        stack.extend(module._modules.values())
    parameters = [p for m in modules for p in m._parameters.values() if p is not None]
    return (
        list(modules),
        parameters,
        [b for m in modules for b in m._buffers.values() if b is not None],
    )


def check_model(model: nn.Module) -> None:
    """Raise `ModelError` for modules that mix samples or draw random numbers."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}: wrap it in one")
    doubtful = [
        m
        for m in get_parts(model)[0]
        if isinstance(m, _BATCHNORM_TYPE) or (isinstance(m, _DROPOUT_TYPES) and m.training)
    ]
    if not any(map(_find_fault, doubtful)):
        return
    for name, module in model.named_modules():
        if fault := _find_fault(module):
            raise ModelError(f"{type(module).__name__} at {name or 'the top'!r} {fault}")


def _find_fault(module: nn.Module) -> str:
    """Explain why a layer mixes samples or is random; an empty string if it does neither."""
    if isinstance(module, _BATCHNORM_TYPE):
        if module.running_mean is None and not isinstance(module, nn.SyncBatchNorm):
            return (
                "keeps no running statistics, so every sample's output depends on its "
                "batch: build it with track_running_stats=True and train it before taking a kernel"
            )
        if module.training:
            return (
                "is in train mode, where samples of a batch influence each other: call "
                "model.eval() first"
            )
    elif isinstance(module, _DROPOUT_TYPES) and module.training:
        p = float(module.p if isinstance(module, _DROPOUT_TYPES[0]) else module.dropout)
        if p > 0:
            return f"drops out at random (p={p}) in train mode: call model.eval() first"
    return ""


def choose_parameters(model: nn.Module, params: ParamFilter) -> dict[str, nn.Parameter]:
    """Select the parameters to differentiate by: name -> parameter, tied ones once."""
    everything = dict(model.named_parameters())
    lazy = [k for k, p in everything.items() if isinstance(p, nn.parameter.UninitializedParameter)]
    if lazy:
        raise ModelError(
            f"parameter {lazy[0]!r} has no shape yet: pass one batch through the lazy layers first"
        )
    if not everything:
        raise ModelError(
            "the network has no parameters to differentiate by: a quantised, scripted or frozen "
            "(torch.jit.freeze) network hides them; use the module from which it was made"
        )
    if params is None:
        chosen = {k: p for k, p in everything.items() if p.requires_grad}
        if not chosen:
            raise ModelError(
                f"none of the network's {len(everything)} parameters requires a gradient: "
                "unfreeze some, or name those to use with params=[...]"
            )
    elif callable(params):
        chosen = {k: p for k, p in everything.items() if params(k, p)}
    else:
        chosen = _select_by_name(everything, [params] if isinstance(params, str) else list(params))
    if not chosen:
        raise InputError(
            "params selects no parameter: give names, module prefixes or wildcards out of "
            f"{_summarise_names(everything)}"
        )
    for name, p in chosen.items():
        if p.is_complex():
            raise ModelError(
                f"parameter {name!r} is complex, which the kernel does not support: store its real "
                "and imaginary parts as a real parameter of shape (..., 2) and call "
                "torch.view_as_complex on it in forward(); the gradients are the same. Or leave it "
                "out with params="
            )
        if not p.is_floating_point():
            raise ModelError(
                f"parameter {name!r} has dtype {p.dtype}, but gradients need a floating type: "
                "leave it out with params=, or use the float version of the network"
            )
        if p.is_meta:
            raise ModelError(
                f"parameter {name!r} is on the meta device and has no numbers: load the weights "
                "first"
            )
    return chosen


def check_numbers(chosen: Mapping[str, nn.Parameter]) -> None:
    """Raise `NumericalError` where a parameter is not finite."""
    # In the usual case one check covers all of them.
    sums = [p.detach().sum() for p in chosen.values()]
    alike = len({(s.dtype, s.device) for s in sums}) == 1
    if alike and bool(torch.isfinite(torch.stack(sums)).all()):
        return
    for name, p in chosen.items():
        if not is_finite(p):
            raise NumericalError(
                f"parameter {name!r} holds NaN or infinity: training has diverged; retrain with a "
                "smaller learning rate or load finite weights"
            )


def is_finite(t: Tensor) -> bool:
    """Whether all entries are finite; one pass unless the sum overflows."""
    t = t.detach()
    return bool(torch.isfinite(t.sum())) or bool(torch.isfinite(t).all())


def _select_by_name(
    everything: dict[str, nn.Parameter], wanted: list[str]
) -> dict[str, nn.Parameter]:
    hits: set[str] = set()
    for want in wanted:
        if not isinstance(want, str):
            raise InputError(
                f"params holds a {type(want).__name__}, expected names: take them from "
                "model.named_parameters()"
            )
        want = want.removeprefix(COMPILED_PREFIX)
        named = {
            k for k in everything if k == want or k.startswith(want + ".") or fnmatchcase(k, want)
        }
        if not named:
            hint = (
                did_you_mean(want, everything).strip()
                or f"there are {_summarise_names(everything)}"
            )
            raise InputError(f"params names {want!r}, which no parameter is called: {hint}")
        hits |= named
    return {k: p for k, p in everything.items() if k in hits}


def _summarise_names(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:6]) + (f", ... ({len(listed)} in all)" if len(listed) > 6 else "")


def check_inputs(x: Inputs, chosen: Mapping[str, nn.Parameter], label: str = "x") -> int:
    """Return the number of samples; raise if `x` is empty, ragged, not finite or on another device."""
    unread = isinstance(x, Samples) and not x.is_in_memory  # each batch is checked when it is read
    parts = list_tensors(read_batch(take_samples(x, slice(0, 2)) if unread else x))
    if not parts or not all(isinstance(t, Tensor) for t in parts):
        raise InputError(f"{label} must hold at least one tensor, and tensors only")
    for t in parts:
        if t.is_nested:
            raise InputError(
                f"{label} is a nested tensor, expected one of equal rows: pad it, and give a mask"
            )
        if t.layout != torch.strided:
            raise InputError(
                f"{label} has layout {t.layout}, expected a dense tensor: {label}.to_dense()"
            )
    sizes = {t.shape[0] if t.ndim else None for t in parts}
    if None in sizes or len(sizes) != 1:
        raise InputError(
            f"{label} has shapes {[tuple(t.shape) for t in parts]}: every tensor needs the same "
            "leading dimension, the samples; add one with x[None] for a single sample"
        )
    (n,) = sizes
    if not n:
        raise InputError(f"{label} is empty, shape {tuple(parts[0].shape)}: give at least one row")
    device = next(iter(chosen.values())).device
    for t in parts:
        if t.device != device:
            raise DeviceError(
                f"{label} is on {t.device} but the network is on {device}: move one of them, e.g. "
                f"x.to({str(device)!r})"
            )
        if t.is_floating_point() and not is_finite(t):
            bad = int((~torch.isfinite(t.reshape(t.shape[0], -1))).any(1).sum())
            raise InputError(
                f"{label} holds NaN or infinity in {bad} of {n} samples: clean or drop those rows"
            )
    return count_samples(x)


def move_samples(model: nn.Module, x: Any) -> Inputs:
    """Load inputs (`load_inputs`) and move them to the network's device.

    `Samples` that are read when needed are moved batch by batch. Tensors stay where they are:
    `check_inputs` requires the caller to move them, once.
    """
    loaded = load_inputs(x)
    first = next(iter(model.parameters()), None) if isinstance(model, nn.Module) else None
    if first is None or first.is_meta:
        return loaded
    device = first.device
    if isinstance(loaded, Samples):
        return loaded.to(device=device)
    return loaded if loaded is x else map_tensors(loaded, lambda t: t.to(device))


def copy_batch(x: Batch) -> Batch:
    """Copy a batch, so that it may be overwritten."""
    return map_tensors(x, Tensor.clone)


def run_forward(call: Callable[..., Any], x: Batch) -> Tensor:
    """Run `call` on `x`, which may have any of the usual forms, and return outputs (n, C)."""
    try:
        with fast_layers_mode():
            out = call_model(call, x)
    except (torch.OutOfMemoryError, MemoryError, LabelaheadError, NestedDerivativeError):
        raise
    except Exception as error:  # The network's own code may raise anything.
        if isinstance(error, RuntimeError) and "does not require grad" in str(error):
            raise ConstantParameterError(_explain_failure(call, x, error)) from error
        raise _explain_failure(call, x, error) from error
    if not isinstance(out, Tensor):
        raise ModelError(
            f"the network returned a {type(out).__name__}, expected a tensor of outputs (n, C): "
            "wrap it in a module that returns its logits alone"
        )
    n = count_samples(x)
    if out.ndim == 1 and out.shape[0] == n:
        out = out[:, None]
    if out.ndim != 2 or out.shape[0] != n or out.shape[1] == 0:
        raise ModelError(
            f"the network returned shape {tuple(out.shape)} for n={n} samples, expected (n, C): "
            "e.g. nn.Sequential(model, nn.Flatten(1)) treats every entry as one output"
        )
    return out


def _explain_failure(call: Callable[..., Any], x: Batch, error: Exception) -> InputError:
    given = ", ".join(f"{tuple(t.shape[1:])} {t.dtype}" for t in list_tensors(x))
    message = str(error).strip()
    text = isinstance(call, nn.Module) and any(isinstance(m, nn.Embedding) for m in call.modules())
    integral = all(not t.is_floating_point() for t in list_tensors(x))
    hint = "check the input's shape and dtype against what the network takes"
    if text and isinstance(error, IndexError):
        hint = (
            "a token or position lies outside an embedding's table: check the vocabulary and the "
            "length"
        )
    elif text and not integral and "indices" in message:
        hint = "an embedding takes whole numbers: x.long() for token ids"
    elif integral and not text:
        hint = "the input is of integer type: x.float() if the network takes real numbers"
    elif "dtype" in message or "type" in message:
        hint = "give network and input one dtype, e.g. x.to(next(model.parameters()).dtype)"
    first = message.splitlines()[0] if message else type(error).__name__
    return InputError(f"the network's forward failed on samples of shape {given} ({first}): {hint}")
