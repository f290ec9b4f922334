"""Inputs of networks: named embeddings, vectors of the data, custom encoders, and combinations."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import labelahead as la
from labelahead.data import from_arrays
from labelahead.data.sounds import SoundFiles
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.encoding import join_columns
from labelahead.learner.preparation import prepare_campaign
from labelahead.models.image_encoder import is_image_encoder_available
from labelahead.models.mel import compute_mel_statistics
from labelahead.models.sentence_encoder import is_sentence_encoder_available
from tests.support.sounds import write_sounds
from tests.support.waiting import PATIENCE
from tests.support.warm_processes import start_python

OWN = """
import torch
from pathlib import Path

def lengths(texts):
    with Path({log!r}).open("a") as file:
        file.write(f"{{len(texts)}}\\n")
    return [[float(len(t)), float(t.count("e"))] for t in texts]

def brightness(pictures):
    return pictures.float().mean((2, 3))

def columns(rows):
    return torch.tensor([[float(r["n"]), 1.0] for r in rows])

def loudness(sounds):
    return torch.stack([torch.stack([w.abs().mean(), w.std()]) for w, rate in sounds])

def wrong(texts):
    return torch.zeros(1, 2)

def bad(texts):
    return torch.full((len(texts), 2), float("nan"))

number = 3
"""


@pytest.fixture(autouse=True)
def temporary_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELAHEAD_DATA", str(tmp_path / "cache"))


@pytest.fixture
def encoder_file(tmp_path):
    (tmp_path / "own.py").write_text(OWN.format(log=str(tmp_path / "log")))
    return tmp_path / "own.py"


def write_table(tmp_path, n=30, **more):
    rng = np.random.default_rng(0)
    rows = [
        {
            "text": f"{('a long day of rain and wind', 'the sun, the sea and an ice cream')[i % 2]} in the {i}th week",
            "n": float(rng.normal()),
            "v": rng.normal(size=3).tolist(),
            "label": "ab"[i % 2],
        }
        for i in range(n)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path, rows


def prepare(path, model="exact", progress=None, **data):
    return prepare_campaign(
        parse_campaign({"data": {"name": str(path), **data}, "model": {"name": model}}),
        progress=progress,
    )


@pytest.mark.parametrize("model", ["exact", "mlp"])
def test_vector_column_is_joined_with_other_columns(tmp_path, model):
    path, rows = write_table(tmp_path)
    ready = prepare(path, model, embedding="v")
    assert ready.inputs.shape == (30, 3 + 1)
    assert ready.campaign.data.embedding == "v"
    pool = torch.ones(30, dtype=torch.bool).index_fill_(0, ready.data.test, False)
    inside = ready.inputs[pool].double()
    assert inside.mean(0).abs().max() < 1e-6
    variance = inside.square().mean(0)
    assert variance[:3].sum() == pytest.approx(4 * 0.8)
    assert variance[3] == pytest.approx(4 * 0.2)
    if model == "exact":  # only shifted and scaled as a whole
        given = torch.tensor([r["v"] for r in rows], dtype=torch.float64)
        want = given - given[pool].mean(0)
        assert torch.allclose(
            ready.inputs[:, :3].double() / want,
            (ready.inputs[0, 0].double() / want[0, 0]).expand(30, 3),
        )


def test_join_columns_handles_constant_columns():
    pool = torch.tensor([True, True, False])
    both = join_columns(
        torch.tensor([[1.0, 2], [1, 2], [1, 2]]), torch.tensor([[0.0], [2], [8]]), pool
    )
    assert torch.isfinite(both).all()
    assert (both[:, :2] == 0).all()


def test_custom_encoder_reads_texts_once(tmp_path, encoder_file):
    path, rows = write_table(tmp_path)
    progress_calls = []
    ready = prepare(
        path, embedding=f"{encoder_file}:lengths", progress=lambda *p: progress_calls.append(p)
    )
    calls = (tmp_path / "log").read_text().split()
    assert sum(map(int, calls)) == 30
    assert progress_calls[-1] == ("features", 30, 30)
    want = torch.tensor([[float(len(r["text"])), float(r["text"].count("e"))] for r in rows])
    pool = torch.ones(30, dtype=torch.bool).index_fill_(0, ready.data.test, False)
    rest = ready.data.texts.other_features
    assert torch.allclose(ready.inputs, join_columns(want, rest, pool))
    again = prepare(path, embedding=f"{encoder_file}:lengths")
    assert torch.equal(again.inputs, ready.inputs)
    assert (tmp_path / "log").read_text().split() == calls  # from the cache
    encoder_file.write_text(encoder_file.read_text() + "\n# another version\n")
    prepare(path, embedding=f"{encoder_file}:lengths")
    assert sum(map(int, (tmp_path / "log").read_text().split())) == 60


def test_custom_encoder_receives_images_rows_and_arrays(tmp_path, encoder_file):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (70, 3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "p.npz", x=images, y=np.arange(70) % 2)
    inputs = prepare(tmp_path / "p.npz", embedding=f"{encoder_file}:brightness", size=8).inputs
    assert torch.allclose(inputs, torch.from_numpy(images).float().mean((2, 3)))
    path = tmp_path / "rows.csv"
    path.write_text("n,m,label\n" + "".join(f"{i},{i * i % 7},{'ab'[i % 2]}\n" for i in range(20)))
    assert prepare(path, embedding=f"{encoder_file}:columns").inputs.shape == (20, 2 + 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", r"returned \(1, 2\) for 30 items; expected \(30, d\)"),
        ("bad", "returned NaN or infinity"),
        ("columns", "failed on 30 items with TypeError"),
        ("number", "is a int; expected a function"),
        ("missing", "names 'missing', which does not exist"),
    ],
)
def test_custom_encoder_errors_are_reported(tmp_path, encoder_file, name, message):
    path, _ = write_table(tmp_path)
    with pytest.raises(InputError, match=message):
        prepare(path, embedding=f"{encoder_file}:{name}")


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        (
            "w",
            "'w', but t has no vectors of that name; .*expected one of .*v, an encoder such as .* or your own as "
            "file.py:function",
        ),
        ("lite0", "needs images, but t has none"),
    ],
)
def test_unsuitable_embedding_raises(tmp_path, embedding, message):
    with pytest.raises(InputError, match=message):
        prepare(write_table(tmp_path)[0], embedding=embedding)


def test_text_embedding_without_texts_raises():
    data = from_arrays(np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2)
    for name in ("words", "minilm"):
        with pytest.raises(InputError, match="arrays has none"):
            prepare_campaign(
                parse_campaign({"data": {"embedding": name}, "model": {"name": "exact"}}), data
            )


def test_resume_with_changed_vectors_raises(tmp_path):
    path, rows = write_table(tmp_path)
    config = {"data": {"name": str(path), "embedding": "v"}, "model": {"name": "exact"}}
    la.run(config | {"budget": {"initial": 2, "labels": 4}}, out=tmp_path / "run")
    assert la.resume(tmp_path / "run", {"budget.labels": 6}).campaign.data.embedding == "v"
    rows[0]["v"][0] += 1
    path.write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(InputError, match="the data have changed"):
        la.resume(tmp_path / "run", {"budget.labels": 8})


@pytest.mark.skipif(not is_sentence_encoder_available(), reason="needs the extra texts")
def test_other_columns_weigh_a_quarter_of_texts(tmp_path):
    ready = prepare(write_table(tmp_path)[0])
    variance = ready.inputs.double().var(0)
    assert ready.inputs.shape == (30, 384 + 1)
    assert float(variance[:384].sum() / variance[384]) == pytest.approx(4, abs=2)
    assert any(
        "the other columns, 1 numbers, weigh a quarter of the embedding's 384" in n
        for n in ready.notes
    )


@pytest.mark.skipif(not is_image_encoder_available(), reason="needs the extra photos")
def test_tiny_and_huge_images_are_encoded(tmp_path):
    folder = tmp_path / "photos"
    for i in range(6):
        side = (1, 40)[i % 2]
        (folder / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side, side), (40 * i, 10, 200)).save(folder / "ab"[i % 2] / f"{i}.png")
    Image.new("1", (20_000, 20_000)).save(folder / "a" / "huge.png")
    ready = prepare(folder, size=32, test_fraction=0.0)
    assert ready.inputs.shape == (6, 1280)
    assert torch.isfinite(ready.inputs).all()
    assert any("a/huge.png (too many pixels" in note and "skipped" in note for note in ready.notes)
    assert any("EfficientNet-Lite0" in note for note in ready.notes)
    other = prepare(folder, size=32, test_fraction=0.0, embedding="lite2")
    assert other.campaign.data.embedding == "lite2"
    assert (other.inputs - ready.inputs).abs().max() > 0.01


@pytest.mark.skipif(not is_image_encoder_available(), reason="needs the extra photos")
def test_second_process_reuses_cached_features(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(4):
        Image.new("RGB", (40, 30), (40 * i, 10, 200)).save(folder / f"{i}.png")
    code = f"""
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.data.folder import ImageFiles
read_counts = []
batch = ImageFiles.batch
ImageFiles.batch = lambda self, at, size: read_counts.append(len(at)) or batch(self, at, size)
prepare_campaign(parse_campaign({{"data": {{"name": {str(folder)!r}, "size": 32}}, "model": {{"name": "exact"}}}}))
print(sum(read_counts))
"""
    for expected in ("4", "0"):
        process = start_python(["-c", code])
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        assert out.strip() == expected


def test_sounds_are_embedded_by_mel_statistics_and_cached(tmp_path, monkeypatch):
    folder = write_sounds(tmp_path / "sounds", 8, class_folders=True)
    first = prepare(folder)
    assert first.campaign.data.embedding == "mel"
    assert first.rows.shape == (8, 80)
    assert any("--embedding MIT/ast" in note for note in first.notes)
    waves = [first.data.sounds.read_wave(i) for i in range(8)]
    assert torch.equal(first.rows, torch.stack([compute_mel_statistics(*w) for w in waves]))
    monkeypatch.setattr(SoundFiles, "read_wave", None)  # nothing is decoded again
    assert torch.equal(prepare(folder, checked=False).rows, first.rows)


def test_embeddings_that_do_not_fit_sounds_are_refused(tmp_path, encoder_file):
    folder = write_sounds(tmp_path / "sounds", 4)
    for name in ("raw", "lite0", "minilm", "words"):
        with pytest.raises(InputError, match=f"{name}, but sounds holds sounds; expected mel"):
            prepare(folder, embedding=name)
    path, _ = write_table(tmp_path)
    with pytest.raises(InputError, match="mel, which is for sounds, but t has none"):
        prepare(path, embedding="mel")
    own = prepare(folder, embedding=f"{encoder_file}:loudness")
    assert own.rows.shape == (4, 2)
