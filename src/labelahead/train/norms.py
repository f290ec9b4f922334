"""BatchNorm in training: which layers learn statistics, and settling them afterwards.

A tangent kernel and a prediction use running statistics. Those that training leaves behind are a
moving average over weights that no longer exist; after 100 steps they are still a tenth of what
they were at the start. So they are computed again, from the labelled set, for the final weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from labelahead.train.data import forward, place, rows_at_once

__all__ = ["eval_mode", "learning_norms", "settle"]


def learning_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """BatchNorms that would use the batch if the network were in train mode.

    A network may keep some in eval mode also then, as a pretrained one does; these are left alone.
    """
    with _restored(model):
        model.train()
        return [
            module
            for module in model.modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
        ]


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Every module's mode is as before afterwards, also where they differ."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """The whole network in eval mode, and every module as before afterwards."""
    with _restored(model):
        model.eval()
        yield


def settle(model: nn.Module, norms: list[nn.modules.batchnorm._BatchNorm], inputs: Tensor) -> None:
    """Statistics of `norms` from all of `inputs` with the weights as they are; all else in eval.

    Exact mean and variance when the set fits one batch; otherwise the plain average over equal
    batches. One sample has no variance, and an evaluation with 0 for it would blow up everything
    else: then the statistics stay as they were.
    """
    kept = [norm for norm in norms if norm.running_mean is not None]
    if not kept or len(inputs) < 2:
        return
    device, dtype = place(model, inputs)
    parts = min(-(-len(inputs) // rows_at_once(inputs)), len(inputs) // 2)
    momenta = [norm.momentum for norm in kept]
    with eval_mode(model), torch.no_grad():
        for norm in kept:
            norm.training = True
            norm.reset_running_stats()
            norm.momentum = None  # PyTorch's word for the plain average over all batches
        try:
            for part in inputs.tensor_split(max(1, parts)):
                forward(model, part.to(device=device, dtype=dtype))
        finally:
            for norm, momentum in zip(kept, momenta, strict=True):
                norm.momentum = momentum
