"""Trained networks: their probabilities, kernels and leave-one-out predictions."""

import copy

import pytest
import torch

from labelahead.batching import Samples
from labelahead.errors import InputError
from labelahead.inference.network import (
    FittedModel,
    NetworkLearner,
    leave_one_out_predictions,
    outputs_to_probabilities,
)
from labelahead.inference.sources import Annotations
from labelahead.models.training import Training, predict, train
from labelahead.ntk import kernel
from tests.support.campaigns import blobs, own


def make_fitted(loss="squared"):
    x, _ = blobs(12)
    return FittedModel(own().eval(), x, loss)


def test_leave_one_out_predictions_match_refitting_without_each_label():
    x, y = blobs(12)
    model, x, y = own().double().eval(), x[:8].double(), y[:8]
    found, residuals = leave_one_out_predictions(model, x, y, noise=0.1)
    K, targets = kernel(model, x).double(), torch.eye(3, dtype=torch.float64)[y]
    noise = 0.1 * K.diagonal().mean()
    for i in range(8):
        others = [j for j in range(8) if j != i]
        system = K[others][:, others] + noise * torch.eye(7, dtype=torch.float64)
        want = K[i, others] @ torch.linalg.solve(system, targets[others])
        assert torch.allclose(found[i], want, atol=1e-9)
    assert torch.allclose(residuals, found - targets, atol=1e-9)


@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_predict_proba_is_softmax_or_nearest_point_of_the_simplex(loss):
    fitted, at = make_fitted(loss), torch.tensor([3, 0, 7])
    outputs = fitted.model(fitted.inputs[at]).detach().double()
    p = fitted.predict_proba(at)
    assert p.dtype == torch.float64
    assert torch.allclose(p.sum(1), torch.ones(3, dtype=torch.float64))
    if loss == "cross-entropy":
        assert torch.allclose(p, torch.softmax(outputs, 1))
        assert torch.allclose(fitted.start(outputs, torch.arange(len(outputs))), p)
        return
    assert fitted.start(outputs, torch.arange(len(outputs))) is outputs
    grid = torch.tensor([(i, j, 60 - i - j) for i in range(61) for j in range(61 - i)]) / 60
    nearest = torch.cdist(outputs, grid.double()).amin(1)
    assert bool(((p - outputs).norm(dim=1) <= nearest + 1e-9).all())


def test_outputs_to_probabilities_leaves_out_outputs_without_a_class():
    p = outputs_to_probabilities(torch.tensor([[0.25, 0.75], [0.5, 0.5]]), "squared", 1)
    assert p.tolist() == [[1.0], [1.0]]


def test_kernel_arguments_are_the_kernel_or_features_of_a_sketch():
    fitted, at = make_fitted(), torch.tensor([3, 0, 7, 9])
    K = kernel(fitted.model, fitted.inputs[at])
    assert torch.allclose(fitted.kernel_arguments(at, "pseudo")["kernel"], K)
    psi = fitted.kernel_arguments(at, "pseudo", 4096)["features"]
    assert psi.shape == (4, 4096)
    assert float((psi @ psi.T - K).norm() / K.norm()) < 0.2


def test_accuracy_counts_right_predictions():
    fitted, at = make_fitted(), torch.arange(12)
    right = fitted.outputs(at).argmax(1)
    wrong = (right + 1) % 3
    assert fitted.accuracy(at, right) == 1.0
    assert fitted.accuracy(at, torch.cat([right[:9], wrong[9:]])) == 0.75
    assert fitted.accuracy(at[:0], right[:0]) is None


def test_rows_of_inputs_that_are_not_one_tensor_raise():
    x, _ = blobs(6)
    at = torch.tensor([1, 4])
    assert torch.equal(FittedModel(own(), x).rows(at), x[at])
    with pytest.raises(InputError, match="not one tensor; expected another strategy"):
        FittedModel(own(), Samples({"x": x})).rows(at)


def test_network_learner_fits_as_train_does():
    x, y = blobs(12)
    model, training = own(), Training(steps=5)
    learner = NetworkLearner(x, 3, lambda seed: copy.deepcopy(model), training)
    at = torch.tensor([5, 2, 9, 0])
    fitted = learner.fit(at, y[at], seed=7)
    plain = copy.deepcopy(model)
    train(plain, x[at], y[at], 3, training, seed=7)
    assert torch.equal(fitted.outputs(torch.arange(12)), predict(plain.eval(), x))
    untrained = learner.fit(at[:0], y[:0], seed=7)
    assert untrained.trained is None
    assert torch.equal(untrained.outputs(at), predict(model.eval(), x[at]))


def test_network_learner_neither_weighs_sources_nor_estimates_its_accuracy():
    x, y = blobs(12)
    learner = NetworkLearner(x, 3, lambda seed: own(), Training(steps=1))
    rows = [(0, 1, "anna"), (0, 2, "ben")]
    assert learner.with_annotations(Annotations.from_rows(rows)) is learner
    assert learner.source_accuracy() == {}
    assert learner.estimate_accuracy(torch.arange(12), y) is None
    assert learner.forecast_error(torch.arange(6), y[:6], torch.arange(6, 12)) is None
