"""The task of a session as its journal records it: settings, classes, and the answers so far.

    task    {"name": "multilabel", ...}   the first event; sessions of one class per item have none
    class   cat                           a class, or a level of a rating
    label   0, cat;dog                    the code of an answer and the answer as it is written

A code belongs to its answer for ever. A class that is added later changes how earlier answers are
written, `cat` -> `cat;?fox`, because they say nothing about it, and not their codes.
"""

import json
from collections.abc import Mapping
from typing import Any

from labelahead.errors import InputError
from labelahead.tasks import Task, find_task

__all__ = ["CLASSES", "SessionTask", "describe_settings"]

CLASSES = "classes"  # the task of sessions without another one
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "multilabel": ("threshold",),
    "number": ("targets", "unit", "limits"),
    "rating": ("levels",),
}


def describe_settings(task: Task | None) -> dict[str, Any] | None:
    """Return what a journal records of a task at its beginning; None for classes."""
    if task is None or task.name == CLASSES:
        return None
    described = task.describe()
    return {"name": task.name} | {name: described[name] for name in SETTINGS[task.name]}


class SessionTask:
    """The task of a journal after some of its events.

    Attributes:
        settings: As of `describe_settings`; None for classes.
        task: The task with all answers so far; None for classes, and before the first class. A new
            class makes a new task, so that models of the old one stay as they are.
    """

    def __init__(self) -> None:
        self.settings: dict[str, Any] | None = None
        self.task: Task | None = None
        self._classes: list[str] = []
        # Reads answers of which it is not known yet whether they will be recorded.
        self._reader: Task | None = None

    @property
    def name(self) -> str:
        """The name of the task."""
        return CLASSES if self.settings is None else str(self.settings["name"])

    @property
    def has_codes(self) -> bool:
        """Whether labels are codes of written answers, not numbers of classes."""
        return self.name in ("multilabel", "number")

    def start(self, text: str) -> None:
        """Process the event `task`."""
        self.settings = json.loads(text)
        if self.name != "multilabel":
            self._set_task(find_task(**(self.settings or {})))

    def check_class(self, name: str) -> None:
        """Raise if a class cannot be added."""
        if self.name == "multilabel":
            find_task("multilabel", classes=[*self._classes, name])
        elif self.settings is not None:
            levels = self.settings.get("levels", [])[len(self._classes) :]
            if levels[:1] != [name]:
                what = "a rating are fixed" if self.name == "rating" else "numbers do not exist"
                raise InputError(f"class {name!r} cannot be added, because the classes of {what}")

    def check_class_change(self) -> None:
        """Raise unless classes can be renamed, merged and removed."""
        if self.settings is not None:
            raise InputError(
                f"the task is {self.name}, whose classes cannot be renamed, merged or removed; "
                "export the labels, change them, and import them into a new folder"
            )

    def add_class(self, name: str) -> None:
        """Process the event `class`."""
        self._classes.append(name)
        if self.name != "multilabel":
            return
        if self.task is None or not len(self.task.answers):
            self._set_task(find_task(**(self.settings or {}), classes=list(self._classes)))
            return
        wider = find_task(**self.task.describe())
        wider.add_output(name)  # type: ignore[attr-defined]
        self._set_task(wider)

    def read(self, value: Any) -> tuple[int, str]:
        """Return the code and the text of an answer; a new one gets the next code.

        Args:
            value: As `Task.parse` reads it.

        Raises:
            InputError: It is no answer.
        """
        if self.task is None or self._reader is None:
            raise InputError("there is no class yet; expected at least one: add it first")
        found = self._reader.parse(value)
        if found is None:
            raise InputError(f"{value!r} is empty; expected an answer, or skip the item")
        text = self._reader.write(found)
        code = self.task.answers.find(text)
        return len(self.task.answers) if code is None else code, text

    def write(self, code: int) -> str:
        """Return an answer so far as it is written."""
        if self.task is None:
            raise InputError(f"there is no answer {code}; expected one of those so far")
        return self.task.write(code)

    def enter(self, text: str) -> None:
        """Process an answer as it was written when it was given."""
        assert self.task is not None
        self.task.parse(text)

    def is_valid(self, code: int | None, text: str | None) -> bool:
        """Return whether a stored answer can follow those so far."""
        if text is None:
            return False
        try:
            return self.read(text) == (code, text)
        except InputError:
            return False

    def _set_task(self, task: Task) -> None:
        self.task = task
        self._reader = find_task(**task.describe())
