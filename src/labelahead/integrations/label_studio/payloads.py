"""Parse the JSON that Label Studio sends. Every malformed payload is an InputError that names the
field.

A payload is checked as a whole before any of it is recorded: either all of its annotations are
valid, or none is used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labelahead.data.classes import check_name
from labelahead.errors import InputError

__all__ = [
    "ANNOTATIONS_DELETED",
    "ANNOTATION_ACTIONS",
    "ANNOTATION_UPDATED",
    "TASKS_CREATED",
    "TASKS_DELETED",
    "WEBHOOK_ACTIONS",
    "Annotation",
    "Webhook",
    "parse_annotation",
    "parse_task_ids",
    "parse_webhook",
]

ANNOTATION_UPDATED = "ANNOTATION_UPDATED"
ANNOTATION_ACTIONS = ("ANNOTATION_CREATED", "ANNOTATIONS_CREATED", ANNOTATION_UPDATED)
ANNOTATIONS_DELETED = "ANNOTATIONS_DELETED"
TASKS_CREATED = "TASKS_CREATED"
TASKS_DELETED = "TASKS_DELETED"
# PROJECT_UPDATED is left out: labelahead itself updates the project after every annotation.
WEBHOOK_ACTIONS = (*ANNOTATION_ACTIONS, ANNOTATIONS_DELETED, TASKS_CREATED, TASKS_DELETED)
MAX_ID = 2**63 - 1  # Label Studio's ids are 64-bit integers
MAX_VALUE_SHOWN = 60  # characters of a value in an error message


@dataclass(frozen=True)
class Annotation:
    """One annotation of one task.

    completed_by: the annotator's id, their e-mail address, or None if unknown.
    """

    id: int
    task: int
    was_cancelled: bool
    completed_by: int | str | None
    result: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Webhook:
    """One webhook call. Only the fields of its action are filled.

    Annotations, or the ids of annotations or tasks.
    """

    action: str
    project: int | None
    annotations: tuple[Annotation, ...] = ()
    ids: tuple[int, ...] = ()


def parse_webhook(payload: object) -> Webhook:
    """Check the body of a webhook call.

    Actions that labelahead does not register for are valid, and have neither annotations nor ids.

    Raises:
        InputError: A field that the action needs is missing or has the wrong type.

    >>> parse_webhook({"action": "TASKS_DELETED", "tasks": [{"id": 7}], "project": {"id": 1}})
    Webhook(action='TASKS_DELETED', project=1, annotations=(), ids=(7,))
    """
    body = _as_object(payload, "the webhook")
    action = body.get("action")
    if not isinstance(action, str):
        raise _wrong("action", action, "one of " + ", ".join(WEBHOOK_ACTIONS))
    project = None
    if body.get("project") is not None:
        about = _as_object(body["project"], "project")
        project = None if about.get("id") is None else _as_id(about["id"], "project.id")
    if action in ANNOTATION_ACTIONS:
        given = body.get("annotation")
        rows = given if isinstance(given, list) else [given]
        return Webhook(action, project, annotations=tuple(parse_annotation(row) for row in rows))
    if action == ANNOTATIONS_DELETED:
        return Webhook(action, project, ids=_parse_ids(body.get("annotations"), "annotations"))
    if action in (TASKS_CREATED, TASKS_DELETED):
        return Webhook(action, project, ids=_parse_ids(body.get("tasks"), "tasks"))
    return Webhook(action, project)


def parse_annotation(payload: object) -> Annotation:
    """Check one annotation, as webhooks and exports have it.

    Raises:
        InputError: `id` or `task` is missing, or a field has the wrong type.
    """
    body = _as_object(payload, "annotation")
    cancelled = body.get("was_cancelled")
    if cancelled is not None and not isinstance(cancelled, bool):
        raise _wrong("annotation.was_cancelled", cancelled, "true or false")
    return Annotation(
        id=_as_id(body.get("id"), "annotation.id"),
        task=_as_id(body.get("task"), "annotation.task"),
        was_cancelled=bool(cancelled),
        completed_by=_parse_annotator(body.get("completed_by")),
        result=_parse_result(body.get("result")),
    )


def parse_task_ids(payload: object) -> tuple[int, ...]:
    """Check the body of a request for predictions; the ids of its tasks.

    Raises:
        InputError: The body is no object, or a task has no id.
    """
    tasks = _as_object(payload, "the request").get("tasks")
    return () if tasks is None else _parse_ids(tasks, "tasks")


def _parse_annotator(given: object) -> int | str | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        return check_name(given.get("email"), "annotation.completed_by.email")
    return _as_id(given, "annotation.completed_by")


def _parse_result(given: object) -> tuple[Mapping[str, Any], ...]:
    """The regions; their choices are lists of text, other content is ignored."""
    regions = tuple(
        _as_object(region, "annotation.result")
        for region in ([] if given is None else _as_list(given, "result"))
    )
    for region in regions:
        if region.get("value") is None:
            continue
        choices = _as_object(region["value"], "annotation.result.value").get("choices")
        for choice in (
            [] if choices is None else _as_list(choices, "annotation.result.value.choices")
        ):
            check_name(choice, "a choice")
    return regions


def _parse_ids(given: object, name: str) -> tuple[int, ...]:
    return tuple(
        _as_id(_as_object(row, name).get("id"), f"{name}.id") for row in _as_list(given, name)
    )


def _as_object(given: object, name: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise _wrong(name, given, "a JSON object")
    return given


def _as_list(given: object, name: str) -> Sequence[object]:
    if not isinstance(given, list):
        raise _wrong(name, given, "a list")
    return given


def _as_id(given: object, name: str) -> int:
    # bool is an int in Python; JSON's true is no id.
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= MAX_ID:
        raise _wrong(name, given, "a whole number, 0 or more")
    return given


def _wrong(name: str, given: object, expected: str) -> InputError:
    shown = ascii(given)
    if len(shown) > MAX_VALUE_SHOWN:
        shown = shown[:MAX_VALUE_SHOWN] + "..."
    found = "is missing or null" if given is None else f"is {shown}"
    return InputError(f"{name} {found}; expected {expected}, as Label Studio sends it")
