"""Small data, networks and query contexts for campaign tests."""

import gc
import types

import torch
from torch import Tensor, nn

from labelahead.data import Answers, Data, from_arrays
from labelahead.data.pool import Pool

CLASSES = 3


def blobs(n: int = 60, shape: tuple[int, ...] = (1, 8, 8), seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs (n, *shape) in three separable clouds, and their classes."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % CLASSES
    centres = torch.randn(CLASSES, *shape, generator=rng)
    return centres[y] + 0.8 * torch.randn(n, *shape, generator=rng), y


def data(n: int = 80, seed: int = 0) -> tuple[Data, Answers | None]:
    """Such vectors as a data set; the items from 60 on are for testing."""
    x, y = blobs(n, (32,), seed)
    return from_arrays(x, y, test=range(60, n))


def labelled_pool(y: Tensor, count: int, **more: object) -> Pool:
    """A pool whose first `count` items are labelled."""
    pool = Pool(len(y), **more)  # type: ignore[arg-type]
    if count:
        pool.label(list(range(count)), y[:count])
    return pool


class Own(nn.Module):
    """A network nobody foresaw: a bare parameter, functional calls, no base class of ours."""

    def __init__(self, features: int = 64, classes: int = CLASSES) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.first = nn.Linear(features, 8)
        self.last = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.flatten(1))) * self.scale)


def own(seed: int = 0, classes: int = CLASSES) -> nn.Module:
    torch.manual_seed(seed)
    return Own(classes=classes)


def reachable(roots: list) -> list:
    """Everything reachable, save code and modules, which hold no data of this run."""
    seen, todo, out = set(), list(roots), []
    skip = (types.ModuleType, type, types.FrameType, types.BuiltinFunctionType, types.CodeType)
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, skip):
            continue
        seen.add(id(one))
        out.append(one)
        if isinstance(one, types.FunctionType):
            todo += [c.cell_contents for c in one.__closure__ or ()]
        else:
            todo += gc.get_referents(one)
    return out
