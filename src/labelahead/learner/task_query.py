"""Query the next items to label where a label is several classes at once, a number or a rating."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labelahead.data import Answers, Data
from labelahead.data.dataset import Loaded
from labelahead.data.loading import load_source
from labelahead.data.pool import Pool
from labelahead.data.task_labels import read_task_labels
from labelahead.errors import InputError
from labelahead.learner.config import Campaign, Progress
from labelahead.learner.export import round_columns
from labelahead.learner.preparation import PreparedCampaign, find_task_of_data, prepare_campaign
from labelahead.strategies.query import Query, propose
from labelahead.tasks import Task

__all__ = ["TaskQuery", "collect_task_labels", "prepare_task_query", "select_task_items"]


@dataclass(frozen=True, eq=False)
class TaskQuery:
    """The items to label next, with what is predicted for them.

    Attributes:
        query: The items, best first.
        columns: Of the predictions, by name; none before the first label.
        notes: For the user.
    """

    query: Query
    columns: Mapping[str, list[Any]]
    notes: tuple[str, ...] = ()


def prepare_task_query(
    campaign: Campaign, labels: str | Path | None, progress: Progress | None = None
) -> tuple[PreparedCampaign, dict[int, int]]:
    """Load the data and their answers, and choose features.

    Args:
        campaign: The configuration, of another task than classes.
        labels: A file of `id,label` with further answers.
        progress: Called with the stage, the work done and its total.

    Returns:
        The prepared campaign, whose task has the answers of both, and position -> code.
    """
    data, answers = load_source(campaign.data, campaign.seed)
    given, task = collect_task_labels(campaign, (data, answers), labels)
    if task is not None:
        data = replace(data, task=task)
    return prepare_campaign(campaign, (data, answers), progress), given


def collect_task_labels(
    campaign: Campaign, loaded: Loaded, labels: str | Path | None
) -> tuple[dict[int, int], Task | None]:
    """Return the answers by position, and the task of their codes; None if no class is known.

    Args:
        campaign: The configuration.
        loaded: The data, and the answers in them.
        labels: A file of `id,label` with further answers.

    Raises:
        InputError: The file contradicts the data.
    """
    data, answers = loaded
    given = _list_answers(data, answers)
    if labels is None:
        return given, data.task
    source = campaign.data
    if source.task == "number" or source.classes:
        data = replace(data, task=find_task_of_data(source, data))
    read = read_task_labels(labels, data, source.task, source.classes)
    for position, code in read.codes.items():
        if position not in data.test and given.setdefault(position, code) != code:
            raise InputError(
                f"{labels} gives {read.task.write(code)!r} for {data.ids[position]}, but the data "
                f"give {read.task.write(given[position])!r}; expected one label: correct one of them"
            )
    return given, read.task


def _list_answers(data: Data, answers: Answers | None) -> dict[int, int]:
    """Return the answers in the data outside the test part."""
    if answers is None:
        return {}
    known = answers.has_label.clone()
    known[data.test] = False
    at = known.nonzero().flatten()
    if not len(at):
        return {}
    return dict(zip(at.tolist(), answers.take(at).tolist(), strict=True))


def select_task_items(
    prepared: PreparedCampaign, given: Mapping[int, int], n: int, progress: Progress
) -> TaskQuery:
    """Fit the answers and return the n items to label next.

    Args:
        prepared: From `prepare_task_query`.
        given: position -> code of its answer.
        n: Number of items.
        progress: Called with the stage, the work done and its total.

    Raises:
        InputError: There are fewer items without an answer.
    """
    assert prepared.task is not None
    pool = Pool(len(prepared.data), test=prepared.data.test)
    order = sorted(given)  # in the order of the labelling page, whatever the order of a file
    if order:
        pool.label(order, [given[position] for position in order])
    if n > len(pool.unlabelled):
        raise InputError(
            f"{n} items requested, but {len(pool.unlabelled)} of {len(prepared.data)} are "
            "unlabelled; expected at most that; leave the label of items to be queried empty"
        )
    campaign = prepared.campaign
    learner = prepared.make_learner(len(prepared.task.outputs))
    progress("training", 0, 1)
    fitted = learner.fit(pool.labelled, pool.labels, seed=campaign.seed)
    progress("looking ahead", 0, n)
    found = propose(fitted.model, prepared.inputs, pool, n, campaign.asking, seed=campaign.seed)
    if not len(pool):
        return TaskQuery(found, {}, found.notes)
    columns = fitted.predict_answers(found.positions).columns()
    return TaskQuery(found, round_columns(columns), found.notes)
