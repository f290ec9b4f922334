"""An HTML report of a labelling session: labels, annotators, conflicts and accuracy."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from labelahead import files
from labelahead.data.dataset import NONE_OF_THESE, NONE_OF_THESE_NAME
from labelahead.learner.guess_quality import describe_states
from labelahead.server.agreement import summarize_agreement
from labelahead.server.journal import read_journal
from labelahead.server.label_state import LabelState, build_label_state
from labelahead.server.progress import describe_class_quality
from labelahead.server.snapshot import MIN_CONFUSION_LABELS
from labelahead.server.task_display import count_outputs

__all__ = ["WrittenReport", "write_report"]

SERVER_FOLDER = Path(__file__).parent
REPORT_FILE = "report.html"
CURVE_WIDTH, CURVE_HEIGHT = 600, 200  # of the curve


@dataclass(frozen=True)
class WrittenReport:
    """Path of the report and its headline."""

    page: Path
    headline: str


def write_report(folder: str | Path, out: str | Path | None = None) -> WrittenReport:
    """Write the report of a session, also while a server has it open.

    out: output folder; default: FOLDER/report.
    """
    folder = Path(folder)
    items, events = read_journal(folder)
    label_state, lines = build_label_state(events), _read_rounds(folder)
    rounds = _list_accuracies(lines)
    if label_state.task is not None:
        rounds = []  # errors of a task are no shares of wrong predictions
    counts = _count_classes(label_state)
    headline = (
        f"{len(label_state.labels)} of {len(items)} items labelled by {len(label_state.answered_positions)} "
        f"{_person_noun(label_state)}"
    )
    pages = Environment(
        loader=FileSystemLoader(SERVER_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
    )
    page = pages.get_template(REPORT_FILE).render(
        name=folder.resolve().name,
        headline=headline,
        label_state=label_state,
        classes=counts,
        most=max(1, *(n for _, n in counts)) if counts else 1,
        error=_describe_error(label_state, lines),
        people=_count_by_annotator(label_state),
        reliability=_read_reliability(folder, label_state),
        agreement=summarize_agreement(label_state),
        times=[_format_minute(event.at) for event in events if event.position is not None],
        conflicts=[
            (
                items[p],
                _describe_labels(label_state, p),
                label_state.name_label(label_state.labels[p]),
            )
            for p in label_state.conflicts
        ],
        rounds=rounds,
        guessers=describe_states(lines[-1].get("guessers") if lines else (), label_state.classes),
        class_quality=describe_class_quality(lines, label_state),
        curve=_curve_points(rounds),
        band=_band_points(rounds),
        size=(CURVE_WIDTH, CURVE_HEIGHT),
        reach=max(
            (row["labels"] for row in rounds), default=0
        ),  # the last may have fewer: answers are taken back
    )
    target = folder / "report" if out is None else Path(out)
    files.make_folder(target)
    files.replace_file(target / REPORT_FILE, page)
    return WrittenReport(target / REPORT_FILE, headline)


def _count_classes(label_state: LabelState) -> list[tuple[str, int]]:
    """Return the number of labels of each class or level; none of numbers."""
    if label_state.task is not None:
        counts = count_outputs(label_state.task, label_state.labels)
        return list(zip(label_state.classes, counts, strict=False))
    given = Counter(label_state.labels.values())
    none = [(NONE_OF_THESE_NAME, n) for n in [given[NONE_OF_THESE]] if n]
    return [(label_state.classes[c], given[c]) for c in label_state.active_classes] + none


def _describe_error(label_state: LabelState, lines: Sequence[dict[str, Any]]) -> str:
    """Return a sentence on the estimated error of a task; "" for classes."""
    task = label_state.task
    if task is None:
        return ""
    last = next((row for row in reversed(lines) if row.get("error_rate") is not None), None)
    if last is None:
        return "Not available yet: no model has been fitted on these labels."
    return (
        f"The estimated {task.error_unit} is {last['error_rate']:.3g} ({last['error_low']:.3g} to "
        f"{last['error_high']:.3g}) with {last['labels']} labels."
    )


def _person_noun(label_state: LabelState) -> str:
    return "person" if len(label_state.answered_positions) == 1 else "people"


def _read_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of `rounds.jsonl`."""
    path, rows = folder / "rounds.jsonl", []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:  # a line truncated by a kill
            continue
    return rows


def _list_accuracies(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return labels and accuracy of each round, with an interval if it is estimated."""
    rows = []
    for row in lines:
        if row.get("accuracy") is not None:
            rows.append(
                {"labels": row["labels"], "value": row["accuracy"], "low": None, "high": None}
            )
        elif row.get("error_rate") is not None:
            ends = {"low": 1 - row["error_high"], "high": 1 - row["error_low"]}
            rows.append({"labels": row["labels"], "value": 1 - row["error_rate"], **ends})
    return rows


def _count_by_annotator(label_state: LabelState) -> list[tuple[str, int, int]]:
    """Return (annotator, labels, skipped or unsure items) of each annotator."""
    answers = [a for given in label_state.answers.values() for a in given]
    labels = Counter(a.who for a in answers if a.label is not None)
    return [
        (who, labels[who], len(label_state.answered_positions[who]) - labels[who])
        for who in sorted(label_state.answered_positions)
    ]


def _read_reliability(folder: Path, label_state: LabelState) -> dict[str, tuple[str, str]]:
    """Return annotator -> (accuracy with interval, confusions), as of the last fit that has them."""
    path, found = folder / "rounds.jsonl", {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:  # a line truncated by a kill
            continue
        found = {source["who"]: source for source in row.get("sources", ())}
    names = label_state.classes
    return {
        who: (
            f"{s['accuracy']:.0%} ({s['low']:.0%} to {s['high']:.0%})".replace("%", " %"),
            "; ".join(
                f"{names[other]} for {names[true]} ({share:.0%})".replace("%", " %")
                for true, other, share in s["confusions"]
            )
            if s["labels"] >= MIN_CONFUSION_LABELS
            else "too few labels",
        )
        for who, s in found.items()
    }


def _describe_labels(label_state: LabelState, position: int) -> str:
    labelled = (a for a in label_state.answers[position] if a.label is not None)
    return ", ".join(
        f"{a.who}: {label_state.name_label(a.label)}" for a in labelled if a.label is not None
    )


def _format_minute(at: str) -> str:
    """Format an ISO time such as 2026-11-17T14:06:00.909+00:00 to the minute."""
    return datetime.fromisoformat(at).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _curve_points(rounds: Sequence[dict[str, Any]]) -> str:
    """Return the SVG points of the accuracy curve."""
    most = max((row["labels"] for row in rounds), default=0)
    return _format_points([(row["labels"] / most, row["value"]) for row in rounds]) if most else ""


def _band_points(rounds: Sequence[dict[str, Any]]) -> str:
    """Return the SVG points of the polygon around the estimated intervals."""
    most = max((row["labels"] for row in rounds), default=0)
    known = [row for row in rounds if row["low"] is not None] if most else []
    ends = [(row["labels"] / most, row["low"]) for row in known]
    return _format_points(ends + [(row["labels"] / most, row["high"]) for row in reversed(known)])


def _format_points(shares: Sequence[tuple[float, float]]) -> str:
    return " ".join(
        f"{CURVE_WIDTH * x:.1f},{CURVE_HEIGHT * (1 - min(1.0, max(0.0, y))):.1f}" for x, y in shares
    )
