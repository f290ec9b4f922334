"""Comparisons: strategies × seeds side by side, their statistics, figures and report.

The examples here begin with a small comparison, which takes some seconds:

    >>> from labelahead import Budget, Campaign, Network
    >>> from labelahead.simulation.comparison import Comparison, ComparisonStart, Contender
    >>> from labelahead.simulation.comparison import compare, parse_contenders, read_comparison, report
    >>> small = Campaign(model=Network("exact"), budget=Budget(initial=10, labels=20), threads=1)
    >>> comparison = Comparison(small, parse_contenders("random,resolve"), seeds=(0, 1))
    >>> outcome = compare(comparison, "runs/b", workers=1)
"""

from labelahead.simulation.comparison.execution import ComparisonStart, Outcome, compare
from labelahead.simulation.comparison.plan import (
    Comparison,
    Contender,
    parse_contenders,
    read_comparison,
)
from labelahead.simulation.comparison.report_page import WrittenReport, report

__all__ = [
    "Comparison",
    "ComparisonStart",
    "Contender",
    "Outcome",
    "WrittenReport",
    "compare",
    "parse_contenders",
    "read_comparison",
    "report",
]
