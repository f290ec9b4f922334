"""The model of the exact learner: its inputs, its probabilities, its file."""

import math

import pytest
import torch

import labelahead as la
from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel
from tests.support.reference_exact import by_hand
from tests.support.tensors import make_clouds

N, C, D = 40, 3, 7


def make_learner(x):
    return ExactLearner(x, ExactModel(x.mean(0), C))


def test_exact_outputs_are_uniform_without_labels():
    x, _ = make_clouds()
    fitted = make_learner(x).fit(
        torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    )
    assert fitted.trained is None
    assert torch.allclose(
        fitted.outputs(torch.arange(5)), torch.full((5, C), 1 / C, dtype=torch.float64)
    )


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_exact_model_is_invariant_to_feature_scale(scale):
    x, y = make_clouds(dtype=torch.float32)
    labelled = torch.tensor([3, 17, 4, 22, 9, 31])
    one, other = (make_learner(values).fit(labelled, y[labelled]) for values in (x, x * scale))
    assert one.mixture == other.mixture
    assert torch.allclose(one.outputs(torch.arange(N)), other.outputs(torch.arange(N)), atol=1e-4)


@pytest.mark.parametrize(
    ("inputs", "classes", "message"),
    [
        ([[1.0]], 2, "no tensor"),
        (torch.zeros(3), 2, "no tensor"),
        (torch.zeros(3, 2), 1, "two or more"),
    ],
)
def test_exact_invalid_arguments_raise(inputs, classes, message):
    with pytest.raises(InputError, match=message):
        la.exact(inputs, classes)


def test_item_at_centre_gives_no_nan():
    x, y = make_clouds(12)
    x[4] = x.mean(0)
    x[4] = (x.sum(0) - x[4]) / 11
    fitted = make_learner(x).fit(torch.tensor([0, 1, 2, 4]), y[[0, 1, 2, 4]])
    assert bool(torch.isfinite(fitted.outputs(torch.arange(12))).all())
    assert math.isfinite(fitted.trained.loss)


def test_bias_feature_distinguishes_row_lengths():
    """Terciles of one column and a disc in a square: directions alone are uninformative."""
    rng = torch.Generator().manual_seed(0)
    line = torch.rand(300, 1, generator=rng)
    square = 2 * torch.rand(300, 2, generator=rng) - 1
    for x, y in ((line, (3 * line[:, 0]).long()), (square, (square.norm(dim=1) < 0.75).long())):
        learner = la.Learner(la.exact(x, int(y.max()) + 1), x, "flip")
        learner.teach(list(range(150)), y[:150])
        learner.train()
        accuracy = (learner.predict(list(range(150, 300))).argmax(1) == y[150:]).double().mean()
        assert accuracy > 0.93
    wide = torch.randn(20, 5, generator=rng)
    assert len(la.exact(wide, 2).lift) == 0


def test_state_without_a_buffer_does_not_load():
    old = ExactModel(torch.zeros(3), 2)
    state = {name: value for name, value in old.state_dict().items() if name != "lift"}
    with pytest.raises(RuntimeError, match="lift"):
        ExactModel(torch.zeros(3), 2).load_state_dict(state)


def test_probabilities_are_calibrated_and_batch_independent():
    x, y = make_clouds(60, seed=6)
    at, rest = torch.arange(20), torch.arange(20, 60)
    fitted = make_learner(x).fit(at, y[at])
    p = fitted.predict_proba(rest)
    assert torch.allclose(p.sum(1), torch.ones(40, dtype=torch.float64), atol=1e-9)
    single = torch.cat([fitted.predict_proba(rest[i : i + 1]) for i in range(40)])
    assert torch.allclose(p, single, atol=1e-12)
    model = fitted.kernel_model
    outputs, variances, alone = by_hand(x[at], y[at], x[rest], x.mean(0), model.get_mixture(), C)
    assert torch.allclose(
        model.predict_variance(model.normalise_rows(x[rest])),
        torch.from_numpy(variances),
        atol=1e-6,
    )
    assert torch.allclose(model.leave_one_out_variance(), torch.from_numpy(alone), atol=1e-6)
    draws = torch.randn(200_000, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for i in range(0, 40, 8):  # P(f of the class is the largest), by sampling
        spread = model.ensure_variance_scale() * max(variances[i], 1e-9)
        leads = (torch.from_numpy(outputs[i]) + spread**0.5 * draws).argmax(1)
        assert torch.allclose(
            p[i], torch.bincount(leads, minlength=C).double() / len(draws), atol=6e-3
        )


def test_probabilities_are_uniform_without_labels():
    x, _ = make_clouds(10)
    assert torch.equal(
        la.exact(x, 4).predict_proba(x), torch.full((10, 4), 0.25, dtype=torch.float64)
    )
    one = la.exact(x, 2)
    assert torch.equal(one.predict_proba(x, 1), torch.ones(10, 1, dtype=torch.float64))
