"""Plain convolutional networks: no shortcuts between layers."""

from math import prod

from torch import nn

from labelahead.models.layers import (
    conv3x3,
    he_weights,
    image,
    make_activation,
    make_dropout,
    pool_if_room,
    whole,
)

__all__ = ["cnn", "convnet", "tutorial_cnn", "vgg11"]


def cnn(
    shape: tuple[int, ...], classes: int, width: int = 16, *, dropout: float = 0.0
) -> nn.Module:
    """Three 3×3 convolutions of w, 2w, 4w channels with BatchNorm and max-pools between them.

    The read-out sees the mean of each quarter of the image: with 100 labels of MNIST that is worth
    ten points over the mean of the whole, and with CIFAR-10 two.
    """
    channels, height, wide = image(shape, "cnn")
    first = whole(width, "width")
    layers: list[nn.Module] = []
    size = (height, wide)
    for out in (first, 2 * first, 4 * first):
        if layers:
            pool, size = pool_if_room(size)
            layers += pool
        layers += [conv3x3(channels, out), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, *_head(channels, classes, dropout, cells=2))


def _head(channels: int, classes: int, drop: float, *, cells: int = 1) -> list[nn.Module]:
    """Means over `cells` × `cells` parts of the image, then one linear layer: any size will do."""
    pool = [nn.AdaptiveAvgPool2d(cells), nn.Flatten()]
    return [*pool, *make_dropout(drop), nn.Linear(channels * cells**2, classes)]


def convnet(
    shape: tuple[int, ...],
    classes: int,
    width: int = 32,
    *,
    depth: int = 8,
    activation: str = "relu",
) -> nn.Module:
    """The ConvNet of the kernel-quality paper (PN): 3×3 convolutions at full size, He's weights.

    `depth` counts the layers with weights: seven convolutions and the read-out by default.
    """
    channels, out = image(shape, "convnet")[0], whole(width, "width")
    layers: list[nn.Module] = []
    for _ in range(whole(depth, "depth", least=2) - 1):
        layers += [nn.Conv2d(channels, out, 3, padding=1), make_activation(activation)]
        channels = out
    return he_weights(nn.Sequential(*layers, *_head(channels, classes, 0.0)))


def tutorial_cnn(shape: tuple[int, ...], classes: int, width: int = 6) -> nn.Module:
    """Two 5×5 convolutions and three linear layers, as in PyTorch's tutorial and in DY.

    At the default width the layers have 6, 16, 120 and 84 units; `width` scales them all.
    """
    channels, height, wide = image(shape, "tutorial-cnn", side=16)
    first = whole(width, "width")
    second, third, fourth = (round(units * first / 6) for units in (16, 120, 84))
    sides = [((side - 4) // 2 - 4) // 2 for side in (height, wide)]
    return nn.Sequential(
        nn.Conv2d(channels, first, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * prod(sides), third), nn.ReLU(),
        nn.Linear(third, fourth), nn.ReLU(),
        nn.Linear(fourth, classes),
    )  # fmt: skip


def vgg11(
    shape: tuple[int, ...], classes: int, width: int = 64, *, dropout: float = 0.0
) -> nn.Module:
    """VGG11 with BatchNorm and one linear layer; max-pools are left out once a side is 1 pixel."""
    channels, height, wide = image(shape, "vgg11")
    first, size = whole(width, "width"), (height, wide)
    layers: list[nn.Module] = []
    for group in ((1,), (2,), (4, 4), (8, 8), (8, 8)):
        for factor in group:
            out = factor * first
            layers += [conv3x3(channels, out), nn.BatchNorm2d(out), nn.ReLU()]
            channels = out
        pool, size = pool_if_room(size)
        layers += pool
    return nn.Sequential(*layers, *_head(channels, classes, dropout))
