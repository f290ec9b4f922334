"""What a guesser is worth: against refits, and for guessers of known quality."""

import pytest
import torch
from torch.nn import functional as F

from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import exact
from labelahead.learner.guess_quality import MIN_LABELS_FOR_WORTH, assess_guessers, compute_hold_out

CLASSES = 3


@pytest.fixture
def problem():
    rng = torch.Generator().manual_seed(3)
    centres = 2 * torch.randn(CLASSES, 6, generator=rng, dtype=torch.float64)
    y = torch.arange(120) % CLASSES
    x = centres[y] + 2.5 * torch.randn(120, 6, generator=rng, dtype=torch.float64)
    return x, y, rng


def fit(x, y, count, guesses):
    g = F.one_hot(guesses.clamp_min(0), CLASSES).double() - 1 / CLASSES
    g = g * (guesses >= 0)[:, None]
    blank = exact(x, CLASSES).with_guessers(1, CLASSES)
    learner = ExactLearner(torch.cat([x, g], 1), blank)
    at = torch.arange(count)
    return learner.fit(at, y[at]).kernel_model, y[at]


def test_hold_out_equals_refits(problem):
    x, y, _ = problem
    u = F.normalize(x, dim=1)[:12]
    K, labels = u @ u.T, y[:12]
    curve = dict(compute_hold_out(K, 0.1, labels, CLASSES))
    assert sorted(curve) == [3.0, 6.0, 12.0]
    targets = F.one_hot(labels, CLASSES).double() - 1 / CLASSES
    for parts, expected in ((2, curve[6.0]), (4, curve[3.0])):
        for i in range(12):
            hits = []
            for first in range(parts):
                some = [j for j in range(12) if j % parts == first]
                if i not in some:
                    system = K[some][:, some] + 0.1 * torch.eye(len(some), dtype=torch.float64)
                    mean = K[i, some] @ torch.linalg.solve(system, targets[some])
                    hits.append(float(mean.argmax() == labels[i]))
            assert float(expected[i]) == pytest.approx(sum(hits) / len(hits))


def test_worth_grows_with_the_accuracy_of_the_guesser(problem):
    x, y, rng = problem
    worth = []
    for share in (0.4, 0.7):
        right = torch.rand(120, generator=rng) < share
        (found,) = assess_guessers(*fit(x, y, 80, torch.where(right, y, (y + 1) % CLASSES)), ["a"])
        assert found.right == int(right[:80].sum())
        worth.append(found.worth)
    assert worth[0] < worth[1] <= 80
    (perfect,) = assess_guessers(*fit(x, y, 80, y), ["a"])
    assert (perfect.worth, perfect.relation, perfect.mistakes) == (80, "at least", ())
    (useless,) = assess_guessers(*fit(x, y, 80, (y + 1) % CLASSES), ["a"])
    assert useless.relation == "fewer than"
    assert useless.worth <= 3


def test_few_labels_have_a_quality_but_no_worth(problem):
    x, y, _ = problem
    (found,) = assess_guessers(*fit(x, y, MIN_LABELS_FOR_WORTH - 1, y), ["a"])
    assert found.worth is None
    assert "worth" not in found.describe("abc")
    assert assess_guessers(*fit(x, y, 0, y), ["a"]) == ()


def test_quality_is_independent_of_the_order_of_labels(problem):
    x, y, rng = problem
    guesses = torch.where(torch.rand(120, generator=rng) < 0.6, y, (y + 1) % CLASSES)
    model, labels = fit(x, y, 40, guesses)
    (found,) = assess_guessers(model, labels, ["a"])
    order = torch.randperm(40, generator=rng)
    g = F.one_hot(guesses, CLASSES).double() - 1 / CLASSES
    blank = exact(x, CLASSES).with_guessers(1, CLASSES)
    other = ExactLearner(torch.cat([x, g], 1), blank).fit(order, y[order]).kernel_model
    (again,) = assess_guessers(other, y[order], ["a"])
    assert (again.worth, again.relation, again.right) == (found.worth, found.relation, found.right)
    assert set(again.mistakes) == set(found.mistakes)


def test_sentence_names_mistakes_and_leaves_out_items_without_a_guess(problem):
    x, y, _ = problem
    guesses = torch.where(y == 1, 2, y)
    guesses[:10] = -1
    (found,) = assess_guessers(*fit(x, y, 40, guesses), ["class names"])
    wrong = int((y[10:40] == 1).sum())
    assert (found.count, found.right) == (30, 30 - wrong)
    text = found.describe(["cat", "dog", "fox"])
    assert text.startswith(f"class names: right for {30 - wrong} of 30 labelled items (")
    assert f"where they are wrong: fox for dog ({wrong})" in text
    assert f"worth {found.relation} {found.worth} labels" in text
