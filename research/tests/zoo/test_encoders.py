"""Encoders of timm and OpenCLIP by name, on tiny models with random weights.

`make test-zoo` runs these tests in an environment with both libraries; elsewhere they are skipped.
"""

import importlib.util
import json

import numpy as np
import pytest
import torch
from PIL import Image

if importlib.util.find_spec("timm") is None or importlib.util.find_spec("open_clip") is None:
    pytest.skip("timm and OpenCLIP are not installed: make test-zoo", allow_module_level=True)

from labelahead.errors import InputError
from labelahead.models.encoders import IMAGE, TEXT, load_encoder, resolve_encoder
from research.competitors.zoo import with_torchvision_names

with_torchvision_names()
import open_clip  # noqa: E402
import timm  # noqa: E402

POOL = {"cls": "token", "mean": "avg"}
TINY_CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    sizes = [(40, 50, 3), (200, 130, 3), (33, 300, 3)]
    return [Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)) for size in sizes]


@pytest.fixture(scope="module")
def timm_folder(tmp_path_factory):
    """A checkpoint as timm itself writes it for the hub."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("timm")
    timm.models.save_for_hf(timm.create_model("test_vit", pretrained=False), str(folder))
    return folder


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """A folder as OpenCLIP's push_to_hf_hub writes it: configuration and weights."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("open-clip")
    preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    text = {"model_cfg": TINY_CLIP, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(text))
    made = open_clip.CLIP(**TINY_CLIP)
    torch.save(made.state_dict(), folder / "open_clip_pytorch_model.bin")
    return folder


def test_timm_folder_gives_the_features_of_timm(timm_folder, images):
    name = f"timm:{timm_folder}"
    encoder = load_encoder(name, IMAGE)
    model = timm.create_model(f"local-dir:{timm_folder}", pretrained=True, num_classes=0).eval()
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config, is_training=False)
    with torch.inference_mode():
        expected = model(torch.stack([transform(image) for image in images]))
    features = encoder.encode(images)
    assert encoder.width == features.shape[1] == expected.shape[1]
    assert torch.allclose(features, expected, atol=1e-5)
    assert encoder.name.kind == resolve_encoder(str(timm_folder)).kind == "timm"


def test_timm_pools_as_its_name_says(timm_folder, images):
    features = {p: load_encoder(f"timm:{timm_folder}#{p}", IMAGE).encode(images[:1]) for p in POOL}
    for pooling, called in POOL.items():
        spelt = f"local-dir:{timm_folder}"
        model = timm.create_model(spelt, pretrained=True, num_classes=0, global_pool=called).eval()
        config = timm.data.resolve_model_data_config(model)
        pixels = timm.data.create_transform(**config, is_training=False)(images[0])
        with torch.inference_mode():
            assert torch.allclose(features[pooling], model(pixels[None]), atol=1e-5)
    assert not torch.allclose(*features.values(), atol=1e-3)


def test_width_of_a_timm_network_with_a_layer_before_its_classifier(tmp_path, images):
    made = timm.create_model("mobilenetv3_small_050", pretrained=False)
    timm.models.save_for_hf(made, str(tmp_path))
    encoder = load_encoder(f"timm:{tmp_path}", IMAGE)
    assert encoder.encode(images[:2]).shape == (2, encoder.width)
    assert encoder.width == made.head_hidden_size != made.num_features


def test_open_clip_folder_gives_the_features_of_both_towers(clip_folder, images):
    seen, read = (load_encoder(f"open_clip:{clip_folder}", kind) for kind in (IMAGE, TEXT))
    model, transform = open_clip.create_model_from_pretrained(f"local-dir:{clip_folder}")
    texts = ["a cat", "the dog sat down"]
    with torch.inference_mode():
        pictures = model.eval().encode_image(torch.stack([transform(image) for image in images]))
        sentences = model.encode_text(open_clip.get_tokenizer(f"local-dir:{clip_folder}")(texts))
    assert torch.allclose(seen.encode(images), pictures, atol=1e-5)
    assert torch.allclose(read.encode(texts), sentences, atol=1e-5)
    assert seen.width == read.width == 24
    assert resolve_encoder(str(clip_folder)).kind == "open_clip"


@pytest.mark.parametrize(
    ("name", "modality", "message"),
    [
        ("timm:no_such_network", IMAGE, "timm:no_such_network cannot be loaded"),
        ("timm:test_vit#pooler", IMAGE, "has no pooling 'pooler'; expected one of cls, mean"),
        ("timm:test_vit", TEXT, "encodes images, but these items are texts"),
        ("open_clip:NO-SUCH/weights", IMAGE, "cannot be loaded"),
    ],
)
def test_wrong_name_is_refused_in_one_sentence(name, modality, message):
    with pytest.raises(InputError, match=message) as caught:
        load_encoder(name, modality)
    assert "\n" not in str(caught.value)
