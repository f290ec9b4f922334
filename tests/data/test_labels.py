"""Labels of a data set, read from label files: classes, annotators, predictions, disagreements."""

import json

import pytest

from labelahead.data import from_arrays
from labelahead.data.labels import read_labels, read_labels_by_source
from labelahead.errors import InputError
from tests.support.label_files import CAT_DOG, make_data, read_as_lists, write_labels


def test_new_classes_are_numbered_in_sorted_order(tmp_path):
    data = make_data(classes=())
    _, codes, classes = read_as_lists(
        write_labels(tmp_path, "index,label\n0,10\n1,9\n2,10\n"), data
    )
    assert classes == ("9", "10")
    assert codes == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("item,label\n", "l.csv"),
        ("item,label\ncat/1.jpg,\ndog/1.jpg,  \n", "l.csv"),
        ("[]", "l.json"),
        ("{}", "l.json"),
        ('[{"item": "cat/1.jpg", "label": null}]', "l.json"),
    ],
)
def test_read_labels_without_labels_returns_empty_tensors(tmp_path, text, name):
    at, codes, _ = read_as_lists(write_labels(tmp_path, text, name))
    assert len(at) == len(codes) == 0


def test_read_labels_skips_and_counts_predictions(tmp_path, caplog):
    text = "item,label,source\ncat/1.jpg,dog,label\ncat/2.jpg,dog,prediction\ndog/1.jpg,cat,Prediction\n"
    assert read_as_lists(write_labels(tmp_path, text)) == ([0], [1], CAT_DOG)
    assert "2 predictions of a model are ignored" in caplog.text


def test_disagreement_is_an_error_until_resolved(tmp_path):
    answers = [
        {"who": "anna", "kind": "label", "label": "cat"},
        {"who": "ben", "kind": "label", "label": "dog"},
    ]
    row = {"item": "cat/1.jpg", "label": "dog", "source": "label"}
    with pytest.raises(
        InputError, match=r"'cat/1.jpg' is labelled 'dog' by ben, but 'cat' by anna at line 1"
    ):
        read_as_lists(write_labels(tmp_path, json.dumps(row | {"answers": answers}), "l.jsonl"))
    resolved = [*answers, {"who": "anna", "kind": "settle", "label": "dog"}]
    path = write_labels(tmp_path, json.dumps(row | {"answers": resolved}), "l.jsonl")
    assert read_as_lists(path) == ([0], [1], CAT_DOG)
    single_answer = row | {"answers": [answers[1], {"who": "cy", "kind": "skip", "label": None}]}
    assert read_as_lists(write_labels(tmp_path, json.dumps(single_answer), "l.jsonl")) == (
        [0],
        [1],
        CAT_DOG,
    )


def test_read_labels_by_source_keeps_the_label_of_every_annotator(tmp_path):
    text = "id,label,source\n2.jpg,cat,anna\n2.jpg,dog,ben\n2.jpg,dog,ben\ncat/1.jpg,dog,\n"
    found = read_labels_by_source(write_labels(tmp_path, text), make_data())
    assert found == (((1, 0, "anna"), (1, 1, "ben"), (0, 1, "")), {}, CAT_DOG)
    # The words of an export and addresses are no annotators.
    text = "id,label,source\n2.jpg,cat,label\n2.jpg,dog,prediction\ncat/1.jpg,dog,http://h/1\n"
    found = read_labels_by_source(write_labels(tmp_path, text), make_data())
    assert found.labels == ((1, 0, ""), (0, 1, ""))
    text = "id,label,source,annotator\n2.jpg,cat,web,anna\n2.jpg,dog,web,ben\n"
    found = read_labels_by_source(write_labels(tmp_path, text), make_data())
    assert found.labels == ((1, 0, "anna"), (1, 1, "ben"))
    answers = [
        {"annotator": "anna", "kind": "label", "label": "cat"},
        {"annotator": "ben", "kind": "settle", "label": "dog"},
    ]
    row = {"item": "cat/1.jpg", "label": "dog", "source": "label", "answers": answers}
    found = read_labels_by_source(write_labels(tmp_path, json.dumps(row), "l.jsonl"), make_data())
    assert found == ((), {0: 1}, CAT_DOG)
    path = write_labels(tmp_path, "item,label,by\n/x/2.jpg,cat,anna\n/y/2.jpg,dog,ben\n")
    with pytest.raises(InputError, match=r"'/y/2.jpg' and '/x/2.jpg' both end in 'cat/2.jpg'"):
        read_labels_by_source(path, make_data())


def test_labels_of_excluded_files_are_skipped(tmp_path, caplog):
    from types import SimpleNamespace

    data = make_data(("a/1.jpg", "b/2.jpg"))
    files = SimpleNamespace(file_names=lambda: ["a/1.jpg", "b/1.jpg", "b/2.jpg", "c/3.jpg"])
    object.__setattr__(data, "images", files)
    assert read_as_lists(
        write_labels(tmp_path, "item,label\na/1.jpg,cat\nc/3.jpg,dog\n3,dog\n"), data
    )[0] == [0]
    assert caplog.text.count("was excluded from the data") == 2
    with pytest.raises(InputError, match=r"2 items have the file name '1.jpg'"):  # ambiguous
        read_as_lists(write_labels(tmp_path, "item,label\n1.jpg,cat\n"), data)


def test_rows_of_no_class_are_left_aside_with_a_note(tmp_path, caplog):
    data, _ = from_arrays([[0.0], [1.0], [2.0]], classes=["no", "yes"])
    (tmp_path / "labels.csv").write_text("item,label\n0,yes\n1,None of these\n")
    positions, numbers, classes = read_labels(tmp_path / "labels.csv", data)
    assert (positions.tolist(), numbers.tolist(), classes) == ([0], [1], ("no", "yes"))
    assert "1 label of 'none of these'" in caplog.text
    named, _ = from_arrays([[0.0], [1.0], [2.0]], classes=["yes", "none of these"])
    (tmp_path / "named.csv").write_text("item,label\n0,yes\n1,none of these\n")
    assert read_labels(tmp_path / "named.csv", named)[1].tolist() == [0, 1]  # a class of the user
