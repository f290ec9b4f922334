"""HEIC photographs: read like other images, and refused by name if the decoder is missing."""

import io
import sys
import zipfile

import numpy as np
import pillow_heif
import pytest
import torch
from PIL import Image

import labelahead as la
from labelahead.data import load
from labelahead.errors import MissingExtra
from labelahead.learner.config import parse_campaign
from labelahead.learner.labelling_query import query_items
from tests.support.web_sessions import page

LEVELS = {"dark": 40, "light": 210}


def write_heic(path, image, orientation=None):
    """A HEIC file as pillow-heif writes it, without registering its opener."""
    exif = Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    pillow_heif.from_pillow(image).save(path, quality=95, exif=exif.tobytes())
    return path


def write_photographs(folder, n=12, suffix=".heic", classes=True):
    rng = np.random.default_rng(0)
    for i in range(n):
        name = list(LEVELS)[i % 2]
        pixels = (LEVELS[name] + rng.integers(-20, 20, (64, 64, 3))).astype(np.uint8)
        inside = folder / name if classes else folder
        write_heic(inside / f"{i:02d}{suffix}", Image.fromarray(pixels))
    return folder


@pytest.mark.parametrize("suffix", [".heic", ".HEIC", ".heif"])
def test_heic_folder_equals_jpeg_folder(tmp_path, suffix):
    data, answers = load(write_photographs(tmp_path / "photos", suffix=suffix), size=16)
    assert len(data) == 12
    assert data.classes == ("dark", "light")
    assert data.inputs.shape == (12, 3, 16, 16)
    means = data.images.batch(torch.arange(12), 16).float().mean((1, 2, 3))
    assert ((means > 125).long() == answers.take(torch.arange(12))).all()


def test_heic_zip_equals_its_folder(tmp_path):
    folder = write_photographs(tmp_path / "photos")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in folder.rglob("*.heic"):
            archive.write(path, path.relative_to(folder))
    unpacked, packed = load(folder, size=16)[0], load(tmp_path / "photos.zip", size=16)[0]
    assert packed.ids == unpacked.ids
    assert torch.equal(packed.inputs, unpacked.inputs)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_heic_orientation_equals_jpeg_orientation(tmp_path, orientation):
    picture = Image.new("RGB", (64, 64), (0, 0, 0))
    picture.paste((255, 255, 255), (0, 0, 64, 24))  # white above
    write_heic(tmp_path / "heic" / "a.heic", picture, orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "jpeg").mkdir()
    picture.save(tmp_path / "jpeg" / "a.jpg", quality=95, exif=exif)
    shown = [
        load(tmp_path / form, size=64)[0].images.batch(torch.tensor([0]), 64).int()
        for form in ("heic", "jpeg")
    ]
    assert (shown[0] - shown[1]).abs().float().mean() < 3


def test_heic_with_jpg_suffix_is_decoded(tmp_path):
    write_heic(tmp_path / "heic.heic", Image.new("RGB", (32, 32), (200, 20, 20))).rename(
        tmp_path / "a.jpg"
    )
    (red, green, _) = (
        load(tmp_path, size=8)[0].images.batch(torch.tensor([0]), 8)[0].float().mean((1, 2))
    )
    assert red > 150 > 60 > green


def test_page_converts_heic_for_browsers(tmp_path):
    write_photographs(tmp_path / "photos", classes=False)
    with page(tmp_path / "photos", tmp_path / "out", classes=["dark", "light"]) as (client, _):
        reply = client.get("/items/0")
    assert reply.headers["content-type"] in ("image/png", "image/jpeg")
    assert Image.open(io.BytesIO(reply.content)).size == (64, 64)


def test_heic_can_be_queried_and_predicted(tmp_path):
    folder = write_photographs(tmp_path / "photos")
    write_photographs(folder / "unlabelled", n=4, classes=False)
    tables = {
        "data": {"name": str(folder), "size": 8, "embedding": "raw"},
        "model": {"name": "exact"},
        "threads": 1,
    }
    asked, _ = query_items(parse_campaign(tables), 2)
    assert all(question.id.startswith("unlabelled/") for question in asked)
    budget = {"initial": 4, "labels": 6, "retrain_every": 2}
    la.run(tables | {"budget": budget}, out=tmp_path / "run", forecast=False)
    said = la.load_model(tmp_path / "run").predict(folder / "unlabelled")
    assert said.labels == ["dark", "light"] * 2
    assert not said.failed


def test_missing_heif_decoder_names_extra_and_files(tmp_path, monkeypatch):
    folder = write_photographs(tmp_path / "photos", n=7, classes=False)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(
        MissingExtra, match=r"7 HEIC photographs \(00\.heic, .* and 2 more\).*labelahead\[photos\]"
    ):
        load(folder)
