"""Several labels of a point as one, by hand; `test_posterior` compares it with a row for each."""

import pytest
import torch

from labelahead.errors import InputError
from labelahead.gp.label_combination import combine_labels


def test_labels_are_weighted_by_their_precision():
    targets = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    labels = combine_labels(torch.tensor([7, 2, 7, 7]), targets, [0.1, 0.5, 0.2, 1.0])
    assert labels.at.tolist() == [7, 2]
    precision = 1 / 0.1 + 1 / 0.2 + 1 / 1.0
    assert labels.noise.tolist() == pytest.approx([1 / precision, 0.5])
    assert labels.targets[0].tolist() == pytest.approx([11 / precision, 5 / precision])
    assert labels.targets[1].tolist() == [0.0, 1.0]


def test_points_with_one_label_keep_every_bit():
    rng = torch.Generator().manual_seed(0)
    at = torch.randperm(50, generator=rng)
    targets, noise = torch.rand(50, 3, generator=rng).double(), torch.rand(50, generator=rng)
    labels = combine_labels(at, targets, noise)
    assert torch.equal(labels.at, at)
    assert torch.equal(labels.targets, targets)
    assert torch.equal(labels.noise, noise.double())


def test_one_noise_counts_for_all_labels():
    targets = torch.eye(2).double()
    labels = combine_labels(torch.tensor([1, 1]), targets, 0.2)
    assert labels.noise.tolist() == pytest.approx([0.1])
    assert labels.targets.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("noise", "match"), [(None, "None"), (0.0, "more than 0"), ([0.1], "shape")]
)
def test_invalid_noise_raises(noise, match):
    with pytest.raises(InputError, match=match):
        combine_labels(torch.tensor([0, 1]), torch.eye(2), noise)
