"""The exact learner on several classes at once, numbers and ratings, against refits."""

import copy
import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel

from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner, FittedExactModel, predict_answers
from labelahead.inference.exact_model import ExactModel, exact
from labelahead.inference.mixture import (
    MixtureSearch,
    choose_mixture,
    cosine_matrix,
    fill_missing,
    mix_kernels,
    solve_leave_one_out,
)
from labelahead.inference.pool_posterior import PoolPosterior, PosteriorOptions
from labelahead.tasks import Classes, Multilabel, Number, Rating
from tests.support import reference_exact as reference

POOL, LABELS, D = 60, 25, 6


def make_items(pool=POOL):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(pool, D, generator=rng, dtype=torch.float64)
    weights = torch.randn(D, 3, generator=rng, dtype=torch.float64)
    return x, x @ weights + 0.3 * torch.randn(pool, 3, generator=rng, dtype=torch.float64)


def make_answers(task, latent, hide=0.0):
    """Return the codes (n,) of answers; a share of the decisions is not reviewed."""
    if task.name == "multilabel":
        rows = (latent > 0).double()
        hidden = torch.rand(rows.shape, generator=torch.Generator().manual_seed(5)) < hide
        hidden[:, 0] = False
        rows = rows.masked_fill(hidden, math.nan)
    elif task.name == "number":
        rows = 100 + 20 * latent[:, : len(task.outputs)]
        if hide:
            rows[::3, 1] = math.nan
    else:
        rows = (latent[:, 0] + 3).round().clamp(1, 5)
    return torch.tensor(task.parse_all(rows.numpy() if rows.dim() > 1 else rows.tolist()))


TASKS = {
    "multilabel": lambda: Multilabel(["a", "b", "c"]),
    "number": Number,
    "numbers": lambda: Number(["u", "v"]),
    "rating": lambda: Rating(5),
}


def fit(task, hide=0.0, **options):
    x, latent = make_items()
    codes = make_answers(task, latent, hide)
    learner = ExactLearner(x, exact(x, task=task), **options)
    at = torch.arange(LABELS)
    return learner, learner.fit(at, codes[:LABELS]), codes


class MixtureKernel(Kernel):
    """The kernel mixture for scikit-learn, by loops."""

    def __init__(self, weights=(1.0, 0.0, 0.0)):
        self.weights = weights

    def __call__(self, X, Y=None, eval_gradient=False):
        return reference.gram(X, X if Y is None else Y, self.weights)

    def diag(self, X):
        return np.ones(len(X))

    def is_stationary(self):
        return False


def test_numbers_are_those_of_scikit_learns_gaussian_process():
    task = Number()
    learner, fitted, codes = fit(task)
    model = fitted.kernel_model
    units = model.normalise_rows(learner.inputs).numpy()
    y = task.targets(codes[:LABELS]).numpy()[:, 0]
    *weights, noise = model.get_mixture()
    twin = GaussianProcessRegressor(MixtureKernel(tuple(weights)), alpha=noise, optimizer=None)
    twin.fit(units[:LABELS], y - y.mean())
    mean, deviation = twin.predict(units[LABELS:], return_std=True)
    at = torch.arange(LABELS, POOL)
    prediction = fitted.predict_answers(at)
    # The loops round the angle of an item to itself by 1e-8.
    assert prediction.mean[:, 0].numpy() == pytest.approx(mean + y.mean(), rel=1e-6)
    variance = model.predict_variance(model.normalise_rows(learner.inputs[at])).numpy()
    assert variance == pytest.approx(deviation**2, abs=1e-6)
    spread = prediction.deviation[:, 0].numpy()
    scale = float(model.get_task_state().variance_scale)
    assert spread == pytest.approx(np.sqrt(scale * (deviation**2 + noise)), rel=1e-6)


@pytest.mark.parametrize("name", TASKS)
def test_leave_one_out_predictions_equal_refits_without_the_item(name):
    """The mixture and the offset stay those of all labels."""
    task = TASKS[name]()
    learner, fitted, codes = fit(task)
    model = fitted.kernel_model
    mean, residual = learner.leave_one_out_predictions(torch.arange(LABELS), codes[:LABELS])
    targets = task.targets(codes[:LABELS])
    assert torch.allclose(residual, mean - targets)
    K = mix_kernels(cosine_matrix(model.support), model.get_mixture().weights)
    for i in (0, 7, LABELS - 1):
        rest = [j for j in range(LABELS) if j != i]
        system = K[rest][:, rest] + model.noise * torch.eye(LABELS - 1, dtype=torch.float64)
        alpha = torch.linalg.solve(system, targets[rest] - model.offset)
        assert torch.allclose(mean[i], model.offset + K[i, rest] @ alpha, atol=1e-9)


@pytest.mark.parametrize("name", ["multilabel", "numbers"])
def test_missing_targets_equal_a_refit_of_each_output_without_the_item(name):
    task = TASKS[name]()
    learner, fitted, codes = fit(task, hide=0.4)
    model = fitted.kernel_model
    targets = task.targets(codes[:LABELS])
    assert bool(targets.isnan().any())
    weights, noise = model.get_mixture().weights, model.noise
    units = model.normalise_rows(learner.inputs)
    K = mix_kernels(cosine_matrix(units), weights)
    outputs = model(learner.inputs)
    loo, _ = learner.leave_one_out_predictions(torch.arange(LABELS), codes[:LABELS])
    for c in range(len(task.outputs)):
        known = (~targets[:, c].isnan()).nonzero()[:, 0]
        system = K[known][:, known] + noise * torch.eye(len(known), dtype=torch.float64)
        alpha = torch.linalg.solve(system, targets[known, c] - model.offset[c])
        expected = model.offset[c] + K[:, known] @ alpha
        assert torch.allclose(outputs[:, c], expected, atol=1e-8)
        unknown = targets[:, c].isnan().nonzero()[:, 0]
        # Left out or not, an item without an answer is predicted by all others.
        assert torch.allclose(loo[unknown, c], expected[unknown], atol=1e-8)
        divisor = torch.linalg.inv(system).diagonal()
        assert torch.allclose(
            loo[known, c], targets[known, c] - alpha / divisor, atol=1e-8
        )  # closed form of the refit without each


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("hide", [0.0, 0.4])
def test_pool_posterior_agrees_with_the_model(name, hide):
    if hide and name in ("number", "rating"):
        pytest.skip("its answers are never partial")
    task = TASKS[name]()
    learner, fitted, codes = fit(task, hide)
    pool_posterior = make_pool_posterior(fitted, codes[:LABELS])
    expected = fitted.kernel_model(learner.inputs)
    assert torch.allclose(pool_posterior.posterior.mean, expected, atol=1e-8)


def make_pool_posterior(fitted, codes):
    at = torch.arange(POOL)
    model = fitted.kernel_model
    units = fitted.unit_rows(at)
    return PoolPosterior.from_kernel(
        at,
        model.prior_mean(units),
        model.kernel_arguments(units),
        model.noise,
        dict(enumerate(codes.tolist())),
        PosteriorOptions(task=model.task),
    )


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("hide", [0.0, 0.4])
def test_labels_one_by_one_equal_all_at_once(name, hide):
    if hide and name in ("number", "rating"):
        pytest.skip("its answers are never partial")
    task = TASKS[name]()
    _, fitted, codes = fit(task, hide)
    step = make_pool_posterior(fitted, codes[:10])
    for i in range(11, LABELS + 1):
        step = step.with_labels(dict(enumerate(codes[:i].tolist())))
    at_once = make_pool_posterior(fitted, codes[:LABELS])
    assert torch.allclose(step.posterior.mean, at_once.posterior.mean, atol=1e-8)
    changed = {**dict(enumerate(codes[:LABELS].tolist())), 3: int(codes[40])}
    fresh = make_pool_posterior(fitted, torch.tensor(list(changed.values())))
    assert torch.allclose(step.with_labels(changed).posterior.mean, fresh.posterior.mean, atol=1e-8)


def test_missing_targets_do_not_change_the_weights_of_others():
    x, latent = make_items()
    K = cosine_matrix(torch.nn.functional.normalize(x[:LABELS], dim=1))
    targets = latent[:LABELS].clone()
    targets[::4, 1] = math.nan
    alpha, residual, _ = solve_leave_one_out(K, 0.1, targets)
    assert not bool(alpha[::4, 1].any())
    assert not bool(residual[::4, 1].any())
    complete = fill_missing(targets, K, alpha)
    assert torch.allclose(solve_leave_one_out(K, 0.1, complete)[0], alpha, atol=1e-10)


def test_mixture_is_chosen_by_answers_only():
    """An output without any answer has no say; nor have outputs beyond the allowed patterns."""
    x, latent = make_items()
    cosines = cosine_matrix(torch.nn.functional.normalize(x[:LABELS], dim=1))
    both = latent[:LABELS, :1].repeat(1, 2)
    both[:, 1] = math.nan
    assert choose_mixture(cosines, both) == choose_mixture(cosines, both[:, :1])
    noise = torch.randn(LABELS, 1, generator=torch.Generator().manual_seed(0)).double()
    noise[0] = math.nan
    targets = torch.cat([latent[:LABELS, :1], noise], 1)
    one = MixtureSearch(max_patterns=1)
    assert choose_mixture(cosines, targets, one) == choose_mixture(cosines, targets[:, :1])


@pytest.mark.parametrize("hide", [0.0, 0.3])
@pytest.mark.parametrize("name", ["multilabel", "numbers"])
def test_many_labels_are_approximated(name, hide):
    task = TASKS[name]()
    exactly = fit(task, hide)[1].predict_answers(torch.arange(LABELS, POOL))
    again = TASKS[name]()
    learner, fitted, codes = fit(again, hide, max_exact_labels=LABELS - 3)
    roughly = fitted.predict_answers(torch.arange(LABELS, POOL))
    field = "probabilities" if name == "multilabel" else "mean"
    first, second = (getattr(p, field) for p in (exactly, roughly))
    assert float((first - second).abs().mean()) < 0.1 * float(first.std())
    at = torch.arange(LABELS)
    mean, _ = learner.leave_one_out_predictions(at, codes[:LABELS])
    assert mean.shape == (LABELS, len(again.outputs))
    assert math.isfinite(learner.forecast_error(at, codes[:LABELS], torch.arange(30, POOL)).fall)


def test_task_of_classes_is_the_learner_without_a_task():
    x, latent = make_items()
    labels = latent.argmax(1)
    models = [exact(x, 3), exact(x, task=Classes(["a", "b", "c"]))]
    first, second = (ExactLearner(x, m).fit(torch.arange(LABELS), labels[:LABELS]) for m in models)
    at = torch.arange(POOL)
    assert torch.equal(first.predict_proba(at), second.predict_proba(at))
    assert second.task is None


@pytest.mark.parametrize("name", TASKS)
def test_saved_model_predicts_the_same(name):
    task = TASKS[name]()
    learner, fitted, _ = fit(task)
    again = exact(learner.inputs, task=task)
    again.load_state_dict(copy.deepcopy(fitted.model.state_dict()))
    first = fitted.predict_answers(torch.arange(POOL))
    assert predict_answers(again, learner.inputs).columns() == first.columns()


def test_models_saved_before_tasks_can_be_loaded():
    x, latent = make_items()
    fitted = ExactLearner(x, exact(x, 3)).fit(torch.arange(9), latent.argmax(1)[:9])
    state = {k: v for k, v in fitted.model.state_dict().items() if "offset" not in k}
    state.pop("task_state")
    again = ExactModel(x.mean(0), 3)
    again.load_state_dict(state)
    assert torch.equal(again.predict_proba(x), fitted.predict_proba(torch.arange(POOL)))


@pytest.mark.parametrize("name", TASKS)
def test_without_labels_predictions_are_those_of_the_prior(name):
    x, _ = make_items()
    task = TASKS[name]()
    prediction = predict_answers(exact(x, task=task), x[:3])
    values = prediction.values()
    assert values[0] == values[1] == values[2]


@pytest.mark.parametrize("name", TASKS)
def test_forecast_is_in_the_unit_of_the_task(name):
    """The interval is near the measured error."""
    task = TASKS[name]()
    x, latent = make_items(pool=500)
    codes = make_answers(task, latent)
    learner = ExactLearner(x, exact(x, task=task))
    at, rest = torch.arange(100), torch.arange(100, 500)
    fitted = learner.fit(at, codes[at])
    forecast = learner.forecast_error(at, codes[at], rest)
    measured = task.measure(fitted.predict_answers(rest), codes[rest])[task.error_measure]
    assert forecast.error.low < forecast.error.rate < forecast.error.high
    assert forecast.error.low <= 1.1 * measured
    assert forecast.error.high >= measured / 1.1
    assert 0 < forecast.fall < forecast.error.rate


def test_probabilities_are_those_of_the_task():
    for name in ("multilabel", "rating"):
        _, fitted, _ = fit(TASKS[name]())
        at = torch.arange(5)
        assert torch.equal(fitted.predict_proba(at), fitted.predict_answers(at).probabilities)
    with pytest.raises(InputError, match="a number has no class probabilities"):
        fit(Number())[1].predict_proba(torch.arange(5))


def test_predictions_without_a_task_are_refused():
    x, _ = make_items()
    with pytest.raises(InputError, match="expected predict_proba"):
        FittedExactModel(exact(x, 3), x).predict_answers(torch.arange(2))
    with pytest.raises(InputError, match="a trained network has no task"):
        predict_answers(torch.nn.Linear(D, 3), x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": 3, "task": Number()}, "expected only one of them"),
        ({"task": "number"}, "expected one such as"),
        ({"task": Number(), "guesses": [0] * POOL}, "leave them out"),
        ({}, "classes is None"),
    ],
)
def test_exact_checks_task_and_classes(arguments, message):
    with pytest.raises(InputError, match=message):
        exact(make_items()[0], **arguments)


def test_copies_of_a_model_share_the_answers_of_its_task():
    task = Multilabel(["a", "b"])
    model = copy.deepcopy(exact(make_items()[0], task=task))
    code = task.parse("a;b")
    assert model.task is task
    assert model.task.targets([code]).tolist() == [[1.0, 1.0]]
