"""Models fitted on all labels of a session."""

import pytest
import torch

import labelahead as la
from labelahead.data import load
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.outofcore import embed
from labelahead.server.fitting import (
    CurrentModel,
    build_exported_model,
    fit_labels,
    predict_pool,
    reject_large_pool,
)
from tests.support.large_pools import Inline, clouds, parquet_pool
from tests.support.web_sessions import labelled_page, page, photos


def test_fit_labels_equals_a_learner_on_the_same_labels(tmp_path):
    with labelled_page(tmp_path) as (_, session, source, _):
        made = fit_labels(session.service, session.schedule)
        predicted = predict_pool(session.service, session.schedule)
        assert made.labels == {i: i % 2 for i in range(10)}
        assert made.points.tolist() == list(range(20))
        assert bool(made.votes.all())
        data, _ = load(source, size=16)
        learner = la.Learner(la.exact(data.inputs, 2), data.inputs, "resolve")
        learner.teach(range(10), torch.arange(10) % 2)
        learner.train()
        outputs = made.learnt.outputs(torch.arange(20))
        assert torch.equal(outputs.argmax(1), learner.predict().argmax(1))
        assert predicted.positions.tolist() == list(range(20))
        assert predicted.classes == (0, 1)
        assert {p: c for p, (c, _) in predicted.pick_best().items()} == {
            i: i % 2 for i in range(20)
        }


def test_exported_model_predicts_as_predict_pool_does(tmp_path):
    with labelled_page(tmp_path) as (_, session, source, _):
        model = build_exported_model(session.service, session.schedule)
        predicted = predict_pool(session.service, session.schedule)
        found = model.predict(source).probabilities.double()
        assert torch.allclose(found, predicted.probabilities.double(), atol=1e-4)
        assert model.about["labels"] == {"light": 5, "dark": 5}


def test_current_model_is_unknown_before_the_first_snapshot(tmp_path):
    with labelled_page(tmp_path) as (_, session, _, _):
        assert session.service.page_model is None
        assert CurrentModel(session.service).predict_item(15) is None


def test_fit_labels_of_one_class_is_refused(tmp_path):
    source = photos(tmp_path / "set", 4)
    with page(source, tmp_path / "out", classes=["a", "b"]) as (_, session):
        for fit in (fit_labels, predict_pool, build_exported_model):
            with pytest.raises(InputError, match="0 labels of 0 classes exist; expected labels"):
                fit(session.service, session.schedule)


def test_reject_large_pool_refuses_stores_only(tmp_path):
    x, _ = clouds(20)
    parquet_pool(tmp_path / "pool", x)
    embed(tmp_path / "pool", tmp_path / "store", executor=Inline())
    with pytest.raises(InputError, match=r"is an out-of-core pool.*labelahead pool predict"):
        reject_large_pool(parse_campaign({"data": {"name": str(tmp_path / "store")}}))
    reject_large_pool(parse_campaign({"data": {"name": "digits"}}))
