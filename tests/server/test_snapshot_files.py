"""Snapshot files: both kinds come back as they were, and those of older versions are rebuilt."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import torch

from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.server.page_model import PageModel
from labelahead.server.snapshot import TrainingRequest
from labelahead.server.snapshot_builder import build_snapshot
from labelahead.server.snapshot_files import SnapshotFormatError, load_snapshot, save_snapshot
from tests.support.web_sessions import CHANGE, page, progress_once

ITEMS = 30
MODELS = ({"name": "exact"}, {"name": "mlp", "width": 8})
KINDS = pytest.mark.parametrize("model", MODELS, ids=["exact", "network"])


def data(tmp_path):
    rows = torch.randn((ITEMS, 3), generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    return tmp_path / "set.npz"


def tables(model):
    training = {} if model["name"] == "exact" else {"training": {"steps": 3}}
    return {"model": model, "threads": 1, **training}


def build(tmp_path, model, round=1):
    campaign = parse_campaign({"data": {"name": str(data(tmp_path))}, **tables(model)})
    labels = tuple((p, p % 2) for p in range(12)) if round else ()
    request = TrainingRequest(round, labels, 2, random_sample=tuple(range(6)))
    return build_snapshot(prepare_campaign(campaign), request)


def write_old_snapshot(path, labels):
    """A file as version 0.2 wrote it, of the exact learner."""
    state = {
        "round": 7,
        "points": torch.arange(ITEMS),
        "outputs": torch.full((ITEMS, 2), 0.5, dtype=torch.float64),
        "kernel": None,
        "features": None,
        "labels": labels,
        "noise": 1e-2,
        "strategy": "resolve",
        "evaluation": None,
        "facts": {"labels": len(labels), "map": {"points": [], "x": [], "y": []}},
        "units": torch.eye(ITEMS),
        "weights": (1.0, 0.0, 0.0),
        "test": None,
        "own_noise": None,
        "pushes": None,
    }
    torch.save(state, path)


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif is_dataclass(one):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other


@KINDS
@pytest.mark.parametrize("round", [0, 1])
def test_loaded_snapshot_is_the_saved_one(tmp_path, model, round):
    made = build(tmp_path, model, round)
    save_snapshot(made, tmp_path / "snapshot.pt")
    loaded = load_snapshot(tmp_path / "snapshot.pt")
    assert_same(loaded, made)
    first, second = (PageModel.from_snapshot(s, s.labels, 2) for s in (made, loaded))
    assert first.choose_best() == second.choose_best()
    assert torch.equal(first.confidence, second.confidence)


def test_old_snapshot_raises_and_names_its_labels(tmp_path):
    write_old_snapshot(tmp_path / "snapshot-00007.pt", {3: 1})
    with pytest.raises(SnapshotFormatError, match=r"snapshot-00007.pt was written by another") as e:
        load_snapshot(tmp_path / "snapshot-00007.pt")
    assert e.value.labels == {3: 1}


@KINDS
def test_page_rebuilds_an_old_snapshot_and_keeps_the_new_one(tmp_path, model):
    how = {"tables": tables(model), "classes": ["a", "b"], "retrain_every": 4}
    with page(data(tmp_path), tmp_path / "out", **how) as (_, session):
        session.service.add_labels([(p, "ab"[p % 2], "anna") for p in range(6)])
    for number in (7, 8):
        write_old_snapshot(tmp_path / f"out/snapshot-{number:05d}.pt", {0: 0, 1: 1})
    with page(data(tmp_path), tmp_path / "out", start=True, **how) as (client, session):
        assert session.service.page_model is None or session.service.page_model.snapshot.round < 7
        status = progress_once(client, lambda now: now["training"]["round"] == 1)
        assert status["labels"] == 6
        progress_once(client, lambda now: now["training"]["idle"])
        assert client.post("/api/undo", json={}, headers=CHANGE).status_code == 200
    kept = []
    for path in (tmp_path / "out").glob("snapshot-*.pt"):
        try:
            kept.append(load_snapshot(path))
        except SnapshotFormatError:
            continue
    assert kept


def test_old_snapshot_with_labels_that_the_journal_lacks_is_refused(tmp_path):
    how = {"tables": tables(MODELS[0]), "classes": ["a", "b"]}
    with page(data(tmp_path), tmp_path / "out", **how) as (_, session):
        session.service.add_labels([(0, "a", "anna")])
        write_old_snapshot(tmp_path / "out/snapshot-00007.pt", {0: 0, 5: 1})
        with pytest.raises(InputError, match=r"no label of 1 items that snapshot-00007.pt"):
            session.schedule.restore()
