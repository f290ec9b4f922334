"""The card of an exported model, and the code in it."""

import numpy as np
import pytest
import torch
from PIL import Image

from labelahead.models.sentence_encoder import is_sentence_encoder_available
from labelahead.simulation.final_model import run_model
from tests.learner.test_export import run_campaign, run_onnx, write_table


def test_model_card_names_text_encoder(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    if not is_sentence_encoder_available():
        pytest.skip("without the extra texts")
    monkeypatch.setenv("LABELAHEAD_DATA", str(tmp_path / "cache"))
    source = write_table(tmp_path / "animals.csv")
    run_campaign(tmp_path, data={"name": str(source), "embedding": "minilm"})
    model = run_model(tmp_path / "run")
    folder = model.save(tmp_path / "out", onnx=True)
    assert "Those of 'said' come from the encoder minilm." in (folder / "README.md").read_text()
    features = torch.randn(7, *model.preprocessor.shape, generator=torch.Generator().manual_seed(1))
    assert np.allclose(run_onnx(folder, features.numpy())[0], model.outputs(features)[0], atol=1e-4)


def write_image_variants(folder):
    """Write images in all supported forms: rotated, transparent, grey, palette, large, small."""
    rng = np.random.default_rng(3)
    folder.mkdir()
    noise = Image.fromarray(rng.integers(0, 255, (31, 50, 3)).astype(np.uint8))
    smooth = noise.resize((900, 640), Image.Resampling.BICUBIC)
    turned = Image.Exif()
    turned[0x0112] = 6
    smooth.save(folder / "large.jpg", quality=90)
    smooth.save(folder / "turned.jpg", exif=turned)
    noise.save(folder / "small.png")
    noise.convert("L").save(folder / "grey.png")
    noise.convert("P").save(folder / "palette.gif", transparency=3)
    Image.fromarray(rng.integers(0, 255, (41, 33, 4)).astype(np.uint8)).save(
        folder / "transparent.png"
    )
    smooth.crop((0, 0, 641, 322)).save(folder / "odd.bmp")
    return folder


@pytest.mark.parametrize(
    ("shape", "white"), [((3, 48, 48), 255), ((3, 7, 7), 255), ((1, 20, 20), 16)]
)
def test_model_card_code_reproduces_image_preprocessing(tmp_path, shape, white):
    """The code of the card, which needs Pillow and numpy only, equals our preprocessing."""
    from labelahead.data.new_items import read_new_items
    from labelahead.data.preprocessing import PICTURE_INPUTS, Preprocessor
    from labelahead.learner.model_card import format_model_card

    preprocessor = Preprocessor(PICTURE_INPUTS, shape, white=white)
    description = {
        "classes": ["a"],
        "labels": {"a": 1},
        "network": {"name": "exact"},
        "accuracy": {},
        "labelahead": "0",
    }
    description |= {
        "made": "now",
        "data": {"name": "set", "items": 1},
        "threshold": None,
        "reading": preprocessor.to_dict()[0],
    }
    text = format_model_card(description)
    assert f"Resize the square to {shape[1]} x {shape[1]}, bilinear" in text
    assert "nothing is stretched or padded" in text
    steps = {}
    exec(text.split("```python\n")[1].split("```")[0], steps)
    folder = write_image_variants(tmp_path / "files")
    for fresh in read_new_items(preprocessor, folder):
        assert len(fresh.ids) == 7
        assert not fresh.failed
        for name, ours in zip(fresh.ids, fresh.values, strict=True):
            item = steps["read_item"](folder / name)
            assert item.dtype == np.uint8
            assert item.shape == shape
            assert np.array_equal(item, ours.numpy()), name
