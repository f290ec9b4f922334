"""Small tables whose labels are several classes at once, numbers or ratings."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ITEMS = 120


@dataclass(frozen=True)
class TaskTable:
    """A table on disk.

    Attributes:
        path: Of the CSV file.
        task: Name of the task.
        answers: The label of every row, as it is written.
    """

    path: Path
    task: str
    answers: tuple[str, ...]

    @property
    def tables(self):
        """The configuration of a short campaign."""
        return {
            "data": {"name": str(self.path), "task": self.task, "target": "answer"},
            "budget": {"initial": 10, "labels": 30},
            "threads": 1,
        }

    @property
    def options(self):
        """The same for the command line."""
        return (
            *("--data", self.path, "--task", self.task, "--target", "answer"),
            *("--initial", 10, "--labels", 30, "--threads", 1),
        )


def write_task_table(folder: Path, task: str, items: int = ITEMS) -> TaskTable:
    """Write a table of four columns and one of labels, which the columns determine but for noise."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(items, 4))
    latent = x[:, 0] + 0.5 * x[:, 1] + 0.1 * rng.normal(size=items)
    if task == "number":
        answers = [f"{50 + 10 * v:.2f} mg" for v in latent]
    elif task == "rating":
        answers = [str(int(v)) for v in np.clip(np.round(3 + latent), 1, 5)]
    else:
        present = np.stack([latent > 0.2, x[:, 2] > 0.5, x[:, 3] < -1], axis=1)
        names = np.array(["cat", "dog", "fox"])
        answers = [";".join(names[row]) or "[]" for row in present]
    path = folder / f"{task}.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "a", "b", "c", "d", "answer"])
        rows.writerows([f"item{i}", *x[i].round(4), answers[i]] for i in range(items))
    return TaskTable(path, task, tuple(answers))
