"""The learner with several classes at once, numbers and ratings."""

import math

import numpy as np
import pytest
import torch

import labelahead as la
from labelahead.errors import InputError
from labelahead.tasks import Classes, ClassPrediction, Multilabel, Number, Rating

rng = np.random.default_rng(0)
X = rng.normal(size=(80, 5))
LATENT = X @ rng.normal(size=(5, 3))
TEST = range(60, 80)


def answers(task):
    """Return the answers (80,) as a user has them."""
    if task.name == "multilabel":
        return [[n for n, v in zip(task.outputs, row, strict=True) if v > 0.5] for row in LATENT]
    if task.name == "number":
        return LATENT[:, 0] * 10 + 50
    if task.name == "rating":
        return np.clip(np.round(LATENT[:, 0] + 3), 1, 5)
    return [task.outputs[c] for c in LATENT.argmax(1)]


MAKE = {
    "classes": lambda: Classes(["a", "b", "c"]),
    "multilabel": lambda: Multilabel(["a", "b", "c"]),
    "number": lambda: Number(unit="mm"),
    "rating": lambda: Rating(5),
}


def select(values, at):
    return values[at] if isinstance(values, np.ndarray) else [values[i] for i in at]


def make_learner(name, **more):
    task = MAKE[name]()
    given = {"task": task} if name == "classes" else {}
    return la.Learner(la.exact(X, task=task), X, test=TEST, **given, **more), task


@pytest.mark.parametrize("name", MAKE)
def test_query_and_teach_until_the_predictions_are_good(name):
    learner, task = make_learner(name)
    truth = answers(task)
    for _ in range(5):
        queried = learner.query(8)
        assert not set(queried) & {*TEST, *learner.pool.labelled.tolist()}
        learner.teach(queried, select(truth, queried))
    prediction = learner.predict(TEST)
    measures = task.measure(prediction, task.parse_all(select(truth, list(TEST))))
    least = {"classes": 0.6, "multilabel": 0.75, "number": 0.85, "rating": 0.7}
    key = {"classes": "accuracy", "multilabel": "micro_f1", "number": "r2"}
    assert measures[key.get(name, "quadratic_kappa")] > least[name]
    assert learner.leave_one_out().shape == (40, learner.classes)
    forecast = learner.forecast()
    assert forecast.error.low <= forecast.error.rate <= forecast.error.high


@pytest.mark.parametrize("name", MAKE)
def test_labels_one_by_one_predict_as_all_at_once(name):
    first, task = make_learner(name)
    second, _ = make_learner(name)
    truth = answers(task)
    second.query(2)
    for i in range(12):
        second.teach([i], select(truth, [i]))
        second.query(1)
    first.teach(range(12), select(truth, list(range(12))))
    one, other = (learner.predict(TEST).expected_errors() for learner in (first, second))
    assert torch.allclose(one, other)


@pytest.mark.parametrize("name", ["multilabel", "number", "rating"])
@pytest.mark.parametrize("mode", ["top", "greedy", "sequential"])
def test_every_acquisition_function_of_the_task_queries(name, mode):
    others = ("random", "coreset", "typiclust", "maxherding") if mode == "top" else ()
    for strategy in (*MAKE[name]().acquisitions, *others):
        config = la.QueryConfig(strategy, mode=mode)
        learner, task = make_learner(name, strategy=config)
        assert len(set(learner.query(3))) == 3
        learner.teach(range(10), select(answers(task), list(range(10))))
        queried = learner.query(3)
        assert len(set(queried)) == 3
        assert not set(queried) & {*range(10), *TEST}


@pytest.mark.parametrize("name", ["multilabel", "number", "rating"])
def test_sequential_query_uses_the_answers_of_an_oracle(name):
    learner, task = make_learner(name)
    truth = task.parse_all(answers(task))
    learner.teach(range(10), select(answers(task), list(range(10))))
    learner.train()
    strategy = next(iter(task.acquisitions))
    queried = la.propose(
        learner.model, learner.inputs, learner.pool, 4, strategy, oracle=lambda p: truth[p]
    )
    assert queried.mode == "sequential"
    assert len(set(queried.positions.tolist())) == 4


def test_rows_of_arrays_and_tensors_are_answers():
    learner, task = make_learner("multilabel")
    rows = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, np.nan, 0.0]])
    learner.teach([0, 1, 2], rows)
    learner.teach([3], torch.tensor([[False, True, False]]))
    assert [task.write(c) for c in learner.pool.labels.tolist()] == ["a;c", "[]", "a;?b", "b"]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("multilabel", [["a"], ["d"]], "answer 1: 'd' is not a class"),
        ("multilabel", [["a"], None], "label 1 is missing"),
        ("multilabel", "ab", "one answer per position"),
        ("multilabel", [["a"]], "1 labels for 2 positions"),
        ("number", [1.0, "many"], "answer 1: 'many' is not a number"),
        ("number", [1.0, math.nan], "label 1 is missing"),
        ("rating", [5, 6], "answer 1: 6 is not a level"),
        ("classes", ["a", "z"], "answer 1: 'z' is not a class"),
    ],
)
def test_wrong_answers_change_nothing(name, given, message):
    learner, _ = make_learner(name)
    with pytest.raises(InputError, match=message):
        learner.teach([0, 1], given)
    assert len(learner.pool) == 0


@pytest.mark.parametrize("name", MAKE)
def test_saved_learner_continues_alike(name, tmp_path):
    learner, task = make_learner(name)
    truth = answers(task)
    learner.teach(range(15), select(truth, list(range(15))))
    learner.query(1)
    learner.save(tmp_path / "learner.pt")
    fresh = MAKE[name]()
    again = la.Learner.load(tmp_path / "learner.pt", la.exact(X, task=fresh), X)
    assert again.task.describe() == task.describe()
    assert again.predict().columns() == learner.predict().columns()
    for one in (learner, again):
        one.teach([30], select(truth, [30]))
    assert again.query(3) == learner.query(3)


def test_saved_learner_needs_the_same_task(tmp_path):
    learner, _ = make_learner("number")
    learner.teach([0, 1], [1, 2])
    learner.save(tmp_path / "learner.pt")
    with pytest.raises(InputError, match="saved with the task number, but the model has the task"):
        la.Learner.load(tmp_path / "learner.pt", la.exact(X, task=Rating(5)), X)
    with pytest.raises(InputError, match="saved with the outputs value"):
        la.Learner.load(tmp_path / "learner.pt", la.exact(X, task=Number(["age"])), X)


def test_learner_without_a_task_is_loaded_into_a_model_without_one(tmp_path):
    learner = la.Learner(la.exact(X, 3), X)
    learner.teach([0, 1, 2], [0, 1, 2])
    learner.save(tmp_path / "learner.pt")
    with pytest.raises(InputError, match="saved with the task classes"):
        la.Learner.load(tmp_path / "learner.pt", la.exact(X, task=Number()), X)
    assert la.Learner.load(tmp_path / "learner.pt", la.exact(X, 3), X).task is None


def test_class_names_give_the_bits_of_class_numbers():
    named, task = make_learner("classes")
    numbered = la.Learner(la.exact(X, 3), X, test=TEST)
    truth = LATENT.argmax(1)
    named.teach(range(20), select(answers(task), list(range(20))))
    numbered.teach(range(20), truth[:20])
    prediction = named.predict()
    assert isinstance(prediction, ClassPrediction)
    assert torch.equal(prediction.probabilities, numbered.predict())
    assert named.query(5) == numbered.query(5)


@pytest.mark.parametrize(
    ("name", "strategy", "message"),
    [
        ("number", "flip", "flip does not work for the task number: it counts wrong decisions"),
        ("rating", "margin", "margin works for the task classes, not for rating"),
        ("multilabel", "eer", "eer does not work for the task multilabel: it tries all"),
        ("multilabel", "badge", "expected one of resolve, flip, variance"),
    ],
)
def test_strategies_that_do_not_fit_the_task_are_refused_at_once(name, strategy, message):
    with pytest.raises(InputError, match=message):
        make_learner(name, strategy=strategy)
    task = MAKE[name]()
    with pytest.raises(InputError, match=message):
        la.propose(la.exact(X, task=task), torch.from_numpy(X), la.Pool(80), 1, strategy)


def test_own_acquisition_function_works_for_any_task():
    def longest(view, generator=None):
        return view.posterior.variance()[view.candidates]

    strategy = la.strategies.lookahead.make_lookahead_strategy("longest", "", "", longest)
    learner, _ = make_learner("number", strategy=strategy)
    learner.teach([0, 1], [1, 2])
    assert len(learner.query(2)) == 2


def test_task_is_given_once():
    task = Number()
    assert la.Learner(la.exact(X, task=task), X, task=task).task is task
    with pytest.raises(InputError, match="expected it only once"):
        la.Learner(la.exact(X, task=task), X, task=Number())
    with pytest.raises(InputError, match="the model does not know the task number"):
        la.Learner(la.exact(X, 3), X, task=task)
    with pytest.raises(InputError, match="task is 'number'"):
        la.Learner(la.exact(X, 3), X, task="number")


def test_sources_are_for_classes():
    learner, _ = make_learner("number")
    with pytest.raises(InputError, match="cannot be weighed for the task number"):
        learner.teach([0], [1], source="anna")
    with pytest.raises(InputError, match="cannot be weighed for the task number"):
        learner.query_sources([], 1)


def test_forecast_and_leave_one_out_need_labels_and_the_exact_learner():
    learner, _ = make_learner("number")
    for method in (learner.forecast, learner.leave_one_out):
        with pytest.raises(InputError, match="teach first"):
            method()
    network = la.Learner(torch.nn.Linear(5, 3).double(), torch.from_numpy(X))
    network.teach([0, 1], [0, 1])
    with pytest.raises(InputError, match="need the exact learner"):
        network.forecast()


def test_class_added_to_the_task_keeps_the_answers_so_far():
    learner, task = make_learner("multilabel")
    learner.teach(range(10), select(answers(task), list(range(10))))
    task.add_output("d")
    codes = learner.pool.labels
    wider = la.Learner(la.exact(X, task=task), X)
    wider.pool.label(range(10), codes)
    wider.teach([20, 21], [["d"], []])
    p = wider.predict(range(30)).probabilities
    assert p.shape == (30, 4)
    assert float(p[20, 3]) > float(p[21, 3])
