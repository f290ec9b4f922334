import pytest
import torch

from labelahead.campaign.advice import loo_estimate, stop_advice
from labelahead.campaign.run import run
from labelahead.learners.network import NetworkLearner
from labelahead.models import build
from labelahead.tangent import kernel
from labelahead.train import Training
from tests.support.campaigns import blobs, data


@pytest.mark.parametrize(
    ("labels", "error", "fall"),
    [(49, 0.02, 0.001), (80, 0.02, 0.006), (80, 0.2, 0.001), (80, None, 0.001), (80, 0.02, None)],
)
def test_silent_early_while_labels_pay_and_while_predictions_are_poor(labels, error, fall):
    assert stop_advice(labels, error, 0.01, 0.05, fall) is None


def test_speaks_in_points_when_little_is_left_to_gain():
    said = stop_advice(80, 0.021, 0.012, 0.047, 0.0012)
    assert "2.1% of the predictions" in said
    assert "1.2% to 4.7%" in said
    assert "the next 20 labels are expected to bring 0.1 points" in said


def test_leave_one_out_is_what_refitting_without_each_item_gives():
    x, y = blobs(14, (6,))
    model = build("mlp", (6,), 3, width=16).double().eval()
    x = x.double()
    learner = NetworkLearner(x, 3, lambda seed: model, Training())
    others, residual = learner.others_say(torch.arange(14), y, seed=0)
    found = loo_estimate(others, residual, y, 5)
    K = kernel(model, x)
    noise = 1e-3 * K.diagonal().mean()
    targets = torch.nn.functional.one_hot(y, 3).double()
    residuals = []
    for i in range(5):
        rest = [j for j in range(14) if j != i]
        system = K[rest][:, rest] + noise * torch.eye(13, dtype=torch.float64)
        residuals.append(K[i, rest] @ torch.linalg.solve(system, targets[rest]) - targets[i])
    residuals = torch.stack(residuals)
    right = ((residuals + targets[:5]).argmax(1) == y[:5]).double().mean()
    assert found.accuracy == float(right)
    assert abs(found.error - float(residuals.square().sum(1).mean())) < 1e-9


def test_one_label_says_nothing_of_itself():
    tables = {"model": {"name": "mlp", "width": 8}, "training": {"steps": 5}, "threads": 1}
    budget = {"initial": 1, "labels": 3, "retrain_every": 1}
    rounds = run(tables | {"budget": budget}, data=data()).rounds
    # the last round asks nothing, so it is not judged
    assert [(r.labels, r.loo is None) for r in rounds] == [(1, True), (2, False), (3, True)]
