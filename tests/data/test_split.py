"""Test sets and limits: balanced, nested, and the same for the same seed."""

import torch

from labelahead.data.split import LoadOptions, split_items


def options(tmp_path, **more):
    return LoadOptions(root=tmp_path, **more)


LABELS = torch.tensor([0] * 40 + [1] * 20 + [-1] * 10)


def test_drawn_test_set_holds_the_fraction_of_each_class_and_no_unknown_item(tmp_path):
    split = split_items(LABELS, options(tmp_path, test_fraction=0.25))
    tested = LABELS[split.keep][split.test]
    assert torch.bincount(tested).tolist() == [10, 5]
    assert len(split.pool) + len(split.test) == len(LABELS)
    assert split.depends_on_seed


def test_larger_limit_keeps_the_items_of_a_smaller_one(tmp_path):
    small, large = (
        set(split_items(LABELS, options(tmp_path, limit=n, seed=3)).keep.tolist()) for n in (10, 25)
    )
    assert small < large


def test_official_test_set_depends_on_the_seed_only_through_the_limit(tmp_path):
    official = torch.arange(70) >= 50
    whole = [split_items(LABELS, options(tmp_path, seed=s), official) for s in (0, 1)]
    assert torch.equal(whole[0].keep, whole[1].keep)
    assert torch.equal(whole[0].test, whole[1].test)
    assert not whole[0].depends_on_seed
    few = [split_items(LABELS, options(tmp_path, seed=s, limit=12), official) for s in (0, 1)]
    assert few[0].keep.tolist() != few[1].keep.tolist()
    assert few[0].depends_on_seed


def test_limit_above_the_size_depends_on_no_seed(tmp_path):
    official = torch.arange(70) >= 50
    split = split_items(LABELS, options(tmp_path, limit=1000), official)
    assert len(split.keep) == 70
    assert not split.depends_on_seed
