"""Columns with sets of classes, numbers and ratings."""

import numpy as np
import pytest

from labelahead.data.target_columns import (
    read_class_columns,
    read_class_sets,
    read_levels,
    read_number_columns,
    read_numbers,
)
from labelahead.errors import InputError


def row(i):
    return f"row {i}"


def read_sets(values, known=()):
    return read_class_sets(values, row, "the column topics", known)


def numbers_of(values):
    found = read_numbers(values, row, "the column price")
    return [None if value is None else value[0] for value in found.values]


# --- sets of classes


@pytest.mark.parametrize(
    "values",
    [
        [["b", "a"], ["a"], [], None],
        [("b", "a"), ("a",), (), None],
        ["b;a", "a", "[]", ""],
        ["a; b;", " a ", "[ ]", "NA"],
        ["a|b", "a", "[]", None],
        ["a,b", "a", "[]", float("nan")],
        ['["b", "a"]', "['a']", "[]", None],
        [np.array(["b", "a"]), np.array(["a"]), np.array([], dtype="<U1"), None],
        [{"b", "a"}, {"a"}, set(), None],
    ],
)
def test_every_way_to_write_sets_of_classes_gives_the_same_sets(values):
    found = read_sets(values)
    assert found.sets == (("a", "b"), ("a",), (), None)
    assert found.classes == ("a", "b")


def test_first_separator_that_occurs_is_used_for_the_whole_column():
    assert read_sets(["Paris, France;Rome", "Rome"]).classes == ("Paris, France", "Rome")
    found = read_sets(["Paris, France", "Rome"])
    assert found.sets[0] == ("France", "Paris")
    assert found.notes == ("classes are separated by ','",)


def test_known_classes_keep_their_order_and_their_separators():
    found = read_sets(["salt, pepper", "salt, pepper,sugar"], ("sugar", "salt, pepper"))
    assert found.sets[0] == ("salt, pepper",)
    assert read_sets([["a"], ["b", "a"]], ("b", "a")).sets == (("a",), ("b", "a"))


def test_an_entry_of_a_list_is_one_class_even_with_a_separator():
    assert read_sets([["a;b", "c"], ["c"]]).classes == ("a;b", "c")
    assert read_sets([["a;b"], ["c"]]).classes == ("a;b", "c")


def test_none_is_no_class_unless_a_class_is_called_so():
    found = read_sets(["a", "None", "none"])
    assert found.sets == (("a",), (), ())
    assert found.notes == (
        "'none' (2 times) says that no class applies; if it is a class, list all classes with "
        "--classes",
    )
    assert read_sets(["a", "none"], ("a", "None")).sets == (("a",), ("None",))


def test_classes_that_nobody_reviewed_are_marked():
    found = read_sets(["b;?a", ["?b"], "a"])
    assert found.sets == (("?a", "b"), ("?b",), ("a",))
    assert found.classes == ("a", "b")


def test_spellings_of_a_class_are_merged_and_repeated_classes_count_once():
    found = read_sets(["Cat;dog", "cat;cat"])
    assert found.sets == (("Cat", "dog"), ("Cat",))
    assert "'cat' as 'Cat'" in found.notes[0]


def test_numbers_are_class_names():
    assert read_sets([[2, 10], [1.0]]).classes == ("1", "2", "10")


def test_entries_that_are_no_lists_of_classes_are_refused():
    with pytest.raises(InputError, match=r"the column topics: row 1 holds \{'a': 1\}"):
        read_sets(["a", {"a": 1}])


def test_class_columns_are_sets_of_their_names():
    found = read_class_columns(
        {"a": ["1", "0", "", "yes"], "b": [True, 0, None, "no"]}, row, "t.csv"
    )
    assert found.sets == (("a", "b"), (), None, ("a",))
    assert read_class_columns({"a": [1.0, 0.0], "b": [0, 1]}, row, "t").sets == (("a",), ("b",))


def test_blank_class_column_beside_others_is_not_reviewed():
    found = read_class_columns({"a": [1, 0, ""], "b": ["", None, ""]}, row, "t.csv")
    assert found.sets == (("a", "?b"), ("?b",), None)


def test_class_columns_refuse_other_entries():
    with pytest.raises(InputError, match=r"row 1: the column 'b' holds 2; expected 0 or 1"):
        read_class_columns({"a": [1, 0], "b": [1, 2]}, row, "t.csv")


# --- numbers


@pytest.mark.parametrize(
    "values",
    [
        [1250.5, 80, None, -3],
        ["1250.5", "80", "", "-3"],
        ["1250,5", "80", "n/a", "-3"],
        ["1.250,5", "80", "", "-3"],
        ["1,250.5", "80", "", "-3"],
        ["1 250,5", "80", "", "−3"],
        ["1'250.5", "80", None, "-3"],
        ["1250.5 kg", "80kg", "", "-3 kg"],
        ["€ 1250.50", "80", float("nan"), "-3"],
    ],
)
def test_every_way_to_write_numbers_gives_the_same_numbers(values):
    assert numbers_of(values) == [1250.5, 80.0, None, -3.0]


def test_unit_is_read_and_must_be_the_same():
    assert read_numbers(["80 kg", "70"], row, "c").units == ("kg",)
    assert read_numbers(["80 kg/m2", "70 kg/m2"], row, "c").units == ("kg/m2",)
    with pytest.raises(InputError, match=r"two units, 'kg' in row 0 and 'lb' in row 2"):
        read_numbers(["80 kg", "70", "3 lb"], row, "c")


def test_a_comma_that_may_group_digits_is_refused_unless_others_decide():
    with pytest.raises(InputError, match=r"row 0 holds '1,234', and it is unclear"):
        numbers_of(["1,234", "7"])
    assert numbers_of(["1,234", "7,5"]) == [1.234, 7.5]
    assert numbers_of(["1,234", "7.5"]) == [1234.0, 7.5]
    assert numbers_of(["1,234", "2,345,678.25"]) == [1234.0, 2345678.25]
    with pytest.raises(InputError, match="unclear"):
        numbers_of(["1,5", "7.5"])


def test_points_that_group_digits_are_no_decimal_marks():
    assert numbers_of(["1.234.567", "12"]) == [1234567.0, 12.0]


@pytest.mark.parametrize("value", ["twelve", "3-4", "12.5.2024", "5 kg 3 g 4", True, [1.0], "kg"])
def test_other_entries_are_no_numbers(value):
    with pytest.raises(InputError, match="row 1"):
        numbers_of(["1 kg", value])


@pytest.mark.parametrize("value", ["inf", float("inf"), "1e999", "-Infinity"])
def test_infinite_numbers_are_refused(value):
    with pytest.raises(InputError, match=r"row 1 holds .*finite number"):
        numbers_of([1, value])


def test_several_targets_are_read_together():
    found = read_number_columns({"w": ["80 kg", ""], "h": ["1,85", None]}, row, "t.csv")
    assert found.values == ((80.0, 1.85), None)
    assert (found.targets, found.units) == (("w", "h"), ("kg", ""))
    found = read_number_columns({"w": [1.0, None], "h": [None, 2.0]}, row, "t.csv")
    assert found.values == ((1.0, None), (None, 2.0))


# --- ratings


def test_whole_numbers_are_levels_without_gaps():
    found = read_levels(["5", 1, 2.0, ""], row, "c")
    assert found.levels == ("5", "1", "2", None)
    assert found.classes == ("1", "2", "3", "4", "5")
    assert found.notes == ("2 ratings between the lowest and the highest never occur",)


def test_half_steps_and_negative_ratings_are_levels_in_their_order():
    assert read_levels([1.5, 1, -2.5], row, "c").classes == ("-2.5", "1", "1.5")
    assert read_levels([-1, 0, 1], row, "c").classes == ("-1", "0", "1")


def test_named_levels_need_their_order():
    with pytest.raises(InputError, match=r"row 0 holds 'good', and the order .* --classes"):
        read_levels(["good", "bad"], row, "c")
    found = read_levels(["Good", "bad", None], row, "c", ("bad", "fair", "good"))
    assert found.levels == ("good", "bad", None)
    assert found.classes == ("bad", "fair", "good")
    assert read_levels([1.0, "2"], row, "c", ("1", "2", "3")).levels == ("1", "2")
    with pytest.raises(InputError, match=r"row 0 holds 'god', .*did you mean 'good'"):
        read_levels(["god"], row, "c", ("bad", "good"))


def test_too_many_levels_are_numbers():
    with pytest.raises(InputError, match=r"30 different numbers; .* --task number"):
        read_levels([i / 2 for i in range(30)], row, "c")
