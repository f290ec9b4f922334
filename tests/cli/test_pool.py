"""The pool commands."""

import json

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


def test_cli_pool_embeds_queries_and_predicts(tmp_path):
    x, y = clouds(N)
    parquet_pool(tmp_path / "pool", x)
    labels = write_labels(
        tmp_path / "labels.csv", [(f"item {i}", CLASSES[y[i]]) for i in range(0, N, 6)]
    )
    store, invoke = str(tmp_path / "store"), CliRunner().invoke
    done = invoke(
        app, ["pool", "embed", str(tmp_path / "pool"), "--store", store, "--workers", "1"]
    )
    assert done.exit_code == 0, done.output
    assert "120 items in 3 parts, 6 numbers each" in done.output
    queried = invoke(
        app,
        [
            "pool",
            "ask",
            store,
            "--labels",
            str(labels),
            "--n",
            "3",
            "--format",
            "json",
            "--workers",
            "1",
        ],
    )
    assert queried.exit_code == 0, queried.output
    items = [row["id"] for row in json.loads(queried.stdout)]
    assert items == [q.id for q in LargePool(store, executor=INLINE).query(3, labels)]
    predicted = invoke(
        app,
        [
            "pool",
            "predict",
            store,
            "--labels",
            str(labels),
            "--out",
            str(tmp_path / "p"),
            "--workers",
            "1",
        ],
    )
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
    result = CliRunner().invoke(app, ["pool", "ask", str(tmp_path), *more])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


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
        ["pool", "ask", store, "--labels", str(tmp_path / "l.csv"), "--n", "2", "--workers", "1"],
    )
    assert queried.exit_code == 0, queried.output
    assert len(queried.stdout.strip().splitlines()) == 3
