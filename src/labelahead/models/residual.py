"""Residual networks: WideResNets with pre-activation blocks, and ResNet18."""

import torch
from torch import Tensor, nn

from labelahead.errors import InputError
from labelahead.models.layers import conv3x3, image, whole

__all__ = ["resnet18", "wrn1", "wrn2", "wrn16"]

STEM = 16  # channels of a WideResNet's first convolution
LARGE = 64  # pixels a side above which ResNet18 begins with He et al.'s strided stem


class WideBlock(nn.Module):
    """BatchNorm, ReLU, convolution, twice, beside a shortcut that is 1×1 where sizes change."""

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


class WideResNet(nn.Module):
    """Groups of `blocks` wide blocks; each group but the first halves the image."""

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


def wrn1(shape: tuple[int, ...], classes: int, width: int = 64, *, blocks: int = 1) -> nn.Module:
    """WideResNet with one group of blocks of `width` channels, as in LA (there up to 640)."""
    channels = image(shape, "wrn1")[0]
    widths = (whole(width, "width"),)
    return WideResNet(channels, STEM, widths, whole(blocks, "blocks"), classes)


def wrn2(shape: tuple[int, ...], classes: int, width: int = 64, *, blocks: int = 1) -> nn.Module:
    """WideResNet with two groups, of half of `width` and of `width` channels, as in LA."""
    channels = image(shape, "wrn2")[0]
    wide = whole(width, "width", least=2)
    return WideResNet(channels, STEM, (wide // 2, wide), whole(blocks, "blocks"), classes)


def wrn16(
    shape: tuple[int, ...],
    classes: int,
    width: float = 1,
    *,
    groups: int = 3,
    stem: int = STEM,
) -> nn.Module:
    """WideResNet-16-k with k = `width`, which may be a fraction: two blocks in each of the groups.

    The kernel-quality paper (PN) keeps two groups and a stem as wide as the first of them:
    `groups=2, stem=16*k`.
    """
    channels = image(shape, "wrn16")[0]
    if isinstance(width, bool) or not isinstance(width, (int, float)) or round(16 * width) < 1:
        raise InputError(
            f"width is {width!r}; expected the widening factor k, a number of at least 1/16"
        )
    count = whole(groups, "groups")
    if count > 4:
        raise InputError(f"groups is {groups}; expected 1 to 4: a WideResNet-16 has 3")
    widths = tuple(round(16 * width) * 2**g for g in range(count))
    return WideResNet(channels, whole(stem, "stem"), widths, 2, classes)


class BasicBlock(nn.Module):
    """Two convolutions with BatchNorm beside a shortcut, ReLU after the sum."""

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


def resnet18(shape: tuple[int, ...], classes: int, width: int = 64) -> nn.Module:
    """ResNet18 of He et al.; a 3×3 stem without pooling for images of up to 64 pixels a side."""
    channels, height, wide = image(shape, "resnet18")
    large = min(height, wide) > LARGE
    return ResNet18(channels, whole(width, "width"), classes, large=large)
