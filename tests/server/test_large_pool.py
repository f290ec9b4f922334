"""The page on a pool of millions, here of hundreds.

It begins with a sample, grows, is exact among what it holds.
"""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from labelahead.errors import InputError
from labelahead.gp.posterior import prior
from labelahead.inference.exact import mix_kernels
from labelahead.inference.pool_posterior import PoolPosterior
from labelahead.outofcore import LargePool, embed
from labelahead.outofcore.pool import Labelled
from labelahead.server import large_pool as large
from labelahead.server.journal import read_item_names
from labelahead.server.session_model import session_model
from tests.support.large_pools import CLASSES, Inline, clouds, text_pool
from tests.support.web_sessions import CHANGE, page, progress_once

N = 400
HOW = {"tables": {"model": {"name": "auto"}}, "classes": CLASSES, "executor": Inline()}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "SAMPLE_ITEMS", 60)
    monkeypatch.setattr(large, "CANDIDATES_PER_SCORING", 20)
    x, y = clouds(N)
    embed(
        text_pool(tmp_path / "pool", x),
        tmp_path / "store",
        column="v",
        dtype="float32",
        executor=Inline(),
    )
    return tmp_path / "store", y


def settled(client):
    """What the page says of its learning, once nothing is under way."""
    return progress_once(client, lambda p: p["training"]["idle"] and p["training"]["in_play"])[
        "training"
    ]


def number(item):
    return int(item.split()[1])


def answer(client, asked, y):
    body = {"position": asked["position"], "kind": "label", "label": int(y[number(asked["item"])])}
    said = client.post("/api/answers", json=body, headers=CHANGE)
    assert said.status_code == 200, said.text
    return said.json()["next"]


def naive(place, session):
    """A belief in float64 on the items held, from the pool's own rows, its kernel written out."""
    items, page_model = session.service.items, session.service.page_model
    pool = LargePool(place, executor=Inline(), dtype=torch.float64)
    rows, names = pool.read_items(torch.tensor([number(name) for name in items.ids]), Inline())
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
    return PoolPosterior(
        page_model.pool_posterior.points, start, labels, evaluation=page_model.snapshot.evaluation
    )


def test_it_begins_with_a_sample_grows_and_is_exact_among_what_it_holds(store, tmp_path):
    place, y = store
    more = HOW | {"every": 5, "refresh_every": 10}
    with page(place, tmp_path / "labels", start=True, **more) as (client, session):
        settled(client)
        first = list(session.service.items.ids)
        pool = LargePool(place, executor=Inline())
        drawn = pool.sample_positions(60, torch.zeros(0, dtype=torch.int64), 0)
        assert first[:60] == [f"doc {p}" for p in drawn.tolist()]
        best = pool.select_subset(
            classes=CLASSES, strategy="flip", evaluation=60, candidates=20
        ).best.positions.tolist()
        assert set(first) == {
            f"doc {p}" for p in (*drawn.tolist(), *best)
        }  # the best of all 400 are there
        asked = client.get("/api/question").json()
        assert asked["text"] == f"the text of number {number(asked['item'])}"
        for _ in range(25):
            asked = answer(client, asked, y)
        assert settled(client)["in_play"] == len(session.service.items) > len(first)
        items, page_model = list(session.service.items.ids), session.service.page_model
        assert items[: len(first)] == first  # positions stay
        assert len(set(items)) == len(items)
        assert tuple(items) == session.service.journal.items
        twin, pool_posterior = naive(place, session), page_model.pool_posterior
        assert len(pool_posterior.labels) == 25
        assert torch.allclose(pool_posterior.posterior.mean, twin.posterior.mean, atol=1e-4)
        assert torch.allclose(
            pool_posterior.scores("resolve"), twin.scores("resolve"), rtol=1e-2, atol=1e-5
        )
        labels = dict(session.service.label_state.labels)
    assert read_item_names(tmp_path / "labels") == items
    with page(place, tmp_path / "labels", start=True, **more) as (client, session):
        assert session.service.label_state.labels == labels
        assert list(session.service.items.ids[: len(items)]) == items  # at the same positions
        settled(client)
        assert client.get("/api/question").json()["reason"] == "look-ahead"


def test_the_pool_is_scored_again_after_so_many_labels_alone(store, tmp_path, monkeypatch):
    place, y = store
    known, select_subset = [], LargePool.select_subset
    monkeypatch.setattr(
        LargePool,
        "select_subset",
        lambda self, told, **how: (
            known.append(len(told.positions)) or select_subset(self, told, **how)
        ),
    )
    more = HOW | {"refresh_every": 6}
    with page(place, tmp_path / "labels", start=True, **more) as (client, _):
        settled(client)
        asked = client.get("/api/question").json()
        for _ in range(5):
            asked = answer(client, asked, y)
        settled(client)
        assert known == [0]
        asked = answer(client, asked, y)
        settled(client)
        assert known == [0, 6]
    with page(place, tmp_path / "labels", start=True, **more) as (
        client,
        _,
    ):  # nothing has come since
        settled(client)
        assert known == [0, 6]


def test_labels_of_any_item_of_the_pool_are_taken_in(store, tmp_path):
    place, y = store
    lines = [f"doc {p},{CLASSES[y[p]]}" for p in range(0, N, 10)]
    (tmp_path / "known.csv").write_text("\n".join(["item,label", *lines]))
    with page(place, tmp_path / "labels", labels=tmp_path / "known.csv", **HOW) as (_, session):
        items, labels = session.service.items.ids, session.service.label_state.labels
        assert {number(items[p]): c for p, c in labels.items()} == {
            p: y[p] for p in range(0, N, 10)
        }


def test_parts_may_have_columns_of_their_own(store, tmp_path):
    """Those that are there are shown."""
    place, _ = store
    extra = {
        "id": ["more 0", "more 1"],
        "note": ["n0", "n1"],
        "v": list(clouds(2)[0].astype(np.float32)),
    }
    pq.write_table(pa.table(extra), tmp_path / "pool" / "4.parquet")
    embed(tmp_path / "pool", place, column="v", dtype="float32", executor=Inline())
    (tmp_path / "known.csv").write_text("item,label\nmore 1,oak\ndoc 3,elm\n")
    with page(place, tmp_path / "labels", labels=tmp_path / "known.csv", **HOW) as (_, session):
        items = session.service.items
        shown = items.describe_item(items.ids.index("more 1"))
        assert {cell["name"]: cell["value"] for cell in shown["row"]} == {
            "id": "more 1",
            "note": "n1",
        }
        assert shown["text"] == ""
        assert items.describe_item(items.ids.index("doc 3"))["text"] == "the text of number 3"


def test_what_a_large_pool_cannot_do_is_refused(store, tmp_path):
    place, _ = store
    for more, message in (
        ({"test": 0.2}, "leave out --test"),
        ({"refresh_every": 0}, "refresh-every is 0"),
        ({"tables": {"model": {"name": "mlp"}}}, "an out-of-core pool expects exact"),
    ):
        with (
            pytest.raises(InputError, match=message),
            page(place, tmp_path / "labels", **(HOW | more)),
        ):
            pass
    np.save(tmp_path / "x.npy", np.zeros((4, 2), np.float32))
    with (
        pytest.raises(InputError, match="is not a `pool embed` store"),
        page(tmp_path / "x.npy", tmp_path / "other", **HOW),
    ):
        pass
    with page(place, tmp_path / "labels", **HOW):
        pass
    with pytest.raises(InputError, match="pool predict"):
        session_model(tmp_path / "labels")


def test_a_record_of_another_pool_is_refused(store, tmp_path):
    place, _ = store
    np.save(tmp_path / "x.npy", clouds(100)[0].astype(np.float32))
    embed(tmp_path / "x.npy", tmp_path / "another", executor=Inline())
    with page(place, tmp_path / "labels", **HOW):
        pass
    with (
        pytest.raises(InputError, match="is not in"),
        page(tmp_path / "another", tmp_path / "labels", **HOW),
    ):
        pass
