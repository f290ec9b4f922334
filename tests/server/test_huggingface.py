"""Labels as a data set of Hugging Face."""

import json

import pytest

from labelahead.data.dataset import NONE_OF_THESE
from labelahead.errors import InputError
from labelahead.server.label_state import Event, build_label_state
from tests.support.exported_labels import (
    CLASSES,
    ITEMS,
    build_state,
    make_label_state,
    write_labels,
)

DATASET_CARD_HEADER = """configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
  - split: predicted
    path: data/predicted-*"""


def test_hf_export_has_class_labels_and_splits(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out"
    state = make_label_state()
    write_labels(state, ITEMS, {17: (2, 0.25)}, "hf", out)
    names = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    assert names == [
        "README.md",
        "data/predicted-00000-of-00001.parquet",
        "data/train-00000-of-00001.parquet",
    ]
    table = parquet.read_table(out / names[2])
    assert table.column("label").to_pylist() == [state.labels[p] for p in sorted(state.labels)]
    assert str(table.schema.field("label").type) == "int64"
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["label"] == {"names": list(CLASSES), "_type": "ClassLabel"}
    assert features["prediction"] == features["label"]
    assert str(table.schema.field("probability").type) == "double"
    predicted = parquet.read_table(out / names[1]).to_pylist()
    assert [(r["id"], r["label"], r["prediction"], r["probability"]) for r in predicted] == [
        ("z.jpg", None, 2, 0.25)
    ]

    text = (out / "README.md").read_bytes().decode()
    lines = text.split("\n")
    assert lines[0] == "---"
    head = lines[1 : lines.index("---", 1)]
    assert "\n".join(head) == DATASET_CARD_HEADER
    with pytest.raises(InputError, match="no class yet"):
        write_labels(build_state([], ()), ITEMS, None, "hf", tmp_path / "none")


def test_hf_export_marks_items_of_no_class(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    events = [Event(1, "t", "", "class", label=0, text="cat")]
    events += [Event(2, "t", "a", "label", 0, 0), Event(3, "t", "a", "label", 1, NONE_OF_THESE)]
    write_labels(build_label_state(events), ITEMS, None, "hf", tmp_path / "out")
    rows = parquet.read_table(tmp_path / "out/data/train-00000-of-00001.parquet").to_pylist()
    assert [(row["label"], row["none_of_these"]) for row in rows] == [(0, False), (None, True)]
