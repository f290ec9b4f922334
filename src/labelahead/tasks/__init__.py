"""Kinds of answers: one class, several classes at once, numbers, ratings.

A `Task` says how an answer is written and read, what the targets of the model are, what a posterior
predicts, which acquisition functions work, and how predictions are measured. All other code handles
answers by their codes, whole numbers. The examples here begin with

    >>> import torch
    >>> import labelahead as la
    >>> from labelahead.tasks import TASKS
    >>> sorted(TASKS)
    ['classes', 'multilabel', 'number', 'rating']
    >>> la.tasks.NO_CLASS  # how the answer "no class" is written; an empty cell is no answer
    '[]'
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from labelahead.errors import InputError, did_you_mean
from labelahead.tasks.base import AnswerBook, LeaveOneOut, Prediction, Task, TaskState
from labelahead.tasks.classes import Classes, ClassPrediction
from labelahead.tasks.multilabel import NO_CLASS, Multilabel, MultilabelPrediction
from labelahead.tasks.number import Number, NumberPrediction
from labelahead.tasks.rating import Rating, RatingPrediction

__all__ = [
    "NO_CLASS",
    "TASKS",
    "AnswerBook",
    "ClassPrediction",
    "Classes",
    "LeaveOneOut",
    "Multilabel",
    "MultilabelPrediction",
    "Number",
    "NumberPrediction",
    "Prediction",
    "Rating",
    "RatingPrediction",
    "Task",
    "TaskState",
    "find_task",
]

TASKS: Mapping[str, type[Task]] = MappingProxyType(
    {task.name: task for task in (Classes, Multilabel, Number, Rating)}
)
ARGUMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "classes": ("classes",),
        "multilabel": ("classes", "threshold"),
        "number": ("targets", "unit", "limits"),
        "rating": ("levels",),
    }
)


def find_task(name: str, **arguments: Any) -> Task:
    """Return the task of this name.

    Args:
        name: classes, multilabel, number or rating.
        arguments: Of `Classes` and `Multilabel`: `classes`; of `Multilabel` also `threshold`; of
            `Number`: `targets`, `unit`, `limits`; of `Rating`: `levels`. Each may have `answers`,
            the written answers in the order of their codes, so that `find_task(**task.describe())`
            is an equal task. An argument that is None counts as not given.

    Raises:
        InputError: There is no such task, or the arguments do not fit it.

    >>> task = la.tasks.find_task("multilabel", classes=["cat", "dog"])
    >>> task.parse("dog")
    0
    >>> la.tasks.find_task(**task.describe()).write(0)
    'dog'
    """
    if name not in TASKS:
        raise InputError(
            f"task is {name!r}; {did_you_mean(name, TASKS)}expected one of {', '.join(TASKS)}"
        )
    given = {key: value for key, value in arguments.items() if value is not None}
    wrong = [key for key in given if key not in (*ARGUMENTS[name], "answers")]
    if wrong:
        raise InputError(
            f"{wrong[0]} is given for the task {name}; expected only {', '.join(ARGUMENTS[name])}"
        )
    if name in ("classes", "multilabel"):
        if "classes" not in given:
            raise InputError(f"the task {name} has no classes; expected their names as `classes`")
        given["names"] = given.pop("classes")
    return TASKS[name](**given)
