"""Guesses about the items of out-of-core pools: agreement with the learner in memory, and bad input."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as pq
import pytest
import torch

from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import exact
from labelahead.inference.sources import Annotations
from labelahead.outofcore import EmbedOptions, LargePool, embed
from tests.support.large_pools import CLASSES, Inline, clouds, parquet_pool, write_annotations

N = 120
LABELLED = range(0, N, 4)


def make_guesses(y):
    """A guesser that is right in 80 % and silent about every tenth item: class numbers, -1: none."""
    rng = np.random.default_rng(5)
    said = np.where(rng.random(N) < 0.8, y, (y + 1) % 3)
    said[::10] = -1
    return said


@pytest.fixture
def pool(tmp_path):
    x, y = clouds(N)
    said = make_guesses(y)
    column = ["" if g < 0 else CLASSES[g] for g in said]
    files = parquet_pool(tmp_path / "pool", x, llm=column)
    store = tmp_path / "store"
    embed(files, store, EmbedOptions(column="vector", dtype="float32", rows=20), executor=Inline())
    large = LargePool(store, executor=Inline(), dtype=torch.float64)
    with (tmp_path / "said.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "guess"])
        rows.writerows([f"item {i}", g] for i, g in reversed(list(enumerate(column))) if g)
    return large, torch.from_numpy(x.astype(np.float32)).double(), y, torch.from_numpy(said)


def predict_in_memory(x, y, said):
    """The learner in memory, of which the pool must not differ."""
    model = exact(x, 3, guesses=said)
    at = torch.tensor(LABELLED)
    rows = torch.cat([x, model.pool_guesses.to(x)], 1)
    learner = ExactLearner(rows, model)
    fitted = learner.fit(at, torch.from_numpy(y)[at])
    evaluation = torch.tensor([i for i in range(N) if i not in LABELLED])
    return fitted.predict_proba(torch.arange(N)), learner, (at, evaluation)


def with_guesses(large, guesses):
    """The same pool with guesses."""
    return LargePool(
        large.store,
        executor=Inline(),
        dtype=torch.float64,
        guesses=guesses,
        progress=large.progress,
    )


def label(y):
    return {f"item {i}": CLASSES[y[i]] for i in LABELLED}


@pytest.mark.parametrize("source", ["llm", "said.csv"])
def test_query_predicts_as_the_learner_in_memory(pool, tmp_path, source):
    large, x, y, said = pool
    p, _, _ = predict_in_memory(x, y, said)
    name = str(tmp_path / source) if source.endswith(".csv") else source
    items = with_guesses(large, [name]).query(8, label(y), evaluation=50)
    plain = large.query(8, label(y), evaluation=50)
    assert [i.position for i in items] == [i.position for i in plain]  # queried as without guesses
    assert [i.score for i in items] == [i.score for i in plain]
    for item in items:
        sure, best = p[item.position].max(0)
        assert item.prediction == CLASSES[int(best)]
        assert item.probability == pytest.approx(float(sure), abs=2e-6)
    assert [i.probability for i in items] != [i.probability for i in plain]


def test_predictions_of_the_whole_pool_take_columns(pool, tmp_path):
    large, x, y, said = pool
    p, learner, (at, evaluation) = predict_in_memory(x, y, said)
    done = with_guesses(large, ["llm"]).predict(label(y), tmp_path / "out", evaluation=1000)
    rows = dataset.dataset(tmp_path / "out").to_table().to_pylist()
    rows.sort(key=lambda row: int(row["id"].split()[1]))
    assert [r["prediction"] for r in rows] == [CLASSES[i] for i in p.argmax(1)]
    assert np.allclose([r["probability"] for r in rows], p.max(1).values, atol=1e-6)
    drawn = large.sample_positions(1000, at, 0)
    assert sorted(drawn.tolist()) == evaluation.tolist()
    naive = learner.forecast_error(at, torch.from_numpy(y)[at], drawn)
    assert done.forecast.error == pytest.approx(naive.error, abs=1e-9)


def test_guesses_near_uniform_are_sharpened_as_in_memory(pool, tmp_path):
    """A guesser that is right more often than its probabilities say."""
    large, x, y, _ = pool
    p = torch.full((N, 3), 0.31, dtype=torch.float64)
    p[torch.arange(N), torch.from_numpy(y)] = 0.38
    table = {f"probability:{name}": p[:, c].numpy() for c, name in enumerate(CLASSES)}
    path = tmp_path / "near.parquet"
    pq.write_table(pa.table({"id": [f"item {i}" for i in range(N)], **table}), path)
    found, learner, _ = predict_in_memory(x, y, p)
    at = torch.tensor(LABELLED)
    assert learner.fit(at, torch.from_numpy(y)[at]).kernel_model.sharpness[0, 0] > 1
    for item in with_guesses(large, [str(path)]).query(6, label(y), evaluation=50):
        assert item.probability == pytest.approx(float(found[item.position].max()), abs=2e-6)


def test_guesses_and_labels_of_several_sources_count_as_in_memory(pool, tmp_path):
    large, x, y, said = pool
    names = [f"item {i}" for i in range(N)]
    rows = write_annotations(tmp_path / "labels.csv", y, LABELLED, names)
    model = exact(x, 3, guesses=said)
    inputs = torch.cat([x, model.pool_guesses.to(x)], 1)
    learner = ExactLearner(inputs, model, annotations=Annotations.from_rows(rows))
    votes = Annotations.vote(rows)
    fitted = learner.fit(torch.tensor(LABELLED), torch.tensor([votes[i] for i in LABELLED]))
    p = fitted.predict_proba(torch.arange(N))
    queried = with_guesses(large, ["llm"]).query(6, tmp_path / "labels.csv", evaluation=50)
    for item in queried:
        assert item.probability == pytest.approx(float(p[item.position].max()), abs=2e-6)
    plain = large.query(6, tmp_path / "labels.csv", evaluation=50)
    assert [i.position for i in queried] == [i.position for i in plain]


def test_two_guessers_of_both_kinds_count(pool, tmp_path):
    """Columns come before files, in the model as in the twin."""
    large, x, y, said = pool
    other = torch.from_numpy((y + 1) % 3)
    path = tmp_path / "other.parquet"
    names = [CLASSES[c] for c in other]
    pq.write_table(pa.table({"id": [f"item {i}" for i in range(N)], "prediction": names}), path)
    model = exact(x, 3, guesses={"llm": said, "other": other})
    rows = torch.cat([x, model.pool_guesses.to(x)], 1)
    at = torch.tensor(LABELLED)
    p = ExactLearner(rows, model).fit(at, torch.from_numpy(y)[at]).predict_proba(torch.arange(N))
    for item in with_guesses(large, [str(path), "llm"]).query(4, label(y), evaluation=50):
        assert item.probability == pytest.approx(float(p[item.position].max()), abs=2e-6)


def test_predictions_of_another_pool_are_guesses(pool, tmp_path):
    """The folder that `pool predict --probabilities` wrote."""
    large, _, y, _ = pool
    large.predict(label(y), tmp_path / "old", evaluation=50, probabilities=True)
    items = with_guesses(large, [str(tmp_path / "old")]).query(3, label(y), evaluation=50)
    assert len(items) == 3


def test_query_without_labels_predicts_the_guesses(pool):
    large, _, _, said = pool
    items = with_guesses(large, ["llm"]).query(6, classes=CLASSES, evaluation=50)
    for item in items:
        guess = int(said[item.position])
        expected = (CLASSES[guess], 0.9) if guess >= 0 else (item.prediction, 1 / 3)
        assert (item.prediction, item.probability) == (expected[0], pytest.approx(expected[1]))
    plain = large.query(6, classes=CLASSES, evaluation=50)
    assert [i.position for i in items] == [i.position for i in plain]
    assert [i.prediction for i in plain] == [None] * 6


@pytest.mark.parametrize(
    ("guesses", "message"),
    [
        (["lmm"], "has none of that name"),
        (["model:old"], "expected a column of the pool, or a file with ids"),
        (["llm", "llm"], "expected each once"),
        (["none.csv"], "does not exist"),
        (["bad.csv"], "guesses 1 class"),
        (["twice.csv"], "names the item 'item 4' twice"),
        (["ids.csv"], "has no column `id`"),
        (["short.csv"], "has a row of 1 field"),
        (["said.xlsx"], "does not exist"),
    ],
)
def test_guesses_that_do_not_fit_are_refused_before_the_pool_is_scored(
    pool, tmp_path, monkeypatch, guesses, message
):
    large, _, y, _ = pool
    (tmp_path / "bad.csv").write_text("id,guess\nitem 4,unicorn\n")
    (tmp_path / "twice.csv").write_text("id,guess\nitem 4,ash\nitem 4,elm\n")
    (tmp_path / "ids.csv").write_text("name,guess\nitem 4,ash\n")
    (tmp_path / "short.csv").write_text("id,guess\nitem 4\n")
    monkeypatch.chdir(tmp_path)
    stages = []
    large.progress = lambda stage, *_: stages.append(stage)
    with pytest.raises(InputError, match=message):
        with_guesses(large, guesses).query(3, label(y), evaluation=50)
    assert "score items" not in stages


def test_predictions_of_the_whole_pool_refuse_files(pool, tmp_path):
    large, _, y, _ = pool
    with pytest.raises(InputError, match="expected a column of the pool's own files"):
        with_guesses(large, [str(tmp_path / "said.csv")]).predict(label(y), tmp_path / "out")
    assert not (tmp_path / "out").exists()
