"""What a strategy gets to see, and strategies made from a score."""

import pytest
import torch

from labelahead.errors import InputError
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.context import QueryContext, make_scoring_strategy
from tests.support.campaigns import blobs, labelled_pool, own


def make_context(labelled=6, n=1, test=(23,), **query):
    x, y = blobs(24)
    pool = labelled_pool(y, labelled, test=list(test))
    return QueryContext.from_pool(own().eval(), x, pool, QueryConfig(**query), n)


def test_from_pool_draws_candidates_from_unlabelled_items_without_test_items():
    everything = make_context()
    assert sorted(everything.candidates.tolist()) == list(range(6, 23))
    some = make_context(candidates=5)
    assert some.candidates.tolist() == everything.candidates[:5].tolist()
    assert len(make_context(candidates=5, n=9).candidates) == 9  # as many as are queried


def test_outputs_and_embedding_are_those_of_the_network_at_the_points():
    context = make_context()
    x, _ = blobs(24)
    assert context.points.tolist() == [*range(6), *context.candidates.tolist()]
    want = context.model(x[context.points]).detach()
    assert torch.allclose(context.outputs, want)
    assert torch.equal(context.candidate_outputs, context.outputs[6:])
    assert torch.allclose(make_context().candidate_outputs, want[6:])  # before `outputs` is read
    assert torch.equal(context.candidate_embedding, context.embedding[6:])


def test_start_is_uniform_before_the_first_label():
    assert torch.equal(make_context(labelled=0).start, torch.full((23, 3), 1 / 3))
    context = make_context()
    assert torch.equal(context.start, context.fitted.start(context.outputs, context.points))


def test_label_without_a_network_output_raises():
    context = make_context()
    context.labels = torch.tensor([0, 1, 2, 3, 1, 2])
    with pytest.raises(InputError, match="a label is class 3, but the network has 3 outputs"):
        _ = context.outputs


def test_require_memory_refuses_kernels_above_six_gib():
    context = make_context()
    context.require_memory(2**14, 8)  # 2 GiB
    with pytest.raises(InputError, match="needs 8 GiB; expected at most 6"):
        context.require_memory(2**15, 8)


def test_scoring_strategy_selects_largest_scores_and_first_of_ties():
    context = make_context()
    scores = torch.tensor([1.0, 5.0, 2.0, 5.0] + [0.0] * 13)
    select = make_scoring_strategy(lambda context, rng: scores)
    batch = select(context, 3, torch.Generator(), "top", None)
    assert batch.positions.tolist() == context.candidates[[1, 3, 2]].tolist()
    assert batch.scores.tolist() == [5.0, 5.0, 2.0]
    assert context.seconds["score"] >= 0
