"""Recurrent layers."""

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.ntk.limits import BufferSizes, use_buffer_sizes
from tests.support.reference_tangent import jacobian, kernels, relative


class Recurrent(nn.Module):
    """Outputs of all steps and both last states count; the first states are learned."""

    def __init__(self, **words):
        super().__init__()
        self.cell = nn.LSTM(3, 4, **words)
        layers = self.cell.num_layers * (2 if self.cell.bidirectional else 1)
        self.first = nn.Parameter(torch.randn(2, layers, 1, 4))
        self.head = nn.Linear(4 * (2 if self.cell.bidirectional else 1) + 8 * layers, 3)

    def forward(self, x):
        h, c = (s.expand(-1, len(x), -1).contiguous() for s in self.first)
        out, (h, c) = self.cell(x if self.cell.batch_first else x.transpose(0, 1), (h, c))
        out = out if self.cell.batch_first else out.transpose(0, 1)
        return self.head(torch.cat([out.cumsum(1)[:, -1], *h, *c], 1))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_lstm_variants_equal_jacobian_products(bidirectional, bias, batch_first):
    torch.manual_seed(0)
    model = Recurrent(
        num_layers=2, bidirectional=bidirectional, bias=bias, batch_first=batch_first
    ).double()
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    want = kernels(jacobian(model, x), jacobian(model, x))
    for kind in want:
        assert relative(la.kernel(model, x, kind=kind, verify=True), want[kind]) < 1e-10
    assert relative(la.kernel(model, x, rules=False), want["pseudo"]) < 1e-10


@pytest.mark.parametrize("block", [1, 45, 1 << 16])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_lstm_backward_is_independent_of_block_size(block, steps):
    torch.manual_seed(0)
    model, x = (
        Recurrent(num_layers=2, batch_first=True).double(),
        torch.randn(5, steps, 3, dtype=torch.float64),
    )
    J = jacobian(model, x)
    with use_buffer_sizes(BufferSizes(state_entries=block)):
        found = la.kernel(model, x, kind="full")
    assert relative(found, kernels(J, J)["full"]) < 1e-10
