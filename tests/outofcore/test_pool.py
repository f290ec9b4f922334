"""A large pool as one object.

Labels by name, predictions part by part, the error estimate, the command line.
"""

import csv
import json

import numpy as np
import pyarrow.dataset as dataset
import pytest
import torch
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner, ExactModel
from labelahead.outofcore import LargePool, embed
from labelahead.outofcore.scoring import kernel_inputs, posterior_at
from tests.support.large_pools import CLASSES, Inline, clouds, parquet_pool

N = 120
HERE = Inline()


@pytest.fixture
def pool(tmp_path):
    x, y = clouds(N)
    embed(
        parquet_pool(tmp_path / "pool", x),
        tmp_path / "store",
        dtype="float32",
        rows=20,
        executor=HERE,
    )
    return (
        LargePool(tmp_path / "store", executor=HERE, dtype=torch.float64),
        x.astype(np.float32).astype(float),
        y,
    )


def written(path, rows, header=("item", "label")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_labels_resolve_by_name_or_file_and_row(pool, tmp_path):
    large, _, y = pool
    rows = [(f"item {i}", CLASSES[y[i]]) for i in (100, 3, 41)] + [
        ("part-2.parquet:5", CLASSES[y[85]]),
        ("item 9", ""),
    ]
    told = large.resolve_labels(written(tmp_path / "labels.csv", rows), (), HERE)
    assert told.positions.tolist() == [3, 41, 85, 100]  # in the order of the pool
    assert [told.classes[i] for i in told.numbers] == [CLASSES[y[i]] for i in (3, 41, 85, 100)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("item 4", "ash"), ("itm 5", "elm")], r"line 3: no item is called 'itm 5'"),
        ([("part-9.parquet:5", "ash")], "no item is called 'part-9.parquet:5'"),
        ([("item 4", "ash"), ("item 4", "elm")], "'item 4' is labelled 'elm'"),
        ([("item 4", "ash"), ("item 5", "ash")], "all labels are 'ash'"),
    ],
)
def test_ambiguous_labels_raise(pool, tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        pool[0].query(2, written(tmp_path / "labels.csv", rows), evaluation=10)


def test_index_is_not_an_item_name_in_large_pool(pool, tmp_path):
    with pytest.raises(InputError, match="by their own name"):
        pool[0].query(
            2, written(tmp_path / "labels.csv", [(4, "ash")], ("index", "label")), evaluation=10
        )


def test_predictions_and_error_match_exact_learner(pool, tmp_path):
    large, x, y = pool
    at = torch.arange(0, N, 5)
    labels = {f"item {i}": CLASSES[y[i]] for i in at.tolist()}
    done = large.predict(labels, tmp_path / "out", evaluation=50)
    rows = dataset.dataset(tmp_path / "out").to_table().sort_by("id").to_pylist()
    rows.sort(key=lambda row: int(row["id"].split()[1]))
    every = torch.from_numpy(x)
    learner = ExactLearner(every, ExactModel(every.mean(0), 3))
    p = learner.fit(at, torch.as_tensor(y[at])).predict_proba(torch.arange(N)).max(1)
    assert [row["prediction"] for row in rows] == [CLASSES[i] for i in p.indices]
    assert np.allclose([row["probability"] for row in rows], p.values, atol=1e-6)
    assert [(row["part"], row["row"]) for row in rows[38:42]] == [
        ("part-0.parquet", 38),
        ("part-0.parquet", 39),
        ("part-1.parquet", 0),
        ("part-1.parquet", 1),
    ]
    assert done.counts == {c: sum(row["prediction"] == c for row in rows) for c in CLASSES}
    judged = large.sample_positions(50, at, 0)
    naive = learner.forecast_error(at, torch.as_tensor(y[at]), judged)
    assert done.forecast.error == pytest.approx(naive.error, abs=1e-9)
    assert large.forecast_error(labels, evaluation=50) == done.forecast


def test_stale_prediction_files_are_removed(pool, tmp_path):
    large, x, y = pool
    labels = {f"item {i}": CLASSES[y[i]] for i in range(0, 30, 3)}
    large.predict(labels, tmp_path / "out", evaluation=20)
    (tmp_path / "out" / "part-mine.parquet").write_bytes(b"")
    before = len(list((tmp_path / "out").iterdir()))
    embed(parquet_pool(tmp_path / "fewer", x[:40], files=1), tmp_path / "store", executor=HERE)
    LargePool(tmp_path / "store", executor=HERE).predict(labels, tmp_path / "out", evaluation=20)
    assert before > 2
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "part-000000.parquet",
        "part-mine.parquet",
    }


def test_subset_posterior_is_exact_after_further_label(pool):
    large, x, y = pool
    at = torch.arange(0, N, 9)
    held = large.select_subset(
        {f"item {i}": CLASSES[y[i]] for i in at.tolist()}, evaluation=30, candidates=20
    )
    pool_posterior = held.build_posterior()
    position = pool_posterior.best("resolve")[0]
    more = pool_posterior.with_labels(pool_posterior.labels | {position: int(y[position])})
    every = posterior_at(
        held.model,
        *kernel_inputs(held.model, torch.from_numpy(x)),
        torch.zeros(0, dtype=torch.int64),
    )
    naive = every.condition([*at.tolist(), position], torch.as_tensor(y[[*at.tolist(), position]]))
    assert len(held.positions) > 30
    assert torch.allclose(more.mean(held.positions.tolist()), naive.mean[held.positions])


def test_many_labels_choose_mixture_by_local_search(pool, monkeypatch):
    large, _, y = pool
    labels = {f"item {i}": CLASSES[y[i]] for i in range(0, N, 2)}
    monkeypatch.setattr("labelahead.inference.exact.MAX_FULL_GRID_LABELS", 20)
    assert large.select_subset(labels, evaluation=10, candidates=5).model.alpha.shape == (60, 3)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"n": 0}, "0 items requested"),
        ({"n": 500}, "500 items requested, but"),
        ({"strategy": "badge"}, "strategy is 'badge', which cannot score a pool in parts"),
        ({"evaluation": 0}, "evaluation is 0"),
        ({"candidates": -1}, "candidates is -1"),
        ({"mode": "sequential"}, "mode is 'sequential'"),
        ({"finalists": 5}, "finalists with top alone"),
    ],
)
def test_query_invalid_arguments_raise(pool, how, message):
    with pytest.raises(InputError, match=message):
        pool[0].query(**({"n": 2} | how))


def test_top_mode_scores_finalists_by_whole_pool(pool):
    large, _, y = pool
    labels = {f"item {i}": CLASSES[y[i]] for i in range(0, N, 9)}
    how = {"evaluation": 30, "candidates": 40, "finalists": 20}
    asked = large.query(6, labels, mode="top", **how)
    assert [q.position for q in asked] == large.select_subset(labels, **how).best.positions[
        :6
    ].tolist()
    # without a word, those of all items against all
    every = {"evaluation": N, "candidates": 20}
    best = large.select_subset(labels, **every).best.positions
    assert [q.position for q in large.query(20, labels, mode="top")] == best.tolist()
    assert [q.position for q in large.query(20, labels, mode="top", evaluation=10)] == best.tolist()
    assert [
        q.position for q in large.query(20, labels, mode="top", evaluation=10, finalists=0)
    ] != best.tolist()


def test_bias_feature_matches_in_memory_value(tmp_path):
    from labelahead.inference.exact import compute_bias_feature

    x, _ = clouds(50, d=3)
    np.save(tmp_path / "x.npy", x + 20)
    embed(tmp_path / "x.npy", tmp_path / "store", rows=8, executor=HERE)
    large = LargePool(tmp_path / "store", dtype=torch.float64)
    assert large.bias_feature == pytest.approx(compute_bias_feature(torch.from_numpy(x + 20)))


def test_cli_pool_from_partitions_to_predictions(tmp_path):
    x, y = clouds(N)
    parquet_pool(tmp_path / "pool", x)
    labels = written(
        tmp_path / "labels.csv", [(f"item {i}", CLASSES[y[i]]) for i in range(0, N, 6)]
    )
    store, run = str(tmp_path / "store"), CliRunner().invoke
    done = run(app, ["pool", "embed", str(tmp_path / "pool"), "--store", store, "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert "120 items in 3 parts, 6 numbers each" in done.output
    asked = run(
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
    assert asked.exit_code == 0, asked.output
    items = [row["id"] for row in json.loads(asked.stdout)]
    assert items == [q.id for q in LargePool(store, executor=HERE).query(3, labels)]
    told = run(
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
    assert "120 predictions are in" in told.output
    assert "estimated error rate" in told.output
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
    said = CliRunner().invoke(app, ["pool", "ask", str(tmp_path), *more])
    assert said.exit_code == 2
    assert message in " ".join(said.output.split())
