"""Names of joined embeddings, with and without weights."""

import pytest

from labelahead.data.joined_embeddings import (
    join_embeddings,
    map_joined_embedding,
    split_embedding_weights,
    split_joined_embedding,
    strip_embedding_weights,
)
from labelahead.errors import InputError


@pytest.mark.parametrize(
    ("name", "parts", "weights"),
    [
        ("a", ["a"], [1.0]),
        ("a + b.npy", ["a", "b.npy"], [1.0, 1.0]),
        ("c++", ["c++"], [1.0]),
        ("0.75*a+.25*hf:x/y@z#cls", ["a", "hf:x/y@z#cls"], [1.5, 0.5]),
        ("3 * a+b", ["3 * a", "b"], [1.0, 1.0]),
        ("3*a+b", ["a", "b"], [1.5, 0.5]),
        ("3*a", ["3*a"], [1.0]),
        ("1*a+1*b+2*c", ["a", "b", "c"], [0.75, 0.75, 1.5]),
    ],
)
def test_joined_name_is_split_into_parts_and_weights(name, parts, weights):
    assert split_joined_embedding(name) == parts
    assert split_embedding_weights(name) == pytest.approx(weights)


def test_weights_of_zero_are_refused():
    with pytest.raises(InputError, match="expected weights above 0"):
        split_embedding_weights("0*a+b")


def test_existing_path_is_one_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a+b.npy").touch()
    assert split_joined_embedding("a+b.npy") == ["a+b.npy"]
    assert strip_embedding_weights("a+b.npy") == ["a", "b.npy"]
    assert split_joined_embedding("0.5*a+b.npy") == ["a", "b.npy"]


def test_joining_and_renaming_keep_the_weights():
    assert join_embeddings(["a", "b"], (0.8, 0.2)) == "0.8*a+0.2*b"
    assert map_joined_embedding("0.80*a+.2*b", str.upper) == "0.80*A+.2*B"
    assert map_joined_embedding("a", str.upper) == "A"


def test_stripped_names_do_not_depend_on_files():
    assert strip_embedding_weights("3*hf:a+b") == ["hf:a", "b"]
    assert strip_embedding_weights("3*hf:a") == ["3*hf:a"]
    assert strip_embedding_weights("3*hf:a+") == ["3*hf:a", ""]
