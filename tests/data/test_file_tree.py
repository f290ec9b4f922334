"""Files below a folder or in a zip."""

import pytest
from PIL import Image

from labelahead.data import load
from labelahead.data.file_tree import find_files, printable_name
from labelahead.errors import InputError
from tests.support.web_sessions import photo


def write_class_folders(root):
    for k, name in enumerate(("cat", "dog")):
        for i in range(6):
            photo(root / name / f"{i}.png", (40 * i, 90 * k, 7))
    return root


def test_find_files_skips_hidden_files_and_link_loops(tmp_path):
    write_class_folders(tmp_path / "set")
    photo(tmp_path / "set" / ".thumbs" / "a.png")
    photo(tmp_path / "set" / "cat" / "._0.png")
    (tmp_path / "set" / "cat" / "loop").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "dog" / "self").symlink_to("self")
    (tmp_path / "set" / "dog" / "other").symlink_to(tmp_path / "set" / "cat")
    # a dog, although a link in the cat folder is nearer
    photo(tmp_path / "set" / "dog" / "a" / "b" / "x.png")
    (tmp_path / "set" / "cat" / "near").symlink_to(tmp_path / "set" / "dog" / "a" / "b")
    photo(tmp_path / "away" / "1.png")
    # a link to a class folder elsewhere is followed
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "away")
    data, _ = load(tmp_path / "set", size=4)
    assert data.classes == ("cat", "dog", "linked")
    assert len(data) == 14
    assert "dog/a/b/x.png" in data.ids


def test_fingerprint_changes_with_the_files(tmp_path):
    data, _ = load(write_class_folders(tmp_path), size=4)
    before = data.images.compute_fingerprint()
    assert load(tmp_path, size=8)[0].images.compute_fingerprint() == before
    Image.effect_noise((30, 30), 50).save(tmp_path / "cat" / "0.png")
    assert load(tmp_path, size=4)[0].images.compute_fingerprint() != before


def test_files_are_listed_by_kind(tmp_path):
    names = ("a.JPG", "b.txt", "README.txt", "c.WAV", "d/e.mp3", "f.doc")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    files = find_files(tmp_path)
    assert files.names == ("a.JPG",)
    assert files.list_sound_files() == ["c.WAV", "d/e.mp3"]
    assert files.list_text_files() == ["b.txt"]
    sounds = files.keep_only(files.list_sound_files())
    assert sounds.names == ("c.WAV", "d/e.mp3")
    assert sounds.others == ("README.txt", "a.JPG", "b.txt", "f.doc")
    assert sounds.folders == ("d",)


def test_find_files_refuses_what_is_no_archive(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"no zip")
    with pytest.raises(InputError, match=r"a.zip cannot be read .* a folder or a zip archive"):
        find_files(tmp_path / "a.zip")


def test_printable_name_keeps_valid_names_and_escapes_others():
    assert printable_name("caf\u00e9.wav") == "caf\u00e9.wav"
    assert printable_name("caf\udce9.wav") == "caf\\xe9.wav"
