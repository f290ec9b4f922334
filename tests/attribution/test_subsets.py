"""The linear datamodelling score."""

import pytest
import torch
from scipy.stats import spearmanr

from labelahead.attribution import draw_subsets, linear_datamodelling_score, sum_scores
from labelahead.errors import InputError


def test_subsets_have_the_size_and_depend_on_the_seed():
    subsets = draw_subsets(10, 30, 0.3, seed=1)
    assert subsets.sum(1).tolist() == [3] * 30
    assert torch.equal(subsets, draw_subsets(10, 30, 0.3, seed=1))
    assert not torch.equal(subsets, draw_subsets(10, 30, 0.3, seed=2))
    assert bool(subsets.any(0).all())


def test_sums_are_over_the_items_of_each_subset():
    scores, subsets = torch.randn(4, 10), draw_subsets(10, 5)
    for s, subset in enumerate(subsets):
        torch.testing.assert_close(sum_scores(scores, subsets)[s], scores[:, subset].sum(1))


def test_score_equals_spearman_with_ties():
    torch.manual_seed(0)
    predicted, actual = torch.randn(20, 3).round(), torch.randn(20, 3)
    found = linear_datamodelling_score(predicted, actual)
    for k in range(3):
        want = spearmanr(predicted[:, k], actual[:, k]).statistic
        assert float(found[k]) == pytest.approx(want)
    assert float(linear_datamodelling_score(torch.ones(5, 1), torch.randn(5, 1))) == 0.0


def test_invalid_arguments_raise():
    for call in (
        lambda: draw_subsets(10, 0),
        lambda: draw_subsets(10, 3, 1.0),
        lambda: sum_scores(torch.ones(4, 9), draw_subsets(10, 3)),
        lambda: linear_datamodelling_score(torch.ones(5, 2), torch.ones(5, 3)),
        lambda: linear_datamodelling_score(torch.ones(2, 2), torch.ones(2, 2)),
    ):
        with pytest.raises(InputError, match="expected"):
            call()
