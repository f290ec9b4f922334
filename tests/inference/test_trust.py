"""Trust in guesses: against explicit refits, and what happens with good, wrong and missing guesses."""

import pytest
import torch
from torch.nn import functional as F

from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel, exact
from labelahead.inference.trust import (
    CONFUSION_GRID,
    GATE_OFFSET,
    GATE_SLOPE,
    MAX_TRUST,
    MIN_GATE,
    MIN_SLOPE,
    MIN_STANDARD_ERROR,
    PRIOR_DEVIATION,
    PRIOR_SUM,
    SHARPNESS_GRID,
    TRUST_DISCOUNT,
    apply_trust,
    compute_gate,
    fit_confusions,
    fit_sharpness,
    fit_trust,
    initial_sharpness,
    initial_trust,
    sharpen,
    summarise_trust,
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


@pytest.fixture
def labels(problem):
    """The kernel, targets and guesses of twenty labels."""
    x, y, rng = problem
    at = torch.arange(20)
    u = F.normalize(x, dim=1)[at]
    targets = F.one_hot(y[at], CLASSES).double() - 1 / CLASSES
    guesses = torch.stack([make_guesses(y, p, rng)[at] - 1 / CLASSES for p in (0.85, 0.75)], 1)
    return u @ u.T, targets, guesses


def leave_one_out(K, noise, values):
    """Residuals and variances by one refit per label."""
    residuals, variances = [], []
    for i in range(len(K)):
        rest = [j for j in range(len(K)) if j != i]
        system = K[rest][:, rest] + noise * torch.eye(len(rest), dtype=torch.float64)
        residuals.append(values[i] - K[i, rest] @ torch.linalg.solve(system, values[rest]))
        step = torch.linalg.solve(system, K[rest, i])
        variances.append(K[i, i] + noise - K[i, rest] @ step)
    return torch.stack(residuals), torch.stack(variances)


def explicit_sums(K, noise, targets, guesses):
    """s by the regression, written out."""
    residual, variance = leave_one_out(K, noise, targets)
    r = residual.flatten()
    q = [leave_one_out(K, noise, guesses[:, g])[0].flatten() for g in range(2)]
    q = torch.stack(q, 1)
    w = (1 / variance).repeat_interleave(CLASSES)
    normal = q.T @ (w[:, None] * q)
    estimate = torch.linalg.solve(normal, q.T @ (w * r))
    score = q * (w * (r - q @ estimate))[:, None]
    inverse = torch.linalg.inv(normal)
    spread = inverse @ (score.T @ score) @ inverse + MIN_STANDARD_ERROR**2 * torch.eye(2).double()
    certain = torch.eye(2).double() / PRIOR_DEVIATION**2
    return torch.linalg.solve(
        certain + torch.linalg.inv(spread),
        certain @ torch.full((2,), PRIOR_SUM / 2).double() + torch.linalg.inv(spread) @ estimate,
    ).clamp(0, 1)


def test_fit_trust_equals_explicit_regression_kernel_and_gate(labels):
    K, targets, guesses = labels
    noise = 0.1
    sums = explicit_sums(K, noise, targets, guesses)
    residual, _ = leave_one_out(K, noise, targets)
    after = targets - torch.einsum("igc,g->ic", guesses, sums)
    flat = guesses.flatten(1)
    errors = {
        t: leave_one_out(K + t**2 * flat @ flat.T, noise, after)[0].square().sum(1)
        for t in CONFUSION_GRID
    }
    allowed = [
        t
        for t in CONFUSION_GRID
        if t == 0
        or float((errors[0.0] - errors[t]).mean())
        > 2 * float((errors[0.0] - errors[t]).std() / 20**0.5)
    ]
    chosen = min(allowed, key=lambda t: float(errors[t].mean()))
    grown = K + chosen**2 * flat @ flat.T
    W = sums[:, None, None] * torch.eye(CLASSES).double()
    alpha = torch.linalg.solve(grown + noise * torch.eye(20).double(), after)
    W = W + chosen**2 * (flat.T @ alpha).view(2, CLASSES, CLASSES)
    joint, _ = leave_one_out(grown, noise, after)
    truth = targets.argmax(1)
    without = targets - residual
    combined = without + TRUST_DISCOUNT * (residual - joint)
    gain = (combined.argmax(1) == truth).double() - (without.argmax(1) == truth).double()
    z = gain.mean() / (gain.std() / 20**0.5 + 0.5 / 20)
    weight = torch.sigmoid(GATE_SLOPE * z + GATE_OFFSET)
    expected = weight * (TRUST_DISCOUNT * W).clamp(-MAX_TRUST, MAX_TRUST)
    assert MIN_GATE < float(weight) < 0.999  # so that the gate takes part
    assert 0 < float(summarise_trust(expected).min()) < MAX_TRUST
    assert torch.allclose(fit_trust(K, noise, targets, guesses), expected, atol=1e-7)


def test_sharpness_is_the_largest_calibrated_factor_of_the_grid(labels):
    """Against loops over factors, guessers, items and classes."""
    _, targets, guesses = labels
    spread = torch.stack([0.15 * guesses[:, 0], guesses[:, 1]], 1)
    spread[4] = 0.0  # nothing was said
    found = fit_sharpness(targets, spread)
    bound = 1 - 1 / CLASSES
    for j in range(2):
        best, slopes = 1.0, []
        for factor in SHARPNESS_GRID:
            product = norm = 0.0
            for i in range(20):
                row = [factor * float(g) for g in spread[i, j]]
                excess = max(max(row) / bound, 1.0)
                for c in range(CLASSES):
                    product += row[c] / excess * float(targets[i, c])
                    norm += (row[c] / excess) ** 2
            slopes.append(product / norm)
            if slopes[-1] > MIN_SLOPE:
                best = factor
        assert found[j].tolist() == [best, bound]
        assert max(slopes[0], 1.1) > 1 > slopes[-1]
    assert found[:, 0].tolist() == [found[0, 0], 1.0]
    assert float(found[0, 0]) >= 4
    sharp = sharpen(spread, found)
    assert float(sharp.amax()) <= bound + 1e-12
    assert torch.equal(sharp[:, 1], spread[:, 1])  # bit for bit
    assert not sharp[4].any()
    assert torch.equal(fit_sharpness(targets[:1], spread[:1]), initial_sharpness(2, CLASSES))


def test_classes_that_are_always_right_are_not_sharpened(labels):
    _, targets, _ = labels
    certain = 0.9 - 0.1 / (CLASSES - 1)
    said = torch.stack([certain * targets, targets], 1)
    assert torch.equal(fit_sharpness(targets, said), initial_sharpness(2, CLASSES))


def test_spread_probabilities_count_almost_as_much_as_classes():
    """Features say nothing of the classes, so that accuracy above 1/C comes from the guesses."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 6, generator=rng).double(), torch.arange(300) % CLASSES
    g = make_guesses(y, 0.85, rng)
    at, rest = torch.arange(24), torch.arange(100, 300)
    gains = []
    for said in (g, 1 / CLASSES + 0.1 * (g - 1 / CLASSES)):
        _, fitted = fit(x, y, at, said)
        gains.append(fitted.accuracy(rest, y[rest]) - 1 / CLASSES)
    assert gains[0] > 0.2
    assert gains[1] > 0.7 * gains[0]


def test_confusions_equal_the_posterior_of_a_larger_kernel(labels):
    K, targets, _ = labels
    shifted = F.one_hot((targets.argmax(1) + 1) % CLASSES, CLASSES).double() - 1 / CLASSES
    found = fit_confusions(K, 0.1, targets, shifted[:, None], torch.zeros(1).double())
    assert found.deviation > 0  # a guesser that always takes one class for the next is learnt
    t = found.deviation
    joint = K + t**2 * shifted @ shifted.T
    alpha = torch.linalg.solve(joint + 0.1 * torch.eye(20).double(), targets)
    # the mean of the kernel's part alone, given the learnt prior mean, equals that of both
    added = apply_trust(found.weights, shifted[:, None])
    rest = torch.linalg.solve(K + 0.1 * torch.eye(20).double(), targets - added)
    assert torch.allclose(added + K @ rest, joint @ alpha, atol=1e-9)
    residual, _ = leave_one_out(joint, 0.1, targets)
    assert torch.allclose(found.residual, residual, atol=1e-9)
    assert bool((found.weights[0].argmax(1) == (torch.arange(CLASSES) + 2) % CLASSES).all())


def test_gate_closes_if_guesses_make_predictions_worse_and_opens_if_better():
    labels = torch.zeros(30, dtype=torch.int64)
    right, wrong = torch.eye(2).double()[labels], torch.eye(2).double()[labels + 1]
    assert compute_gate(wrong, right, labels) == 0.0
    assert compute_gate(right, wrong, labels) > 0.99
    assert compute_gate(right, right, labels) == pytest.approx(
        float(torch.sigmoid(torch.tensor(GATE_OFFSET)))
    )


def test_prediction_with_guesses_equals_explicit_posterior(problem):
    x, y, rng = problem
    g = make_guesses(y, 0.7, rng)
    at = torch.arange(12)
    _, fitted = fit(x, y, at, g)
    model = fitted.kernel_model
    u = F.normalize(x - x.mean(0), dim=1)
    K = model.kernel_arguments(torch.cat([u, g - 1 / CLASSES], 1))["kernel"]
    K = K.prior_block(torch.arange(60), torch.arange(60)).double()
    mean = 1 / CLASSES + (g - 1 / CLASSES) @ model.trust[0]
    system = K[at][:, at] + model.noise * torch.eye(len(at), dtype=torch.float64)
    step = torch.linalg.solve(system, F.one_hot(y[at], CLASSES).double() - mean[at])
    expected = mean + K[:, at] @ step
    assert torch.allclose(model(join(x, g)), expected, atol=1e-9)
    assert 0 < float(summarise_trust(model.trust)) <= MAX_TRUST


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
    assert torch.equal(blank.trust, initial_trust(1, CLASSES))


def test_inputs_without_guess_columns_have_no_guesses(problem):
    x, y, rng = problem
    _, fitted = fit(x, y, torch.arange(9), make_guesses(y, 0.7, rng))
    model = fitted.kernel_model
    without = torch.cat([x, torch.zeros(60, CLASSES)], 1)
    assert torch.equal(model(x), model(without))


def test_guesser_that_is_always_wrong_is_unlearnt_by_forty_labels(problem):
    x, y, rng = problem
    at = torch.arange(40)
    _, fitted = fit(x, y, at, make_guesses(y, 0.0, rng))
    plain = ExactLearner(x, exact(x, CLASSES)).fit(at, y[at])
    rest = torch.arange(40, 60)
    assert float(summarise_trust(fitted.kernel_model.trust)) <= 0.0
    right = [
        float((m.predict_proba(rest).argmax(1) == y[rest]).double().mean()) for m in (fitted, plain)
    ]
    assert right[0] >= right[1]


def test_trust_of_contradicting_guessers_goes_to_the_better_one(problem):
    x, y, rng = problem
    good, bad = make_guesses(y, 0.95, rng), make_guesses(y, 0.1, rng)
    _, fitted = fit(x, y, torch.arange(40), good, bad)
    trust = summarise_trust(fitted.kernel_model.trust)
    assert float(trust[0]) > 0.15
    assert float(trust[1]) < 0.05


def test_one_class_seen_and_one_label_keep_the_initial_trust(problem):
    x, y, rng = problem
    g = make_guesses(y, 0.9, rng)
    _, fitted = fit(x, y, torch.tensor([0]), g)
    assert torch.equal(fitted.kernel_model.trust, initial_trust(1, CLASSES))
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
        k: v
        for k, v in fitted.model.state_dict().items()
        if k not in ("trust", "sharpness", "guess_classes")
    }
    again = ExactModel(torch.zeros(6, dtype=torch.float64), CLASSES)
    again.load_state_dict(state)
    assert torch.equal(again(x), fitted.model(x))


def test_model_saved_with_one_number_per_guesser_is_restored(problem):
    x, y, rng = problem
    g = make_guesses(y, 0.7, rng)
    _, fitted = fit(x, y, torch.arange(12), g)
    state = {**fitted.model.state_dict(), "trust": torch.tensor([0.2], dtype=torch.float64)}
    del state["sharpness"]  # neither was known then
    again = ExactModel(torch.zeros(6), CLASSES)
    again.load_state_dict(state)
    assert torch.equal(again.trust, 0.2 * torch.eye(CLASSES).double()[None])
    assert torch.equal(again.state_dict()["trust"], again.trust)
    assert torch.equal(again.sharpness, initial_sharpness(1, CLASSES))
