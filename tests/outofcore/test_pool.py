"""`LargePool`: labels by name, predictions by partition, the error estimate, the command line."""

import numpy as np
import pyarrow.dataset as dataset
import pytest
import torch

from labelahead.data import load
from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel
from labelahead.learner.encoding import encode_inputs
from labelahead.outofcore import EmbedOptions, LargePool, embed
from labelahead.outofcore.scoring import posterior_at
from tests.support.large_pools import CLASSES, Inline, clouds, parquet_pool, write_labels
from tests.support.sounds import write_sounds

N = 120
INLINE = Inline()


@pytest.fixture
def pool(tmp_path):
    x, y = clouds(N)
    embed(
        parquet_pool(tmp_path / "pool", x),
        tmp_path / "store",
        EmbedOptions(dtype="float32", rows=20),
        executor=INLINE,
    )
    return (
        LargePool(tmp_path / "store", executor=INLINE, dtype=torch.float64),
        x.astype(np.float32).astype(float),
        y,
    )


def test_labels_resolve_by_name_or_file_and_row(pool, tmp_path):
    large, _, y = pool
    rows = [(f"item {i}", CLASSES[y[i]]) for i in (100, 3, 41)] + [
        ("part-2.parquet:5", CLASSES[y[85]]),
        ("item 9", ""),
    ]
    resolved = large.resolve_labels(write_labels(tmp_path / "labels.csv", rows), (), INLINE)
    assert resolved.positions.tolist() == [3, 41, 85, 100]  # in the order of the pool
    assert [resolved.classes[i] for i in resolved.numbers] == [
        CLASSES[y[i]] for i in (3, 41, 85, 100)
    ]


def test_resolve_labels_parses_the_file_once(pool, tmp_path):
    large, _, y = pool
    path = write_labels(
        tmp_path / "labels.csv", [(f"item {i}", CLASSES[y[i]]) for i in (100, 3, 41)]
    )

    class Removing(Inline):
        """Removes the label file before the first partition is read."""

        def submit(self, function, /, *args, name):
            path.unlink(missing_ok=True)
            return super().submit(function, *args, name=name)

    labelled = large.resolve_labels(path, (), Removing())
    assert not path.exists()
    assert labelled.positions.tolist() == [3, 41, 100]


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
        pool[0].query(2, write_labels(tmp_path / "labels.csv", rows), evaluation=10)


def test_index_is_not_an_item_name_in_large_pool(pool, tmp_path):
    with pytest.raises(InputError, match="by their own name"):
        pool[0].query(
            2,
            write_labels(tmp_path / "labels.csv", [(4, "ash")], ("index", "label")),
            evaluation=10,
        )


def test_predictions_and_error_match_exact_learner(pool, tmp_path):
    large, x, y = pool
    at = torch.arange(0, N, 5)
    labels = {f"item {i}": CLASSES[y[i]] for i in at.tolist()}
    prediction = large.predict(labels, tmp_path / "out", evaluation=50)
    rows = dataset.dataset(tmp_path / "out").to_table().sort_by("id").to_pylist()
    rows.sort(key=lambda row: int(row["id"].split()[1]))
    all_rows = torch.from_numpy(x)
    learner = ExactLearner(all_rows, ExactModel(all_rows.mean(0), 3))
    p = learner.fit(at, torch.as_tensor(y[at])).predict_proba(torch.arange(N)).max(1)
    assert [row["prediction"] for row in rows] == [CLASSES[i] for i in p.indices]
    assert np.allclose([row["probability"] for row in rows], p.values, atol=1e-6)
    assert [(row["part"], row["row"]) for row in rows[38:42]] == [
        ("part-0.parquet", 38),
        ("part-0.parquet", 39),
        ("part-1.parquet", 0),
        ("part-1.parquet", 1),
    ]
    assert prediction.counts == {c: sum(row["prediction"] == c for row in rows) for c in CLASSES}
    evaluation = large.sample_positions(50, at, 0)
    naive = learner.forecast_error(at, torch.as_tensor(y[at]), evaluation)
    assert prediction.forecast.error == pytest.approx(naive.error, abs=1e-9)
    assert large.forecast_error(labels, evaluation=50) == prediction.forecast


def test_stale_prediction_files_are_removed(pool, tmp_path):
    large, x, y = pool
    labels = {f"item {i}": CLASSES[y[i]] for i in range(0, 30, 3)}
    large.predict(labels, tmp_path / "out", evaluation=20)
    (tmp_path / "out" / "part-mine.parquet").write_bytes(b"")
    before = len(list((tmp_path / "out").iterdir()))
    embed(parquet_pool(tmp_path / "fewer", x[:40], files=1), tmp_path / "store", executor=INLINE)
    LargePool(tmp_path / "store", executor=INLINE).predict(labels, tmp_path / "out", evaluation=20)
    assert before > 2
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "part-000000.parquet",
        "part-mine.parquet",
    }


def test_subset_posterior_is_exact_after_further_label(pool):
    large, x, y = pool
    at = torch.arange(0, N, 9)
    subset = large.select_subset(
        {f"item {i}": CLASSES[y[i]] for i in at.tolist()}, evaluation=30, candidates=20
    )
    pool_posterior = subset.build_posterior()
    position = pool_posterior.best("resolve")[0]
    more = pool_posterior.with_labels(pool_posterior.labels | {position: int(y[position])})
    every = posterior_at(
        subset.model,
        *subset.model.kernel_inputs(torch.from_numpy(x)),
        torch.zeros(0, dtype=torch.int64),
    )
    naive = every.condition([*at.tolist(), position], torch.as_tensor(y[[*at.tolist(), position]]))
    assert len(subset.positions) > 30
    assert torch.allclose(more.mean(subset.positions.tolist()), naive.mean[subset.positions])


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
    options = {"evaluation": 30, "candidates": 40, "finalists": 20}
    queries = large.query(6, labels, mode="top", **options)
    assert [q.position for q in queries] == large.select_subset(labels, **options).best.positions[
        :6
    ].tolist()
    # by default, all items are scored on all items
    full_options = {"evaluation": N, "candidates": 20}
    best = large.select_subset(labels, **full_options).best.positions
    assert [q.position for q in large.query(20, labels, mode="top")] == best.tolist()
    assert [q.position for q in large.query(20, labels, mode="top", evaluation=10)] == best.tolist()
    assert [
        q.position for q in large.query(20, labels, mode="top", evaluation=10, finalists=0)
    ] != best.tolist()


def test_bias_feature_matches_in_memory_value(tmp_path):
    from labelahead.inference.exact_model import compute_bias_feature

    x, _ = clouds(50, d=3)
    np.save(tmp_path / "x.npy", x + 20)
    embed(tmp_path / "x.npy", tmp_path / "store", EmbedOptions(rows=8), executor=INLINE)
    large = LargePool(tmp_path / "store", dtype=torch.float64)
    assert large.bias_feature == pytest.approx(compute_bias_feature(torch.from_numpy(x + 20)))


def test_sounds_are_queried_and_predicted_as_in_memory(tmp_path):
    folder = write_sounds(tmp_path / "pool", 30, class_folders=True, seconds=0.2)
    data, answers = load(folder, test_fraction=0.0)
    embed(folder, tmp_path / "store", EmbedOptions(dtype="float32", rows=8), executor=INLINE)
    large = LargePool(tmp_path / "store", executor=INLINE, dtype=torch.float64)
    at = list(range(0, 30, 4))
    labels = {data.ids[i]: data.classes[answers(i)] for i in at}
    done = large.predict(labels, tmp_path / "out", evaluation=10)
    rows = dataset.dataset(tmp_path / "out").to_table().sort_by("id").to_pylist()
    assert [row["file_name"] for row in rows] == [row["id"] for row in rows] == list(data.ids)
    inputs = encode_inputs("exact", data, "mel", None).inputs.double()
    learner = ExactLearner(inputs, ExactModel(inputs.mean(0), 2))
    numbers = torch.tensor([answers(i) for i in at])
    p = learner.fit(torch.tensor(at), numbers).predict_proba(torch.arange(30)).max(1)
    assert [row["prediction"] for row in rows] == [data.classes[i] for i in p.indices]
    assert np.allclose([row["probability"] for row in rows], p.values, atol=1e-6)
    assert sum(done.counts.values()) == 30
    queries = large.query(3, labels, evaluation=10)
    assert len({q.id for q in queries} - labels.keys()) == 3
    assert [q.record for q in queries] == [{"file_name": q.id} for q in queries]
