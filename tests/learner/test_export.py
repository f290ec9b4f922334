"""Exported models against direct solutions, onnxruntime and the campaign they come from."""

import csv
import io
import json
import pickle
import signal

import numpy as np
import pytest
import torch
from PIL import Image

import labelahead as la
from labelahead.data import from_arrays, load
from labelahead.errors import InputError, MissingExtra, StorageError
from labelahead.gp.calibration import gaussian_class_probabilities
from labelahead.inference.exact_model import ExactModel
from labelahead.learner import export
from labelahead.learner.config import parse_campaign
from labelahead.learner.export import load_exported, write_predictions
from labelahead.learner.preparation import prepare_campaign
from labelahead.models.sentence_encoder import is_sentence_encoder_available
from labelahead.simulation.final_model import run_model
from labelahead.tasks import Number
from tests.support.campaigns import blobs
from tests.support.reference_exact import by_hand, simplex
from tests.support.slow import slow
from tests.support.task_tables import write_task_table

BUDGET = {"initial": 12, "labels": 24, "retrain_every": 6}


def run_campaign(tmp_path, model="exact", **more):
    strategy = "resolve" if model == "exact" else "flip"
    config = {
        "model": {"name": model},
        "asking": {"strategy": strategy},
        "budget": BUDGET,
        "training": {"steps": 40},
    }
    return la.run({**config, **more}, out=tmp_path / "run")


def write_table(path, n=60, seed=0, label=True, missing=()):
    """Write a table of species with size, colour and a description; some fields are empty."""
    rng = np.random.default_rng(seed)
    names = ["size", "colour", "legs", "said", *(["label"] if label else [])]
    rows = []
    for i in range(n):
        kind = i % 2
        row = [
            "" if rng.random() < 0.1 else f"{rng.normal(3 * kind, 1):.3f}",
            ""
            if rng.random() < 0.1
            else str(rng.choice(["red", "blue"] if kind else ["green", "blue"])),
            str(bool(kind) if rng.random() < 0.9 else not kind),
            " ".join(
                rng.choice(
                    ["wing", "fly", "air", "sing"] if kind else ["fin", "swim", "sea", "deep"], 12
                )
            ),
        ]
        rows.append([*row, *(["bird" if kind else "fish"] if label else [])])
    keep = [i for i, name in enumerate(names) if name not in missing]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[row[i] for i in keep] for row in [names, *rows]])
    return path


def write_images(folder, n=24, seed=0, classes=("dark", "light")):
    rng = np.random.default_rng(seed)
    for i in range(n):
        kind = classes[i % 2] if classes else ""
        (folder / kind).mkdir(parents=True, exist_ok=True)
        pixels = (
            ((40 if i % 2 else 200) + rng.integers(-35, 35, (24, 32, 3)))
            .clip(0, 255)
            .astype(np.uint8)
        )
        Image.fromarray(pixels).save(folder / kind / f"{i:02d}.png")
    return folder


def run_onnx(folder, values):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"items": values})


def compute_expected_probabilities(model, outputs, variance):
    """Return the probabilities of the outputs.

    They are calibrated by leave-one-out for the exact model, uncalibrated for a network.
    """
    if not isinstance(model.network, ExactModel):
        return simplex(outputs)
    spread = model.network.ensure_variance_scale()
    return gaussian_class_probabilities(
        torch.as_tensor(outputs), spread * torch.as_tensor(variance).clamp_min(1e-9)
    )


def test_exported_exact_model_matches_direct_solution_and_onnx(tmp_path):
    done = run_campaign(tmp_path)
    folder = run_model(tmp_path / "run").save(tmp_path / "out", onnx=True)
    model = la.load_model(folder)
    data, answers = load("digits")
    labelled = done.pool.labelled
    x = data.inputs.flatten(1)
    pool = torch.ones(len(x), dtype=torch.bool).index_fill_(0, data.test, False)
    new = data.test[:20]
    outputs, variances, alone = by_hand(
        x[labelled],
        answers.take(labelled),
        x[new],
        x[pool].mean(0),
        model.network.get_mixture(),
        10,
    )
    raw = data.images.values[new]
    prediction = model.predict(raw)
    wanted = compute_expected_probabilities(model, outputs, variances)
    assert np.allclose(prediction.probabilities, wanted, atol=1e-4)
    assert np.array_equal(prediction.probabilities.argmax(1), outputs.argmax(1))
    assert np.allclose(prediction.variance, variances, atol=1e-5)
    assert np.allclose(model.network.leave_one_out_variance(), alone, atol=1e-5)
    assert model.threshold == pytest.approx(np.quantile(alone, 0.95), abs=1e-5)
    assert torch.equal(prediction.unlike, prediction.variance > model.threshold)
    p, variance = run_onnx(folder, raw.numpy())
    assert np.allclose(p, wanted, atol=1e-4)
    assert np.allclose(variance, variances, atol=1e-4)
    every = model.predict(data.images.values)
    right = (every.probabilities.argmax(1) == answers.take(torch.arange(len(data))))[data.test]
    assert float(right.double().mean()) == done.rounds[-1].accuracy


def test_unlike_labelled_flags_noise_only(tmp_path):
    run_campaign(tmp_path, budget={"initial": 20, "labels": 100, "retrain_every": 40})
    model = run_model(tmp_path / "run")
    data, _ = load("digits")
    noise = torch.randint(
        0, 17, (200, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    assert float(model.predict(noise).unlike.double().mean()) > 0.95
    assert float(model.predict(data.images.values).unlike.double().mean()) < 0.1


@pytest.mark.parametrize(
    ("loss", "model"),
    [
        ("squared", "cnn"),
        ("cross-entropy", "mlp"),
        slow("squared", "mlp"),
        slow("cross-entropy", "cnn"),
    ],
)
def test_exported_network_predicts_unchanged(tmp_path, model, loss):
    done = run_campaign(tmp_path, model, training={"steps": 40, "loss": loss})
    folder = run_model(tmp_path / "run").save(tmp_path / "out", onnx=True)
    finished = load_exported(folder)
    data, _ = load("digits")
    with torch.no_grad():
        outputs = done.model(data.inputs[:50]).double()
    wanted = outputs.softmax(1).numpy() if loss == "cross-entropy" else simplex(outputs.numpy())
    prediction = finished.predict(data.images.values[:50])
    assert np.allclose(prediction.probabilities, wanted, atol=1e-5)
    assert prediction.unlike is None
    assert prediction.columns()["unlike_labelled"] == [None] * 50
    (p,) = run_onnx(folder, data.images.values[:50].numpy())
    assert np.allclose(p, wanted, atol=1e-4)


@pytest.mark.parametrize("model", ["exact", "mlp"])
def test_exported_model_predicts_new_table_rows(tmp_path, model):
    source = write_table(tmp_path / "animals.csv")
    done = run_campaign(tmp_path, model, data={"name": str(source), "embedding": "words"})
    folder = run_model(tmp_path / "run").save(tmp_path / "out", onnx=True)
    finished = la.load_model(folder)
    # Rows of the pool give the same features.
    data, _ = load(source)
    again = finished.predict(source)
    with torch.no_grad():
        outputs = done.model(data.inputs).double().numpy()
    assert np.allclose(
        again.probabilities,
        compute_expected_probabilities(finished, outputs, again.variance),
        atol=1e-4,
    )
    # Rows of another file are encoded with the statistics of the pool only.
    fresh = write_table(tmp_path / "more.csv", 40, seed=1)
    prediction = la.load_model(folder).predict(fresh)
    truth = [("bird" if i % 2 else "fish") for i in range(40)]
    assert np.mean([a == b for a, b in zip(prediction.labels, truth, strict=True)]) > 0.9
    one = write_table(tmp_path / "one.csv", 1, seed=1, label=False)
    assert np.allclose(finished.predict(one).probabilities, prediction.probabilities[:1], atol=1e-6)
    rows = list(csv.DictReader(fresh.open()))
    by_name = {name: [row[name] for row in rows] for name in reversed(rows[0])}
    assert torch.equal(finished.predict(by_name).probabilities, prediction.probabilities)
    (tmp_path / "strange.csv").write_text(
        "size,colour,legs,said\n1.5,violet,True,a word nobody knows\n,,False,\n"
    )
    assert len(finished.predict(tmp_path / "strange.csv")) == 2
    with pytest.raises(InputError, match="no column 'colour', which the model was fitted on"):
        finished.predict(write_table(tmp_path / "less.csv", 3, missing=("colour",)))
    (tmp_path / "bad.csv").write_text("size,colour,legs,said\nlarge,red,True,sea\n")
    with pytest.raises(InputError, match="column 'size', line 2, is 'large'; expected a number"):
        finished.predict(tmp_path / "bad.csv")


BIRDS = [
    "the {} sings in the old tree",
    "a {} flew over the roof",
    "wings of the {} beat in the wind",
]
FISH = ["the {} swims in the deep sea", "a {} hid under the reef", "fins of the {} cut the water"]


def write_documents(folder, n=24, seed=0, classes=True):
    rng = np.random.default_rng(seed)
    for i in range(n):
        lines, names = (
            (BIRDS, ["wren", "lark", "gull"]) if i % 2 else (FISH, ["cod", "carp", "eel"])
        )
        text = ". ".join(str(rng.choice(lines)).format(rng.choice(names)) for _ in range(3))
        inside = folder / (("bird" if i % 2 else "fish") if classes else "")
        inside.mkdir(parents=True, exist_ok=True)
        (inside / f"{i:02d}.txt").write_text(text)
    return folder


@pytest.mark.parametrize("embedding", ["words", "minilm"])
@pytest.mark.parametrize("model", ["exact", "mlp"])
def test_exported_model_predicts_texts_by_words_and_encoder(
    tmp_path, monkeypatch, embedding, model
):
    if embedding == "minilm" and not is_sentence_encoder_available():
        pytest.skip("without the extra texts")
    monkeypatch.setenv("LABELAHEAD_DATA", str(tmp_path / "cache"))
    source = write_documents(tmp_path / "texts")
    (source / "bird" / "00.txt").write_text("none")  # loading it again must give the same
    budget = {"initial": 6, "labels": 12, "retrain_every": 6}
    run_campaign(tmp_path, model, data={"name": str(source), "embedding": embedding}, budget=budget)
    folder = run_model(tmp_path / "run").save(tmp_path / "out", onnx=False)
    new = write_documents(tmp_path / "new", 10, seed=5, classes=False)
    prediction = la.load_model(folder).predict(new)
    assert prediction.labels == ["fish", "bird"] * 5
    assert prediction.items[0] == "00.txt"
    (tmp_path / "none.txt").write_text("none")  # a word in a file, an empty text in a table
    word, nothing = (
        la.load_model(folder).predict([tmp_path / "none.txt"]),
        la.load_model(folder).predict({"text": [""]}),
    )
    assert torch.equal(word.probabilities, nothing.probabilities) == (embedding == "words")
    alone = la.load_model(folder).predict([new / "03.txt"])
    assert torch.allclose(alone.probabilities, prediction.probabilities[3:4], atol=1e-5)
    with pytest.raises(InputError, match="a folder of texts, a text, or a table"):
        la.load_model(folder).predict(write_images(tmp_path / "p", 2) / "dark" / "00.png")


@pytest.mark.parametrize("model", ["exact", "mlp"])
def test_exported_model_keeps_column_weights(tmp_path, monkeypatch, model):
    if not is_sentence_encoder_available():
        pytest.skip("without the extra texts")
    monkeypatch.setenv("LABELAHEAD_DATA", str(tmp_path / "cache"))
    source = write_table(tmp_path / "animals.csv")
    done = run_campaign(tmp_path, model, data={"name": str(source), "embedding": "minilm"})
    finished = la.load_model(run_model(tmp_path / "run").save(tmp_path / "out", onnx=False))
    with torch.no_grad():
        outputs = done.model(prepare_campaign(done.campaign).rows).double().numpy()
    again = finished.predict(source)
    assert np.allclose(
        again.probabilities,
        compute_expected_probabilities(finished, outputs, again.variance),
        atol=1e-3,
    )
    prediction = finished.predict(write_table(tmp_path / "more.csv", 20, seed=1))
    assert sum(a == b for a, b in zip(prediction.labels, ["fish", "bird"] * 10, strict=True)) > 18


def test_export_with_custom_embedding_raises(tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\ndef encode(texts):\n    return torch.tensor([[len(t), t.count('e')] for t "
        "in texts])\n"
    )
    source = write_table(tmp_path / "animals.csv")
    run_campaign(tmp_path, data={"name": str(source), "embedding": f"{tmp_path / 'own.py'}:encode"})
    with pytest.raises(
        InputError, match=r"your own embedding .*own\.py:encode, whose code cannot be exported"
    ):
        la.load_model(tmp_path / "run")


def test_vectors_named_like_a_backbone_are_vectors(tmp_path):
    rng = np.random.default_rng(0)
    y, x = np.arange(40) % 2, rng.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "p.npz", x=x, y=y, lite0=rng.normal(size=(40, 4)) + 3 * y[:, None])
    run_campaign(tmp_path, data={"name": str(tmp_path / "p.npz"), "embedding": "lite0"})
    prediction = run_model(tmp_path / "run").predict(tmp_path / "p.npz")
    assert np.mean([label == str(c) for label, c in zip(prediction.labels, y, strict=True)]) > 0.9


def test_exported_model_predicts_given_vectors(tmp_path):
    x, y = blobs(60, (16,))
    rows = [
        {"id": f"n{i}", "code": v.tolist(), "label": int(c)}
        for i, (v, c) in enumerate(zip(x, y, strict=True))
    ]
    (tmp_path / "v.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_campaign(tmp_path, data={"name": str(tmp_path / "v.jsonl"), "embedding": "code"})
    finished = la.load_model(run_model(tmp_path / "run").save(tmp_path / "out", onnx=False))
    prediction = finished.predict({"code": x.tolist()})
    assert np.mean([int(a) == int(b) for a, b in zip(prediction.labels, y, strict=True)]) > 0.9
    np.savez(tmp_path / "v.npz", code=x.numpy())
    assert torch.equal(finished.predict(tmp_path / "v.npz").probabilities, prediction.probabilities)
    with pytest.raises(InputError, match="16 finite numbers a row"):
        finished.predict({"code": x[:, :5].tolist()})


def test_parquet_and_csv_predictions_agree(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    run_campaign(
        tmp_path, data={"name": str(write_table(tmp_path / "animals.csv")), "embedding": "words"}
    )
    model = run_model(tmp_path / "run")
    rows = list(csv.DictReader(write_table(tmp_path / "more.csv", 10, seed=2).open()))
    columns = {k: [row[k] for row in rows] for k in rows[0]}
    columns["size"] = [float(v) if v else None for v in columns["size"]]
    columns["legs"] = [v == "True" for v in columns["legs"]]
    parquet.write_table(arrow.table(columns), tmp_path / "more.parquet")
    predictions = [model.predict(tmp_path / f"more.{form}") for form in ("csv", "parquet")]
    assert torch.equal(predictions[0].probabilities, predictions[1].probabilities)
    write_predictions(predictions[0], tmp_path / "out.parquet")
    read = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    assert read == predictions[0].columns()
    text = write_predictions(predictions[0], None)
    listed = list(csv.DictReader(io.StringIO(text)))
    assert [row["prediction"] for row in listed] == predictions[0].labels
    assert {row["unlike_labelled"] for row in listed} <= {"yes", "no"}


@pytest.mark.parametrize("model", ["exact", "cnn"])
def test_exported_model_predicts_images_by_pixels(tmp_path, monkeypatch, model):
    from labelahead.learner import encoding as inputs

    monkeypatch.setattr(
        inputs, "is_image_encoder_available", lambda: False
    )  # without the extra `photos`
    source = write_images(tmp_path / "photos")
    done = run_campaign(
        tmp_path,
        model,
        data={"name": str(source), "size": 16},
        budget={"initial": 6, "labels": 12, "retrain_every": 6},
    )
    folder = run_model(tmp_path / "run").save(tmp_path / "out")
    finished = la.load_model(folder)
    data, _ = load(source, size=16)
    prediction = finished.predict(source)
    assert prediction.items == tuple(data.ids)
    with torch.no_grad():
        outputs = done.model(data.inputs).double().numpy()
    assert np.allclose(
        prediction.probabilities,
        compute_expected_probabilities(finished, outputs, prediction.variance),
        atol=1e-4,
    )
    new = write_images(tmp_path / "new", 8, seed=3, classes=())
    (new / "broken.png").write_bytes(b"no picture")
    fresh = finished.predict([new, source / "dark" / "00.png"])
    assert fresh.labels == ["dark", "light"] * 4 + ["dark"]
    assert list(fresh.failed) == [f"{new}/broken.png"]
    assert fresh.items[0].endswith("new/00.png")


def test_load_exported_runs_no_code(tmp_path):
    run_campaign(tmp_path)
    folder = run_model(tmp_path / "run").save(tmp_path / "out", onnx=False)
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "model.json", "weights.pt"]

    class CodeRunningPickle:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    (folder / "weights.pt").write_bytes(pickle.dumps({"network.centre": CodeRunningPickle()}))
    with pytest.raises(InputError, match="damaged"):
        la.load_model(folder)
    torch.save({"network.centre": CodeRunningPickle()}, folder / "weights.pt")
    with pytest.raises(InputError, match="damaged"):
        la.load_model(folder)
    assert not (tmp_path / "harm").exists()


def test_load_exported_custom_network_requires_code(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from torch.nn import Flatten, Linear, Sequential\n"
        "def make(shape, classes):\n    return Sequential(Flatten(), Linear(64, classes))\n"
    )
    done = run_campaign(tmp_path, f"{own}:make")
    folder = run_model(tmp_path / "run").save(tmp_path / "out", onnx=False)
    with pytest.raises(InputError, match="whose code is not in it"):
        la.load_model(folder)
    values = load("digits")[0].images.values[:5]
    wanted = run_model(tmp_path / "run").predict(values).probabilities
    assert torch.equal(
        la.load_model(folder, network=f"{own}:make").predict(values).probabilities, wanted
    )
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    assert torch.equal(la.load_model(folder, network=other).predict(values).probabilities, wanted)
    assert done.rounds


def test_export_invalid_arguments_raise(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="contains no model"):
        la.load_model(tmp_path)
    run_campaign(tmp_path)
    model = run_model(tmp_path / "run")
    with pytest.raises(InputError, match=r"expected \(n, 1, 8, 8\)"):
        model.predict(torch.zeros(3, 64))
    with pytest.raises(InputError, match="does not exist"):
        model.predict(tmp_path / "nowhere")
    with pytest.raises(InputError, match="another kind; expected a folder of pictures"):
        model.predict(write_table(tmp_path / "t.csv", 3))
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="exists already"):
        model.save(tmp_path / "out")
    folder = model.save(tmp_path / "fine", onnx=False)
    about = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**about, "format": 2}))
    with pytest.raises(InputError, match="of format 2"):
        la.load_model(folder)
    (folder / "model.json").write_text(json.dumps(about))
    (folder / "weights.pt").unlink()
    with pytest.raises(InputError, match=r"no weights\.pt"):
        la.load_model(folder)
    from labelahead.learner import onnx as graph

    def missing(module, extra, purpose):
        raise MissingExtra(f"{purpose} needs {module}")

    monkeypatch.setattr(graph, "import_extra", missing)
    assert (
        "There is no ONNX form of it" in (model.save(tmp_path / "plain") / "README.md").read_text()
    )
    with pytest.raises(MissingExtra):
        model.save(tmp_path / "asked", onnx=True)
    assert not (tmp_path / "asked").exists()


def test_export_with_data_given_in_python_predicts(tmp_path):
    x, y = blobs(60, (16,))
    data = from_arrays(x, y, classes=["a", "b", "c"], test=range(50, 60))
    la.run(
        {"model": {"name": "exact"}, "asking": {"strategy": "resolve"}, "budget": BUDGET},
        data=data,
        out=tmp_path / "run",
    )
    with pytest.raises(InputError, match="given in Python"):
        la.load_model(tmp_path / "run")
    model = run_model(tmp_path / "run", data=data)
    prediction = load_exported(model.save(tmp_path / "out", onnx=False)).predict(x.numpy())
    assert (
        np.mean(
            [ord(label) - ord("a") == int(c) for label, c in zip(prediction.labels, y, strict=True)]
        )
        > 0.9
    )


def test_export_to_full_disk_raises_storage_error(tmp_path):
    """torch writes files itself and reports failures with its own source lines."""
    resource = pytest.importorskip("resource", reason="needs a limit on the size of files")
    run = run_campaign(tmp_path)
    model = run_model(tmp_path / "run")
    assert run.rounds
    old, limits = (
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
        resource.getrlimit(resource.RLIMIT_FSIZE),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, limits[1]))
    try:
        with pytest.raises(StorageError, match="cannot be written to") as refused:
            model.save(tmp_path / "model", onnx=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
    assert "enforce" not in str(refused.value)
    assert not (tmp_path / "model").exists()


def export_model(tmp_path):
    write_images(tmp_path / "set")
    data = {"name": str(tmp_path / "set"), "embedding": "raw", "size": 8}
    run_campaign(tmp_path, data=data, budget={"initial": 6, "labels": 10, "retrain_every": 4})
    return la.load_model(tmp_path / "run").save(tmp_path / "model", onnx=False)


def test_predict_names_unreadable_images_and_predicts_others(tmp_path):
    from typer.testing import CliRunner

    from labelahead.cli import app

    model, new = export_model(tmp_path), tmp_path / "new"
    good = write_images(new, n=3, classes=()) / "00.png"
    (tmp_path / "bad.png").write_bytes(b"no picture")
    (new / "empty.jpg").write_bytes(b"")
    prediction = la.load_model(model).predict([tmp_path / "bad.png", new, good])
    assert len(prediction) == len(prediction.unlike) == len(prediction.variance) == 4
    assert set(prediction.failed) == {"bad.png", f"{new}/empty.jpg"}
    done = CliRunner().invoke(app, ["predict", str(model), str(tmp_path / "bad.png"), str(new)])
    assert done.exit_code == 0
    assert (
        "bad.png cannot be read (it is no picture of a kind that can be read) and is left out"
        in done.output
    )
    assert "3 items" in done.output
    done = CliRunner().invoke(app, ["predict", str(model), str(tmp_path / "bad.png")])
    assert done.exit_code == 1
    assert "no item can be read: bad.png (it is no picture" in done.output
    assert "unexpected" not in done.output


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("model.json", b"{", "JSONDecodeError"),
        ("model.json", b"\xff\xfe\x00", "UnicodeDecodeError"),
        ("model.json", b"[]", "it holds a list"),
        ("model.json", b'{"format": 1}', "classes is missing"),
        (
            "model.json",
            b'{"format": 1, "classes": [], "loss": "squared", "reading": {}, "network": {}}',
            "KeyError",
        ),
        ("weights.pt", b"", "EOFError"),
        ("weights.pt", b"junk", "weights.pt is damaged"),
    ],
)
def test_load_exported_names_damaged_file(tmp_path, name, content, cause):
    model = write_minimal_export(tmp_path)
    (model / name).write_bytes(content)
    with pytest.raises(
        InputError, match="copy the folder again, or export the model again"
    ) as raised:
        la.load_model(model)
    assert str(raised.value).startswith(f"{model / name} is damaged (")
    assert cause in str(raised.value)


def write_minimal_export(tmp_path):
    """Write a folder with all files of a model; the content of intact files does not matter."""
    folder = tmp_path / "model"
    folder.mkdir()
    plain = {"format": 1, "classes": ["a", "b"], "loss": "squared", "reading": None}
    network = {"name": "exact", "shape": [2], "width": None, "dropout": None}
    (folder / "model.json").write_text(json.dumps({**plain, "network": network}))
    torch.save({}, folder / "weights.pt")
    return folder


def export_task(folder, task):
    table = write_task_table(folder, task)
    la.run(table.tables, out=folder / "run", forecast=False)
    return la.load_model(folder / "run").save(folder / "model", onnx=False)


@pytest.mark.parametrize("task", ["multilabel", "number", "rating"])
def test_exported_model_of_a_task_holds_no_answer_and_describes_itself(task, tmp_path):
    folder = export_task(tmp_path, task)
    about = json.loads((folder / "model.json").read_text())
    assert (about["format"], about["task"]["name"]) == (2, task)
    assert "answers" not in about["task"]
    card = (folder / "README.md").read_text()
    assert "labels: 30 in all" in card
    assert "measured on 24 items" in card
    assert {"number": "unit: mg", "rating": "| 3 |", "multilabel": "predicted from this"}[
        task
    ] in card
    loaded = la.load_model(folder)
    assert loaded.task.name == task
    assert len(loaded.predict({c: [0.1, -0.2] for c in "abcd"})) == 2


def test_model_of_a_task_in_another_format_is_refused(tmp_path):
    folder = export_task(tmp_path, "number")
    text = (folder / "model.json").read_text()
    (folder / "model.json").write_text(text.replace('"format": 2', '"format": 1'))
    with pytest.raises(InputError, match="format 1; expected 2"):
        la.load_model(folder)


def test_number_predictions_without_items_are_empty(tmp_path):
    loaded = la.load_model(export_task(tmp_path, "number"))
    found = loaded.predict({c: [] for c in "abcd"})
    assert (len(found), found.labels, found.columns()["low"]) == (0, [], [])


def test_model_of_a_users_own_task_is_refused(tmp_path):
    class Count(Number):
        name = "count"

    table = write_task_table(tmp_path, "number")
    prepared = prepare_campaign(parse_campaign(table.tables))
    prepared = prepared.for_task(Count(["answer"]))
    codes = prepared.task.parse_all([1.0, 2.0, 4.0])
    fitted = prepared.make_learner(1).fit(torch.arange(3), torch.tensor(codes))
    with pytest.raises(InputError, match="own task count, whose code cannot be exported"):
        export.export_model(prepared, fitted.model, dict(enumerate(codes)), (), {})
