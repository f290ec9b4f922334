"""The numbers of `python -m research study fidelity` against loops and closed forms."""

import copy

import pytest
import torch
from scipy import stats

from labelahead.errors import InputError, NumericalError
from labelahead.models import build_model
from labelahead.models.training import get_default_training, predict
from labelahead.ntk import kernel
from research.studies.fidelity import FIDELITY, Settings, cells
from research.studies.fidelity.measure import (
    Stage,
    agreement,
    ahead,
    continue_training,
    heavy_ball,
    posterior,
    rows_of,
    same_steps,
    score_repetitions,
    side_by_side,
    stiffness,
)
from research.studies.study_data import items, one_hot, some
from research.tests.support_figures import study_figures

TINY = Settings(
    seeds=1,
    networks=(("mlp", 8), ("cnn", 2)),
    widths=(6, 8),
    before=(0,),
    marks=(2, 10),
    initial=12,
    evaluation=8,
    candidates=4,
    conv_candidates=3,
    cold_candidates=3,
    repeats=2,
    cold_steps=20,
)


def make_stage(name, n=10, q=4, e=7, **options):
    found = items("digits")
    at = some(found, n + q + e, 0)
    x, labels = found.inputs[at].double(), found.labels[at]
    model = build_model(name, found.shape, found.classes, seed=0, **options).double().eval()
    return Stage(model, x, labels, one_hot(labels, found.classes), n, q)


def train_copy(model, x, y, rate, steps, momentum=0.9):
    """Train one copy by a plain loop."""
    model = copy.deepcopy(model).eval()
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    for _ in range(steps):
        optimiser.zero_grad()
        (0.5 * (model(x) - y).square().sum()).backward()
        optimiser.step()
    return model


def train_candidates(st, rate, marks, **more):
    return continue_training(
        st.model,
        st.x[st.labelled_rows],
        st.y[st.labelled_rows],
        st.x[st.candidate_rows],
        st.y[st.candidate_rows],
        st.x[st.evaluation_rows],
        rate=rate,
        marks=marks,
        **more,
    )


@pytest.mark.parametrize(("name", "width"), [("mlp", 6), ("fcn", 5), ("cnn", 2)])
def test_stacked_training_equals_loop_over_candidates(name, width):
    st = make_stage(name, width=width)
    if name == "cnn":  # statistics that differ from a new network's and must not change
        for module in st.model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean += 0.1
                module.running_var *= 1.3
    before = copy.deepcopy(st.model.state_dict())
    out, rate = train_candidates(st, 1e-3, (1, 12), chunk=3)
    assert rate == 1e-3
    assert all(torch.equal(before[k], v) for k, v in st.model.state_dict().items())
    for j in (*range(st.q), None):
        at = (
            st.at(st.labelled_rows)
            if j is None
            else torch.cat([st.at(st.labelled_rows), st.at(st.candidate_rows)[j : j + 1]])
        )
        for t, steps in enumerate((1, 12)):
            twin = train_copy(st.model, st.x[at], st.y[at], 1e-3, steps)
            got = out[t, -1 if j is None else j]
            assert torch.allclose(
                got, twin(st.x[st.evaluation_rows]).detach(), rtol=1e-9, atol=1e-11
            )


@pytest.mark.slow
def test_predictions_for_linear_network_are_exact():
    """For a network linear in its weights, equal steps are exact, and look-ahead at the end."""
    st = make_stage("mlp", depth=0)
    f, theta = predict(st.model, st.x), kernel(st.model, st.x, kind="full")
    rate, marks = 1 / stiffness(theta, st), (3, 40, 1500)
    out, used = train_candidates(st, rate, marks, momentum=0.98)
    assert used == rate
    change = out[:, :-1] - out[:, -1:]
    assert torch.allclose(same_steps(f, theta, st, rate, 0.98, marks), change, atol=1e-9)
    final = ahead(posterior(f, theta, st, 0.0), st)
    assert torch.allclose(final, change[-1], atol=1e-5)
    # The pseudo-kernel is exact too, because all outputs have the same gradient.
    pseudo = ahead(posterior(f, kernel(st.model, st.x, kind="pseudo"), st, 0.0), st)
    assert torch.allclose(pseudo, final, atol=1e-8)


def test_heavy_ball_equals_gradient_descent_on_quadratic():
    values = torch.tensor([0.0, 0.3, 2.0]).double()
    position, speed = torch.zeros(3).double(), torch.zeros(3).double()
    for _ in range(7):
        speed = 0.8 * speed - (values * position - 1)  # slope of λa²/2 − a
        position = position + 0.1 * speed
    assert torch.allclose(heavy_ball(values, 0.1, 0.8, (2, 7))[1], position)
    end = heavy_ball(values[1:], 0.1, 0.8, (2000,))[0]
    assert torch.allclose(end, 1 / values[1:])


def test_stiffness_bounds_largest_eigenvalue_with_each_candidate():
    st = make_stage("mlp", width=5)
    theta = kernel(st.model, st.x, kind="full")
    bound = stiffness(theta, st)
    for j in st.at(st.candidate_rows):
        at = torch.cat([st.at(st.labelled_rows), j[None]])
        rows = (at[:, None] * 10 + torch.arange(10)).flatten()
        assert float(torch.linalg.eigvalsh(theta[rows][:, rows])[-1]) <= bound


def test_diverging_rate_is_halved_for_all_candidates():
    st = make_stage("mlp", depth=0)  # linear: 2(1 + μ)/λ_max is the exact limit
    top = stiffness(kernel(st.model, st.x, kind="full"), st)
    out, rate = train_candidates(st, 16 / top, (60,))
    assert rate < 16 / top
    again, same = train_candidates(st, rate, (60,))
    assert same == rate
    assert torch.equal(out, again)
    with pytest.raises(NumericalError, match="diverged"):
        train_candidates(st, 1e9 / top, (60,))
    with pytest.raises(InputError, match="growing"):
        side_by_side(
            st.model, st.x[:2], st.y[:2], st.x[2:3], st.y[2:3], st.x, rate=1.0, marks=(3, 2)
        )


def test_agreement_equals_explicit_correlations():
    rng = torch.Generator().manual_seed(0)
    p = torch.randn(9, 5, 3, generator=rng).double()
    surprise = torch.rand(9, generator=rng).double()
    same = agreement(p, 2 * p, surprise)
    assert same["cosine"] == pytest.approx(1)
    assert same["spearman"] == pytest.approx(1)
    assert same["ratio"] == pytest.approx(0.5)
    assert agreement(p, -p, surprise)["cosine"] == pytest.approx(-1)
    other = torch.randn(9, 5, 3, generator=rng).double()
    found = agreement(p, other, surprise)
    ranks = [
        torch.as_tensor(stats.rankdata(v))
        for v in (p.flatten(1).norm(dim=1), other.flatten(1).norm(dim=1), surprise)
    ]

    def remove_linear_part(v):  # residual of a linear fit to the surprise's ranks
        design = torch.stack([torch.ones(9).double(), ranks[2]], 1)
        return v - design @ torch.linalg.lstsq(design, v[:, None]).solution[:, 0]

    expected = stats.pearsonr(remove_linear_part(ranks[0]), remove_linear_part(ranks[1])).statistic
    assert found["partial"] == pytest.approx(expected, abs=1e-10)
    assert found["null"] == pytest.approx(stats.spearmanr(ranks[2], ranks[1]).statistic)


def test_repeated_separates_signal_from_noise():
    rng = torch.Generator().manual_seed(1)
    signal = torch.randn(6, 40, 10, generator=rng).double()
    noise = torch.randn(6, 50, 40, 10, generator=rng).double()
    found = score_repetitions(signal, signal[:, None] + 2 * noise, torch.rand(6, generator=rng))
    assert found["repeats"] == pytest.approx(1 / 5, abs=0.02)  # 1² of 1² + 2²
    assert found["cosine"] == pytest.approx(5**-0.5, abs=0.03)
    assert found["mean_cosine"] > 0.9
    alone = score_repetitions(signal, noise, torch.rand(6, generator=rng))
    assert abs(alone["repeats"]) < 0.02


def test_cells_are_unique_and_invalid_settings_raise():
    found = cells(Settings())
    warm = [c for c in found if c["part"] == "warm" and c["seed"] == 0]
    usual = {
        "part": "warm",
        "model": "mlp",
        "width": 128,
        "before": get_default_training("mlp").steps,
        "seed": 0,
    }
    assert warm.count(usual) == 1
    assert len(warm) == 3 + 3 + 3  # networks, other lengths, other widths
    with pytest.raises(InputError, match="expected 3 or more"):
        Settings(candidates=2)
    with pytest.raises(InputError, match="repeats is 1"):
        Settings(repeats=1)


def test_rows_rank_scores_against_training():
    cell = {"part": "warm", "model": "mlp", "width": 8, "before": 60, "seed": 1}
    rows = rows_of(TINY, cell)
    score_rows = [r for r in rows if r["row"] == "score"]
    assert {r["score"] for r in score_rows} >= {
        "MLMOC",
        "flip",
        "small margin",
        "look-ahead, true label",
    }
    final_rows = [r for r in rows if r["row"] == "summary" and r["steps"] == 10]
    assert {r["kernel"] for r in final_rows} == {"pseudo", "trace", "full", "full, same steps"}
    sizes = [r["real"] for r in rows if r["row"] == "candidate"]
    assert final_rows[0]["real"] == pytest.approx(sum(sizes) / len(sizes))
    # After two steps the network is still close to its linearisation.
    early_rows = [r for r in rows if r["row"] == "summary" and r["steps"] == 2]
    assert next(r for r in early_rows if r["kernel"] == "full, same steps")["cosine"] > 0.9


@pytest.mark.slow
def test_study_of_all_parts_makes_figures():
    found = study_figures(FIDELITY, TINY)
    names = [e.name for e in found]
    assert names == ["short", "sizes", "networks", "widths", "lengths", "scores", "cold"]
    kinds = [r["trained how"] for r in found[-1].table]
    assert len(kinds) == 6
    assert found[-1].table[-1]["Spearman"] is None  # no label, no order
