"""Paired campaigns: labels that a strategy and its baseline need, over seeds, with an interval."""

import json
import math

import pytest
import torch
from scipy import stats

from labelahead.data import from_arrays
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.simulation import paired
from labelahead.simulation.paired import (
    BaselineCallbacks,
    SeedPair,
    is_paired_folder,
    labels_to_reach,
    resume_paired,
    run_against,
    run_paired,
    summarise_ratio,
)
from labelahead.simulation.run import RunCallbacks, iterate_rounds, run
from tests.support.campaigns import blobs

PLAN = {
    "model": {"name": "exact"},
    "data": {"embedding": "raw"},
    "budget": {"initial": 3, "labels": 12, "retrain_every": 3},
    "asking": {"candidates": 20, "evaluation": 20},
    "threads": 1,
    "seed": 5,
}


def make_data(test=20):
    x, y = blobs(80, (6,), 0)
    return from_arrays(x, y.tolist(), classes=["a", "b", "c"], test=range(80 - test, 80))


def test_summarise_ratio_is_geometric_mean_with_t_interval():
    needed = [(40, 80), (50, 60), (30, 90)]
    pairs = [
        SeedPair(i, 0.9, strategy_labels, baseline_labels, baseline_labels)
        for i, (strategy_labels, baseline_labels) in enumerate(needed)
    ]
    found = summarise_ratio(pairs)
    logs = [
        math.log(baseline_labels / strategy_labels) for strategy_labels, baseline_labels in needed
    ]
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
    progress_calls = []
    found = run_paired(
        PLAN,
        "random",
        2,
        out=tmp_path / "p",
        data=make_data(),
        on_campaign=lambda *at: progress_calls.append(at),
    )
    assert progress_calls == [
        (0, 4, 5, "flip"),
        (1, 4, 5, "random"),
        (2, 4, 6, "flip"),
        (3, 4, 6, "random"),
        (4, 4, 6, "random"),
    ]
    for pair in found.pairs:
        ours = run(PLAN | {"seed": pair.seed}, data=make_data(), forecast=False).rounds
        assert (pair.accuracy, pair.strategy) == (
            ours[-1].accuracy,
            labels_to_reach(ours, ours[-1].accuracy),
        )
        other = PLAN | {"seed": pair.seed, "asking": {**PLAN["asking"], "strategy": "random"}}
        baseline_curve = list(
            iterate_rounds(
                parse_campaign(other | {"budget": {**PLAN["budget"], "labels": 48}}),
                lambda campaign: prepare_campaign(campaign, make_data()),
            )
        )
        assert pair.baseline == labels_to_reach(baseline_curve, pair.accuracy)


def test_resume_paired_gives_same_result(tmp_path):
    whole = run_paired(PLAN, "random", 2, out=tmp_path / "whole", data=make_data())

    def stop(done, total, seed, strategy):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_paired(PLAN, "random", 2, out=tmp_path / "half", data=make_data(), on_campaign=stop)
    kept = (tmp_path / "half" / "seed-5" / "strategy" / "labels.jsonl").read_bytes()
    assert is_paired_folder(tmp_path / "half")
    assert resume_paired(tmp_path / "half", data=make_data()).pairs == whole.pairs
    assert (
        tmp_path / "half" / "seed-5" / "strategy" / "labels.jsonl"
    ).read_bytes() == kept  # no item is queried again
    # once more, after completion
    assert resume_paired(tmp_path / "half", data=make_data()).pairs == whole.pairs


def test_run_paired_refuses_before_writing(tmp_path):
    with pytest.raises(InputError, match="no test items"):
        run_paired(PLAN, "random", 2, out=tmp_path / "p", data=make_data(0))
    with pytest.raises(InputError, match="seeds is 0"):
        run_paired(PLAN, "random", 0, out=tmp_path / "p", data=make_data())
    with pytest.raises(InputError, match="randon"):
        run_paired(PLAN, "randon", 2, out=tmp_path / "p", data=make_data())
    assert not (tmp_path / "p").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(InputError, match="not empty"):
        run_paired(PLAN, "random", 2, out=tmp_path / "used", data=make_data())
    with pytest.raises(InputError, match="no paired campaigns"):
        resume_paired(tmp_path)


def test_damaged_paired_plan_raises(tmp_path):
    (tmp_path / "paired.json").write_text(json.dumps({"seeds": [0]}))
    with pytest.raises(InputError, match=r"paired\.json is damaged"):
        resume_paired(tmp_path)


def test_run_paired_preserves_thread_count(tmp_path):
    before = torch.get_num_threads()
    run_paired(PLAN, "random", 1, out=tmp_path / "p", data=make_data())
    assert torch.get_num_threads() == before


def count_preparations(monkeypatch):
    """Count how often a campaign's data are prepared, without changing what happens."""
    seen = []

    def count(campaign, *rest):
        seen.append(campaign.seed)
        return prepare_campaign(campaign, *rest)

    monkeypatch.setattr(paired, "prepare_campaign", count)
    return seen


def test_run_paired_prepares_given_data_once_for_all_seeds(tmp_path, monkeypatch):
    seen = count_preparations(monkeypatch)
    run_paired(PLAN, "random", 3, out=tmp_path / "p", data=make_data())
    assert seen == [5]
    resume_paired(tmp_path / "p", data=make_data())
    assert seen == [5, 5]


def test_run_paired_prepares_a_drawn_split_once_per_seed(tmp_path, monkeypatch):
    seen = count_preparations(monkeypatch)
    plan = PLAN | {"data": {"name": "digits", "limit": 60}}
    run_paired(plan, "random", 2, out=tmp_path / "p")
    assert seen == [5, 6]


def test_run_against_matches_separate_campaigns_and_prepares_once(monkeypatch):
    seen = count_preparations(monkeypatch)
    plan = PLAN | {"data": {"name": "digits", "limit": 60}}
    pair = run_against(plan, "random")
    assert seen == [5]
    assert (pair.strategy, pair.baseline) == ("flip", "random")
    ours = run(plan).rounds
    assert [r.accuracy for r in pair.result.rounds] == [r.accuracy for r in ours]
    other = plan | {
        "asking": {**PLAN["asking"], "strategy": "random"},
        "budget": {**PLAN["budget"], "labels": 48},
    }
    theirs = list(iterate_rounds(parse_campaign(other)))
    reached = labels_to_reach(theirs, ours[-1].accuracy) or theirs[-1].labels
    stop = max(reached, 12)
    expected = [(r.labels, r.accuracy) for r in theirs if r.labels <= stop]
    assert [(r.labels, r.accuracy) for r in pair.rounds] == expected


def test_run_against_without_test_items_runs_no_baseline():
    pair = run_against(PLAN, "random", data=make_data(0))
    assert pair.rounds is None
    assert pair.result.rounds[-1].labels == 12


def test_run_against_reports_both_campaigns():
    said = []
    run_against(
        PLAN,
        "random",
        data=make_data(),
        callbacks=RunCallbacks(on_round=lambda r: said.append(("strategy", r.labels))),
        baseline_callbacks=BaselineCallbacks(
            on_start=lambda result, most: said.append(("start", most)),
            on_round=lambda r: said.append(("baseline", r.labels)),
        ),
    )
    assert said[:6] == [
        ("strategy", 3),
        ("strategy", 6),
        ("strategy", 9),
        ("strategy", 12),
        ("start", 48),
        ("baseline", 3),
    ]
