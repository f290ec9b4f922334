import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import labelahead as la
from labelahead.errors import InputError, ModelError
from labelahead.gp.calibration import gaussian_class_probabilities
from labelahead.learner.sklearn import Classifier
from tests.support.campaigns import blobs
from tests.support.reference_exact import by_hand

NOT_APPLICABLE = {
    "check_array_api_input"
}  # asks for SCIPY_ARRAY_API=1 in the environment of the whole process


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        (e, c)
        for e, c in estimator_checks_generator(Classifier())
        if c.func.__name__ not in NOT_APPLICABLE
    ],
    ids=lambda value: getattr(getattr(value, "func", None), "__name__", ""),
)
def test_classifier_passes_scikit_learn_checks(estimator, check):
    check(estimator)


def clouds(n=90):
    x, y = blobs(n, (16,))
    return x.double().numpy(), np.array(["ant", "bee", "cow"])[y]


def test_classifier_matches_direct_solution():
    x, y = clouds()
    fitted = Classifier().fit(x[:30], y[:30])
    codes = np.searchsorted(fitted.classes_, y)
    outputs, variances, _ = by_hand(
        x[:30], codes[:30], x[30:], x[:30].mean(0), fitted.model_.get_mixture(), 3
    )
    scale = fitted.model_.ensure_variance_scale()
    wanted = gaussian_class_probabilities(
        torch.from_numpy(outputs), scale * torch.from_numpy(variances).clamp_min(1e-9)
    )
    assert np.allclose(fitted.predict_proba(x[30:]), wanted, atol=1e-6)
    assert fitted.score(x[30:], y[30:]) > 0.9
    part = Classifier().partial_fit(x[:10], y[:10]).partial_fit(x[10:30], y[10:30])
    assert np.allclose(part.predict_proba(x), fitted.predict_proba(x), atol=1e-12)


def test_classifier_query_matches_propose():
    x, y = clouds()
    first = Classifier().query(x, 6)
    assert len({*first}) == 6
    assert {*y[first]} == {"ant", "bee", "cow"}  # six that cover the pool
    fitted = Classifier().fit(x[:9], y[:9])
    asked = fitted.query(x[9:], 4)
    rows = torch.from_numpy(x)
    pool = la.Pool(len(x))
    pool.label(range(9), np.searchsorted(fitted.classes_, y[:9]))
    learner = la.Learner(la.exact(rows, 3), rows, "resolve")
    learner.teach(pool.labelled, pool.labels)
    learner.train()
    wanted = la.propose(learner.model, rows, pool, 4, "resolve")
    assert asked.tolist() == (wanted.positions - 9).tolist()
    assert clone(fitted).query(x, 3).tolist() == Classifier().query(x, 3).tolist()
    random = [
        Classifier(strategy="random", random_state=s).fit(x[:9], y[:9]).query(x[9:], 5).tolist()
        for s in (1, 1, 2)
    ]
    assert random[0] == random[1] != random[2]


def test_classifier_query_beats_random_on_digits():
    x, y = load_digits(return_X_y=True)
    pool, rest = slice(0, 1000), slice(1000, None)
    taken = list(Classifier().query(x[pool], 20))
    for _ in range(4):
        left = np.setdiff1d(np.arange(1000), taken)
        taken += left[Classifier().fit(x[taken], y[taken]).query(x[left], 20)].tolist()
    asked = Classifier().fit(x[taken], y[taken]).score(x[rest], y[rest])
    came = np.mean(
        [
            Classifier().fit(x[a : a + 100], y[a : a + 100]).score(x[rest], y[rest])
            for a in range(0, 1000, 200)
        ]
    )
    assert asked > came + 0.02


def test_classifier_in_pipelines_and_cross_validation():
    x, y = clouds()
    assert cross_val_score(make_pipeline(StandardScaler(), Classifier()), x, y, cv=3).mean() > 0.9


def test_classifier_leaves_module_unchanged():
    x, y = blobs(60)
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    )
    before = [p.clone() for p in module.parameters()]
    training = la.Training(steps=60, loss="cross-entropy")
    for kind in (np.float64, np.float32):
        fitted = Classifier(module, training=training).fit(x.numpy().astype(kind)[:30], y[:30])
        assert fitted.score(x.numpy()[30:], y[30:]) > 0.9
        assert len({*fitted.query(x.numpy()[30:], 5)}) == 5
    with torch.no_grad():
        wanted = fitted.model_(x).softmax(1).double().numpy()
    assert np.allclose(fitted.predict_proba(x), wanted, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert len(Classifier(module).query(x.numpy(), 2)) == 2
    with pytest.raises(ModelError, match="3 outputs for 2 classes"):
        Classifier(module).fit(x.numpy()[y < 2], y[y < 2])


def test_partial_fit_with_new_classes():
    x, y = clouds()
    growing = Classifier().partial_fit(x[y == "ant"], y[y == "ant"]).partial_fit(x, y)
    assert growing.classes_.tolist() == ["ant", "bee", "cow"]
    told = Classifier().partial_fit(x[:2], y[:2], classes=["cow", "bee", "ant", "dog"])
    assert told.predict_proba(x[:1]).shape == (1, 4)
    with pytest.raises(InputError, match="'eel' is not among"):
        told.partial_fit(x[:1], ["eel"])
    with pytest.raises(InputError, match="among the classes"):
        Classifier().partial_fit(x, y, classes=["ant", "bee"])
    with pytest.raises(InputError, match="91 items requested"):
        Classifier().query(x, 91)
