"""Variants of `flip`: equal campaigns, naive scores and textbook statistics."""

import math
import statistics
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from scipy import integrate, special, stats

from labelahead.acquisition import batch_selection as select
from labelahead.acquisition.functions import flip, resolve
from labelahead.acquisition.pool_view import view
from labelahead.errors import InputError
from labelahead.gp.posterior import prior
from labelahead.learner.config import parse_campaign
from labelahead.simulation.run import build_simulation, prepare_campaign, run
from labelahead.strategies.base import QueryBatch, Strategy
from research.results import tuning
from research.results.lines import Line, TrialLine, write_csv
from research.results.numbers import read_numbers
from research.results.page import Results, fill_pages
from research.results.runs import run_plan
from research.results.table import read_tables
from research.results.tuning import HELD_OUT, judge_default, read_trials, trials, tuning_block
from research.results.variants import (
    GRID,
    MANY_CLASSES,
    PLAIN,
    PRESENT,
    TWO_CLASSES,
    VARIANTS,
    Flip,
    Named,
    by_labels,
    by_leave_one_out,
    flips,
    improvement,
    resolves,
)
from tests.support.reference_lookahead import gain_by_labels

ROOT = Path(__file__).parents[3]

SETTINGS = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "width": 32},
    "training": {"steps": 20},
    "budget": {"initial": 10, "labels": 22, "retrain_every": 6},
    "asking": {"candidates": 60},
    "seed": 100,
    "threads": 1,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def plan():
    return build_simulation(prepare_campaign(parse_campaign(SETTINGS)))


def run_variant(plan, how):
    """Return the curve and the order of the labels of a campaign."""
    order: list[int] = []
    recording = replace(plan, labeller=lambda p: (order.append(p), plan.labeller(p))[1])
    rows = run_plan(recording, how.asking(plan.asking))
    return [(r.labels, r.accuracy) for r in rows], list(dict.fromkeys(order))


@pytest.fixture(scope="module")
def plain_campaign(plan):
    return run_variant(plan, VARIANTS[PLAIN].how)


def run_reference_campaign(strategy="flip", **asking):
    campaign = parse_campaign(SETTINGS | {"asking": SETTINGS["asking"] | asking})
    ours = run(replace(campaign, asking=replace(campaign.asking, strategy=strategy)))
    return ours.curve, ours.pool.labelled.tolist()


@pytest.mark.parametrize("how", [VARIANTS[PRESENT].how, Named("flip")], ids=["now", "by name"])
def test_default_strategy_equals_present_variant(plan, how, plain_campaign):
    found = run_variant(plan, how)
    assert found == run_reference_campaign()
    assert found != plain_campaign


@pytest.mark.parametrize(
    ("name", "asking"),
    [(PLAIN, {}), ("greedy", {"mode": "greedy"}), ("trace kernel", {"kernel": "trace"})],
)
def test_plain_variants_equal_campaigns_with_plain_score(plan, name, asking):
    score = partial(flip, include_candidate=True, variance_scale=1.0)

    def select_batch(s, q, rng, mode, oracle):
        if mode == "sequential":
            return QueryBatch(*s.pool_posterior.select_batch(score, q, rng, mode, oracle))
        chosen = select.greedy(s.view, score, q, rng, hypothetical_label="mean")
        return QueryBatch(s.points[chosen.positions], chosen.scores)

    by_score = Strategy("as first built", "", "", select_batch, ("sequential", "greedy"))
    assert run_variant(plan, VARIANTS[name].how) == run_reference_campaign(by_score, **asking)


@pytest.mark.parametrize(
    "name", [n for n, v in VARIANTS.items() if isinstance(v.how, Flip) and n != PLAIN], ids=str
)
def test_every_variant_changes_the_queries(plan, plain_campaign, name):
    how = VARIANTS[name].how
    # With few labels, a factor of 3 or candidates beyond 60 hardly change the queries.
    strong = replace(how, amplitude=how.amplitude**4, candidates=how.candidates and 600)
    _, plain = plain_campaign
    curve, order = run_variant(plan, strong)
    assert [labels for labels, _ in curve] == [10, 16, 22]
    assert len(set(order)) == 22
    assert order[:10] == plain[:10]
    assert order != plain


# --- scores ---------------------------------------------------------------------------------------


@pytest.fixture
def pool_view():
    """Return a float64 view of 12 points, 4 labelled; candidates and evaluation set differ."""
    rng = torch.Generator().manual_seed(3)
    root = torch.randn(12, 30, generator=rng, dtype=torch.float64)
    outputs = torch.randn(12, 5, generator=rng, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 2])
    post = prior(outputs, kernel=root @ root.T, noise=0.1).condition(torch.arange(4), labels)
    return view(post, torch.arange(4, 10), torch.arange(5, 12))


def compute_variances(pool_view, candidate):
    """Return the evaluation variances before and after conditioning on the candidate."""
    post = pool_view.posterior
    conditioned = post.condition([candidate], torch.zeros(1, 5, dtype=torch.float64))
    return post.variance()[pool_view.evaluation], conditioned.variance()[pool_view.evaluation]


@pytest.mark.parametrize(("classes", "amplitude"), [(2, 1.0), (2, 0.3), (4, 3.0), (9, 1.0)])
def test_flips_equal_explicit_conditioning(pool_view, classes, amplitude):
    a2 = amplitude * pool_view.posterior.amplitude()
    means = pool_view.posterior.mean[pool_view.evaluation].tolist()
    expected = []
    for candidate in pool_view.candidates.tolist():
        total = 0.0
        for mean, v, v_after in zip(means, *compute_variances(pool_view, candidate), strict=True):
            first, *others = sorted(mean, reverse=True)
            for other in others[: classes - 1]:
                now, then = (
                    stats.norm.cdf(-(first - other) / math.sqrt(a2 * 2 * float(x)))
                    for x in (v, v_after)
                )
                total += now - then
        expected.append(total)
    found = flips(pool_view, classes=classes, amplitude=amplitude)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    if (classes, amplitude) == (2, 1.0):
        assert found.tolist() == pytest.approx(
            flip(pool_view, include_candidate=True, variance_scale=1.0).tolist(), rel=1e-12
        )


@pytest.mark.parametrize("rivals", [1, 2, 4])
def test_resolves_equal_explicit_conditioning(pool_view, rivals):
    """Error now and after the label by Owen's T, pair by pair, without the item itself."""
    a2, means = (
        pool_view.posterior.amplitude(),
        pool_view.posterior.mean[pool_view.evaluation].tolist(),
    )
    expected = []
    for candidate in pool_view.candidates.tolist():
        total = 0.0
        points = zip(
            pool_view.evaluation.tolist(),
            means,
            *compute_variances(pool_view, candidate),
            strict=True,
        )
        for _, mean, v, v_after in (point for point in points if point[0] != candidate):
            first, *others = sorted(mean, reverse=True)
            for other in others[:rivals]:
                h, explained = (
                    (first - other) / math.sqrt(2 * a2 * float(v)),
                    float(1 - v_after / v),
                )
                total += stats.norm.cdf(-h) - 2 * special.owens_t(
                    h, math.sqrt((1 - explained) / explained)
                )
        expected.append(total)
    assert resolves(pool_view, rivals=rivals).tolist() == pytest.approx(expected, abs=1e-4 * rivals)
    if rivals == 1:
        assert resolve(pool_view, exact=True).tolist() == pytest.approx(expected, rel=1e-9)


def test_improvement_equals_numerical_integral(pool_view):
    a2 = 10 * pool_view.posterior.amplitude()
    means = pool_view.posterior.mean[pool_view.evaluation].tolist()
    expected = []
    for candidate in pool_view.candidates.tolist():
        total = 0.0
        for mean, v, v_after in zip(means, *compute_variances(pool_view, candidate), strict=True):
            first, second = sorted(mean, reverse=True)[:2]
            gap, step = first - second, math.sqrt(2 * a2 * float(v - v_after))
            ahead = stats.norm(gap, step)
            low = gap - 12 * step
            if low < 0:
                total += integrate.quad(lambda d, n=ahead: -d * n.pdf(d), low, 0)[0]
        expected.append(total)
    found = improvement(pool_view, amplitude=10.0)
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_leave_one_out_noise_equals_explicit_refits():
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
    "plain": {
        ("a", 100): (0.5, 0.6, 0.7),
        ("a", 101): (0.4, 0.6, 0.8),
        ("b", 100): (0.2, 0.3, 0.3),
        ("b", 102): (0.3, 0.3, 0.4),
    },
    "noise 1e-2": {
        ("a", 100): (0.5, 0.7, 0.8),
        ("a", 101): (0.4, 0.7, 0.85),
        ("b", 100): (0.2, 0.4, 0.38),
        ("b", 102): (0.3, 0.42, 0.42),
    },
    "mean start": {
        ("a", 100): (0.5, 0.6, 0.7),
        ("a", 101): (0.4, 0.62, 0.8),
        ("b", 100): (0.2, 0.25, 0.3),
        ("b", 101): (0.2, 0.9, 0.9),
    },
    "three networks": {("a", 100): (0.5, 0.6, 0.72)},
    "random": {("a", 101): (0.4, 0.5, 0.6), ("b", 100): (0.2, 0.2, 0.11)},
    "margin": {("c", 100): (0.1, 0.2, 0.3)},
}


def make_lines(curves=BY_HAND):
    return [
        TrialLine(table, variant, seed, at, value, 3.0)
        for variant, own in curves.items()
        for (table, seed), curve in own.items()
        for at, value in zip((20, 40, 60), curve, strict=True)
    ]


def compare_with_plain(variant):
    """Return mean difference, half interval, p, number of wins and number of campaigns."""
    return compare_paired(BY_HAND[variant], BY_HAND[PLAIN])


def compare_paired(own, plain):
    gaps = [
        sum(w * (a - b) for w, a, b in zip((0.25, 0.5, 0.25), own[c], plain[c], strict=True))
        for c in own
        if c in plain
    ]
    n, error = len(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
    p = 2 * stats.t.sf(abs(statistics.fmean(gaps)) / error, n - 1)
    half = stats.t.ppf(0.975, n - 1) * error
    return statistics.fmean(gaps), half, p, sum(g > 1e-12 for g in gaps), n


def test_trials_pool_paired_campaigns_of_all_tables():
    found = {t.name: t for t in trials(make_lines())}
    assert list(found) == ["noise 1e-2", "three networks", "mean start", "random"]
    tested = {n: compare_with_plain(n) for n in ("noise 1e-2", "mean start", "random")}
    rank = sorted(tested, key=lambda n: tested[n][2])
    holm = 0.0
    for i, name in enumerate(rank):
        mean, half, p, ahead, n = tested[name]
        holm = max(holm, min(1.0, (3 - i) * p))  # three tests: a single campaign gives none
        t = found[name]
        assert (t.difference.n, t.ahead) == (n, ahead)
        assert t.difference.mean == pytest.approx(mean)
        assert t.difference.high - t.difference.mean == pytest.approx(half)
        assert t.p == pytest.approx(holm)
    assert found["three networks"].p is None
    assert found["noise 1e-2"].verdict == 1


def test_trials_ignore_held_out_seeds():
    held_out = {
        PLAIN: {("digits-mlp", 0): (0.1, 0.2, 0.3)},
        "noise 1e-2": {("digits-mlp", 0): (0.1, 0.9, 0.9)},
    }
    assert trials(make_lines() + make_lines(held_out)) == trials(make_lines())


CURRENT = {
    ("digits-mlp", 0): (0.2, 0.5, 0.7),
    ("digits-mlp", 1): (0.3, 0.4, 0.7),
    ("digits-mlp", 2): (0.3, 0.5, 0.6),
    ("mnist-mlp", 0): (0.4, 0.5, 0.8),
    ("mnist-mlp", 1): (0.4, 0.7, 0.7),
    ("fashion-mlp", 0): (0.5, 0.6, 0.7),
}
BEFORE = {
    ("digits-mlp", 0): (0.2, 0.4, 0.65),
    ("digits-mlp", 1): (0.3, 0.41, 0.7),
    ("digits-mlp", 2): (0.3, 0.42, 0.6),
    ("mnist-mlp", 0): (0.4, 0.47, 0.8),
    ("mnist-mlp", 1): (0.4, 0.62, 0.7),
    ("mnist-mlp", 2): (0.1, 0.1, 0.1),
}


@pytest.fixture(scope="module")
def page_tables(tmp_path_factory):
    """Return CURRENT in the format of the page's tables, with another strategy."""
    folder = tmp_path_factory.mktemp("tables")
    for table in HELD_OUT:
        own = [(seed, c) for (name, seed), c in CURRENT.items() if name == table]
        write_csv(
            folder / f"{table}.csv",
            Line,
            [
                Line("", strategy, seed, at, value * factor, 1.0, 1.0)
                for seed, curve in own
                for at, value in zip((20, 40, 60), curve, strict=True)
                for strategy, factor in (("flip", 1), ("random", 0.5))
            ],
        )
    return {t.name: read_numbers(t, folder) for t in read_tables(only=HELD_OUT)}


def test_judged_compares_default_on_held_out_seeds(page_tables):
    found = {
        t.name: t for t in judge_default(make_lines() + make_lines({PLAIN: BEFORE}), page_tables)
    }
    assert list(found) == ["digits-mlp", "mnist-mlp", "all"]  # fashion-mlp has no plain campaigns
    parts = {n: {c: v for c, v in CURRENT.items() if n in (c[0], "all")} for n in found}
    alone = {n: compare_paired(some, BEFORE)[2] for n, some in parts.items()}
    low, high = sorted((alone["digits-mlp"], alone["mnist-mlp"]))
    holm = {low: min(1.0, 2 * low), high: min(1.0, max(2 * low, high))}  # of the two tables
    for name, t in found.items():
        mean, half, p, ahead, n = compare_paired(parts[name], BEFORE)
        assert (t.difference.n, t.ahead) == (n, ahead)
        assert t.difference.mean == pytest.approx(mean)
        assert t.difference.high - t.difference.mean == pytest.approx(half)
        assert t.p == pytest.approx(p if name == "all" else holm[p])
    text = tuning_block(make_lines() + make_lines({PLAIN: BEFORE}), page_tables)
    assert "not measured yet: `fashion-mlp`." in text
    mean, half, p, ahead, n = compare_paired(CURRENT, BEFORE)
    assert f"| all | {n} | +{100 * mean:.2f} ± {100 * half:.2f} | {p:.3f} | {ahead} |" in text


def test_judged_with_different_budgets_raises(page_tables):
    short = [x for x in make_lines({PLAIN: BEFORE}) if x.labels < 60]
    with pytest.raises(InputError, match=r"digits-mlp, plain, seed 0, has rounds at .20, 40. lab"):
        judge_default(short, page_tables)


def test_tuning_block_contains_differences(tmp_path):
    text = tuning_block(make_lines(), {})
    mean, half, *_ = compare_with_plain("noise 1e-2")
    row = f"| regulariser 1e-2 instead of 1e-3 | 4 | +{100 * mean:.2f} ± {100 * half:.2f} ▲ | "
    assert row in text
    assert "then left: outputs and kernel are means over three networks (+0.50)" in text
    assert "Of 2 changes with two campaigns or more, 1 significantly better" in text
    assert "better than `flip` as first built, none significantly worse" in text
    assert "for all together by itself: not measured yet." in text
    assert "not run yet: summed over all items but the one that is asked for, " in text
    assert "one by one on predicted labels" in text
    page = "# R\n\n<!-- begin tuning -->\nold\n<!-- end -->\n"
    pages = {"results.md": page}
    assert text in fill_pages(pages, Results([], {}, [], make_lines()))["results.md"]
    empty = fill_pages(pages, Results([], {}, []))["results.md"]
    assert "Not measured yet: `make results-tuning`" in empty


def test_trials_with_different_budgets_raise():
    with pytest.raises(InputError, match=r"a, random, seed 101, has rounds at .20, 40. labels"):
        trials([x for x in make_lines() if (x.variant, x.labels) != ("random", 60)])


def test_trials_csv_round_trip_and_damaged_csv_raises(tmp_path):
    path = tmp_path / "tuning.csv"
    assert read_trials(path) == []
    write_csv(path, TrialLine, make_lines())
    assert read_trials(path) == sorted(make_lines())
    text = path.read_text()
    for wrong, message in {
        text.replace("labels,", "labls,", 1): "begins with",
        text.replace("0.72000", "72"): "accuracy from 0 to 1",
        text.replace("0.72000,3.0", "0.72"): "expected six values",
        text.replace("mean start", "meen start"): "variant 'meen start'",
        text + text.splitlines()[-1] + "\n": "twice",
    }.items():
        path.write_text(wrong)
        with pytest.raises(InputError, match=message):
            read_trials(path)


def test_tuning_command_resumes_and_checks_names(tmp_path, plan, monkeypatch, capsys):
    monkeypatch.setattr(tuning, "plan_of", lambda *_: plan)  # a smaller budget
    path, out = tmp_path / "tuning.csv", tmp_path / "out"
    arguments = [
        "run",
        "--only",
        "digits",
        "--seeds",
        "1",
        "--numbers",
        str(path),
        "--out",
        str(out),
    ]
    assert tuning.main([*arguments, "--variants", "random"]) == 0
    before = read_trials(path)
    assert [(x.table, x.variant, x.seed, x.labels) for x in before] == [
        ("digits", "random", 100, n) for n in (10, 16, 22)
    ]
    capsys.readouterr()
    assert tuning.main([*arguments, "--variants", "random", "margin"]) == 0
    assert "random" not in capsys.readouterr().out
    assert set(before) < set(read_trials(path))
    assert tuning.main([*arguments, "--variants", "margn"]) == 2
    assert "did you mean 'margin'" in capsys.readouterr().err


def test_plan_of_held_out_table_equals_table_file(tmp_path):
    plan = tuning.plan_of("digits-mlp", 3, tmp_path, tmp_path)
    written = tomllib.loads((ROOT / "research/results/tables/digits-mlp.toml").read_text())[
        "campaign"
    ]
    for key in ("budget", "asking"):
        own = {k: getattr(getattr(plan, key), k) for k in written[key]}
        assert own == written[key]
    assert plan.seed == 3
    assert tuning.plan_of("digits", 3, tmp_path, tmp_path).test.tolist() == plan.test.tolist()


def test_wanted_excludes_held_out_tables_from_tuning(capsys):
    tried, *held_out = tuning.list_wanted_campaigns([], [], None)
    assert (tried.tables, tried.variants) == (list(tuning.TABLES), list(VARIANTS))
    assert list(tried.seeds) == list(range(100, 108))
    held_out, beside = held_out[:-2], held_out[-2:]
    assert beside == [
        (["cifar100-exact"], list(MANY_CLASSES), range(100, 108)),
        (["pets-exact"], list(TWO_CLASSES), range(100, 108)),
    ]
    assert {(*w.tables, *w.variants, *w.seeds) for w in held_out} == {
        (name, PLAIN, *range(10)) for name in HELD_OUT
    }
    tried, *held_out = tuning.list_wanted_campaigns(["digits", "mnist-mlp"], [PLAIN, "greedy"], 2)
    assert tried == (["digits"], [PLAIN, "greedy"], range(100, 102))
    assert held_out == [(["mnist-mlp"], [PLAIN], range(2))]
    assert [w.tables for w in tuning.list_wanted_campaigns([], ["greedy"], None)] == [
        list(tuning.TABLES)
    ]
    assert tuning.main(["run", "--only", "mnist-mlp", "--variants", "greedy"]) == 2
    assert "greedy asked for on mnist-mlp, which is kept for judging" in capsys.readouterr().err


def test_kept_trials_are_complete():
    kept_trials = read_trials(tuning.CSV)
    chosen_on = [x for x in kept_trials if x.table in {**tuning.TABLES, **tuning.BESIDE}]
    held_out = [x for x in kept_trials if x.table in HELD_OUT]
    assert len(chosen_on) + len(held_out) == len(kept_trials)
    assert min(x.seed for x in chosen_on) >= tuning.FIRST_SEED
    assert max(x.seed for x in held_out) < 10
    assert {x.variant for x in held_out} == {PLAIN}
    assert trials(kept_trials)
    for name, place in tuning.BESIDE.items():
        assert {x.variant for x in kept_trials if x.table == name} == set(place.variants)


def test_beside_resolve_reports_differences_separately():
    """Two campaigns per variant: areas differ as expected and do not enter the other table."""
    gains = {"resolve": 0.0, "resolve, 2 rivals": 0.01, "resolve, 4 rivals": -0.02}
    wide = [
        TrialLine(
            "cifar100-exact",
            name,
            seed,
            labels,
            0.3 + labels / 1000 + gain + 0.001 * seed * (gain > 0),
            1.0,
        )
        for name, gain in gains.items()
        for seed in (100, 101)
        for labels in (100, 220)
    ]
    text = tuning.beside_resolve(wide)
    assert "| CIFAR-100 features, 100 classes, 100 to 220 labels | campaigns |" in text
    assert "| the leading class against its 2 nearest | 2 | +11.05 ±" in text
    assert "| the leading class against its 4 nearest | 2 | −2.00 ±" in text
    assert "cats" not in text
    assert trials([*make_lines(), *wide]) == trials(make_lines())
    assert text in tuning_block([*make_lines(), *wide], {})
    assert tuning.beside_resolve(make_lines()) == ""


def test_by_labels_equals_integral_over_label_pairs():
    rng = torch.Generator().manual_seed(4)
    root = torch.randn(14, 30, generator=rng, dtype=torch.float64)
    post = prior(torch.zeros(14, 2).double(), kernel=root @ root.T, noise=0.1)
    for labels in ([], [0, 1, 1, 0]):
        conditioned = (
            post.condition(torch.arange(len(labels)), torch.tensor(labels)) if labels else post
        )
        pool_view = view(conditioned, torch.arange(4, 12), torch.arange(6, 14))
        gap, k, scale = (
            conditioned.mean[:, 0] - conditioned.mean[:, 1],
            conditioned.covariance_columns(torch.arange(14)),
            2 * conditioned.amplitude(),
        )
        expected = []
        for at in pool_view.candidates.tolist():
            wide, total = math.sqrt(scale * float(k[at, at] + conditioned.noise)), 0.0
            for x in pool_view.evaluation.tolist():
                if x != at:
                    spread = math.sqrt(scale * float(k[x, x]))
                    rho = scale * float(k[x, at]) / (spread * wide)
                    total += gain_by_labels(float(gap[x]) / spread, rho, float(gap[at]) / wide)
            expected.append(total)
        assert by_labels(pool_view).tolist() == pytest.approx(expected, abs=1e-8)
        assert bool((resolve(pool_view, exact=True) >= by_labels(pool_view) - 1e-8).all())


def test_by_labels_with_more_than_two_classes_raises(pool_view):
    with pytest.raises(InputError, match="there are 5 classes; expected two"):
        by_labels(pool_view)
