import torch

from labelahead.campaign.advice import loo_estimate, stop_advice
from labelahead.campaign.run import run
from labelahead.learners.network import NetworkLearner
from labelahead.models import build
from labelahead.tangent import kernel
from labelahead.train import Training
from tests.support.campaigns import blobs, data


def advice(gains, errors=()):
    return stop_advice(gains, errors)


def test_silent_while_there_is_something_to_gain():
    assert advice([]) is None
    assert advice([10, 8, 6, 5, 4]) is None
    assert advice([None] * 9) is None


def test_speaks_when_the_gain_has_gone_twice():
    assert "you may stop" in advice([10, 8, 0.5, 0.4])
    assert advice([10, 8, 5, 0.4]) is None  # once may be chance
    assert advice([10, 0.5, 0.4]) is None  # too early to tell
    assert advice([0.0, 0.0, 0.0, 0.0, 0.0]) is None


def test_speaks_when_leave_one_out_is_flat():
    falling = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
    assert advice([5.0] * 7, falling) is None
    flat = [0.9, 0.7, 0.5, 0.4, 0.4, 0.41, 0.4]
    assert "not fallen" in advice([5.0] * 7, flat)


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
