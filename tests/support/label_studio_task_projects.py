"""Projects of Label Studio that ask for several choices, a number or a rating, with known answers."""

import random

from tests.support.label_studio import FILLER_WORDS, RECORDED, WORDS

TASK_NAMES = ("multilabel", "number", "rating")
CONTROLS = {
    "multilabel": '<Choices name="topic" toName="text" choice="multiple"><Choice value="sport"/>'
    '<Choice value="food"/><Choice value="space"/></Choices>',
    "number": '<Number name="topic" toName="text" min="0" max="20"/>',
    "rating": '<Rating name="topic" toName="text" maxRating="4"/>',
}
CONFIGS = {
    name: f'<View><Text name="text" value="$text"/>{control}</View>'
    for name, control in CONTROLS.items()
}
WEIGHTS = {"sport": 1.0, "food": 4.0, "space": 10.0}


def make_topic_tasks(n: int) -> list[dict]:
    """Make tasks whose texts are about none, one or several topics; `truth` has these."""
    rng = random.Random(0)
    rows = []
    for i in range(1, n + 1):
        topics = [topic for topic in WORDS if rng.random() < 0.4]
        words = [rng.choice(WORDS[topic]) for topic in topics for _ in range(4)]
        words += [rng.choice(FILLER_WORDS) for _ in range(6)]
        rng.shuffle(words)
        rows.append({"id": i, "data": {"text": f"{' '.join(words)} ({i})", "truth": topics}})
    return rows


def true_answer(name: str, task: dict):
    """Return the answer of a task as Python gives it."""
    topics = task["data"]["truth"]
    if name == "multilabel":
        return topics
    return sum(map(WEIGHTS.get, topics)) + 0.5 if name == "number" else 1 + len(topics)


def make_result(name: str, value, control: str = "topic") -> list[dict]:
    """Return the result of an annotation as Label Studio sends it."""
    region = {"from_name": control, "to_name": "text", "id": "r1", "origin": "manual"}
    if name == "multilabel":  # nothing is sent if nothing is ticked
        return [{**region, "type": "choices", "value": {"choices": value}}] if value else []
    return [{**region, "type": name, "value": {name: value}}]


def make_annotation(number: int, task: int, result: list[dict]) -> dict:
    recorded = RECORDED["replies"]["annotations"][0]["annotations"][0]
    return {**recorded, "id": number, "task": task, "result": result, "completed_by": 1}


def make_webhook(annotation: dict, action: str = "ANNOTATION_CREATED") -> dict:
    return {"action": action, "annotation": annotation, "project": {"id": int(RECORDED["project"])}}


def set_project(studio, name: str, tasks: list[dict], labelled: list[int]) -> list[dict]:
    """Make the replayed server a project of these tasks; return its annotations by task."""
    studio.replies["project"]["label_config"] = CONFIGS[name]
    studio.replies["project"]["task_number"] = len(tasks)
    studio.replies["tasks"] = {"total": len(tasks), "tasks": tasks}
    studio.replies["annotations"] = [
        {
            "id": i,
            "annotations": [
                make_annotation(100 + i, i, make_result(name, true_answer(name, tasks[i - 1])))
            ],
        }
        for i in labelled
    ]
    return studio.replies["annotations"]
