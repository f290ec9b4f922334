"""Paired campaigns: labels that a strategy and its baseline need, over seeds, with an interval."""

import json
import math

import pytest
import torch
from scipy import stats

from labelahead.data import from_arrays
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.simulation.paired import (
    SeedPair,
    is_paired_folder,
    labels_to_reach,
    resume_paired,
    run_paired,
    summarise_ratio,
)
from labelahead.simulation.run import iterate_rounds, run
from tests.support.campaigns import blobs

PLAN = {
    "model": {"name": "exact"},
    "data": {"embedding": "raw"},
    "budget": {"initial": 3, "labels": 12, "retrain_every": 3},
    "asking": {"candidates": 20, "evaluation": 20},
    "threads": 1,
    "seed": 5,
}


def items(test=20):
    x, y = blobs(80, (6,), 0)
    return from_arrays(x, y.tolist(), classes=["a", "b", "c"], test=range(80 - test, 80))


def test_summarise_ratio_is_geometric_mean_with_t_interval():
    needed = [(40, 80), (50, 60), (30, 90)]
    pairs = [SeedPair(i, 0.9, ours, theirs, theirs) for i, (ours, theirs) in enumerate(needed)]
    found = summarise_ratio(pairs)
    logs = [math.log(theirs / ours) for ours, theirs in needed]
    assert found.ratio == pytest.approx(math.exp(sum(logs) / 3))
    low, high = stats.t.interval(0.95, 2, loc=sum(logs) / 3, scale=stats.sem(logs))
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert (found.seeds, found.at_least) == (3, 0)


def test_summarise_ratio_with_one_seed_or_stopped_baseline():
    found = summarise_ratio([SeedPair(0, 0.9, 50, None, 200)])
    assert (found.ratio, found.low, found.high, found.at_least) == (
        pytest.approx(4.0),
        None,
        None,
        1,
    )


def test_run_paired_matches_single_campaigns(tmp_path):
    seen = []
    found = run_paired(
        PLAN, "random", 2, out=tmp_path / "p", data=items(), on_campaign=lambda *at: seen.append(at)
    )
    assert seen == [
        (0, 4, 5, "flip"),
        (1, 4, 5, "random"),
        (2, 4, 6, "flip"),
        (3, 4, 6, "random"),
        (4, 4, 6, "random"),
    ]
    for pair in found.pairs:
        ours = run(PLAN | {"seed": pair.seed}, data=items(), forecast=False).rounds
        assert (pair.accuracy, pair.strategy) == (
            ours[-1].accuracy,
            labels_to_reach(ours, ours[-1].accuracy),
        )
        other = PLAN | {"seed": pair.seed, "asking": {**PLAN["asking"], "strategy": "random"}}
        theirs = list(
            iterate_rounds(
                parse_campaign(other | {"budget": {**PLAN["budget"], "labels": 48}}), data=items()
            )
        )
        assert pair.baseline == labels_to_reach(theirs, pair.accuracy)


def test_resume_paired_gives_same_result(tmp_path):
    whole = run_paired(PLAN, "random", 2, out=tmp_path / "whole", data=items())

    def stop(done, total, seed, strategy):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_paired(PLAN, "random", 2, out=tmp_path / "half", data=items(), on_campaign=stop)
    kept = (tmp_path / "half" / "seed-5" / "strategy" / "labels.jsonl").read_bytes()
    assert is_paired_folder(tmp_path / "half")
    assert resume_paired(tmp_path / "half", data=items()).pairs == whole.pairs
    assert (
        tmp_path / "half" / "seed-5" / "strategy" / "labels.jsonl"
    ).read_bytes() == kept  # nothing is asked again
    assert (
        resume_paired(tmp_path / "half", data=items()).pairs == whole.pairs
    )  # and once more, when all is done


def test_run_paired_refuses_before_writing(tmp_path):
    with pytest.raises(InputError, match="no test items"):
        run_paired(PLAN, "random", 2, out=tmp_path / "p", data=items(0))
    with pytest.raises(InputError, match="seeds is 0"):
        run_paired(PLAN, "random", 0, out=tmp_path / "p", data=items())
    with pytest.raises(InputError, match="randon"):
        run_paired(PLAN, "randon", 2, out=tmp_path / "p", data=items())
    assert not (tmp_path / "p").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(InputError, match="not empty"):
        run_paired(PLAN, "random", 2, out=tmp_path / "used", data=items())
    with pytest.raises(InputError, match="no paired campaigns"):
        resume_paired(tmp_path)


def test_damaged_paired_plan_raises(tmp_path):
    (tmp_path / "paired.json").write_text(json.dumps({"seeds": [0]}))
    with pytest.raises(InputError, match=r"paired\.json is damaged"):
        resume_paired(tmp_path)


def test_run_paired_preserves_thread_count(tmp_path):
    before = torch.get_num_threads()
    run_paired(PLAN, "random", 1, out=tmp_path / "p", data=items())
    assert torch.get_num_threads() == before
