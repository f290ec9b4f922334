"""Comparisons: strategies × seeds side by side, their statistics, figures and report.

The examples here begin with a small comparison, which takes some seconds:

    >>> from labelahead import Budget, Campaign, Network
    >>> from labelahead.simulation.comparison import Arm, Begun, Comparison, arms, compare, read_comparison, report
    >>> small = Campaign(model=Network("exact"), budget=Budget(initial=10, labels=20), threads=1)
    >>> comparison = Comparison(small, arms("random,resolve"), seeds=(0, 1))
    >>> outcome = compare(comparison, "runs/b", workers=1)
"""

from labelahead.simulation.comparison.execution import Begun, Outcome, compare
from labelahead.simulation.comparison.plan import Arm, Comparison, arms, read_comparison
from labelahead.simulation.comparison.report_page import Written, report

__all__ = [
    "Arm",
    "Begun",
    "Comparison",
    "Outcome",
    "Written",
    "arms",
    "compare",
    "read_comparison",
    "report",
]
