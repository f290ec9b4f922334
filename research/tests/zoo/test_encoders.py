"""Encoders of timm and OpenCLIP by name, on tiny models with random weights.

`make test-zoo` runs these tests in an environment with both libraries; elsewhere they are skipped.
"""

import csv
import importlib.util
import json
import shutil
import tomllib

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

if importlib.util.find_spec("timm") is None or importlib.util.find_spec("open_clip") is None:
    pytest.skip("timm and OpenCLIP are not installed: make test-zoo", allow_module_level=True)

import labelahead as la
from labelahead.cli import app
from labelahead.errors import InputError
from labelahead.models.encoder_names import IMAGE, TEXT, resolve_encoder
from labelahead.models.encoders import load_encoder
from research.competitors.zoo import with_torchvision_names

with_torchvision_names()
import open_clip  # noqa: E402
import timm  # noqa: E402

COMMIT = "0123456789abcdef0123456789abcdef01234567"
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


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """Return a function that puts a folder into a cache of the hub; there is no network."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def add(folder, repository):
        place = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(COMMIT)
        shutil.copytree(folder, place / "snapshots" / COMMIT)
        return place / "snapshots" / COMMIT

    return add


@pytest.mark.parametrize("name", ["somebody/vit", "timm:somebody/vit", "timm:hf-hub:somebody/vit"])
def test_timm_repository_of_the_hub_is_pinned_and_read_from_the_cache(
    name, timm_folder, hub_cache, images
):
    hub_cache(timm_folder, "somebody/vit")
    encoder = load_encoder(name, IMAGE)
    assert str(encoder.name) == f"timm:hf-hub:somebody/vit@{COMMIT}"
    assert resolve_encoder(str(encoder.name)) == encoder.name
    expected = load_encoder(f"timm:{timm_folder}", IMAGE).encode(images)
    assert torch.equal(encoder.encode(images), expected)


def test_timm_name_is_read_from_the_cache(timm_folder, hub_cache, images):
    hub_cache(timm_folder, "timm/test_vit.r160_in1k")
    encoder = load_encoder("timm:test_vit.r160_in1k", IMAGE)
    assert encoder.name.revision == f"timm-{timm.__version__}"
    expected = load_encoder(f"timm:{timm_folder}", IMAGE).encode(images)
    assert torch.equal(encoder.encode(images), expected)


@pytest.mark.parametrize("name", ["somebody/clip", "open_clip:hf-hub:somebody/clip"])
def test_open_clip_repository_of_the_hub_is_pinned_and_read_from_the_cache(
    name, clip_folder, hub_cache, images
):
    hub_cache(clip_folder, "somebody/clip")
    for modality, items in ((IMAGE, images), (TEXT, ["a cat", "the dog"])):
        encoder = load_encoder(name, modality)
        assert str(encoder.name).startswith(f"open_clip:hf-hub:somebody/clip@{COMMIT}")
        expected = load_encoder(f"open_clip:{clip_folder}", modality).encode(items)
        assert torch.equal(encoder.encode(items), expected)


def test_open_clip_weights_by_tag_have_the_activation_they_were_trained_with(
    clip_folder, hub_cache, images, tmp_path, monkeypatch
):
    """Weights of OpenAI were trained with QuickGELU, which the model's own settings lack."""
    from open_clip import factory, pretrained

    (tmp_path / "tiny-clip.json").write_text(json.dumps(TINY_CLIP))
    monkeypatch.setattr(factory, "_MODEL_CONFIG_PATHS", [*factory._MODEL_CONFIG_PATHS])
    monkeypatch.setattr(factory, "_MODEL_CONFIGS", {**factory._MODEL_CONFIGS})
    open_clip.add_model_config(tmp_path / "tiny-clip.json")
    tags = {"quick": {"hf_hub": "somebody/clip/", "quick_gelu": True}}
    monkeypatch.setitem(pretrained._PRETRAINED, "tiny-clip", tags)
    hub_cache(clip_folder, "somebody/clip")
    encoder = load_encoder("open_clip:tiny-clip/quick", IMAGE)
    made = open_clip.CLIP(**TINY_CLIP, quick_gelu=True).eval()
    made.load_state_dict(torch.load(clip_folder / "open_clip_pytorch_model.bin"))
    with torch.inference_mode():
        expected = made.encode_image(encoder.backend.prepare(images)["pixels"])
    assert torch.allclose(encoder.encode(images), expected, atol=1e-5)


def test_repository_with_both_formats_is_read_by_transformers(clip_folder, tmp_path):
    folder = tmp_path / "both"
    shutil.copytree(clip_folder, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "clip"}))
    assert resolve_encoder(str(folder)).kind == "hf"
    assert resolve_encoder(f"open_clip:{folder}").kind == "open_clip"


def test_encoder_without_weights_is_refused(clip_folder, timm_folder, tmp_path, hub_cache):
    """OpenCLIP itself goes on with random weights."""
    for source, kind in ((clip_folder, "open_clip"), (timm_folder, "timm")):
        empty = tmp_path / kind
        shutil.copytree(source, empty, ignore=shutil.ignore_patterns("*.bin", "*.safetensors"))
        with pytest.raises(InputError, match=f"{kind}:.* cannot be loaded"):
            load_encoder(f"{kind}:{empty}", IMAGE)
        hub_cache(empty, f"somebody/{kind}")
        with pytest.raises(InputError, match=f"somebody/{kind} has none of .*model"):
            load_encoder(f"{kind}:hf-hub:somebody/{kind}", IMAGE)
    with pytest.raises(InputError, match="expected MODEL/WEIGHTS"):
        load_encoder("open_clip:ViT-B-32", IMAGE)


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("timm:test_vit", "timm/test_vit.r160_in1k"),
        ("open_clip:ViT-B-32/laion2b_s34b_b79k", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"),
        ("timm:hf-hub:somebody/nothing", "somebody/nothing"),
    ],
)
def test_without_a_network_one_sentence_says_what_to_do(name, repository, hub_cache, capfd):
    with pytest.raises(InputError, match=f"run `hf download {repository} --local-dir") as caught:
        load_encoder(name, IMAGE)
    assert "\n" not in str(caught.value)
    assert "Retry" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("kind", ["timm", "open_clip"])
def test_photographs_from_folder_to_predictions(
    kind, timm_folder, clip_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("LABELAHEAD_DATA", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for i in range(24):
        place = tmp_path / "photos" / ("dark", "light")[i % 2] / f"{i:02d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = (60 if i % 2 else 190) + rng.integers(-50, 50, (30, 40, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(place)
    folder = {"timm": timm_folder, "open_clip": clip_folder}[kind]

    def invoke(*arguments):
        done = CliRunner().invoke(app, [str(a) for a in arguments])
        assert done.exit_code == 0, done.output
        return done.output

    invoke("run", "--data", tmp_path / "photos", "--embedding", f"{kind}:{folder}", "--initial", 4,
           "--labels", 8, "--strategy", "resolve", "--out", tmp_path / "run")  # fmt: skip
    stored = tomllib.loads((tmp_path / "run/config.toml").read_text())["data"]["embedding"]
    revision = resolve_encoder(f"{kind}:{folder}").revision
    assert stored == f"{kind}:{folder}@{revision}"
    invoke("export-model", tmp_path / "run", "--to", tmp_path / "model", "--onnx")
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert about["encoder"] == {"id": str(folder), "revision": revision, "by": kind}
    assert "The encoder is in it" in (tmp_path / "model" / "README.md").read_text()
    invoke("predict", tmp_path / "model", tmp_path / "photos" / "dark", "--out", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    pictures = [Image.open(tmp_path / "photos" / "dark" / row["id"]) for row in rows]
    features = load_encoder(f"{kind}:{folder}", IMAGE).encode(pictures)
    by_hand = la.load_model(tmp_path / "model").predict_proba(features).amax(1)
    assert [float(row["probability"]) for row in rows] == pytest.approx(by_hand.tolist(), abs=1e-5)
