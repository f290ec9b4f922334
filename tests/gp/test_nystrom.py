"""The approximate posterior against explicit float64 matrices and refits."""

from functools import partial

import pytest
import torch
from torch.nn.functional import normalize, one_hot

from labelahead.errors import InputError
from labelahead.gp.calibration import predict_leave_one_out
from labelahead.gp.nystrom import NystromOptions, approximate_posterior, evenly_spaced
from labelahead.gp.posterior import prior
from labelahead.inference.mixture import mix_kernels, mixture_kernel

N, L, K, C, SIGMA, WEIGHTS, PROBES = 90, 50, 20, 3, 0.05, (0.25, 0.5, 0.25), 6
LABELS = torch.randint(0, C, (L,), generator=torch.Generator().manual_seed(1))
AT = torch.randperm(N, generator=torch.Generator().manual_seed(2))[:L]
REST = torch.tensor([p for p in range(N) if p not in AT.tolist()])


# Several blocks, and solves without error.
PRECISE = NystromOptions(
    inducing_jitter=1e-10, cg_relative_tolerance=1e-12, probes_per_group=PROBES, points_per_block=16
)
approximate = partial(approximate_posterior, options=PRECISE)


def units(dtype=torch.float64):
    return normalize(
        torch.randn(N, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ).to(dtype)


def begun(dtype=torch.float64):
    return prior(torch.full((N, C), 1 / C), mixture_kernel(units(dtype), WEIGHTS), noise=SIGMA)


def theta():
    x = units()
    return mix_kernels(x @ x.T, WEIGHTS).fill_diagonal_(1.0)


class Twin:
    """Θ̂ = Q + diag(own), own = κ·diag(Θ − Q) at points without a label, noise at those with one.

    All by inverses.
    """

    def __init__(self, targets, sigma=None):
        # With a noise per label, leave-one-out rescales the variance without it.
        self.fixed = 0.0 if sigma is None else sigma
        self.sigma = torch.full((L,), SIGMA).double() if sigma is None else sigma
        full, z = theta(), AT[evenly_spaced(L, K)]
        self.q = full[:, z] @ torch.linalg.solve(full[z][:, z], full[z])
        self.missed = 1 - self.q.diagonal()
        self.noise = self.sigma + float(self.missed[AT].mean())
        self.targets = targets
        self.precision = torch.linalg.inv(full[AT][:, AT] + torch.diag(self.sigma))
        system = self.q[AT][:, AT] + torch.diag(self.noise)
        self.spanned = self.q - self.q[:, AT] @ torch.linalg.solve(system, self.q[AT])
        probes = REST.sort().values[evenly_spaced(len(REST), PROBES)]
        near = full[probes][:, AT]
        true = 1 - ((near @ self.precision) * near).sum(1)
        self.own = self.missed * float(
            (true - self.spanned.diagonal()[probes]).sum() / self.missed[probes].sum()
        )

    def covariance(self):
        return self.spanned + torch.diag(self.own)

    def others(self):
        """Return leave-one-out predictions and variances.

        Α by the whole kernel, its divisor by each one's own.
        """
        own = torch.diag(self.missed[AT] + self.sigma)
        left, true = (
            1 / torch.linalg.inv(self.q[AT][:, AT] + own).diagonal(),
            1 / self.precision.diagonal(),
        )
        inside = evenly_spaced(L, K)
        for places in (inside, torch.tensor([i for i in range(L) if i not in inside.tolist()])):
            some = places[evenly_spaced(len(places), PROBES)]
            ratio = (true - self.fixed)[some].mean() / (left - self.fixed)[some].mean()
            left[places] = ((left - self.fixed) * ratio + self.fixed)[places]
        alpha = self.precision @ (self.targets - 1 / C)
        return self.targets - left[:, None] * alpha, left - self.sigma


def same(a, b, tolerance=1e-6):
    assert torch.allclose(a.double(), b.double(), atol=tolerance, rtol=tolerance), float(
        (a - b).abs().max()
    )


def test_approximate_posterior_mean_equals_exact_mean():
    exact = begun().condition(AT, LABELS)
    same(approximate(begun(), AT, LABELS, K).mean, exact.mean)


def test_approximate_posterior_of_float32_stays_near_exact():
    exact = begun().condition(AT, LABELS)
    same(approximate_posterior(begun(torch.float32), AT, LABELS, K).mean, exact.mean, 2e-2)


def test_approximate_posterior_covariance_equals_nystrom_formula():
    post, twin = approximate(begun(), AT, LABELS, K), Twin(one_hot(LABELS).double())
    same(post.covariance_block(REST, REST), twin.covariance()[REST][:, REST])
    same(post.variance()[REST], twin.covariance().diagonal()[REST])


def test_approximate_posterior_with_all_inducing_points_is_exact():
    post, exact = approximate(begun(), AT, LABELS, L), begun().condition(AT, LABELS)
    same(post.variance()[REST], exact.variance()[REST])
    assert post.amplitude() == pytest.approx(exact.amplitude(), rel=1e-5)
    for a, b in zip(predict_leave_one_out(post), predict_leave_one_out(exact), strict=True):
        same(a, b, 1e-5)


def test_leave_one_out_of_approximate_posterior_equals_formula():
    mean, variance = predict_leave_one_out(approximate(begun(), AT, LABELS, K))
    others, left = Twin(one_hot(LABELS).double()).others()
    same(mean, others)
    same(variance, left)


NOISES = 10.0 ** torch.linspace(-2, 0.5, L, dtype=torch.float64)


def test_approximate_posterior_with_noise_per_label_equals_formulas():
    post = approximate(begun(), AT, LABELS, K, noise=NOISES)
    same(post.mean, begun().condition(AT, LABELS, NOISES).mean)
    twin = Twin(one_hot(LABELS).double(), NOISES)
    same(post.covariance_block(REST, REST), twin.covariance()[REST][:, REST])
    for ours, theirs in zip(predict_leave_one_out(post), twin.others(), strict=True):
        same(ours, theirs)
    same(post.noise_of_labels(), twin.noise)
    other = one_hot((LABELS[[4, 40]] + 1) % C, C).double()
    fixed = post.with_targets(torch.tensor([4, 40]), other)
    change = (other - one_hot(LABELS[[4, 40]], C)) / twin.noise[[4, 40], None]
    same(fixed.mean, post.mean + twin.spanned[:, AT[[4, 40]]] @ change)


def test_approximate_posterior_with_noise_of_prior_changes_no_bit():
    post, plain = (approximate(begun(), AT, LABELS, K, noise=n) for n in (SIGMA, None))
    assert torch.equal(post.mean, plain.mean)
    assert torch.equal(post.variance(), plain.variance())


def test_later_label_of_another_source_is_conditioned_on_and_removed():
    post, at = approximate(begun(), AT, LABELS, K), REST[[3]]
    after, k = post.condition(at, torch.tensor([1]), 0.8), post.covariance_columns(at)[:, 0]
    gain = (one_hot(torch.tensor(1), C) - post.mean[at[0]]) / (k[at[0]] + 0.8)
    others = REST[at[0] != REST]
    same(after.mean[others], post.mean[others] + k[others, None] * gain)
    same(after.without_last_labels(1).mean, post.mean)


def test_leave_one_out_of_approximate_posterior_is_near_refits():
    """By the whole kernel; the features' own regression misses it twice as far."""
    mean, _ = predict_leave_one_out(approximate(begun(), AT, LABELS, K))
    full, targets, system = (
        theta(),
        one_hot(LABELS).double(),
        SIGMA * torch.eye(L - 1, dtype=torch.float64),
    )
    twin = Twin(targets)
    away, before = [], []
    for i in range(L):
        rest, keep = AT[torch.arange(L) != i], targets[torch.arange(L) != i] - 1 / C
        refit = 1 / C + full[AT[i], rest] @ torch.linalg.solve(full[rest][:, rest] + system, keep)
        average = float(twin.noise[0]) * torch.eye(L - 1, dtype=torch.float64)
        by_features = 1 / C + twin.q[AT[i], rest] @ torch.linalg.solve(
            twin.q[rest][:, rest] + average, keep
        )
        away.append((mean[i] - refit).square().mean())
        before.append((by_features - refit).square().mean())
    away, before = (float(torch.stack(x).mean().sqrt()) for x in (away, before))
    assert away < 0.6 * before


def test_approximate_posterior_with_unequal_outputs_raises():
    start = prior(
        torch.rand(N, C, generator=torch.Generator().manual_seed(3)),
        mixture_kernel(units(), WEIGHTS),
        noise=SIGMA,
    )
    with pytest.raises(InputError, match="outputs differ"):
        approximate(start, AT, LABELS, K)


def test_approximate_posterior_without_unlabelled_points_equals_exact():
    every, labels = (
        torch.arange(N),
        torch.randint(0, C, (N,), generator=torch.Generator().manual_seed(4)),
    )
    same(approximate(begun(), every, labels, K).mean, begun().condition(every, labels).mean)


def later(post):
    return post.condition(REST[[3, 8]], torch.tensor([0, 2]))


def test_later_labels_are_conditioned_on_and_removed():
    post, at = approximate(begun(), AT, LABELS, K), REST[[3, 8]]
    after, k = later(post), post.covariance_block(torch.arange(N), torch.arange(N))
    gain = torch.linalg.solve(
        k[at][:, at] + SIGMA * torch.eye(2), one_hot(torch.tensor([0, 2]), C) - post.mean[at]
    )
    others = torch.tensor([p for p in REST.tolist() if p not in at.tolist()])
    same(after.mean[others], post.mean[others] + k[others][:, at] @ gain)
    back = after.without_last_labels(2)
    same(back.mean, post.mean)
    same(back.variance(), post.variance())


def test_with_targets_equals_approximation_with_new_targets():
    """By the spanned kernel.

    What a change of target moves is its column; the mean itself is of the whole kernel.
    """
    post, other = later(approximate(begun(), AT, LABELS, K)), LABELS.clone()
    other[4] = (LABELS[4] + 1) % C
    targets = one_hot(other, C).double()
    fixed = post.with_targets(torch.tensor([4]), targets[[4]])
    twin, change = Twin(targets), targets[4] - one_hot(LABELS[4], C)
    k = twin.spanned
    at, noise = REST[[3, 8]], SIGMA + twin.own[REST[[3, 8]]]
    k = k - k[:, at] @ torch.linalg.solve(k[at][:, at] + torch.diag(noise), k[at])
    same(fixed.mean, post.mean + k[:, AT[4], None] / twin.noise[4] * change)
    assert torch.equal(fixed.all_labels()[1][:L], targets)


def test_initial_weights_do_not_change_result():
    post = approximate(begun(), AT, LABELS, K)
    guess = torch.zeros(N, C, dtype=torch.float64).index_copy(0, AT, post.nystrom_labels.weights)
    same(approximate(begun(), AT, LABELS, K, guess).mean, post.mean, 1e-9)
    same(
        approximate(begun(), AT, LABELS, K, 100 * guess).mean, post.mean, 1e-9
    )  # one that misleads is left


def test_approximate_posterior_accepts_duplicate_points():
    x = units()
    x[AT[1]] = x[AT[0]]
    start = prior(torch.full((N, C), 1 / C), mixture_kernel(x, WEIGHTS), noise=SIGMA)
    same(approximate(start, AT, LABELS, L).mean, start.condition(AT, LABELS).mean, 1e-5)


def test_approximate_posterior_of_unsupported_prior_raises():
    with pytest.raises(InputError, match="unlabelled posterior"):
        approximate(begun().condition([0], torch.tensor([1])), AT, LABELS, K)
    after = later(approximate(begun(), AT, LABELS, K))
    with pytest.raises(InputError, match="approximated together"):
        predict_leave_one_out(after)
