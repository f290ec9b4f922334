"""The same data and labels give the same predictions through every interface."""

import csv
import io
import json
import random
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import uvicorn
from PIL import Image
from sklearn.datasets import load_iris
from starlette.testclient import TestClient
from typer.testing import CliRunner

import labelahead as la
from labelahead.cli import app as commands
from labelahead.data.new_items import read_new_items
from labelahead.integrations.label_studio.connection import Connection
from labelahead.integrations.label_studio.gateway import SECRET_HEADER, LabelStudioGateway, protocol
from labelahead.integrations.label_studio.predictions import write_predictions
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.learner.sklearn import Classifier, Regressor
from labelahead.models import build_model
from labelahead.models.encoder_names import IMAGE
from labelahead.models.encoders import load_encoder
from labelahead.outofcore import EmbedOptions, LargePool
from labelahead.outofcore.store import embed
from labelahead.seeds import derive_training_seed
from labelahead.server.app import create_app
from labelahead.server.client import Client
from labelahead.server.session import SessionOptions, open_session
from tests.support.label_studio import KEY, replay
from tests.support.sounds import make_sound, write_sound
from tests.support.task_tables import write_task_table
from tests.support.tiny_encoders import save_tiny_encoders
from tests.support.waiting import until

IN_MEMORY, THROUGH_ONNX = 1e-6, 1e-4
Predictions = dict[str, tuple[str, float]]  # item -> (predicted class, its probability)
TOPICS = {
    "animals": (
        "the dog and the cat chased a bird through the garden near the old farm with "
        "horses and sheep"
    ),
    "kitchen": (
        "stir butter flour sugar and eggs into the bowl then bake the cake in a hot oven with salt"
    ),
    "space": (
        "the rocket left its orbit and the telescope saw a distant planet beyond the moon "
        "and the stars"
    ),
}


class Case:
    """A data set on disk, some of its labels, and the configuration of its model."""

    def __init__(
        self, source: Path, classes, truth: dict[str, str], *, labelled: int, **tables
    ) -> None:
        self.source, self.classes, self.truth = source, list(classes), truth
        items = list(truth)
        random.Random(3).shuffle(items)
        self.labels = {item: truth[item] for item in items[:labelled]}
        self.rest = [item for item in truth if item not in self.labels]
        self.tables = {
            "data": {"name": str(source), **tables.pop("data", {})},
            "threads": 1,
        } | tables
        self.file = source.parent / "given.csv"
        with self.file.open("w", newline="") as file:
            csv.writer(file).writerows([("item", "label"), *self.labels.items()])

    @property
    def guesses(self) -> list[str]:
        return self.tables["data"].get("guesses", [])

    @property
    def options(self) -> list[str]:
        model, embedding = (
            self.tables.get("model", {}).get("name"),
            self.tables["data"].get("embedding"),
        )
        options_of_model = ["--model", model] if model else []
        guesses = [word for name in self.guesses for word in ("--guesses", name)]
        prior = self.tables["data"].get("prior")
        return [
            *options_of_model,
            *guesses,
            *(["--prior", prior] if prior else []),
            *(["--embedding", embedding] if embedding else []),
            "--threads",
            "1",
        ]


def make_table(folder: Path, columns: int, **more) -> Case:
    data = load_iris()
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [data.data[:, :columns], rng.normal(size=(len(data.data), max(0, columns - 4)))], 1
    )
    x = x[rng.permutation(len(x))[:70]] if more.get("few") else x
    order = rng.permutation(len(data.data))[:80]
    path = folder / "flowers.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"column {i}" for i in range(columns)])
        writer.writerows([[f"{v:.2f}" for v in x[i]] for i in order])
    truth = {str(i): str(data.target_names[data.target[p]]) for i, p in enumerate(order)}
    return Case(path, data.target_names, truth, labelled=30, **more)


def make_texts(folder: Path, **more) -> Case:
    rng, path = random.Random(0), folder / "texts.csv"
    names = [name for name in TOPICS for _ in range(20)]
    rng.shuffle(names)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "llm"] if more else ["text"])
        for i, name in enumerate(names):
            other = rng.choice([*TOPICS])
            guess = [name, name, other, ""][i % 4]
            writer.writerow(
                [
                    " ".join(
                        [
                            *rng.sample(TOPICS[name].split(), 6),
                            *rng.sample(TOPICS[other].split(), 4),
                            str(i),
                        ]
                    ),
                    *([guess] if more else []),
                ]
            )
    truth = {str(i): name for i, name in enumerate(names)}
    return Case(path, TOPICS, truth, labelled=20, **more)


def make_photographs(folder: Path, **more) -> Case:
    rng, truth = np.random.default_rng(0), {}
    path = folder / "photos"
    path.mkdir()
    for i in range(48):
        kind = i % 3
        y, x = np.mgrid[0:48, 0:64]
        wave = np.sin((x if kind == 0 else y if kind == 1 else x + y) / (3 + rng.random())) * 22
        pixels = (
            (120 + wave[..., None] + rng.normal(0, 90, (48, 64, 3))).clip(0, 255).astype(np.uint8)
        )
        Image.fromarray(pixels).save(path / f"p{i:02d}.png")
        truth[f"p{i:02d}.png"] = ("across", "down", "slanted")[kind]
    return Case(path, ("across", "down", "slanted"), truth, labelled=20, **more)


def make_sounds(folder: Path, **more) -> Case:
    """Write tones and noise, and use a tiny wav2vec2 with random weights."""
    encoder = save_tiny_encoders(folder / "encoders") / "wav2vec2"
    path, truth = folder / "sounds", {}
    for i in range(36):
        kind = ("noise", "tone")[i % 2]
        # A faint tone in noise: probabilities of 1 would show nothing.
        samples = 0.1 * make_sound(kind, i, 0.25, 8000) + make_sound("noise", 99 + i, 0.25, 8000)
        write_sound(path / f"s{i:02d}.flac", samples.clip(-1, 1), 8000)
        truth[f"s{i:02d}.flac"] = kind
    data = {"embedding": f"hf:{encoder}"}
    return Case(path, ("noise", "tone"), truth, labelled=14, data=data, **more)


CASES = {
    "table": lambda folder: make_table(folder, 7),
    "table of four columns": lambda folder: make_table(folder, 4),
    "table of three columns": lambda folder: make_table(folder, 3),
    "texts": make_texts,
    "texts with guesses": lambda folder: make_texts(
        folder, data={"guesses": ["llm"], "prior": "class-names", "classes": [*TOPICS]}
    ),
    "photographs": make_photographs,
    "photographs by an encoder": lambda folder: make_photographs(
        folder, data={"embedding": f"hf:{save_tiny_encoders(folder / 'encoders') / 'vit'}"}
    ),
    "sounds": make_sounds,
    "trained network": lambda folder: make_table(
        folder, 7, model={"name": "mlp"}, training={"steps": 60}
    ),
    "trained network, cross-entropy": lambda folder: make_table(
        folder, 4, model={"name": "mlp"}, training={"steps": 40, "loss": "cross-entropy"}
    ),
    "trained network on pixels": lambda folder: make_photographs(
        folder, model={"name": "cnn"}, data={"embedding": "raw", "size": 16}, training={"steps": 20}
    ),
}


# --- the interfaces
# ------------------------------------------------------------------------------------------------


def read_predictions(rows) -> Predictions:
    return {
        r["id"]: (r["prediction"], float(r["probability"]))
        for r in rows
        if r["source"] == "prediction"
    }


def run_command(*words: object) -> str:
    result = CliRunner().invoke(commands, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


@contextmanager
def open_case_session(case: Case, out: Path, *, start: bool):
    with open_session(
        parse_campaign(case.tables),
        out,
        SessionOptions(case.classes, labels=None if (out / "labels.db").exists() else case.file),
    ) as session:
        if start:
            session.schedule.start()
            until(
                lambda: session.schedule.is_idle and session.service.page_model is not None,
                session.schedule.describe_status,
            )
        yield session


@contextmanager
def run_server(app):
    """Run the application on a real port and yield its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def predict_by_page(case: Case, out: Path, tmp_path: Path) -> dict[str, Predictions]:
    """Predict by exports of the page, downloaded with `Client`."""
    with open_case_session(case, out, start=True) as session:
        app = create_app(session.service, session.schedule)
        with run_server(app) as url:
            client = Client(url)
            page = client.export("csv", tmp_path / "page.csv", rest=True)
            lines = client.export("jsonl", tmp_path / "page.jsonl", rest=True)
        return {
            "Client.export csv": read_predictions(
                csv.DictReader(page.read_text(encoding="utf-8").splitlines())
            ),
            "page jsonl": read_predictions(
                map(json.loads, lines.read_text(encoding="utf-8").splitlines())
            ),
        }


def predict_by_label_command(case: Case, out: Path, tmp_path: Path) -> dict[str, Predictions]:
    to = tmp_path / "command.csv"
    run_command(
        "label",
        case.source,
        "--out",
        out,
        *case.options,
        *training_options(case),
        "--export",
        "csv",
        "--to",
        to,
        "--rest",
    )
    return {
        "label --export --rest": read_predictions(
            csv.DictReader(to.read_text(encoding="utf-8").splitlines())
        )
    }


def training_options(case: Case) -> list[str]:
    settings = case.tables.get("training", {}) | {}
    words = [f"training.{name}={json.dumps(value)}" for name, value in settings.items()]
    words += [f"data.size={case.tables['data']['size']}"] if "size" in case.tables["data"] else []
    return [word for pair in words for word in ("--set", pair)]


def predict_by_models(
    case: Case, out: Path, tmp_path: Path
) -> tuple[dict[str, Predictions], dict[str, Predictions]]:
    """Predict by `predict` on the session, `export-model` and `load_model`; and by ONNX."""

    def parse_predictions(text: str) -> Predictions:
        rows = csv.DictReader(io.StringIO(text))
        return {Path(r["id"]).name: (r["prediction"], float(r["probability"])) for r in rows}

    folder = tmp_path / "model"
    run_command("export-model", out, "--to", folder, "--onnx")
    found = {"predict": parse_predictions(run_command("predict", out, case.source))}
    found["predict, exported"] = parse_predictions(run_command("predict", folder, case.source))
    model = la.load_model(folder)
    predictions_of_model = model.predict(case.source)
    top = predictions_of_model.probabilities.amax(1).tolist()
    found["load_model"] = {
        Path(i).name: pair
        for i, *pair in zip(
            predictions_of_model.items, predictions_of_model.labels, top, strict=True
        )
    }
    runtime = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    by_onnx: Predictions = {}
    for part in read_new_items(model.preprocessor, case.source, model):
        given = {"items": part.values.numpy()}
        if runtime.get_inputs()[0].name == "pixel_values":  # the encoder is in it, too
            pictures = [Image.open(case.source / Path(i).name).convert("RGB") for i in part.ids]
            prepared = load_encoder(case.tables["data"]["embedding"], IMAGE).backend.prepare(
                pictures
            )
            given = {key: value.numpy() for key, value in prepared.items()}
        p = runtime.run(None, given)[0]
        by_onnx |= {
            Path(i).name: (model.classes[row.argmax()], float(row.max()))
            for i, row in zip(part.ids, p, strict=True)
        }
    return found, {"ONNX": by_onnx}


def predict_by_query_command(case: Case) -> dict[str, Predictions]:
    words = [
        "query",
        "--data",
        case.source,
        *case.options,
        *training_options(case),
        "--labels",
        case.file,
    ]
    words += ["--classes", ",".join(case.classes), "--n", len(case.rest), "--format", "json"]
    rows = json.loads(run_command(*words))
    return {"query": {r["id"]: (r["prediction"], r["probability"]) for r in rows}}


def predict_in_python(case: Case) -> dict[str, Predictions]:
    """Predict by `Learner` and `Classifier` on the page's inputs."""
    prepared = prepare_campaign(parse_campaign(case.tables))
    ids, inputs = list(prepared.data.ids), prepared.rows
    labelled = sorted(ids.index(item) for item in case.labels)
    class_numbers = [case.classes.index(case.labels[ids[p]]) for p in labelled]
    names = np.array(case.classes)
    exact = "model" not in case.tables

    def to_predictions(p) -> Predictions:
        return {
            item: (str(names[int(row.argmax())]), float(row.max()))
            for item, row in zip(ids, p, strict=True)
        }

    if prepared.guesses is not None:
        features = inputs[:, : prepared.feature_width]
        deviations = prepared.guesses.deviations.double().split(len(names), 1)
        guesses = {
            name: d + 1 / len(names)
            for name, d in zip(prepared.guesses.names, deviations, strict=True)
        }
        learner = la.Learner(la.exact(features, len(names), guesses), features)
        learner.teach(labelled, class_numbers)
        return {
            "Learner": to_predictions(learner.predict()),
            "Classifier": to_predictions(
                predict_by_classifier(features, guesses, labelled, class_numbers)
            ),
        }
    if exact:
        learner = la.Learner(la.exact(inputs, len(names)), inputs, "flip")
        learner.teach(labelled[:7], class_numbers[:7])
        learner.query(1)
        learner.teach(labelled[7:], class_numbers[7:])
        rest = [p for p in range(len(ids)) if p not in set(labelled)]
        x = inputs.flatten(1).numpy()
        classifier = Classifier().fit(x[labelled], names[class_numbers], X_pool=x[rest])
        p = classifier.predict_proba(x)
        columns = [list(classifier.classes_).index(name) for name in names]
        return {
            "Learner": to_predictions(learner.predict()),
            "Classifier": to_predictions(p[:, columns]),
        }
    seed = derive_training_seed(0, 0)
    module = build_model(
        prepared.campaign.model.name, tuple(inputs.shape[1:]), len(names), seed=seed
    )
    classifier = Classifier(module, training=prepared.training, random_state=seed)
    p = classifier.fit(inputs[labelled].numpy(), np.array(class_numbers)).predict_proba(
        inputs.numpy()
    )
    learner = la.Learner(classifier.model_, inputs, "flip", training=prepared.training)
    before = learner.predict()
    learner.query(2)  # a query changes no prediction
    assert torch.equal(learner.predict(), before)
    return {"Classifier": to_predictions(p), "Learner": to_predictions(before)}


def predict_by_classifier(features, guesses, labelled, class_numbers):
    """Predict by `Classifier` with guesses, among them missing ones, as probabilities."""
    x, y = features.numpy(), np.array(class_numbers)
    rest = [p for p in range(len(x)) if p not in set(labelled)]
    rows = {}
    for name, p in guesses.items():
        missing = (p == p[:, :1]).all(1)
        rows[name] = p.masked_fill(missing[:, None], torch.nan).numpy()
    classifier = Classifier().fit(
        x[labelled],
        y,
        X_pool=x[rest],
        guesses={name: p[labelled] for name, p in rows.items()},
        pool_guesses={name: p[rest] for name, p in rows.items()},
    )
    return torch.from_numpy(classifier.predict_proba(x, rows))


def predict_by_pool(case: Case, tmp_path: Path) -> dict[str, Predictions]:
    """Predict by an out-of-core pool of the same embeddings."""
    prepared = prepare_campaign(parse_campaign(case.tables))
    vectors = prepared.rows.flatten(1).numpy()
    folder = tmp_path / "pool"
    folder.mkdir()
    rows = {"id": list(prepared.data.ids), "vector": list(vectors)}
    pq.write_table(pa.table(rows), folder / "a.parquet", row_group_size=17)
    embed(folder, tmp_path / "store", EmbedOptions(id="id", dtype="float32"), workers=1)
    pool = LargePool(tmp_path / "store", workers=1)
    queried = pool.query(5, str(case.file), classes=case.classes)
    pool.predict(str(case.file), tmp_path / "predicted", classes=case.classes)
    found = pq.read_table(tmp_path / "predicted").to_pylist()
    return {
        "pool predict": {r["id"]: (r["prediction"], r["probability"]) for r in found},
        "pool query": {q.id: (q.prediction, q.probability) for q in queried},
    }


def make_studio_guess(row: dict[str, str], number: int) -> list[dict]:
    """Return the guess of a row as a prediction of another model in Label Studio."""
    if not row.get("llm"):
        return []
    region = {"from_name": "topic", "value": {"choices": [row["llm"]]}}
    return [{"id": number, "model_version": "other", "result": [region]}]


def predict_by_label_studio(case: Case, tmp_path: Path) -> dict[str, Predictions]:
    """Predict by pre-annotations of tasks with the same texts."""
    with case.source.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with replay() as studio:
        tasks = [
            {"id": i, "data": {"text": row["text"]}, "predictions": make_studio_guess(row, i)}
            for i, row in enumerate(rows, 1)
        ]
        studio.replies["tasks"] = {"total": len(tasks), "tasks": tasks}
        studio.replies["project"]["label_config"] = (
            '<View><Text name="text" value="$text"/><Choices name="topic" toName="text">'
            + "".join(f'<Choice value="{name}"/>' for name in case.classes)
            + "</Choices></View>"
        )
        studio.replies["annotations"] = []
        connection = Connection.open(studio.url, KEY, studio.project, tmp_path / "studio")
        fetched = connection.fetch_tasks(lambda done, of: None)
        data = {key: case.tables["data"][key] for key in ("prior",) if key in case.tables["data"]}
        if case.guesses:
            file, _ = write_predictions(connection.studio, connection.interface, tmp_path)
            data["guesses"] = [str(file)]
        tables = {"data": {"name": str(fetched.folder), **data}, "threads": 1}
        with open_session(
            parse_campaign(tables),
            tmp_path / "studio",
            SessionOptions(connection.interface.choices),
        ) as session:
            session.schedule.start()
            until(
                lambda: session.schedule.is_idle and session.service.page_model is not None,
                session.schedule.describe_status,
            )
            bridge = connection.make_bridge(session.service, fetched, predictions=True)
            position_of = {item: p for p, item in enumerate(session.service.items.ids)}
            label_by_item = {f"{int(item) + 1}.txt": label for item, label in case.labels.items()}
            session.service.add_labels(
                [(position_of[item], label, "anna") for item, label in label_by_item.items()]
            )
            page = create_app(session.service, session.schedule)
            gateway = LabelStudioGateway(protocol(bridge), page, secret="s3cret-s3cret")
            with TestClient(
                gateway, base_url="http://127.0.0.1", headers={SECRET_HEADER: "s3cret-s3cret"}
            ) as client:
                results = client.post("/predict", json={"tasks": tasks}).json()["results"]
    return {
        "Label Studio": {
            str(i): (result["result"][0]["value"]["choices"][0], result["score"])
            for i, result in enumerate(results)
        }
    }


def check_equal_predictions(
    interfaces: dict[str, Predictions], expected: Predictions, tolerance: float
) -> None:
    for interface, found in interfaces.items():
        assert found, interface
        if interface != "pool query":
            assert set(expected) <= set(found), (
                f"{interface} lacks {sorted(set(expected) - set(found))[:3]}"
            )
        for item in set(found) & set(expected):
            assert found[item][0] == expected[item][0], (
                f"{interface}, item {item}: {found[item]} is not {expected[item]}"
            )
            assert found[item][1] == pytest.approx(expected[item][1], abs=tolerance), (
                f"{interface}, item {item}"
            )


SLOW = {
    "table",
    "table of four columns",
    "table of three columns",
    "photographs by an encoder",
    "trained network on pixels",
    "trained network, cross-entropy",
}  # similar cases run every time


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES]
)
def test_every_interface_gives_the_same_class_and_probability(name, tmp_path):
    case, out = CASES[name](tmp_path), tmp_path / "out"
    interfaces = predict_by_page(case, out, tmp_path)
    expected = interfaces["Client.export csv"]
    assert set(expected) == set(case.rest)
    probabilities = [p for _, p in expected.values()]
    assert min(probabilities) < 0.99, "an easy set shows nothing"
    interfaces |= predict_by_label_command(case, out, tmp_path)
    found, by_onnx = predict_by_models(case, out, tmp_path)
    interfaces |= found | predict_by_query_command(case) | predict_in_python(case)
    # A pool takes vectors of any kind.
    if "model" not in case.tables and not case.guesses and name != "sounds":
        interfaces |= predict_by_pool(case, tmp_path)
    if name in ("texts", "texts with guesses"):
        interfaces |= predict_by_label_studio(case, tmp_path)
    check_equal_predictions(interfaces, expected, IN_MEMORY)
    check_equal_predictions(by_onnx, expected, THROUGH_ONNX)


def read_csv(text):
    return {row["id"]: row for row in csv.DictReader(io.StringIO(text))}


def run_task(folder, task):
    """Run a campaign of a task on a table without test items; return the table, and its labels."""
    table = write_task_table(folder, task)
    tables = {**table.tables, "data": {**table.tables["data"], "test_fraction": 0.0}}
    result = la.run(tables, out=folder / "run", forecast=False)
    return table, result.pool.labelled.tolist()


def learn_in_python(table, labelled):
    """Return the columns of predictions of all items by a `Learner`."""
    tables = {**table.tables, "data": {**table.tables["data"], "test_fraction": 0.0}}
    prepared = prepare_campaign(parse_campaign(tables))
    learner = la.Learner(la.exact(prepared.rows, task=prepared.task), prepared.rows)
    learner.teach(labelled, [table.answers[p] for p in labelled])
    return prepared, learner.predict(range(len(prepared.data))).columns()


def compare_columns(rows, wanted, ids, tolerance):
    """Compare the rows of a file with columns of all items."""
    for name, values in wanted.items():
        found = [rows[i][name] for i in ids]
        want = [values[int(i.removeprefix("item"))] for i in ids]
        if isinstance(want[0], str):
            assert found == want
        else:
            assert [float(v) for v in found] == pytest.approx(want, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("task", ["multilabel", "number", "rating"])
def test_a_task_has_the_same_predictions_everywhere(task, tmp_path):
    table, labelled = run_task(tmp_path, task)
    prepared, wanted = learn_in_python(table, labelled)
    ids = [f"item{i}" for i in range(len(table.answers))]
    runner = CliRunner()
    result = runner.invoke(
        commands, ["export-model", str(tmp_path / "run"), "--to", str(tmp_path / "model"), "--onnx"]
    )
    assert result.exit_code == 0, result.output
    for folder in ("run", "model"):
        out = tmp_path / f"{folder}.csv"
        command = ["predict", str(tmp_path / folder), str(table.path), "--out", str(out)]
        result = runner.invoke(commands, [*command, "--probabilities"])
        assert result.exit_code == 0, result.output
        compare_columns(read_csv(out.read_text()), wanted, ids, 2e-6)
    out = tmp_path / "predictions.parquet"
    result = runner.invoke(
        commands, ["predict", str(tmp_path / "model"), str(table.path), "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    kept = {row["id"]: row for row in pq.read_table(out).to_pylist()}
    compare_columns(kept, {"prediction": wanted["prediction"]}, ids, 1e-6)

    labels = tmp_path / "labels.csv"
    with labels.open("w", newline="") as file:
        csv.writer(file).writerows(
            [("id", "label"), *((ids[p], table.answers[p]) for p in labelled)]
        )
    unlabelled = tmp_path / "unlabelled.csv"
    with table.path.open() as given, unlabelled.open("w", newline="") as file:
        csv.writer(file).writerows(row[:-1] for row in csv.reader(given))
    options = ["--task", task, "--threads", "1"]
    options += (
        []
        if task == "number"
        else [
            "--classes",
            ",".join(prepared.task.describe()["levels" if task == "rating" else "classes"]),
        ]
    )
    result = runner.invoke(
        commands,
        ["query", "--data", str(unlabelled), "--labels", str(labels), "--n", "20", *options,
         "--out", str(tmp_path / "query.csv")],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = read_csv((tmp_path / "query.csv").read_text())
    assert len(rows) == 20
    assert not set(rows) & {ids[p] for p in labelled}
    renamed = {"expected_score" if name == "score" else name: v for name, v in wanted.items()}
    compare_columns(rows, renamed, list(rows), 2e-6)

    session = onnxruntime.InferenceSession(str(tmp_path / "model" / "model.onnx"))
    model = la.load_model(tmp_path / "model")
    read = next(iter(read_new_items(model.preprocessor, table.path, model))).values
    computed = dict(
        zip(
            [o.name for o in session.get_outputs()],
            session.run(None, {"items": read.numpy()}),
            strict=True,
        )
    )
    if task == "number":
        scale = np.std(wanted["prediction"])
        for output, column in (("mean", "prediction"), ("low", "low"), ("high", "high")):
            difference = np.abs(computed[output][:, 0] - np.array(wanted[column]))
            assert difference.max() < 1e-3 * scale
    else:
        names = [name for name in wanted if name.startswith("probability:")]
        want = np.stack([wanted[name] for name in names], axis=1)
        assert np.abs(computed["probabilities"] - want).max() < THROUGH_ONNX
        if task == "multilabel":
            thresholds = json.loads((tmp_path / "model" / "model.json").read_text())["thresholds"]
            chosen = computed["probabilities"] >= list(thresholds.values())
            text = [";".join(np.array(list(thresholds))[row]) or "[]" for row in chosen]
            assert text == wanted["prediction"]


def test_a_number_has_the_same_interval_by_the_regressor(tmp_path):
    table, labelled = run_task(tmp_path, "number")
    prepared, wanted = learn_in_python(table, labelled)
    x = prepared.rows.numpy()
    rest = np.setdiff1d(np.arange(len(x)), labelled)
    y = np.array([float(table.answers[p].removesuffix(" mg")) for p in labelled])
    regressor = Regressor().fit(x[labelled], y, X_pool=x[rest])
    low, high = regressor.predict_interval(x)
    assert regressor.predict(x) == pytest.approx(np.array(wanted["prediction"]), rel=1e-5)
    assert low == pytest.approx(np.array(wanted["low"]), rel=1e-5)
    assert high == pytest.approx(np.array(wanted["high"]), rel=1e-5)
