"""Encoders by name, on tiny models with random weights that the libraries themselves saved."""

import json
import shutil

import pytest
import torch

from labelahead.errors import InputError, MissingExtra
from labelahead.models.encoder_names import AUDIO, IMAGE, TEXT, resolve_encoder
from labelahead.models.encoders import load_encoder

transformers = pytest.importorskip("transformers")
SENTENCES = ["the cat", "a dog sat", "the dog sat a cat"]


def naive_tokens(folder, items, processor):
    """Last hidden states of one item at a time, by the library's own classes."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        return [model(**processor(item)) for item in items]


@pytest.mark.parametrize("name", ["vit", "dinov2"])
def test_image_encoder_equals_the_librarys_class_token(folder, images, name):
    encoder = load_encoder(str(folder / name), IMAGE)
    processor = transformers.AutoImageProcessor.from_pretrained(folder / name)
    outputs = naive_tokens(folder / name, images, lambda x: processor(x, return_tensors="pt"))
    expected = torch.cat([out.last_hidden_state[:, 0] for out in outputs])
    assert torch.allclose(encoder.encode(images), expected, atol=1e-5)
    assert (encoder.width, encoder.name.pooling, encoder.name.kind) == (32, "cls", "hf")


@pytest.mark.parametrize("pooling", ["cls", "mean", "pooler"])
def test_text_encoder_pools_as_its_name_says(folder, pooling):
    encoder = load_encoder(f"{folder / 'bert'}#{pooling}", TEXT)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "bert")
    outputs = naive_tokens(folder / "bert", SENTENCES, lambda x: tokenizer(x, return_tensors="pt"))
    expected = {
        "cls": [out.last_hidden_state[:, 0] for out in outputs],
        "mean": [out.last_hidden_state.mean(1) for out in outputs],
        "pooler": [out.pooler_output for out in outputs],
    }[pooling]
    assert torch.allclose(encoder.encode(SENTENCES), torch.cat(expected), atol=1e-5)


def test_two_towers_share_one_space(folder, images):
    seen, read = (load_encoder(str(folder / "clip"), kind) for kind in (IMAGE, TEXT))
    model = transformers.CLIPModel.from_pretrained(folder / "clip").eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder / "clip")
    with torch.inference_mode():
        out = model.get_image_features(**processor(images, return_tensors="pt"))
    expected = out if isinstance(out, torch.Tensor) else out.pooler_output
    assert torch.allclose(seen.encode(images), expected, atol=1e-5)
    assert seen.width == read.width == read.encode(SENTENCES).shape[1] == 24
    with pytest.raises(InputError, match="projection only"):
        load_encoder(f"{folder / 'clip'}#mean", IMAGE)


def test_encoder_of_spectrogram_patches_takes_sounds(folder):
    wave = (torch.sin(torch.arange(8000) / 40), 16_000)
    features = load_encoder(str(folder / "ast"), AUDIO).encode([wave, wave])
    assert features.shape == (2, 32)
    assert torch.equal(features[0], features[1])
    with pytest.raises(InputError, match="encodes sounds, but these items are images"):
        load_encoder(str(folder / "ast"), IMAGE)


def test_whisper_averages_the_frames_of_the_sound_alone(folder):
    wave = torch.randn(16_000, generator=torch.Generator().manual_seed(0))
    found = load_encoder(str(folder / "whisper"), AUDIO).encode([(wave, 16_000)])
    model = transformers.WhisperModel.from_pretrained(folder / "whisper").get_encoder().eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder / "whisper")
    given = extractor(wave.numpy(), sampling_rate=16_000, return_tensors="pt")
    with torch.inference_mode():
        states = model(given["input_features"]).last_hidden_state  # of 30 seconds
    assert states.shape == (1, 1500, 32)
    assert torch.allclose(found, states[:, :50].mean(1), atol=1e-5)  # a second has 50 states


def test_clap_encodes_sounds_and_texts_in_one_space(folder):
    """Longer sounds are cut at the beginning: the library draws a random part."""
    heard, read = (load_encoder(str(folder / "clap"), kind) for kind in (AUDIO, TEXT))
    generator = torch.Generator().manual_seed(0)
    waves = [(torch.randn(n, generator=generator), 48_000) for n in (9000, 3 * 48_000)]
    model = transformers.ClapModel.from_pretrained(folder / "clap").eval()
    extractor = transformers.ClapFeatureExtractor.from_pretrained(folder / "clap")
    found = heard.encode(waves)
    with torch.inference_mode():
        for row, (wave, rate) in zip(found, waves, strict=True):
            given = extractor(wave[: 2 * rate].numpy(), sampling_rate=rate, return_tensors="pt")
            expected = model.get_audio_features(**given).pooler_output[0]
            assert torch.allclose(row, expected, atol=1e-5)
    assert heard.width == read.width == read.encode(SENTENCES).shape[1] == 24
    with pytest.raises(InputError, match="encodes sounds and texts, but these items are images"):
        load_encoder(str(folder / "clap"), IMAGE)


def test_sentence_transformers_folder_is_read_by_its_library(folder, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    words = modules.Transformer(str(folder / "bert"))
    steps = [words, modules.Pooling(32, "mean"), modules.Normalize()]
    made = library.SentenceTransformer(modules=steps)
    made.save(str(tmp_path / "st"))
    encoder = load_encoder(str(tmp_path / "st"), TEXT)
    assert encoder.name.kind == "st"
    features = encoder.encode(SENTENCES)
    assert torch.allclose(features.norm(dim=1), torch.ones(3), atol=1e-5)
    assert torch.allclose(features, torch.from_numpy(made.encode(SENTENCES)), atol=1e-5)


def test_loading_prints_no_progress_bar(folder, tmp_path, capfd):
    copy = tmp_path / "bert"
    copy.mkdir()
    for path in (folder / "bert").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    load_encoder(str(copy), TEXT)
    assert "Loading" not in "".join(capfd.readouterr())
    assert transformers.utils.logging.is_progress_bar_enabled()


@pytest.mark.parametrize(
    ("name", "modality", "message"),
    [
        ("bert", IMAGE, "encodes texts, but these items are images"),
        ("vit", TEXT, "encodes images, but these items are texts"),
        ("wav2vec2", TEXT, "encodes sounds, but these items are texts"),
        ("bert#max", TEXT, "expected one of cls, mean, pooler"),
        ("nowhere", TEXT, "neither a folder with config.json nor an id"),
    ],
)
def test_wrong_encoder_is_refused_in_one_sentence(folder, name, modality, message):
    with pytest.raises(InputError, match=message):
        load_encoder(str(folder / name), modality)


def test_broken_folder_is_refused_in_one_sentence(folder, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{")
    with pytest.raises(InputError, match="download it again"):
        resolve_encoder(str(tmp_path / "a"))
    (tmp_path / "a" / "config.json").write_text(json.dumps({"some": 1}))
    with pytest.raises(InputError, match="expected a prefix"):
        resolve_encoder(str(tmp_path / "a"))
    config = json.loads((folder / "bert" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"tokenizer without a vocabulary|cannot be loaded"):
        load_encoder(str(tmp_path / "a"), TEXT)


def test_tokenizer_without_a_vocabulary_is_refused(folder, tmp_path):
    """The library makes a tokenizer of special tokens alone where its files are missing."""
    for file in ("config.json", "model.safetensors"):
        shutil.copy(folder / "bert" / file, tmp_path / file)
    with pytest.raises(InputError, match=r"tokenizer without a vocabulary|cannot be loaded"):
        load_encoder(str(tmp_path), TEXT)
    cat, dog = load_encoder(str(folder / "bert"), TEXT).encode(["the cat", "the dog"])
    assert not torch.allclose(cat, dog, atol=1e-3)


def test_code_of_a_repository_is_never_run(folder, tmp_path):
    (tmp_path / "own").mkdir()
    config = json.loads((folder / "bert" / "config.json").read_text())
    config["model_type"] = "my-own"
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    marker = tmp_path / "ran"
    (tmp_path / "own" / "own.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with pytest.raises(InputError, match=r"code from its repository|cannot be loaded"):
        load_encoder(str(tmp_path / "own"), TEXT)
    assert not marker.exists()


def test_plain_tuples_are_pooled(folder, monkeypatch):
    expected = load_encoder(str(folder / "bert"), TEXT).encode(SENTENCES)
    config = json.loads((folder / "bert" / "config.json").read_text())
    plain = folder / "tuples"
    plain.mkdir(exist_ok=True)
    for path in (folder / "bert").iterdir():
        (plain / path.name).write_bytes(path.read_bytes())
    (plain / "config.json").write_text(json.dumps(config | {"return_dict": False}))
    encoder = load_encoder(str(plain), TEXT)
    assert torch.allclose(encoder.encode(SENTENCES), expected, atol=1e-5)


def test_truncated_weights_are_refused_in_one_sentence(folder, tmp_path):
    for path in (folder / "bert").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(InputError, match=r"cannot be loaded .* download it again"):
        load_encoder(str(tmp_path), TEXT)


def test_missing_library_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match=r"labelahead\[timm\]"):
        load_encoder("timm:resnet18", IMAGE)


@pytest.fixture
def with_renamed_weights(folder, tmp_path):
    """Return a function that copies an encoder and renames its weights."""
    from safetensors.torch import load_file, save_file

    def copy(name, rename):
        target = tmp_path / name
        shutil.copytree(folder / name, target)
        weights = {rename(key): value for key, value in load_file(target / FILE).items()}
        save_file({k: v for k, v in weights.items() if k}, target / FILE, metadata={"format": "pt"})
        return target

    return copy


FILE = "model.safetensors"


@pytest.mark.parametrize(("name", "modality"), [("bert", TEXT), ("vit", IMAGE)])
def test_encoder_with_the_weights_of_another_model_is_refused(
    name, modality, with_renamed_weights, capfd
):
    """transformers itself goes on with random weights."""
    other = with_renamed_weights(name, lambda key: f"other.{key}")
    with pytest.raises(InputError, match=r"has no weights for \d+ of \d+ .* would be random"):
        load_encoder(str(other), modality)
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def test_pooler_without_weights_is_refused_on_request_only(with_renamed_weights, images, caplog):
    bare = with_renamed_weights("vit", lambda key: "" if "pooler" in key else key)
    assert load_encoder(str(bare), IMAGE).encode(images).shape == (3, 32)
    assert not caplog.records
    with pytest.raises(InputError, match="expected another pooling: #cls or #mean"):
        load_encoder(f"{bare}#pooler", IMAGE)


def test_few_missing_weights_are_reported(with_renamed_weights, caplog):
    bare = with_renamed_weights("bert", lambda key: "" if key.endswith("query.bias") else key)
    load_encoder(str(bare), TEXT)
    assert "has no weights for 2 of" in caplog.text
