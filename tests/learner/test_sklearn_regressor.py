"""The regressor of scikit-learn's interface."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import labelahead as la
from labelahead.errors import InputError
from labelahead.learner.sklearn import Regressor
from labelahead.learner.sklearn_regressor import draw_seed, fit_answers, query_answers
from labelahead.tasks import Number
from tests.learner.test_sklearn import NOT_APPLICABLE


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        (e, c)
        for e, c in estimator_checks_generator(Regressor())
        if c.func.__name__ not in NOT_APPLICABLE
    ],
    ids=lambda value: getattr(getattr(value, "func", None), "__name__", ""),
)
def test_regressor_passes_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    return X[order] / X.std(0), y[order]


def test_regressor_is_the_learner_with_numbers(diabetes):
    X, y = diabetes
    fitted = Regressor().fit(X[:50], y[:50], X_pool=X[50:])
    learner = la.Learner(la.exact(X, task=Number()), X)
    learner.teach(range(50), y[:50])
    prediction = learner.predict()
    mean, deviation = fitted.predict(X, return_std=True)
    assert np.allclose(mean, prediction.mean[:, 0])
    assert np.allclose(deviation, prediction.deviation[:, 0])
    low, high = fitted.predict_interval(X, 0.5)
    assert np.allclose(low, prediction.interval(0.5)[0][:, 0])
    assert np.all(low < mean)
    assert np.all(mean < high)
    assert fitted.query(X[50:], 4).tolist() == [
        p - 50 for p in la.propose(*make_taught(X, y), 4, "variance").positions.tolist()
    ]


def make_taught(X, y):
    """Return model, inputs and pool of a learner with 50 labels."""
    learner = la.Learner(la.exact(X, task=Number()), X)
    learner.teach(range(50), y[:50])
    learner.train()
    return learner.model, learner.inputs, learner.pool


def test_partial_fit_equals_fit(diabetes):
    X, y = diabetes
    part = Regressor().partial_fit(X[:20], y[:20]).partial_fit(X[20:60], y[20:60])
    assert np.allclose(part.predict(X), Regressor().fit(X[:60], y[:60]).predict(X))


def test_several_targets_keep_their_shape(diabetes):
    X, y = diabetes
    both = np.stack([y, -2 * y + 5], 1)
    fitted = Regressor().fit(X[:60], both[:60])
    mean, deviation = fitted.predict(X, return_std=True)
    assert mean.shape == deviation.shape == (len(X), 2)
    assert np.allclose(mean[:, 1], -2 * mean[:, 0] + 5)
    assert np.allclose(deviation[:, 1], 2 * deviation[:, 0])
    with pytest.raises(InputError, match="the same number of targets"):
        fitted.partial_fit(X[:5], y[:5])
    one = Regressor().fit(X[:60], y[:60, None])
    assert one.predict(X).shape == (len(X), 1)


def test_regressor_works_in_pipelines_and_clones(diabetes):
    X, y = diabetes
    scores = cross_val_score(make_pipeline(StandardScaler(), Regressor()), X, y, cv=3)
    assert scores.mean() > 0.35
    assert clone(Regressor(strategy="random")).strategy == "random"


def test_query_without_labels_covers_the_pool(diabetes):
    X, _ = diabetes
    assert len({*Regressor().query(X, 8).tolist()}) == 8


@pytest.mark.parametrize("method", ["fit", "query"])
def test_strategy_that_does_not_fit_numbers_is_refused(diabetes, method):
    X, y = diabetes
    regressor = Regressor(strategy=la.QueryConfig("flip"))
    with pytest.raises(InputError, match="flip does not work for the task number"):
        regressor.fit(X[:9], y[:9]) if method == "fit" else regressor.query(X, 2)


def test_random_states_become_seeds():
    assert draw_seed(7) == 7
    state = np.random.RandomState(0)
    assert draw_seed(state) != draw_seed(state)


def test_fitted_rows_and_queries_take_any_task():
    task = la.tasks.Rating(3)
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 4)))
    codes = torch.tensor(task.parse_all([1, 2, 3, 2, 1, 3]))
    prediction = fit_answers(task, rows[:6], codes, rows[6:]).predict_answers(torch.arange(3))
    assert len(prediction.values()) == 3
    queried = query_answers(task, rows[:6], codes, rows[6:], 5, None, 0)
    assert sorted({*queried.tolist()} & {*range(14)}) == sorted(queried.tolist())
