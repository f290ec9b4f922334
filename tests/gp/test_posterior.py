"""Conditioning, gradient flow, warm starts and leave-one-out against refits from scratch."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.errors import InputError
from labelahead.gp.covariance import CosineKernel
from labelahead.gp.flow import gradient_flow
from labelahead.gp.label_combination import combine_labels
from labelahead.gp.leave_one_out import leave_one_out
from labelahead.gp.posterior import prior
from tests.support import reference_lookahead as ref

LABELLED = [20, 3, 11, 7, 0]


def cov_block(p, cov, rows, cols):
    block = cov[ref.flat(rows, p.b)][:, ref.flat(cols, p.b)]
    return block if p.b == 1 else block.view(len(rows), p.b, len(cols), p.b)


@pytest.fixture(params=ref.KINDS)
def p(request):
    return ref.problem(request.param)


def test_prior_has_mean_and_covariance_of_network(p):
    post = p.prior()
    ref.close(post.mean, p.outputs)
    ref.close(post.covariance_columns([4, 2]), cov_block(p, p.kernel, range(24), [4, 2]))
    assert post.labelled.shape == (0,)
    assert post.targets.shape == (0, 3)
    assert post.noise == pytest.approx(p.sigma)
    assert post.jitter == 0.0


def test_system_matrix_and_weights_equal_regression(p):
    post = (
        p.prior()
        .condition(LABELLED[:2], p.targets[LABELLED[:2]])
        .condition(LABELLED[2:], p.targets[LABELLED[2:]])
    )
    x = ref.flat(LABELLED, p.b)
    system = p.kernel[x][:, x] + p.sigma * torch.eye(len(x), dtype=torch.float64)
    residual = (p.targets - p.outputs)[LABELLED]
    ref.close(post.system_matrix(), system)
    ref.close(post.cholesky_factor() @ post.cholesky_factor().T, system)
    ref.close(
        post.weights(),
        torch.linalg.solve(system, residual.reshape(len(x), -1)).reshape(residual.shape),
    )
    moved = p.kernel[:, x] @ post.weights().reshape(len(x), -1)
    ref.close(post.mean, p.outputs + moved.reshape(p.outputs.shape))


def test_system_matrix_without_labels_raises(p):
    for name in ("system_matrix", "cholesky_factor", "weights"):
        with pytest.raises(InputError, match="holds no label"):
            getattr(p.prior(), name)()


def test_with_classes_predicts_zero_for_new_classes(p):
    if p.b > 1:
        with pytest.raises(InputError, match="expected more classes and a scalar kernel"):
            p.prior().with_classes(5)
        return
    post = p.prior().with_classes(5)
    ref.close(post.mean[:, :3], p.outputs)
    assert not bool(post.mean[:, 3:].any())
    targets = torch.nn.functional.pad(p.targets[LABELLED], (0, 2))
    targets[0] = torch.tensor([0.0, 0, 0, 0, 1])
    later = post.condition(LABELLED, targets)
    from_scratch = prior(post.outputs, p.kernel, noise=p.noise).condition(LABELLED, targets)
    ref.close(later.mean, from_scratch.mean)
    assert later.amplitude() == pytest.approx(from_scratch.amplitude())
    with pytest.raises(InputError, match="expected more classes"):
        later.with_classes(4)
    known = p.prior().condition(LABELLED, p.targets[LABELLED]).with_classes(5)
    targets[0] = torch.nn.functional.pad(p.targets[LABELLED][0], (0, 2))
    at_once = post.condition(LABELLED, targets)
    ref.close(known.mean, at_once.mean)
    assert known.amplitude() == pytest.approx(at_once.amplitude())


@pytest.mark.parametrize("portions", [1, 2, 5])
def test_with_targets_and_without_last_labels_equal_refit(p, portions):
    if p.b > 1:
        assert not p.prior().can_revise_labels
        return
    post = p.prior()
    assert post.can_revise_labels
    for part in torch.tensor(LABELLED).chunk(portions):
        post = post.condition(part, p.targets[part])
    post.variance()
    which = torch.tensor([1, len(LABELLED) - 1, 0])
    others = torch.randn(3, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    changed = p.targets[LABELLED].clone()
    changed[which] = others
    again = p.prior().condition(LABELLED, changed)
    corrected = post.with_targets(which, others)
    for one, other in (
        (corrected, again),
        (post.without_last_labels(2), p.prior().condition(LABELLED[:-2], p.targets[LABELLED[:-2]])),
    ):
        ref.close(one.mean, other.mean)
        ref.close(one.covariance_columns([4, 2, 3]), other.covariance_columns([4, 2, 3]))
        ref.close(one.variance(), other.variance())
        assert one.amplitude() == pytest.approx(other.amplitude())
        free = [i for i in range(24) if i not in LABELLED][:1]
        y = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64)
        further, naive = one.condition(free, y), other.condition(free, y)
        ref.close(further.mean, naive.mean)
        assert further.amplitude() == pytest.approx(naive.amplitude())


def test_condition_equals_refit(p):
    post = p.prior().condition(LABELLED, p.targets[LABELLED])
    mean, cov = ref.refit(p, LABELLED, p.targets[LABELLED])
    ref.close(post.mean, mean)
    ref.close(post.covariance_columns([4, 2, 3]), cov_block(p, cov, range(24), [4, 2, 3]))
    ref.close(post.covariance_block([1, 3], [3, 8, 9]), cov_block(p, cov, [1, 3], [3, 8, 9]))
    every = list(range(24))
    ref.close(post.covariance_block(every, every), cov_block(p, cov, every, every))
    if p.b == 1:
        ref.close(post.variance(), cov.diagonal())
    else:
        ref.close(
            post.variance(), torch.stack([cov_block(p, cov, [i], [i])[0, :, 0] for i in every])
        )
    assert post.labelled.tolist() == LABELLED
    assert torch.equal(post.targets, p.targets[LABELLED])
    assert post.amplitude() == pytest.approx(ref.amplitude(p, LABELLED, p.targets[LABELLED]))


@settings(max_examples=25, deadline=None)
@given(data=st.data(), kind=st.sampled_from(ref.KINDS))
def test_condition_is_order_independent(data, kind):
    p = ref.problem(kind, n=14, seed=data.draw(st.integers(0, 999)))
    order = data.draw(st.permutations(range(14)))[: data.draw(st.integers(1, 14))]
    batch = p.prior().condition(sorted(order), p.targets[sorted(order)])
    post, rest = p.prior(), list(order)
    post.variance()
    while rest:
        q = data.draw(st.integers(1, 4))
        post = post.condition(rest[:q], p.targets[rest[:q]])
        rest = rest[q:]
    ref.close(post.mean, batch.mean)
    ref.close(post.variance(), batch.variance())
    ref.close(post.covariance_columns([0, 5]), batch.covariance_columns([0, 5]))
    assert post.amplitude() == pytest.approx(batch.amplitude(), rel=1e-9, abs=1e-12)


def test_single_labels_are_merged_into_few_blocks():
    p = ref.problem("dense-scalar")
    post = p.prior()
    for i in range(17):
        post = post.condition([i], p.targets[[i]])
    assert post.covariance.rank == 17
    assert len(post.covariance.factors) <= 5


def test_compute_update_returns_downdate_and_residual(p):
    post = p.prior().condition(LABELLED, p.targets[LABELLED])
    step = post.compute_update([5, 9], p.targets[[5, 9]])
    every = list(range(24))
    downdate = step.downdate.T @ step.downdate
    before, after = (
        post.covariance_block(every, every),
        step.posterior.covariance_block(every, every),
    )
    ref.close(before - downdate.view(before.shape), after)
    ref.close(
        post.mean + (step.downdate.T @ step.whitened_residual).view(24, 3), step.posterior.mean
    )


def test_condition_with_more_labels_than_features_equals_refit():
    p = ref.problem("low-rank", n=40, rank=6)
    at = list(range(30))
    post = p.prior().condition(at, p.targets[at])
    mean, cov = ref.refit(p, at, p.targets[at])
    ref.close(post.mean, mean, 1e-8)
    ref.close(post.variance(), cov.diagonal(), 1e-8)


def test_compute_update_of_many_labels_omits_downdate(p):
    big = ref.problem(p.kind, n=90, seed=4)
    at = list(range(70))
    post = big.prior().condition(at, big.targets[at])
    ref.close(post.mean, ref.refit(big, at, big.targets[at])[0], 1e-8)


def test_duplicate_points_share_one_prediction():
    p = ref.problem("dense-scalar", n=10)
    features = torch.cat([p.features, p.features])
    outputs = torch.cat([p.outputs, p.outputs])
    for dtype in (torch.float64, torch.float32):
        post = prior(outputs, (features @ features.T).to(dtype), noise=1e-5)
        post = post.condition(list(range(12)), torch.cat([p.targets, p.targets])[:12])
        assert post.jitter == 0.0
        ref.close(post.mean[:10], post.mean[10:], 1e-4)


def test_float32_kernel_is_solved_in_float64():
    """Both dtypes of one kernel agree to the kernel's own rounding, at condition 1e5."""
    p = ref.problem("dense-scalar", n=80, rank=200, noise=1e-5)
    at = list(range(40))
    rounded = p.kernel.float()
    exact = prior(p.outputs, rounded.double(), noise=1e-5).condition(at, p.targets[at])
    post = prior(p.outputs, rounded, noise=1e-5).condition(at, p.targets[at])
    ref.close(post.mean, exact.mean, 1e-12)
    ref.close(post.variance(), exact.variance(), 1e-12)
    assert post.covariance_columns([1]).dtype == torch.float32


def test_leave_one_out_equals_refits(p):
    post = p.prior().condition(LABELLED, p.targets[LABELLED])
    rows = []
    for i, held in enumerate(LABELLED):
        rest = LABELLED[:i] + LABELLED[i + 1 :]
        rows.append(ref.refit(p, rest, p.targets[rest])[0][held] - p.targets[held])
    ref.close(leave_one_out(post), torch.stack(rows))


def test_leave_one_out_is_largest_at_wrong_label():
    rng = torch.Generator().manual_seed(1)
    side = torch.arange(40) % 2
    features = torch.nn.functional.one_hot(side, 2) + 0.2 * torch.randn(40, 2, generator=rng)
    features, wrong = features.double(), torch.nn.functional.one_hot(side, 2).double()
    wrong[17] = 1 - wrong[17]
    post = prior(torch.full((40, 2), 0.5).double(), features @ features.T, noise=1e-2)
    residuals = leave_one_out(post.condition(list(range(40)), wrong))
    assert int(residuals.norm(dim=1).argmax()) == 17
    # the sign: prediction minus target
    assert (residuals[17] * (1 - 2 * wrong[17]) > 0).all()


# --- labels with a noise of their own ---

NOISES = torch.tensor([0.3, 1e-3, 2.0, 0.05, 0.01], dtype=torch.float64)


def make_noisy(p, portions=1):
    """Condition on LABELLED with NOISES in portions; return the posterior and the twin's problem."""
    post = p.prior()
    for part, noise in zip(
        torch.tensor(LABELLED).chunk(portions), NOISES.chunk(portions), strict=True
    ):
        post = post.condition(part, p.targets[part], noise)
    return post, replace(
        p, noises=torch.zeros(24).double().index_put((torch.tensor(LABELLED),), NOISES)
    )


@pytest.mark.parametrize("portions", [1, 2, 5])
def test_condition_with_noise_per_label_equals_refit(p, portions):
    post, twin = make_noisy(p, portions)
    mean, cov = ref.refit(twin, LABELLED, p.targets[LABELLED])
    ref.close(post.mean, mean)
    ref.close(post.covariance_columns([4, 2, 3]), cov_block(p, cov, range(24), [4, 2, 3]))
    assert post.amplitude() == pytest.approx(ref.amplitude(twin, LABELLED, p.targets[LABELLED]))
    x = ref.flat(LABELLED, p.b)
    ref.close(post.system_matrix(), p.kernel[x][:, x] + torch.diag(twin.sigmas(LABELLED)))
    moved = p.kernel[:, x] @ post.weights().reshape(len(x), -1)
    ref.close(post.mean, p.outputs + moved.reshape(p.outputs.shape))
    without = p.prior().condition(LABELLED, p.targets[LABELLED])
    assert float((post.mean - without.mean).abs().max()) > 1e-2


def test_condition_with_noise_of_prior_changes_no_bit(p):
    without = p.prior().condition(LABELLED, p.targets[LABELLED])
    post = p.prior().condition(LABELLED, p.targets[LABELLED], p.noise)
    assert torch.equal(post.mean, without.mean)
    assert torch.equal(post.variance(), without.variance())
    assert torch.equal(post.weights(), without.weights())
    assert torch.equal(leave_one_out(post), leave_one_out(without))


def test_labels_with_and_without_noise_of_their_own_mix(p):
    noises = torch.full((24,), p.noise, dtype=torch.float64)
    noises[11] = 0.4
    for order in ([[20, 3], [11], [7, 0]], [[11], [20, 3, 7, 0]]):
        post, labelled = p.prior(), [x for part in order for x in part]
        for part in order:
            post = post.condition(part, p.targets[part], 0.4 if part == [11] else None)
        twin = replace(p, noises=noises)
        ref.close(post.mean, ref.refit(twin, labelled, p.targets[labelled])[0])
        assert torch.allclose(post.noise_of_labels(), noises[labelled] * post.scale)


@pytest.mark.parametrize("portions", [1, 2, 5])
def test_with_targets_and_without_last_labels_keep_noise_per_label(p, portions):
    if p.b > 1:
        return
    post, twin = make_noisy(p, portions)
    assert post.can_revise_labels
    which = torch.tensor([1, 4, 0])
    changed = p.targets[LABELLED].clone()
    changed[which] = torch.randn(3, 3, generator=torch.Generator().manual_seed(5)).double()
    for one, labelled, targets in (
        (post.with_targets(which, changed[which]), LABELLED, changed),
        (post.without_last_labels(2), LABELLED[:-2], p.targets[LABELLED[:-2]]),
    ):
        mean, cov = ref.refit(twin, labelled, targets)
        ref.close(one.mean, mean)
        ref.close(one.variance(), cov.diagonal())
        assert one.amplitude() == pytest.approx(ref.amplitude(twin, labelled, targets))
        y = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64)
        twin.noises[5] = 0.7
        again = ref.refit(twin, [*labelled, 5], torch.cat([targets, y]))[0]
        ref.close(one.condition([5], y, [0.7]).mean, again)


def test_leave_one_out_with_noise_per_label_equals_refits(p):
    post, twin = make_noisy(p)
    rows = []
    for i, held in enumerate(LABELLED):
        rest = LABELLED[:i] + LABELLED[i + 1 :]
        rows.append(ref.refit(twin, rest, p.targets[rest])[0][held] - p.targets[held])
    ref.close(leave_one_out(post), torch.stack(rows))


REPEATED = [20, 3, 20, 11, 3, 20]


def make_repeated(p):
    """Labels of three points by several sources that disagree: posterior, targets and noises."""
    rng = torch.Generator().manual_seed(2)
    targets = torch.randn(len(REPEATED), 3, generator=rng).double()
    noises = torch.rand(len(REPEATED), generator=rng).double() + 0.01
    return p.prior().condition(REPEATED, targets, noises, allow_labelled=True), targets, noises


def refit_repeated(p, which, targets, noises):
    """Solve the system in which every label has a row."""
    at = [REPEATED[i] for i in which]
    x = ref.flat(at, p.b)
    scale = float(p.kernel.diagonal().mean())
    system = p.kernel[x][:, x] + torch.diag((noises[which] * scale).repeat_interleave(p.b))
    residual = (targets[which] - p.outputs[at]).reshape(len(x), -1)
    mean = p.outputs + (p.kernel[:, x] @ torch.linalg.solve(system, residual)).reshape(24, 3)
    return mean, p.kernel - p.kernel[:, x] @ torch.linalg.solve(system, p.kernel[x])


def test_several_labels_of_one_point_equal_refit_with_a_row_each(p):
    post, targets, noises = make_repeated(p)
    mean, cov = refit_repeated(p, range(6), targets, noises)
    ref.close(post.mean, mean)
    ref.close(post.covariance_columns([4, 20]), cov_block(p, cov, range(24), [4, 20]))
    with pytest.raises(InputError, match="already labelled"):
        post.condition([20], targets[:1])
    with pytest.raises(InputError, match="different ones"):
        p.prior().condition([20, 20], targets[:2])
    if p.b == 1:
        shorter = post.without_last_labels(2)
        ref.close(shorter.mean, refit_repeated(p, range(4), targets, noises)[0])
        assert bool(shorter.is_labelled[20])
        assert bool(shorter.is_labelled[3])
        assert not bool(post.without_last_labels(3).is_labelled[11])
        changed = targets.clone()
        changed[2] = torch.tensor([1.0, 2.0, 3.0])
        corrected = post.with_targets(torch.tensor([2]), changed[[2]])
        ref.close(corrected.mean, refit_repeated(p, range(6), changed, noises)[0])


def test_combined_labels_equal_a_row_for_each_label(p):
    post, targets, noises = make_repeated(p)
    labels = combine_labels(torch.tensor(REPEATED), targets, noises)
    assert labels.at.tolist() == [20, 3, 11]
    combined = p.prior().condition(*labels)
    ref.close(combined.mean, post.mean)
    every = range(24)
    ref.close(combined.covariance_block(every, every), post.covariance_block(every, every))


def test_leave_one_out_leaves_out_all_labels_of_a_point(p):
    post, targets, noises = make_repeated(p)
    rows = []
    for i, held in enumerate(REPEATED):
        rest = [j for j in range(6) if REPEATED[j] != held]
        rows.append(refit_repeated(p, rest, targets, noises)[0][held] - targets[i])
    ref.close(leave_one_out(post), torch.stack(rows))


def test_posterior_at_further_or_fewer_points_keeps_noise_per_label():
    x = torch.nn.functional.normalize(
        torch.randn(24, 6, generator=torch.Generator().manual_seed(3)).double(), dim=1
    )
    start = torch.full((24, 3), 1 / 3, dtype=torch.float64)
    targets = ref.problem("dense-scalar").targets
    whole = prior(start, CosineKernel(x, torch.clone), noise=0.1)
    whole = whole.condition(LABELLED, targets[LABELLED], NOISES)
    # The labelled points are among the first 21.
    part = prior(start[:21], CosineKernel(x[:21], torch.clone), noise=0.1)
    part = part.condition(LABELLED, targets[LABELLED], NOISES).with_points(x[21:], start[21:])
    ref.close(part.mean, whole.mean)
    ref.close(part.variance(), whole.variance())
    at = torch.tensor([5, 9, 1])
    fewer = whole.restricted_to(at, whole.covariance_block(at[:2], at))
    assert fewer.amplitude() == pytest.approx(whole.amplitude())
    further = fewer.condition([1], targets[[9]], [0.6])
    expected = whole.condition([9], targets[[9]], [0.6])
    ref.close(further.mean, expected.mean[at])
    ref.close(further.variance(), expected.variance()[at])
    assert further.amplitude() == pytest.approx(expected.amplitude())


@pytest.mark.parametrize(
    ("noise", "match"),
    [
        ([0.1], "one relative noise for each"),
        ([-0.1, 0.2], "finite numbers"),
        ("much", "converted"),
    ],
)
def test_condition_on_invalid_noise_raises(noise, match):
    p = ref.problem("dense-scalar")
    with pytest.raises(InputError, match=match):
        p.prior().condition([0, 1], p.targets[:2], noise)


# --- gradient flow ---


@pytest.mark.parametrize("kind", ["dense-scalar", "dense-full"])
class TestFlow:
    def test_limits(self, kind):
        p = ref.problem(kind)
        still, end, late = gradient_flow(
            p.outputs, p.kernel, LABELLED, p.targets[LABELLED], [0.0, math.inf, 1e12], noise=p.noise
        )
        post = p.prior().condition(LABELLED, p.targets[LABELLED])
        ref.close(still, p.outputs)
        ref.close(end, post.mean)
        ref.close(late, post.mean)

    def test_matrix_exponential(self, kind):
        p = ref.problem(kind)
        x = ref.flat(LABELLED, p.b)
        theta = p.kernel[x][:, x]
        residual = (p.targets - p.outputs)[LABELLED].reshape(len(x), -1)
        for t in (0.03, 0.7, 5.0):
            moved = residual - torch.linalg.matrix_exp(-t * theta) @ residual
            change = p.kernel[:, x] @ torch.linalg.solve(theta, moved)
            ref.close(
                gradient_flow(p.outputs, p.kernel, LABELLED, p.targets[LABELLED], t),
                p.outputs + change.reshape(p.outputs.shape),
            )

    def test_small_euler_steps(self, kind):
        p = ref.problem(kind)
        x, steps, t = ref.flat(LABELLED, p.b), 20_000, 1.0
        f = p.outputs.clone()
        for _ in range(steps):
            residual = (p.targets - f)[LABELLED].reshape(len(x), -1)
            f = f + t / steps * (p.kernel[:, x] @ residual).reshape(f.shape)
        ref.close(gradient_flow(p.outputs, p.kernel, LABELLED, p.targets[LABELLED], t), f, 2e-4)

    def test_directions_the_kernel_cannot_move_stay(self, kind):
        """A singular Θ(X,X) at noise 0: the flow is finite at every time and has a limit."""
        p = ref.problem(kind, rank=3)
        flows = gradient_flow(
            p.outputs, p.kernel, LABELLED, p.targets[LABELLED], [1.0, 1e6, 1e30, math.inf]
        )
        assert bool(torch.isfinite(flows).all())
        ref.close(flows[2], flows[3], 1e-6)


@pytest.mark.parametrize("kind", ref.KINDS)
def test_warm_start_equals_cold_start(kind):
    """LA Theorem 3.1: one fixed kernel, trained to convergence on S1 ⊂ S2 ⊂ S3."""
    p = ref.problem(kind, n=12, rank=80, noise=0.0)
    sets = ([4, 1], [4, 1, 9], [4, 1, 9, 2, 7])
    warm = p.outputs
    for s in sets:
        start = ref.Problem(warm, p.kernel, p.features, p.targets, kind, 0.0)
        warm = start.prior().condition(s, p.targets[s]).mean
    cold = p.prior().condition(sets[-1], p.targets[sets[-1]]).mean
    ref.close(warm, cold, 1e-8)
    flow = p.outputs
    for s in sets:
        flow = gradient_flow(flow, p.kernel, s, p.targets[s], math.inf)
    ref.close(flow, cold, 1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_condition_of_one_output_accepts_values(dtype):
    torch.manual_seed(0)
    psi = torch.randn(6, 4, dtype=torch.float64)
    post = prior(torch.randn(6, 1, dtype=torch.float64), psi @ psi.T)
    values = torch.tensor([2, -1, 0], dtype=dtype)
    want = post.condition([4, 0, 2], values[:, None].double())
    assert torch.equal(post.condition([4, 0, 2], values).mean, want.mean)
