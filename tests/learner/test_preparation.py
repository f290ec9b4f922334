"""Data, network and embedding of a campaign."""

from dataclasses import replace

import pytest
import torch

from labelahead.data import from_arrays
from labelahead.errors import InputError
from labelahead.inference.exact import ExactLearner
from labelahead.inference.network import NetworkLearner
from labelahead.learner.config import Source, parse_campaign
from labelahead.learner.preparation import (
    choose_model_and_embedding,
    choose_task_strategy,
    find_task_of_data,
    prepare_campaign,
)
from labelahead.strategies.base import QueryConfig
from labelahead.tasks import find_task


def make_campaign(**tables):
    return parse_campaign({"data": {"name": "digits", "limit": 30}, "threads": 1} | tables)


def test_prepared_campaign_is_resolved():
    prepared = prepare_campaign(make_campaign(model={"name": "mlp"}))
    assert prepared.rows.shape == (len(prepared.data), 1, 8, 8)
    assert prepared.campaign.model.name == "mlp"
    assert prepared.campaign.device == "cpu"
    assert prepared.campaign.threads == 1
    assert prepared.campaign.training["steps"] == prepared.training.steps
    assert not prepared.has_guesses
    learner = prepared.make_learner(10)
    assert isinstance(learner, NetworkLearner)
    one, two = (prepared.network(10, seed).state_dict() for seed in (1, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_prepared_campaign_of_the_exact_model_makes_its_learner():
    prepared = prepare_campaign(make_campaign(model={"name": "exact"}))
    assert isinstance(prepared.make_learner(10), ExactLearner)
    assert prepared.feature_width == prepared.rows[0].numel()


def test_for_campaign_shares_data_of_campaigns_that_differ_in_the_strategy():
    campaign = make_campaign(model={"name": "exact"})
    prepared = prepare_campaign(campaign)
    mine = prepared.campaign
    other = replace(mine, asking=replace(mine.asking, strategy="random"))
    shared = prepared.for_campaign(other)
    assert shared.inputs is prepared.inputs
    assert shared.campaign.asking.strategy == "random"
    assert prepared.for_campaign(replace(mine, model=replace(mine.model, width=7))) is None
    # The part of the digits that is kept depends on the seed.
    assert prepared.for_campaign(replace(mine, seed=1)) is None
    given = prepare_campaign(campaign, from_arrays(torch.eye(6), [0, 1] * 3))
    again = given.for_campaign(replace(given.campaign, seed=1))
    assert again.inputs is given.inputs


def test_data_given_in_python_must_be_given_again():
    given = from_arrays(torch.eye(6), [0, 1] * 3, name="mine")
    prepared = prepare_campaign(make_campaign(model={"name": "exact"}), given)
    assert prepared.campaign.data.name == "given:mine"
    with pytest.raises(InputError, match="this campaign ran on data given in Python"):
        prepare_campaign(prepared.campaign)


def test_choose_model_and_embedding_follows_the_data_and_gives_the_reason():
    data, _ = from_arrays(torch.eye(6), [0, 1] * 3)
    name, embedding, notes = choose_model_and_embedding(make_campaign(), data)
    assert (name, embedding) == ("exact", "raw")
    assert notes[0].startswith("network: exact (")
    samples, _ = from_arrays({"ids": torch.ones(6, 3)}, [0, 1] * 3)
    with pytest.raises(InputError, match="expected a network of your own"):
        choose_model_and_embedding(make_campaign(model={"name": "mlp"}), samples)


def test_task_without_labels_follows_the_settings():
    data, _ = from_arrays([[0.0], [1.0]])
    assert find_task_of_data(Source(), data) is None
    number = find_task_of_data(Source(task="number", unit="kg", limits=(0, 5)), data)
    assert (number.unit, number.limits) == ("kg", (0, 5))
    assert find_task_of_data(Source(task="rating"), data).levels == ("1", "2", "3", "4", "5")
    named = find_task_of_data(Source(task="multilabel", classes=("cat", "dog")), data)
    assert named.outputs == ("cat", "dog")
    with pytest.raises(InputError, match="name them with --classes"):
        find_task_of_data(Source(task="multilabel"), data)


def test_task_of_the_labels_must_be_that_of_the_settings():
    data, _ = from_arrays([[0.0], [1.0]], [2.5, 3.5], task="number")
    with pytest.raises(
        InputError, match="are of the task number, but the configuration says rating"
    ):
        find_task_of_data(Source(task="rating"), data)


def test_guesses_are_refused_for_another_task_than_classes():
    given = from_arrays([[0.0], [1.0]], [2.5, 3.5], task="number")
    campaign = make_campaign(data={"task": "number", "prior": "class-names"})
    with pytest.raises(InputError, match="leave out --guesses and --prior"):
        prepare_campaign(campaign, given)


def test_for_task_makes_learners_with_further_answers():
    given = from_arrays([[0.0], [1.0], [2.0]], ["a", "b;a", "[]"], task="multilabel")
    prepared = prepare_campaign(make_campaign(), given)
    assert prepared.make_learner(0).classes == 2
    task = find_task(**prepared.task.describe())
    task.add_output("c")
    assert prepared.for_task(task).make_learner(0).classes == 3
    assert prepared.make_learner(0).classes == 2


def test_strategy_of_a_task_replaces_the_default_only_if_that_does_not_work():
    number, several = find_task("number"), find_task("multilabel", classes=["a"])
    assert choose_task_strategy(QueryConfig(), None).strategy == "flip"
    assert choose_task_strategy(QueryConfig(), number).strategy == "variance"
    assert choose_task_strategy(QueryConfig(), several).strategy == "flip"
    assert choose_task_strategy(QueryConfig("gsx"), number).strategy == "gsx"
