"""What code asks about a model: the same questions of a trained network and of the exact learner."""

import pytest
import torch

from labelahead.data import from_arrays
from labelahead.inference.exact import ExactLearner, wrap_fitted_model
from labelahead.inference.network import NetworkLearner
from labelahead.learner.config import parse_campaign
from labelahead.learner.model_kind import get_model_kind
from labelahead.learner.preparation import prepare_campaign
from labelahead.models import EXACT, MODELS
from labelahead.models.training import Training
from tests.support.campaigns import blobs


@pytest.mark.parametrize("name", [EXACT, "mlp"])
def test_kind_agrees_with_fitted_model_and_learner(name):
    x, y = blobs(30, (8,))
    prepared = prepare_campaign(parse_campaign({"model": {"name": name}}), from_arrays(x, y))
    kind = prepared.kind
    learner = prepared.make_learner(3)
    assert isinstance(learner, ExactLearner if name == EXACT else NetworkLearner)
    model = kind.build_model(name, (8,), 3)
    assert wrap_fitted_model(model, x).needs_training == kind.needs_training
    assert [p.shape for p in model.state_dict().values()] == [
        p.shape for p in prepared.network(3, 0).state_dict().values()
    ]
    if name != EXACT:  # the weights are those of the seed
        for one, other in zip(
            kind.build_model(name, (8,), 3, seed=4).parameters(),
            learner.network(4).parameters(),
            strict=True,
        ):
            assert torch.equal(one, other)


def test_only_exact_learner_needs_no_training():
    assert [n for n in (EXACT, *MODELS) if not get_model_kind(n).needs_training] == [EXACT]
    assert get_model_kind("file.py:net").needs_training
    assert get_model_kind(EXACT).weighs_sources
    assert not get_model_kind("mlp").weighs_sources


def test_loss_of_exact_learner_is_squared_whatever_the_recipe():
    recipe = Training(loss="cross-entropy")
    assert get_model_kind(EXACT).get_loss(recipe) == "squared"
    assert get_model_kind("mlp").get_loss(recipe) == "cross-entropy"
    assert get_model_kind(EXACT).get_default_training(EXACT) == Training()
