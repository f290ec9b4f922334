"""What a source is: a public data set, a folder or a file."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from labelahead.data import load
from labelahead.data.loading import get_data_name
from labelahead.errors import InputError
from tests.data.test_folder import make_class_folders


def test_load_refuses_unknown_sources(tmp_path):
    with pytest.raises(InputError, match=r"did you mean 'mnist'.*digits, mnist, fashion-mnist"):
        load("mnits")
    with pytest.raises(InputError, match="no known data set and no existing path"):
        load(tmp_path / "nothing.csv")
    (tmp_path / "a.docx").write_bytes(b"x")
    with pytest.raises(InputError, match=r"not read here; .*\.zip, \.npz, \.csv"):
        load(tmp_path / "a.docx")
    with pytest.raises(InputError, match="no path"):
        load("x" * 5000)
    with pytest.raises(InputError, match="without ~"):
        load("~no-such-user/pictures")
    for nothing in ("", " ", None, 3):
        with pytest.raises(InputError, match="source is"):
            load(nothing)
    with pytest.raises(InputError, match="target is 'y', but digits has no columns"):
        load("digits", target="y")


def test_load_treats_a_path_object_as_a_path(tmp_path, monkeypatch):

    (tmp_path / "digits").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "digits" / "a.png")
    monkeypatch.chdir(tmp_path)
    from pathlib import Path

    assert len(load("digits")[0]) == 1797
    assert len(load("./digits")[0]) == 1
    assert len(load(Path("digits"))[0]) == 1


def test_load_source_follows_the_configuration():
    from labelahead.data import load_source
    from labelahead.learner.config import Source

    source = Source(limit=30, size=6, test_fraction=0.1, download=False)
    data, answers = load_source(source, 3)
    same, _ = load("digits", limit=30, size=6, test_fraction=0.1, download=False, seed=3)
    assert torch.equal(data.inputs, same.inputs)
    assert (data.ids, data.notes) == (same.ids, same.notes)
    assert len(answers) == len(data)


def test_get_data_name_equals_the_name_from_load(tmp_path):
    make_class_folders(tmp_path / "photos.v2")
    (tmp_path / "t.v2.csv").write_text("v,w\n1,2\n3,4\n")
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)))
    shutil.make_archive(str(tmp_path / "zipped"), "zip", tmp_path / "photos.v2")
    for name in ("photos.v2", "t.v2.csv", "a.npz", "zipped.zip"):
        assert get_data_name(str(tmp_path / name)) == load(tmp_path / name)[0].name
    assert get_data_name("Digits") == load("digits")[0].name
