"""Folders of sound files."""

import io
import sys
import wave
import zipfile
from itertools import pairwise

import numpy as np
import pytest
import soundfile
import torch

from labelahead.data import load
from labelahead.data.file_tree import UnreadableItemsError
from labelahead.data.folder import arrange_by_ids
from labelahead.data.sounds import ENCODER_SECONDS, MAX_SECONDS, require_sound
from labelahead.errors import InputError, MissingExtra
from tests.support.sounds import make_sound, write_sound, write_sounds
from tests.support.web_sessions import photo


def has_note(data, text):
    return any(text in note for note in data.notes)


def test_class_folders_of_sounds_are_labels(tmp_path):
    folder = write_sounds(tmp_path / "sounds", class_folders=True)
    (folder / "notes.txt").write_text("recorded indoors")
    data, answers = load(folder, test_fraction=0)
    assert data.classes == ("noise", "tone")
    assert [data.classes[answers(i)] for i in range(len(data))] == ["noise"] * 6 + ["tone"] * 6
    assert data.sounds is not None
    assert data.images is None
    assert has_note(data, "1 file is no sound: notes.txt")
    assert data.records.columns["file_name"] == list(data.ids)
    with pytest.raises(InputError, match=r"size is 32, but .* holds no images"):
        load(folder, size=32)
    with pytest.raises(InputError, match="are no numbers; expected an embedding"):
        _ = data.inputs


def test_zip_of_sounds_equals_its_folder(tmp_path):
    folder = write_sounds(tmp_path / "sounds", 4, class_folders=True)
    with zipfile.ZipFile(tmp_path / "sounds.zip", "w") as archive:
        for path in sorted(folder.rglob("*.wav")):
            archive.write(path, path.relative_to(folder))
    (one, labels), (two, zipped) = load(folder), load(tmp_path / "sounds.zip")
    assert one.ids == two.ids
    assert [labels(i) for i in range(4)] == [zipped(i) for i in range(4)]
    assert torch.equal(one.sounds.read_wave(3)[0], two.sounds.read_wave(3)[0])
    assert one.sounds.content_hash() == two.sounds.content_hash()


def test_folder_of_sounds_and_pictures_is_refused(tmp_path):
    write_sounds(tmp_path / "mixed", 2)
    photo(tmp_path / "mixed" / "cover.jpg")
    with pytest.raises(InputError, match=r"1 picture \(cover.jpg\) and 2 sounds .* of one kind"):
        load(tmp_path / "mixed")


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".mp3", ".ogg"])
def test_every_format_is_decoded(tmp_path, suffix):
    path = write_sound(tmp_path / f"a{suffix}", make_sound("tone", seconds=1, rate=44_100), 44_100)
    mono, rate = load(tmp_path)[0].sounds.read_wave(0)
    assert rate == 44_100
    assert mono.dtype == torch.float32
    expected, _ = soundfile.read(path, dtype="float32")
    assert torch.equal(mono, torch.from_numpy(expected))


def test_channels_are_mixed_and_long_sounds_are_cut_for_encoders(tmp_path):
    left, right = make_sound("tone", seconds=1), make_sound("noise", seconds=1)
    write_sound(tmp_path / "s" / "a.wav", np.stack([left, right], 1), subtype="FLOAT")
    write_sound(tmp_path / "s" / "b.wav", np.zeros(500 * (ENCODER_SECONDS + 5)), 500)
    write_sound(tmp_path / "s" / "c.wav", np.full(10, 0.5))
    sounds = load(tmp_path / "s")[0].sounds
    mixed = torch.from_numpy((left + right) / 2).float()
    assert torch.allclose(sounds.read_wave(0)[0], mixed, atol=1e-6)
    assert sounds.read_wave(1)[0].shape == (500 * ENCODER_SECONDS,)
    padded = sounds.read_wave(2)[0]
    assert padded.shape == (1600,)  # a tenth of a second
    assert torch.count_nonzero(padded[10:]) == 0
    assert torch.allclose(padded[:10], torch.tensor(0.5), atol=1e-4)


def test_unreadable_sounds_are_skipped_and_named(tmp_path):
    folder = write_sounds(tmp_path / "sounds", 4)
    whole = (folder / "s00-noise.wav").read_bytes()
    (folder / "empty.wav").write_bytes(b"")
    (folder / "header.wav").write_bytes(whole[:44])
    (folder / "text.mp3").write_text("no sound at all")
    write_sound(folder / "long.flac", np.zeros(100 * (MAX_SECONDS + 60)), 100)
    write_sound(folder / "nan.wav", np.full(2000, np.nan), subtype="FLOAT")
    data, _ = load(folder)
    assert len(data) == 4
    note = next(note for note in data.notes if "cannot be read" in note)
    assert note.startswith("5 files cannot be read")
    for reason in (
        "empty.wav (is empty)",
        "header.wav (holds no samples)",
        "lasts 61 minutes; expected at most 60",
        "nan.wav (holds NaN or infinity",
        "text.mp3 (it is no sound of a kind that can be read)",
    ):
        assert reason in note
    assert len(load(folder, checked=False)[0]) == 9
    for path in folder.glob("s0*"):
        path.unlink()
    with pytest.raises(InputError, match=r"none of the 5 sounds of .* can be read"):
        load(folder)


def test_deleted_sound_stays_an_item_of_a_session(tmp_path):
    folder = write_sounds(tmp_path / "sounds", 4)
    before = load(folder)[0].ids
    (folder / "s01-tone.wav").unlink()
    write_sound(folder / "new.wav", make_sound("tone"))
    data, _ = arrange_by_ids(load(folder, checked=False), before)
    assert data.ids == (*before, "new.wav")
    assert data.sounds.get_file_sizes()[1] is None
    with pytest.raises(UnreadableItemsError, match=r"s01-tone.wav cannot be read") as error:
        data.sounds.read_wave(1)
    assert list(error.value.failed) == [1]
    assert data.select(torch.tensor([4])).sounds.names == ("new.wav",)


def naive_peaks(samples, count):
    """Return the extremes of equal parts, one part after the other."""
    edges = [int(i * len(samples) / count) for i in range(count + 1)]
    parts = [samples[a:b] for a, b in pairwise(edges)]
    return np.array([[part.min(), part.max()] for part in parts])


@pytest.mark.parametrize("count", [1, 7, 100])
def test_peaks_are_the_extremes_of_each_part(tmp_path, count):
    samples = make_sound("noise", seconds=0.3)
    write_sound(tmp_path / "a.wav", samples, subtype="DOUBLE")
    peaks = load(tmp_path)[0].sounds.read_peaks(0, count)
    assert np.allclose(peaks, naive_peaks(samples, count), atol=1e-7)


def test_peaks_of_fewer_samples_than_parts_are_the_samples(tmp_path):
    samples = np.array([0.5, -0.25, 0.125])
    write_sound(tmp_path / "a.wav", samples)
    peaks = load(tmp_path)[0].sounds.read_peaks(0, 100)
    assert np.allclose(peaks, np.stack([samples, samples], 1), atol=1e-4)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_wav_for_the_page_is_valid_and_any_part_of_it_can_be_read(tmp_path, channels):
    samples = np.stack([make_sound("noise", k, rate=8000) for k in range(channels)], 1)
    write_sound(tmp_path / "a.flac", samples, 8000)
    sounds = load(tmp_path)[0].sounds
    size = sounds.get_wav_size(0)
    whole = b"".join(sounds.iter_wav(0, 0, size))
    assert len(whole) == size
    with wave.open(io.BytesIO(whole)) as opened:
        assert opened.getframerate() == 8000
        assert opened.getnframes() == len(samples)
        assert opened.getnchannels() == {1: 1, 2: 2, 3: 1}[channels]
        found = np.frombuffer(opened.readframes(len(samples)), "<i2")
    expected = samples if channels < 3 else samples.mean(1, keepdims=True)
    assert np.abs(found.reshape(len(samples), -1) / 32767 - expected).max() < 1e-3
    for start, stop in ((0, 1), (3, 60), (44, 45), (47, 1001), (size - 3, size)):
        assert b"".join(sounds.iter_wav(0, start, stop)) == whole[start:stop]


def test_missing_library_is_named_with_its_extra(tmp_path, monkeypatch):
    write_sounds(tmp_path / "sounds", 2)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtra, match=r"pip install 'labelahead\[audio\]'"):
        load(tmp_path / "sounds")


def test_require_sound_decodes_the_content(tmp_path):
    path = write_sound(tmp_path / "a.flac", make_sound("tone"))
    content = path.read_bytes()
    require_sound(content)
    for broken in (b"", b"no sound", content[: len(content) // 2]):
        with pytest.raises(InputError):
            require_sound(broken)
