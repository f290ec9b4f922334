import torch

from campaigns import blobs
from labelahead.advice import loo_estimate, stop_advice
from labelahead.models import build
from labelahead.store import Round
from labelahead.tangent import kernel


def made(gains, loos=None):
    loos = loos or [None] * len(gains)
    return [
        Round(i, 10 * i, None, 1.0, 0.0, 1, 10, gain=g, loo_error=q)
        for i, (g, q) in enumerate(zip(gains, loos, strict=True))
    ]


def test_silent_while_there_is_something_to_gain():
    assert stop_advice([]) is None
    assert stop_advice(made([10, 8, 6, 5, 4])) is None
    assert stop_advice(made([None] * 9)) is None


def test_speaks_when_the_gain_has_gone_twice():
    assert "you may stop" in stop_advice(made([10, 8, 0.5, 0.4]))
    assert stop_advice(made([10, 8, 5, 0.4])) is None  # once may be chance
    assert stop_advice(made([10, 0.5, 0.4])) is None  # too early to tell
    assert stop_advice(made([0.0, 0.0, 0.0, 0.0, 0.0])) is None


def test_speaks_when_leave_one_out_is_flat():
    falling = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
    assert stop_advice(made([5.0] * 7, falling)) is None
    flat = [0.9, 0.7, 0.5, 0.4, 0.4, 0.41, 0.4]
    assert "not fallen" in stop_advice(made([5.0] * 7, flat))


def test_leave_one_out_is_what_refitting_without_each_item_gives():
    x, y = blobs(14, (6,))
    model = build("mlp", (6,), 3, width=16).double().eval()
    x = x.double()
    found = loo_estimate(model, x, y, 5)
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
    assert loo_estimate(model, x[:1], y[:1], 1) is None
