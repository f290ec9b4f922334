"""Posterior and acquisition functions on a pretended device (tests/support/devices.py)."""

import pytest
import torch

from labelahead.acquisition import ACQUISITIONS, greedy, view
from labelahead.gp.leave_one_out import leave_one_out
from labelahead.gp.lookahead import lookahead
from labelahead.gp.posterior import prior
from tests.support.devices import to_cpu

LABELLED = [0, 5, 9]
CLASSES = [0, 1, 2]


def build(device):
    torch.manual_seed(0)
    outputs, features = torch.randn(14, 3), torch.randn(14, 20)
    outputs, features = outputs.to(device), features.to(device)
    return {
        "kernel": prior(outputs, features @ features.T, noise=1e-3),
        "features": prior(outputs, features=features, noise=1e-3),
    }


def evaluate(posterior):
    """Everything that is computed from a posterior: name -> tensor."""
    post = posterior.condition(torch.tensor(LABELLED), torch.tensor(CLASSES))
    post = post.condition([2], torch.eye(3)[[1]])
    look = view(post, [1, 3, 4, 6, 7], [8, 10, 11, 12])
    found = {name: score(look, torch.Generator()) for name, score in ACQUISITIONS.items()}
    found |= {f"greedy {name}": greedy(look, name, 2).scores for name in ("flip", "mlmoc")}
    found["mean"] = post.mean
    found["variance of all"] = post.variance()
    at = torch.tensor([1, 3]).to(post.mean.device)
    found["covariance"] = post.covariance_block(at, at)
    found["leave one out"] = leave_one_out(post)
    ahead = lookahead(post, torch.tensor([1, 3]), torch.eye(3)[[0, 1]])
    found["lookahead"] = torch.cat(list(ahead))
    return found


@pytest.mark.parametrize("kind", ["kernel", "features"])
@pytest.mark.parametrize("float64", [True, False], ids=["cuda-like", "mps-like"])
def test_posterior_and_acquisition_agree_with_the_cpu(kind, float64, open_device):
    want = evaluate(build("cpu")[kind])
    exits = () if float64 else ("devices.py:to_float64", "gp/posterior.py:prior")
    with open_device(float64=float64, allowed_exits=exits) as device:
        posterior = build(device.device)[kind]
        assert posterior.mean.device == (device.device if float64 else torch.device("cpu"))
        for name, got in evaluate(posterior).items():
            torch.testing.assert_close(to_cpu(got), want[name], rtol=1e-6, atol=1e-8, msg=name)
