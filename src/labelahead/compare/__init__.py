"""Comparisons: strategies × seeds side by side, their statistics, figures and report."""

from labelahead.compare.execution import Begun, Outcome, compare
from labelahead.compare.page import Written, report
from labelahead.compare.plan import Arm, Comparison, arms, read_comparison

__all__ = ["Arm", "Begun", "Comparison", "Outcome", "Written", "arms", "compare", "read_comparison", "report"]
