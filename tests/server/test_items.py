"""How items are shown."""

import io
import json
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from labelahead.data import from_arrays, load
from labelahead.errors import InputError
from labelahead.server.items import Items
from tests.support.sounds import write_sound
from tests.support.web_answers import make_reviews
from tests.support.web_sessions import photo


def test_small_images_are_enlarged_without_smoothing():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (2, 6, 8, 3)).astype(np.uint8)
    items = Items(from_arrays(values)[0])
    content, media = items.encode_image(1)
    assert media == "image/png"
    shown = np.asarray(Image.open(io.BytesIO(content)))
    assert shown.shape == (6 * 32, 8 * 32, 3)
    assert np.array_equal(shown[::32, ::32], values[1])
    assert np.array_equal(shown[31::32, 31::32], values[1])
    floats = Items(from_arrays(values.transpose(0, 3, 1, 2).astype(np.float32) / 255)[0])
    assert floats.encode_image(1)[0] == content
    grey = Items(from_arrays(values[:, :, :, 0])[0]).encode_image(0, 20)[0]
    assert np.asarray(Image.open(io.BytesIO(grey))).shape == (12, 16, 3)


def test_encode_image_keeps_the_aspect_ratio_and_never_enlarges_photographs(tmp_path):
    photo(tmp_path / "a.png", size=(3000, 1500))
    photo(tmp_path / "b.png", size=(500, 700))
    items = Items(load(tmp_path)[0])
    content, media = items.encode_image(0)
    assert media == "image/jpeg"
    assert Image.open(io.BytesIO(content)).size == (1024, 512)
    assert Image.open(io.BytesIO(items.encode_image(1)[0])).size == (500, 700)
    assert Image.open(io.BytesIO(items.encode_image(1, 256)[0])).size == (183, 256)
    assert items.encode_image(0) is items.encode_image(0)


def test_table_items_show_their_row_without_the_target(tmp_path):
    (tmp_path / "t.csv").write_text("age,town,label\n30,Bonn,yes\n41,,no\n17,Kiel,\n")
    data, _ = load(tmp_path / "t.csv", test_fraction=0)
    items = Items(data)
    assert items.kind == "row"
    assert items.describe_item(0)["row"] == [
        {"name": "age", "value": "30"},
        {"name": "town", "value": "Bonn"},
    ]
    assert "yes" not in json.dumps([items.describe_item(i) for i in range(3)])
    vectors = Items(from_arrays(np.arange(6.0).reshape(3, 2))[0])
    assert vectors.kind == "vector"
    assert vectors.describe_item(1)["row"][1] == {"name": "1", "value": 3.0}


def test_text_columns_are_shown_as_text_and_embedded(tmp_path):
    rows = make_reviews()
    table = tmp_path / "t.csv"
    lines = [f'"{text}",{i % 5},{kind}' for i, (text, kind) in enumerate(rows)]
    table.write_text("\n".join(["review,stars,label", *lines]))
    data, answers = load(table, test_fraction=0)
    items = Items(data)
    assert items.kind == "text"
    shown = items.describe_item(3)
    assert shown["text"] == rows[3][0]
    assert shown["row"] == [{"name": "stars", "value": "3"}]
    assert any(note.startswith("review: text") for note in data.notes)
    # By cosine similarity, the nearest other text is usually of the same class.
    x = torch.nn.functional.normalize(data.inputs[:, :-1], dim=1)
    nearest = (x @ x.T - 2 * torch.eye(len(x))).argmax(1)
    y = answers.take(torch.arange(len(x)))
    assert float((y[nearest] == y).double().mean()) > 0.8
    with_test_items = load(table, test_fraction=0.2)[0]
    # Test items do not affect the scaling of the features.
    pool_inputs = with_test_items.inputs[
        [i for i in range(60) if i not in set(with_test_items.test.tolist())]
    ][:, :-1]
    assert float(pool_inputs.square().mean()) == pytest.approx(1, rel=1e-4)


def test_sound_is_shown_by_its_waveform_and_its_address(tmp_path):
    samples = np.concatenate([np.zeros(500), np.full(500, 0.5)])
    write_sound(tmp_path / "a.wav", samples, 1000)
    write_sound(tmp_path / "b.wav", np.zeros(1000), 1000)
    items = Items(load(tmp_path)[0])
    assert items.kind == "sound"
    shown = items.describe_item(0)
    assert shown["url"] == f"/items/0?v={items.version}"
    assert shown["sound"] == f"/items/0/sound?v={items.version}"
    picture, media = items.encode_image(0)
    assert media == "image/svg+xml"
    svg = ElementTree.fromstring(picture)
    outline = svg[0].get("d").removeprefix("M").removesuffix(" Z").split(" L")
    points = [tuple(map(float, point.split())) for point in outline]
    upper, lower = points[:1000], points[:999:-1]
    assert {y for _, y in upper[:500]} == {49.5}  # silence is a line one unit thick
    assert {y for _, y in lower[:500]} == {50.5}
    assert {y for _, y in upper[500:]} == {-0.5}  # the loudest sample reaches the top
    assert len(items.encode_image(0, 256)[0]) < len(picture) / 5
    assert b"NaN" not in items.encode_image(1)[0]
    with pytest.raises(InputError, match="item 0 is not a sound"):
        Items(from_arrays(np.zeros((2, 2)))[0]).get_sound_size(0)
