"""Guesses from columns and files."""

import csv

import numpy as np
import pytest
import torch

from labelahead import Source
from labelahead.data import load_source
from labelahead.data.dataset import Guesses
from labelahead.data.guesses import (
    encode_class_guesses,
    find_guesses,
    parse_guesses,
    read_guesses_by_id,
    stack_deviations,
)
from labelahead.errors import InputError
from labelahead.learner.guessers import write_guesses

ROWS = [
    ("a", "1.5", "cat", "cat", ""),
    ("b", "0.5", "dog", "dog", "0.9"),
    ("c", "2.5", "cat", "", "0.2"),
    ("d", "0.1", "dog", "Cat", "0.4"),
]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "pets.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "weight", "label", "llm", "old:cat", "old:dog"])
        for item, weight, label, guess, p in ROWS:
            writer.writerow([item, weight, label, guess, p, p and f"{1 - float(p):.2f}"])
    return path


def test_columns_of_guesses_are_neither_features_nor_displayed(table):
    data, _ = load_source(Source(str(table), guesses=("llm", "old"), test_fraction=0), 0)
    assert data.shape == (1,)
    assert list(data.rows.columns) == ["id", "weight"]
    assert list(data.guesses) == ["llm", "old"]
    assert data.guesses["llm"].probabilities.argmax(1)[[0, 1, 3]].tolist() == [0, 1, 0]
    assert data.guesses["llm"].probabilities[2].tolist() == [0, 0]
    assert data.guesses["old"].probabilities[0].tolist() == [0, 0]
    assert data.guesses["old"].probabilities[1].tolist() == pytest.approx([0.9, 0.1])


def test_selected_items_keep_their_guesses(table):
    data, _ = load_source(Source(str(table), guesses=("llm",), test_fraction=0), 0)
    some = data.select(torch.tensor([3, 1]))
    assert some.guesses["llm"].probabilities.argmax(1).tolist() == [0, 1]


def test_file_of_guesses_is_matched_by_id(table, tmp_path):
    file = tmp_path / "said.csv"
    file.write_text("id,guess\nd,dog\nb,cat\nunknown,cat\n")
    source = Source(str(table), guesses=(str(file),), without=("llm",), test_fraction=0)
    data, _ = load_source(source, 0)
    p = data.guesses[str(file)].probabilities
    assert (p.sum(1) > 0).tolist() == [False, True, False, True]
    assert p.argmax(1)[[1, 3]].tolist() == [0, 1]
    assert "said.csv: 1 id matches no item (unknown): ignored" in data.notes
    file.write_text("id,guess\nd,dog\n" + "".join(f"x{i},cat\n" for i in range(7)))
    data, _ = load_source(source, 0)
    assert "said.csv: 7 ids match no item (x0, x1, x2, x3, x4, ...): ignored" in data.notes


def test_file_of_probabilities_as_predict_writes_it_is_read(table, tmp_path):
    file = tmp_path / "predictions.csv"
    lines = [f"{item},cat,0.7,0.7,0.3" for item, *_ in ROWS]
    head = "id,prediction,probability,probability:cat,probability:dog"
    file.write_text("\n".join([head, *lines]))
    source = Source(str(table), guesses=(str(file),), test_fraction=0)
    p = load_source(source, 0)[0].guesses[str(file)].probabilities
    assert p[0].tolist() == pytest.approx([0.7, 0.3])


def test_array_of_guesses_is_matched_by_order(table, tmp_path):
    np.save(tmp_path / "p.npy", np.array([[0.5, 0.5], [1, 0], [0, 0], [0.25, 0.75]]))
    source = Source(str(table), guesses=(str(tmp_path / "p.npy"),), test_fraction=0)
    p = next(iter(load_source(source, 0)[0].guesses.values())).probabilities
    assert p.tolist() == [[0.5, 0.5], [1, 0], [0, 0], [0.25, 0.75]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("id,guess\na,bird\n", "guesses 1 class that the project does not have \\(bird\\)"),
        ("id,colour\na,red\n", "expected guesses in one called guess, prediction"),
        ("id,guess\nx,cat\n", "none of the ids"),
        ("guess\ncat\n", "1 row without ids, but pets has 4 items"),
        ("id,probability:cat\na,0.2\n", "but not probability:dog"),
        ("id,probability:cat,probability:dog\na,0.2,0.2\n", "sum to 1"),
        ("id,probability:cat,probability:dog\na,70,30\n", "per cent, so divide them by 100"),
        ("id,probability:cat,probability:dog\na,x,0.2\n", "expected a number from 0 to 1"),
        ("id,probability:cat,probability:dog\na,1.5,-0.5\n", "numbers from 0 to 1"),
        ("id,probability:cat,probability:dog\na,,1.2\n", "numbers from 0 to 1"),
        ("id,guess\na,cat\nb,dog\na,dog\n", "'a'"),
    ],
)
def test_unusable_file_of_guesses_is_refused(table, tmp_path, content, said):
    file = tmp_path / "said.csv"
    file.write_text(content)
    with pytest.raises(InputError, match=said):
        load_source(Source(str(table), guesses=(str(file),), test_fraction=0), 0)


def test_file_may_lack_a_class_that_was_added_later(tmp_path):
    table = tmp_path / "items.csv"
    table.write_text("id,size\na,1\nb,2\nc,3\nd,4\n")
    file = tmp_path / "said.csv"
    file.write_text("id,probability:cat,probability:dog\na,0.2,0.8\nb,,\nother,1,0\n")
    source = Source(
        str(table), guesses=(str(file),), classes=("cat", "fox", "dog"), test_fraction=0
    )
    data, _ = load_source(source, 0)
    (guesses,) = data.guesses.values()
    order = [guesses.classes.index(name) for name in ("cat", "fox", "dog")]
    assert guesses.probabilities[0, order].tolist() == pytest.approx([0.2, 0, 0.8])
    assert not guesses.probabilities[1:].any()
    assert "said.csv: guesses for 1 of 4 items" in data.notes


def test_files_of_guesses_may_name_files_without_suffix(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in (7, 8):
        (folder / f"{i}.txt").write_text(f"text number {i}")
    file = tmp_path / "said.csv"
    file.write_text("id,guess\n8,dog\n")
    data, _ = load_source(Source(str(folder), guesses=(str(file),), classes=("cat", "dog")), 0)
    found = dict(zip(data.ids, next(iter(data.guesses.values())).probabilities, strict=True))
    assert found["8.txt"].argmax() == 1
    assert not found["7.txt"].any()


def test_fields_that_were_escaped_for_spreadsheets_are_read(tmp_path):
    data = tmp_path / "items.csv"
    data.write_text("id,size\n=1,3\nb,4\n")
    file = write_guesses(
        tmp_path / "said.csv",
        None,
        ["=1", "b"],
        ["-x", "y"],
        torch.tensor([[0.9, 0.1], [0.0, 0.0]]),
    )
    assert "'-x" in file.read_text()
    source = Source(str(data), guesses=(str(file),), classes=("-x", "y"))
    found = next(iter(load_source(source, 0)[0].guesses.values())).probabilities
    assert found[0].tolist() == pytest.approx([0.9, 0.1])


def test_unknown_column_and_missing_file_are_refused(table, tmp_path):
    with pytest.raises(InputError, match="has none of that name; did you mean 'llm'"):
        load_source(Source(str(table), guesses=("lm",), test_fraction=0), 0)
    with pytest.raises(InputError, match="does not exist; expected a file of guesses"):
        load_source(Source(str(table), guesses=(str(tmp_path / "no.csv"),)), 0)


def test_guesses_without_class_names_are_refused(tmp_path):
    file = tmp_path / "texts.csv"
    file.write_text("id,size,llm\na,1,cat\nb,2,dog\n")
    with pytest.raises(InputError, match="classes are not known yet"):
        load_source(Source(str(file), guesses=("llm",)), 0)
    data, _ = load_source(Source(str(file), guesses=("llm",), classes=("dog", "cat")), 0)
    assert data.guesses["llm"].probabilities.argmax(1).tolist() == [1, 0]


def test_parse_guesses_takes_numbers_names_and_probabilities():
    classes = ("cat", "dog")
    assert parse_guesses([0, 1, -1], 3, classes).argmax(1).tolist() == [0, 1, 0]
    assert parse_guesses([0, 1, -1], 3, classes)[2].tolist() == [0, 0]
    assert parse_guesses(torch.tensor([1, -1]), 2, classes).tolist()[1] == [0, 0]
    assert parse_guesses(["dog", None], 2, classes).argmax(1).tolist() == [1, 0]
    assert parse_guesses(np.array([[np.nan, np.nan], [0.3, 0.7]]), 2, classes)[0].sum() == 0


@pytest.mark.parametrize(
    "values", [[0, 1], np.zeros((3, 3)), [[0.5, 0.6]] * 3, [[-0.5, 1.5]] * 3, [0, 1, 7]]
)
def test_parse_guesses_refuses_what_does_not_fit(values):
    with pytest.raises(InputError):
        parse_guesses(values, 3, ("cat", "dog"))


def test_deviations_follow_the_class_names():
    p = encode_class_guesses(["b", "", "a"], ("a", "b"), "test")
    found = stack_deviations([Guesses(("a", "b"), p)], ("B", "c", "a"))
    assert found.shape == (3, 3)
    assert found[:, 1].tolist() == [0, 0, 0]  # the guesser does not know c
    assert found[1].tolist() == [0, 0, 0]
    assert found[0].tolist() == pytest.approx([0.4, 0, -0.4])


def test_read_guesses_by_id_agrees_with_the_whole_table(tmp_path):
    """Twin: all rows at once, of a file that is longer than a block; in any order of the items."""
    count = 10_000
    names = ("ash", "elm")
    rows = [f"n{i},{i % 5 / 4:.2f},{1 - i % 5 / 4:.2f}" for i in range(count)]
    path = tmp_path / "said.csv"
    path.write_text("\n".join(["id,probability:ash,probability:elm", *rows]) + "\n")
    with path.open() as file:
        table = {r["id"]: r for r in csv.DictReader(file)}
    ids = ["n9999", "n3", "unknown", "n8192", "n8191"]
    found = read_guesses_by_id(path, ids, names)
    for name, p in zip(ids, found.tolist(), strict=True):
        row = table.get(name)
        expected = [0.0, 0.0] if row is None else [float(row[f"probability:{c}"]) for c in names]
        assert p == pytest.approx(expected)


def test_find_guesses_reads_one_column_or_one_for_each_class():
    one = find_guesses({"llm": ["elm", None, "ash"], "x": [1, 2, 3]}, "llm", ("ash", "elm"), "t")
    assert one.argmax(1).tolist()[::2] == [1, 0]
    assert one[1].tolist() == [0.0, 0.0]
    columns = {"llm:ash": [0.25], "llm:elm": [0.75]}
    assert find_guesses(columns, "llm", ("ash", "elm"), "t").tolist() == [[0.25, 0.75]]
    assert find_guesses(columns, "other", ("ash", "elm"), "t") is None
