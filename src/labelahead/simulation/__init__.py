"""Simulate labelling campaigns on labelled data, and compare strategies.

The examples here begin with

    >>> import torch
    >>> import labelahead as la
    >>> generator = torch.manual_seed(0)
    >>> x = torch.randn(60, 4)
    >>> truth = x[:, :3].argmax(1)
"""

from labelahead.simulation.paired import (
    BaselineCallbacks,
    BaselineResult,
    PairedResult,
    resume_paired,
    run_against,
    run_paired,
)
from labelahead.simulation.run import RunCallbacks

__all__ = [
    "BaselineCallbacks",
    "BaselineResult",
    "PairedResult",
    "RunCallbacks",
    "resume_paired",
    "run_against",
    "run_paired",
]
