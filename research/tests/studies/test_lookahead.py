"""The numbers of `python -m research study lookahead`: queries, accuracies and times."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from labelahead.errors import InputError
from labelahead.gp.posterior import prior
from labelahead.learner.config import parse_campaign
from labelahead.ntk import infinite_kernel
from labelahead.simulation.run import run
from research.studies import conduct
from research.studies.lookahead import LOOKAHEAD, Settings, cells
from research.studies.lookahead.figures import PAPER, areas, differences, final, gap, seconds
from research.studies.lookahead.measure import WAYS, process_outputs, rows_of

TINY = Settings(seeds=2, width=16, steps=20, initial=15, query=4, rounds=2, candidates=40, few=6)


@pytest.fixture(scope="module")
def conducted_study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    return conduct(LOOKAHEAD, TINY, folder, workers=1), folder


def measure_campaign(arm: str, s: Settings = TINY, seed: int = 0) -> list:
    return [{"arm": arm, "seed": seed, **r} for r in rows_of(s, {"arm": arm, "seed": seed})]


def test_block_formula_and_solve_give_equal_campaigns():
    block, solved = measure_campaign("ntk"), measure_campaign("ntk-solve")
    assert [r["accuracy"] for r in block] == [r["accuracy"] for r in solved]
    assert [r["labels"] for r in block] == [15, 19, 23]
    assert block[-1]["seconds"] is None  # the last round has no query
    assert all(r["seconds"] > 0 for r in block[:-1])


def test_naive_cell_equals_campaign():
    config = {
        "seed": 1,
        "data": {"name": "digits"},
        "model": {"name": "mlp", "width": 16},
        "training": {"steps": 20},
        "threads": 1,
        "asking": {"strategy": "naive", "candidates": 6, "evaluation": None, "retrainings": None},
        "budget": {"initial": 15, "retrain_every": 4, "labels": 23},
    }
    expected = [r.accuracy for r in run(parse_campaign(config)).rounds]
    found = measure_campaign("naive", seed=1)
    assert [r["accuracy"] for r in found] == expected
    assert {r["candidates"] for r in found} == {6}


def test_process_outputs_equal_posterior_with_zero_mean():
    rng = torch.Generator().manual_seed(0)
    x, test = (torch.randn(n, 5, generator=rng, dtype=torch.float64) for n in (7, 9))
    y = torch.tensor([0, 1, 2, 0, 1, 2, 1])
    theta = infinite_kernel(torch.cat([x, test]), depth=3)
    # `prior` uses the mean diagonal of all points, `process_outputs` that of the labelled points.
    noise = 1e-3 * float(theta.diagonal()[:7].mean() / theta.diagonal().mean())
    post = prior(torch.zeros(16, 3).double(), theta, noise=noise)
    expected = post.condition(range(7), F.one_hot(y, 3).double()).mean[7:]
    assert (
        process_outputs(theta[:7, :7], theta[7:, :7], y, 3, 1e-3) - expected
    ).abs().max() < 1e-10


def make_curve_rows(arm: str, seed: int, values: list[float], **more) -> list:
    return [
        {
            "arm": arm,
            "seed": seed,
            "round": i,
            "labels": 10 * i,
            "accuracy": v,
            "process_accuracy": v / 2,
            "seconds": None if i == len(values) - 1 else 1.0 + i,
            **more,
        }
        for i, v in enumerate(values)
    ]


def test_areas_gaps_and_seconds_equal_manual_computation():
    rows = make_curve_rows("ntk", 0, [0.2, 0.4, 0.8]) + make_curve_rows("gp", 0, [0.2, 0.4, 0.8])
    assert areas(rows, "ntk") == {0: pytest.approx(100 * (0.3 + 0.6) / 2)}
    assert areas(rows, "gp") == {0: pytest.approx(50 * (0.3 + 0.6) / 2)}
    s = replace(TINY, rounds=2)
    assert final(s, rows, "ntk") == {0: pytest.approx(80)}
    assert seconds(rows, "ntk") == {0: 1.5}
    assert gap({0: 3.0, 1: 5.0}, {1: 1.0, 0: 1.0}).mean == 3.0


def test_p_values_equal_scipy():
    rng = np.random.default_rng(0)
    arms = ("ntk", "one-step", "infinite-ntk", "gp")
    ends = {a: 0.6 + 0.1 * i + 0.05 * rng.standard_normal(6) for i, a in enumerate(arms)}
    rows = [
        r for a in arms for k in range(6) for r in make_curve_rows(a, k, [0.5, float(ends[a][k])])
    ]
    rows += [r for k in range(6) for r in make_curve_rows("random", k, [0.5, 0.7])]
    (exhibit,) = differences(replace(TINY, seeds=6), rows)
    values = {a: [areas(rows, a)[k] for k in range(6)] for a in arms}
    friedman = stats.friedmanchisquare(*values.values()).pvalue
    assert f"we find {friedman:.2g}." in exhibit.caption
    for row in exhibit.table:
        one, other = values[row["first"]], values[row["second"]]
        assert row["p"] == pytest.approx(stats.ttest_rel(one, other).pvalue, rel=1e-9)
        assert row["p, Holm"] >= row["p"]
    assert {(r["first"], r["second"]) for r in exhibit.table} == set(PAPER)
    kept = sum(r["p, Holm"] < 0.05 for r in exhibit.table)
    assert kept > 1
    assert f"{kept} of the 6 p-values are below 0.05" in exhibit.caption
    assert "it is −30.00 [−30.00, −30.00] points from the network" in exhibit.caption
    assert "better than" in exhibit.caption or "worse than" in exhibit.caption


def test_figures_show_all_arms_and_agree_with_rows(conducted_study):
    found, folder = conducted_study
    assert [e.name for e in found.exhibits] == ["cost", "rivals", "tests", "criteria"]
    cost, baselines, _, acquisitions = found.exhibits
    assert [r["arm"] for r in acquisitions.table] == ["ntk", "ntk-sequential", "emoc", "eer"]
    assert [r["arm"] for r in cost.table] == list(WAYS)
    times = {r["arm"]: r for r in cost.table}
    share = times["naive"]["s for 40"] / times["naive"]["s a query"]
    assert share == pytest.approx(40 / 6)
    assert times["ntk"]["times the kernel's"] == 1
    assert times["ntk"]["accuracy, %"] == times["ntk-solve"]["accuracy, %"]
    assert "the very same accuracy in 2 of 2 seeds" in cost.caption
    judged = [(r["arm"], r["accuracy of"]) for r in baselines.table]
    assert judged[-2:] == [("random", "process"), ("gp", "process")]
    first = {r["15 labels"] for r in baselines.table if r["accuracy of"] == "network"}
    assert len(first) == 1  # the same first labels, the same training
    assert (folder / "cost.png").stat().st_size > 10_000


def test_cells_are_ordered_by_seed_and_invalid_settings_raise():
    assert [c["seed"] for c in cells(TINY)] == [0] * len(WAYS) + [1] * len(WAYS)
    for changes, words in (
        ({"seeds": 0}, "seeds is 0"),
        ({"arms": ("random", "ntk", "nonsense")}, "'nonsense'; expected some of"),
        ({"arms": ("random",)}, "lacks 'ntk'"),
        ({"few": 3}, "rising order"),
    ):
        with pytest.raises(InputError, match=words):
            replace(TINY, **changes)


def test_study_with_few_arms_and_one_seed_makes_figures(tmp_path):
    s = replace(TINY, seeds=1, arms=("random", "ntk", "one-step"), rounds=1)
    found = conduct(LOOKAHEAD, s, tmp_path, workers=1)
    assert [e.name for e in found.exhibits] == ["cost", "rivals"]


def test_paper_recipe_differs_from_own_recipe():
    s = replace(TINY, recipe="paper", steps=12, rounds=1)
    first, second = measure_campaign("random", s)
    assert (first["labels"], second["labels"]) == (15, 19)
    assert [r["accuracy"] for r in measure_campaign("random", replace(s, recipe="own"))] != [
        first["accuracy"],
        second["accuracy"],
    ]
