"""The page on an out-of-core pool, here of a few hundred items.

It starts with a sample, adds items, and is exact on the items it has loaded.
"""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch

from labelahead.errors import InputError
from labelahead.gp.posterior import prior
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.mixture import mix_kernels
from labelahead.inference.pool_posterior import PoolPosterior, PosteriorOptions
from labelahead.inference.sources import Annotations
from labelahead.outofcore import EmbedOptions, LargePool, embed
from labelahead.outofcore.pool import Labelled
from labelahead.server.journal import read_item_names
from labelahead.server.large_pool import PoolSizes
from labelahead.server.session import session_model
from tests.support.large_pools import (
    CLASSES,
    Inline,
    clouds,
    text_pool,
    write_annotations,
    write_labels,
)
from tests.support.sounds import write_sounds
from tests.support.waiting import until
from tests.support.web_sessions import CHANGE, page, progress_once

N = 400
PAGE_OPTIONS = {
    "tables": {"model": {"name": "auto"}},
    "classes": CLASSES,
    "executor": Inline(),
    "pool_sizes": PoolSizes(60, 20),
}


@pytest.fixture
def store(tmp_path):
    x, y = clouds(N)
    embed(
        text_pool(tmp_path / "pool", x),
        tmp_path / "store",
        EmbedOptions(column="v", dtype="float32"),
        executor=Inline(),
    )
    return tmp_path / "store", y


def wait_until_idle(client):
    """Wait until the page is idle and return its training status."""
    return progress_once(client, lambda p: p["training"]["idle"] and p["training"]["in_play"])[
        "training"
    ]


def parse_number(item):
    return int(item.split()[1])


def answer(client, query, y):
    body = {
        "position": query["position"],
        "kind": "label",
        "label": int(y[parse_number(query["item"])]),
    }
    reply = client.post("/api/answers", json=body, headers=CHANGE)
    assert reply.status_code == 200, reply.text
    return reply.json()["next"]


def build_naive_posterior(store_folder, session):
    """Build the float64 posterior of the loaded items from the pool's rows and an explicit kernel."""
    items, page_model = session.service.items, session.service.page_model
    pool = LargePool(store_folder, executor=Inline(), dtype=torch.float64)
    rows, names = pool.read_items(
        torch.tensor([parse_number(name) for name in items.ids]), Inline()
    )
    assert names == list(items.ids)
    none = torch.zeros(0, dtype=torch.int64)
    units = (
        pool.fit(Labelled(none, none, CLASSES), rows)
        .normalise_rows(rows)
        .double()[page_model.pool_posterior.points]
    )
    kernel = mix_kernels(units @ units.T, page_model.snapshot.weights)
    start = prior(
        torch.full((len(units), 3), 1 / 3, dtype=torch.float64),
        kernel,
        noise=page_model.snapshot.noise,
    )
    labels = session.service.label_state.labels
    return PoolPosterior.from_prior(
        page_model.pool_posterior.points,
        start,
        labels,
        PosteriorOptions(evaluation=page_model.snapshot.evaluation),
    )


def test_page_starts_with_a_sample_and_equals_the_naive_posterior_on_its_items(store, tmp_path):
    store_folder, y = store
    options = PAGE_OPTIONS | {"retrain_every": 5, "refresh_every": 10}
    with page(store_folder, tmp_path / "labels", start=True, **options) as (client, session):
        wait_until_idle(client)
        first_ids = list(session.service.items.ids)
        pool = LargePool(store_folder, executor=Inline())
        sampled = pool.sample_positions(60, torch.zeros(0, dtype=torch.int64), 0)
        assert first_ids[:60] == [f"doc {p}" for p in sampled.tolist()]
        best = pool.select_subset(
            classes=CLASSES, strategy="flip", evaluation=60, candidates=20
        ).best.positions.tolist()
        assert set(first_ids) == {
            f"doc {p}" for p in (*sampled.tolist(), *best)
        }  # includes the best of all 400 items
        query = client.get("/api/question").json()
        assert query["text"] == f"the text of number {parse_number(query['item'])}"
        for _ in range(25):
            query = answer(client, query, y)
        assert wait_until_idle(client)["in_play"] == len(session.service.items) > len(first_ids)
        items, page_model = list(session.service.items.ids), session.service.page_model
        assert items[: len(first_ids)] == first_ids  # positions do not change
        assert len(set(items)) == len(items)
        assert tuple(items) == session.service.journal.items
        naive = build_naive_posterior(store_folder, session)
        pool_posterior = page_model.pool_posterior
        assert len(pool_posterior.labels) == 25
        assert torch.allclose(pool_posterior.posterior.mean, naive.posterior.mean, atol=1e-4)
        assert torch.allclose(
            pool_posterior.scores("resolve"), naive.scores("resolve"), rtol=1e-2, atol=1e-5
        )
        labels = dict(session.service.label_state.labels)
    assert read_item_names(tmp_path / "labels") == items
    with page(store_folder, tmp_path / "labels", start=True, **options) as (client, session):
        assert session.service.label_state.labels == labels
        assert list(session.service.items.ids[: len(items)]) == items  # at the same positions
        wait_until_idle(client)
        assert client.get("/api/question").json()["reason"] == "look-ahead"


def test_pool_is_rescored_every_refresh_every_labels_only(store, tmp_path, monkeypatch):
    store_folder, y = store
    label_counts, select_subset = [], LargePool.select_subset
    monkeypatch.setattr(
        LargePool,
        "select_subset",
        lambda self, labels, **arguments: (
            label_counts.append(len(labels.positions)) or select_subset(self, labels, **arguments)
        ),
    )
    options = PAGE_OPTIONS | {"refresh_every": 6}
    with page(store_folder, tmp_path / "labels", start=True, **options) as (client, _):
        wait_until_idle(client)
        query = client.get("/api/question").json()
        for _ in range(5):
            query = answer(client, query, y)
        wait_until_idle(client)
        assert label_counts == [0]
        query = answer(client, query, y)
        wait_until_idle(client)
        assert label_counts == [0, 6]
    with page(store_folder, tmp_path / "labels", start=True, **options) as (
        client,
        _,
    ):  # no new label: not rescored
        wait_until_idle(client)
        assert label_counts == [0, 6]


def test_labels_of_several_annotators_are_weighed_in_the_scoring_of_the_pool(store, tmp_path):
    """The page scores the pool as `LargePool` does with a label file of all annotators."""
    store_folder, y = store
    rows = write_annotations(
        tmp_path / "known.csv", y, range(0, N, 10), [f"doc {p}" for p in range(N)]
    )
    options = PAGE_OPTIONS | {"labels": tmp_path / "known.csv", "start": True}
    with page(store_folder, tmp_path / "labels", **options) as (client, session):
        wait_until_idle(client)
        pool = LargePool(store_folder, executor=Inline())
        subset = pool.select_subset(
            tmp_path / "known.csv", strategy="flip", evaluation=60, candidates=20
        )
        assert subset.model.label_noise.max() > 0.1
        held = {parse_number(item) for item in session.service.items.ids}
        assert set(subset.positions.tolist()) <= held
        labels = {f"doc {p}": CLASSES[c] for p, c in Annotations.vote(rows).items()}
        plain = pool.select_subset(labels, strategy="flip", evaluation=60, candidates=20)
        assert not set(plain.positions.tolist()) <= held


def test_label_file_may_label_any_item_of_the_pool(store, tmp_path):
    store_folder, y = store
    lines = [f"doc {p},{CLASSES[y[p]]}" for p in range(0, N, 10)]
    (tmp_path / "known.csv").write_text("\n".join(["item,label", *lines]))
    with page(store_folder, tmp_path / "labels", labels=tmp_path / "known.csv", **PAGE_OPTIONS) as (
        _,
        session,
    ):
        items, labels = session.service.items.ids, session.service.label_state.labels
        assert {parse_number(items[p]): c for p, c in labels.items()} == {
            p: y[p] for p in range(0, N, 10)
        }


def test_items_show_the_columns_of_their_own_file(store, tmp_path):
    """Files of a pool may have different columns."""
    store_folder, _ = store
    extra = {
        "id": ["more 0", "more 1"],
        "note": ["n0", "n1"],
        "v": list(clouds(2)[0].astype(np.float32)),
    }
    pq.write_table(pa.table(extra), tmp_path / "pool" / "4.parquet")
    embed(
        tmp_path / "pool",
        store_folder,
        EmbedOptions(column="v", dtype="float32"),
        executor=Inline(),
    )
    (tmp_path / "known.csv").write_text("item,label\nmore 1,oak\ndoc 3,elm\n")
    with page(store_folder, tmp_path / "labels", labels=tmp_path / "known.csv", **PAGE_OPTIONS) as (
        _,
        session,
    ):
        items = session.service.items
        shown = items.describe_item(items.ids.index("more 1"))
        assert {cell["name"]: cell["value"] for cell in shown["row"]} == {
            "id": "more 1",
            "note": "n1",
        }
        assert shown["text"] == ""
        assert items.describe_item(items.ids.index("doc 3"))["text"] == "the text of number 3"


@pytest.fixture
def guessed(tmp_path):
    """A store whose files have a column of guesses, and a file of other guesses."""
    x, y = clouds(N)
    said = np.where(np.random.default_rng(4).random(N) < 0.8, y, (y + 1) % 3)
    column = [CLASSES[c] if i % 7 else None for i, c in enumerate(said)]
    pool = text_pool(tmp_path / "guessed pool", x, llm=column)
    how = EmbedOptions(column="v", dtype="float32")
    embed(pool, tmp_path / "guessed", how, executor=Inline())
    rows = [(f"doc {i}", CLASSES[(c + 1) % 3]) for i, c in enumerate(y) if i % 5]
    write_labels(tmp_path / "other.csv", rows, ("id", "guess"))
    return tmp_path / "guessed", y, column, tmp_path / "other.csv"


def test_page_with_guesses_equals_the_learner_in_memory(guessed, tmp_path):
    store_folder, y, column, other = guessed
    data = {"name": str(store_folder), "guesses": ["llm", str(other)]}
    options = PAGE_OPTIONS | {
        "retrain_every": 4,
        "tables": {"model": {"name": "auto"}, "data": data},
    }
    with page(store_folder, tmp_path / "labels", start=True, **options) as (client, session):
        wait_until_idle(client)
        query = client.get("/api/question").json()
        first, item = query["position"], parse_number(query["item"])
        assert "llm" not in [cell["name"] for cell in query["row"]]  # hidden until the answer
        assert client.get(f"/api/why/{first}").json()["guesses"] == []
        for count in (4, 8, 12, 16):  # a fit that starts late would move the next ones
            for _ in range(4):
                query = answer(client, query, y)
            progress = progress_once(
                client,
                lambda p, n=count: p["training"]["idle"] and p["training"]["labels_at_last"] == n,
            )
        assert [line.split(":")[0] for line in progress["guessers"]] == ["llm", "other"]
        shown = client.get(f"/api/why/{first}").json()["guesses"]
        expected = [CLASSES.index(column[item])] if column[item] else []
        assert [row["label"] for row in shown if row["guesser"] == "llm"] == expected
        compare_with_memory(session, store_folder, column, other)


def compare_with_memory(session, store_folder, column, other):
    """The page's predictions are those of a learner of the loaded items with the same guesses."""
    items, page_model = session.service.items, session.service.page_model
    numbers = [parse_number(name) for name in items.ids]
    pool = LargePool(store_folder, executor=Inline(), dtype=torch.float64)
    rows, _ = pool.read_items(torch.tensor(numbers), Inline())
    none = torch.zeros(0, dtype=torch.int64)
    units = pool.fit(Labelled(none, none, CLASSES), rows).normalise_rows(rows)
    by_file = dict(line.split(",") for line in other.read_text().splitlines()[1:])
    said = [[column[i], by_file.get(f"doc {i}")] for i in numbers]
    p = torch.zeros(len(said), 2, 3, dtype=torch.float64)
    for row, pair in enumerate(said):
        for j, name in enumerate(pair):
            if name:
                p[row, j] = 0.05
                p[row, j, CLASSES.index(name)] = 0.9
    moved = torch.where(p.sum(2, keepdim=True) > 0, p - 1 / 3, 0.0)
    inputs = torch.cat([units, moved.flatten(1)], 1)
    labels = session.service.label_state.labels
    at = torch.tensor(list(labels))
    learner = ExactLearner(inputs, ExactModel.for_unit_rows(3, guessers=2))
    fitted = learner.fit(at, torch.tensor(list(labels.values())))
    naive = fitted.model(inputs)[page_model.pool_posterior.points]
    found = page_model.pool_posterior.posterior.mean
    assert torch.allclose(found, naive, atol=1e-4)
    plain = ExactLearner(units, ExactModel.for_unit_rows(3)).fit(
        at, torch.tensor(list(labels.values()))
    )
    assert not torch.allclose(
        found, plain.model(units)[page_model.pool_posterior.points], atol=1e-3
    )


def test_guesses_of_a_renamed_class_count_for_it(guessed, tmp_path):
    store_folder, _, column, _ = guessed
    tables = {"model": {"name": "auto"}, "data": {"name": str(store_folder), "guesses": ["llm"]}}
    options = PAGE_OPTIONS | {"tables": tables, "start": True}
    with page(store_folder, tmp_path / "labels", **options) as (client, session):
        wait_until_idle(client)
        session.service.journal.change_class("me", "rename", 0, "birch")
        client.post("/api/classes", json={"name": "fir"}, headers=CHANGE)
        until(
            lambda: session.schedule.has_current_guesses() and session.schedule.is_idle,
            session.schedule.describe_status,
        )
        guesses = session.service.items.data.guesses["llm"]
        assert guesses.classes == ("birch", "elm", "oak", "fir")
        for p, name in zip(guesses.probabilities, session.service.items.ids, strict=True):
            said = column[parse_number(name)]
            assert float(p.sum()) == pytest.approx(1.0 if said else 0.0)
            if said:
                assert int(p.argmax()) == CLASSES.index(said)


def test_unsupported_options_of_a_large_pool_are_refused(store, tmp_path):
    store_folder, _ = store
    data, auto = {"name": str(store_folder)}, {"name": "auto"}
    for options, message in (
        ({"test": 0.2}, "leave out --test"),
        ({"refresh_every": 0}, "refresh-every is 0"),
        ({"tables": {"model": {"name": "mlp"}}}, "an out-of-core pool expects exact"),
        ({"tables": {"model": auto, "data": data | {"prior": "class-names"}}}, "leave out --prior"),
        ({"tables": {"model": auto, "data": data | {"guesses": ["model:m"]}}}, "expected a column"),
    ):
        with (
            pytest.raises(InputError, match=message),
            page(store_folder, tmp_path / "labels", **(PAGE_OPTIONS | options)),
        ):
            pass
    np.save(tmp_path / "x.npy", np.zeros((4, 2), np.float32))
    with (
        pytest.raises(InputError, match="is not a `pool embed` store"),
        page(tmp_path / "x.npy", tmp_path / "other", **PAGE_OPTIONS),
    ):
        pass
    with page(store_folder, tmp_path / "labels", **PAGE_OPTIONS):
        pass
    with pytest.raises(InputError, match="pool predict"):
        session_model(tmp_path / "labels")


def test_journal_of_another_pool_is_refused(store, tmp_path):
    store_folder, _ = store
    np.save(tmp_path / "x.npy", clouds(100)[0].astype(np.float32))
    embed(tmp_path / "x.npy", tmp_path / "another", executor=Inline())
    with page(store_folder, tmp_path / "labels", **PAGE_OPTIONS):
        pass
    with (
        pytest.raises(InputError, match="is not in"),
        page(tmp_path / "another", tmp_path / "labels", **PAGE_OPTIONS),
    ):
        pass


def test_page_plays_the_sounds_of_a_pool(tmp_path):
    folder = write_sounds(tmp_path / "pool", 30, seconds=0.2)
    embed(folder, tmp_path / "store", executor=Inline())
    options = PAGE_OPTIONS | {"classes": CLASSES[:2], "pool_sizes": PoolSizes(10, 5)}
    with page(tmp_path / "store", tmp_path / "labels", **options) as (client, session):
        assert client.get("/api/session").json()["kind"] == "sound"
        items = session.service.items
        shown = items.describe_item(3)
        heard = client.get(shown["sound"]).content
        played, rate = soundfile.read(io.BytesIO(heard), dtype="int16")
        wanted, _ = soundfile.read(folder / items.ids[3], dtype="int16")
        assert rate == 16_000
        assert np.abs(played.astype(int) - wanted).max() <= 1
        assert client.get(shown["url"]).headers["content-type"].startswith("image/svg+xml")
        with items.make_opener()(3) as file:
            assert file.read() == (folder / items.ids[3]).read_bytes()
        (folder / items.ids[4]).unlink()
        assert "cannot be read" in items.find_problem(4)
