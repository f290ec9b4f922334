import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
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
}  # needs SCIPY_ARRAY_API=1 in the environment of the whole process


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


def make_clouds(n=90):
    x, y = blobs(n, (16,))
    return x.double().numpy(), np.array(["ant", "bee", "cow"])[y]


def test_classifier_matches_direct_solution():
    x, y = make_clouds()
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
    x, y = make_clouds()
    first = Classifier().query(x, 6)
    assert len({*first}) == 6
    assert {*y[first]} == {"ant", "bee", "cow"}  # the six items cover the pool
    fitted = Classifier().fit(x[:9], y[:9])
    queried = fitted.query(x[9:], 4)
    rows = torch.from_numpy(x)
    pool = la.Pool(len(x))
    pool.label(range(9), np.searchsorted(fitted.classes_, y[:9]))
    learner = la.Learner(la.exact(rows, 3), rows, "resolve")
    learner.teach(pool.labelled, pool.labels)
    learner.train()
    wanted = la.propose(learner.model, rows, pool, 4, "resolve")
    assert queried.tolist() == (wanted.positions - 9).tolist()
    assert clone(fitted).query(x, 3).tolist() == Classifier().query(x, 3).tolist()
    random = [
        Classifier(strategy="random", random_state=s).fit(x[:9], y[:9]).query(x[9:], 5).tolist()
        for s in (1, 1, 2)
    ]
    assert random[0] == random[1] != random[2]


def test_classifier_query_beats_random_on_digits():
    x, y = load_digits(return_X_y=True)
    pool, rest = slice(0, 1000), slice(1000, None)
    labelled = list(Classifier().query(x[pool], 20))
    for _ in range(4):
        unlabelled = np.setdiff1d(np.arange(1000), labelled)
        labelled += unlabelled[
            Classifier().fit(x[labelled], y[labelled]).query(x[unlabelled], 20)
        ].tolist()
    query_accuracy = Classifier().fit(x[labelled], y[labelled]).score(x[rest], y[rest])
    random_accuracy = np.mean(
        [
            Classifier().fit(x[a : a + 100], y[a : a + 100]).score(x[rest], y[rest])
            for a in range(0, 1000, 200)
        ]
    )
    assert query_accuracy > random_accuracy + 0.02


def test_classifier_works_in_pipelines_and_cross_validation():
    x, y = make_clouds()
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


def test_partial_fit_adds_classes_unless_declared():
    x, y = make_clouds()
    growing = Classifier().partial_fit(x[y == "ant"], y[y == "ant"]).partial_fit(x, y)
    assert growing.classes_.tolist() == ["ant", "bee", "cow"]
    declared = Classifier().partial_fit(x[:2], y[:2], classes=["cow", "bee", "ant", "dog"])
    assert declared.predict_proba(x[:1]).shape == (1, 4)
    with pytest.raises(InputError, match="'eel' is not among"):
        declared.partial_fit(x[:1], ["eel"])
    with pytest.raises(InputError, match="among the classes"):
        Classifier().partial_fit(x, y, classes=["ant", "bee"])
    with pytest.raises(InputError, match="91 items requested"):
        Classifier().query(x, 91)


# --- Guesses


def make_guessed_clouds():
    """Rows with labels, and the guesses of somebody who is right in 80 %."""
    x, y = make_clouds()
    rng = np.random.default_rng(0)
    x = x + 8 * rng.normal(size=x.shape)  # hard to tell apart
    said = np.where(rng.random(len(y)) < 0.8, y, rng.choice(np.unique(y), len(y)))
    return x, y, said.astype(object)


def test_classifier_with_guesses_equals_the_learner():
    x, y, said = make_guessed_clouds()
    said[::7] = None
    p = np.random.default_rng(1).dirichlet(np.ones(3), len(y))
    names, numbers = np.unique(y, return_inverse=True)
    codes = [-1 if s is None else list(names).index(s) for s in said]
    guesses = {"llm": torch.tensor(codes), "old": torch.from_numpy(p)}
    rows = torch.from_numpy(x)
    learner = la.Learner(la.exact(rows, 3, guesses=guesses), rows, "resolve")
    learner.teach(list(range(30)), numbers[:30].tolist())
    classifier = Classifier().fit(
        x[:30],
        y[:30],
        X_pool=x[30:],
        guesses={"llm": said[:30], "old": p[:30]},
        pool_guesses={"old": p[30:], "llm": said[30:]},
    )
    found = classifier.predict_proba(x, {"old": p, "llm": said})
    assert found == pytest.approx(learner.predict().numpy(), abs=1e-6)
    assert classifier.model_.trust.sum() > 0
    assert np.abs(found - classifier.predict_proba(x)).max() > 1e-3
    queried = classifier.query(x[30:], 5, {"llm": said[30:], "old": p[30:]})
    assert (queried + 30).tolist() == learner.query(5)
    assert (classifier.predict(x, {"llm": said, "old": p}) == names[found.argmax(1)]).all()


def test_guesses_of_partial_fit_equal_those_of_fit():
    x, y, said = make_guessed_clouds()
    order = np.argsort(y, kind="stable")  # the third class comes last
    x, y, said = x[order], y[order], said[order]
    whole = Classifier().fit(x, y, guesses=said)
    p = np.eye(3)[np.unique(y).searchsorted(said.astype(str))]
    parts = Classifier()
    for at in np.array_split(np.arange(len(y)), 3):
        known = sorted({*y[: at[-1] + 1]})
        given = [s if s in known else None for s in said[at]]
        parts.partial_fit(x[at], y[at], guesses=given)
    assert parts.predict_proba(x, said).shape == (90, 3)
    declared = Classifier().partial_fit(
        x[:40], y[:40], classes=[*"abc", *np.unique(y)], guesses=said[:40]
    )
    assert declared.predict_proba(x).shape == (90, 6)
    again = Classifier().partial_fit(x[:40], y[:40], np.unique(y), said[:40])
    again.partial_fit(x[40:], y[40:], guesses=said[40:])
    assert again.predict_proba(x, said) == pytest.approx(whole.predict_proba(x, said), abs=1e-9)
    hard = Classifier().fit(x, y, guesses=p * 0.85 + 0.05)
    assert hard.predict_proba(x, said) == pytest.approx(whole.predict_proba(x, said), abs=1e-6)


def test_guesses_may_name_minus_one_and_classes_without_label():
    x, _ = make_clouds(20)
    y = np.where(x[:, 0] > 0, 1, -1)
    first = [int(np.flatnonzero(y == 1)[0])]
    with pytest.raises(InputError, match=r"name the class -1, but the classes are \[1\]"):
        Classifier().fit(x[first], y[first], X_pool=x, pool_guesses=y)
    classifier = Classifier().fit(x[first], y[first], X_pool=x, classes=[-1, 1], pool_guesses=y)
    assert classifier.classes_.tolist() == [-1, 1]
    guessed = classifier.predict_proba(x, y.astype(float))
    assert np.abs(guessed - classifier.predict_proba(x)).max() > 1e-3
    nothing = classifier.predict_proba(x, np.full(20, np.nan))
    assert nothing == pytest.approx(classifier.predict_proba(x))


def test_guesses_that_do_not_fit_are_refused():
    x, y, said = make_guessed_clouds()
    with pytest.raises(InputError, match="has 89 guesses; expected one for each of 90"):
        Classifier().fit(x, y, guesses=said[:-1])
    with pytest.raises(InputError, match="numbers from 0 to 1 that sum to 1"):
        Classifier().fit(x, y, guesses=np.full((90, 3), 0.5))
    with pytest.raises(InputError, match="there is a module"):
        Classifier(torch.nn.Linear(16, 3)).fit(x, y, guesses=said)
    with pytest.raises(InputError, match="but fit was given none"):
        Classifier().fit(x, y).predict_proba(x, said)
    with pytest.raises(InputError, match="those of 'new', but fit was given 'llm'"):
        Classifier().fit(x, y, guesses={"llm": said}).predict_proba(x, {"new": said})
    with pytest.raises(InputError, match="expected fit first"):
        Classifier().query(x, 2, said)


def make_disputed_labels():
    """Return rows, labels, sources and items: anna and ben label 40 items each, 20 in common."""
    x, y = make_clouds()
    anna, ben = np.arange(40), np.arange(20, 60)
    wrong = np.roll(np.unique(y), 1)[np.searchsorted(np.unique(y), y)]
    said = np.where(np.arange(90) % 3 == 0, wrong, y)
    items = np.concatenate([anna, ben])
    labels = np.concatenate([y[anna], said[ben]])
    return x, labels, ["anna"] * 40 + ["ben"] * 40, items


def test_fit_with_sources_matches_a_learner_taught_by_source():
    x, labels, sources, items = make_disputed_labels()
    fitted = Classifier().fit(x[items], labels, sources=sources, items=items, X_pool=x[60:])
    rows, codes = torch.from_numpy(x), np.searchsorted(fitted.classes_, labels)
    learner = la.Learner(la.exact(rows, 3), rows, "resolve")
    learner.teach(items[:40], codes[:40], source="anna")
    learner.teach(items[40:], codes[40:], source="ben")
    assert np.allclose(fitted.predict_proba(x), learner.predict(), atol=1e-6)
    accuracy = learner.source_accuracy()
    assert {name: row.labels for name, row in fitted.source_accuracy_.items()} == {
        "anna": 40,
        "ben": 40,
    }
    assert fitted.source_accuracy_["ben"].accuracy == pytest.approx(accuracy["ben"].accuracy)
    assert accuracy["ben"].accuracy < accuracy["anna"].accuracy
    ignored = Classifier().fit(x[items], labels, X_pool=x[60:])
    assert not np.allclose(fitted.predict_proba(x), ignored.predict_proba(x), atol=1e-3)
    learner.train()
    wanted = la.propose(learner.model, rows, learner.pool, 4, "resolve")
    assert (60 + fitted.query(x[60:], 4)).tolist() == wanted.positions.tolist()


def test_fit_with_one_source_changes_nothing():
    x, y = make_clouds()
    plain = Classifier().fit(x[:30], y[:30])
    named = Classifier().fit(x[:30], y[:30], sources=["anna"] * 30)
    assert np.array_equal(named.predict_proba(x), plain.predict_proba(x))
    assert named.query(x[30:], 3).tolist() == plain.query(x[30:], 3).tolist()
    assert named.source_accuracy_ == plain.source_accuracy_ == {}


def test_fit_with_sources_takes_guesses_by_row_and_labels_without_a_name():
    x, labels, sources, items = make_disputed_labels()
    unnamed = [None if s == "ben" else s for s in sources]
    guesses = np.array(["ant", "bee", "cow"])[items % 3]
    fitted = Classifier().fit(x[items], labels, sources=unnamed, items=items, guesses=guesses)
    assert sorted(fitted.source_accuracy_) == ["", "anna"]
    assert fitted._guesses.shape[0] == 60  # one row for each item
    once = Classifier().fit(x[:40], labels[:40], guesses=guesses[:40])
    assert torch.equal(fitted._guesses[:40], once._guesses)


def test_fit_refuses_sources_that_it_cannot_use():
    x, y = make_clouds(12)
    names = ["anna", "ben"] * 6
    with pytest.raises(InputError, match="11 sources for 12 labels; expected one each"):
        Classifier().fit(x, y, sources=names[:11])
    with pytest.raises(InputError, match="items are given without sources"):
        Classifier().fit(x, y, items=range(12))
    with pytest.raises(InputError, match="rows 0 and 1 of X are both item 7, but differ"):
        Classifier().fit(x, y, sources=names, items=[7] * 12)
    with pytest.raises(InputError, match="a source is 3; expected a name such as 'anna'"):
        Classifier().fit(x, y, sources=[3] * 12)
    with pytest.raises(InputError, match="sources are weighed by the exact learner"):
        Classifier(torch.nn.Linear(16, 3)).fit(x, y, sources=names)
    with pytest.raises(InputError, match="partial_fit cannot add labels; expected fit with all"):
        Classifier().fit(x, y, sources=names).partial_fit(x, y)


def make_indicators(n=80):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 5))
    return x, (x @ rng.normal(size=(5, 3)) > 0.4).astype(int)


def test_indicator_matrix_is_several_classes_at_once():
    x, y = make_indicators()
    fitted = Classifier().fit(x[:40], y[:40], X_pool=x[40:])
    task = la.tasks.Multilabel(["0", "1", "2"])
    learner = la.Learner(la.exact(x, task=task), x)
    learner.teach(range(40), y[:40])
    prediction = learner.predict()
    assert np.allclose(fitted.predict_proba(x), prediction.probabilities)
    assert np.array_equal(fitted.predict(x), prediction.chosen.numpy())
    assert fitted.predict(x).dtype == y.dtype
    assert (fitted.predict(x[40:]) == y[40:]).mean() > 0.8
    part = Classifier().partial_fit(x[:10], y[:10]).partial_fit(x[10:40], y[10:40])
    alone = Classifier().fit(x[:40], y[:40])
    assert np.allclose(part.predict_proba(x), alone.predict_proba(x))
    queried = fitted.query(x[40:], 5)
    assert len({*queried.tolist()}) == 5


def test_sparse_indicator_matrix_is_read():
    x, y = make_indicators()
    sparse = Classifier().fit(x[:40], csr_matrix(y[:40]))
    assert np.array_equal(sparse.predict(x), Classifier().fit(x[:40], y[:40]).predict(x))


def test_several_classes_at_once_refuse_what_is_for_single_classes():
    x, y = make_indicators()
    with pytest.raises(InputError, match="expected no classes, guesses"):
        Classifier().fit(x, y, classes=["a", "b", "c"])
    with pytest.raises(InputError, match=r"expected Classifier\(\) without one"):
        Classifier(torch.nn.Linear(5, 3)).fit(x, y)
    with pytest.raises(InputError, match="margin works for the task classes"):
        Classifier(strategy="margin").fit(x, y)
    fitted = Classifier().fit(x, y)
    with pytest.raises(InputError, match="earlier labels had 3 columns"):
        fitted.partial_fit(x, y[:, 0])
    with pytest.raises(InputError, match="earlier labels had 3 columns"):
        fitted.partial_fit(x, y[:, :2])
    with pytest.raises(InputError, match="earlier labels were single classes"):
        Classifier().fit(x, y[:, 0]).partial_fit(x, y)


def test_single_classes_after_several_at_once_start_anew():
    x, y = make_indicators()
    fitted = Classifier().fit(x, y).fit(x, y[:, 0])
    assert np.array_equal(fitted.predict(x), Classifier().fit(x, y[:, 0]).predict(x))
