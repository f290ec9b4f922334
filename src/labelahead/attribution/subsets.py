"""The linear datamodelling score: do attributions predict what retraining on subsets gives?"""

import torch
from scipy.stats import rankdata
from torch import Tensor

from labelahead.errors import InputError

__all__ = ["draw_subsets", "linear_datamodelling_score", "sum_scores"]


def draw_subsets(items: int, count: int, fraction: float = 0.5, seed: int = 0) -> Tensor:
    """Draw random subsets of the training items: (count, items) bool.

    >>> attribution.draw_subsets(6, 2).sum(1).tolist()
    [3, 3]
    """
    size = round(fraction * items)
    if count < 1 or not 1 <= size < items:
        raise InputError(
            f"{count} subsets of {size} of {items} items; expected at least one subset, of some of "
            "the items"
        )
    generator = torch.Generator().manual_seed(seed)
    subsets = torch.zeros(count, items, dtype=torch.bool)
    for row in subsets:
        row[torch.randperm(items, generator=generator)[:size]] = True
    return subsets


def sum_scores(scores: Tensor, subsets: Tensor) -> Tensor:
    """Predict the outputs after training on subsets by the sums of scores: (s, m).

    Args:
        scores: (m, n), larger where a training item raises an output.
        subsets: (s, n) bool.

    >>> attribution.sum_scores(torch.ones(2, 6), attribution.draw_subsets(6, 1)).tolist()
    [[3.0, 3.0]]
    """
    if scores.ndim != 2 or scores.shape[1:] != subsets.shape[1:]:
        raise InputError(
            f"scores have shape {tuple(scores.shape)}, subsets {tuple(subsets.shape)}; expected "
            "(m, n) and (s, n)"
        )
    return subsets.to(scores) @ scores.T


def linear_datamodelling_score(predicted: Tensor, actual: Tensor) -> Tensor:
    """Compute Spearman's rank correlation over subsets for each item: (m,).

    Args:
        predicted: (s, m) predicted output of each item after training on each subset: `sum_scores`,
            or by `Influence.leave_group_out`.
        actual: (s, m) the output of networks that were trained on the subsets.

    Returns:
        (m,); the mean over the items is the score of an attribution method. Zero where all
        predictions are equal.

    >>> output = torch.tensor([[1.0], [3.0], [2.0]])
    >>> attribution.linear_datamodelling_score(output * 2 + 1, output).round(decimals=6).tolist()
    [1.0]
    """
    if predicted.shape != actual.shape or predicted.ndim != 2 or len(predicted) < 3:
        raise InputError(
            f"predicted has shape {tuple(predicted.shape)}, actual {tuple(actual.shape)}; expected "
            "(s, m) both, with at least 3 subsets"
        )
    one, two = (
        torch.from_numpy(rankdata(t.detach().cpu().double().numpy(), axis=0))
        for t in (predicted, actual)
    )
    one, two = one - one.mean(0), two - two.mean(0)
    product, size = (one * two).sum(0), one.norm(dim=0) * two.norm(dim=0)
    return torch.where(size > 0, product / size, 0.0)
