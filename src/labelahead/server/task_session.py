"""What a labelling session of another task than one class per item needs to open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labelahead.data import Answers, Data
from labelahead.data.task_labels import read_task_labels
from labelahead.errors import InputError
from labelahead.learner.config import Campaign
from labelahead.learner.preparation import choose_task_strategy
from labelahead.models import EXACT
from labelahead.outofcore.store import is_store
from labelahead.server.answer_book import CLASSES, describe_settings
from labelahead.strategies import find_strategy
from labelahead.tasks import Rating, Task, find_task

__all__ = [
    "TaskInputs",
    "choose_strategy",
    "choose_test_answers",
    "prepare_task",
    "read_task_inputs",
]


@dataclass(frozen=True, eq=False)
class TaskInputs:
    """The task of a session.

    Attributes:
        task: Without answers.
        own_answers: position -> written answer, of the labels that the data contain.
    """

    task: Task
    own_answers: Mapping[int, str] = field(default_factory=dict)

    @property
    def class_names(self) -> list[str]:
        """The classes, or the levels of a rating; none of numbers."""
        if self.task.name == "number":
            return []
        return list(self.task.levels if isinstance(self.task, Rating) else self.task.outputs)


def prepare_task(campaign: Campaign) -> Campaign:
    """Return the settings of a session of the task of a campaign: exact learner, a strategy for it.

    Raises:
        InputError: Something was chosen that does not work for the task.
    """
    source = campaign.data
    if source.task == CLASSES:
        return campaign
    if is_store(source.name):
        raise InputError(
            f"the task is {source.task}, but {source.name} is an out-of-core pool, whose items have "
            "one class each; expected --task classes, or the data themselves"
        )
    if source.has_guesses:
        raise InputError(
            f"guesses are given, but the task is {source.task}; they work for one class per item: "
            "leave out --guesses and --prior"
        )
    if campaign.model.name not in ("auto", EXACT):
        raise InputError(
            f"model is {campaign.model.name}, but the task is {source.task}, which the model {EXACT} "
            "alone can learn; leave --model out"
        )
    return replace(campaign, model=replace(campaign.model, name=EXACT))


def choose_strategy(campaign: Campaign, task: Task) -> Campaign:
    """Return the campaign with a strategy for the task, if the default one is not for it.

    Raises:
        InputError: The chosen one does not work for the task.
    """
    asking = choose_task_strategy(campaign.asking, task)
    find_strategy(asking.strategy).check_task(task)
    find_strategy(asking.strategy).check_goal(asking.goal, task)
    return replace(campaign, asking=asking)


def read_task_inputs(
    campaign: Campaign, data: Data, answers: Answers | None, classes: Sequence[str]
) -> tuple[TaskInputs, Data]:
    """Return the task of a session and its data, whose labels are then no part of them.

    Args:
        campaign: Settings of the session.
        data: As loaded, with the task as far as it is known.
        answers: The labels in the data.
        classes: Names of classes or levels that were given.

    Raises:
        InputError: The classes are unknown.
    """
    own = find_task("rating") if campaign.data.task == "rating" else None
    own = data.task or own  # without labels or levels, ratings are 1 to 5
    if own is None:
        raise InputError(
            f"the task is {campaign.data.task}, but the data contain no labels and no classes are "
            "given; expected them, such as --classes cat,dog"
        )
    described: dict[str, Any] = describe_settings(own) or {}
    if own.name == "multilabel":
        known = dict.fromkeys((*classes, *own.outputs))
        described["classes"] = list(known)
    written = {}
    if answers is not None:
        known_at = answers.has_label.nonzero().flatten()
        pairs = zip(known_at.tolist(), answers.take(known_at).tolist(), strict=True)
        written = {p: own.write(code) for p, code in pairs}
    inputs = TaskInputs(find_task(**described), written)
    return inputs, replace(data, task=inputs.task, classes=tuple(inputs.class_names))


def choose_test_answers(
    inputs: TaskInputs, data: Data, test: float | str | Path | None
) -> dict[int, str]:
    """Return position and written answer of the test items.

    Args:
        inputs: The task.
        data: The items.
        test: A fraction of the labels in the data, or a file of labels.
    """
    if isinstance(test, str | Path):
        read = read_task_labels(test, data, inputs.task.name, inputs.class_names)
        return {p: read.task.write(code) for p, code in read.codes.items()}
    if test and not inputs.own_answers:
        raise InputError(
            f"test is {test}, but the data contain no labels; expected a file of item,label"
        )
    return {p: inputs.own_answers[p] for p in data.test.tolist() if p in inputs.own_answers}
