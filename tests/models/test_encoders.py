"""Encoders by name, on tiny models with random weights that the libraries themselves saved."""

import hashlib
import json
import shutil
import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from PIL import Image

from labelahead.errors import InputError, MissingExtra
from labelahead.models.encoders import (
    AUDIO,
    IMAGE,
    TEXT,
    load_encoder,
    looks_like_encoder,
    parse_encoder_name,
    resolve_encoder,
)
from tests.support.tiny_encoders import save_tiny_encoders

transformers = pytest.importorskip("transformers")
SENTENCES = ["the cat", "a dog sat", "the dog sat a cat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_encoders(tmp_path_factory.mktemp("encoders"))


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (3, 40, 50, 3), dtype=torch.uint8, generator=generator)
    return [Image.fromarray(one.numpy()) for one in pixels]


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


def test_text_encoder_truncates_long_texts(folder):
    encoder = load_encoder(str(folder / "bert"), TEXT)
    assert torch.isfinite(encoder.encode(["cat " * 500])).all()


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


def test_audio_features_do_not_depend_on_the_batch(folder):
    encoder = load_encoder(str(folder / "wav2vec2"), AUDIO)
    generator = torch.Generator().manual_seed(0)
    waves = [(torch.randn(n, generator=generator), 16_000) for n in (4000, 9000, 4000)]
    alone = torch.cat([encoder.encode([wave]) for wave in waves])
    assert torch.allclose(encoder.encode(waves), alone, atol=1e-5)
    slow = (torch.sin(torch.arange(8000) / 40), 8000)
    fast = (torch.sin(torch.arange(16_000) / 80), 16_000)
    near = encoder.encode([slow, fast])
    assert torch.cosine_similarity(near[0], near[1], dim=0) > 0.99


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


def test_long_sounds_are_encoded_in_smaller_batches(folder, monkeypatch):
    encoder = load_encoder(str(folder / "wav2vec2"), AUDIO)
    waves = [(torch.sin(torch.arange(4000) * (i + 1) / 99), 16_000) for i in range(5)]
    together = encoder.encode(waves)
    counts = []
    encode = encoder.backend.encode

    def count_and_encode(given):
        counts.append(len(given["input_values"]))
        return encode(given)

    monkeypatch.setattr(encoder.backend, "encode", count_and_encode)
    encoder = replace(encoder, max_audio_numbers=8000)
    assert torch.allclose(encoder.encode(waves), together, atol=1e-5)
    assert counts == [2, 2, 1]


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


def test_revision_follows_the_weights(folder, tmp_path):
    before = resolve_encoder(str(folder / "bert"))
    copy = tmp_path / "bert"
    copy.mkdir()
    for path in (folder / "bert").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert resolve_encoder(str(copy)).revision == before.revision
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert resolve_encoder(str(copy)).revision != before.revision


def test_pinned_folder_that_has_moved_is_reported_with_its_path(tmp_path):
    gone = tmp_path / "gone"
    with pytest.raises(InputError, match=r"the encoder was in .*gone, .*--encoder"):
        resolve_encoder(f"hf:{gone}@{'0' * 40}")


def test_loading_prints_no_progress_bar(folder, tmp_path, capfd):
    copy = tmp_path / "bert"
    copy.mkdir()
    for path in (folder / "bert").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    load_encoder(str(copy), TEXT)
    assert "Loading" not in "".join(capfd.readouterr())
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_hub_cache_is_read_without_a_network(folder, tmp_path, monkeypatch):
    """A repository in the layout of the hub's cache, with HF_HUB_OFFLINE=1."""
    import huggingface_hub.constants as constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--somebody--tiny-bert"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for path in (folder / "bert").iterdir():
        (snapshot / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = resolve_encoder("somebody/tiny-bert")
    assert (found.kind, found.revision) == ("hf", commit)
    with pytest.raises(InputError, match="hf download somebody/other --local-dir"):
        resolve_encoder("somebody/other")


COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class Hub(BaseHTTPRequestHandler):
    """The part of huggingface.co that answers for single files, on this machine."""

    repository: Path  # of open/tiny

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_content):
        owner, _, rest = self.path.strip("/").partition("/")
        path = self.repository / rest.rpartition("/")[2].partition("?")[0]
        refusals = {"gated": (403, "GatedRepo"), "none": (404, "RepoNotFound")}
        if "/resolve/nosuch/" in self.path:
            refusals["open"] = (404, "RevisionNotFound")
        code, why = refusals.get(owner, (200, "") if path.is_file() else (404, "EntryNotFound"))
        content = path.read_bytes() if code == 200 else b""
        self.send_response(code)
        self.send_header("X-Repo-Commit", COMMIT)
        if why:
            self.send_header("X-Error-Code", why)
        else:
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """Let huggingface_hub talk to a server of ours."""
    import huggingface_hub.constants as constants

    handler = type("TinyHub", (Hub,), {"repository": folder / "bert"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield
    server.shutdown()


def test_repository_of_a_hub_is_pinned_to_its_commit(hub):
    found = resolve_encoder("open/tiny")
    assert (found.kind, found.revision) == ("hf", COMMIT)
    assert str(found) == f"hf:open/tiny@{COMMIT}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gated/model", "is gated: accept its licence on https://huggingface.co/gated/model"),
        ("none/model", "there is no none/model on huggingface.co, or it is private"),
        ("open/tiny@nosuch", "has no revision 'nosuch'"),
    ],
)
def test_refusals_of_a_hub_are_one_sentence(hub, name, message):
    with pytest.raises(InputError, match=message):
        resolve_encoder(name)


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


def test_features_of_another_width_are_refused(folder):
    encoder = load_encoder(str(folder / "bert"), TEXT)
    wide = replace(encoder, width=encoder.width + 1)
    with pytest.raises(InputError, match=r"returned \(3, 32\) for 3 items; expected \(3, 33\)"):
        wide.encode(SENTENCES)


def test_out_of_memory_halves_the_batch(folder, images):
    """A backend that holds two items, as a small GPU would."""
    encoder = load_encoder(str(folder / "vit"), IMAGE)

    class Small:
        width, pooling, prepare = encoder.width, "cls", staticmethod(encoder.backend.prepare)

        def encode(self, given):
            if len(given["pixel_values"]) > 2:
                raise torch.OutOfMemoryError("no room")
            return encoder.backend.encode(given)

    halved = replace(encoder, backend=Small())
    assert torch.allclose(halved.encode(images), encoder.encode(images), atol=1e-5)


def test_encode_refuses_what_is_not_finite(folder):
    encoder = load_encoder(str(folder / "bert"), TEXT)
    with torch.no_grad():
        next(encoder.backend.model.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="NaN or infinity for 3 of 3 items"):
        encoder.encode(SENTENCES)


def test_names_are_split_into_their_parts():
    name = parse_encoder_name("hf:google/vit@main#mean")
    assert (name.kind, name.name, name.revision, name.pooling) == (
        "hf",
        "google/vit",
        "main",
        "mean",
    )
    assert str(name) == "hf:google/vit@main#mean"
    assert parse_encoder_name("open_clip:ViT-B-32/laion2b").name == "ViT-B-32/laion2b"
    assert [looks_like_encoder(n) for n in ("facebook/dinov2-small", "timm:resnet18", "raw")] == [
        True,
        True,
        False,
    ]
    assert not looks_like_encoder("file.py:encode")


def test_missing_library_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match=r"labelahead\[timm\]"):
        load_encoder("timm:resnet18", IMAGE)


def test_unreachable_hub_is_asked_once_and_reported_in_one_sentence(tmp_path, monkeypatch, capfd):
    import huggingface_hub.constants as constants

    with socket.socket() as free:  # a port that nobody listens on
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(InputError, match="cannot be reached; expected a network"):
        resolve_encoder("somebody/unreachable")
    assert "Retry" not in "".join(capfd.readouterr())
