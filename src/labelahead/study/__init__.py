"""Comparisons: strategies × seeds side by side, their statistics, figures and report."""

from labelahead.study.compare import Begun, Outcome, compare
from labelahead.study.plan import Arm, Study, arms, read_study
from labelahead.study.report import Written, report

__all__ = ["Arm", "Begun", "Outcome", "Study", "Written", "arms", "compare", "read_study", "report"]
