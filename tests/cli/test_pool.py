"""The pool commands."""

import json
import re

import numpy as np
import pyarrow.dataset as dataset
import pytest
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.outofcore import LargePool
from tests.support.large_pools import (
    CLASSES,
    Inline,
    clouds,
    parquet_pool,
    write_labels,
    write_network,
)

N = 120
INLINE = Inline()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A store that `pool embed` wrote, a label file, a query of it, and the output of both."""
    folder = tmp_path_factory.mktemp("stored")
    x, y = clouds(N)
    parquet_pool(folder / "pool", x)
    labels = write_labels(
        folder / "labels.csv", [(f"item {i}", CLASSES[y[i]]) for i in range(0, N, 6)]
    )
    store, invoke = str(folder / "store"), CliRunner().invoke
    done = invoke(app, ["pool", "embed", str(folder / "pool"), "--store", store, "--workers", "1"])
    assert done.exit_code == 0, done.output
    query = [store, "--labels", str(labels), "--n", "3", "--format", "json", "--workers", "1"]
    queried = invoke(app, ["pool", "query", *query])
    assert queried.exit_code == 0, queried.output
    return store, labels, query, done, queried


def test_cli_pool_embeds_queries_and_predicts(stored, tmp_path):
    store, labels, _, done, queried = stored
    assert "120 items in 3 parts, 6 numbers each" in done.output
    items = [row["id"] for row in json.loads(queried.stdout)]
    assert items == [q.id for q in LargePool(store, executor=INLINE).query(3, labels)]
    out = ["--out", str(tmp_path / "p"), "--workers", "1"]
    predicted = CliRunner().invoke(app, ["pool", "predict", store, "--labels", str(labels), *out])
    assert "120 predictions are in" in predicted.output
    assert "estimated error rate" in predicted.output
    assert dataset.dataset(tmp_path / "p").count_rows() == N


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--workers", "2", "--cluster", "tcp://127.0.0.1:9"], "expected one of them"),
        (["--tls-ca", "ca.pem"], "go with --cluster"),
        (["--cluster", "tls://127.0.0.1:9", "--tls-ca", "ca.pem"], "some are missing"),
        (["--format", "xml"], "expected csv or json"),
    ],
)
def test_cli_pool_incompatible_options_are_usage_errors(tmp_path, more, message):
    result = CliRunner().invoke(app, ["pool", "query", str(tmp_path), *more])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_cli_pool_ask_is_a_deprecated_alias_of_query(stored):
    _, _, query, _, now = stored
    before = CliRunner().invoke(app, ["pool", "ask", *query])
    assert now.exit_code == before.exit_code == 0
    assert before.stdout == now.stdout
    assert "use `pool query`" in before.stderr
    assert "deprecated" not in now.stderr
    assert " ask " not in CliRunner().invoke(app, ["pool", "--help"]).output


@pytest.mark.slow
def test_cli_sketched_pool_with_npy_embeds_and_queries(tmp_path):
    x, y = clouds(60)
    np.save(tmp_path / "x.npy", x)
    write_network(tmp_path)
    run = CliRunner().invoke
    how = [
        "--model",
        f"{tmp_path / 'net.py'}:make",
        "--classes",
        ",".join(CLASSES),
        "--sketch",
        "32",
    ]
    store = str(tmp_path / "s")
    done = run(
        app, ["pool", "embed", str(tmp_path / "x.npy"), "--store", store, *how, "--workers", "1"]
    )
    assert done.exit_code == 0, done.output
    assert "60 items in 1 parts" in done.output
    assert (
        json.loads((tmp_path / "s" / "manifest.json").read_text())["reading"]["network"]["sketch"]
        == 32
    )
    (tmp_path / "l.csv").write_text(
        "item,label\n" + "".join(f"x.npy:{i},{CLASSES[y[i]]}\n" for i in range(0, 60, 4))
    )
    queried = run(
        app,
        ["pool", "query", store, "--labels", str(tmp_path / "l.csv"), "--n", "2", "--workers", "1"],
    )
    assert queried.exit_code == 0, queried.output
    assert len(queried.stdout.strip().splitlines()) == 3


def test_cli_pool_query_shows_the_accuracy_of_annotators_as_query_does(stored, tmp_path):
    """The estimates are those of `query` on the same vectors, with and without guesses."""
    store, *_ = stored
    x, y = clouds(N)
    rows = [(i, CLASSES[y[i]], "anna") for i in range(0, N, 2)]
    rows += [(i, CLASSES[(y[i] + (i % 3 == 0)) % len(CLASSES)], "ben") for i in range(0, N, 2)]
    table, labels, said = (tmp_path / name for name in ("t.csv", "labels.csv", "said.csv"))
    np.save(tmp_path / "x.npy", x)
    table.write_text("id\n" + "".join(f"item {i}\n" for i in range(N)))
    lines = [f"item {i},{label},{who}" for i, label, who in rows]
    labels.write_text("\n".join(["id,label,annotator", *lines]) + "\n")
    said.write_text("id,guess\n" + "".join(f"item {i},{CLASSES[c]}\n" for i, c in enumerate(y)))
    words = ["--labels", str(labels), "--n", "3"]
    vectors = ["query", "--data", str(table), "--embedding", str(tmp_path / "x.npy"), *words]
    guesses = ["--guesses", str(said)]
    notes = []
    for command in (
        ["pool", "query", store, *words, "--workers", "1", *guesses],
        [*vectors, *guesses],
        vectors,
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        text = " ".join(done.output.split())
        assert "labels are weighed by the estimated accuracy of their source: anna" in text
        assert "weighed" not in done.stdout  # it is a file of items
        notes.append(re.findall(r"(anna|ben) (\d+)% of (\d+)", text))
    large = LargePool(store, executor=INLINE)
    large.query(3, labels)
    found = large.source_accuracy.items()
    plain = [(name, f"{s.accuracy:.0%}".rstrip("%"), str(s.labels)) for name, s in found]
    assert (notes[0], plain) == (notes[1], notes[2])
    assert [(name, count) for name, _, count in plain] == [("anna", "60"), ("ben", "60")]
    assert int(plain[0][1]) > int(plain[1][1])


def test_cli_pool_query_takes_guesses_and_predict_refuses_a_file(stored, tmp_path):
    """The same items as without guesses; the guesser is always right."""
    store, labels, query, _, queried = stored
    _, y = clouds(N)
    file = tmp_path / "said.csv"
    file.write_text("id,guess\n" + "".join(f"item {i},{CLASSES[c]}\n" for i, c in enumerate(y)))
    done = CliRunner().invoke(app, ["pool", "query", *query, "--guesses", str(file)])
    assert done.exit_code == 0, done.output
    plain, guessed = (json.loads(d.stdout) for d in (queried, done))
    assert [r["id"] for r in guessed] == [r["id"] for r in plain]
    right = [
        sum(r["prediction"] == CLASSES[y[int(r["id"][5:])]] for r in d) for d in (plain, guessed)
    ]
    assert right[1] >= right[0]
    assert [r["probability"] for r in guessed] != [r["probability"] for r in plain]
    out = ["--out", str(tmp_path / "p"), "--workers", "1", "--guesses", str(file)]
    refused = CliRunner().invoke(app, ["pool", "predict", store, "--labels", str(labels), *out])
    assert refused.exit_code == 1
    assert "a column of the pool's own files" in " ".join(refused.output.split())


def test_cli_pool_embed_with_classes_without_model_is_a_usage_error(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    store = tmp_path / "s"
    result = CliRunner().invoke(
        app, ["pool", "embed", str(tmp_path / "x.npy"), "--store", str(store), "--classes", "a,b"]
    )
    assert result.exit_code == 2
    assert "expected --model too" in " ".join(result.output.split())
    assert not store.exists()
