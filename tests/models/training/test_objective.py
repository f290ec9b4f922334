"""An objective that is trained together with a network."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from labelahead.models import build_model
from labelahead.models.training import AuxiliaryObjective, Training, train


class MeanLoss(AuxiliaryObjective):
    """Learns the mean of the network's loss."""

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(()))
        self.recorded, self.progress = 0, []

    @contextmanager
    def record_features(self, model):
        self.recorded += 1
        yield

    def forward(self, losses, progress):
        assert not losses.requires_grad
        self.progress.append(progress)
        return (losses.mean() - self.mean) ** 2


def test_objective_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        AuxiliaryObjective()


def test_train_optimises_the_parameters_of_the_objective():
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    network = build_model("mlp", (4,), 2, width=8, seed=0)
    objective = MeanLoss()
    train(network, x, y, 2, Training(steps=30, rate=0.05), seed=0, objective=objective)
    assert objective.recorded
    assert float(objective.mean) > 0.01
    assert min(objective.progress) == 0.0
    assert max(objective.progress) < 1.0
