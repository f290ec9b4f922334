import json
import multiprocessing
import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.errors import InputError, StorageError
from labelahead.simulation.store import Round, Store
from tests.support.waiting import PATIENCE

ROUND = Round(
    0,
    5,
    0.5,
    1.0,
    0.1,
    20,
    3,
    gain=1.25,
    loo=0.4,
    loo_error=0.2,
    seconds={"train": 0.1},
    notes=("a",),
)


def create_store(folder, config="seed = 1\n"):
    with Store.create(folder, config) as store:
        store.add_label(7, 2, 0)
        store.add_label(3, 0, 0, by="ann")
        store.add_round(ROUND)
    return folder


def test_store_round_trip(tmp_path):
    with Store.open(create_store(tmp_path / "a")) as store:
        assert (tmp_path / "a" / "config.toml").read_text() == "seed = 1\n"
        assert [(e.position, e.label, e.round, e.by) for e in store.read_labels()] == [
            (7, 2, 0, "oracle"),
            (3, 0, 0, "ann"),
        ]
        assert store.read_labels()[0].time.endswith("+00:00")
        assert store.read_rounds() == [ROUND]


def test_rounds_without_drift_are_read(tmp_path):
    folder = create_store(tmp_path / "a")
    row = json.loads((folder / "rounds.jsonl").read_text())
    assert row.pop("drift") is None
    (folder / "rounds.jsonl").write_text(json.dumps(row) + "\n")
    with Store.open(folder) as store:
        assert store.read_rounds() == [ROUND]
        store.add_round(replace(ROUND, number=1, drift=0.38))
        assert [r.drift for r in store.read_rounds()] == [None, 0.38]


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(1, 200))
def test_truncated_line_is_dropped(tmp_path_factory, cut):
    folder = create_store(tmp_path_factory.mktemp("s") / "a")
    path = folder / "labels.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut] if cut < len(whole) else b"")
    kept = (whole[:-cut] if cut < len(whole) else b"").count(b"\n")
    with Store.open(folder) as store:
        assert len(store.read_labels()) == kept
        store.add_label(9, 1, 1)
        assert len(store.read_labels()) == kept + 1
        assert store.read_labels()[-1].position == 9
    assert path.read_bytes().endswith(b"\n")


def test_damaged_line_raises(tmp_path):
    folder = create_store(tmp_path / "a")
    path = folder / "labels.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["{broken", *lines]) + "\n")
    with Store.open(folder) as store, pytest.raises(InputError, match="line 1 is damaged"):
        store.read_labels()
    path.write_text(json.dumps({"position": 1}) + "\n")
    with Store.open(folder) as store, pytest.raises(InputError, match="line 1 is incomplete"):
        store.read_labels()


def test_create_refuses_existing_campaign(tmp_path):
    create_store(tmp_path / "a")
    with pytest.raises(InputError, match="resume"), Store.create(tmp_path / "a", "x"):
        pass
    with pytest.raises(InputError, match="holds no campaign"), Store.open(tmp_path / "b"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"), Store.create(tmp_path / "file", "x"):
        pass


def _try_open(folder, queue):
    try:
        with Store.open(folder):
            queue.put("opened")
    except StorageError as error:
        queue.put(str(error))


def test_second_process_is_refused(tmp_path):
    folder = create_store(tmp_path / "a")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with Store.open(folder):
        other = context.Process(target=_try_open, args=(folder, queue))
        other.start()
        assert "in use by another process" in queue.get(timeout=PATIENCE)
        other.join()
    with Store.open(folder):
        pass


def test_weights_of_last_rounds_are_kept(tmp_path):
    with Store.create(tmp_path / "a", "") as store:
        for i in range(4):
            store.save_weights(i, {"w": torch.full((2,), float(i))})
        assert store.load_weights(3)["w"].tolist() == [3.0, 3.0]
        assert store.load_weights(2)["w"].tolist() == [2.0, 2.0]
        with pytest.raises(InputError, match="missing"):
            store.load_weights(0)
        assert not (tmp_path / "a" / "weights" / "partial").exists()


def test_label_refused_by_full_disk_is_not_recorded(tmp_path, monkeypatch):
    with Store.create(tmp_path / "a", "") as store:
        store.add_label(1, 0, 0)
        real = os.fsync

        def raise_disk_full(handle):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", raise_disk_full)
        with pytest.raises(OSError, match="No space"):
            store.add_label(2, 0, 0)
        monkeypatch.setattr(os, "fsync", real)
        store.add_label(3, 0, 0)
        assert [e.position for e in store.read_labels()] == [1, 3]


def test_damaged_weights_raise(tmp_path):
    with Store.create(tmp_path / "a", "") as store:
        store.save_weights(0, {"w": torch.ones(2)})
        path = next((tmp_path / "a" / "weights").glob("*.pt"))
        path.write_bytes(path.read_bytes()[:20])
        with pytest.raises(InputError, match="damaged"):
            store.load_weights(0)


def test_nan_in_record_raises(tmp_path):
    with Store.create(tmp_path / "a", "") as store, pytest.raises(ValueError, match="JSON"):
        store.add_round(Round(0, 5, float("nan"), 1.0, 0.1, 20, 3))


def test_unwritable_weights_raise(tmp_path):
    with Store.create(tmp_path / "a", "") as store:
        (tmp_path / "a" / "weights").touch()
        with pytest.raises(StorageError, match="weights cannot be written to"):
            store.save_weights(0, {})
