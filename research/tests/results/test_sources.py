"""The study of sources."""

import numpy as np
import torch

from research.results.sources import (
    ARMS,
    LABELS,
    TEST,
    choose_labels,
    format_table,
    measure,
    run_all,
    simulate,
    take_newest,
    vote,
)


def make_pool(folder):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 1100)
    x = rng.normal(size=(3, 8))[y] * 2 + rng.normal(size=(1100, 8))
    np.savez(folder / "clouds.npz", x=x.astype(np.float32), y=y)


def test_votes_prefer_the_majority_and_then_the_newest():
    given = torch.tensor([[0, 1, 1], [2, -1, 0], [1, -1, -1]])
    assert vote(given).tolist() == [1, 0, 1]
    assert take_newest(given).tolist() == [1, 0, 1]
    assert vote(torch.tensor([[0, 0, 1]])).tolist() == [0]
    assert take_newest(torch.tensor([[0, 0, 1]])).tolist() == [1]


def test_only_the_third_annotator_errs_and_ours_is_measured(tmp_path):
    make_pool(tmp_path)
    for design, each in (("thirds", 1), ("triples", 3)):
        crowd = simulate("clouds", design, 0.4, 0, tmp_path)
        truth = crowd.y[crowd.items][:, None]
        labelled = crowd.given >= 0
        assert int(labelled.sum()) == LABELS
        assert len(crowd.items) == LABELS // each
        assert not set(crowd.items.tolist()) & set(crowd.test.tolist())
        wrong = (crowd.given != truth) & labelled
        assert not bool(wrong[:, :2].any())
        assert 0.25 < int(wrong[:, 2].sum()) / int(labelled[:, 2].sum()) < 0.55
    accuracy = {arm: measure(arm, crowd, choose_labels(arm, crowd)) for arm in ("ours", "newest")}
    assert accuracy["ours"] >= accuracy["newest"]
    assert len(crowd.test) == TEST


def test_table_shows_differences_with_their_error():
    rows = [
        {"set": "r8", "design": "pairs", "errors": "0.4", "seed": str(s)}
        | {arm: str(0.8 + 0.01 * s) for arm in ARMS}
        | {"newest": str(0.7 + 0.02 * s)}
        for s in range(3)
    ]
    line = format_table(rows).splitlines()[2]
    assert line.startswith("| r8 | pairs | 40 % | 3 | 81.0 | +9.0 ± 0.6\\* | +0.0 ± 0.0 |")


def test_run_skips_what_is_there(tmp_path):
    path = tmp_path / "sources.csv"
    run_all(range(0), path)
    assert not path.exists()
