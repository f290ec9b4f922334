"""The numbers of `python -m research study dynamics` against explicit definitions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from labelahead.errors import InputError
from labelahead.gp.dynamics import generalisation_bound, mmd, residuals
from labelahead.models.training import predict
from labelahead.ntk import infinite_kernel
from labelahead.simulation.comparison.statistics import t_interval
from labelahead.strategies.dynamical import total_gradient
from research.studies import conduct
from research.studies.dynamics import DYNAMICS, Settings, cells
from research.studies.dynamics.figures import gammas, verdict
from research.studies.dynamics.lemmas import (
    compute_corrected_term,
    compute_dropped_term,
    lemma,
    slack,
)
from research.studies.dynamics.measure import (
    correlation,
    fresh_kernel,
    identity,
    network,
    ratio,
    rounds,
    single_and_joint,
)
from research.studies.study_data import items, some

TINY = Settings(
    seeds=1,
    width=4,
    kernel_width=4,
    initial=30,
    pool=60,
    identity_items=8,
    batches=(5, 10),
    epochs=(0, 3),
    ratio_draws=4,
    draws=12,
    lemma_items=12,
    lemma_widths=(8, 512),
    lemma_marks=(0, 1, 10, 50),
    correlation_batch=10,
    query=5,
    rounds=2,
    strategies=("random", "dynamical"),
    gammas=(0.0, 2.0),
    splits=((10, 1),),
    cold=("random",),
    steps=50,
)


def test_dynamics_equals_squared_gradient():
    row = identity(TINY, {"part": "identity", "seed": 3})[0]
    assert row["relative_difference"] < 1e-8
    assert row["definition"] > 0


def test_single_and_joint_gains_equal_loop_over_pairs():
    found = items("digits")
    at = some(found, 14, 0)
    x, y, q = found.inputs[at[:4]].double(), found.labels[at[:4]], found.inputs[at[4:]].double()
    model = network(TINY, found, 0).double().eval()
    labelled_gradient = total_gradient(model, x, residuals(predict(model, x), y))
    out = predict(model, q)
    pseudo_residuals = residuals(out, out.argmax(1))
    gradients = [
        torch.cat(
            [
                g.flatten()
                for g in total_gradient(model, q[i : i + 1], pseudo_residuals[i : i + 1]).values()
            ]
        )
        for i in range(len(q))
    ]
    flat = torch.cat([g.flatten() for g in labelled_gradient.values()])
    batch = torch.tensor([1, 4, 7])
    squares = torch.stack([g @ g for g in gradients])
    single = sum(float(gradients[i] @ gradients[i] + 2 * gradients[i] @ flat) for i in batch)
    pairs = sum(float(gradients[i] @ gradients[j]) for i in batch for j in batch if i != j)
    got = single_and_joint(model, q, pseudo_residuals, labelled_gradient, squares, batch)
    assert got == pytest.approx((single, single + pairs), rel=1e-10)


def test_ratio_is_one_for_batches_of_one():
    rows = ratio(replace(TINY, batches=(1,)), {"part": "ratio", "seed": 0})
    assert [r["epoch"] for r in rows] == [0, 3]
    for row in rows:
        assert row["ratio_of_means"] == pytest.approx(1, rel=1e-3)
        assert row["selected"] == pytest.approx(1, rel=1e-3)


def test_untrained_dynamics_equals_alignment_and_bound_satisfies_theorem_2():
    s = replace(TINY, times=(0.0, math.inf))
    rows = correlation(s, {"part": "correlation", "seed": 0})
    assert len(rows) == s.draws
    n = s.initial + s.correlation_batch
    for row in rows:
        assert row["true_0"] == pytest.approx(row["alignment"], rel=1e-9)
        assert row["true_inf"] < row["true_0"]
        # (DY-19), the lower side: Tr²[YᵀY] / A <= n B² / 2, and Tr[YᵀY] = n
        assert n**2 / row["alignment"] <= n * row["bound"] ** 2 / 2 * (1 + 1e-9)


def test_rounds_record_labels_and_mmd_over_bound(tmp_path):
    cell = {
        "part": "rounds",
        "seed": 0,
        "strategy": "dynamical",
        "kernel": True,
        "gamma": "inf",
        "batch": 5,
        "rounds": 2,
        "start": "warm",
    }
    rows = rounds(TINY, cell)
    assert [r["labels"] for r in rows] == [30, 35, 40]
    # the distance of a set to itself is zero
    assert rows[0]["mmd_squared"] == pytest.approx(0, abs=1e-9)
    for row in rows:
        assert row["mmd"] == max(row["mmd_squared"], 0) ** 0.5
        assert row["mmd_over_bound"] == pytest.approx(row["mmd"] / row["bound"])


def test_cells_contain_every_gamma_once():
    found = cells(Settings())
    arms = [c for c in found if c["part"] == "rounds" and c["seed"] == 0]
    assert {c["gamma"] for c in arms} == {"0", "1", "2", "inf"}
    assert sum(c["strategy"] == "dynamical" and c["start"] == "warm" for c in arms) == 4 + 3


def test_invalid_settings_raise():
    with pytest.raises(InputError, match="cannot be drawn"):
        Settings(batches=(5000,))
    with pytest.raises(InputError, match="end with inf"):
        Settings(times=(1.0,))
    with pytest.raises(InputError, match="expected random and dynamical"):
        Settings(strategies=("margin",))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.2, "most of the exact gain"),
        (1.0, "left out there, too"),
        (2.0, "there the pairs matter"),
    ],
)
def test_verdict_on_selected_batch_follows_ratio(value, words):
    assert words in verdict([(25, t_interval(np.array([value, value + 0.01])))])


def test_gammas_caption_names_significant_differences():
    rows = [
        {"seed": k, "gamma": g, "round": r, "labels": 10 * r, "accuracy": 0.5 + r * a + k / 100}
        for k in range(3)
        for g, a in (("2", 0.1), ("0", 0.2), ("1", 0.05), ("inf", 0.1))
        for r in range(2)
    ]
    caption = gammas(Settings(), rows).caption
    assert "Beyond their intervals lie γ = 1 below and γ = 0 above γ = 2." in caption


@pytest.mark.slow
def test_study_of_all_parts_writes_page_and_figures(tmp_path):
    report = conduct(DYNAMICS, TINY, tmp_path, workers=1)
    names = [e.name for e in report.exhibits]
    assert names == [
        "identity",
        "approximation-ratio",
        "correlation",
        "lemma",
        "slack",
        "rivals",
        "gamma",
        "drift",
        "splits",
        "cold",
    ]
    page = report.page.read_text()
    for exhibit in report.exhibits:
        assert exhibit.title in page
        assert "paper" in exhibit.caption or exhibit.name in ("identity", "lemma")
        if exhibit.figure is not None:
            assert (tmp_path / f"{exhibit.name}.png").stat().st_size > 5000
            assert (tmp_path / f"{exhibit.name}.svg").exists()


def test_lemma_1_holds_for_wide_networks_with_initial_outputs():
    found = lemma(TINY, {"part": "lemma", "seed": 0})
    assert all(r["theorem"] for r in found)
    off = {
        w: max(abs(r["real"] - r["from_start"]) for r in found if r["width"] == w)
        for w in TINY.lemma_widths
    }
    assert off[512] < 0.05 < off[8]
    start = next(r for r in found if r["width"] == 512 and r["steps"] == 0)
    assert start["predicted"] == pytest.approx(1)
    assert start["from_start"] == pytest.approx(start["real"])


def compute_tail_probability(epsilon, largest, first, n):
    """Return the tail bound of MMD's deviation (Gretton et al. 2012, quoted in DY App. B.3)."""
    return 2 * math.exp(-(epsilon**2) * first * n / (2 * largest * (first + n)))


@pytest.mark.parametrize(("first", "n"), [(100, 100), (100, 125), (500, 750), (500, 2750)])
def test_dropped_term_uses_share_of_initial_labels(first, n):
    """γ = M/(M + B) = n₀/n.

    Its ε satisfies the tail bound, with equality for n = n₀.
    """
    largest, delta = 1.4, 0.05
    epsilon = compute_dropped_term(largest, first, n, delta) - 4 * math.sqrt(largest / n)
    assert compute_tail_probability(epsilon, largest, first, n) <= delta / 2 * (1 + 1e-12)
    assert epsilon == pytest.approx(math.sqrt(4 * largest * math.log(4 / delta) / first))  # γn = n₀
    if n == first:
        assert compute_tail_probability(epsilon, largest, first, n) == pytest.approx(delta / 2)


@pytest.mark.parametrize(("first", "n"), [(100, 100), (100, 125), (500, 2750)])
def test_corrected_term_satisfies_tail_bound(first, n):
    largest, delta = 1.4, 0.05
    offset = 2 * (math.sqrt(largest / first) + math.sqrt(largest / n))
    assert compute_tail_probability(
        compute_corrected_term(largest, first, n, delta) - offset, largest, first, n
    ) == pytest.approx(delta / 2)
    # The paper's offset is smaller unless nothing was queried, so its bound does not follow.
    assert (4 * math.sqrt(largest / n) < offset) is (n > first)


def test_slack_reports_both_terms():
    for row in slack(TINY, {"part": "slack", "seed": 0}):
        assert row["largest"] >= 1  # the mean of the diagonal is one
        assert row["dropped"] == pytest.approx(
            compute_dropped_term(row["largest"], 30, row["labels"])
        )
        assert row["corrected"] == pytest.approx(
            compute_corrected_term(row["largest"], 30, row["labels"])
        )


def test_ratios_to_bound_are_proportional_to_kernel_scale():
    """MMD/B and the term dropped in B.3 over B scale with the kernel."""
    rng = torch.Generator().manual_seed(0)
    a = torch.randn(30, 40, generator=rng, dtype=torch.float64)
    K, y = a @ a.T / 40, torch.eye(3, dtype=torch.float64)[torch.arange(30) % 3]
    ratios = [
        [
            max(mmd(s * K, 10), 0) ** 0.5 / generalisation_bound(s * K, y),
            compute_dropped_term(float((s * K).max()), 10, 30) / generalisation_bound(s * K, y),
        ]
        for s in (1.0, 7.0)
    ]
    assert ratios[1] == pytest.approx([7 * r for r in ratios[0]])


def test_fresh_kernel_of_infinite_width_equals_infinite_kernel():
    data = items("digits")
    x = data.inputs[:5]
    s = replace(TINY, kernel_model="infinite", kernel_side=4)
    small = torch.nn.functional.avg_pool2d(x.double(), 2)
    want = infinite_kernel(small, network="conv", depth=3)
    assert torch.allclose(fresh_kernel(s, x, data.classes, 0), want / want.diagonal().mean())
    assert torch.equal(fresh_kernel(s, x, data.classes, 0), fresh_kernel(s, x, data.classes, 1))
    assert len(correlation(s, {"part": "correlation", "seed": 0})) == s.draws
