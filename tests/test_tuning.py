"""What was tried to make `flip` better: the same campaigns, naive scores, textbook statistics."""

import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import integrate, stats

from labelahead.acquisition import view
from labelahead.acquisition.uncertainty import flip
from labelahead.campaign import prepare, run, simulation
from labelahead.config import parse
from labelahead.errors import InputError
from labelahead.posterior import prior

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "studies"))

import tuning  # noqa: E402
from choice_loop import campaign_by  # noqa: E402
from results_page import filled  # noqa: E402
from results_tuning import Line, read_trials, trials, tuning_block, write_trials  # noqa: E402
from tuning_variants import (  # noqa: E402
    GRID,
    VARIANTS,
    Flip,
    by_leave_one_out,
    flips,
    improvement,
)

SETTINGS = {
    "data": {"name": "digits"}, "model": {"name": "mlp", "width": 32}, "training": {"steps": 20},
    "budget": {"initial": 10, "labels": 22, "retrain_every": 6}, "asking": {"candidates": 60},
    "seed": 100, "threads": 1, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def plan():
    return simulation(prepare(parse(SETTINGS)))


def asked(plan, how):
    """Curve and order of the labels of a campaign."""
    order: list[int] = []
    noted = replace(plan, labeller=lambda p: (order.append(p), plan.labeller(p))[1])
    rows = list(campaign_by(noted, how.begin()))
    return [(r.labels, r.accuracy) for r in rows], list(dict.fromkeys(order))


@pytest.mark.parametrize("how", [VARIANTS["flip"].how, Flip()], ids=["by name", "changed nothing"])
def test_what_is_unchanged_does_what_it_does_in_a_campaign(plan, how):
    ours = run(parse(SETTINGS))
    assert asked(plan, how) == (ours.curve, ours.pool.labelled.tolist())


@pytest.mark.parametrize(
    "name", [n for n, v in VARIANTS.items() if isinstance(v.how, Flip)], ids=str
)
def test_every_change_changes_what_is_asked(plan, name):
    how = VARIANTS[name].how
    # So few labels hardly depend on a factor of 3, nor on a candidate that is not among 60.
    strong = replace(how, amplitude=how.amplitude**4, candidates=how.candidates and 600)
    _, plain = asked(plan, Flip())
    curve, order = asked(plan, strong)
    assert [labels for labels, _ in curve] == [10, 16, 22]
    assert len(set(order)) == 22
    assert order[:10] == plain[:10]
    assert order != plain


# --- scores ---------------------------------------------------------------------------------------


@pytest.fixture
def seen():
    """A posterior of 12 points in float64, four labelled; candidates and evaluation differ."""
    rng = torch.Generator().manual_seed(3)
    root = torch.randn(12, 30, generator=rng, dtype=torch.float64)
    outputs = torch.randn(12, 5, generator=rng, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 2])
    post = prior(outputs, kernel=root @ root.T, noise=0.1).condition(torch.arange(4), labels)
    return view(post, torch.arange(4, 10), torch.arange(5, 12))


def after(seen, candidate):
    """Variances at the evaluation points before and after a label there, by really giving it."""
    post = seen.posterior
    told = post.condition([candidate], torch.zeros(1, 5, dtype=torch.float64))
    return post.variance()[seen.evaluation], told.variance()[seen.evaluation]


@pytest.mark.parametrize(("classes", "amplitude"), [(2, 1.0), (2, 0.3), (4, 3.0), (9, 1.0)])
def test_flips_are_what_giving_the_label_tells(seen, classes, amplitude):
    a2 = amplitude * seen.posterior.amplitude()
    means = seen.posterior.mean[seen.evaluation].tolist()
    expected = []
    for candidate in seen.candidates.tolist():
        total = 0.0
        for mean, v, v_after in zip(means, *after(seen, candidate), strict=True):
            first, *others = sorted(mean, reverse=True)
            for other in others[: classes - 1]:
                now, then = (
                    stats.norm.cdf(-(first - other) / math.sqrt(a2 * 2 * float(x)))
                    for x in (v, v_after)
                )
                total += now - then
        expected.append(total)
    found = flips(seen, classes=classes, amplitude=amplitude)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    if (classes, amplitude) == (2, 1.0):
        assert found.tolist() == pytest.approx(flip(seen).tolist(), rel=1e-12)


def test_improvement_is_the_integral(seen):
    a2 = 10 * seen.posterior.amplitude()
    means = seen.posterior.mean[seen.evaluation].tolist()
    expected = []
    for candidate in seen.candidates.tolist():
        total = 0.0
        for mean, v, v_after in zip(means, *after(seen, candidate), strict=True):
            first, second = sorted(mean, reverse=True)[:2]
            gap, step = first - second, math.sqrt(2 * a2 * float(v - v_after))
            ahead = stats.norm(gap, step)
            low = gap - 12 * step
            if low < 0:
                total += integrate.quad(lambda d, n=ahead: -d * n.pdf(d), low, 0)[0]
        expected.append(total)
    found = improvement(seen, amplitude=10.0)
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_leave_one_out_is_leaving_one_out():
    rng = torch.Generator().manual_seed(0)
    chosen = set()
    for disorder in (0.0, 0.3, 3.0):
        x = torch.randn(25, 4, generator=rng, dtype=torch.float64)
        theta = torch.exp(-torch.cdist(x, x).square() / 8)
        y = torch.stack([x[:, 0].sin(), x[:, 1]], 1)
        y = y + disorder * torch.randn(25, 2, generator=rng, dtype=torch.float64)
        errors = []
        for noise in GRID:
            total = 0.0
            for i in range(25):
                rest = [j for j in range(25) if j != i]
                system = theta[rest][:, rest] + noise * theta.diagonal().mean() * torch.eye(24)
                guess = theta[i, rest] @ torch.linalg.solve(system, (y - y.mean(0))[rest])
                total += float((y[i] - y.mean(0) - guess).square().sum())
            errors.append(total)
        expected = GRID[errors.index(min(errors))]
        assert by_leave_one_out(theta, y) == expected
        chosen.add(expected)
    assert len(chosen) > 1  # it depends on the labels


# --- numbers --------------------------------------------------------------------------------------

# (table, seed) -> accuracies at 20, 40 and 60 labels
BY_HAND = {
    "flip": {("a", 100): (0.5, 0.6, 0.7), ("a", 101): (0.4, 0.6, 0.8), ("b", 100): (0.2, 0.3, 0.3),
             ("b", 102): (0.3, 0.3, 0.4)},
    "noise 1e-2": {("a", 100): (0.5, 0.7, 0.8), ("a", 101): (0.4, 0.7, 0.85),
                   ("b", 100): (0.2, 0.4, 0.38), ("b", 102): (0.3, 0.42, 0.42)},
    "mean start": {("a", 100): (0.5, 0.6, 0.7), ("a", 101): (0.4, 0.62, 0.8),
                   ("b", 100): (0.2, 0.25, 0.3), ("b", 101): (0.2, 0.9, 0.9)},
    "three networks": {("a", 100): (0.5, 0.6, 0.72)},
    "random": {("a", 101): (0.4, 0.5, 0.6), ("b", 100): (0.2, 0.2, 0.11)},
    "margin": {("c", 100): (0.1, 0.2, 0.3)},
}  # fmt: skip


def lines(curves=BY_HAND):
    return [
        Line(table, variant, seed, at, value, 3.0)
        for variant, own in curves.items()
        for (table, seed), curve in own.items()
        for at, value in zip((20, 40, 60), curve, strict=True)
    ]


def textbook(variant):
    """Mean difference, half of its interval, p, how often ahead."""
    own, plain = BY_HAND[variant], BY_HAND["flip"]
    gaps = [
        sum(w * (a - b) for w, a, b in zip((0.25, 0.5, 0.25), own[c], plain[c], strict=True))
        for c in own
        if c in plain
    ]
    n, error = len(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
    p = 2 * stats.t.sf(abs(statistics.fmean(gaps)) / error, n - 1)
    half = stats.t.ppf(0.975, n - 1) * error
    return statistics.fmean(gaps), half, p, sum(g > 1e-12 for g in gaps), n


def test_campaigns_of_all_tables_are_pooled_in_pairs():
    found = {t.name: t for t in trials(lines())}
    assert list(found) == ["noise 1e-2", "three networks", "mean start", "random"]
    tested = {n: textbook(n) for n in ("noise 1e-2", "mean start", "random")}
    rank = sorted(tested, key=lambda n: tested[n][2])
    holm = 0.0
    for i, name in enumerate(rank):
        mean, half, p, ahead, n = tested[name]
        holm = max(holm, min(1.0, (3 - i) * p))  # of three tests: one campaign makes none
        t = found[name]
        assert (t.difference.n, t.ahead) == (n, ahead)
        assert t.difference.mean == pytest.approx(mean)
        assert t.difference.high - t.difference.mean == pytest.approx(half)
        assert t.p == pytest.approx(holm)
    assert found["three networks"].p is None
    assert found["noise 1e-2"].verdict == 1


def test_the_page_says_so(tmp_path):
    from results_page import Results

    text = tuning_block(lines())
    mean, half, *_ = textbook("noise 1e-2")
    row = f"| regulariser 1e-2 instead of 1e-3 | 4 | +{100 * mean:.2f} ± {100 * half:.2f} ▲ | "
    assert row in text
    assert "| outputs and kernel are means over three networks | 1 | +0.50 | — | 1 |" in text
    assert "Of 2 changes with two campaigns or more, 1 can be told to be better" in text
    assert "none to be worse" in text
    assert "not run yet: one by one on predicted labels" in text
    page = "# R\n\n<!-- begin tuning -->\nold\n<!-- end -->\n"
    assert text in filled(page, Results([], {}, [], lines()))
    assert "Not measured yet: `make results-tuning`" in filled(page, Results([], {}, []))


def test_another_budget_is_refused():
    with pytest.raises(InputError, match=r"a, random, seed 101, has rounds at .20, 40. labels"):
        trials([x for x in lines() if (x.variant, x.labels) != ("random", 60)])


def test_the_csv_comes_back_and_damage_is_refused(tmp_path):
    path = tmp_path / "tuning.csv"
    assert read_trials(path) == []
    write_trials(path, lines())
    assert read_trials(path) == sorted(lines())
    text = path.read_text()
    for wrong, message in {
        text.replace("labels,", "labls,", 1): "it begins with",
        text.replace("0.72000", "72"): "accuracy from 0 to 1",
        text.replace("0.72000,3.0", "0.72"): "expected six values",
        text.replace("mean start", "meen start"): "variant 'meen start'",
        text + text.splitlines()[-1] + "\n": "was there before",
    }.items():
        path.write_text(wrong)
        with pytest.raises(InputError, match=message):
            read_trials(path)


def test_runs_go_on_and_names_are_checked(tmp_path, plan, monkeypatch, capsys):
    monkeypatch.setattr(tuning, "plan_of", lambda *_: plan)  # a smaller budget
    path, out = tmp_path / "tuning.csv", tmp_path / "out"
    given = ["run", "--only", "digits", "--seeds", "1", "--numbers", str(path), "--out", str(out)]
    assert tuning.main([*given, "--variants", "random"]) == 0
    before = read_trials(path)
    assert [(x.table, x.variant, x.seed, x.labels) for x in before] == [
        ("digits", "random", 100, n) for n in (10, 16, 22)
    ]
    capsys.readouterr()
    assert tuning.main([*given, "--variants", "random", "margin"]) == 0
    assert "random" not in capsys.readouterr().out
    assert set(before) < set(read_trials(path))
    assert tuning.main([*given, "--variants", "margn"]) == 2
    assert "did you mean 'margin'" in capsys.readouterr().err


def test_what_is_in_the_repository_is_whole():
    there = read_trials(tuning.CSV)
    assert {x.table for x in there} <= set(tuning.TABLES)
    assert min(x.seed for x in there) >= tuning.FIRST_SEED
    assert trials(there)
