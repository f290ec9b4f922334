"""The page on a pool of millions, here of hundreds: it begins with a sample, grows, is exact among what it holds."""

import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from labelahead.errors import InputError
from labelahead.learners.exact import ExactModel, mixture_kernel
from labelahead.linear.posterior import prior
from labelahead.scale import LargePool, embed
from labelahead.web import large
from tests.support.large_pools import CLASSES, Inline, clouds
from tests.support.web_sessions import CHANGE, page

N = 400
TABLES = {"model": {"name": "auto"}}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "SAMPLE", 60)
    monkeypatch.setattr(large, "CANDIDATES", 20)
    x, y = clouds(N)
    (tmp_path / "pool").mkdir()
    for i in range(4):
        some = range(100 * i, 100 * i + 100)
        columns = {"id": [f"doc {j}" for j in some], "text": [f"the text of number {j}" for j in some]}
        table = pa.table(columns | {"v": list(x[100 * i : 100 * i + 100].astype(np.float32))})
        pq.write_table(table, tmp_path / "pool" / f"{i}.parquet")
    embed(tmp_path / "pool", tmp_path / "store", column="v", dtype="float32", executor=Inline())
    return tmp_path / "store", y


def settled(client, what, until=60):
    end = time.monotonic() + until
    while not what(client.get("/api/progress").json()):
        assert time.monotonic() < end, client.get("/api/progress").json()
        time.sleep(0.05)


def answer(client, asked, y):
    position = int(asked["item"].split()[1])
    body = {"position": asked["position"], "kind": "label", "label": int(y[position])}
    said = client.post("/api/answers", json=body, headers=CHANGE)
    assert said.status_code == 200, said.text
    return said.json()["next"]


def test_it_begins_with_a_sample_grows_and_is_exact_among_what_it_holds(store, tmp_path):
    place, y = store
    more = {"classes": CLASSES, "every": 5, "executor": Inline(), "refresh_every": 10, "overlap": 0.0}
    with page(place, tmp_path / "labels", tables=TABLES, start=True, **more) as (client, session):
        settled(client, lambda p: p["training"]["round"] == 0 and p["training"]["idle"])
        first = len(session.assignment.items)
        assert 60 < first <= 80  # the sample, and candidates that are none of it
        asked = client.get("/api/question").json()
        assert asked["text"] == f"the text of number {asked['item'].split()[1]}"
        for _ in range(20):
            asked = answer(client, asked, y)
        settled(client, lambda p: p["training"]["labels_at_last"] > 15 and p["training"]["idle"])
        grown = len(session.assignment.items)
        assert grown > first
        items, belief = session.assignment.items, session.assignment.opinion.belief
        assert session.assignment.journal.items == tuple(items.ids)
        assert len(set(items.ids)) == grown
        # Exact: as a posterior over the whole pool with the same labels and the same kernel has it.
        pool = LargePool(place, executor=Inline())
        known = {int(items.ids[p].split()[1]): c for p, c in session.assignment.tally.labels.items()}
        rows, _ = pool.take(torch.arange(N), Inline())
        units = ExactModel(pool.centre, 3).unit(rows)
        snapshot = session.assignment.opinion.snapshot
        start = torch.full((N, 3), 1 / 3, dtype=torch.float64)
        every = prior(start, mixture_kernel(units, snapshot.weights), noise=snapshot.noise)
        every = every.condition(list(known), torch.tensor(list(known.values())))
        at = [int(items.ids[p].split()[1]) for p in belief.points.tolist()]
        assert torch.allclose(belief.posterior.mean, every.mean[at], atol=1e-5)
        labels = dict(session.assignment.tally.labels)
    with page(place, tmp_path / "labels", tables=TABLES, start=True, **more) as (client, session):
        assert session.assignment.tally.labels == labels  # what was held is held again, at the same positions
        assert list(session.assignment.items.ids[:grown]) == list(items.ids)
        settled(client, lambda p: p["training"]["round"] and p["training"]["idle"])
        assert client.get("/api/question").json()["reason"] == "look-ahead"


def test_what_a_large_pool_cannot_do_is_refused(store, tmp_path):
    place, _ = store
    for more, message in (
        ({"test": 0.2}, "leave out --test"),
        ({"refresh_every": 0}, "refresh-every is 0"),
        ({"tables": {"model": {"name": "mlp"}}}, "a large pool expects exact"),
    ):
        with (
            pytest.raises(InputError, match=message),
            page(place, tmp_path / "labels", **({"tables": TABLES, "executor": Inline()} | more)),
        ):
            pass
