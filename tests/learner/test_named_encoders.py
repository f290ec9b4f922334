"""Encoders by name, from a user's folder or table to the file taken away."""

import csv
import json
import tomllib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import labelahead as la
from labelahead.cli import app
from labelahead.data import load
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.encoding import encode_inputs
from labelahead.learner.preparation import prepare_campaign
from labelahead.models.encoder_names import IMAGE, TEXT
from labelahead.models.encoders import Encoder, load_encoder
from labelahead.outofcore import EmbedOptions, embed
from labelahead.outofcore.partitions import item_shape, list_partitions
from labelahead.outofcore.store import read_blocks
from tests.support.large_pools import Inline
from tests.support.sounds import write_sounds

pytest.importorskip("transformers")
from tests.support.tiny_encoders import save_tiny_encoders
from tests.support.web_sessions import page, progress_once

SAID = {"cat": "the cat sat", "dog": "a dog"}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    return save_tiny_encoders(tmp_path_factory.mktemp("encoders"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELAHEAD_DATA", str(tmp_path / "cache"))


def photos(folder, n=24, classes=("dark", "light")):
    rng = np.random.default_rng(0)
    for i in range(n):
        kind = folder / (classes[i % 2] if classes else "")
        kind.mkdir(parents=True, exist_ok=True)
        pixels = (60 if i % 2 else 190) + rng.integers(-50, 50, (30, 40, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(kind / f"{i:02d}.png")
    return folder


def texts(path, n=24):
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text", "label"])
        for i in range(n):
            kind = ("cat", "dog")[i % 2]
            rows.writerow([f"t{i}", f"{SAID[kind]} {'sat ' * (i // 2)}", kind])
    return path


def invoke(*arguments):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def prepared(path, progress=None, **data):
    tables = {"data": {"name": str(path), **data}, "model": {"name": "exact"}}
    return prepare_campaign(parse_campaign(tables), progress=progress)


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


BUDGET = ("--labels", 12, "--initial", 6, "--retrain-every", 3, "--strategy", "resolve")


def test_photographs_from_folder_to_predictions(encoders, tmp_path):
    source, folder = photos(tmp_path / "photos"), tmp_path / "run"
    name = encoders / "dinov2"
    said = invoke("run", "--data", source, "--embedding", name, "--batch-size", 5, "--workers", 2,
                  *BUDGET, "--threads", 1, "--out", folder)  # fmt: skip
    assert "features 24/24" in said
    data = tomllib.loads((folder / "config.toml").read_text())["data"]
    pinned = load_encoder(str(name), IMAGE).name
    assert data["embedding"] == f"hf:{name}@{pinned.revision}"
    assert (data["batch_size"], data["workers"]) == (5, 2)
    invoke("resume", folder, "--labels", 15)

    invoke("export-model", folder, "--to", tmp_path / "model", "--no-onnx")
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    assert about["encoder"] == {"id": str(name), "revision": pinned.revision, "by": "hf"}
    assert str(name) in (tmp_path / "model" / "README.md").read_text()

    new = photos(tmp_path / "new", 6, classes=())
    (new / "broken.png").write_bytes(b"no picture")
    invoke("predict", tmp_path / "model", new, "--out", tmp_path / "p.csv")
    rows = read_csv(tmp_path / "p.csv")
    assert [row["id"] for row in rows] == [f"{i:02d}.png" for i in range(6)]

    # The folder of the encoder lies elsewhere on another machine.
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in name.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    invoke("predict", tmp_path / "model", new, "--encoder", moved, "--out", tmp_path / "q.csv")
    assert (tmp_path / "q.csv").read_bytes() == (tmp_path / "p.csv").read_bytes()

    # The same by hand: the encoder, and the kernel model of the last round.
    features = load_encoder(str(name), IMAGE).encode(
        [Image.open(new / f"{i:02d}.png") for i in range(6)]
    )
    by_hand = la.load_model(tmp_path / "model").predict_proba(features)
    assert [float(row["probability"]) for row in rows] == pytest.approx(
        by_hand.amax(1).tolist(), abs=1e-5
    )


def test_texts_from_table_to_query_session_and_predictions(encoders, tmp_path):
    source, name = texts(tmp_path / "texts.csv"), encoders / "bert"
    labels = tmp_path / "labels.csv"
    labels.write_text("id,label\nt0,cat\nt1,dog\nt2,cat\nt3,dog\n")
    unlabelled = tmp_path / "plain.csv"
    unlabelled.write_text(
        "\n".join(line.rpartition(",")[0] for line in source.read_text().splitlines())
    )
    invoke("query", "--data", unlabelled, "--labels", labels, "--embedding", f"{name}#cls",
           "--n", 3, "--out", tmp_path / "next.csv", "--threads", 1)  # fmt: skip
    assert len(read_csv(tmp_path / "next.csv")) == 3

    out = tmp_path / "session"
    tables = {"data": {"name": str(unlabelled), "embedding": str(name)}, "model": {"name": "exact"}}
    with page(unlabelled, out, tables=tables, start=True, labels=labels) as (client, _):
        progress_once(client, lambda now: now["labels"] == 4 and not now.get("embedding"))
    stored = tomllib.loads((out / "session.toml").read_text())["data"]["embedding"]
    assert stored.startswith(f"hf:{name}@")
    invoke("export-model", out, "--to", tmp_path / "model", "--no-onnx")
    invoke("predict", tmp_path / "model", unlabelled, "--out", tmp_path / "p.csv")
    rows = read_csv(tmp_path / "p.csv")
    assert [row["id"] for row in rows] == [f"t{i}" for i in range(24)]
    assert {row["prediction"] for row in rows} <= {"cat", "dog"}

    # A session that goes on keeps the revision; other weights under the same name are refused.
    moved = tmp_path / "moved.csv"
    moved.write_text("id,text\nx,the cat\n")
    changed = json.loads((name / "config.json").read_text()) | {"note": 1}
    before = (name / "config.json").read_text()
    try:
        (name / "config.json").write_text(json.dumps(changed))
        with pytest.raises(InputError, match="other weights or settings than before"):
            la.load_model(tmp_path / "model").predict(moved)
    finally:
        (name / "config.json").write_text(before)


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_onnx_on_request_contains_the_encoder(name, encoders, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    source = photos(tmp_path / "photos") if name == "vit" else texts(tmp_path / "texts.csv")
    settings = {"data": {"name": str(source), "embedding": str(encoders / name)}, "threads": 1}
    la.run({**settings, "budget": {"initial": 4, "labels": 8}}, out=tmp_path / "run")
    model = la.load_model(tmp_path / "run")
    folder = model.save(tmp_path / "model", onnx=True)
    assert "The encoder is in it" in (folder / "README.md").read_text()

    modality, items = TEXT, ["the cat sat", "a dog sat sat sat sat", "the"]
    if name == "vit":
        new = photos(tmp_path / "new", 3, classes=())
        modality, items = IMAGE, [Image.open(new / f"{i:02d}.png") for i in range(3)]
    encoder = load_encoder(str(encoders / name), modality)
    want, variance = model.outputs(encoder.encode(items))
    given = {key: value.numpy() for key, value in encoder.backend.prepare(items).items()}
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    for got, ours, tolerance in zip(
        session.run(None, given), (want, variance), (1e-4, 5e-4), strict=True
    ):
        torch.testing.assert_close(torch.from_numpy(got).double(), ours, rtol=0, atol=tolerance)


def test_onnx_without_the_encoder_says_why(encoders, tmp_path, monkeypatch):
    """An encoder with a step that depends on the values of its inputs cannot be exported."""
    pytest.importorskip("onnxruntime")
    source = texts(tmp_path / "texts.csv")
    settings = {"data": {"name": str(source), "embedding": str(encoders / "bert")}, "threads": 1}
    la.run({**settings, "budget": {"initial": 4, "labels": 8}}, out=tmp_path / "run")
    model = la.load_model(tmp_path / "run")
    backend = load_encoder(str(encoders / "bert"), TEXT).backend
    encode = backend.encode

    def encode_by_value(given):
        return encode(given) * (1.0 if int(given["input_ids"].sum()) else 2.0)

    monkeypatch.setattr(backend, "encode", encode_by_value)
    folder = model.save(tmp_path / "model", onnx=True)
    card = (folder / "README.md").read_text()
    assert "The encoder cannot be in it: the network cannot be written as ONNX" in card
    about = json.loads((folder / "model.json").read_text())
    assert about["onnx"]["input"] == ["n", 32]


def test_joined_encoders_from_photographs_to_predictions(encoders, tmp_path):
    source, folder = photos(tmp_path / "photos"), tmp_path / "run"
    names = [str(encoders / "dinov2"), str(encoders / "vit")]
    settings = {"data": {"name": str(source), "embedding": "+".join(names)}, "threads": 1}
    la.run({**settings, "budget": {"initial": 4, "labels": 8}}, out=folder)
    pinned = tomllib.loads((folder / "config.toml").read_text())["data"]["embedding"]
    assert pinned == "+".join(str(load_encoder(n, IMAGE).name).partition("#")[0] for n in names)
    ready = prepare_campaign(parse_campaign(settings))
    pool = torch.ones(24, dtype=torch.bool).index_fill_(0, ready.data.test, False)
    pictures = [ready.data.images.open_picture(i) for i in range(24)]
    blocks = [load_encoder(name, IMAGE).encode(pictures).double() for name in names]
    blocks = [block - block[pool].mean(0) for block in blocks]
    by_hand = torch.cat([b / b[pool].square().sum(1).mean().sqrt() for b in blocks], 1).float()
    torch.testing.assert_close(ready.rows, by_hand, rtol=1e-4, atol=1e-5)

    model = la.load_model(la.load_model(folder).save(tmp_path / "model", onnx=False))
    new = photos(tmp_path / "new", 6, classes=())
    said = model.predict(new)
    assert len(said) == 6
    assert [e["id"] for e in model.about["encoder"]] == names
    with pytest.raises(InputError, match="uses several encoders"):
        la.load_model(tmp_path / "model", encoder=names[0])
    lite = {"name": str(source), "embedding": f"lite0+{names[0]}"}
    with pytest.raises(InputError, match="lite0 cannot be joined"):
        prepare_campaign(parse_campaign({**settings, "data": lite}))


def test_weights_of_joined_encoders_are_shares_of_the_kernel(encoders, tmp_path):
    """The kernel of the joined features is the weighted sum of the encoders' own kernels."""
    source, names = photos(tmp_path / "photos"), [str(encoders / n) for n in ("dinov2", "vit")]
    ready = prepared(source, embedding=f"0.8*{names[0]}+0.2*{names[1]}")
    pool = torch.ones(24, dtype=torch.bool).index_fill_(0, ready.data.test, False)
    kernel = torch.zeros(24, 24, dtype=torch.float64)
    for name, weight in zip(names, (1.6, 0.4), strict=True):
        alone = prepared(source, embedding=name).rows.double()
        alone = alone - alone[pool].mean(0)
        kernel += weight * alone @ alone.T / (alone[pool] @ alone[pool].T).diagonal().mean()
    rows = ready.rows.double()
    torch.testing.assert_close(rows @ rows.T, kernel, rtol=1e-4, atol=1e-4)
    pinned = [str(load_encoder(n, IMAGE).name).partition("#")[0] for n in names]
    assert ready.campaign.data.embedding == f"0.8*{pinned[0]}+0.2*{pinned[1]}"
    again = prepared(source, embedding=ready.campaign.data.embedding)
    assert torch.equal(again.rows, ready.rows)
    with pytest.raises(InputError, match="expected weights above 0"):
        prepared(source, embedding=f"0*{names[0]}+1*{names[1]}")


def test_weighted_encoders_of_sounds_from_folder_to_predictions(encoders, tmp_path):
    folder = write_sounds(tmp_path / "sounds", 24, class_folders=True, seconds=0.2)
    name = f"0.2*{encoders / 'wav2vec2'}+0.8*{encoders / 'ast'}"
    invoke("run", "--data", folder, "--embedding", name, *BUDGET, "--out", tmp_path / "run")
    invoke("export-model", tmp_path / "run", "--to", tmp_path / "model", "--no-onnx")
    model, ready = la.load_model(tmp_path / "model"), prepared(folder, embedding=name)
    said = model.predict(folder)
    at = [said.items.index(item) for item in ready.data.ids]
    expected = model.predict_proba(ready.rows)
    torch.testing.assert_close(said.probabilities[at], expected, rtol=1e-5, atol=1e-5)


def test_cached_items_are_not_encoded_again(encoders, tmp_path, monkeypatch):
    source = photos(tmp_path / "photos", 12)
    counted = []
    stream = Encoder.stream
    monkeypatch.setattr(
        Encoder,
        "stream",
        lambda self, read, at, **how: counted.append(len(at)) or stream(self, read, at, **how),
    )
    first = prepared(source, embedding=str(encoders / "vit"))
    assert counted == [12]
    photos(tmp_path / "photos", 16)  # twelve are written again with the same pixels, four are new
    again = prepared(source, embedding=str(encoders / "vit"), batch_size=3)
    assert again.inputs.shape == (16, 32)
    at = [again.data.ids.index(name) for name in first.data.ids]
    assert torch.allclose(first.rows, again.rows[at], atol=1e-5)
    prepared(source, embedding=str(encoders / "vit"))
    assert len(counted) == 2  # the third time nothing is left to encode
    prepared(source, embedding=f"{encoders / 'vit'}#mean")
    assert counted[2:] == [16]  # another pooling has other features


def test_an_interruption_keeps_what_was_encoded(encoders, tmp_path):
    source = photos(tmp_path / "photos", 20)

    def stop(stage, done, total):
        if done >= 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared(source, progress=stop, embedding=str(encoders / "vit"), batch_size=5)
    seen = []
    ready = prepared(
        source,
        progress=lambda stage, done, total: seen.append(done),
        embedding=str(encoders / "vit"),
        batch_size=5,
    )
    assert seen[0] == 10
    images = load(source)[0].images
    expected = load_encoder(str(encoders / "vit"), IMAGE).encode(
        [images.open_picture(i) for i in range(20)]
    )
    assert torch.allclose(ready.rows, expected, atol=1e-5)


def test_stream_equals_one_item_at_a_time(encoders):
    encoder = load_encoder(str(encoders / "bert"), TEXT)
    said = [f"{'cat ' * (i % 7)}the dog" for i in range(30)]
    alone = torch.cat([encoder.encode([text]) for text in said])
    out = torch.full((30, encoder.width), torch.nan)
    for at, rows in encoder.stream(said.__getitem__, range(30), batch_size=4, workers=3):
        out[at] = rows
    assert torch.allclose(out, alone, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert", "encodes texts, but these items are images"),
        ("nowhere", "neither a folder with config.json nor an id"),
        ("dino", "has no vectors of that name"),
    ],
)
def test_wrong_encoder_is_refused_before_any_work(encoders, tmp_path, name, message):
    source = photos(tmp_path / "photos", 4)
    given = name if name == "dino" else str(encoders / name)
    with pytest.raises(InputError, match=message):
        prepared(source, embedding=given)


def test_numbers_have_no_encoder(encoders, tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("a,b,label\n" + "".join(f"{i},{-i},{'xy'[i % 2]}\n" for i in range(12)))
    with pytest.raises(
        InputError, match="an encoder of images, texts or sounds, but numbers has none"
    ):
        prepared(path, embedding=str(encoders / "bert"))


def test_default_embedding_names_a_stronger_one(tmp_path):
    ready = prepared(photos(tmp_path / "photos", 6))
    assert sum("stronger image encoders exist" in note for note in ready.notes) == 1


def test_out_of_core_pool_takes_encoders_by_name(encoders, tmp_path):
    source = photos(tmp_path / "photos", 7, classes=())
    (source / "broken.png").write_bytes(b"no picture")
    options = EmbedOptions(dtype="float32", rows=3)
    manifest = embed(
        source,
        tmp_path / "store",
        replace(options, encoder=str(encoders / "vit"), skip_unreadable=True),
        executor=Inline(),
    )
    encoder = load_encoder(str(encoders / "vit"), IMAGE)
    assert manifest.schema.encoder == f"hf:{encoders / 'vit'}@{encoder.name.revision}"
    got = np.concatenate([rows for e in manifest.entries for _, rows in read_blocks(e, 2)])
    expected = encoder.encode([Image.open(source / f"{i:02d}.png") for i in range(7)])
    assert np.allclose(got, expected.numpy(), atol=1e-5)
    said = ["the cat", "a dog sat", None, "cat cat"]
    pq.write_table(pa.table({"id": list("abcd"), "text": said}), tmp_path / "t.parquet")
    manifest = embed(
        tmp_path / "t.parquet",
        tmp_path / "texts",
        replace(options, encoder=str(encoders / "bert")),
        executor=Inline(),
    )
    got = np.concatenate([rows for e in manifest.entries for _, rows in read_blocks(e, 2)])
    encoder = load_encoder(str(encoders / "bert"), TEXT)
    assert np.allclose(got, encoder.encode([s or "" for s in said]).numpy(), atol=1e-5)
    with pytest.raises(InputError, match="expected one of lite0, lite2 for images, or an id"):
        embed(source, tmp_path / "store", replace(options, encoder="dino"), executor=Inline())
    both = f"{encoders / 'vit'}+{encoders / 'dinov2'}"
    with pytest.raises(InputError, match="a pool has one encoder"):
        embed(source, tmp_path / "both", replace(options, encoder=both), executor=Inline())


def test_sounds_are_simulated_compared_and_predicted_by_an_audio_encoder(encoders, tmp_path):
    folder = write_sounds(tmp_path / "sounds", 24, class_folders=True, seconds=0.2)
    name = f"hf:{encoders / 'wav2vec2'}"
    table = invoke("encoders", folder, "--embedding", f"mel,{name}")
    assert "best on 24 labels" in table
    assert "wav2vec2" in table
    out = tmp_path / "run"
    invoke("run", "--data", folder, "--embedding", name, *BUDGET, "--out", out)
    assert "@" in tomllib.loads((out / "config.toml").read_text())["data"]["embedding"]
    invoke("export-model", out, "--to", tmp_path / "model")
    model = la.load_model(tmp_path / "model")
    assert model.preprocessor.kind == "encoded sounds"
    card = (tmp_path / "model" / "README.md").read_text()
    assert "sounds, embedded by hf:" in card
    everything = model.predict(folder)
    one = model.predict(folder / "tone" / "s01-tone.wav")
    at = everything.items.index("tone/s01-tone.wav")
    assert torch.allclose(one.probabilities[0], everything.probabilities[at], atol=1e-6)
    (folder / "tone" / "broken.wav").write_bytes(b"RIFF")
    assert list(model.predict(folder).failed) == ["tone/broken.wav"]
    with pytest.raises(InputError, match="expected a folder of sounds, or a sound"):
        model.predict(photos(tmp_path / "photos", 2) / "dark" / "00.png")
    with pytest.raises(InputError, match="holds no sounds"):
        model.predict(tmp_path / "photos")
    with pytest.raises(InputError, match="encodes images, but these items are sounds"):
        prepared(folder, embedding=str(encoders / "vit"))


def test_out_of_core_pool_of_sounds_takes_audio_encoders(encoders, tmp_path):
    folder = write_sounds(tmp_path / "sounds", 5, seconds=0.2)
    for i in range(16):  # as many as are read at once
        (folder / f"a{i:02d}.wav").write_bytes(b"RIFF")
    name = str(encoders / "wav2vec2")
    options = EmbedOptions(encoder=name, dtype="float32", skip_unreadable=True)
    manifest = embed(folder, tmp_path / "store", options, executor=Inline())
    assert len(manifest.left_out) == 16
    schema, parts = list_partitions(str(folder), options)
    assert item_shape(schema, parts) == (32,)  # though nothing of the first batch can be read
    for path in folder.glob("a*.wav"):
        path.unlink()
    data, _ = load(folder, test_fraction=0.0)
    got = np.concatenate([rows for e in manifest.entries for _, rows in read_blocks(e, 2)])
    assert np.allclose(got, encode_inputs("exact", data, name, None).inputs.numpy(), atol=1e-5)
    options = EmbedOptions(encoder=str(encoders / "bert"))
    with pytest.raises(InputError, match="encodes texts, but these items are sounds"):
        embed(folder, tmp_path / "other", options, executor=Inline())
