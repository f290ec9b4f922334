"""A real Label Studio with two concurrent annotators."""

import random
import threading
from collections import Counter
from urllib.error import URLError

import pytest

from labelahead.server.client import Client
from tests.support.label_studio import (
    KEY,
    RealBridge,
    make_choice,
    make_tasks,
    read_current_annotations,
    start_bridge_and_page,
)

ANNA, BEN = "anna@example.org", "ben@example.org"
WRONG_LABEL = {"sport": "food", "food": "space", "space": "sport"}


@pytest.fixture(scope="session")
def tokens(studio) -> dict[str, str]:
    """Return the access token of each annotator."""
    return {ANNA: KEY, BEN: studio.invite_user(BEN, "ben-ben-ben-1")}


def test_two_annotators_get_the_same_queries_as_on_the_page(
    studio, tokens, tmp_path, start_program
):
    """Each annotator keeps the current task and gets the best one that the other does not hold."""
    project, bridge, client, out = start_bridge_and_page(
        studio, tmp_path, start_program, 200, "--retrain-every", "1000"
    )
    clients = {ANNA: client, BEN: Client(client.url, who=BEN)}
    rng, queries, tasks = random.Random(0), {}, {}
    for who in tokens:
        queries[who], tasks[who] = clients[who].get_query(), studio.next_task(project, tokens[who])
    for _ in range(30):
        assert {who: q["item"] for who, q in queries.items()} == {
            who: f"{t['id']}.txt" for who, t in tasks.items()
        }
        who = rng.choice([*tokens])
        truth = tasks[who]["data"]["truth"]
        studio.annotate(tasks[who]["id"], truth, tokens[who])
        tasks[who] = studio.next_task(project, tokens[who])
        queries[who] = clients[who].add_answer(queries[who]["position"], truth)["next"]
    assert len(read_current_annotations(out)) == 30
    assert {person["who"] for person in bridge._get("/api/people")["people"]} == set(tokens)


def annotate_randomly(studio, project: int, key: str, seed: int, steps: int, failed: list) -> None:
    """Label, skip, correct and delete at random."""
    rng, own_annotations = random.Random(seed), []
    try:
        for _ in range(steps):
            draw = rng.random()
            if draw < 0.1 and own_annotations:
                number, truth = own_annotations.pop(rng.randrange(len(own_annotations)))
                studio.request("DELETE", f"/api/annotations/{number}/", key=key)
            elif draw < 0.2 and own_annotations:
                number, truth = rng.choice(own_annotations)
                studio.request(
                    "PATCH",
                    f"/api/annotations/{number}/",
                    {"result": make_choice(WRONG_LABEL[truth])},
                    key,
                )
            else:
                task = studio.next_task(project, key)
                skipped = {"result": [], "was_cancelled": True}
                if draw > 0.9:
                    studio.request("POST", f"/api/tasks/{task['id']}/annotations/", skipped, key)
                else:
                    own_annotations.append(
                        (
                            studio.annotate(task["id"], task["data"]["truth"], key),
                            task["data"]["truth"],
                        )
                    )
    except (AssertionError, URLError) as error:
        failed.append(error)


def run_annotators(studio, project: int, tokens, steps: int) -> None:
    failed: list = []
    threads = [
        threading.Thread(target=annotate_randomly, args=(studio, project, key, seed, steps, failed))
        for seed, key in enumerate(tokens.values())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def read_studio_annotations(studio, project: int) -> dict[int, tuple]:
    """Return annotation -> (task, kind, label) of the project."""
    annotations = {}
    for a in studio.annotations(project):
        label = None if a["was_cancelled"] else a["result"][0]["value"]["choices"][0]
        annotations[a["id"]] = (str(a["task"]), "skip" if a["was_cancelled"] else "label", label)
    return annotations


@pytest.mark.parametrize("overlap", [1, 2])
def test_concurrent_annotators_lose_no_annotation_and_repeat_little_work(
    studio, tokens, tmp_path, start_program, overlap
):
    project, out = (
        studio.new_project(make_tasks(150, seed=overlap), maximum_annotations=overlap),
        tmp_path / "out",
    )
    bridge = start_program(RealBridge, studio, project, out)
    bridge.settle()
    run_annotators(studio, project, tokens, 40)
    expected = read_studio_annotations(studio, project)
    assert read_current_annotations(out) == expected
    # No work is repeated beyond the overlap, except that with SQLite Label Studio itself
    # sometimes serves one task to two simultaneous requests (6 of 80 with its own sequential
    # sampling).
    labelled = Counter(task for task, kind, _ in expected.values() if kind == "label")
    assert (
        sum(labelled.values()) - sum(min(overlap, n) for n in labelled.values())
        <= len(labelled) / 10
    )
    assert max(labelled.values()) >= overlap
    bridge.kill()
    bridge.start()
    bridge.settle()
    assert read_current_annotations(out) == expected


def test_conflicting_second_annotations_are_listed_as_conflicts(
    studio, tokens, tmp_path, start_program
):
    project, out = studio.new_project(make_tasks(12), maximum_annotations=2), tmp_path / "out"
    bridge = start_program(RealBridge, studio, project, out)
    bridge.settle()
    truth = {t["id"]: t["data"]["truth"] for t in studio.tasks(project)}
    wrong, numbers = set(list(truth)[:4]), {}
    for step in range(24):
        who = [*tokens][step % 2]
        task = studio.next_task(project, tokens[who])["id"]
        name = WRONG_LABEL[truth[task]] if who == BEN and task in wrong else truth[task]
        numbers[who, task] = studio.annotate(task, name, tokens[who])
    people = bridge._get("/api/people")
    assert (people["compared"], people["agree"]) == (12, 8)
    assert {int(c["item"].removesuffix(".txt")) for c in people["conflicts"]} == wrong
    first, second, third, _ = sorted(wrong)
    studio.request(
        "PATCH",
        f"/api/annotations/{numbers[BEN, first]}/",
        {"result": make_choice(truth[first])},
        tokens[BEN],
    )
    studio.request("DELETE", f"/api/annotations/{numbers[BEN, second]}/", key=tokens[BEN])
    studio.request("DELETE", f"/api/annotations/{numbers[ANNA, third]}/")
    people = bridge._get("/api/people")
    assert (people["compared"], people["agree"]) == (10, 9)
    assert [c["item"] for c in people["conflicts"]] == [f"{max(wrong)}.txt"]
    assert read_current_annotations(out) == read_studio_annotations(studio, project)
