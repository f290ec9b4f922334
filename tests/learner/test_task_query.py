"""Queries on real data whose labels are several classes at once, numbers or ratings."""

import csv

import pytest
import torch

from labelahead.data.loading import load_source
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.labelling_query import format_query_items, query_items
from labelahead.learner.task_query import collect_task_labels, prepare_task_query, select_task_items
from tests.support.task_tables import write_task_table


def write_labels(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "label"), *rows])
    return path


def write_unlabelled(table):
    with table.path.open() as file:
        rows = [row[:-1] for row in csv.reader(file)]
    path = table.path.with_name("unlabelled.csv")
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def make_campaign(source, task, **data):
    return parse_campaign({"data": {"name": str(source), "task": task, **data}, "threads": 1})


def test_labels_of_a_file_and_of_the_data_are_used_together(tmp_path):
    table = write_task_table(tmp_path, "number")
    lines = table.path.read_text().splitlines()
    lines[2:] = [line[: line.rindex(",") + 1] for line in lines[2:]]  # one label is left
    table.path.write_text("\n".join(lines))
    file = write_labels(tmp_path / "labels.csv", [("item5", "61.5 mg"), ("item7", "")])
    campaign = make_campaign(table.path, "number", target="answer", test_fraction=0.0)
    given, task = collect_task_labels(campaign, load_source(campaign.data, 0), file)
    assert {p: task.write(code) for p, code in given.items()} == {
        0: table.answers[0].removesuffix("0 mg").removesuffix(" mg"),
        5: "61.5",
    }
    assert task.unit == "mg"


def test_a_file_that_contradicts_the_data_is_refused(tmp_path):
    table = write_task_table(tmp_path, "rating")
    other = "1" if table.answers[3] != "1" else "2"
    file = write_labels(tmp_path / "labels.csv", [("item3", other)])
    campaign = make_campaign(table.path, "rating", target="answer", test_fraction=0.0)
    with pytest.raises(InputError, match=f"gives '{other}' for item3, but the data give"):
        prepare_task_query(campaign, file)


def test_classes_of_a_label_file_need_not_be_named(tmp_path):
    table = write_task_table(tmp_path, "multilabel")
    file = write_labels(tmp_path / "labels.csv", [("item0", "cat;dog"), ("item1", "[]")])
    campaign = make_campaign(write_unlabelled(table), "multilabel")
    prepared, given = prepare_task_query(campaign, file)
    assert prepared.task.outputs == ("cat", "dog")
    assert sorted(given) == [0, 1]


def test_several_classes_without_any_label_or_name_are_refused(tmp_path):
    table = write_task_table(tmp_path, "multilabel")
    campaign = make_campaign(write_unlabelled(table), "multilabel")
    with pytest.raises(InputError, match="classes are not known; name them with --classes"):
        query_items(campaign, 3)


@pytest.mark.parametrize("task", ["multilabel", "number", "rating"])
def test_without_labels_the_queried_items_cover_the_data(task, tmp_path):
    table = write_task_table(tmp_path, task)
    options = (
        {} if task == "number" else {"classes": "cat,dog" if task == "multilabel" else "1,2,3"}
    )
    campaign = make_campaign(write_unlabelled(table), task, **options)
    items, _ = query_items(campaign, 5)
    assert len({item.id for item in items}) == 5
    text = format_query_items(items, "csv").splitlines()
    assert text[0] == "id,a,b,c,d,position,score,prediction,probability"
    assert text[1].endswith(",,")


def test_select_task_items_depends_on_no_order_of_the_labels(tmp_path):
    table = write_task_table(tmp_path, "number")
    campaign = make_campaign(write_unlabelled(table), "number")
    rows = [(f"item{i}", table.answers[i]) for i in range(20)]
    found = []
    for order in (rows, rows[::-1]):
        file = write_labels(tmp_path / "labels.csv", order)
        prepared, given = prepare_task_query(campaign, file)
        found.append(select_task_items(prepared, given, 4, lambda *a: None))
    assert torch.equal(found[0].query.positions, found[1].query.positions)
    assert found[0].columns == found[1].columns
    assert set(found[0].columns) == {"prediction", "low", "high"}


def test_more_items_than_are_unlabelled_are_refused(tmp_path):
    table = write_task_table(tmp_path, "number")
    campaign = make_campaign(table.path, "number", target="answer")
    with pytest.raises(InputError, match="1 items requested, but 0 of 120 are unlabelled"):
        query_items(campaign, 1)
