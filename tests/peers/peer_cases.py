"""One trained network and its pool, in the shapes that the peers ask for."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from campaigns import CLASSES, blobs, labelled_pool
from labelahead.models import build
from labelahead.pool import Pool
from labelahead.propose import Query, propose, situation
from labelahead.situation import Asking, Situation
from labelahead.train import Training, train
from labelahead.train.embedding import penultimate

LOSS = "cross-entropy"  # the peers know no other way from outputs to probabilities than softmax
WIDTHS = {"mlp": 32, "cnn": 4}


@dataclass(frozen=True, eq=False)
class Case:
    """A network trained on the first `labels` of n noisy items, float64 unless a peer refuses."""

    network: str = "mlp"
    seed: int = 0
    n: int = 300
    labels: int = 30
    dropout: float = 0.0
    noise: float = 2.0

    @cached_property
    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs whose classes overlap, so that no two items are equally sure."""
        x, y = blobs(self.n, seed=self.seed)
        rng = torch.Generator().manual_seed(self.seed + 1)
        return (x + self.noise * torch.randn(x.shape, generator=rng)).double(), y

    @cached_property
    def model(self) -> nn.Module:
        x, y = self.data
        how = {"width": WIDTHS[self.network], "dropout": self.dropout, "seed": self.seed}
        net = build(self.network, tuple(x.shape[1:]), CLASSES, **how).double()
        few = Training(loss=LOSS, steps=40)
        train(net, x[: self.labels], y[: self.labels], CLASSES, few, seed=self.seed)
        return net.eval()

    @cached_property
    def pool(self) -> Pool:
        return labelled_pool(self.data[1], self.labels)

    def situation(self, name: str) -> Situation:
        return situation(self.model, self.data[0], self.pool, Asking(name), 1, loss=LOSS, seed=0)

    def propose(self, name: str, q: int, seed: int = 0) -> Query:
        return propose(self.model, self.data[0], self.pool, q, name, loss=LOSS, seed=seed)

    @cached_property
    def embedding(self) -> np.ndarray:
        return penultimate(self.model, self.data[0]).double().numpy()

    @cached_property
    def probabilities(self) -> np.ndarray:
        with torch.no_grad():
            return torch.softmax(self.model(self.data[0]), 1).numpy()

    @cached_property
    def known(self) -> np.ndarray:
        """Labels as scikit-activeml wants them: −1 where there is none."""
        y = self.data[1].numpy().copy()
        y[self.labels :] = -1
        return y


def distinct(scores: np.ndarray, count: int) -> bool:
    """Whether the `count` + 1 largest scores differ clearly: then every rule for ties agrees."""
    top = np.sort(scores)[::-1][: count + 1]
    return bool((top[:-1] - top[1:] > 1e-9 * np.abs(top).max()).all())


class WithEmbedding(nn.Module):
    """The network as DISTIL calls it: `last=True` also returns what the last layer saw."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.body, self.read_out = model[:-1], model[-1]

    def forward(self, x: Tensor, last: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        h = self.body(x)
        return (self.read_out(h), h) if last else self.read_out(h)

    def get_embedding_dim(self) -> int:
        return self.read_out.in_features


class Handler(Dataset):
    """DISTIL's way to read items without labels."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i], i


def distil(kind: type, case: Case, q: int) -> list[int]:
    """Positions in the data set picked by one of DISTIL's strategies; it computes in float32."""
    net = WithEmbedding(case.model).float().eval()
    x, y = case.data[0].float(), case.data[1]
    cut = case.labels
    args = {"batch_size": 64, "device": "cpu"}
    chosen = kind(x[:cut], y[:cut], x[cut:], net, Handler, CLASSES, args).select(q)
    case.model.double()  # shared with the wrapper
    return [cut + int(i) for i in chosen]
