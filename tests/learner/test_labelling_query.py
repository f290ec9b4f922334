"""Items to label next, from Python."""

import csv
import io
import json
from dataclasses import replace

import pytest
import torch

import labelahead as la
from labelahead.data import load
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.labelling_query import (
    collect_labels,
    collect_labels_by_source,
    format_query_items,
    query_items,
    with_label_classes,
)


def write_rows(path, labelled=8, n=20):
    rows = [
        f"r{i},{i % 5},{(i * 7) % 11},{'low' if i % 5 < 2 else 'high'}" for i in range(labelled)
    ]
    rows += [f"r{i},{i % 5},{(i * 7) % 11}," for i in range(labelled, n)]
    path.write_text("id,a,b,label\n" + "\n".join(rows) + "\n")
    return path


def make_campaign(path):
    return parse_campaign({"data": {"name": str(path)}, "model": {"name": "exact"}, "threads": 1})


def test_query_items_returns_unlabelled_items_with_predictions(tmp_path):
    stages = []
    items, prepared = query_items(
        make_campaign(write_rows(tmp_path / "t.csv")),
        3,
        progress=lambda what, *_: stages.append(what),
    )
    assert [item.id for item in items] == [prepared.data.ids[item.position] for item in items]
    assert all(item.position >= 8 for item in items)
    assert all(item.prediction in ("low", "high") for item in items)
    assert all(0.5 <= item.probability <= 1 for item in items)
    assert [item.score for item in items] == sorted((i.score for i in items), reverse=True)
    assert items[0].record["a"] == str(items[0].position % 5)
    assert list(dict.fromkeys(stages)) == ["loading", "training", "looking ahead"]


def test_query_items_without_labels_predicts_nothing(tmp_path):
    campaign = make_campaign(write_rows(tmp_path / "t.csv", labelled=0))
    items, prepared = query_items(campaign, 2)
    assert [(item.prediction, item.probability) for item in items] == [(None, None)] * 2
    with pytest.raises(InputError, match="21 items requested, but 20 of 20 are unlabelled"):
        query_items(campaign, 21)
    assert not prepared.answers


def test_query_items_without_labels_predicts_the_guesses(tmp_path):
    rows = [f"r{i},{i % 5},{(i * 7) % 11},{('low', 'high', '')[i % 3]}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["id,a,b,llm", *rows]) + "\n")
    campaign = make_campaign(tmp_path / "t.csv")
    known = replace(campaign.data, guesses=("llm",), classes=("low", "high"))
    items, _ = query_items(replace(campaign, data=known), 6)
    for item in items:
        if item.position % 3 < 2:
            assert item.prediction == ("low", "high")[item.position % 3]
            assert item.probability == pytest.approx(0.9)
        else:
            assert item.probability == 0.5
    plain, _ = query_items(replace(campaign, data=replace(known, guesses=(), without=("llm",))), 6)
    assert [item.id for item in plain] == [item.id for item in items]


def test_query_items_of_one_class_asks_for_the_others(tmp_path):
    labels = tmp_path / "labels.csv"
    labels.write_text("id,label\nr9,low\n")
    campaign = make_campaign(write_rows(tmp_path / "t.csv", labelled=0))
    with pytest.raises(InputError, match="all labels are 'low'; expected at least two classes"):
        query_items(campaign, 1, labels=labels)
    items, _ = query_items(campaign, 1, labels=labels, classes=["low", "high"])
    assert items[0].prediction in ("low", "high")


def test_collect_labels_merges_a_file_with_the_data_and_leaves_out_the_test_part(tmp_path):
    data, answers = load(write_rows(tmp_path / "t.csv"), test_fraction=0.5, id="id")
    held = data.test.tolist()
    assert held
    labels = tmp_path / "labels.csv"
    labels.write_text(f"id,label\nr12,low\n{data.ids[held[0]]},{data.classes[answers(held[0])]}\n")
    given, names, notes = collect_labels(data, answers, labels, ["high", "low", "other"])
    position = {name: i for i, name in enumerate(data.ids)}
    assert names[given[position["r12"]]] == "low"
    assert not set(held) & given.keys()
    assert "other" in names
    assert any("are of test items" in note for note in notes)
    free = next(p for p in given if data.ids[p] != "r12")
    wrong = next(name for name in data.classes if name != data.classes[answers(free)])
    labels.write_text(f"id,label\n{data.ids[free]},{wrong}\n")
    with pytest.raises(InputError, match="expected one label: correct one of them"):
        collect_labels(data, answers, labels, ())


def test_format_query_items_writes_the_same_rows_as_csv_and_json(tmp_path):
    items, _ = query_items(make_campaign(write_rows(tmp_path / "t.csv")), 2)
    rows = list(csv.DictReader(io.StringIO(format_query_items(items, "csv"))))
    assert [row["id"] for row in rows] == [item.id for item in items]
    assert list(rows[0]) == ["id", "a", "b", "position", "score", "prediction", "probability"]
    again = json.loads(format_query_items(items, "json"))
    assert [row["position"] for row in again] == [item.position for item in items]
    assert [row["prediction"] for row in again] == [row["prediction"] for row in rows]


SAID = {"anna": range(12), "ben": range(6, 16)}


def write_disputed(path, column="annotator"):
    """Write labels of rows of `write_rows`: anna is right, ben is wrong about every third row."""
    lines = [f"id,label,{column}"]
    for who, items in SAID.items():
        lines += [f"r{i},{name_class(i, who)},{who}" for i in items]
    path.write_text("\n".join(lines) + "\n")
    return path


def name_class(i, who):
    return "low" if (i % 5 < 2) != (who == "ben" and i % 3 == 0) else "high"


@pytest.mark.parametrize("column", ["annotator", "source"])
def test_query_items_weighs_annotators_as_learner_does(tmp_path, column):
    labels = write_disputed(tmp_path / "labels.csv", column)
    campaign = make_campaign(write_rows(tmp_path / "t.csv", labelled=0))
    items, prepared = query_items(campaign, 4, labels=labels, classes=["low", "high"])
    learner = la.Learner(la.exact(prepared.inputs, 2), prepared.inputs, "resolve")
    number = {"low": 0, "high": 1}
    for who, some in SAID.items():
        learner.teach(some, [number[name_class(i, who)] for i in some], source=who)
    wanted = learner.predict()
    assert {item.position for item in items} == set(range(16, 20))
    for item in items:
        assert item.probability == pytest.approx(float(wanted[item.position].max()), abs=2e-6)
        assert number[item.prediction] == int(wanted[item.position].argmax())
    accuracy = learner.source_accuracy()
    listed = f"anna {accuracy['anna'].accuracy:.0%} of 12, ben {accuracy['ben'].accuracy:.0%} of 10"
    assert any(listed in note for note in prepared.notes)
    assert [item.position for item in items] == list(learner.query(4))


def test_query_items_with_one_annotator_changes_nothing(tmp_path):
    campaign = make_campaign(write_rows(tmp_path / "t.csv", labelled=0))
    plain, named = tmp_path / "plain.csv", tmp_path / "named.csv"
    rows = [(f"r{i}", name_class(i, "anna")) for i in range(10)]
    plain.write_text("id,label\n" + "".join(f"{i},{c}\n" for i, c in rows))
    named.write_text("id,label,annotator\n" + "".join(f"{i},{c},anna\n" for i, c in rows))
    first, _ = query_items(campaign, 5, labels=plain)
    assert query_items(campaign, 5, labels=named)[0] == first


def test_disputed_labels_are_refused_without_a_column_and_by_networks(tmp_path):
    labels = write_disputed(tmp_path / "labels.csv", "remark")
    data = write_rows(tmp_path / "t.csv", labelled=0)
    with pytest.raises(InputError, match=r"expected one label for each item, so remove one$"):
        query_items(make_campaign(data), 2, labels=labels)
    write_disputed(labels)
    network = parse_campaign({"data": {"name": str(data)}, "model": {"name": "mlp"}, "threads": 1})
    with pytest.raises(InputError, match=r"'high' by ben, but 'low' by anna .*exact learner weigh"):
        query_items(network, 2, labels=labels)


def test_collect_labels_by_source_counts_the_data_as_one_more_source(tmp_path):
    data, answers = load(write_rows(tmp_path / "t.csv"), test_fraction=0.0, id="id")
    labels = tmp_path / "labels.csv"
    labels.write_text("id,label,annotator\nr2,low,anna\nr2,low,ben\nr9,low,ben\n")
    found = collect_labels_by_source(data, answers, labels, ())
    assert found.annotations.names == ("", "anna", "ben")
    assert found.classes[found.labels[2]] == "low"  # two against the data
    assert torch.bincount(found.annotations.sources).tolist() == [8, 1, 2]
    labels.write_text("id,label,annotator\nr2,low,\nr9,low,ben\n")
    with pytest.raises(InputError, match="'low' for r2, but the data give 'high'"):
        collect_labels_by_source(data, answers, labels, ())
    labels.write_text("id,label,annotator\nr9,low,ben\nr9,high,ben\n")
    with pytest.raises(InputError, match="'r9' is labelled 'high' by ben, but 'low' by ben"):
        collect_labels_by_source(data, answers, labels, ())


def test_with_label_classes_adds_the_names_of_the_file_for_guesses_only(tmp_path):
    path = write_rows(tmp_path / "t.csv")
    labels = tmp_path / "labels.csv"
    labels.write_text("id,label\nr9,medium\nr10,absent\n")
    source = la.Source(str(path), guesses=("b",), test_fraction=0.0)
    found = with_label_classes(source, labels, 0)
    assert found.classes == ("high", "low", "absent", "medium")
    assert replace(found, classes=()) == source
    named = replace(source, classes=("low", "high"))
    for other, file in ((source, None), (replace(source, guesses=()), labels), (named, labels)):
        assert with_label_classes(other, file, 0) is other
    path = write_rows(tmp_path / "t.csv", labelled=0)
    assert with_label_classes(source, labels, 0).classes == ("absent", "medium")
    labels.write_text("id,label\nr9,medium\n")
    with pytest.raises(InputError, match="all labels are 'medium'; expected at least two classes"):
        with_label_classes(source, labels, 0)
    labels.write_text("id,label\nr9,\n")
    with pytest.raises(InputError, match="the classes are not known yet"):
        query_items(la.Campaign(data=source), 1, labels=labels)
