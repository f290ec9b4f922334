"""Outputs of a network for many inputs, in batches that bound the memory."""

import torch
from torch import Tensor, nn

from labelahead.errors import InputError, NumericalError
from labelahead.train.data import check_inputs, forward, place, rows_at_once
from labelahead.train.norms import eval_mode

__all__ = ["predict"]


def predict(model: nn.Module, inputs: Tensor, *, batch: int | None = None) -> Tensor:
    """Outputs (n, C) in eval mode, without gradients; the network's modes are as before afterwards.

    batch: samples a forward pass; by default from the size of one input.
    """
    check_inputs(inputs)
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise InputError(f"batch is {batch!r}; expected a whole number of at least 1, or None")
    device, dtype = place(model, inputs)
    with eval_mode(model), torch.no_grad():
        rows = batch or rows_at_once(inputs)
        parts = [
            forward(model, inputs[start : start + rows].to(device=device, dtype=dtype))
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
