"""The networks by name: fully connected, convolutional and residual.

Each function takes the shape of one input, the number of classes and a width, and draws the
weights.
"""

from math import prod

import torch
from torch import Tensor, nn

from labelahead.errors import InputError
from labelahead.models.layers import (
    conv3x3,
    init_he_weights,
    make_activation,
    make_dropout,
    pool_if_room,
    require_image_shape,
    require_whole_number,
)

__all__ = [
    "cnn",
    "convnet",
    "fcn",
    "mlp",
    "resnet18",
    "resnet18_strided",
    "tutorial_cnn",
    "vgg11",
    "vgg11_plain",
    "wrn1",
    "wrn2",
    "wrn16",
]

STEM_CHANNELS = 16  # channels of a WideResNet's first convolution
MAX_SMALL_IMAGE_SIDE = 64  # pixels; ResNet18 has He et al.'s strided stem for larger images


def mlp(
    shape: tuple[int, ...],
    classes: int,
    width: int = 128,
    *,
    depth: int = 2,
    activation: str = "relu",
    dropout: float = 0.0,
) -> nn.Module:
    """Build an MLP with `depth` hidden layers of `width` units; depth 0 is a linear model.

    Images are flattened.
    """
    return _make_dense(
        shape, classes, width, require_whole_number(depth, "depth", minimum=0), activation, dropout
    )


def fcn(
    shape: tuple[int, ...],
    classes: int,
    width: int = 256,
    *,
    depth: int = 3,
    activation: str = "relu",
) -> nn.Module:
    """Build the FCN of the kernel-quality paper (PN): three hidden layers with He's weights."""
    return init_he_weights(
        _make_dense(shape, classes, width, require_whole_number(depth, "depth"), activation, 0.0)
    )


def _make_dense(
    shape: tuple[int, ...], classes: int, width: int, depth: int, nonlinear: str, drop: float
) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    size, units = prod(shape), require_whole_number(width, "width")
    for _ in range(depth):
        layers += [nn.Linear(size, units), make_activation(nonlinear), *make_dropout(drop)]
        size = units
    return nn.Sequential(*layers, nn.Linear(size, classes))


def cnn(
    shape: tuple[int, ...], classes: int, width: int = 16, *, dropout: float = 0.0
) -> nn.Module:
    """Build three 3x3 convolutions of w, 2w, 4w channels with BatchNorm and max-pools between them.

    The last layer sees the mean of each quarter of the image: with 100 labels of MNIST this is ten
    points better than the mean of the whole image, with CIFAR-10 two.
    """
    channels, height, wide = require_image_shape(shape, "cnn")
    first = require_whole_number(width, "width")
    layers: list[nn.Module] = []
    size = (height, wide)
    for out in (first, 2 * first, 4 * first):
        if layers:
            pool, size = pool_if_room(size)
            layers += pool
        layers += [conv3x3(channels, out), nn.BatchNorm2d(out), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, *_make_head(channels, classes, dropout, cells=2))


def convnet(
    shape: tuple[int, ...],
    classes: int,
    width: int = 32,
    *,
    depth: int = 8,
    activation: str = "relu",
) -> nn.Module:
    """Build the ConvNet of the kernel-quality paper (PN): 3x3 convolutions with He's weights.

    The size of the image is kept. `depth` counts the layers with weights: seven convolutions and
    the last layer by default.
    """
    channels, out = require_image_shape(shape, "convnet")[0], require_whole_number(width, "width")
    layers: list[nn.Module] = []
    for _ in range(require_whole_number(depth, "depth", minimum=2) - 1):
        layers += [nn.Conv2d(channels, out, 3, padding=1), make_activation(activation)]
        channels = out
    return init_he_weights(nn.Sequential(*layers, *_make_head(channels, classes, 0.0)))


def tutorial_cnn(shape: tuple[int, ...], classes: int, width: int = 6) -> nn.Module:
    """Build two 5x5 convolutions and three linear layers, as in PyTorch's tutorial and in DY.

    At the default width the layers have 6, 16, 120 and 84 units; `width` scales all of them.
    """
    channels, height, wide = require_image_shape(shape, "tutorial-cnn", side=16)
    first = require_whole_number(width, "width")
    second, third, fourth = (round(units * first / 6) for units in (16, 120, 84))
    sides = [((side - 4) // 2 - 4) // 2 for side in (height, wide)]
    return nn.Sequential(
        nn.Conv2d(channels, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * prod(sides), third),
        nn.ReLU(),
        nn.Linear(third, fourth),
        nn.ReLU(),
        nn.Linear(fourth, classes),
    )


def vgg11(
    shape: tuple[int, ...], classes: int, width: int = 64, *, dropout: float = 0.0
) -> nn.Module:
    """Build VGG11 with BatchNorm and one linear layer; max-pools stop once a side is 1 pixel."""
    return _make_vgg11(shape, classes, width, dropout, norm=True)


def vgg11_plain(
    shape: tuple[int, ...], classes: int, width: int = 64, *, dropout: float = 0.0
) -> nn.Module:
    """Build VGG11 without BatchNorm, as torchvision's `vgg11`, with He's weights."""
    return init_he_weights(_make_vgg11(shape, classes, width, dropout, norm=False))


def _make_vgg11(
    shape: tuple[int, ...], classes: int, width: int, dropout: float, *, norm: bool
) -> nn.Module:
    channels, height, wide = require_image_shape(shape, "vgg11")
    first, size = require_whole_number(width, "width"), (height, wide)
    layers: list[nn.Module] = []
    for group in ((1,), (2,), (4, 4), (8, 8), (8, 8)):
        for factor in group:
            out = factor * first
            step = (
                [conv3x3(channels, out), nn.BatchNorm2d(out)]
                if norm
                else [nn.Conv2d(channels, out, 3, padding=1)]
            )
            layers += [*step, nn.ReLU()]
            channels = out
        pool, size = pool_if_room(size)
        layers += pool
    return nn.Sequential(*layers, *_make_head(channels, classes, dropout))


def _make_head(channels: int, classes: int, drop: float, *, cells: int = 1) -> list[nn.Module]:
    """Return mean pooling over `cells` x `cells` parts of an image of any size, and a linear layer."""
    pool = [nn.AdaptiveAvgPool2d(cells), nn.Flatten()]
    return [*pool, *make_dropout(drop), nn.Linear(channels * cells**2, classes)]


def wrn1(shape: tuple[int, ...], classes: int, width: int = 64, *, blocks: int = 1) -> nn.Module:
    """Build a WideResNet with one group of blocks of `width` channels, as in LA (there up to 640)."""
    channels = require_image_shape(shape, "wrn1")[0]
    widths = (require_whole_number(width, "width"),)
    return WideResNet(
        channels, STEM_CHANNELS, widths, require_whole_number(blocks, "blocks"), classes
    )


def wrn2(shape: tuple[int, ...], classes: int, width: int = 64, *, blocks: int = 1) -> nn.Module:
    """Build a WideResNet with two groups, of `width`/2 and `width` channels, as in LA."""
    channels = require_image_shape(shape, "wrn2")[0]
    wide = require_whole_number(width, "width", minimum=2)
    return WideResNet(
        channels, STEM_CHANNELS, (wide // 2, wide), require_whole_number(blocks, "blocks"), classes
    )


def wrn16(
    shape: tuple[int, ...],
    classes: int,
    width: float = 1,
    *,
    groups: int = 3,
    stem: int = STEM_CHANNELS,
) -> nn.Module:
    """Build WideResNet-16-k with k = `width`, which may be a fraction: two blocks per group.

    The kernel-quality paper (PN) uses two groups and a stem as wide as the first: `groups=2,
    stem=16*k`.
    """
    channels = require_image_shape(shape, "wrn16")[0]
    if isinstance(width, bool) or not isinstance(width, (int, float)) or round(16 * width) < 1:
        raise InputError(
            f"width is {width!r}; expected the widening factor k, a number of at least 1/16"
        )
    count = require_whole_number(groups, "groups")
    if count > 4:
        raise InputError(f"groups is {groups}; expected 1 to 4: a WideResNet-16 has 3")
    widths = tuple(round(16 * width) * 2**g for g in range(count))
    return WideResNet(channels, require_whole_number(stem, "stem"), widths, 2, classes)


class WideResNet(nn.Module):
    """Groups of `blocks` wide blocks; each group except the first halves the image."""

    def __init__(
        self, channels: int, stem: int, widths: tuple[int, ...], blocks: int, classes: int
    ) -> None:
        super().__init__()
        self.stem = conv3x3(channels, stem)
        layers, before = [], stem
        for group, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if group > 0 and block == 0 else 1
                layers.append(WideBlock(before, width, stride))
                before = width
        self.blocks = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(before)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, h, w) -> (n, classes)."""
        h = torch.relu(self.norm(self.blocks(self.stem(x))))
        out: Tensor = self.head(h.mean(dim=(2, 3)))
        return out


class WideBlock(nn.Module):
    """BatchNorm, ReLU, convolution, twice, with a shortcut that is 1x1 where sizes change."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.conv1 = conv3x3(channels_in, channels_out, stride=stride)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.conv2 = conv3x3(channels_out, channels_out)
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, h, w) -> (n, C', h', w')."""
        h = torch.relu(self.norm1(x))
        past = x if self.shortcut is None else self.shortcut(h)
        out: Tensor = self.conv2(torch.relu(self.norm2(self.conv1(h)))) + past
        return out


def resnet18(shape: tuple[int, ...], classes: int, width: int = 64) -> nn.Module:
    """Build ResNet18 of He et al.; images up to 64 pixels a side get a 3x3 stem without pooling."""
    channels, height, wide = require_image_shape(shape, "resnet18")
    large = min(height, wide) > MAX_SMALL_IMAGE_SIDE
    return ResNet18(channels, require_whole_number(width, "width"), classes, large=large)


def resnet18_strided(shape: tuple[int, ...], classes: int, width: int = 64) -> nn.Module:
    """Build ResNet18 as in torchvision for any size: a 7x7 stem with stride 2, then a max-pool."""
    return ResNet18(
        require_image_shape(shape, "resnet18-strided")[0],
        require_whole_number(width, "width"),
        classes,
        large=True,
    )


class ResNet18(nn.Module):
    """Four stages of two basic blocks, of w, 2w, 4w and 8w channels."""

    def __init__(self, channels: int, width: int, classes: int, *, large: bool) -> None:
        super().__init__()
        if large:
            first: nn.Module = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        else:
            first = conv3x3(channels, width)
        pool = [nn.MaxPool2d(3, stride=2, padding=1)] if large else []
        self.stem = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), *pool)
        blocks, before = [], width
        for stage in range(4):
            after = width * 2**stage
            blocks.append(BasicBlock(before, after, 1 if stage == 0 else 2))
            blocks.append(BasicBlock(after, after, 1))
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, h, w) -> (n, classes)."""
        out: Tensor = self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))
        return out


class BasicBlock(nn.Module):
    """Two convolutions with BatchNorm and a shortcut, ReLU after the sum."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels_in, channels_out, stride=stride)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = conv3x3(channels_out, channels_out)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, h, w) -> (n, C', h', w')."""
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(h)) + self.shortcut(x))
