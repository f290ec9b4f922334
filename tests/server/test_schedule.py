"""When the page trains."""

import csv
from dataclasses import replace

import numpy as np
import torch

from labelahead.learner.preparation import prepare_campaign
from tests.support.waiting import until
from tests.support.web_answers import answer
from tests.support.web_sessions import page, photos, progress_once


def test_training_continues_after_a_failed_write(tmp_path):
    """A file that cannot be written must not end the training thread."""

    data, rounds_path = photos(tmp_path / "set", 8), tmp_path / "out/rounds.jsonl"
    options = {"classes": ["a", "b"], "retrain_every": 2, "tables": {"training": {"steps": 5}}}
    with page(data, tmp_path / "out", start=True, **options) as (client, _):
        rounds_path.mkdir()
        for position in range(4):
            answer(client, position, position % 2)
        progress_once(client, lambda p: "the last training failed" in p["training"]["message"])
        assert (
            str(tmp_path) not in client.get("/api/progress").text
        )  # paths of the server are not revealed
        rounds_path.rmdir()
        for position in range(4, 8):
            answer(client, position, position % 2)
        progress_once(
            client, lambda p: p["curve"] and p["curve"][-1]["labels"] == 8 and p["training"]["idle"]
        )


def test_training_waits_for_labels_of_two_classes(tmp_path):
    rows = np.random.default_rng(0).normal(size=(20, 3))
    np.savez(tmp_path / "set.npz", x=rows)
    options = {"classes": ["a", "b"], "retrain_every": 4, "tables": {"model": {"name": "exact"}}}
    with page(tmp_path / "set.npz", tmp_path / "out", start=True, **options) as (client, session):
        progress_once(client, lambda p: p["training"]["round"] == 0)
        for position in range(4):
            answer(client, position, 1)
        until(lambda: not session.service.is_behind)
        waiting = progress_once(client, lambda p: p["training"]["idle"])
        assert (waiting["training"]["round"], waiting["curve"]) == (0, [])
        answer(client, 4, 0)
        trained = progress_once(client, lambda p: p["training"]["round"] == 1)
        assert [row["labels"] for row in trained["curve"]] == [5]


def test_guesses_follow_classes_that_are_added_renamed_and_merged_on_the_page(tmp_path):
    path, names = tmp_path / "set.csv", ("fish", "birds", "dogs", "puppies")
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "llm"])
        rows.writerows([f"about {names[i % 4]} {i}", names[i % 3]] for i in range(24))
    data = {"name": str(path), "guesses": ["llm"], "prior": "class-names"}
    tables = {"data": data, "model": {"name": "exact"}}
    options = {"tables": tables, "classes": ["fish", "birds", "dogs"], "start": True}
    with page(path, tmp_path / "out", **options) as (_, session):
        service, schedule = session.service, session.schedule
        until(lambda: service.page_model is not None and schedule.is_complete())
        assert schedule.has_current_guesses()
        service.add_class("anna", "trees")
        assert not schedule.has_current_guesses()
        service.change_class("anna", "merge", 2, "birds")
        service.change_class("anna", "rename", 1, "animals")
        until(schedule.has_current_guesses, schedule.describe_status)
        snapshot = service.page_model.snapshot
        source = replace(schedule.campaign.data, classes=("fish", "animals", "trees"))
    assert snapshot.guesses.shape == (24, 2, 4)
    assert not snapshot.guesses[:, :, 2].any()  # merged into birds
    said = snapshot.guesses[:, 0].argmax(1)
    assert said.tolist() == [min(int(p) % 3, 1) for p in snapshot.points]
    # The same as those of a session that had these classes from the start.
    text = path.read_text().replace("dogs\n", "animals\n").replace("birds\n", "animals\n")
    path.write_text(text)
    prepared = prepare_campaign(replace(schedule.campaign, data=source))
    expected = prepared.guesses.deviations.view(24, 2, 3)[snapshot.points]
    assert torch.allclose(snapshot.guesses[:, :, [0, 1, 3]].double(), expected.double(), atol=1e-5)
