"""Labelling sessions of several classes at once, numbers and ratings, with known answers."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.support.web_sessions import CHANGE, page, progress_once

TASKS = ("multilabel", "number", "rating")
CLASSES = {"multilabel": ["cat", "dog"], "number": [], "rating": ["1", "2", "3", "4", "5"]}
COLUMNS = ("a", "b", "c", "d")


def make_rows(n: int = 90) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, len(COLUMNS))).round(3)


def true_answer(task: str, row: np.ndarray):
    """Return the answer of an item as people give it."""
    if task == "multilabel":
        return ["cat"] * bool(row[0] > 0) + ["dog"] * bool(row[1] > 0.3)
    if task == "number":
        return round(float(10 + 3 * row[0] + row[1]), 2)
    return str(int(np.clip(round(3 + row[0]), 1, 5)))


def write_table(path: Path, rows: np.ndarray, answers=()) -> Path:
    """Write items as CSV; answers: written labels of the first ones, in a column `label`."""
    lines = [",".join(("id", *COLUMNS, *(("label",) if answers else ())))]
    for i, row in enumerate(rows):
        label = [answers[i] if i < len(answers) else ""] if answers else []
        lines.append(",".join([f"i{i}", *map(str, row), *label]))
    path.write_text("\n".join(lines) + "\n")
    return path


@contextmanager
def task_page(folder: Path, task: str, out: str = "out", *, data=None, rows=None, **options):
    """Open a session of a task; yield its client, the session and the rows of its items."""
    rows = make_rows() if rows is None else rows
    source = folder / "items.csv"
    if not source.exists():
        write_table(source, rows)
    settings = {"name": str(source), "task": task, "classes": CLASSES[task]} | (data or {})
    tables = {"data": settings, "model": {"name": "auto"}, "threads": 1}
    with page(source, folder / out, tables=tables, **options) as (client, session):
        yield client, session, rows


def send(client, position: int, value, kind: str = "label", who: str = "me", **more):
    headers = {**CHANGE, "Cookie": f"la_who={who}"}
    body = {"position": position, "kind": kind, "value": value, **more}
    reply = client.post("/api/answers", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


def answer_queries(client, task: str, rows: np.ndarray, count: int) -> list[int]:
    """Answer so many queries truly; return their positions."""
    positions = []
    for _ in range(count):
        position = client.get("/api/question").json()["position"]
        send(client, position, true_answer(task, rows[position]))
        positions.append(position)
    return positions


def wait_until_fitted(client):
    return progress_once(client, lambda p: p["training"]["idle"] and p["training"]["round"])
