"""TypiClust, ProbCover, MaxHerding and DropQuery against scikit-activeml, where the definitions
agree.

The tests remove these differences. TypiClust: scikit-activeml uses 5 neighbours by default, we use
20 as in the paper; it breaks ties at random; we skip clusters of fewer than five items first (as
the authors' program does); once every cluster has a label, it samples at random, we continue with
the least labelled clusters. ProbCover: it searches the radius on a grid over all points, we
compute it exactly on at most 2,000 points; we scale embeddings to length one; it breaks ties at
random. DropQuery: it makes 5 passes, we make 3 as in the paper; it does not rescale the remaining
features; we scale embeddings to length one. K-means initialisation and random masks differ, so
scikit-activeml receives our clusters and the predictions of our passes.
"""

import numpy as np
import pytest

pool = pytest.importorskip("skactiveml.pool")

import torch  # noqa: E402

from labelahead.seeds import make_generator  # noqa: E402
from labelahead.strategies.diversity import (  # noqa: E402
    DROPOUT_PASSES,
    DROPOUT_RATE,
    MIN_CLUSTER_SIZE,
    TYPICALITY_NEIGHBOURS,
    choose_ball_radius,
    cluster_points,
    cover_points,
    find_unstable,
    herd_points,
    select_typical,
)
from research.tests.competitors.peer_cases import Case  # noqa: E402


def make_fixed_clustering(groups: np.ndarray) -> type:
    """Return a clustering algorithm that always returns these groups."""

    class FixedClustering:
        def __init__(self, n_clusters: int) -> None:
            pass

        def fit_predict(self, X):
            return groups

    return FixedClustering


@pytest.mark.parametrize("seed", range(6))
def test_typiclust_queries_equal_scikit_activeml(seed):
    case, q = Case("mlp", seed, n=900, labels=6), 8
    points = torch.from_numpy(case.embedding)
    groups = cluster_points(points, case.labels + q, make_generator(seed, "x")).numpy()
    sizes = np.bincount(groups)
    free = np.setdiff1d(np.arange(len(sizes)), groups[: case.labels])
    assert sizes.min() >= MIN_CLUSTER_SIZE
    strategy = pool.TypiClust(
        missing_label=-1,
        random_state=0,
        cluster_algo=make_fixed_clustering(groups),
        k=TYPICALITY_NEIGHBOURS,
    )
    theirs = strategy.query(X=case.embedding, y=case.labels_with_missing, batch_size=q)
    ours, scores = select_typical(points, case.labels, q, make_generator(seed, "x"))
    assert sizes[groups[ours]].tolist() == sizes[groups[theirs]].tolist()
    # both query the same item of every cluster that both query from
    mine, other = (
        dict(zip(groups[at].tolist(), at.tolist(), strict=True)) for at in (ours, theirs)
    )
    both = mine.keys() & other.keys()
    assert [mine[c] for c in both] == [other[c] for c in both]
    if len(set(sizes[free].tolist())) == len(free):  # no ties between sizes
        assert ours.tolist() == theirs.tolist()
    assert bool((scores > 0).all())


def normalise_embedding(case: Case) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.from_numpy(case.embedding), dim=1)


@pytest.mark.filterwarnings("ignore:The maximum purity")  # there is only one radius
@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("radius", [0.1, 0.2, 0.4])
def test_probcover_query_has_maximum_coverage_of_scikit_activeml(radius, network):
    """After each of our items, scikit-activeml finds no item with a larger coverage."""
    case, q = Case(network, 0), 15
    points = normalise_embedding(case)
    queried, scores = cover_points(points, case.labels, q, radius)
    y = case.labels_with_missing.copy()
    for at, score in zip(queried.tolist(), scores.tolist(), strict=True):
        strategy = pool.ProbCover(n_classes=3, deltas=[radius], missing_label=-1, random_state=0)
        _, covered = strategy.query(X=points.numpy(), y=y, batch_size=1, return_utilities=True)
        assert score == covered[0][at] == np.nanmax(covered[0])
        y[at] = 0


@pytest.mark.parametrize("seed", range(4))
def test_probcover_radius_equals_scikit_activeml(seed):
    case = Case("mlp", seed)
    points = normalise_embedding(case)
    rng = make_generator(seed, "x")
    order = torch.randperm(case.n, generator=rng)  # as choose_ball_radius draws its sample
    groups = np.empty(case.n, dtype=int)
    groups[order] = cluster_points(points[order], 3, rng).numpy()
    step = 1e-3
    strategy = pool.ProbCover(
        n_classes=3,
        deltas=np.arange(step, 2, step),
        cluster_algo=make_fixed_clustering(groups),
        missing_label=-1,
        random_state=0,
    )
    strategy.query(X=points.numpy(), y=case.labels_with_missing, batch_size=1)
    ours = choose_ball_radius(points, 3, make_generator(seed, "x"))
    assert strategy.delta_max_ <= ours < strategy.delta_max_ + step + 1e-9


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("labels", [0, 6])
def test_max_herding_queries_equal_scikit_activeml(network, labels):
    case, q = Case(network, 0, labels=6), 12
    labels_with_missing = (
        case.labels_with_missing if labels else np.full_like(case.labels_with_missing, -1)
    )
    strategy = pool.MaxHerding(
        missing_label=-1, random_state=0, metric="rbf", metric_dict={"gamma": 1.0}
    )
    theirs = strategy.query(X=case.embedding, y=labels_with_missing, batch_size=q)
    points = torch.from_numpy(case.embedding)
    ours, _ = herd_points(points, labels, q, points.new_ones(len(points) - labels))
    assert (ours + labels).tolist() == theirs.tolist()


def make_fixed_classifier(answers: list[np.ndarray]):
    """Return a scikit-activeml classifier that predicts these answers in turn, whatever the items
    are.
    """
    from skactiveml.base import SkactivemlClassifier

    class FixedClassifier(SkactivemlClassifier):
        def fit(self, X, y, sample_weight=None):
            return self

        def predict(self, X):
            return answers.pop(0)

        def predict_proba(self, X):
            raise NotImplementedError

    return FixedClassifier(classes=[0, 1, 2], missing_label=-1)


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("seed", range(3))
def test_dropquery_queries_equal_scikit_activeml(seed, network):
    case, q = Case(network, seed, n=400), 6
    context, rng = case.query_context("dropquery"), make_generator(0, "pick", case.labels)
    predicted = context.candidate_outputs.argmax(1)
    dropped = torch.stack(
        [
            context.fitted.predict_with_dropout(context.candidates, DROPOUT_RATE, rng).argmax(1)
            for _ in range(DROPOUT_PASSES)
        ]
    )
    assert (
        int((2 * (dropped != predicted).sum(0) > DROPOUT_PASSES).sum()) > q
    )  # with fewer items scikit-activeml breaks ties at random
    points = torch.nn.functional.normalize(context.candidate_embedding, dim=1)
    rows = find_unstable(predicted, dropped, q)
    groups = cluster_points(points[rows], q, rng)
    centres = torch.stack([points[rows][groups == g].mean(0) for g in range(q)])

    class FixedCentres:
        def __init__(self, n_clusters: int) -> None:
            assert n_clusters == q

        def fit_transform(self, X, y=None):
            assert sorted(map(tuple, X)) == sorted(
                map(tuple, points[rows].numpy())
            )  # the same items are unstable
            return torch.cdist(torch.from_numpy(X), centres).numpy()

    strategy = pool.DropQuery(
        missing_label=-1,
        random_state=0,
        cluster_algo=FixedCentres,
        dropout_rate=DROPOUT_RATE,
        n_dropout_samples=DROPOUT_PASSES,
    )
    clf = make_fixed_classifier([a.numpy() for a in (predicted, *dropped)])
    theirs = strategy.query(
        X=points.numpy(), y=np.full(len(points), -1), clf=clf, fit_clf=False, batch_size=q
    )
    ours = case.propose("dropquery", q)
    assert set(ours.positions.tolist()) == set(
        context.candidates[torch.from_numpy(theirs)].tolist()
    )
