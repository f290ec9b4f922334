"""TypiClust, ProbCover, MaxHerding and DropQuery against scikit-activeml, as far as the definitions
agree.

What differs, and is held equal here. TypiClust: their neighbourhoods have 5 items unless told
otherwise, ours 20 as in the paper; they leave ties to chance; clusters of fewer than five items
wait in ours (as in the authors' program), not in theirs; when no cluster without labels is left
they draw at random, ours goes on with the least labelled ones. ProbCover: they look for the radius
on a grid and on all points, ours exactly and on 2,000 at most; ours scales embeddings to length
one, theirs takes them as they are; they leave ties to chance. DropQuery: 5 passes of theirs, 3 of
ours as in the paper; theirs does not scale up what is left, ours scales embeddings to length one.
K-means starts and random masks differ, so theirs is handed our clusters, and what our passes said.
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


def given(groups: np.ndarray) -> type:
    """A clustering algorithm that finds these groups, whatever it is asked."""

    class Given:
        def __init__(self, n_clusters: int) -> None:
            pass

        def fit_predict(self, X):
            return groups

    return Given


@pytest.mark.parametrize("seed", range(6))
def test_typiclust_takes_the_same_items(seed):
    case, q = Case("mlp", seed, n=900, labels=6), 8
    points = torch.from_numpy(case.embedding)
    groups = cluster_points(points, case.labels + q, make_generator(seed, "x")).numpy()
    sizes = np.bincount(groups)
    free = np.setdiff1d(np.arange(len(sizes)), groups[: case.labels])
    assert sizes.min() >= MIN_CLUSTER_SIZE
    strategy = pool.TypiClust(
        missing_label=-1, random_state=0, cluster_algo=given(groups), k=TYPICALITY_NEIGHBOURS
    )
    theirs = strategy.query(X=case.embedding, y=case.known, batch_size=q)
    ours, scores = select_typical(points, case.labels, q, make_generator(seed, "x"))
    assert sizes[groups[ours]].tolist() == sizes[groups[theirs]].tolist()
    # of every cluster both chose from, the same item
    mine, other = (
        dict(zip(groups[at].tolist(), at.tolist(), strict=True)) for at in (ours, theirs)
    )
    both = mine.keys() & other.keys()
    assert [mine[c] for c in both] == [other[c] for c in both]
    if len(set(sizes[free].tolist())) == len(free):  # no ties between sizes
        assert ours.tolist() == theirs.tolist()
    assert bool((scores > 0).all())


def scaled(case: Case) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.from_numpy(case.embedding), dim=1)


@pytest.mark.filterwarnings("ignore:The maximum purity")  # a single radius is not judged
@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("radius", [0.1, 0.2, 0.4])
def test_probcover_takes_an_item_that_covers_most(radius, network):
    """Asked again after each of our picks, they find none that covers more."""
    case, q = Case(network, 0), 15
    points = scaled(case)
    picked, scores = cover_points(points, case.labels, q, radius)
    y = case.known.copy()
    for at, score in zip(picked.tolist(), scores.tolist(), strict=True):
        strategy = pool.ProbCover(n_classes=3, deltas=[radius], missing_label=-1, random_state=0)
        _, covered = strategy.query(X=points.numpy(), y=y, batch_size=1, return_utilities=True)
        assert score == covered[0][at] == np.nanmax(covered[0])
        y[at] = 0


@pytest.mark.parametrize("seed", range(4))
def test_probcover_finds_the_same_radius(seed):
    case = Case("mlp", seed)
    points = scaled(case)
    rng = make_generator(seed, "x")
    order = torch.randperm(case.n, generator=rng)  # as ball_radius draws its sample
    groups = np.empty(case.n, dtype=int)
    groups[order] = cluster_points(points[order], 3, rng).numpy()
    step = 1e-3
    strategy = pool.ProbCover(
        n_classes=3,
        deltas=np.arange(step, 2, step),
        cluster_algo=given(groups),
        missing_label=-1,
        random_state=0,
    )
    strategy.query(X=points.numpy(), y=case.known, batch_size=1)
    ours = choose_ball_radius(points, 3, make_generator(seed, "x"))
    assert strategy.delta_max_ <= ours < strategy.delta_max_ + step + 1e-9


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("labels", [0, 6])
def test_max_herding_takes_the_same_items(network, labels):
    case, q = Case(network, 0, labels=6), 12
    known = case.known if labels else np.full_like(case.known, -1)
    strategy = pool.MaxHerding(
        missing_label=-1, random_state=0, metric="rbf", metric_dict={"gamma": 1.0}
    )
    theirs = strategy.query(X=case.embedding, y=known, batch_size=q)
    points = torch.from_numpy(case.embedding)
    ours, _ = herd_points(points, labels, q, points.new_ones(len(points) - labels))
    assert (ours + labels).tolist() == theirs.tolist()


def saying(answers: list[np.ndarray]):
    """A classifier of theirs that gives these answers, one after the other, and takes no notice of
    the items.
    """
    from skactiveml.base import SkactivemlClassifier

    class Saying(SkactivemlClassifier):
        def fit(self, X, y, sample_weight=None):
            return self

        def predict(self, X):
            return answers.pop(0)

        def predict_proba(self, X):
            raise NotImplementedError

    return Saying(classes=[0, 1, 2], missing_label=-1)


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("seed", range(3))
def test_dropquery_takes_the_same_items(seed, network):
    case, q = Case(network, seed, n=400), 6
    now, rng = case.situation("dropquery"), make_generator(0, "pick", case.labels)
    said = now.candidate_outputs.argmax(1)
    dropped = torch.stack(
        [
            now.fitted.predict_with_dropout(now.candidates, DROPOUT_RATE, rng).argmax(1)
            for _ in range(DROPOUT_PASSES)
        ]
    )
    assert (
        int((2 * (dropped != said).sum(0) > DROPOUT_PASSES).sum()) > q
    )  # below that they leave ties to chance
    points = torch.nn.functional.normalize(now.candidate_embedding, dim=1)
    places = find_unstable(said, dropped, q)
    groups = cluster_points(points[places], q, rng)
    centres = torch.stack([points[places][groups == g].mean(0) for g in range(q)])

    class Given:
        def __init__(self, n_clusters: int) -> None:
            assert n_clusters == q

        def fit_transform(self, X, y=None):
            assert sorted(map(tuple, X)) == sorted(
                map(tuple, points[places].numpy())
            )  # the same items waver
            return torch.cdist(torch.from_numpy(X), centres).numpy()

    strategy = pool.DropQuery(
        missing_label=-1,
        random_state=0,
        cluster_algo=Given,
        dropout_rate=DROPOUT_RATE,
        n_dropout_samples=DROPOUT_PASSES,
    )
    clf = saying([a.numpy() for a in (said, *dropped)])
    theirs = strategy.query(
        X=points.numpy(), y=np.full(len(points), -1), clf=clf, fit_clf=False, batch_size=q
    )
    ours = case.propose("dropquery", q)
    assert set(ours.positions.tolist()) == set(now.candidates[torch.from_numpy(theirs)].tolist())
