"""Malformed payloads are refused with a sentence; nothing else escapes the parser."""

import pytest

from labelahead.errors import InputError
from labelahead.integrations.label_studio.payloads import (
    Annotation,
    parse_annotation,
    parse_task_ids,
    parse_webhook,
)
from tests.support.label_studio import RECORDED
from tests.support.malformed import MISSING, WRONG_VALUES, iter_malformed, replace_node

BODIES = [call["body"] for call in RECORDED["webhooks"]]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body["action"])
def test_parse_webhook_with_any_malformed_node_raises_input_errors_only(body):
    refused = []
    for _, changed in iter_malformed(body):
        try:
            parse_webhook(changed)
        except InputError as error:
            refused.append(str(error))
    assert all("; expected " in sentence or "; remove NUL" in sentence for sentence in refused)
    assert max(map(len, refused)) < 400
    "".join(refused).encode()  # an answer can be made of each
    assert len(refused) >= len(WRONG_VALUES)  # all that replace the document itself


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (("annotation",), (None, "x", 1, [None], ["x"])),
        (("annotation", "id"), (None, "103", 1.5, True, -1, 10**30, MISSING)),
        (("annotation", "task"), (None, "2604", [], {"id": 2604}, MISSING)),
        (("annotation", "was_cancelled"), ("no", 1, [])),
        (
            ("annotation", "completed_by"),
            ("anna", [1], {}, {"email": None}, {"email": 5}, {"email": "a\0b"}),
        ),
        (("annotation", "result"), ("x", {}, 5, [None], ["x"], [[]])),
        (("annotation", "result", 0, "value"), ("x", [], 5)),
        (
            ("annotation", "result", 0, "value", "choices"),
            ("sport", {}, 5, [None], [5], [["sport"]], ["\ud800"]),
        ),
        (("project",), ("x", 5, [5])),
        (("project", "id"), ("5", 5.5, True, [5])),
        (("action",), (None, 5, [], {}, MISSING)),
    ],
)
def test_parse_webhook_refuses_wrong_types_of_every_field_that_is_used(path, values):
    body = next(body for body in BODIES if body["action"] == "ANNOTATION_CREATED")
    for value in values:
        with pytest.raises(InputError, match=r"; expected |; remove NUL"):
            parse_webhook(replace_node(body, path, value))


def test_parse_annotation_reads_both_forms_of_an_annotator():
    row = {"id": 1, "task": 2, "result": None, "was_cancelled": None}
    assert parse_annotation({**row, "completed_by": 7}) == Annotation(1, 2, False, 7, ())
    assert parse_annotation({**row, "completed_by": {"email": "a@b.org"}}).completed_by == "a@b.org"
    assert parse_annotation(row).completed_by is None


def test_parse_task_ids_refuses_tasks_without_id():
    assert parse_task_ids({"tasks": [{"id": 3}, {"id": 5}]}) == (3, 5)
    assert parse_task_ids({}) == ()
    for wrong in (
        {"tasks": 5},
        {"tasks": [3]},
        {"tasks": [{"id": "3"}]},
        {"tasks": [{}]},
        {"tasks": {}},
        [],
        None,
    ):
        with pytest.raises(InputError, match="; expected "):
            parse_task_ids(wrong)
