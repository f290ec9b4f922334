"""Snapshots of the exact learner.

Refreshing a snapshot equals fitting a learner on the same labels.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labelahead.data.loading import load_source
from labelahead.inference.sources import Annotations
from labelahead.learner.config import parse_campaign
from labelahead.learner.guess_quality import describe_states
from labelahead.learner.preparation import prepare_campaign
from labelahead.server.page_model import PageModel
from labelahead.server.snapshot import TrainingRequest
from labelahead.server.snapshot_builder import _set_test_items, build_snapshot
from labelahead.server.snapshot_files import load_snapshot, save_snapshot


@pytest.fixture
def prepared(tmp_path):
    rng = torch.Generator().manual_seed(1)
    centres = 2.5 * torch.randn(3, 6, generator=rng)
    y = torch.arange(90) % 3
    rows = centres[y] + torch.randn(90, 6, generator=rng)
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    tables = {"data": {"name": str(tmp_path / "set.npz")}, "model": {"name": "exact"}, "threads": 1}
    campaign = parse_campaign(tables)
    data = _set_test_items(load_source(campaign.data, 0)[0], {p: p % 3 for p in range(80, 90)})
    return prepare_campaign(campaign, data)


def make_request(round, count):
    return TrainingRequest(round, tuple((p, p % 3) for p in range(count)), 3)


def test_build_snapshot_without_labels_covers_the_pool_with_uniform_outputs(prepared):
    first = build_snapshot(prepared, make_request(0, 0))
    assert sorted(first.points.tolist()) == list(range(80))  # all but the test items
    mean = first.build_posterior({}, 3).posterior.mean
    assert torch.equal(mean, torch.full((80, 3), 1 / 3, dtype=torch.float64))
    assert (first.round, first.labels) == (0, {})


def test_refresh_equals_the_learners_fit(prepared):
    first = build_snapshot(prepared, make_request(0, 0))
    refreshed = first.refresh(make_request(1, 20)).refresh(make_request(2, 60))
    learner = prepared.make_learner(3)
    labelled = torch.arange(60)
    fitted = learner.fit(labelled, labelled % 3)
    assert refreshed.weights == fitted.mixture.weights
    assert refreshed.noise == fitted.noise
    pool_posterior = refreshed.build_posterior(refreshed.labels, 3)
    unlabelled = list(range(60, 80))
    assert torch.allclose(
        pool_posterior.mean(unlabelled),
        fitted.outputs(torch.tensor(unlabelled)).double(),
        atol=1e-5,
    )
    test = torch.arange(80, 90)
    assert refreshed.fit_facts.accuracy == fitted.accuracy(test, test % 3)
    forecast = learner.forecast_error(
        labelled, labelled % 3, refreshed.points[~torch.isin(refreshed.points, labelled)]
    )
    assert refreshed.fit_facts.forecast.error.rate == pytest.approx(forecast.error.rate, abs=1e-6)
    assert refreshed.fit_facts.forecast.fall == pytest.approx(forecast.fall, rel=1e-3)
    loo_outputs, _ = learner.leave_one_out_predictions(labelled, labelled % 3)
    assert refreshed.fit_facts.leave_one_out.accuracy == float(
        (loo_outputs.argmax(1) == labelled % 3).double().mean()
    )


def test_refresh_accepts_classes_added_later(prepared):
    refreshed = build_snapshot(prepared, make_request(0, 0)).refresh(
        TrainingRequest(1, tuple((p, p % 3) for p in range(12)), 5)
    )
    assert refreshed.classes == 5
    assert refreshed.build_posterior(refreshed.labels, 5).classes == 5


def test_build_snapshot_maps_a_table_of_one_column(tmp_path):
    np.savez(tmp_path / "one.npz", x=np.linspace(0, 1, 30, dtype=np.float32)[:, None])
    tables = {"data": {"name": str(tmp_path / "one.npz")}, "model": {"name": "exact"}, "threads": 1}
    first = build_snapshot(prepare_campaign(parse_campaign(tables)), make_request(0, 0))
    assert len(first.pool_facts.map.x) == len(first.pool_facts.map.y) == 30


def test_refresh_is_independent_of_earlier_refreshes_and_label_order(prepared):
    first = build_snapshot(prepared, make_request(0, 0))
    at_once = first.refresh(make_request(2, 60))
    step_by_step = first.refresh(make_request(1, 20)).refresh(make_request(2, 60))
    backwards = first.refresh(replace(make_request(2, 60), labels=make_request(2, 60).labels[::-1]))
    for other in (step_by_step, backwards):
        assert (other.weights, other.noise) == (at_once.weights, at_once.noise)
        assert other.fit_facts.forecast.spread == pytest.approx(
            at_once.fit_facts.forecast.spread, rel=1e-9
        )


def test_refresh_after_removing_a_class_equals_one_without_it(prepared):
    first = build_snapshot(prepared, make_request(0, 0))
    labels = tuple((p, 2 * (p % 2)) for p in range(40))  # classes 0 and 2; class 1 was removed
    removed = first.refresh(TrainingRequest(1, labels, 3, active_classes=(0, 2)))
    without_class = first.refresh(TrainingRequest(1, tuple((p, c // 2) for p, c in labels), 2))
    assert (removed.weights, removed.noise) == (without_class.weights, without_class.noise)
    pool_posterior, other = (
        removed.build_posterior(removed.labels, 3, (0, None, 2)),
        without_class.build_posterior(without_class.labels, 2),
    )
    assert torch.allclose(
        pool_posterior.posterior.mean[:, [0, 2]], other.posterior.mean, atol=1e-12
    )
    assert torch.equal(pool_posterior.posterior.mean[:, 1], torch.zeros(80, dtype=torch.float64))
    fit = first.fit_labels(TrainingRequest(1, labels, 3, active_classes=(0, 2)))
    assert fit.class_numbers.tolist() == [0, 2]
    predicted = fit.predict(first.points[:5])
    assert (predicted.classes, predicted.probabilities.shape) == ((0, 2), (5, 2))


@pytest.mark.parametrize("spread", [1.0, 0.1])
def test_guesses_count_in_predictions_from_few_labels_on_and_never_in_queries(tmp_path, spread):
    rng = torch.Generator().manual_seed(1)
    centres = 1.5 * torch.randn(3, 6, generator=rng)
    y = torch.arange(90) % 3
    rows = centres[y] + 2 * torch.randn(90, 6, generator=rng)
    guessed = torch.where(torch.rand(90, generator=rng) < 0.95, y, (y + 1) % 3)
    np.savez(tmp_path / "set.npz", x=rows.numpy())
    certain = 0.85 * np.eye(3)[guessed.numpy()] + 0.05
    np.save(tmp_path / "said.npy", 1 / 3 + spread * (certain - 1 / 3))
    source = {
        "name": str(tmp_path / "set.npz"),
        "guesses": [str(tmp_path / "said.npy")],
        "classes": ["a", "b", "c"],
    }
    tables = {"data": source, "model": {"name": "exact"}, "threads": 1}
    prepared = prepare_campaign(parse_campaign(tables))
    first = build_snapshot(prepared, make_request(0, 0))
    for count in (6, 40):
        snapshot = first.refresh(make_request(1, count))
        at = torch.arange(count)
        fitted = prepared.make_learner(3).fit(at, at % 3)
        assert float(fitted.kernel_model.trust.abs().max()) > 0.01
        assert (float(snapshot.sharpness[0, 0]) > 1) == (spread < 1)
        (row,) = snapshot.fit_facts.describe_round(None)["guessers"]
        (text,) = describe_states([row], "abc")
        right = int((guessed[:count] == at % 3).sum())
        assert text.startswith(f"said: right for {right} of {count} labelled items")
        assert ("worth" in text) == (count >= 10)
        page_model = PageModel.from_snapshot(snapshot, snapshot.labels, 3)
        rest = list(range(count, 90))
        outputs = fitted.outputs(torch.tensor(rest)).double()
        assert torch.allclose(page_model.pool_posterior.mean(rest), outputs, atol=1e-5)
        plain = replace(snapshot, guesses=None)
        without = PageModel.from_snapshot(plain, snapshot.labels, 3)
        assert without.separate_query_posterior is None
        assert page_model.rank_next(10) == without.rank_next(10)
        answered = {**snapshot.labels, count: 0, count + 1: 1}
        moved, same = page_model.with_labels(answered, 3), without.with_labels(answered, 3)
        assert moved.rank_next(10) == same.rank_next(10)
        short, other = moved.build_shortlist(), same.build_shortlist()
        assert short.rank_next(5) == other.rank_next(5)
        assert torch.equal(short.pool_posterior.points, other.pool_posterior.points)
        some = short.rank_next(5)
        assert torch.allclose(
            short.pool_posterior.mean(some), moved.pool_posterior.mean(some), atol=1e-9
        )


def make_annotated_request():
    """40 items of anna, 20 of them also of ben, and 20 of ben alone: half of his are wrong."""
    rng = torch.Generator().manual_seed(2)
    wrong = (torch.rand(80, generator=rng) < 0.5).long()
    ben = {p: int(p + wrong[p]) % 3 for p in range(20, 60)}
    annotations = [(p, p % 3, "anna") for p in range(40)] + [(p, c, "ben") for p, c in ben.items()]
    request = make_request(1, 60)
    labels = tuple((p, ben.get(p, p % 3)) for p in range(60))
    return replace(request, labels=labels, annotations=tuple(annotations))


def test_refresh_weighs_the_labels_of_several_annotators(prepared, tmp_path):
    request, first = make_annotated_request(), build_snapshot(prepared, make_request(0, 0))
    refreshed = first.refresh(request)
    learner = replace(
        prepared.make_learner(3), annotations=Annotations.from_rows(request.annotations)
    )
    fitted = learner.fit(torch.arange(60), torch.tensor([c for _, c in request.labels]))
    rest = list(range(60, 80))
    pool_posterior = refreshed.build_posterior(refreshed.labels, 3)
    expected = fitted.outputs(torch.tensor(rest)).double()
    assert torch.allclose(pool_posterior.mean(rest), expected, atol=1e-5)
    anna, ben = refreshed.fit_facts.sources
    assert (anna.who, anna.labels, ben.who, ben.labels) == ("anna", 40, "ben", 40)
    assert ben.low < 0.6 < 0.85 < anna.accuracy
    assert {said for _, said, _ in ben.confusions} <= {0, 1, 2}
    accuracy = fitted.accuracy(torch.tensor(rest), torch.tensor(rest) % 3)
    ignored = first.refresh(replace(request, annotations=()))
    assert ignored.fit_facts.sources == ()
    assert ignored.observations == {}
    p = ignored.build_posterior(ignored.labels, 3).mean(rest).argmax(1)
    assert accuracy >= float((p == torch.tensor(rest) % 3).double().mean())
    # A class that is added on the page later, an answer that changes, and a file.
    wider = refreshed.build_posterior({**refreshed.labels, 30: 3}, 4)
    assert torch.isfinite(wider.posterior.mean).all()
    save_snapshot(refreshed, tmp_path / "snapshot.pt")
    again = load_snapshot(tmp_path / "snapshot.pt")
    assert again.fit_facts.sources == refreshed.fit_facts.sources
    reread = again.build_posterior(again.labels, 3)
    assert torch.equal(reread.posterior.mean, pool_posterior.posterior.mean)
    exported = refreshed.fit_labels(request).model
    assert len(exported.label_noise) == 60


def test_one_annotator_changes_no_bit(prepared):
    first, request = build_snapshot(prepared, make_request(0, 0)), make_request(1, 30)
    annotated = replace(request, annotations=tuple((p, c, "anna") for p, c in request.labels))
    one, other = (first.refresh(r) for r in (request, annotated))
    assert torch.equal(one.alpha, other.alpha)
    assert one.fit_facts.forecast == other.fit_facts.forecast
    assert other.fit_facts.sources == ()
