"""Answers to tasks in every export format, and the same answers after an import."""

import json
import zipfile

import pytest

from labelahead.errors import InputError
from labelahead.server.exchange import export_labels, import_labels
from labelahead.server.fitting import predict_pool
from labelahead.tasks import Number
from tests.support.task_sessions import (
    TASKS,
    answer_queries,
    make_rows,
    send,
    task_page,
    wait_until_fitted,
    write_table,
)
from tests.support.web_sessions import CHANGE

FORMS = {
    "csv": ("csv", ".csv"),
    "jsonl": ("jsonl", ".jsonl"),
    "parquet": ("parquet", ".parquet"),
    "label-studio": ("label-studio", ".json"),
}


def written_answers(session) -> dict[str, dict[str, str]]:
    """Return item -> annotator -> written answer."""
    state, ids = session.service.label_state, session.service.items.ids
    return {
        ids[p]: {a.who: state.name_label(a.label) for a in answers if a.label is not None}
        for p, answers in state.answers.items()
    }


@pytest.mark.parametrize("task", TASKS)
def test_import_of_every_export_gives_the_same_answers(tmp_path, task):
    with task_page(tmp_path, task) as (client, session, rows):
        positions = answer_queries(client, task, rows, 12)
        if task == "multilabel":  # earlier answers say nothing about the new class
            client.post("/api/classes", json={"name": "fox"}, headers=CHANGE)
            send(client, positions[0], ["fox", "cat"], who="ben")
        expected = written_answers(session)
        current = {
            p: session.service.label_state.name_label(c)
            for p, c in session.service.label_state.labels.items()
        }
        for form, (_, suffix) in FORMS.items():
            export_labels(session.service, form, tmp_path / f"labels{suffix}")
        export_labels(session.service, "hf", tmp_path / "hf")
    for name in (*(f"labels{s}" for _, s in FORMS.values()), "hf"):
        with task_page(tmp_path, task, f"again-{name}") as (_, session, _):
            done = import_labels(session.service, tmp_path / name)
            state = session.service.label_state
            found = {p: state.name_label(c) for p, c in state.labels.items()}
            assert found == current, name
            assert (done["unknown"], done["unclear"]) == (0, 0)
            if name.endswith(("jsonl", "json")):  # they have the answers of all annotators
                assert written_answers(session) == expected
            again = import_labels(session.service, tmp_path / name)
            assert again["labels"] == done["labels"]
            assert state.seq == session.service.label_state.seq  # nothing new


@pytest.mark.parametrize("task", TASKS)
def test_predictions_of_unlabelled_items_are_exported(tmp_path, task):
    with task_page(tmp_path, task, start=True) as (client, session, rows):
        answer_queries(client, task, rows, 15)
        wait_until_fitted(client)
        predicted = predict_pool(session.service, session.schedule)
        out = tmp_path / "rest.jsonl"
        export_labels(session.service, "jsonl", out, predicted=predicted, probabilities=True)
        values = dict(zip(predicted.positions.tolist(), predicted.prediction.values(), strict=True))
        ids = {name: p for p, name in enumerate(session.service.items.ids)}
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    rest = [line for line in lines if line["source"] == "prediction"]
    assert (len(lines), len(rest)) == (90, 75)
    for line in rest:
        assert line["prediction"] == values[ids[line["id"]]]
        if task == "number":
            assert line["low"] < line["prediction"] < line["high"]
        else:
            assert 0 < line["probability"] <= 1
            every = [v for k, v in line.items() if k.startswith("probability:")]
            assert len(every) == {"multilabel": 2, "rating": 5}[task]


def test_hugging_face_data_set_has_lists_of_classes_and_numbers(tmp_path):
    datasets = pytest.importorskip("datasets")
    for task in TASKS:
        with task_page(tmp_path, task, task) as (client, session, rows):
            answer_queries(client, task, rows, 5)
            export_labels(session.service, "hf", tmp_path / f"hf-{task}")
        loaded = datasets.load_dataset(
            str(tmp_path / f"hf-{task}"), cache_dir=str(tmp_path / "cache"), split="train"
        )
        feature = loaded.features["label"]
        if task == "number":
            assert feature.dtype == "float64"
        elif task == "rating":
            assert feature.names == ["1", "2", "3", "4", "5"]
        else:
            assert feature.feature.names == ["cat", "dog"]
            assert all(isinstance(row, list) for row in loaded["label"])


@pytest.mark.parametrize(
    ("task", "tag"),
    [
        ("multilabel", '<Choices name="label" toName="text" choice="multiple">'),
        ("number", '<Number name="label" toName="text" min="0" max="20" />'),
        ("rating", '<Rating name="label" toName="text" maxRating="5" />'),
    ],
)
def test_label_studio_configuration_asks_for_the_answers_of_the_task(tmp_path, task, tag):
    data = {"limits": [0, 20]} if task == "number" else {}
    with task_page(tmp_path, task, data=data) as (client, session, _):
        send(client, 0, {"multilabel": ["dog"], "number": 3.5, "rating": "4"}[task])
        config, tasks = tmp_path / "config.xml", tmp_path / "tasks.json"
        export_labels(session.service, "label-studio-config", config)
        export_labels(session.service, "label-studio", tasks)
    assert tag in config.read_text()
    result = json.loads(tasks.read_text())[0]["annotations"][0]["result"][0]
    expected = {
        "multilabel": ("choices", {"choices": ["dog"]}),
        "number": ("number", {"number": 3.5}),
        "rating": ("rating", {"rating": 4}),
    }[task]
    assert (result["type"], result["value"]) == expected


def test_formats_that_cannot_hold_the_answers_are_refused(tmp_path):
    lines = ["id,a,b,x,y", *(f"i{i},{i},{i % 7},," for i in range(20))]
    (tmp_path / "items.csv").write_text("\n".join(lines) + "\n")
    with task_page(tmp_path, "number", data={"label_columns": ["x", "y"]}) as (client, session, _):
        assert session.service.label_state.task.outputs == ("x", "y")
        send(client, 0, [1.5, None])
        for form in ("folders", "label-studio", "label-studio-config"):
            with pytest.raises(InputError, match="expected csv"):
                export_labels(session.service, form, tmp_path / "no")
            assert not (tmp_path / "no").exists()
        for name in ("two.csv", "two.jsonl", "two.parquet"):
            form = name.partition(".")[2]
            export_labels(session.service, form, tmp_path / name)
            reply = client.get(f"/api/export/{form}")
            assert reply.status_code == 200
        zipped = tmp_path / "hf.zip"
        zipped.write_bytes(client.get("/api/export/hf").content)
        assert "README.md" in zipfile.ZipFile(zipped).namelist()
    for name in ("two.csv", "two.jsonl", "two.parquet"):
        with task_page(tmp_path, "number", f"again-{name}", data={"label_columns": ["x", "y"]}) as (
            _,
            session,
            _,
        ):
            import_labels(session.service, tmp_path / name)
            state = session.service.label_state
            assert state.name_label(state.labels[0]) == "1.5;?"


def test_file_with_decimal_commas_units_and_new_classes_is_imported(tmp_path):
    (tmp_path / "n.csv").write_text('id,label\ni0,"3,5 kg"\ni1,"12,25"\nnobody,1\n')
    with task_page(tmp_path, "number", data={"unit": "kg"}) as (_, session, _):
        done = import_labels(session.service, tmp_path / "n.csv")
        assert (done["labels"], done["unknown"]) == (2, 1)
        state = session.service.label_state
        assert isinstance(state.task, Number)
        assert [state.name_label(state.labels[p]) for p in (0, 1)] == ["3.5", "12.25"]
    (tmp_path / "m.csv").write_text("id,label,annotator\ni0,cat|fox,ben\ni1,[],\n")
    with task_page(tmp_path, "multilabel", "m") as (client, session, _):
        before = len(session.service.journal.read_events())
        bad = client.post(
            "/api/import?form=csv", content=b"id,label\ni0,7\ni1,abc\n", headers=CHANGE
        )
        assert bad.status_code == 200  # two new classes
        assert bad.json()["new_classes"] == ["7", "abc"]
        assert len(session.service.journal.read_events()) == before + 4
        done = import_labels(session.service, tmp_path / "m.csv")
        assert done["new_classes"] == ["fox"]
        state = session.service.label_state
        assert {a.who for a in state.answers[0]} == {"import", "ben"}
        assert state.name_label(state.labels[0]) == "cat;fox"


def test_command_line_exports_labels_and_predictions_of_a_session(tmp_path):
    """From the user's file to the file taken away."""
    from tests.support.command_line import invoke

    source = write_table(tmp_path / "items.csv", make_rows(40))
    with task_page(tmp_path, "number") as (client, _, rows):
        answer_queries(client, "number", rows[:40], 10)
    common = ["label", source, "--task", "number", "--out", tmp_path / "out", "--threads", 1]
    result = invoke(*common, "--export", "csv", "--to", tmp_path / "taken.csv", "--rest")
    assert result.exit_code == 0, result.output
    assert "10 labels and 30 predictions" in result.output
    lines = (tmp_path / "taken.csv").read_text().splitlines()
    assert lines[0].startswith("id,a,b,c,d,label,annotator,labelled_at,source,prediction")
    assert len(lines) == 41
    refused = invoke("label", source, "--out", tmp_path / "out", "--classes", "a,b", "--no-browser")
    assert refused.exit_code == 1
    assert "of the task number" in refused.output.replace("\n", " ")
