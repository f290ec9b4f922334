"""What a network makes of its inputs just before it decides."""

from typing import Any

import torch
from torch import Tensor, nn

from labelahead.errors import ModelError
from labelahead.train.data import check_inputs, forward, place, rows_at_once
from labelahead.train.norms import eval_mode

__all__ = ["penultimate"]


def penultimate(model: nn.Module, inputs: Tensor) -> Tensor:
    """(n, h): the input of the linear layer that is called last, in eval mode.

    Several tokens a sample are averaged. A network without a linear layer gives its outputs.
    """
    check_inputs(inputs)
    device, dtype = place(model, inputs)
    last: list[Tensor] = []

    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        last[:] = [given[0].detach()]

    hooks = [m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, nn.Linear)]
    parts = []
    try:
        with eval_mode(model), torch.no_grad():
            for part in torch.split(inputs, rows_at_once(inputs)):
                last.clear()
                out = forward(model, part.to(device=device, dtype=dtype))
                parts.append(_rows(last[0] if last else out, len(part)))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(parts)


def _rows(values: Tensor, n: int) -> Tensor:
    """One row a sample: tokens between the first and the last dimension are averaged."""
    if values.shape[0] != n:
        raise ModelError(
            f"the last linear layer saw {tuple(values.shape)} for {n} samples; expected samples "
            "first: this strategy needs an embedding a sample, choose another one"
        )
    return values if values.dim() == 2 else values.flatten(1, -2).mean(1)
