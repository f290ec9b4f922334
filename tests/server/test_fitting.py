"""Models fitted on all labels of a session."""

import csv
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import labelahead as la
from labelahead.data import load
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.labelling_query import query_items
from labelahead.outofcore import embed
from labelahead.server.exchange import export_labels
from labelahead.server.fitting import (
    CurrentModel,
    build_exported_model,
    fit_labels,
    predict_pool,
    reject_large_pool,
)
from labelahead.server.session import SessionOptions, export_session, open_session
from tests.support.large_pools import Inline, clouds, parquet_pool
from tests.support.web_sessions import CHANGE, labelled_page, page, photos


def test_fit_labels_equals_a_learner_on_the_same_labels(tmp_path):
    with labelled_page(tmp_path) as (_, session, source, _):
        made = fit_labels(session.service, session.schedule)
        predicted = predict_pool(session.service, session.schedule)
        assert made.labels == {i: i % 2 for i in range(10)}
        assert made.points.tolist() == list(range(20))
        assert bool(made.votes.all())
        data, _ = load(source, size=16)
        learner = la.Learner(la.exact(data.inputs, 2), data.inputs, "resolve")
        learner.teach(range(10), torch.arange(10) % 2)
        learner.train()
        outputs = made.fitted.outputs(torch.arange(20))
        assert torch.equal(outputs.argmax(1), learner.predict().argmax(1))
        assert predicted.positions.tolist() == list(range(20))
        assert predicted.classes == (0, 1)
        assert {p: c for p, (c, _) in predicted.pick_best().items()} == {
            i: i % 2 for i in range(20)
        }


def test_two_people_give_the_same_predictions_on_the_page_in_query_and_in_python(tmp_path):
    with labelled_page(tmp_path) as (client, session, _, _):  # items 0 to 9 by `me`

        def answer(position, kind, label, who):
            body = {"position": position, "kind": kind, "label": label}
            headers = {**CHANGE, "Cookie": f"la_who={who}"}
            assert client.post("/api/answers", json=body, headers=headers).status_code == 200

        def compare_page_with_query(name):
            on_page = predict_pool(session.service, session.schedule)
            export_labels(session.service, "jsonl", tmp_path / name)
            items, prepared = query_items(session.schedule.campaign, 6, labels=tmp_path / name)
            assert {item.position for item in items} == set(range(14, 20))
            found = dict(zip(on_page.positions.tolist(), on_page.probabilities, strict=True))
            for item in items:
                assert item.probability == pytest.approx(
                    float(found[item.position].max()), abs=2e-6
                )
            assert any("estimated accuracy of their source: ben" in n for n in prepared.notes)
            return items, prepared.inputs

        said = {p: (p // 3) % 2 for p in range(4, 14)}
        for position, label in said.items():
            answer(position, "label", label, "ben")
        items, inputs = compare_page_with_query("disputed.jsonl")
        learner = la.Learner(la.exact(inputs, 2), inputs, "resolve")
        learner.teach(range(10), torch.arange(10) % 2, source="me")
        learner.teach(list(said), list(said.values()), source="ben")
        for item in items:
            likely = float(learner.predict([item.position]).max())
            assert item.probability == pytest.approx(likely, abs=2e-6)
        answer(6, "settle", 0, "cy")
        settled, _ = compare_page_with_query("settled.jsonl")
        assert [item.probability for item in settled] != [item.probability for item in items]


def test_exported_model_predicts_as_predict_pool_does(tmp_path):
    with labelled_page(tmp_path) as (_, session, source, _):
        model = build_exported_model(session.service, session.schedule)
        predicted = predict_pool(session.service, session.schedule)
        found = model.predict(source).probabilities.double()
        assert torch.allclose(found, predicted.probabilities.double(), atol=1e-4)
        assert model.about["labels"] == {"light": 5, "dark": 5}


def test_current_model_is_unknown_before_the_first_snapshot(tmp_path):
    with labelled_page(tmp_path) as (_, session, _, _):
        assert session.service.page_model is None
        assert CurrentModel(session.service).predict_item(15) is None


def test_fit_labels_of_one_class_is_refused(tmp_path):
    source = photos(tmp_path / "set", 4)
    with page(source, tmp_path / "out", classes=["a", "b"]) as (_, session):
        for fit in (fit_labels, predict_pool, build_exported_model):
            with pytest.raises(InputError, match="0 labels exist, of 0 classes; expected labels"):
                fit(session.service, session.schedule)


def test_reject_large_pool_refuses_stores_only(tmp_path):
    x, _ = clouds(20)
    parquet_pool(tmp_path / "pool", x)
    embed(tmp_path / "pool", tmp_path / "store", executor=Inline())
    with pytest.raises(InputError, match=r"is an out-of-core pool.*labelahead pool predict"):
        reject_large_pool(parse_campaign({"data": {"name": str(tmp_path / "store")}}))
    reject_large_pool(parse_campaign({"data": {"name": "digits"}}))


CLASSES = ("low", "mid", "high")


def write_guesses(path, names):
    """Write numbers with the guesses of somebody who is mostly right, with these class names."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(45, 4))
    y = np.digitize(x[:, 0], (-0.4, 0.4))
    said = np.where(rng.random(45) < 0.85, y, (y + 1) % 3)
    path.parent.mkdir()
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*"abcd", "llm"])
        rows.writerows(
            [*(f"{v:.3f}" for v in row), names[g]] for row, g in zip(x, said, strict=True)
        )
    return path, y


@contextmanager
def open_table(table, out, classes, guesses=("llm",)):
    source = la.Source(str(table), guesses=guesses, without=() if guesses else ("llm",))
    campaign = la.Campaign(data=source, threads=1)
    with open_session(campaign, out, SessionOptions(classes=classes)) as session:
        yield session


def export_rest(session, path):
    """Export labels and predictions as a user does, and return the rows."""
    export_session(session, "csv", path, rest=True, probabilities=True)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_guesses_of_former_names_count_for_the_renamed_and_merged_class(tmp_path):
    table, y = write_guesses(tmp_path / "old" / "set.csv", CLASSES)
    labels = [(p, CLASSES[y[p]], "anna") for p in range(12)]
    with open_table(table, tmp_path / "out", CLASSES) as session:
        session.service.add_labels(labels)
        session.service.change_class("anna", "rename", 2, "large")
        session.service.change_class("anna", "merge", 1, "low")
        renamed = export_rest(session, tmp_path / "renamed.csv")
        exported = build_exported_model(session.service, session.schedule).predict(table)
        fitted = predict_pool(session.service, session.schedule)
    with open_table(table, tmp_path / "out", CLASSES) as session:
        restarted = export_rest(session, tmp_path / "restarted.csv")
    now = ("low", "low", "large")
    rewritten, _ = write_guesses(tmp_path / "new" / "set.csv", now)
    labels = [(p, now[y[p]], "anna") for p in range(12)]
    outcomes = []
    for guesses in (("llm",), ()):
        with open_table(
            rewritten, tmp_path / f"new{len(guesses)}", ("low", "large"), guesses
        ) as new:
            new.service.add_labels(labels)
            outcomes.append(predict_pool(new.service, new.schedule).probabilities)
    expected, without = outcomes
    assert restarted == renamed
    assert {row["label"] or row["prediction"] for row in renamed} == {"low", "large"}
    assert torch.allclose(fitted.probabilities, expected, atol=1e-9)
    assert torch.allclose(exported.probabilities, expected, atol=1e-6)
    assert not torch.allclose(expected, without, atol=0.01)  # the guesses matter
