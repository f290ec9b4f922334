"""Scores by partitions and blocks against one float64 posterior over the whole pool."""

import numpy as np
import pyarrow.dataset as dataset
import pytest
import torch

from labelahead.gp.posterior import prior
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import exact
from labelahead.inference.mixture import cosine_matrix, mix_kernels, mixture_kernel
from labelahead.inference.sources import Annotations, combine_sources
from labelahead.outofcore import EmbedOptions, LargePool, embed, scoring
from tests.support.large_pools import (
    CLASSES,
    Inline,
    all_at_once,
    clouds,
    write_annotations,
    write_labels,
)

N = 157


@pytest.fixture
def pool(tmp_path):
    x, y = clouds(N)
    (tmp_path / "pool").mkdir()
    np.save(tmp_path / "pool" / "a.npy", x[:60])
    np.save(tmp_path / "pool" / "b.npy", x[60:])
    embed(tmp_path / "pool", tmp_path / "store", EmbedOptions(rows=25), executor=Inline())
    large = LargePool(
        tmp_path / "store", executor=Inline(), dtype=torch.float64, max_block_items=13
    )
    return large, x, y


def make_item_name(i):
    return f"a.npy:{i}" if i < 60 else f"b.npy:{i - 60}"


@pytest.mark.parametrize(
    "acquisition", ["resolve", "variance", "flip", "mlmoc", "changes", "emoc", "eer"]
)
@pytest.mark.parametrize("count", [0, 12])
def test_partition_scores_match_single_process(pool, acquisition, count):
    large, x, y = pool
    labelled = torch.arange(0, N, 7)[:count]
    labels = {make_item_name(int(i)): CLASSES[y[i]] for i in labelled}
    subset = large.select_subset(
        labels or None, classes=CLASSES, strategy=acquisition, evaluation=40, candidates=N
    )
    sample = subset.positions[count : count + 40]
    naive = "resolve" if not count and acquisition != "variance" else acquisition
    unlabelled, scores, fitted = all_at_once(
        x, labelled, torch.as_tensor(y[labelled]), sample, naive
    )
    assert subset.model.get_mixture() == fitted.mixture
    # labelled items are not queried
    assert set(subset.best.positions.tolist()) == set(unlabelled.tolist())
    ours = dict(zip(subset.best.positions.tolist(), subset.best.scores.tolist(), strict=True))
    assert np.allclose([ours[i] for i in unlabelled.tolist()], scores, rtol=1e-9, atol=1e-12)
    assert subset.best.scores.tolist() == sorted(subset.best.scores.tolist(), reverse=True)


@pytest.mark.parametrize("acquisition", ["resolve", "variance", "flip", "mlmoc", "changes"])
def test_finalist_scores_sum_over_whole_pool(pool, acquisition):
    large, x, y = pool
    at = torch.arange(0, N, 11)
    labels = {make_item_name(int(i)): CLASSES[y[i]] for i in at}
    best = large.select_subset(
        labels, strategy=acquisition, evaluation=30, candidates=60, finalists=25
    ).best
    rest = torch.tensor([i for i in range(N) if i not in set(at.tolist())])
    left, scores, _ = all_at_once(x, at, torch.as_tensor(y[at]), rest, acquisition)
    exact = dict(zip(left.tolist(), (scores * 30 / len(rest)).tolist(), strict=True))
    assert np.allclose(
        best.scores[:25], [exact[i] for i in best.positions[:25].tolist()], rtol=1e-9
    )
    assert best.scores.tolist() == sorted(best.scores.tolist(), reverse=True)
    by_sample = large.select_subset(
        labels, strategy=acquisition, evaluation=30, candidates=60
    ).best.positions
    assert set(best.positions[:25].tolist()) == set(by_sample[:25].tolist())
    assert torch.equal(best.positions[25:], by_sample[25:])


def test_sample_excludes_labelled_items_and_is_stable(pool):
    large, _, _ = pool
    some = torch.tensor([3, 5, 77])
    first, again = large.sample_positions(30, some, 0), large.sample_positions(30, some, 0)
    assert torch.equal(first, again)
    assert len(set(first.tolist())) == 30
    assert not set(first.tolist()) & set(some.tolist())
    more = large.sample_positions(30, torch.cat([some, first[:4]]), 0)
    assert torch.equal(more[:26], first[4:])


def test_greedy_batch_matches_subset_posterior(pool):
    large, x, y = pool
    at = torch.arange(0, N, 9)
    labels = {make_item_name(int(i)): CLASSES[y[i]] for i in at}
    queries = large.query(6, labels, evaluation=40, candidates=N)
    subset = large.select_subset(labels, evaluation=40, candidates=N)
    # The subset has all candidates, so the batch equals that of a posterior of the whole pool.
    from labelahead.acquisition.batch_selection import greedy
    from labelahead.acquisition.pool_view import view

    _, _, fitted = all_at_once(
        x, at, torch.as_tensor(y[at]), subset.positions[len(at) : len(at) + 40], "resolve"
    )
    start = torch.full((N, 3), 1 / 3, dtype=torch.float64)
    post = prior(start, **fitted.kernel_arguments(torch.arange(N), "pseudo"), noise=fitted.noise)
    post = post.condition(at, torch.as_tensor(y[at]))
    left = (~post.is_labelled).nonzero().squeeze(1)
    naive = greedy(
        view(post, left, subset.positions[len(at) : len(at) + 40]),
        "resolve",
        6,
        hypothetical_label="mean",
    )
    assert [q.position for q in queries] == naive.positions.tolist()
    assert np.allclose([q.score for q in queries], naive.scores)
    assert [q.id for q in queries] == [make_item_name(q.position) for q in queries]


def test_rank_best_is_order_independent(pool):
    positions, scores = torch.tensor([5, 2, 9, 1, 7]), torch.tensor([1.0, 3.0, 3.0, 0.5, 1.0])
    shuffled = torch.tensor([3, 1, 4, 0, 2])
    one, two = (scoring.rank_best(positions[o], scores[o], 4) for o in (torch.arange(5), shuffled))
    assert one.positions.tolist() == two.positions.tolist() == [2, 9, 5, 7]


def test_with_points_extends_posterior():
    rng = torch.Generator().manual_seed(1)
    units = torch.nn.functional.normalize(
        torch.randn(40, 5, generator=rng, dtype=torch.float64), dim=1
    )
    start = torch.rand(40, 3, generator=rng, dtype=torch.float64)
    kernel = lambda n: mixture_kernel(units[:n], (0.25, 0.5, 0.25))  # noqa: E731
    targets = torch.randint(3, (7,), generator=rng)
    whole = prior(start, kernel(40), noise=0.03)
    partial = prior(start[:20], kernel(20), noise=0.03)
    for part in (slice(0, 4), slice(4, 5), slice(5, 7)):  # also in several steps
        whole, partial = (
            p.condition(torch.arange(20)[part], targets[part]) for p in (whole, partial)
        )
    extended = partial.with_points(units[20:], start[20:])
    at = torch.arange(40)
    assert torch.allclose(extended.mean, whole.mean)
    assert torch.allclose(extended.covariance_block(at, at), whole.covariance_block(at, at))
    assert torch.allclose(extended.variance(), whole.variance())
    assert extended.amplitude() == partial.amplitude()
    assert torch.allclose(
        extended.condition([30], targets[:1]).mean, whole.condition([30], targets[:1]).mean
    )


# The fit, scores and probabilities are small; the features stay on the device.
EXITS = ("gp/", "acquisition/", "inference/", "outofcore/scoring.py:")


@pytest.mark.parametrize("double", [True, False], ids=["cuda-like", "mps-like"])
def test_items_are_scored_and_predicted_on_a_device_as_on_the_cpu(pool, double, open_device):
    large, _, y = pool
    labels = {make_item_name(int(i)): CLASSES[y[i]] for i in range(0, N, 7)}
    store = large.store
    queries, tables = [], []
    with open_device(float64=double, allowed_exits=EXITS) as device:
        for where in ("cpu", str(device.device)):
            there = LargePool(store, executor=Inline(), dtype=torch.float64, device=where)
            items = there.query(5, labels, mode="top", evaluation=40, candidates=N, finalists=20)
            queries.append([(item.position, round(item.score, 9)) for item in items])
            target = f"{store}-{where.partition(':')[0]}"
            tables.append(there.predict(labels, target, evaluation=40).counts)
    assert queries[0] == queries[1]
    assert tables[0] == tables[1]


def solve_with_sources(x, at, learner, model):
    """Mean (N, 3), covariance (N, N) and noise of further labels, by one inverse of K + D."""
    units = model.normalise_rows(torch.from_numpy(x))
    K = mix_kernels(cosine_matrix(units), model.get_mixture().weights)
    given = learner.annotations.select_items(at, torch.zeros_like(at))
    lapse, noise = learner.source_estimates.lapse, model.noise
    targets, extra = combine_sources(given, lapse, 3, noise)
    inverse = torch.linalg.inv(K[at][:, at] + torch.diag(noise + extra))
    mean = 1 / 3 + K[:, at] @ inverse @ targets
    return mean, K - K[:, at] @ inverse @ K[at], noise


def test_scores_with_several_sources_equal_one_inverse(pool, tmp_path):
    large, x, y = pool
    items = np.arange(0, N, 4)
    names = [make_item_name(i) for i in range(N)]
    rows = write_annotations(tmp_path / "labels.csv", y, items, names)
    subset = large.select_subset(
        tmp_path / "labels.csv", strategy="variance", evaluation=40, candidates=N
    )
    at, annotations = torch.from_numpy(items), Annotations.from_rows(rows)
    learner = ExactLearner(
        torch.from_numpy(x), exact(torch.from_numpy(x), 3), annotations=annotations
    )
    votes = Annotations.vote(rows)
    fitted = learner.fit(at, torch.tensor([votes[i] for i in items.tolist()]))
    assert fitted.kernel_model.label_noise.max() > 0.1
    mean, covariance, noise = solve_with_sources(x, at, learner, fitted.kernel_model)
    sample = subset.positions[len(items) : len(items) + 40]
    for position, score in zip(*(part.tolist() for part in subset.best), strict=True):
        others = sample[sample != position]
        own = covariance[position, position]
        naive = covariance[position, others].square().sum() / (own + noise)
        assert score == pytest.approx(float(naive), rel=1e-7)
    post = subset.build_posterior().view.posterior
    assert torch.allclose(post.mean, mean[subset.positions], atol=1e-8)
    every = torch.arange(len(subset.positions))
    naive = covariance[subset.positions][:, subset.positions]
    assert torch.allclose(post.covariance_block(every, every).double(), naive, atol=1e-8)
    p = fitted.predict_proba(subset.positions)
    assert torch.allclose(subset.predict_proba(every), p, atol=1e-8)


def test_whole_pool_with_several_sources_is_predicted_as_in_memory(pool, tmp_path):
    large, x, y = pool
    items = np.arange(0, N, 4)
    names = [make_item_name(i) for i in range(N)]
    rows = write_annotations(tmp_path / "labels.csv", y, items, names)
    done = large.predict(tmp_path / "labels.csv", tmp_path / "out", evaluation=60)
    votes, at = Annotations.vote(rows), torch.from_numpy(items)
    numbers = torch.tensor([votes[i] for i in items.tolist()])
    x = torch.from_numpy(x)
    learner = ExactLearner(x, exact(x, 3), annotations=Annotations.from_rows(rows))
    p = learner.fit(at, numbers).predict_proba(torch.arange(N))
    table = dataset.dataset(tmp_path / "out").to_table().to_pylist()
    order = {name: i for i, name in enumerate(names)}
    table.sort(key=lambda row: order[row["id"]])
    assert np.allclose([row["probability"] for row in table], p.max(1).values, atol=1e-6)
    naive = learner.forecast_error(at, numbers, large.sample_positions(60, at, 0))
    assert done.forecast.error == pytest.approx(naive.error, abs=1e-9)
    assert set(large.source_accuracy) == set(learner.source_accuracy())
    for name, estimate in learner.source_accuracy().items():
        assert large.source_accuracy[name].labels == estimate.labels
        assert large.source_accuracy[name].accuracy == pytest.approx(estimate.accuracy, abs=1e-9)
    large.query(3, dict.fromkeys(names[:3], "a") | dict.fromkeys(names[3:6], "b"))
    assert large.source_accuracy == {}  # labels without annotators


def test_annotators_who_agree_with_one_source_change_nothing(pool, tmp_path):
    large, _, y = pool
    labels = {make_item_name(i): CLASSES[y[i]] for i in range(0, N, 9)}
    rows = [(name, label, "anna") for name, label in labels.items()]
    file = write_labels(tmp_path / "labels.csv", rows, ("id", "label", "annotator"))
    by_file, by_name = (large.select_subset(given, evaluation=30) for given in (file, labels))
    assert torch.equal(by_file.best.scores, by_name.best.scores)
    assert torch.equal(by_file.best.positions, by_name.best.positions)
