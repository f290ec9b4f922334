"""Which key a class has on the page."""

from hypothesis import given
from hypothesis import strategies as st

from labelahead.server.service import CLASS_KEYS, assign_keys


def test_a_class_of_one_character_is_its_own_key():
    assert assign_keys("0123456789") == list("0123456789")
    assert assign_keys(["a", "cat", "B", "dog"]) == ["a", "1", "b", "2"]


def test_classes_beyond_the_keys_have_none():
    assert assign_keys(f"class {i}" for i in range(37)) == [*CLASS_KEYS, None, None]


@given(st.lists(st.text(max_size=2), max_size=50), st.text(max_size=2))
def test_no_key_twice_and_none_changes_when_a_class_is_added(names, another):
    all_keys = assign_keys(names)
    given_out = [k for k in all_keys if k is not None]
    assert len(set(given_out)) == len(given_out)
    assert set(given_out) <= {"0", *CLASS_KEYS}  # none that a command of the page has
    assert assign_keys([*names, another])[: len(names)] == all_keys
