"""Parts shared by several networks: size checks, activations, initial weights, train/eval modes."""

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
    """The error function as activation: like tanh, with a closed form of its infinite-width kernel."""

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


def require_whole_number(value: object, what: str, *, minimum: int = 1) -> int:
    """Return `value` as an int if it is a whole number of at least `minimum`; 64.0 is accepted.

    Raises:
        InputError: otherwise, also for booleans.
    """
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = minimum - 1
    if isinstance(value, bool) or number < minimum:
        raise InputError(f"{what} is {value!r}; expected a whole number of at least {minimum}")
    return number


def require_input_shape(shape: object) -> tuple[int, ...]:
    """Return the shape of one input as a tuple of positive ints.

    Raises:
        InputError: if it is empty or holds another value.
    """
    if not isinstance(shape, (tuple, list)) or not shape:
        raise InputError(
            f"shape is {shape!r}; expected the shape of one input, such as (64,) or (1, 8, 8)"
        )
    return tuple(require_whole_number(side, "every entry of shape") for side in shape)


def require_image_shape(
    shape: tuple[int, ...], network: str, *, side: int = 1
) -> tuple[int, int, int]:
    """Return (channels, height, width) of an image.

    Args:
        shape: the shape of one input.
        network: the name of the network, for messages.
        side: the smallest side that it accepts, in pixels.

    Raises:
        InputError: if the input is no image, or too small.
    """
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
    """Return an activation module by name, never in place."""
    if name not in ACTIVATIONS:
        raise InputError(
            f"activation is {name!r}; {did_you_mean(name, ACTIVATIONS)}there are "
            f"{', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]()


def make_dropout(p: float) -> list[nn.Module]:
    """Return a list with a dropout layer, empty if `p` is 0."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p < 1:
        raise InputError(f"dropout is {p!r}; expected a number from 0 to below 1")
    return [nn.Dropout(p)] if p else []


def conv3x3(channels_in: int, channels_out: int, *, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution with the same output size, without bias because a BatchNorm follows."""
    return nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)


def pool_if_room(size: tuple[int, int]) -> tuple[list[nn.Module], tuple[int, int]]:
    """Return a max-pool that halves `size`, and the new size; nothing if a side is 1 already."""
    height, width = size
    if min(height, width) < 2:
        return [], size
    return [nn.MaxPool2d(2)], (height // 2, width // 2)


def init_he_weights(model: nn.Module) -> nn.Module:
    """Set He et al.'s normal weights and zero biases in place: signals keep their size with depth.

    PyTorch's default shrinks a signal by √6 per layer, too much for eight layers without
    normalisation. The last layer keeps 1/√fan-in, so that the first outputs are of order one.
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
    """Restore the train/eval mode of every module when the block ends."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the network in eval mode inside the block, and restore every module's mode afterwards."""
    with restore_modes(model):
        model.eval()
        yield
