"""Token positions, lookup tables and data-dependent batches against explicit Jacobians."""

import pytest
import torch
from torch import nn

import labelahead as la
from tests.support.reference_tangent import kernels, one_by_one, relative

KINDS = ("full", "pseudo", "single", "trace")


class Tables(nn.Module):
    """Biases of positions relative to each other, looked up in a table."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.table = nn.Parameter(torch.randn(7, 2))
        self.other = nn.Embedding(7, 2, padding_idx=3)
        self.q, self.k, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        index = torch.arange(4)[:, None] - torch.arange(4)[None] + 3
        if self.way == "index":
            bias = self.table[index].permute(2, 0, 1)
        elif self.way == "from the end":
            bias = self.table[(index - 7).view(-1)].view(4, 4, 2).permute(2, 0, 1)
        elif self.way == "embedding":
            bias = self.other(index).permute(2, 0, 1)
        elif self.way == "looked up twice":
            bias = (self.table[index] + self.table[index.T]).permute(2, 0, 1)
        elif self.way == "looked up in a product":
            bias = (torch.sigmoid(self.table)[index] * self.table[0]).permute(2, 0, 1)
        else:  # as a whole as well
            bias = self.table[index].permute(2, 0, 1) + self.table.sum()
        q, k = (layer(x).view(len(x), 4, 2, 2).transpose(1, 2) for layer in (self.q, self.k))
        for _ in range(2):
            q = (q @ k.mT + bias).softmax(-1) @ k
        return self.head(q.transpose(1, 2).reshape(len(x), 4, 4).mean(1))


WAYS = [
    "index",
    "from the end",
    "embedding",
    "looked up twice",
    "looked up in a product",
    "as a whole as well",
]


@pytest.mark.parametrize("way", WAYS)
def test_lookup_tables_equal_jacobian_products(way):
    torch.manual_seed(0)
    model, x = Tables(way).double(), torch.randn(5, 4, 4, dtype=torch.float64)
    J = one_by_one(model, x)
    for kind in KINDS:
        assert relative(la.kernel(model, x, kind=kind), kernels(J, J)[kind]) < 1e-10
    v = la.features(model, x, kind="single", params=["table" if way != "embedding" else "other"])
    size = model.table.numel()
    place = slice(0, size) if way != "embedding" else slice(size, 2 * size)
    assert relative(v, J[:, 0, place]) < 1e-10
