"""Snapshots of tasks: fits, files, and classes that are added."""

import pytest
import torch

import labelahead as la
from labelahead.learner.config import parse_campaign
from labelahead.learner.preparation import prepare_campaign
from labelahead.server.snapshot import TrainingRequest
from labelahead.server.snapshot_builder import build_snapshot
from labelahead.server.snapshot_files import load_snapshot, save_snapshot
from labelahead.server.task_snapshot import TaskSnapshot
from tests.support.task_sessions import CLASSES, TASKS, make_rows, true_answer, write_table

LABELS = 25


def fit(folder, name, labels=LABELS):
    """Return the round-0 snapshot of a table, and one that is fitted on its first items."""
    rows = make_rows(60)
    source = write_table(folder / "items.csv", rows)
    data = {"name": str(source), "task": name, "classes": CLASSES[name], "test_fraction": 0.0}
    prepared = prepare_campaign(parse_campaign({"data": data, "threads": 1}))
    start = build_snapshot(prepared, TrainingRequest(0, (), 2))
    task = prepared.task
    codes = task.parse_all(true_answer(name, row) for row in rows[:labels])
    request = TrainingRequest(1, tuple(enumerate(codes)), 0, task=task)
    return start, start.refresh(request), task


@pytest.mark.parametrize("name", TASKS)
def test_posterior_of_a_fit_predicts_as_a_learner(tmp_path, name):
    start, fitted, task = fit(tmp_path, name)
    assert isinstance(start, TaskSnapshot)
    assert start.state is None
    post = fitted.build_posterior(fitted.labels).posterior
    found = task.predict(post.mean, post.variance(), fitted.task_state)
    x = prepare_rows(tmp_path, name)
    own = la.tasks.find_task(**task.describe())
    learner = la.Learner(la.exact(x, task=own), x)
    learner.teach(list(range(LABELS)), [task.write(c) for c in fitted.labels.values()])
    expected = learner.predict(fitted.points.tolist()).columns()
    for column, values in found.columns().items():
        if isinstance(values[0], float):
            # The posterior of a page has a kernel in float32.
            assert values == pytest.approx(expected[column], rel=2e-3, abs=1e-4)
        else:
            assert values == expected[column]
    assert fitted.fit_facts.forecast.error.rate > 0


def prepare_rows(folder, name):
    data = {"name": str(folder / "items.csv"), "task": name, "classes": CLASSES[name]}
    return prepare_campaign(parse_campaign({"data": data | {"test_fraction": 0.0}})).rows


@pytest.mark.parametrize("name", TASKS)
def test_snapshot_survives_saving(tmp_path, name):
    _, fitted, task = fit(tmp_path, name)
    save_snapshot(fitted, tmp_path / "s.pt")
    loaded = load_snapshot(tmp_path / "s.pt")
    assert loaded.task.describe() == task.describe()
    assert (loaded.labels, loaded.weights, loaded.noise) == (
        fitted.labels,
        fitted.weights,
        fitted.noise,
    )
    assert torch.equal(loaded.state, fitted.state)
    assert loaded.fit_facts == fitted.fit_facts
    before = fitted.build_posterior(fitted.labels).posterior.mean
    assert torch.equal(loaded.build_posterior(loaded.labels).posterior.mean, before)


def test_class_that_is_added_needs_a_new_fit(tmp_path):
    _, fitted, task = fit(tmp_path, "multilabel")
    wider = la.tasks.find_task(**task.describe())
    wider.add_output("fox")
    current = fitted.with_task(wider, fitted.labels)
    assert current.state is None  # no prediction before the fit
    assert current.offset.shape == (3,)
    request = TrainingRequest(2, tuple(fitted.labels.items()), 0, task=wider)
    again = current.refresh(request)
    assert again.task_state is not None
    # What is known of the other classes does not change.
    old = fitted.build_posterior(fitted.labels).posterior.mean
    new = again.build_posterior(fitted.labels).posterior.mean
    assert torch.allclose(new[:, :2], old, atol=1e-3)
