"""One HTML page of a labelling session, readable offline.

What was labelled, by whom, and how good it is.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from labelahead import files
from labelahead.server.journal import recorded
from labelahead.server.label_state import LabelState, fold

__all__ = ["Written", "report"]

HERE = Path(__file__).parent
PAGE = "report.html"
WIDE, HIGH = 600, 200  # of the curve


@dataclass(frozen=True)
class Written:
    """Where the report is, and the first it says."""

    page: Path
    headline: str


def report(folder: str | Path, out: str | Path | None = None) -> Written:
    """Write the report of a session, also while somebody labels in it.

    out: where, if not into FOLDER/report.
    """
    folder = Path(folder)
    items, events = recorded(folder)
    tally, rounds = fold(events), _rounds(folder)
    given = Counter(tally.labels.values())
    headline = (
        f"{len(tally.labels)} of {len(items)} items labelled by {len(tally.answered)} "
        f"{_persons(tally)}"
    )
    pages = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined
    )
    page = pages.get_template(PAGE).render(
        name=folder.resolve().name,
        headline=headline,
        tally=tally,
        classes=[(tally.classes[c], given[c]) for c in tally.alive],
        most=max(given.values(), default=1),
        people=_people(tally),
        times=[_minute(event.at) for event in events if event.position is not None],
        conflicts=[
            (items[p], _opinions(tally, p), tally.classes[tally.labels[p]]) for p in tally.conflicts
        ],
        rounds=rounds,
        curve=_curve(rounds),
        band=_band(rounds),
        size=(WIDE, HIGH),
        reach=max(
            (row["labels"] for row in rounds), default=0
        ),  # the last may have fewer: answers are taken back
    )
    target = folder / "report" if out is None else Path(out)
    files.make(target)
    files.replace(target / PAGE, page)
    return Written(target / PAGE, headline)


def _persons(tally: LabelState) -> str:
    return "person" if len(tally.answered) == 1 else "people"


def _rounds(folder: Path) -> list[dict[str, Any]]:
    """How good it was after each training.

    Labels, and accuracy with its interval, measured or estimated.
    """
    path, rows = folder / "rounds.jsonl", []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:  # a line that was cut off by a kill
            continue
        if row.get("accuracy") is not None:
            rows.append(
                {"labels": row["labels"], "value": row["accuracy"], "low": None, "high": None}
            )
        elif row.get("error_rate") is not None:
            ends = {"low": 1 - row["error_high"], "high": 1 - row["error_low"]}
            rows.append({"labels": row["labels"], "value": 1 - row["error_rate"], **ends})
    return rows


def _people(tally: LabelState) -> list[tuple[str, int, int]]:
    """Who, labels that count as theirs, and what they left open."""
    answers = [a for given in tally.answers.values() for a in given]
    labels = Counter(a.who for a in answers if a.label is not None)
    return [
        (who, labels[who], len(tally.answered[who]) - labels[who]) for who in sorted(tally.answered)
    ]


def _opinions(tally: LabelState, position: int) -> str:
    said = (a for a in tally.answers[position] if a.label is not None)
    return ", ".join(f"{a.who}: {tally.classes[a.label]}" for a in said if a.label is not None)


def _minute(at: str) -> str:
    """2026-11-17T14:06:00.909+00:00 for people."""
    return datetime.fromisoformat(at).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _curve(rounds: Sequence[dict[str, Any]]) -> str:
    """Points of a line, from 0 to the most labels and from 0 to 100 %."""
    most = max((row["labels"] for row in rounds), default=0)
    return _points([(row["labels"] / most, row["value"]) for row in rounds]) if most else ""


def _band(rounds: Sequence[dict[str, Any]]) -> str:
    """Points around the intervals of those that are estimated, there and back."""
    most = max((row["labels"] for row in rounds), default=0)
    known = [row for row in rounds if row["low"] is not None] if most else []
    ends = [(row["labels"] / most, row["low"]) for row in known]
    return _points(ends + [(row["labels"] / most, row["high"]) for row in reversed(known)])


def _points(shares: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{WIDE * x:.1f},{HIGH * (1 - min(1.0, max(0.0, y))):.1f}" for x, y in shares)
