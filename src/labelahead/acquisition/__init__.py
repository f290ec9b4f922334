"""Acquisition functions: view -> one score per candidate, larger = label sooner.

`ACQUISITIONS` maps their names to the functions. The examples in the docstrings start from six
items, two of them labelled:

    >>> import torch
    >>> import labelahead as la
    >>> from labelahead.acquisition import ACQUISITIONS, Acquisition
    >>> generator = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    >>> x = torch.randn(6, 4)
    >>> post = la.prior(model(x).detach(), la.kernel(model, x), noise=1e-3).condition([0, 1], torch.eye(3)[[0, 1]])
    >>> pool_view = la.acquisition.view(post, [2, 3, 4, 5])
    >>> sorted(ACQUISITIONS)
    ['changes', 'eer', 'emoc', 'flip', 'mlmoc', 'resolve', 'variance']
    >>> from labelahead.acquisition import OUTPUT_ACQUISITIONS  # of several classes at once, numbers
    >>> sorted(OUTPUT_ACQUISITIONS)
    ['flip', 'mlmoc', 'resolve', 'variance']
    >>> boldest: Acquisition = lambda view, rng: view.probabilities().amax(1)
    >>> la.acquisition.best(pool_view, boldest)[0] in (2, 3, 4, 5)
    True
"""

from labelahead.acquisition.batch_selection import Selection, best, greedy, sequential, top
from labelahead.acquisition.functions import (
    ACQUISITIONS,
    Acquisition,
    changes,
    eer,
    emoc,
    flip,
    mlmoc,
    resolve,
    variance,
)
from labelahead.acquisition.outputs import (
    OUTPUT_ACQUISITIONS,
    find_output_acquisition,
    flip_outputs,
    mlmoc_outputs,
    resolve_outputs,
)
from labelahead.acquisition.pool_view import View, view
from labelahead.acquisition.sources import (
    LabelSource,
    SourceQuery,
    SourceView,
    parse_prices,
    select_pairs,
    source_view,
    unbiased_targets,
)

__all__ = [
    "ACQUISITIONS",
    "OUTPUT_ACQUISITIONS",
    "Acquisition",
    "LabelSource",
    "Selection",
    "SourceQuery",
    "SourceView",
    "View",
    "best",
    "changes",
    "eer",
    "emoc",
    "find_output_acquisition",
    "flip",
    "flip_outputs",
    "greedy",
    "mlmoc",
    "mlmoc_outputs",
    "parse_prices",
    "resolve",
    "resolve_outputs",
    "select_pairs",
    "sequential",
    "source_view",
    "top",
    "unbiased_targets",
    "variance",
    "view",
]
