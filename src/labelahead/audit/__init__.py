"""Certified quality of predictions: random audits with intervals that hold at every look."""

from labelahead.audit.plan import AuditPlan, Draws, Stratum, build_plan
from labelahead.audit.sequence import Indicator, Interval, RatioSequence

__all__ = ["AuditPlan", "Draws", "Indicator", "Interval", "RatioSequence", "Stratum", "build_plan"]
