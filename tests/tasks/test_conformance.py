"""What every task keeps. A new task adds one `Case`."""

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.tasks import TASKS, LeaveOneOut, Task, TaskState, find_task


class Case(NamedTuple):
    """A task, and answers to it."""

    make: Callable[[], Task]
    written: tuple[tuple[Any, str], ...]  # (answer as given, as written)
    wrong: tuple[Any, ...]
    draw: Callable[[Tensor, torch.Generator], Tensor]  # latent values (n, D) -> targets (n, D)


def draw_class(latent: Tensor, rng: torch.Generator) -> Tensor:
    return torch.eye(latent.shape[1], dtype=torch.float64)[latent.argmax(1)]


CASES = {
    "classes": Case(
        lambda: find_task("classes", classes=["cat", "dog", "fox"]),
        (("dog", "dog"), (" fox ", "fox"), (0, "cat"), (np.int64(2), "fox"), (torch.tensor(1), "dog")),
        ("cow", "Cat", 3, -1, True, 1.5, ["cat"], {"cat": 1}),
        draw_class,
    ),
    "multilabel": Case(
        lambda: find_task("multilabel", classes=["cat", "dog", "fox"]),
        (
            (["dog", "cat"], "cat;dog"),
            ({"fox"}, "fox"),
            ("fox; cat", "cat;fox"),
            ([], "[]"),
            ("[]", "[]"),
            ("none", "[]"),
            ('["dog"]', "dog"),
            (np.array([1, 0, 1]), "cat;fox"),
            (np.array([0.0, np.nan, 1.0]), "?dog;fox"),
            (torch.tensor([False, True, False]), "dog"),
            ({"cat": True, "dog": False}, "cat;?fox"),
            ({"cat": 0, "dog": 1, "fox": None}, "dog;?fox"),
            ("cat;?dog", "cat;?dog"),
        ),
        ("cow", "cat,dog", "cat;?cat", ["cat", 3], 1, True, [1, 0, 1], np.array([1, 0]),
         np.array([0, 1, 2]), {"cat": "perhaps"}, {"cow": True}, "[cat"),
        lambda latent, rng: (latent > 0.5).double(),
    ),
    "number": Case(
        lambda: find_task("number", unit="mm", limits=(-50, 50)),
        ((3, "3"), (3.0, "3"), ("3.50", "3.5"), ("3.5 mm", "3.5"), ("-1e-1", "-0.1"), (-0.0, "0"),
         (np.float32(0.5), "0.5"), (torch.tensor(2), "2"), ([4], "4"), ({"value": 7}, "7")),
        ("many", "3,5", "3 kg", True, 51, float("inf"), "inf", [1, 2], {"size": 1}, "1;2", object()),
        lambda latent, rng: latent,
    ),
    "numbers": Case(
        lambda: find_task("number", targets=["x", "y"]),
        (((1, 2.5), "1;2.5"), ("1; 2.5", "1;2.5"), (np.array([1.0, np.nan]), "1;?"),
         ({"y": 3}, "?;3"), ("?;4", "?;4")),
        (1, "1", (1, 2, 3), "1;many", {"z": 1}),
        lambda latent, rng: latent,
    ),
    "rating": Case(
        lambda: find_task("rating", levels=5),
        (("4", "4"), (4, "4"), (4.0, "4"), ("5.0", "5"), (np.int64(1), "1")),
        (0, 6, 2.5, "six", "2.5", True, [4]),
        lambda latent, rng: (3 + latent).round().clamp(1, 5),
    ),
    "named rating": Case(
        lambda: find_task("rating", levels=["bad", "fair", "good"]),
        (("bad", "bad"), (3, "good"), ("2", "fair")),
        ("great", 0, 4, 1.5),
        lambda latent, rng: (2 + latent).round().clamp(1, 3),
    ),
}  # fmt: skip
MISSING = (None, "", "  ", float("nan"), np.nan, np.float32("nan"), "nan")


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture
def task(case):
    return case.make()


def draw_evidence(case: Case, task: Task, labels: int, seed: int = 0) -> LeaveOneOut:
    """Draw leave-one-out predictions of a model whose means and variances are right."""
    rng = torch.Generator().manual_seed(seed)
    outputs = len(task.outputs)
    variance = 0.1 + 0.8 * torch.rand(labels, generator=rng, dtype=torch.float64)
    amplitude = 1.0 if "rating" in task.name or task.name == "number" else 0.3
    latent = torch.randn(labels, outputs, generator=rng, dtype=torch.float64) * amplitude
    latent = latent + (0.3 if task.name == "multilabel" else 0.0)
    error = torch.randn(labels, outputs, generator=rng, dtype=torch.float64)
    mean = latent - error * amplitude * 0.5 * (variance + 0.05).sqrt()[:, None]
    targets = case.draw(latent, rng)
    if task.name == "rating":
        mean = mean + (3 if len(task.levels) == 5 else 2)
    return LeaveOneOut(mean, variance, 0.05, targets)


def find_codes(task: Task, targets: Tensor) -> list[int]:
    """Return the codes of targets."""
    if task.name == "classes":
        return targets.argmax(1).tolist()
    if task.name == "rating":
        return [task.scores.tolist().index(score) for score in targets[:, 0].tolist()]
    return [task.parse(row.numpy()) for row in targets]


def test_every_task_has_a_case():
    assert {case.make().name for case in CASES.values()} == set(TASKS)


def test_answers_are_written_in_one_way(case, task):
    for given, written in case.written:
        code = task.parse(given)
        assert task.write(code) == written
        assert task.parse(written) == code
        assert task.parse(json.loads(json.dumps(task.value(code)))) == code


def test_equal_answers_have_one_code_and_others_different_ones(case, task):
    codes: dict[str, set[int]] = {}
    for given, written in case.written:
        codes.setdefault(written, set()).add(task.parse(given))
    assert all(len(c) == 1 for c in codes.values())
    assert len(set.union(*codes.values())) == len(codes)


@pytest.mark.parametrize("value", MISSING)
def test_missing_answers_have_no_code(task, value):
    assert task.parse(value) is None


def test_wrong_answers_are_refused_without_a_trace(case, task):
    for given, _ in case.written:
        task.parse(given)
    before = task.describe()
    for value in case.wrong:
        with pytest.raises(InputError, match="expected"):
            task.parse(value)
    assert task.describe() == before


def test_parse_all_enters_nothing_if_one_answer_is_wrong(case, task):
    before = task.describe()
    with pytest.raises(InputError, match=f"answer {len(case.written) + 1}: .*expected"):
        task.parse_all([*(given for given, _ in case.written), None, case.wrong[0]])
    assert task.describe() == before
    codes = task.parse_all([*(given for given, _ in case.written), None])
    assert codes[-1] is None
    assert [task.write(c) for c in codes[:-1]] == [written for _, written in case.written]


def test_targets_have_one_row_for_each_answer_and_one_column_for_each_output(case, task):
    codes = [task.parse(given) for given, _ in case.written]
    targets = task.targets(codes)
    assert targets.shape == (len(codes), len(task.outputs))
    assert targets.dtype == torch.float64
    assert bool((~targets.isnan()).any(1).all())
    assert torch.equal(task.targets(torch.tensor(codes)).nan_to_num(-7), targets.nan_to_num(-7))
    assert task.targets([]).shape == (0, len(task.outputs))


@pytest.mark.parametrize("code", [-1, 1000])
def test_unknown_codes_are_refused(task, code):
    for method in (task.write, task.value, lambda c: task.targets([c])):
        with pytest.raises(InputError):
            method(code)


def test_description_makes_an_equal_task(case, task):
    codes = [task.parse(given) for given, _ in case.written]
    same = find_task(**json.loads(json.dumps(task.describe())))
    assert same.describe() == task.describe()
    assert type(same) is type(task)
    assert torch.equal(same.targets(codes).nan_to_num(-7), task.targets(codes).nan_to_num(-7))
    assert [same.parse(given) for given, _ in case.written] == codes


@pytest.mark.parametrize("labels", [0, 1, 2, 40])
def test_predictions_have_a_row_for_each_item_and_read_as_answers(case, task, labels):
    state = task.calibrate(draw_evidence(case, task, labels))
    items = draw_evidence(case, task, 7, seed=1)
    prediction = task.predict(items.mean, items.variance, state)
    assert len(prediction) == 7
    values, columns = prediction.values(), prediction.columns()
    assert len(values) == 7
    assert all(len(column) == 7 for column in columns.values())
    assert next(iter(columns)) == "prediction"
    fewer = prediction.columns(probabilities=False)
    assert fewer == {k: v for k, v in columns.items() if not k.startswith("probability:")}
    assert all(0 <= p <= 1 for p in columns.get("probability", []))
    assert [task.parse(v) for v in values] == [task.parse(v) for v in columns["prediction"]]
    assert None not in [task.parse(v) for v in values]
    errors = prediction.expected_errors()
    assert errors.shape == (7,)
    assert not bool(errors.isnan().any())
    assert bool((errors >= 0).all())


def test_no_items_have_an_empty_prediction(case, task):
    state = task.calibrate(draw_evidence(case, task, 5))
    empty = torch.zeros(0, len(task.outputs), dtype=torch.float64)
    prediction = task.predict(empty, torch.zeros(0, dtype=torch.float64), state)
    assert (len(prediction), prediction.values(), prediction.estimate_error()) == (0, [], 0.0)


def test_packed_state_predicts_the_same(case, task):
    state = task.calibrate(draw_evidence(case, task, 30))
    items = draw_evidence(case, task, 9, seed=1)
    again = TaskState.unpack(state.pack(), len(task.outputs))
    first, second = (task.predict(items.mean, items.variance, s) for s in (state, again))
    assert first.columns() == second.columns()


def test_certain_predictions_are_measured_as_perfect(case, task):
    items = draw_evidence(case, task, 200)
    sure = items._replace(mean=items.targets, variance=torch.full((200,), 1e-6), noise=1e-6)
    prediction = task.predict(sure.mean, sure.variance, task.calibrate(sure))
    measures = task.measure(prediction, find_codes(task, items.targets))
    assert set(measures) == set(task.measures)
    assert {task.main_measure, task.error_measure} <= set(measures)
    assert not task.measures[task.error_measure]
    for name in ("accuracy", "micro_f1", "macro_f1", "average_precision", "r2", "quadratic_kappa"):
        assert measures.get(name, 1.0) == pytest.approx(1.0), name
    for name in ("error", "hamming_loss", "rmse", "mae"):
        assert measures.get(name, 0.0) == pytest.approx(0.0), name


def test_estimated_error_is_near_the_measured_one(case, task):
    """If means and variances are right up to a scale, so is the estimate."""
    state = task.calibrate(draw_evidence(case, task, 400))
    items = draw_evidence(case, task, 4000, seed=1)
    prediction = task.predict(items.mean, items.variance, state)
    measured = task.measure(prediction, find_codes(task, items.targets))[task.error_measure]
    assert prediction.estimate_error() == pytest.approx(measured, rel=0.15)


def test_prior_mean_and_scale_are_finite_without_labels(task):
    nothing = torch.zeros(0, len(task.outputs), dtype=torch.float64)
    mean, scale = task.prior_mean(nothing), task.target_scale(nothing)
    assert mean.shape == scale.shape == (len(task.outputs),)
    assert bool(torch.isfinite(mean).all())
    assert bool((scale > 0).all() & torch.isfinite(scale).all())


def test_prior_mean_ignores_missing_targets(task):
    targets = task.prior_mean(torch.zeros(0, len(task.outputs), dtype=torch.float64)).repeat(3, 1)
    if task.name in ("classes", "rating"):
        pytest.skip("its answers are never partial")
    more = torch.cat([targets, torch.full_like(targets, math.nan)])
    assert torch.equal(task.prior_mean(more), task.prior_mean(targets))
    assert torch.equal(task.target_scale(more), task.target_scale(targets))


def test_refused_acquisition_functions_name_those_that_work(task):
    assert not set(task.acquisitions) & set(task.refused)
    for name in task.acquisitions:
        task.check_acquisition(name)
    for name in (*task.refused, "something"):
        with pytest.raises(InputError, match=f"{name} does not work for the task {task.name}.*var"):
            task.check_acquisition(name)
