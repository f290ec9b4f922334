"""Closed-form influence against refits from scratch."""

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.attribution import compute_influence, fit_influence
from labelahead.errors import InputError
from tests.support.reference_tangent import jacobian

pytestmark = pytest.mark.usefixtures("float64")
N, M, C = 9, 4, 3


def build(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, C)).eval()
    return model, torch.randn(N, 5), torch.eye(C)[torch.arange(N) % C], torch.randn(M, 5)


def refit(model, x, targets, x2, kept, sigma, kind, start):
    """Ridge regression of the linearised network on the training items `kept`, by its Jacobian."""
    if not kept:
        return torch.zeros(M, C) if start == "zero" else model(x2).detach()
    J, J2 = jacobian(model, x[kept]), jacobian(model, x2)
    f, f2 = model(x[kept]).detach(), model(x2).detach()
    if start == "zero":
        f, f2 = torch.zeros_like(f), torch.zeros_like(f2)
    P = sum(p.numel() for p in model.parameters())
    if kind == "full":
        A, A2 = J.reshape(-1, P), J2.reshape(-1, P)
        w = torch.linalg.solve(
            A.T @ A + sigma * torch.eye(P), A.T @ (targets[kept] - f).reshape(-1)
        )
        return f2 + (A2 @ w).reshape(-1, C)
    A, A2 = J.sum(1) / C**0.5, J2.sum(1) / C**0.5
    w = torch.linalg.solve(A.T @ A + sigma * torch.eye(P), A.T @ (targets[kept] - f))
    return f2 + A2 @ w


@pytest.mark.parametrize("start", ["outputs", "zero"])
@pytest.mark.parametrize("kind", ["pseudo", "full"])
def test_leave_out_equals_refit_without_the_items(kind, start):
    for seed in range(3):
        model, x, targets, x2 = build(seed)
        noise = 0.05
        found = compute_influence(model, x, targets, x2, noise=noise, kind=kind, start=start)
        sigma = noise * float(la.kernel(model, x, kind=kind).diagonal().mean())

        def fit(kept, model=model, x=x, targets=targets, x2=x2, sigma=sigma):
            return refit(model, x, targets, x2, kept, sigma, kind, start)

        everything = list(range(N))
        whole = fit(everything)
        torch.testing.assert_close(found.predictions, whole, rtol=1e-7, atol=1e-9)
        change = found.leave_one_out()
        for i in everything:
            want = fit([j for j in everything if j != i]) - whole
            torch.testing.assert_close(change[:, i], want, rtol=1e-7, atol=1e-9)
        for group in ([0, 4, 7], torch.tensor([1, 2]), everything):
            kept = [j for j in everything if j not in list(map(int, group))]
            want = fit(kept) - whole
            torch.testing.assert_close(found.leave_group_out(group), want, rtol=1e-7, atol=1e-9)
        assert not found.leave_group_out([]).any()


def test_items_may_be_training_items():
    model, x, targets, _ = build()
    K = la.kernel(model, x)
    found = fit_influence(K, K, targets, noise=0.1)
    sigma = 0.1 * float(K.diagonal().mean())
    for i in range(N):
        kept = [j for j in range(N) if j != i]
        alpha = torch.linalg.solve(K[kept][:, kept] + sigma * torch.eye(N - 1), targets[kept])
        left_out = found.predictions[i] + found.leave_one_out()[i, i]
        torch.testing.assert_close(left_out, K[i, kept] @ alpha, rtol=1e-8, atol=1e-10)


def test_scores_say_how_much_an_item_raises_an_output():
    model, x, targets, x2 = build()
    found = compute_influence(model, x, targets, x2, noise=0.1)
    change = found.leave_one_out()
    predicted = found.predictions.argmax(1)
    scores = found.scores()
    for t in range(M):
        assert torch.equal(scores[t], -change[t, :, predicted[t]])
        assert found.most_influential(t, 2).tolist() == scores[t].topk(2).indices.tolist()
    other = torch.full((M,), 2)
    assert torch.equal(found.scores(other), -change[:, :, 2])
    assert int(found.most_influential(1, 1, output=2)) == int((-change[1, :, 2]).argmax())


def test_invalid_arguments_raise():
    model, x, targets, x2 = build()
    found = compute_influence(model, x, targets, x2)
    K = la.kernel(model, x)
    for call, match in (
        (lambda: compute_influence(model, x, targets[:3], x2), "same number"),
        (lambda: compute_influence(model, x, targets, x2, start="now"), "start is 'now'"),
        (lambda: compute_influence(model, x, targets, x2, noise=0), "noise is 0"),
        (lambda: found.leave_group_out([0, 0]), "different training items"),
        (lambda: found.leave_group_out([N]), "different training items"),
        (lambda: found.scores(torch.zeros(2, dtype=torch.long)), "one for each"),
        (lambda: fit_influence(K[:, :3], K, targets), "kernel of the training items"),
        (lambda: fit_influence(K, K[:, :3], targets), "cross kernel"),
    ):
        with pytest.raises(InputError, match=match):
            call()
