"""Keyboard keys of the classes on the page."""

from hypothesis import given
from hypothesis import strategies as st

from labelahead.server.service import CLASS_KEYS, assign_keys


def test_assign_keys_uses_one_character_classes_as_their_own_key():
    assert assign_keys("0123456789") == list("0123456789")
    assert assign_keys(["a", "cat", "B", "dog"]) == ["a", "1", "b", "2"]


def test_assign_keys_gives_no_key_to_classes_beyond_the_keys():
    assert assign_keys(f"class {i}" for i in range(37)) == [*CLASS_KEYS, None, None]


@given(st.lists(st.text(max_size=2), max_size=50), st.text(max_size=2))
def test_assign_keys_is_unique_and_stable_when_a_class_is_added(names, added_name):
    all_keys = assign_keys(names)
    assigned = [k for k in all_keys if k is not None]
    assert len(set(assigned)) == len(assigned)
    assert set(assigned) <= {"0", *CLASS_KEYS}  # no key of a page command
    assert assign_keys([*names, added_name])[: len(names)] == all_keys
