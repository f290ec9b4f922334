"""Files of classes: names, descriptions and examples."""

import pytest

from labelahead.data.class_files import parse_class_list, read_class_file
from labelahead.errors import InputError


def test_names_between_commas_are_no_file():
    assert parse_class_list('cat, "salt, pepper"').names == ("cat", "salt, pepper")
    assert parse_class_list("cat,notes.txt").names == ("cat", "notes.txt")


def test_text_file_has_one_name_per_line(tmp_path):
    path = tmp_path / "classes.txt"
    path.write_text("\ufeffcat\n\n  salt, pepper \ndog", encoding="utf-8")
    listed = parse_class_list(str(path))
    assert listed.names == ("cat", "salt, pepper", "dog")
    assert not listed.descriptions
    assert not listed.examples


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.csv", 'name,description,examples\n1,"one, or a",x|y\n2,,\nthree,3,\n'),
        ("c.tsv", 'Name\tdescription\texamples\n1\tone, or a\t["x", "y"]\n2\t\t\nthree\t3\t\n'),
        (
            "c.jsonl",
            '{"name": 1, "description": "one, or a", "examples": ["x", "y"]}\n'
            '{"name": 2, "description": null, "examples": null}\n'
            '{"name": "three", "description": 3, "examples": null}\n',
        ),
    ],
)
def test_table_gives_descriptions_and_examples(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    listed = parse_class_list(str(path))
    assert listed.names == ("1", "2", "three")
    assert listed.descriptions == {"1": "one, or a", "three": "3"}
    assert listed.examples == {"1": ("x", "y")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class\ncat\n", "expected `name`"),
        ("name,descripton\ncat,x\n", "did you mean 'description'"),
        ("name\ncat\nCat\n", "expected every class once"),
        ("name,description\n,nothing\n", "is empty"),
    ],
)
def test_table_that_is_no_list_of_classes_is_refused(tmp_path, text, message):
    path = tmp_path / "classes.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_class_file(path)


def test_missing_and_empty_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="which does not exist"):
        parse_class_list(str(tmp_path / "classes.txt"))
    (tmp_path / "classes.txt").write_text("\n")
    with pytest.raises(InputError, match="names no class"):
        read_class_file(tmp_path / "classes.txt")
