"""The exact learner against direct solutions and explicit leave-one-out."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import labelahead as la
from labelahead.batching import as_inputs
from labelahead.data import from_arrays
from labelahead.data.dataset import NONE_OF_THESE
from labelahead.errors import ModelError
from labelahead.gp.covariance import CosineKernel
from labelahead.gp.posterior import prior
from labelahead.inference.exact import ExactLearner, FittedExactModel
from labelahead.inference.exact_model import BLOCK_NUMBERS, ExactModel
from labelahead.inference.mixture import (
    DEFAULT_SEARCH,
    Mixture,
    MixtureSearch,
    mix_kernels,
    solve_leave_one_out,
)
from labelahead.inference.pool_posterior import PoolPosterior, PosteriorOptions
from labelahead.inference.sources import Annotations
from labelahead.seeds import make_generator
from labelahead.strategies import STRATEGIES
from labelahead.strategies.context import QueryContext
from tests.support.campaigns import blobs
from tests.support.slow import slow
from tests.support.tensors import fit_exact, make_clouds, normalise_rows

N, C, D = 40, 3, 7


def make_learner(x):
    return ExactLearner(x, ExactModel(x.mean(0), C))


def test_exact_model_matches_direct_solution_for_pool_and_new_items():
    x, y = make_clouds()
    labelled = torch.tensor([3, 17, 4, 22, 9, 31])
    fitted = make_learner(x).fit(labelled, y[labelled])
    mixture = fitted.kernel_model.get_mixture()
    new, _ = make_clouds(15, seed=9)
    both = torch.cat([x, new])
    rows = normalise_rows(both, range(N))
    K = mix_kernels(rows @ rows[labelled].T, mixture.weights)
    system = mix_kernels((rows[labelled] @ rows[labelled].T).fill_diagonal_(1.0), mixture.weights)
    targets = torch.nn.functional.one_hot(y[labelled], C).double() - 1 / C
    naive = 1 / C + K @ torch.linalg.solve(system + mixture.noise * torch.eye(6), targets)
    assert torch.allclose(fitted.outputs(torch.arange(N)), naive[:N], atol=1e-9)
    other = ExactModel(torch.zeros(D), 2)  # as if loaded from a file
    other.load_state_dict(copy.deepcopy(fitted.model.state_dict()))
    assert torch.allclose(other(new), naive[N:], atol=1e-9)
    assert fitted.trained.accuracy == float(
        (naive[labelled].argmax(1) == y[labelled]).double().mean()
    )


def test_incremental_labels_match_fitting_all_at_once():
    x, y = make_clouds()
    pool = la.Pool(N)
    pool.label([0, 1, 2, 3, 4], y[:5])
    fitted = make_learner(x).fit(pool.labelled, pool.labels)
    pool_posterior = QueryContext.from_pool(
        fitted.model, x, pool, la.QueryConfig("resolve")
    ).pool_posterior
    assert torch.allclose(pool_posterior.mean(range(N)), fitted.outputs(torch.arange(N)), atol=1e-9)
    for position in (9, 30, 12, 25):
        pool_posterior = pool_posterior.with_labels(
            {**pool_posterior.labels, position: int(y[position])}
        )
    at = torch.tensor(list(pool_posterior.labels))
    again = fitted.kernel_model

    def K(a, b):
        return mix_kernels(
            again.normalise_rows(x[a]) @ again.normalise_rows(x[b]).T, again.get_mixture().weights
        )

    system = K(at, at).fill_diagonal_(1.0) + again.get_mixture().noise * torch.eye(len(at))
    targets = torch.nn.functional.one_hot(y[at], C).double() - 1 / C
    naive = 1 / C + K(torch.arange(N), at) @ torch.linalg.solve(system, targets)
    left = [p for p in range(N) if p not in pool_posterior.labels]
    assert torch.allclose(pool_posterior.mean(left), naive[left], atol=1e-8)


def test_exact_posterior_accepts_new_classes():
    x, _ = make_clouds()
    kernel = CosineKernel(normalise_rows(x, range(N)), lambda c: mix_kernels(c, (1.0, 0.0, 0.0)))
    pool_posterior = PoolPosterior.from_prior(
        torch.arange(N), prior(torch.full((N, C), 1 / C).double(), kernel, noise=0.1), {0: 0, 1: 1}
    )
    wider = pool_posterior.with_labels({0: 0, 1: 1, 5: 3}, 4)
    assert wider.classes == 4
    assert int(wider.mean([5]).argmax()) == 3


@pytest.mark.parametrize(
    "strategy",
    ["flip", "badge", "typiclust", *map(slow, ["resolve", "random", "margin", "coreset"])],
)
def test_exact_campaign_resumes_to_same_result(tmp_path, strategy):
    tables = {
        "model": {"name": "exact"},
        "asking": {"strategy": strategy},
        "threads": 1,
        "budget": {"initial": 5, "labels": 15, "retrain_every": 5},
    }
    whole = la.run(tables | {"budget": tables["budget"] | {"labels": 20}}, out=tmp_path / "whole")
    la.run(tables, out=tmp_path / "part")
    again = la.resume(tmp_path / "part", {"budget.labels": 20})
    assert again.curve == whole.curve
    assert again.pool.labelled.tolist() == whole.pool.labelled.tolist()
    for key, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[key], value), key


def test_local_search_mixture_is_same_after_resume(tmp_path):
    # with so many labels only neighbours are tried
    tables = {"model": {"name": "exact"}, "asking": {"strategy": "random"}, "threads": 1}
    first = DEFAULT_SEARCH.max_full_grid_labels + 4
    budget = {"initial": first, "labels": first + 24, "retrain_every": 8}
    whole = la.run(tables | {"budget": budget}, out=tmp_path / "whole")
    la.run(tables | {"budget": budget | {"labels": first + 8}}, out=tmp_path / "part")
    again = la.resume(tmp_path / "part", {"budget.labels": first + 24})
    assert [r.loo_error for r in again.rounds] == [r.loo_error for r in whole.rounds]
    assert torch.equal(again.model.state_dict()["mixture"], whole.model.state_dict()["mixture"])
    assert again.curve == whole.curve


def test_leave_one_out_predictions_use_last_fit():
    x, y = make_clouds()
    at = torch.tensor([3, 17, 4, 22, 9, 31])
    exact_learner = make_learner(x)
    fitted = exact_learner.fit(at, y[at])
    others, residual = exact_learner.leave_one_out_predictions(at, y[at])
    fresh = make_learner(x).leave_one_out_predictions(at, y[at])
    assert torch.equal(others, fresh[0])
    rows = fitted.kernel_model.support
    K = mix_kernels((rows @ rows.T).fill_diagonal_(1.0), fitted.mixture.weights)
    targets = torch.nn.functional.one_hot(y[at], C).double() - 1 / C
    assert torch.allclose(residual, solve_leave_one_out(K, fitted.mixture.noise, targets)[1])
    assert torch.allclose(others, residual + torch.nn.functional.one_hot(y[at], C))


def test_exact_campaign_starts_without_seed_set():
    tables = {"model": {"name": "exact"}, "asking": {"strategy": "resolve"}, "threads": 1}
    done = la.run(tables | {"budget": {"initial": 0, "labels": 10, "retrain_every": 5}})
    assert [n for n, _ in done.curve] == [0, 5, 10]
    assert done.curve[-1][1] > 0.3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_exact_model_supports_strategy_or_raises(strategy):
    x, y = blobs(60, (8,))
    tables = {
        "model": {"name": "exact"},
        "asking": {"strategy": strategy, "candidates": 20},
        "threads": 1,
        "budget": {"initial": 4, "labels": 8, "retrain_every": 4},
    }
    data = from_arrays(x, y, test=range(50, 60))
    if strategy in ("bald", "batchbald", "egl", "dynamical", "ll4al", "naive"):
        with pytest.raises(
            ModelError,
            match=f"{strategy} takes gradients.*nothing to train; expected another strategy",
        ):
            la.run(tables, data=data)
    else:
        assert len(la.run(tables, data=data).pool) == 8


def test_lookahead_baseline_is_exact_prediction():
    """The prior mean is 1/C everywhere, so its argmax would always be the first class."""
    x, y = blobs(60, (8,))
    model = la.exact(x, C)
    pool = la.Pool(60)
    pool.label(range(9), y[:9])
    ExactLearner(x, model.without_labels()).fit(pool.labelled, pool.labels, into=model)
    context = QueryContext.from_pool(model, x, pool, la.QueryConfig("mlmoc"))
    assert context.view.baseline == "linearised"
    assert torch.equal(
        context.view.predicted_targets().argmax(1),
        context.fitted.outputs(context.candidates).argmax(1),
    )
    assert context.drift is None
    assert la.propose(model, x, pool, 2, la.QueryConfig("changes", mode="top")).drift is None


def test_learner_with_exact_model_predicts_and_reloads(tmp_path):
    x, y = blobs(60, (8,))
    learner = la.Learner(la.exact(x, C), x, "resolve", retrain_every=4)
    for _ in range(3):
        queried = learner.query(3)
        learner.teach(queried, y[queried])
    assert (learner.predict().argmax(1) == y).double().mean() > 0.8
    learner.train()
    learner.save(tmp_path / "l.pt")
    again = la.Learner.load(tmp_path / "l.pt", la.exact(x, C), x)
    assert torch.equal(again.predict(), learner.predict())
    assert again.query(2) == learner.query(2)


def test_nystrom_fit_matches_exact_fit():
    x, y = make_clouds(120)
    at, rest = torch.arange(80), torch.arange(80, 120)
    nystrom_learner, exact_learner = (
        ExactLearner(x, ExactModel(x.mean(0), C), max_exact_labels=60),
        make_learner(x),
    )
    fitted, exact = nystrom_learner.fit(at, y[at]), exact_learner.fit(at, y[at])
    assert fitted.mixture == exact.mixture
    assert fitted.trained.accuracy == exact.trained.accuracy
    assert torch.allclose(fitted.model(x), exact.model(x), atol=2e-2)
    others, residual = nystrom_learner.leave_one_out_predictions(at, y[at])
    assert torch.allclose(others - residual, torch.nn.functional.one_hot(y[at]).double())
    agree = others.argmax(1) == exact_learner.leave_one_out_predictions(at, y[at])[0].argmax(1)
    assert agree.double().mean() >= 0.9
    nystrom_forecast, exact_forecast = (
        nystrom_learner.forecast_error(at, y[at], rest),
        exact_learner.forecast_error(at, y[at], rest),
    )
    assert nystrom_forecast.error.rate == pytest.approx(exact_forecast.error.rate, abs=0.05)


def test_mixture_depends_on_labels_only():
    # with more labels, the search starts at the choice for twelve of them
    search = MixtureSearch(max_full_grid_labels=12)
    x, y = make_clouds(60, seed=5)
    at = torch.randperm(60, generator=torch.Generator().manual_seed(1))[:40]
    one = replace(make_learner(x), mixture_search=search).fit(at, y[at])
    order = at.argsort(descending=True)
    other = replace(make_learner(x), mixture_search=search).fit(
        at[order], y[at[order]], previous={"mixture": torch.tensor(Mixture(0.0, 0.0, 1.0, 1e-3))}
    )
    assert one.mixture == other.mixture
    rest = torch.arange(60)
    assert torch.allclose(one.predict_proba(rest), other.predict_proba(rest), atol=1e-9)


def test_exact_learner_drops_unit_features():
    x, y = blobs(40)
    fitted, all_items = fit_exact(x.double(), y, torch.arange(9)), torch.arange(40)
    units = fitted.embedding(all_items)
    kept = torch.rand(units.shape, generator=make_generator(5)) >= 0.75
    expected = []
    for row in torch.where(kept, units, 0.0):
        c = fitted.kernel_model.support @ (row / row.norm())
        expected.append(1 / 3 + mix_kernels(c, fitted.mixture.weights) @ fitted.kernel_model.alpha)
    assert torch.allclose(
        fitted.predict_with_dropout(all_items, 0.75, make_generator(5)),
        torch.stack(expected),
        atol=1e-12,
    )


class LargestTensor(TorchFunctionMode):
    """Records the bytes of the largest storage that an operation returned, but for one of them."""

    def __init__(self, known: Tensor) -> None:
        super().__init__()
        self.known, self.bytes = known.untyped_storage().data_ptr(), 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() != self.known:
                self.bytes = max(self.bytes, value.untyped_storage().nbytes())
        return out


def test_file_mapped_into_memory_equals_tensor_and_is_not_copied(tmp_path):
    n, width = 12_000, 768  # several blocks of rows and of columns
    assert n * width > BLOCK_NUMBERS
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(n) % C
    centres = torch.randn(C, width, generator=rng) / 4
    whole = (centres[y] + torch.randn(n, width, generator=rng)).half()
    np.save(tmp_path / "vectors.npy", whole.numpy())
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    found = []
    for x in (whole, mapped):
        learner = la.Learner(la.exact(x, C), x, la.QueryConfig("resolve", candidates=200))
        learner.teach(range(9), y[:9])
        learner.train()
        shared = as_inputs(x)
        assert learner.inputs.data_ptr() == shared.data_ptr()
        with LargestTensor(learner.inputs) as largest:
            centre = la.exact(x, C).centre
            queries, predictions = learner.query(3), learner.predict()
        assert largest.bytes < 4 * n * width  # a copy in float32
        found.append((queries, predictions, centre, learner.model))
    (queries, predictions, centre, model), (mapped_queries, mapped_predictions, *_) = found
    assert torch.equal(centre, found[1][2])
    assert mapped_queries == queries
    assert torch.equal(mapped_predictions, predictions)
    # as without blocks
    assert torch.equal(centre, whole.float().mean(0, dtype=torch.float64).float())
    assert torch.equal(model.predict_proba(whole), predictions)
    at = torch.arange(n)
    units = FittedExactModel(model, whole).kernel_arguments(at, "pseudo")["kernel"].unit_vectors
    assert torch.equal(units, model.normalise_rows(whole))


def test_none_of_these_equals_regression_on_zero_targets():
    x, y = make_clouds()
    labelled = torch.tensor([3, 17, 4, 22, 9, 31, 12, 30])
    labels = y[labelled].clone()
    labels[[1, 5]] = NONE_OF_THESE
    learner = make_learner(x)
    fitted = learner.fit(labelled, labels)
    targets = torch.eye(C, dtype=torch.float64)[y[labelled]]
    targets[[1, 5]] = 0.0
    units = normalise_rows(x, torch.arange(N))
    mixture = fitted.mixture
    K = mix_kernels(units @ units.T, mixture.weights)
    system = K[labelled][:, labelled] + mixture.noise * torch.eye(len(labelled))
    naive = 1 / C + K[:, labelled] @ torch.linalg.solve(system, targets - 1 / C)
    assert torch.allclose(fitted.model(x), naive, atol=1e-10)
    outputs, residuals = learner.leave_one_out_predictions(labelled, labels)
    for i in range(len(labelled)):
        rest = torch.arange(len(labelled)) != i
        alpha = torch.linalg.solve(system[rest][:, rest], (targets - 1 / C)[rest])
        left_out = 1 / C + K[labelled[i], labelled[rest]] @ alpha
        assert torch.allclose(outputs[i], left_out, atol=1e-9)
        assert torch.allclose(residuals[i], left_out - targets[i], atol=1e-9)


def test_none_of_these_lowers_all_scores_of_similar_items_and_keeps_probabilities_valid():
    x, y = make_clouds(60)
    strange = torch.full((8, D), 6.0, dtype=torch.float64)
    strange += 0.3 * torch.randn(8, D, generator=torch.Generator().manual_seed(2)).double()
    x = torch.cat([x, strange])
    learner = la.Learner(la.exact(x, C), x, "resolve")
    learner.teach(range(9), y[:9])
    before = learner._current_network()(x)[60:]
    learner.teach([60, 61, 62], [NONE_OF_THESE] * 3)
    after = learner._current_network()(x)[60:]
    assert bool((after[3:].sum(1) < before[3:].sum(1) - 0.3).all())
    assert bool((after[3:].amax(1) < before[3:].amax(1)).all())
    p = learner.predict()
    assert torch.allclose(p.sum(1), torch.ones(len(x), dtype=torch.float64))
    assert bool((p[9:60].argmax(1) == y[9:60]).double().mean() > 0.7)
    assert not {60, 61, 62} & set(learner.query(10))


def test_none_of_these_by_steps_equals_fit_at_once_and_corrections_are_exact():
    x, y = make_clouds()
    labels = dict(zip(range(12), y[:12].tolist(), strict=True))
    start = FittedExactModel(make_learner(x).blank_model, x).kernel_arguments(
        torch.arange(N), "pseudo"
    )
    args = torch.arange(N), torch.full((N, C), 1 / C, dtype=torch.float64), start, 0.1
    given = {**labels, 3: NONE_OF_THESE, 7: NONE_OF_THESE}
    at_once = PoolPosterior.from_kernel(*args, given, PosteriorOptions())
    steps = PoolPosterior.from_kernel(*args, labels, PosteriorOptions())
    steps = steps.with_labels({**labels, 3: NONE_OF_THESE}).with_labels(given)
    assert torch.allclose(steps.posterior.mean, at_once.posterior.mean, atol=1e-9)
    grown = PoolPosterior.from_kernel(*args, {0: int(y[0])}, PosteriorOptions())
    grown = grown.with_labels({0: int(y[0]), 20: NONE_OF_THESE})
    wider = grown.with_labels({0: int(y[0]), 20: NONE_OF_THESE}, C + 1)  # a class is added later
    assert wider.classes == C + 1
    changed = wider.with_labels({0: int(y[0]), 20: C}, C + 1)
    assert int(changed.predicted_classes[20]) == C


def test_network_refuses_none_of_these():
    x, _ = make_clouds()
    network = torch.nn.Linear(D, C).double()
    learner = la.Learner(network, x, "resolve")
    with pytest.raises(la.InputError, match="NONE_OF_THESE"):
        learner.teach([0], [NONE_OF_THESE])


def test_source_accuracy_is_empty_before_two_sources():
    x, y = make_clouds()
    at = torch.arange(9)
    learner = make_learner(x)
    learner.fit(at, y[at])
    assert learner.source_accuracy() == {}
    rows = [(p, int(y[p]), "anna") for p in range(9)] + [(p, int(y[p]), "ben") for p in range(6)]
    weighed = learner.with_annotations(Annotations.from_rows(rows))
    weighed.fit(at, y[at])
    estimates = weighed.source_estimates
    assert weighed.source_accuracy() == estimates.by_name(("anna", "ben"))
    assert weighed.source_accuracy()["ben"].labels == 6


def test_estimate_accuracy_is_share_of_right_leave_one_out_predictions():
    x, y = make_clouds(20)
    labels = y.clone()
    labels[:5] = (labels[:5] + 1) % C
    at, learner = torch.arange(20), make_learner(x)
    predictions = learner.leave_one_out_predictions(at, labels)[0]
    right = sum(int(p.argmax()) == int(label) for p, label in zip(predictions, labels, strict=True))
    assert learner.estimate_accuracy(at, labels) == right / 20
    assert right < 20
    none = torch.where(at < 5, NONE_OF_THESE, y)  # items of no class are not judged
    predictions = learner.leave_one_out_predictions(at, none)[0].argmax(1)
    assert learner.estimate_accuracy(at, none) == float((predictions == y)[5:].double().mean())
    assert make_learner(x).estimate_accuracy(at, torch.full((20,), NONE_OF_THESE)) is None
