"""Exports in every form contain the user's records and can be imported again.

Columns, ids and labels keep their values.
"""

import csv
import io
import json
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow as arrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.data import load
from labelahead.data.dataset import NONE_OF_THESE
from labelahead.data.text import unescape_formulas
from labelahead.integrations.label_studio.interface import read_interface
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.server.exchange import export_labels, import_labels
from labelahead.server.page_model import PageModel
from labelahead.server.snapshot import TrainingRequest
from labelahead.server.snapshot_builder import build_snapshot
from tests.support.web_sessions import CHANGE, page, photos

CLASSES = ["gut", "schlecht"]
LABELLED = range(6)  # positions that get a label
COUNT = 14
WORDS = ("das Gerät läuft leise und gut", "der Akku ist nach einer Stunde leer, leider")
LABEL_COLUMNS = ["label", "annotator", "labelled_at", "source", "prediction", "probability"]


@dataclass
class Source:
    """A user's data set.

    columns: values by the column's name in exports; ids: of the items, in order of position.
    """

    path: Path
    ids: list[str]
    columns: dict[str, list[Any]]
    shown: str  # the field that Label Studio shows to annotators
    settings: dict[str, Any] = field(default_factory=dict)


def make_texts() -> list[str]:
    return [f'{WORDS[i % 2]}, "Nr. {i}"\nzweite Zeile' for i in range(COUNT)]


def make_awkward_cells() -> list[str]:
    return [
        "=1+1",
        "+49 30",
        "-x",
        "@me",
        "'quoted",
        "a,b",
        "ü\nß",
        "  padded ",
        "",
        "\t",
        "1.50",
        "007",
        "NA",
        "x",
    ]


def csv_source(folder: Path) -> Source:
    ids = [f"r-{7 * i:03d}" for i in range(COUNT)]
    columns = {
        "id": ids,
        "Bewertung": make_texts(),
        "Notiz": make_awkward_cells(),
        "Label": [CLASSES[0], CLASSES[1], *[""] * (COUNT - 2)],  # the data's own labels
        "source": ["shop"] * COUNT,
        "=formula": ["x"] * COUNT,
    }
    path = folder / "bewertungen.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    renamed = {"Label": "Label_original", "source": "source_original"}
    expected = {renamed.get(name, name): values for name, values in columns.items()}
    return Source(path, ids, expected, "Bewertung", {"embedding": "words"})


def parquet_source(folder: Path) -> Source:
    numbers = [100 + 3 * i for i in range(COUNT)]
    columns = {
        "doc": numbers,
        "size": [0.1 * i + (i % 2) for i in range(COUNT)],
        "price": [Decimal(f"{i}.10") for i in range(COUNT)],
        "at": [datetime(2026, 1, 1 + i, tzinfo=UTC) for i in range(COUNT)],
        "kind": ["a" if i % 2 else "b" for i in range(COUNT)],
        "vector": [[0.1 * i, 1.0] for i in range(COUNT)],
        "probability": [i if i % 4 else None for i in range(COUNT)],
    }
    path = folder / "table.parquet"
    parquet.write_table(arrow.table(columns), path)
    expected = {
        "probability_original" if n == "probability" else n: values for n, values in columns.items()
    }
    return Source(path, [str(n) for n in numbers], expected, "record", {"id": "doc"})


def text_source(folder: Path) -> Source:
    ids = [f"sub/{i:02d} ü.txt" for i in range(COUNT)]
    (folder / "docs" / "sub").mkdir(parents=True)
    for name, text in zip(ids, make_texts(), strict=True):
        (folder / "docs" / name).write_bytes(text.encode())
    columns = {"file_name": ids, "text": make_texts()}
    return Source(folder / "docs", ids, columns, "text", {"embedding": "words"})


def photo_source(folder: Path) -> Source:
    ids = [f"{i:02d}.png" for i in range(COUNT)]
    return Source(
        photos(folder / "photos", COUNT),
        ids,
        {"file_name": ids},
        "image",
        {"embedding": "raw", "size": 16},
    )


SOURCES = {
    "csv": csv_source,
    "parquet": parquet_source,
    "texts": text_source,
    "photos": photo_source,
}


@contextmanager
def open_labelled_page(source: Source, out: Path):
    """Open a page on which some items are labelled and the others predicted."""
    tables = {
        "data": {"name": str(source.path), **source.settings},
        "model": {"name": "exact"},
        "threads": 1,
    }
    ready = prepare_campaign(
        parse_campaign({**tables, "data": {**tables["data"], "test_fraction": 0.0}})
    )
    with page(source.path, out, classes=CLASSES, tables=tables) as (client, session):
        session.service.set_page_model(
            PageModel.from_snapshot(build_snapshot(ready, TrainingRequest(0, (), 2)), {}, 2)
        )
        ids = list(session.service.items.ids)
        for position in LABELLED:
            body = {
                "position": ids.index(source.ids[position]),
                "kind": "label",
                "label": position % 2,
            }
            assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 200
        yield client


def to_csv_cells(column: list[Any]) -> list[str]:
    """Convert values to the cells of a CSV file."""
    return [
        "" if v is None else json.dumps(v) if isinstance(v, list) else to_cell(v) for v in column
    ]


def to_cell(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def to_json_values(column: list[Any]) -> list[Any]:
    return [to_cell(v) if isinstance(v, datetime | Decimal) else v for v in column]


def check_label_columns(rows: list[dict[str, Any]], source: Source) -> None:
    """Check that labelled items have a label and its annotator, and all others a prediction."""
    assert [str(row["id"]) for row in rows] == source.ids
    for i, row in enumerate(rows):
        if i in LABELLED:
            label_cells = (row["label"], row["annotator"], row["source"])
            assert label_cells == (CLASSES[i % 2], "me", "label")
            assert row["labelled_at"]
            assert not row["prediction"]
        else:
            assert (row["source"], row["label"] or None) == ("prediction", None)
            assert row["prediction"] in CLASSES
            probabilities = [float(row[f"probability:{name}"]) for name in CLASSES]
            assert float(row["probability"]) == pytest.approx(max(probabilities), abs=1e-6)
            assert sum(probabilities) == pytest.approx(1, abs=1e-6)


@pytest.fixture(scope="module", params=SOURCES)
def exported(request, tmp_path_factory):
    """Return a data set and the page's exports of it in every form."""
    folder = tmp_path_factory.mktemp(request.param)
    source = SOURCES[request.param](folder)
    forms = ("csv", "jsonl", "parquet", "hf", "label-studio", "label-studio-config")
    with open_labelled_page(source, folder / "out") as client:
        replies = {form: client.get(f"/api/export/{form}?rest=1&probabilities=1") for form in forms}
    assert {form: reply.status_code for form, reply in replies.items()} == dict.fromkeys(forms, 200)
    return source, replies


def test_every_export_returns_the_users_records(tmp_path, exported):
    source, replies = exported
    label_columns = [*LABEL_COLUMNS, *(f"probability:{name}" for name in CLASSES)]
    order = ["id", *(name for name in source.columns if name != "id"), *label_columns]

    reader = csv.DictReader(io.StringIO(replies["csv"].text, newline=""))
    rows = [{unescape_formulas(k): unescape_formulas(v) for k, v in row.items()} for row in reader]
    assert list(rows[0]) == order
    check_label_columns(rows, source)
    for name, column in source.columns.items():
        assert [row[name] for row in rows] == to_csv_cells(column), name

    rows = [json.loads(line) for line in replies["jsonl"].text.splitlines()]
    assert list(rows[0]) == [*order, "answers"]
    check_label_columns(rows, source)
    for name, column in source.columns.items():
        assert [row[name] for row in rows] == to_json_values(column), name

    table = parquet.read_table(io.BytesIO(replies["parquet"].content))
    assert table.column_names == order
    check_label_columns(table.to_pylist(), source)
    for name, column in source.columns.items():
        assert table.column(name).to_pylist() == column, name

    check_hugging_face(replies["hf"].content, tmp_path / "hf", source)
    check_tasks(replies["label-studio"].json(), replies["label-studio-config"].text, source)


def check_hugging_face(content: bytes, folder: Path, source: Source) -> None:
    zipfile.ZipFile(io.BytesIO(content)).extractall(folder)
    loaded = datasets.load_dataset(str(folder), cache_dir=str(folder.parent / "cache"))
    assert set(loaded) == {"train", "predicted"}
    for split, positions in (
        ("train", list(LABELLED)),
        ("predicted", list(range(len(LABELLED), COUNT))),
    ):
        part = loaded[split]
        assert part.features["label"].names == part.features["prediction"].names == CLASSES
        assert [str(v) for v in part["id"]] == [source.ids[p] for p in positions]
        for name, column in source.columns.items():
            assert list(part[name]) == [column[p] for p in positions], name
    assert list(loaded["train"]["label"]) == [i % 2 for i in LABELLED]
    assert set(loaded["predicted"]["label"]) == {None}
    assert set(loaded["predicted"]["prediction"]) <= {0, 1}
    if source.shown == "image":
        assert isinstance(loaded["train"].features["image"], datasets.Image)
        assert [picture.size for picture in loaded["train"]["image"]] == [(32, 24)] * len(LABELLED)


def check_tasks(tasks: list[dict[str, Any]], config: str, source: Source) -> None:
    interface = read_interface(config)
    assert interface.choices == tuple(CLASSES)
    assert (interface.pictures or interface.texts) == (source.shown,)
    assert [task["data"]["item_id"] for task in tasks] == source.ids
    for i, task in enumerate(tasks):
        assert task["data"][source.shown]
        for name, column in source.columns.items():
            field_name = (
                name.removesuffix("_original")
                if name in ("source_original", "probability_original")
                else name
            )  # Label Studio tasks have no such field of their own
            assert task["data"][field_name] == to_json_values(column)[i], name
        annotations = task["annotations"] if i in LABELLED else task["predictions"]
        (result,) = annotations[0]["result"]
        assert (result["from_name"], result["to_name"]) == (interface.name, interface.shown)
        assert result["value"]["choices"][0] in CLASSES
    if source.shown == "image":
        assert tasks[0]["data"]["image"].startswith("data:image/png;base64,")


def test_every_export_is_read_back_as_labels(tmp_path, exported):
    source, replies = exported
    data = {"name": str(source.path), **source.settings}
    for form in ("csv", "jsonl", "parquet", "label-studio"):
        with page(
            source.path, tmp_path / f"again-{form}", classes=CLASSES, tables={"data": data}
        ) as (client, session):
            counts = client.post(
                f"/api/import?form={form}", content=replies[form].content, headers=CHANGE
            ).json()
            assert (counts["labels"], counts["unknown"], counts["unclear"]) == (
                len(LABELLED),
                0,
                0,
            ), form
            ids = session.service.items.ids
            labels = {ids[p]: CLASSES[c] for p, c in session.service.label_state.labels.items()}
            assert labels == {source.ids[i]: CLASSES[i % 2] for i in LABELLED}, form


def run_command(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_query_and_label_commands_match_labels_by_id(tmp_path):
    source = csv_source(tmp_path)
    labels = tmp_path / "labels.csv"
    labels.write_text(
        "id,label\n" + "".join(f"{source.ids[i]},{CLASSES[i % 2]}\n" for i in LABELLED)
    )
    out = tmp_path / "next.csv"
    network = ("--model", "exact", "--embedding", "words", "--threads", "1")
    run_command(
        "query",
        "--data",
        str(source.path),
        "--labels",
        str(labels),
        "--n",
        "8",
        "--out",
        str(out),
        *network,
    )
    with out.open(encoding="utf-8", newline="") as file:
        rows = [
            {unescape_formulas(k): unescape_formulas(v) for k, v in row.items()}
            for row in csv.DictReader(file)
        ]
    assert {row["id"] for row in rows} == {source.ids[i] for i in range(len(LABELLED), COUNT)}
    for row in rows:
        position = source.ids.index(row["id"])
        assert row["prediction"] in CLASSES
        assert 0 < float(row["probability"]) <= 1
        assert (row["Bewertung"], row["Notiz"], row["source"]) == (
            make_texts()[position],
            make_awkward_cells()[position],
            "shop",
        )

    folder, exported_csv = tmp_path / "page", tmp_path / "sent.csv"
    shared = ("label", str(source.path), "--out", str(folder), "--classes", ",".join(CLASSES))
    output = run_command(
        *shared, "--labels", str(labels), "--export", "csv", "--to", str(exported_csv)
    )
    assert f"{len(LABELLED)} labels are in" in " ".join(output.split())
    with exported_csv.open(encoding="utf-8", newline="") as file:
        assert [row["id"] for row in csv.DictReader(file)] == [source.ids[i] for i in LABELLED]


def test_import_of_a_0_2_export_matches_items_by_row_number(tmp_path):
    """labelahead 0.2 identified rows by number, even if the table had other numbers as ids."""
    source = parquet_source(tmp_path)
    data = {"name": str(source.path), "id": "doc"}
    old = tmp_path / "old.csv"
    old.write_text(
        "item,label,who,at,source,confidence\n2,gut,anna,t,label,\n3,schlecht,,,prediction,0.9\n"
    )
    with page(source.path, tmp_path / "out", classes=CLASSES, tables={"data": data}) as (
        client,
        session,
    ):
        counts = client.post(
            "/api/import?form=csv", content=old.read_bytes(), headers=CHANGE
        ).json()
        assert (counts["labels"], counts["unknown"]) == (1, 0)
        assert session.service.label_state.labels == {2: 0}
        task = [
            {
                "data": {"item": "4"},
                "annotations": [{"result": [{"value": {"choices": ["gut"]}}], "who": "anna"}],
            }
        ]
        counts = client.post(
            "/api/import?form=label-studio", content=json.dumps(task), headers=CHANGE
        ).json()
        assert (counts["labels"], session.service.label_state.labels) == (1, {2: 0, 4: 0})


def test_session_begun_with_row_numbers_reopens_with_ids(tmp_path):
    """Earlier versions did not take ids from a column."""
    source = parquet_source(tmp_path)
    for id_column, names in (("none", [str(i) for i in range(COUNT)]), ("doc", source.ids)):
        tables = {"data": {"name": str(source.path), "id": id_column}}
        with page(source.path, tmp_path / "out", classes=CLASSES, tables=tables) as (
            client,
            session,
        ):
            assert list(session.service.items.ids) == names
            if id_column == "none":
                body = {"position": 3, "kind": "label", "label": 1}
                assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 200
            assert session.service.label_state.labels == {3: 1}


def test_predict_command_returns_the_users_records(tmp_path):
    source = parquet_source(tmp_path)
    labels = tmp_path / "labels.csv"
    labels.write_text(
        "id,label\n" + "".join(f"{source.ids[i]},{CLASSES[i % 2]}\n" for i in LABELLED)
    )
    folder = tmp_path / "page"
    tables = {"data": {"name": str(source.path), "id": "doc"}, "model": {"name": "exact"}}
    with page(source.path, folder, classes=CLASSES, tables=tables, labels=labels):
        pass
    out = tmp_path / "predictions.parquet"
    run_command("predict", str(folder), str(source.path), "--out", str(out), "--probabilities")
    table = parquet.read_table(out)
    prediction_columns = [
        "prediction",
        "probability",
        *(f"probability:{c}" for c in CLASSES),
        "unlike_labelled",
    ]
    assert table.column_names == ["id", *source.columns, *prediction_columns]
    assert table.column("id").to_pylist() == source.ids
    for name, column in source.columns.items():
        assert table.column(name).to_pylist() == column, name
    columns = [table.column(f"probability:{name}").to_pylist() for name in CLASSES]
    for prediction, probability, probabilities in zip(
        table.column("prediction").to_pylist(),
        table.column("probability").to_pylist(),
        zip(*columns, strict=True),
        strict=True,
    ):
        assert probability == max(probabilities) == probabilities[CLASSES.index(prediction)]
    with pytest.raises(AssertionError, match="repeat an id in the column 'kind'"):
        run_command("predict", str(folder), str(source.path), "--id", "kind")


def test_id_column_is_not_a_feature(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,size\n" + "".join(f"{i * i},{i % 3}\n" for i in range(9)))
    data, _ = load(path)
    assert data.ids == tuple(str(i * i) for i in range(9))
    assert data.shape == (1,)
    numbered, _ = load(path, id="none")
    assert (numbered.ids[8], numbered.shape) == ("8", (1,))
    by_size, _ = load(path, id="none", without=["id"])
    assert by_size.shape == (1,)
    path.write_text(path.read_text().replace("id,", "key,"))
    keyed, _ = load(path, id="key")
    assert (keyed.ids, keyed.shape) == (data.ids, (1,))


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "label-studio", "folders"])
def test_none_of_these_is_exported_as_a_value_and_imported_again(form, tmp_path):
    source = photos(tmp_path / "set", 4)
    suffix = {"label-studio": ".json", "folders": ""}.get(form, f".{form}")
    file = tmp_path / f"labels{suffix}"
    with page(source, tmp_path / "out", classes=["cat", "dog"]) as (_, session):
        for position, label in ((0, 1), (2, NONE_OF_THESE)):
            session.service.record_answer("anna", position, "label", label)
        export_labels(session.service, form, file)
        config = tmp_path / "config.xml"
        export_labels(session.service, "label-studio-config", config)
        assert read_interface(config.read_text()).choices == ("cat", "dog", "none of these")
    if form == "csv":
        rows = list(csv.DictReader(file.open(newline="")))
        assert [row["label"] for row in rows] == ["dog", "none of these"]
    with page(source, tmp_path / "again", classes=["cat", "dog"]) as (_, session):
        assert import_labels(session.service, file)["labels"] == 2
        assert session.service.label_state.labels == {0: 1, 2: NONE_OF_THESE}
        assert session.service.label_state.classes == ("cat", "dog")
