"""Trust in guesses: against explicit refits, and what happens with good, wrong and missing guesses."""

import pytest
import torch
from torch.nn import functional as F

from labelahead.inference.exact import ExactLearner, ExactModel, exact
from labelahead.inference.trust import (
    DISCOUNT,
    MAX_TRUST,
    MIN_STANDARD_ERROR,
    PRIOR_DEVIATION,
    PRIOR_SUM,
    fit_trust,
    initial_trust,
)

CLASSES = 3


@pytest.fixture
def problem():
    rng = torch.Generator().manual_seed(3)
    centres = 2 * torch.randn(CLASSES, 6, generator=rng, dtype=torch.float64)
    y = torch.arange(60) % CLASSES
    x = centres[y] + 2.5 * torch.randn(60, 6, generator=rng, dtype=torch.float64)
    return x, y, rng


def make_guesses(y, share, rng):
    """Guess the class of a share of the items, another one of the rest."""
    right = torch.rand(len(y), generator=rng) < share
    other = (y + torch.randint(1, CLASSES, (len(y),), generator=rng)) % CLASSES
    return F.one_hot(torch.where(right, y, other), CLASSES).double() * 0.85 + 0.05


def join(x, *guesses):
    return torch.cat([x, *(g - 1 / CLASSES for g in guesses)], 1)


def fit(x, y, at, *guesses):
    blank = exact(x, CLASSES).with_guessers(len(guesses), CLASSES)
    learner = ExactLearner(join(x, *guesses), blank)
    return learner, learner.fit(at, y[at])


def test_fit_trust_equals_regression_of_explicit_leave_one_out_residuals(problem):
    x, y, rng = problem
    at = torch.arange(20)
    u = F.normalize(x, dim=1)[at]
    K, noise = u @ u.T, 0.1
    targets = F.one_hot(y[at], CLASSES).double() - 1 / CLASSES
    guesses = torch.stack([make_guesses(y, p, rng)[at] - 1 / CLASSES for p in (0.85, 0.75)], 1)

    def leave_one_out(values):  # residuals by one refit per label
        out = []
        for i in range(len(at)):
            rest = [j for j in range(len(at)) if j != i]
            system = K[rest][:, rest] + noise * torch.eye(len(rest), dtype=torch.float64)
            out.append(values[i] - K[i, rest] @ torch.linalg.solve(system, values[rest]))
        return torch.stack(out)

    def variance(i):
        rest = [j for j in range(len(at)) if j != i]
        system = K[rest][:, rest] + noise * torch.eye(len(rest), dtype=torch.float64)
        return K[i, i] + noise - K[i, rest] @ torch.linalg.solve(system, K[rest, i])

    weight = torch.stack([1 / variance(i) for i in range(len(at))])
    r = leave_one_out(targets).flatten()
    q = torch.stack([leave_one_out(guesses[:, g]).flatten() for g in range(2)], 1)
    w = weight.repeat_interleave(CLASSES)
    normal = q.T @ (w[:, None] * q)
    estimate = torch.linalg.solve(normal, q.T @ (w * r))
    score = q * (w * (r - q @ estimate))[:, None]
    inverse = torch.linalg.inv(normal)
    spread = inverse @ (score.T @ score) @ inverse + MIN_STANDARD_ERROR**2 * torch.eye(2).double()
    certain = torch.eye(2).double() / PRIOR_DEVIATION**2
    mean = torch.linalg.solve(
        certain + torch.linalg.inv(spread),
        certain @ torch.full((2,), PRIOR_SUM / 2).double() + torch.linalg.inv(spread) @ estimate,
    )
    expected = (DISCOUNT * mean).clamp(0, MAX_TRUST)
    assert 0 < float(expected.min()) < MAX_TRUST  # so that the bounds do not decide
    assert torch.allclose(fit_trust(K, noise, targets, guesses), expected, atol=1e-7)


def test_prediction_with_guesses_equals_explicit_posterior(problem):
    x, y, rng = problem
    g = make_guesses(y, 0.7, rng)
    at = torch.arange(12)
    _, fitted = fit(x, y, at, g)
    model = fitted.kernel_model
    u = F.normalize(x - x.mean(0), dim=1)
    K = model.kernel_arguments(torch.cat([u, g - 1 / CLASSES], 1))["kernel"]
    K = K.prior_block(torch.arange(60), torch.arange(60)).double()
    mean = 1 / CLASSES + float(model.trust[0]) * (g - 1 / CLASSES)
    system = K[at][:, at] + model.noise * torch.eye(len(at), dtype=torch.float64)
    step = torch.linalg.solve(system, F.one_hot(y[at], CLASSES).double() - mean[at])
    expected = mean + K[:, at] @ step
    assert torch.allclose(model(join(x, g)), expected, atol=1e-9)
    assert 0 < float(model.trust[0]) <= MAX_TRUST


def test_leave_one_out_predictions_with_guesses_equal_refits(problem):
    x, y, rng = problem
    g = make_guesses(y, 0.7, rng)
    at = torch.arange(10)
    learner, fitted = fit(x, y, at, g)
    predictions, residuals = learner.leave_one_out_predictions(at, y[at])
    model = fitted.kernel_model
    units = model.normalise_rows(join(x, g))
    K = model.kernel_arguments(units)["kernel"].prior_block(at, at).double()
    mean = model.prior_mean(units)[at]
    targets = F.one_hot(y[at], CLASSES).double()
    for i in range(len(at)):
        rest = [j for j in range(len(at)) if j != i]
        system = K[rest][:, rest] + model.noise * torch.eye(len(rest), dtype=torch.float64)
        step = torch.linalg.solve(system, targets[rest] - mean[rest])
        assert torch.allclose(predictions[i], mean[i] + K[i, rest] @ step, atol=1e-9)
    assert torch.allclose(residuals, predictions - targets, atol=1e-9)


def test_model_without_labels_predicts_the_guesses(problem):
    x, y, rng = problem
    g = make_guesses(y, 0.7, rng)
    blank = exact(x, CLASSES).with_guessers(1, CLASSES)
    assert torch.allclose(blank.predict_proba(join(x, g)), g, atol=1e-12)
    assert torch.equal(blank.trust, initial_trust(1))


def test_inputs_without_guess_columns_have_no_guesses(problem):
    x, y, rng = problem
    _, fitted = fit(x, y, torch.arange(9), make_guesses(y, 0.7, rng))
    model = fitted.kernel_model
    without = torch.cat([x, torch.zeros(60, CLASSES)], 1)
    assert torch.equal(model(x), model(without))


def test_guesser_that_is_always_wrong_is_not_trusted(problem):
    x, y, rng = problem
    at = torch.arange(40)
    _, fitted = fit(x, y, at, make_guesses(y, 0.0, rng))
    plain = ExactLearner(x, exact(x, CLASSES)).fit(at, y[at])
    assert float(fitted.kernel_model.trust[0]) == 0.0
    every = torch.arange(60)
    assert torch.allclose(fitted.predict_proba(every), plain.predict_proba(every), atol=1e-9)


def test_trust_of_contradicting_guessers_goes_to_the_better_one(problem):
    x, y, rng = problem
    good, bad = make_guesses(y, 0.95, rng), make_guesses(y, 0.1, rng)
    _, fitted = fit(x, y, torch.arange(40), good, bad)
    trust = fitted.kernel_model.trust
    assert float(trust[0]) > 0.15
    assert float(trust[1]) < 0.05


def test_one_class_seen_and_one_label_keep_the_initial_trust(problem):
    x, y, rng = problem
    g = make_guesses(y, 0.9, rng)
    _, fitted = fit(x, y, torch.tensor([0]), g)
    assert torch.equal(fitted.kernel_model.trust, initial_trust(1))
    _, fitted = fit(x, y, torch.tensor([0, 3, 6]), g)  # all of class 0
    assert bool(torch.isfinite(fitted.predict_proba(torch.arange(60))).all())


def test_missing_guesses_count_nothing(problem):
    x, y, _ = problem
    at = torch.arange(15)
    none = torch.full((60, CLASSES), 1 / CLASSES, dtype=torch.float64)
    _, fitted = fit(x, y, at, none)
    plain = ExactLearner(x, exact(x, CLASSES)).fit(at, y[at])
    assert torch.allclose(fitted.model(join(x, none)), plain.model(x), atol=1e-12)


def test_hundred_classes_with_guesses_are_fitted():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(150, 12, generator=rng, dtype=torch.float64), torch.arange(150) % 100
    g = F.one_hot(y, 100).double() * 0.8 + 0.002
    learner = ExactLearner(torch.cat([x, g - 0.01], 1), exact(x, 100).with_guessers(1, 100))
    fitted = learner.fit(torch.arange(30), y[:30])
    assert float((fitted.predict_proba(torch.arange(150)).argmax(1) == y).double().mean()) > 0.9


def test_added_class_has_no_guesses(problem):
    x, y, rng = problem
    g = make_guesses(y, 0.7, rng)
    model = ExactModel(x.mean(0), CLASSES + 1, guessers=1, guess_classes=CLASSES)
    mean = model.prior_mean(model.normalise_rows(join(x, g)))
    assert mean.shape == (60, CLASSES + 1)
    assert torch.allclose(mean[:, -1], torch.tensor(1 / (CLASSES + 1)).double())


def test_saved_model_with_guesses_is_restored(problem):
    x, y, rng = problem
    g = make_guesses(y, 0.7, rng)
    _, fitted = fit(x, y, torch.arange(12), g)
    again = ExactModel(torch.zeros(6), CLASSES)
    again.load_state_dict(fitted.model.state_dict())
    assert torch.equal(again.predict_proba(join(x, g)), fitted.model.predict_proba(join(x, g)))


def test_model_saved_without_guess_buffers_is_restored(problem):
    x, y, _ = problem
    fitted = ExactLearner(x, exact(x, CLASSES)).fit(torch.arange(9), y[:9])
    state = {
        k: v for k, v in fitted.model.state_dict().items() if k not in ("trust", "guess_classes")
    }
    again = ExactModel(torch.zeros(6, dtype=torch.float64), CLASSES)
    again.load_state_dict(state)
    assert torch.equal(again(x), fitted.model(x))
