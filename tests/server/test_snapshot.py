"""Snapshots and the facts about a fit."""

from dataclasses import replace

import pytest
import torch

from labelahead.data.positions import PositionIndex
from labelahead.inference.network import outputs_to_probabilities
from labelahead.server.snapshot import (
    FitFacts,
    LeaveOneOutFacts,
    NetworkSnapshot,
    PoolFacts,
    PoolMap,
    PoolPredictions,
    TrainingRequest,
)

N, C = 8, 3


def make_snapshot(**more):
    rng = torch.Generator().manual_seed(5)
    psi = torch.randn(N, 6, generator=rng, dtype=torch.float64)
    outputs = torch.rand(N, C, generator=rng, dtype=torch.float64)
    known = {"round": 1, "labels": {0: 1, 3: 2}} | more
    return NetworkSnapshot(
        points=torch.arange(N), outputs=outputs, kernel_arguments={"kernel": psi @ psi.T}, **known
    )


def make_leave_one_out(random_sample=()):
    outputs = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.25, 0.75, 0.0]])
    labels, labelled = torch.tensor([0, 1, 1]), torch.tensor([4, 2, 6])
    residuals = torch.eye(C)[labels] - outputs
    return LeaveOneOutFacts.from_predictions(outputs, residuals, labelled, labels, random_sample)


def test_training_request_leaves_out_unknown_items_and_inactive_classes():
    request = TrainingRequest(2, ((30, 0), (10, 1), (99, 1)), 3, (10, 99), (30,), (0, 2))
    rows = request.with_rows(PositionIndex(torch.tensor([10, 20, 30])))
    assert rows == replace(request, labels=((2, 0), (0, 1)), random_sample=(0,), confirmed=(2,))
    assert request.class_numbers == (0, 2)
    assert replace(request, active_classes=None).class_numbers == (0, 1, 2)
    assert replace(request, active_classes=(1,)).class_numbers == (0, 1, 2)  # two at least


def test_leave_one_out_facts_match_manual_computation():
    facts = make_leave_one_out()
    # Class 2 has no label, so it is not suggested.
    assert [(r.position, r.label, r.suggested) for r in facts.rows] == [
        (4, 0, 0),
        (2, 1, 1),
        (6, 1, 1),
    ]
    assert facts.accuracy == 1.0
    assert facts.sample_accuracy is None
    assert [r.output_of_label for r in facts.rows] == [0.9, 0.3, 0.75]
    squares = [0.1**2 + 0.1**2, 0.2**2 + 0.7**2 + 0.5**2, 0.25**2 + 0.25**2]
    assert facts.squared_error == pytest.approx(sum(squares) / 3)
    sampled = make_leave_one_out(random_sample=[2])
    assert sampled.squared_error == pytest.approx(squares[1])
    assert sampled.sample_accuracy == 1.0


def test_describe_round_has_every_field_with_and_without_a_forecast():
    empty = FitFacts().describe_round(None)
    full = FitFacts(3, 1.23456, 0.5, 0.25, leave_one_out=make_leave_one_out()).describe_round(0.75)
    assert list(full) == list(empty)
    assert {k for k, v in empty.items() if v is not None} == {"labels", "seconds"}
    assert (full["loo_all"], full["gain"], full["seconds"]) == (1.0, 0.75, 1.235)


def test_pool_predictions_give_inactive_classes_no_probability():
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    found = PoolPredictions(torch.tensor([7, 3]), (0, 2), p)
    assert found.by_class_number(4) == {7: [0.25, 0, 0.75, 0], 3: [0.5, 0, 0.5, 0]}
    assert found.pick_best() == {7: (2, 0.75), 3: (0, 0.5)}


def test_with_positions_renumbers_points_labels_map_and_leave_one_out_rows():
    snapshot = make_snapshot(
        pool_facts=PoolFacts(PoolMap((1, 5), (0.0, 1.0), (2.0, 3.0))),
        fit_facts=FitFacts(leave_one_out=make_leave_one_out()),
    )
    positions = torch.arange(N) * 10 + 100
    moved = snapshot.with_positions(positions)
    assert moved.points.tolist() == positions.tolist()
    assert moved.labels == {100: 1, 130: 2}
    assert moved.pool_facts.map == PoolMap((110, 150), (0.0, 1.0), (2.0, 3.0))
    assert [row.position for row in moved.fit_facts.leave_one_out.rows] == [140, 120, 160]


def test_predict_proba_is_of_the_network_until_labels_are_added():
    snapshot, rows, active = make_snapshot(), torch.arange(N), torch.arange(C)
    trained = snapshot.build_posterior(snapshot.labels, C)
    of_network = outputs_to_probabilities(snapshot.outputs, "squared")
    assert torch.allclose(snapshot.predict_proba(trained, rows, active), of_network)
    more = snapshot.build_posterior({**snapshot.labels, 5: 0}, C)
    of_linearised = outputs_to_probabilities(more.posterior.mean, "squared")
    assert torch.allclose(snapshot.predict_proba(more, rows, active), of_linearised)
    assert not torch.allclose(of_linearised, of_network)


def test_build_posterior_moves_outputs_of_merged_and_removed_classes():
    snapshot = make_snapshot()
    merged = snapshot.build_posterior({}, C, (0, 0, 2)).start.mean
    want = snapshot.outputs.clone()
    want[:, 0] += want[:, 1]
    want[:, 1] = 0
    assert torch.allclose(merged, want)
    removed = snapshot.build_posterior({}, C, (0, None, 2)).start.mean
    assert torch.equal(removed[:, 1], torch.zeros(N, dtype=torch.float64))
    assert torch.allclose(removed.sum(1), snapshot.outputs.sum(1))
    ratio = snapshot.outputs[:, 0] / snapshot.outputs[:, 2]
    assert torch.allclose(removed[:, 0] / removed[:, 2], ratio)
