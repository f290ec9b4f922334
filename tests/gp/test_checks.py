"""Invalid input raises an error that says what was given, what was expected and what to do."""

import logging
import math
from functools import partial

import pytest
import torch

from labelahead.acquisition import ACQUISITIONS, eer, emoc, flip, mlmoc, variance
from labelahead.acquisition.batch_selection import best, greedy, sequential, top
from labelahead.acquisition.pool_view import view
from labelahead.errors import InputError, LabelaheadError, NumericalError
from labelahead.gp import checks
from labelahead.gp.flow import gradient_flow
from labelahead.gp.leave_one_out import leave_one_out
from labelahead.gp.lookahead import LOOK_AHEAD_METHODS
from labelahead.gp.posterior import prior
from tests.support import reference_lookahead as ref

P = ref.problem("dense-scalar", n=8)
F, K, PSI, Y = P.outputs, P.kernel, P.features, P.targets


def spoiled(t, value, *index):
    out = t.clone()
    out[index] = value
    return out


PRIORS = {
    "outputs one-dimensional": ((F[:, 0], K), "expected a non-empty"),
    "outputs empty": ((F[:0], K), "non-empty"),
    "outputs integer": ((F.long(), K), "dtype torch.int64"),
    "outputs half": ((F.half(), K), "dtype torch.float16"),
    "outputs a list": ((F.tolist(), K), "is a list"),
    "outputs NaN": ((spoiled(F, math.nan, 1, 1), K), "1 NaN"),
    "kernel not square": ((F, K[:, :5]), r"\(8, 5\); expected \(8, 8\)"),
    "kernel of other size": ((F, K[:5, :5]), r"\(5, 5\)"),
    "kernel of three dimensions": ((F, K[None]), "expected a non-empty"),
    "kernel integer": ((F, K.long()), "dtype"),
    "kernel bfloat16": ((F, K.bfloat16()), "bfloat16"),
    "kernel NaN": ((F, spoiled(K, math.nan, 2, 3)), "NaN"),
    "kernel infinite": ((F, spoiled(K, math.inf, 2, 3)), "infinite"),
    "kernel asymmetric": ((F, spoiled(K, 9.0, 2, 3)), "not symmetric"),
    "kernel float32 asymmetric": ((F, spoiled(K, 9.0, 2, 3).float()), "not symmetric"),
    "kernel negative diagonal": ((F, spoiled(K, -1.0, 2, 2)), "negative diagonal"),
    "kernel zero": ((F, 0 * K), "mean diagonal"),
    "nothing": ((F,), "neither"),
}


@pytest.mark.parametrize("case", PRIORS)
def test_prior(case):
    args, message = PRIORS[case]
    with pytest.raises(InputError, match=message):
        prior(*args)


FEATURES = {
    "rows": (PSI[:5], "5 rows; expected 8, or 24"),
    "one-dimensional": (PSI[:, 0], "non-empty"),
    "NaN": (spoiled(PSI, math.nan, 1, 1), "NaN"),
    "integer": (PSI.long(), "dtype"),
    "zero": (0 * PSI, "mean diagonal"),
}


@pytest.mark.parametrize("case", FEATURES)
def test_prior_features(case):
    features, message = FEATURES[case]
    with pytest.raises(InputError, match=message):
        prior(F, features=features)


def test_prior_takes_exactly_one_kernel():
    with pytest.raises(InputError, match="both"):
        prior(F, K, features=PSI)


@pytest.mark.parametrize("noise", [-1e-3, math.nan, math.inf, "1e-5", None])
def test_noise(noise):
    with pytest.raises(InputError, match="noise"):
        prior(F, K, noise=noise)


CONDITIONS = {
    "out of range": (([8], Y[:1]), "0 to 7"),
    "negative": (([-1], Y[:1]), "-1"),
    "twice": (([3, 3], Y[:2]), "only 1 different"),
    "already labelled": (([0], Y[:1]), "already labelled"),
    "empty": (([], Y[:0]), "at least one"),
    "no positions": ((None, Y), "cannot be converted"),
    "words": ((["cat"], Y), "cannot be converted"),
    "a mask": ((torch.ones(8, dtype=torch.bool), Y), "mask"),
    "float positions": ((torch.tensor([1.0]), Y[:1]), "integer positions"),
    "two dimensions": ((torch.tensor([[1]]), Y[:1]), "one dimension"),
    "a number": ((torch.tensor(1), Y[:1]), "one dimension"),
    "targets rows": (([3], Y[:2]), r"expected \(1, 3\)"),
    "targets columns": (([3], Y[:1, :2]), r"expected \(1, 3\)"),
    "targets classes": (([3], torch.tensor([99])), "class numbers outside"),
    "targets classes as floats": (([3], torch.tensor([1.0])), "class numbers"),
    "targets NaN": (([3], Y[:1] * math.nan), "NaN"),
    "targets a list": (([3], [[0, 1, 0]]), "is a list"),
}


@pytest.mark.parametrize("case", CONDITIONS)
@pytest.mark.parametrize("of", ["posterior", "view", "block", "solve"])
def test_condition_and_lookahead(case, of):
    (at, targets), message = CONDITIONS[case]
    post = prior(F, K).condition([0], Y[:1])
    if case == "twice" and of in LOOK_AHEAD_METHODS:
        assert (
            len(next(iter(LOOK_AHEAD_METHODS[of](post, at, targets)))) == 2
        )  # two hypotheses for one point
        return
    calls = {
        "posterior": post.condition,
        "view": view(post, [1, 2, 3]).condition,
        **{name: partial(method, post) for name, method in LOOK_AHEAD_METHODS.items()},
    }
    with pytest.raises(InputError, match=message):
        calls[of](at, targets)  # at once, not at the first iteration


def test_lookahead_chunk_and_evaluate():
    with pytest.raises(InputError, match="chunk"):
        LOOK_AHEAD_METHODS["block"](prior(F, K), [1], Y[:1], chunk=0)
    with pytest.raises(InputError, match="evaluate"):
        LOOK_AHEAD_METHODS["block"](prior(F, K), [1], Y[:1], evaluate=[99])


def test_blocks_and_columns():
    with pytest.raises(InputError, match="cols"):
        prior(F, K).covariance_columns([8])
    with pytest.raises(InputError, match="rows"):
        prior(F, K).covariance_block([], [1])


def test_leave_one_out_needs_labels():
    with pytest.raises(InputError, match="no label"):
        leave_one_out(prior(F, K))


@pytest.mark.parametrize("time", [-1.0, math.nan, []])
def test_gradient_flow_time(time):
    with pytest.raises(InputError, match="time"):
        gradient_flow(F, K, [1], Y[:1], time)


VIEWS = {
    "empty": (([],), "at least one"),
    "already labelled": (([0, 1],), "already labelled"),
    "twice": (([1, 1],), "different"),
    "out of range": (([1, 8],), "0 to 7"),
    "evaluation empty": (([1], []), "evaluation"),
    "evaluation twice": (([1], [2, 2]), "evaluation"),
    "evaluation out of range": (([1], [80]), "evaluation"),
    "embedding rows": (([1], [2], F[:3]), "3 rows; expected 8"),
    "embedding NaN": (([1], [2], F * math.nan), "embedding"),
}


@pytest.mark.parametrize("case", VIEWS)
def test_view(case):
    args, message = VIEWS[case]
    with pytest.raises(InputError, match=message):
        view(prior(F, K).condition([0], Y[:1]), *args)


def look():
    return view(prior(F, K), [1, 2, 3])


def test_options():
    for call, message in (
        (lambda: mlmoc(look(), baseline="f"), "expected one of outputs, linearised"),
        (lambda: emoc(look(), probability="sigmoid"), "expected one of simplex, softmax"),
        (lambda: eer(look(), probability="sigmoid"), "expected one of simplex, softmax"),
        (lambda: mlmoc(look(), method="guess"), "expected one of block, solve"),
        (lambda: greedy(look(), "mlmoc", 1, hypothetical_label="hope"), "hypothetical_label"),
        (lambda: best(look(), "mlmocc"), "expected one of mlmoc"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_flip_needs_two_outputs():
    with pytest.raises(InputError, match="at least two"):
        flip(view(prior(F[:, :1], K), [1, 2]))


@pytest.mark.parametrize("q", [0, -1, 4])
def test_batch_size_out_of_range_raises(q):
    for pick in (top, greedy):
        with pytest.raises(InputError, match="with 3 candidates"):
            pick(look(), "mlmoc", q)
    with pytest.raises(InputError, match="with 3 candidates"):
        sequential(look(), "mlmoc", q, lambda i: 0)


@pytest.mark.parametrize("answer", [3, -1, True, torch.zeros(2).double()])
def test_sequential_with_invalid_label_raises(answer):
    with pytest.raises(InputError, match="annotate returned"):
        sequential(look(), "mlmoc", 1, lambda i: answer)


def test_invalid_scores_raise():
    with pytest.raises(NumericalError, match="NaN"):
        top(look(), lambda v, rng: torch.full((3,), math.nan), 1)
    with pytest.raises(InputError, match="one score per candidate"):
        top(look(), lambda v, rng: torch.zeros(2), 1)


# --- singular kernels ---


def copies(dtype=torch.float64):
    rows = [0, 1, 2, 3, 0, 1, 2, 3]
    return F[rows], (K[rows][:, rows]).to(dtype)


def test_singular_kernel_without_noise_reports_its_jitter(caplog):
    with caplog.at_level(logging.WARNING, "labelahead"):
        post = prior(*copies(), noise=0.0).condition([0, 1, 4], Y[[0, 1, 0]])
    assert post.jitter > 0
    assert "singular" in caplog.text
    assert bool(torch.isfinite(post.mean).all())


def test_condition_on_copies_one_by_one_reports_jitter():
    post = prior(*copies(), noise=0.0).condition([0], Y[:1])
    assert post.jitter == 0.0
    assert post.condition([4], Y[:1]).jitter > 0


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_lookahead_at_copy_without_noise_logs_warning(name, caplog):
    post = prior(*copies(), noise=0.0).condition([0, 1], Y[:2])
    with caplog.at_level(logging.WARNING, "labelahead"):
        scores = ACQUISITIONS[name](view(post, [4, 2, 3]), None)
    assert bool(torch.isfinite(scores).all())
    assert "already determined" in caplog.text


def test_indefinite_kernel_raises():
    bad = K - 0.9 * K.diagonal().min() * torch.eye(8, dtype=torch.float64)
    with pytest.raises(NumericalError, match="not positive definite"):
        prior(F, bad).condition(list(range(8)), Y)


def test_errors_have_common_base_class():
    assert issubclass(InputError, LabelaheadError)
    assert issubclass(NumericalError, LabelaheadError)
    assert variance(look()).shape == (3,)


def test_check_symmetric_tolerates_rounding_of_long_sums():
    """Entries of one sign: in float32 K p and Kᵀ p differ by far more than any entry does."""
    rng = torch.Generator().manual_seed(0)
    features = 3 + torch.rand(3000, 8, generator=rng)
    K = (features @ features.T).float()
    K = torch.triu(K) + torch.triu(K, 1).T
    assert torch.equal(K, K.T)
    checks.check_symmetric(K, "kernel")
    K[17, 2900] += 0.01 * float(K.diagonal().max())
    with pytest.raises(InputError, match="not symmetric"):
        checks.check_symmetric(K, "kernel")
