"""The cache of features: order, keys, interruptions, damage."""

import logging
import os

import pytest
import torch

from labelahead.errors import InputError, StorageError
from labelahead.models.feature_cache import (
    FeatureCache,
    collect_features,
    compute_features,
    make_key,
    make_numbered_keys,
    read_cached_width,
)

COLUMNS = 5


class Features:
    """Features of items by their number, two at a time; counts the items that are computed."""

    def __init__(self, numbers):
        self.numbers = torch.tensor(numbers)
        self.computed = []

    def make_rows(self, at):
        self.computed += self.numbers[at].tolist()
        return self.numbers[at, None] * torch.arange(1.0, COLUMNS + 1) / 7

    def fill(self, at, rows):
        for start in range(0, len(at), 2):
            stop = min(start + 2, len(at))
            rows[start:stop] = self.make_rows(at[start:stop])
            yield stop

    def produce(self, at):
        for start in range(0, len(at), 2):
            yield at[start : start + 2], self.make_rows(at[start : start + 2])


def compute(numbers, cache, *, method="a", progress=None):
    features = Features(list(numbers))
    keys = [make_key(str(i)) for i in numbers]
    out = compute_features(
        len(keys),
        COLUMNS,
        features.fill,
        method=method,
        keys=keys,
        cache=cache,
        progress=progress,
        block_items=4,
    )
    assert torch.equal(out, Features(list(numbers)).make_rows(list(range(len(keys)))))
    return features.computed


def test_make_key_separates_its_parts():
    assert make_key("ab", "c") != make_key("a", "bc")
    assert make_key("a") == make_key(b"a")
    assert len(set(make_numbered_keys("a", 5) + make_numbered_keys("b", 5))) == 10


def test_cached_features_are_found_in_any_order_and_among_others(tmp_path):
    assert compute([3, 1, 4, 1, 5, 9], tmp_path) == [3, 1, 4, 1, 5, 9]
    assert compute([9, 5, 4, 3, 2, 6, 1, 5], tmp_path) == [2, 6]
    assert compute([6, 2], tmp_path) == []
    assert compute([6, 2], tmp_path, method="b") == [6, 2]
    assert compute([6, 2], None) == [6, 2]
    assert not list(tmp_path.rglob("*.partial"))


def test_interrupted_computation_continues_from_the_cache(tmp_path):
    def stop(done, n):
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute(range(10), tmp_path, progress=stop)
    progress_calls = []
    computed = compute(range(10), tmp_path, progress=lambda *p: progress_calls.append(p))
    assert computed == [4, 5, 6, 7, 8, 9]  # the cache has the first block of four
    assert progress_calls == [(4, 10), (6, 10), (8, 10), (10, 10)]


def test_collect_features_stores_what_came_before_an_error(tmp_path):
    features = Features(list(range(7)))
    options = {"method": "a", "keys": make_numbered_keys("a", 7), "cache": tmp_path}

    def stop(done, n):
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_features(7, COLUMNS, features.produce, **options, progress=stop)
    assert features.computed == [0, 1, 2, 3]
    out = collect_features(7, COLUMNS, features.produce, **options)
    assert features.computed == list(range(7))
    assert torch.equal(out, Features(list(range(7))).make_rows(list(range(7))))
    assert read_cached_width(tmp_path, "a") == COLUMNS
    assert read_cached_width(tmp_path, "b") is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap", "longer"])
def test_damaged_file_is_reported_and_computed_again(tmp_path, damage, caplog):
    compute(range(8), tmp_path)
    one, two = sorted(tmp_path.rglob("*.f32"))
    content = bytearray(one.read_bytes())
    if damage == "flip":
        content[100] ^= 1
    one.write_bytes(
        {
            "flip": bytes(content),
            "cut": bytes(content[:-10]),
            "empty": b"",
            "swap": two.read_bytes(),
            "longer": bytes(content) + b"x",
        }[damage]
    )
    with caplog.at_level(logging.WARNING, logger="labelahead"):
        assert len(compute(range(8), tmp_path)) == 4
    assert "damaged" in caplog.text
    assert compute(range(8), tmp_path) == []


def test_failing_disk_loses_only_the_cache(tmp_path, monkeypatch, caplog):
    def raise_disk_full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", raise_disk_full)
    with caplog.at_level(logging.WARNING, logger="labelahead"):
        assert compute(range(2), tmp_path) == [0, 1]
    assert "No space left" in caplog.text
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_cache_without_keys_or_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="no fingerprint"):
        compute_features(2, 3, lambda at, rows: (), method="a", keys=None, cache=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used"):
        FeatureCache(tmp_path / "file", "key")
