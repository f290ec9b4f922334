"""Which training items made a prediction: exact influence in the linearised network, and TRAK.

The examples in the docstrings start from

    >>> import torch
    >>> import labelahead as la
    >>> from labelahead import attribution
    >>> generator = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> x2 = torch.randn(2, 4)
"""

from labelahead.attribution.influence import Influence, compute_influence, fit_influence
from labelahead.attribution.projection import compute_trak_scores
from labelahead.attribution.subsets import draw_subsets, linear_datamodelling_score, sum_scores

__all__ = [
    "Influence",
    "compute_influence",
    "compute_trak_scores",
    "draw_subsets",
    "fit_influence",
    "linear_datamodelling_score",
    "sum_scores",
]
