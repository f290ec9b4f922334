"""Pieces that several networks share.

Sizes, activations, initial weights; and a network's mode for a while.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import index

import torch
from torch import Tensor, nn

from labelahead.errors import InputError, did_you_mean

__all__ = [
    "ACTIVATIONS",
    "conv3x3",
    "eval_mode",
    "init_he_weights",
    "make_activation",
    "make_dropout",
    "pool_if_room",
    "require_image_shape",
    "require_input_shape",
    "require_whole_number",
    "restore_modes",
]


class Erf(nn.Module):
    """The error function: like tanh, with closed forms for its infinitely wide kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return torch.erf(x)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "erf": Erf,
}


def require_whole_number(value: object, what: str, *, least: int = 1) -> int:
    """`value` as an int if it is a whole number of at least `least`; 64.0 will do, True not."""
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise InputError(f"{what} is {value!r}; expected a whole number of at least {least}")
    return number


def require_input_shape(shape: object) -> tuple[int, ...]:
    """The shape of one input as a tuple of positive ints, one at least."""
    if not isinstance(shape, (tuple, list)) or not shape:
        raise InputError(
            f"shape is {shape!r}; expected the shape of one input, such as (64,) or (1, 8, 8)"
        )
    return tuple(require_whole_number(side, "every entry of shape") for side in shape)


def require_image_shape(
    shape: tuple[int, ...], network: str, *, side: int = 1
) -> tuple[int, int, int]:
    """(channels, height, width) of an image no smaller than `side`, or an error that helps."""
    if len(shape) != 3:
        hint = f"give it as (1, {shape[0]}, {shape[1]})" if len(shape) == 2 else "use 'mlp' for it"
        raise InputError(
            f"{network} takes images (channels, height, width), but one input has shape {shape}: "
            f"{hint}"
        )
    channels, height, width = shape
    if min(height, width) < side:
        raise InputError(
            f"{network} takes images of at least {side}x{side} pixels, but one input has shape "
            f"{shape}: enlarge the images, or use 'cnn' or 'mlp'"
        )
    return channels, height, width


def make_activation(name: str) -> nn.Module:
    """The activation called `name`, never in place."""
    if name not in ACTIVATIONS:
        raise InputError(
            f"activation is {name!r}; {did_you_mean(name, ACTIVATIONS)}there are "
            f"{', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]()


def make_dropout(p: float) -> list[nn.Module]:
    """A dropout layer in a list, or nothing when `p` is 0: none unless asked for."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p < 1:
        raise InputError(f"dropout is {p!r}; expected a number from 0 to below 1")
    return [nn.Dropout(p)] if p else []


def conv3x3(channels_in: int, channels_out: int, *, stride: int = 1) -> nn.Conv2d:
    """A 3×3 convolution that keeps the size, without bias: a BatchNorm follows."""
    return nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)


def pool_if_room(size: tuple[int, int]) -> tuple[list[nn.Module], tuple[int, int]]:
    """A max-pool that halves `size` and the size after it; nothing when a side is 1 already."""
    height, width = size
    if min(height, width) < 2:
        return [], size
    return [nn.MaxPool2d(2)], (height // 2, width // 2)


def init_he_weights(model: nn.Module) -> nn.Module:
    """He et al.'s normal weights and zero biases, in place: signals keep their size with depth.

    PyTorch's own start shrinks a signal by √6 a layer, too much for eight layers without
    normalisation. The read-out is left at 1/√fan-in, so that first outputs are of order one.
    """
    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    nn.init.normal_(layers[-1].weight, std=layers[-1].weight[0].numel() ** -0.5)
    return model


@contextmanager
def restore_modes(model: nn.Module) -> Iterator[None]:
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
    with restore_modes(model):
        model.eval()
        yield
