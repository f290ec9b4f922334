"""Fully connected networks, for vectors and for anything that can be flattened to one."""

from math import prod

from torch import nn

from labelahead.models.layers import he_weights, make_activation, make_dropout, whole

__all__ = ["fcn", "mlp"]


def mlp(
    shape: tuple[int, ...],
    classes: int,
    width: int = 128,
    *,
    depth: int = 2,
    activation: str = "relu",
    dropout: float = 0.0,
) -> nn.Module:
    """`depth` hidden layers of `width` units; images are flattened. Depth 0 is a linear model."""
    return _dense(shape, classes, width, whole(depth, "depth", least=0), activation, dropout)


def fcn(
    shape: tuple[int, ...],
    classes: int,
    width: int = 256,
    *,
    depth: int = 3,
    activation: str = "relu",
) -> nn.Module:
    """The FCN of the kernel-quality paper (PN): three hidden layers with He's weights."""
    return he_weights(_dense(shape, classes, width, whole(depth, "depth"), activation, 0.0))


def _dense(
    shape: tuple[int, ...], classes: int, width: int, depth: int, nonlinear: str, drop: float
) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    size, units = prod(shape), whole(width, "width")
    for _ in range(depth):
        layers += [nn.Linear(size, units), make_activation(nonlinear), *make_dropout(drop)]
        size = units
    return nn.Sequential(*layers, nn.Linear(size, classes))
