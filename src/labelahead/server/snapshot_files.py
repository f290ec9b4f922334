"""Snapshots as files: a cache of the session, which a training can always rebuild."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch

from labelahead.errors import InputError
from labelahead.files import replace_file
from labelahead.gp.calibration import ErrorRate
from labelahead.inference.forecast import ErrorForecast
from labelahead.server.exact_snapshot import ExactSnapshot
from labelahead.server.snapshot import (
    FitFacts,
    LeaveOneOutFacts,
    LeaveOneOutRow,
    NetworkSnapshot,
    PoolFacts,
    PoolMap,
    Snapshot,
    SourceFacts,
)
from labelahead.server.task_review import Suspect
from labelahead.server.task_snapshot import TaskSnapshot
from labelahead.tasks import find_task

__all__ = ["SnapshotFormatError", "load_snapshot", "save_snapshot"]

FORMAT = 2  # files of version 0.2 have none
SNAPSHOT_TYPES: Mapping[str, type[Snapshot]] = {
    "network": NetworkSnapshot,
    "exact": ExactSnapshot,
    "task": TaskSnapshot,
}


class SnapshotFormatError(InputError):
    """A snapshot of another version of labelahead. labels: those that it was fitted on."""

    def __init__(self, path: Path, labels: Mapping[int, int]) -> None:
        super().__init__(f"{path.name} was written by another version of labelahead")
        self.labels = labels


def save_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Write a snapshot atomically."""
    kind = next(name for name, made in SNAPSHOT_TYPES.items() if type(snapshot) is made)
    state = {f.name: getattr(snapshot, f.name) for f in fields(snapshot)}
    state |= {
        "format": FORMAT,
        "kind": kind,
        "labels": dict(snapshot.labels),
        "pool_facts": asdict(snapshot.pool_facts),
        "fit_facts": _fit_facts_to_state(snapshot.fit_facts),
    }
    if isinstance(snapshot, TaskSnapshot):
        state["task"] = snapshot.task.describe()
    replace_file(path, lambda file: torch.save(state, file))


def load_snapshot(path: Path) -> Snapshot:
    """Load a snapshot; only tensors and plain values are unpickled.

    Raises:
        SnapshotFormatError: Another version of labelahead wrote it.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state.pop("format", None) != FORMAT:
        raise SnapshotFormatError(path, state.get("labels", {}))
    pool_facts = state.pop("pool_facts")
    pool_facts["map"] = PoolMap(**pool_facts["map"])
    if "task" in state:
        state["task"] = find_task(**state["task"])
    return SNAPSHOT_TYPES[state.pop("kind")](
        **state | {"fit_facts": _fit_facts_from_state(state["fit_facts"])},
        pool_facts=PoolFacts(**pool_facts),
    )


def _fit_facts_to_state(facts: FitFacts) -> dict[str, Any]:
    """Return the facts as plain values: named tuples are not unpickled."""
    state = {f.name: getattr(facts, f.name) for f in fields(facts)}
    if facts.leave_one_out is not None:
        rows = [tuple(row) for row in facts.leave_one_out.rows]
        state["leave_one_out"] = {**vars(facts.leave_one_out), "rows": rows}
    state["sources"] = [tuple(row) for row in facts.sources]
    state["measures"] = dict(facts.measures)
    state["class_quality"] = facts.class_quality and dict(facts.class_quality)
    state["suspects"] = [tuple(row) for row in facts.suspects]
    if facts.forecast is not None:
        state["forecast"] = (tuple(facts.forecast.error), *facts.forecast[1:])
    return state


def _fit_facts_from_state(state: Mapping[str, Any]) -> FitFacts:
    others, forecast = state["leave_one_out"], state["forecast"]
    if others is not None:
        rows = tuple(LeaveOneOutRow(*row) for row in others["rows"])
        others = LeaveOneOutFacts(**{**others, "rows": rows})
    if forecast is not None:
        forecast = ErrorForecast(ErrorRate(*forecast[0]), *forecast[1:])
    sources = tuple(SourceFacts(*row) for row in state.get("sources", ()))  # none before 0.4
    suspects = tuple(Suspect(*row) for row in state.get("suspects", ()))
    facts = {"leave_one_out": others, "forecast": forecast}
    return FitFacts(**{**state, **facts, "sources": sources, "suspects": suspects})
