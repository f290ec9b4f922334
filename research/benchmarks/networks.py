"""The networks of the kernel benchmark: plain modules with fixed seeds, and their inputs.

Weights and inputs are written to one .npz file by `export`, and every contender (our engine, the
torch rivals, neural-tangents) reads that file: nobody can compute the kernel of another network.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

CLASSES = 10
WEIGHT_SEED = 20221
INPUT_SEED = 20222


def mlp() -> nn.Module:
    """784-512-512-10 with ReLU."""
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    )


def cnn() -> nn.Module:
    """LeNet-like, for 28×28 grey images."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, CLASSES),
    )


class WideBlock(nn.Module):
    """Pre-activation residual block; the shortcut is a 1×1 convolution when the width changes."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(c_in)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(c_in, c_out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(x))
        return self.conv2(torch.relu(self.bn2(self.conv1(h)))) + self.shortcut(h)


class WideResNet(nn.Module):
    """The first group of a WRN-10-4: stem of 16 channels, one block of width 64 at 32×32."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.block = WideBlock(16, width)
        self.bn = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn(self.block(self.stem(x))))
        return self.head(h.mean(dim=(2, 3)))


class BasicBlock(nn.Module):
    """Post-activation residual block of ResNet18."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False), nn.BatchNorm2d(c_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet18 for 32×32 images: 3×3 stem without pooling, four stages of two blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = []
        for stage in range(4):
            stride = 1 if stage == 0 else 2
            blocks.append(BasicBlock(widths[stage], widths[stage + 1], stride))
            blocks.append(BasicBlock(widths[stage + 1], widths[stage + 1], 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(8 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(torch.relu(self.bn(self.conv(x))))
        return self.head(h.mean(dim=(2, 3)))


# name -> (constructor, shape of one input)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (784,)),
    "cnn": (cnn, (1, 28, 28)),
    "wrn64": (WideResNet, (3, 32, 32)),
    "resnet18-16": (lambda: ResNet18(16), (3, 32, 32)),
    "resnet18-64": (lambda: ResNet18(64), (3, 32, 32)),
}


def build(name: str) -> nn.Module:
    """Make the network with seeded weights, in eval mode; BatchNorm is given a past."""
    torch.manual_seed(WEIGHT_SEED)
    make, shape = NETWORKS[name]
    return with_past(make(), shape)


def with_past(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The network in eval mode, its BatchNorms as if trained; draws from the global generator.

    A fresh BatchNorm (mean 0, variance 1, scale 1) is the identity, and an engine that forgot it
    would still agree. So its affine is drawn, and a seeded batch in train mode sets the statistics.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, std=0.1)
        norm.momentum = None  # the plain average of what it sees
    if norms:
        with torch.no_grad():
            model.train()(torch.randn(64, *shape))
    return model.eval()


def inputs(name: str, n: int) -> Tensor:
    """Seeded standard-normal inputs; the first m of `inputs(name, n)` are `inputs(name, m)`."""
    generator = torch.Generator().manual_seed(INPUT_SEED)
    rows = [torch.randn(NETWORKS[name][1], generator=generator) for _ in range(n)]
    return torch.stack(rows)


def export(name: str, n: int, path: Path, dtype: str = "float32") -> None:
    """Write inputs (`x`) and the whole state of the network to one .npz file."""
    state = build(name).state_dict() | {"x": inputs(name, n)}
    arrays = {
        key: value.numpy().astype(dtype) if value.is_floating_point() else value.numpy()
        for key, value in state.items()
    }
    np.savez(path, **arrays)


def load(name: str, path: Path) -> tuple[nn.Module, Tensor]:
    """Read back what `export` wrote: the network in eval mode and its inputs."""
    arrays = np.load(path)
    x = torch.from_numpy(arrays["x"])
    model = NETWORKS[name][0]().to(x.dtype)
    state = {key: torch.from_numpy(arrays[key]) for key in arrays.files if key != "x"}
    model.load_state_dict(state)
    return model.eval(), x
