"""Condensed labels against the same with matrices of all points written out in float64, and a refit for each label."""

import pytest
import torch
from torch.nn.functional import normalize, one_hot

from labelahead.errors import InputError
from labelahead.learners.exact import mixed, mixture_kernel
from labelahead.linear import condensed as module
from labelahead.linear.calibration import left_out
from labelahead.linear.condensed import condensed, evenly
from labelahead.linear.posterior import prior

N, L, K, C, SIGMA, WEIGHTS = 90, 50, 20, 3, 0.05, (0.25, 0.5, 0.25)
LABELS = torch.randint(0, C, (L,), generator=torch.Generator().manual_seed(1))
AT = torch.randperm(N, generator=torch.Generator().manual_seed(2))[:L]
REST = torch.tensor([p for p in range(N) if p not in AT.tolist()])


@pytest.fixture(autouse=True)
def _precisely(monkeypatch):
    monkeypatch.setattr(module, "TOLERANCE", 1e-12)
    monkeypatch.setattr(module, "NUGGET", 1e-10)
    monkeypatch.setattr(module, "BLOCK", 16)  # several of them


def units(dtype=torch.float64):
    return normalize(torch.randn(N, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).to(dtype)


def begun(dtype=torch.float64):
    return prior(torch.full((N, C), 1 / C), mixture_kernel(units(dtype), WEIGHTS), noise=SIGMA)


def theta():
    x = units()
    return mixed(x @ x.T, WEIGHTS).fill_diagonal_(1.0)


class Twin:
    """Θ̂ = Q + diag(Θ − Q) at points without a label, Q + missed·I at those with one; everything by solving."""

    def __init__(self, targets):
        full, z = theta(), AT[evenly(L, K)]
        self.q = full[:, z] @ torch.linalg.solve(full[z][:, z], full[z])
        self.noise = SIGMA + 1 - float(self.q.diagonal()[AT].mean())
        self.targets = targets

    def system(self, at=AT):
        return self.q[at][:, at] + self.noise * torch.eye(len(at), dtype=torch.float64)

    def covariance(self):
        spanned = self.q - self.q[:, AT] @ torch.linalg.solve(self.system(), self.q[AT])
        return spanned + torch.diag(1 - self.q.diagonal())

    def without(self, i):
        """Mean and variance at label i, refitted without it."""
        others = AT[torch.arange(L) != i]
        weights = torch.linalg.solve(self.system(others), self.q[others, AT[i]])
        mean = 1 / C + weights @ (self.targets[torch.arange(L) != i] - 1 / C)
        spanned = self.q[AT[i], AT[i]] - self.q[AT[i], others] @ weights
        return mean, spanned + self.noise - SIGMA


def same(a, b, tolerance=1e-6):
    assert torch.allclose(a.double(), b.double(), atol=tolerance, rtol=tolerance), float((a - b).abs().max())


def test_predictions_are_those_of_all_labels_and_the_whole_kernel():
    exact = begun().condition(AT, LABELS)
    same(condensed(begun(), AT, LABELS, K).mean, exact.mean)


def test_predictions_from_float32_units_stay_near(monkeypatch):
    monkeypatch.undo()  # with the tolerances that count
    exact = begun().condition(AT, LABELS)
    same(condensed(begun(torch.float32), AT, LABELS, K).mean, exact.mean, 2e-2)


def test_the_covariance_is_that_of_what_is_spanned_and_each_points_own():
    post, twin = condensed(begun(), AT, LABELS, K), Twin(one_hot(LABELS).double())
    same(post.block(REST, REST), twin.covariance()[REST][:, REST])
    same(post.variance()[REST], twin.covariance().diagonal()[REST])


def test_where_all_labels_span_variances_and_amplitude_are_exact():
    post, exact = condensed(begun(), AT, LABELS, L), begun().condition(AT, LABELS)
    same(post.variance()[REST], exact.variance()[REST])
    assert post.amplitude() == pytest.approx(exact.amplitude(), rel=1e-5)
    for a, b in zip(left_out(post), left_out(exact), strict=True):
        same(a, b, 1e-5)


def test_what_the_others_say_of_each_is_a_refit_without_it():
    targets = one_hot(LABELS).double()
    mean, variance = left_out(condensed(begun(), AT, LABELS, K))
    twin = Twin(targets)
    for i in range(0, L, 7):
        refit = twin.without(i)
        same(mean[i], refit[0])
        same(variance[i], refit[1])


def later(post):
    return post.condition(REST[[3, 8]], torch.tensor([0, 2]))


def test_later_labels_are_conditioned_on_and_taken_back():
    post, at = condensed(begun(), AT, LABELS, K), REST[[3, 8]]
    after, k = later(post), post.block(torch.arange(N), torch.arange(N))
    gain = torch.linalg.solve(k[at][:, at] + SIGMA * torch.eye(2), one_hot(torch.tensor([0, 2]), C) - post.mean[at])
    others = torch.tensor([p for p in REST.tolist() if p not in at.tolist()])
    same(after.mean[others], post.mean[others] + k[others][:, at] @ gain)
    back = after.without_last(2)
    same(back.mean, post.mean)
    same(back.variance(), post.variance())


def test_a_correction_is_the_same_as_other_targets_from_the_beginning():
    """By the spanned kernel: what a change of target moves is its column; the mean itself is of the whole kernel."""
    post, other = later(condensed(begun(), AT, LABELS, K)), LABELS.clone()
    other[4] = (LABELS[4] + 1) % C
    targets = one_hot(other, C).double()
    fixed = post.corrected(torch.tensor([4]), targets[[4]])
    twin, change = Twin(targets), targets[4] - one_hot(LABELS[4], C)
    k = twin.covariance() - torch.diag(1 - twin.q.diagonal())
    at, noise = REST[[3, 8]], SIGMA + 1 - twin.q.diagonal()[REST[[3, 8]]]
    k = k - k[:, at] @ torch.linalg.solve(k[at][:, at] + torch.diag(noise), k[at])
    same(fixed.mean, post.mean + k[:, AT[4], None] / twin.noise * change)
    assert torch.equal(fixed.told()[1][:L], targets)


def test_a_guess_shortens_the_way_and_changes_nothing():
    post = condensed(begun(), AT, LABELS, K)
    guess = torch.zeros(N, C, dtype=torch.float64).index_copy(0, AT, post.settled.weights)
    same(condensed(begun(), AT, LABELS, K, guess).mean, post.mean, 1e-9)
    same(condensed(begun(), AT, LABELS, K, 100 * guess).mean, post.mean, 1e-9)  # one that misleads is left


def test_copies_among_the_labelled_are_no_trouble():
    x = units()
    x[AT[1]] = x[AT[0]]
    start = prior(torch.full((N, C), 1 / C), mixture_kernel(x, WEIGHTS), noise=SIGMA)
    same(condensed(start, AT, LABELS, L).mean, start.condition(AT, LABELS).mean, 1e-5)


def test_what_cannot_be_condensed_is_refused():
    with pytest.raises(InputError, match="without any"):
        condensed(begun().condition([0], torch.tensor([1])), AT, LABELS, K)
    after = later(condensed(begun(), AT, LABELS, K))
    with pytest.raises(InputError, match="condensed together"):
        left_out(after)
