"""The page model of a task."""

import pytest
import torch

from labelahead.server.label_state import LabelStateBuilder
from labelahead.server.task_page_model import build_page_model
from labelahead.tasks import NumberPrediction
from tests.server.test_task_snapshot import fit
from tests.support.task_sessions import CLASSES, TASKS, make_rows, true_answer


def build_state(name, task, answers):
    """Return a builder whose journal has these answers by one annotator."""
    import json

    from labelahead.server.answer_book import describe_settings

    builder = LabelStateBuilder()
    text = json.dumps(describe_settings(task))
    builder.add_event(builder.make_event("task", "", text=text))
    for class_name in CLASSES[name]:
        builder.add_event(builder.make_event("class", "", text=class_name))
    for position, value in answers.items():
        builder.add_event(builder.make_event("label", "anna", position, value=value))
    return builder


@pytest.mark.parametrize("name", TASKS)
def test_new_answer_updates_predictions_as_a_posterior_built_anew(tmp_path, name):
    _, fitted, task = fit(tmp_path, name)
    rows = make_rows(60)
    answers = {p: true_answer(name, rows[p]) for p in range(25)}
    builder = build_state(name, task, answers)
    model = build_page_model(fitted, builder.build())
    before = model.describe_prediction(40)
    builder.add_event(builder.make_event("label", "anna", 30, value=true_answer(name, rows[30])))
    state = builder.build()
    assert model.has_same_outputs(state)
    after, anew = model.with_state(state), build_page_model(fitted, state)
    mean, expected = after.pool_posterior.posterior.mean, anew.pool_posterior.posterior.mean
    assert torch.allclose(mean, expected, atol=1e-3)  # a kernel in float32
    assert after.describe_prediction(40)["outputs"] != [] != before["outputs"]
    changed = after.count_changes_from(model)
    assert (changed is None) == (name == "number")
    assert len(after.count_predicted()) == len(CLASSES[name])


def test_explanation_names_the_most_similar_labels(tmp_path):
    _, fitted, task = fit(tmp_path, "number")
    rows = make_rows(60)
    answers = {p: true_answer("number", rows[p]) for p in range(25)}
    model = build_page_model(fitted, build_state("number", task, answers).build())
    reasons = model.explain(40)
    weights = [w for _, _, w in reasons["similar"]]
    assert weights == sorted(weights, reverse=True)
    units = fitted.units
    index = {p: i for i, p in enumerate(fitted.points.tolist())}
    cosines = units[[index[p] for p in range(25)]] @ units[index[40]]
    assert reasons["similar"][0][0] == int(cosines.argmax())
    assert "variances decreases" in reasons["effect"]
    assert model.explain(3)["effect"] is None  # it has a label
    assert isinstance(model.prediction, NumberPrediction)
