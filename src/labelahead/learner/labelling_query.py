"""Query the next items to label from real data with some labels."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelahead.data import Answers, Data, read_labels
from labelahead.data.classes import merge_class_lists, require_distinct_classes
from labelahead.data.labels import read_labels_by_source
from labelahead.data.loading import load_without_guesses
from labelahead.data.pool import Pool
from labelahead.data.records import Records, format_id, to_python_list
from labelahead.data.split import CLASSES
from labelahead.data.table_writer import iter_json_rows, merge_columns, write_csv
from labelahead.errors import InputError
from labelahead.inference.sources import Annotations, SourceAccuracy
from labelahead.learner.config import Campaign, Progress, Source
from labelahead.learner.preparation import PreparedCampaign, prepare_campaign, require_classes
from labelahead.learner.source_query import SourceGoal, SourceSelection, select_sources
from labelahead.learner.task_query import prepare_task_query, select_task_items
from labelahead.strategies import find_strategy
from labelahead.strategies.query import Query, propose

__all__ = [
    "CollectedLabels",
    "QueryItem",
    "collect_labels",
    "collect_labels_by_source",
    "describe_sources",
    "format_query_items",
    "query_items",
    "with_label_classes",
]

UNNAMED_SOURCE = ""  # of labels in the data, and of rows of a label file that name no annotator

MIN_SOURCE_LABELS = 5  # of a source whose accuracy is told


@dataclass(frozen=True, eq=False)
class CollectedLabels:
    """The labels in the data and in a label file.

    Attributes:
        labels: position -> class number, outside the test part.
        classes: Names of all classes.
        notes: For the user.
        annotations: All labels by source; None if there are not two sources.
    """

    labels: Mapping[int, int]
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    annotations: Annotations | None = None


@dataclass(frozen=True)
class QueryItem:
    """An item to label next, with the current prediction."""

    id: str  # from the id column, or the file name, or the row number
    position: int
    score: float
    prediction: str | None  # the most probable class; None without labels and guesses
    probability: float | None
    text: str | None = None  # the text, where items are texts
    record: Mapping[str, Any] = field(default_factory=dict)  # the user's own columns
    source: str | None = None  # whom to ask, if sources have prices
    price: float | None = None
    # the prediction of another task than classes, with intervals or probabilities
    columns: Mapping[str, Any] = field(default_factory=dict)


def query_items(
    campaign: Campaign,
    n: int,
    *,
    labels: str | Path | None = None,
    classes: Sequence[str] = (),
    progress: Progress | None = None,
    sources: SourceGoal | None = None,
) -> tuple[list[QueryItem], PreparedCampaign]:
    """Train on the labels and return the n items to label next, best first.

    Args:
        campaign: The configuration.
        n: Number of items.
        labels: A file of `id,label`; default: the labels in the data. With a column `annotator`
            or `source`, the exact learner weighs the labels of each by its reliability.
        classes: Names of all classes, including those without labels; default: those of the
            campaign's data.
        progress: Called with the stage, the work done and its total.
        sources: Prices of sources: then also who is asked is chosen, and items that have a label
            are candidates, too. Fewer than n are returned if no other label is worth its price.
    """
    report = progress or (lambda what, done, total: None)
    report("loading", 0, 1)
    campaign_of_all = _without_test_part(campaign, classes)
    if campaign.data.task != CLASSES:
        return _query_task_items(campaign_of_all, n, labels, sources, report)
    source = with_label_classes(campaign_of_all.data, labels, campaign.seed)
    prepared = prepare_campaign(replace(campaign_of_all, data=source), progress=progress)
    pool, given = _label_pool(prepared, labels, prepared.campaign.data.classes)
    names, notes = given.classes, given.notes
    prepared = prepared.for_classes(names)
    count = max(len(names), 2)
    if sources is not None:
        report("looking ahead", 0, n)
        found = select_sources(prepared, pool, given.annotations, n, sources, count)
        items = _build_source_items(prepared.data, found, names)
        return items, replace(prepared, notes=(*prepared.notes, *notes, *found.notes))
    if n > len(pool.unlabelled):
        raise InputError(
            f"{n} items requested, but {len(pool.unlabelled)} of {len(prepared.data)} are "
            "unlabelled; expected at most that; leave the label of items to be queried empty"
        )
    asking, strategy = campaign.asking, find_strategy(campaign.asking.strategy)
    if len(pool):
        report("training", 0, 1)
    elif strategy.look_ahead and strategy.choose_acquisition(()) != strategy.acquisition:
        # Predictions of an untrained network are noise; its similarities are not.
        notes += (f"no label yet: items that cover the data, by resolve and not {strategy.name}",)
        asking = replace(asking, strategy="resolve", mode="greedy")
    learner = prepared.make_learner(count, strategy.objective)
    learner = learner.with_annotations(given.annotations)
    order = (
        pool.labelled.argsort()
    )  # in the order of the labelling page, whatever the order of a file
    seed = prepared.training.derive_seed(campaign.seed, 0)
    fitted = learner.fit(pool.labelled[order], pool.labels[order], seed=seed)
    notes += fitted.trained.notes if fitted.trained else ()
    notes += describe_sources(learner.source_accuracy())
    if prepared.guesses is not None:
        notes += prepared.guesses.describe_quality(fitted.model, pool.labels[order])
    report("looking ahead", 0, n)
    chosen = propose(
        fitted.model,
        prepared.inputs,
        pool,
        n,
        asking,
        loss=fitted.loss,
        seed=campaign.seed,
        fresh=learner.network,
        training=prepared.training,
        objective=fitted.objective,
    )
    notes += chosen.notes
    p = None  # before the first label predictions are the guesses, if there are some
    if len(pool) or prepared.guesses is not None:
        p = fitted.predict_proba(chosen.positions, len(names) or None)
    items = _build_items(prepared.data, chosen, names, p)
    return items, replace(prepared, notes=(*prepared.notes, *notes))


def _query_task_items(
    campaign: Campaign,
    n: int,
    labels: str | Path | None,
    sources: SourceGoal | None,
    report: Progress,
) -> tuple[list[QueryItem], PreparedCampaign]:
    """Do `query_items` for another task than classes."""
    prepared, given = prepare_task_query(campaign, labels, report)
    if sources is not None:
        require_classes(prepared.task, "a query with prices")
    found = select_task_items(prepared, given, n, report)
    items = [
        replace(item, columns={name: values[i] for name, values in found.columns.items()})
        for i, item in enumerate(_build_items(prepared.data, found.query, (), None))
    ]
    return items, replace(prepared, notes=(*prepared.notes, *found.notes))


def _without_test_part(campaign: Campaign, classes: Sequence[str]) -> Campaign:
    """Return the campaign with these classes, if any, and with every item in the pool."""
    names = tuple(require_distinct_classes(classes or campaign.data.classes))
    return replace(campaign, data=replace(campaign.data, test_fraction=0.0, classes=names))


def with_label_classes(source: Source, labels: str | Path | None, seed: int) -> Source:
    """Return the source with the classes of the data and of a label file, if guesses need them.

    Guesses can be read only when the classes are known. A source that names its classes, or has no
    guesses, stays as it is: these are then all classes.

    Args:
        source: The configuration of the data.
        labels: A file of `id,label`, or None.
        seed: Of the test set and the limit.

    Raises:
        InputError: All labels are of one class.
    """
    if labels is None or source.classes or not source.has_guesses:
        return source
    data, answers = load_without_guesses(source, seed)
    names = collect_labels_by_source(data, answers, labels, ()).classes
    if len(names) == 1:
        raise _name_other_classes(names[0])
    return replace(source, classes=names)


def _name_other_classes(only: str) -> InputError:
    """Return the error for labels of a single class."""
    return InputError(
        f"all labels are {only!r}; expected at least two classes: name the others with --classes"
    )


def _build_items(
    data: Data, chosen: Query, names: Sequence[str], p: Tensor | None
) -> list[QueryItem]:
    """Return the selected items with their predictions; p (n, C), None without labels and guesses."""
    sure, best = (
        ([None] * len(chosen.positions),) * 2 if p is None else (part.tolist() for part in p.max(1))
    )
    rows = zip(chosen.positions.tolist(), chosen.scores.tolist(), sure, best, strict=True)
    return [
        QueryItem(
            id=data.ids[position],
            position=position,
            score=score,
            prediction=None if label is None else names[label],
            probability=None if likely is None else round(likely, 6),
            text=_text(data, position),
            record=_record(data, position),
        )
        for position, score, likely, label in rows
    ]


def _build_source_items(
    data: Data, found: SourceSelection, names: Sequence[str]
) -> list[QueryItem]:
    """Return the selected pairs of item and source, with predictions if there is a label."""
    at = [query.position for query in found.queries]
    chosen = Query(
        torch.tensor(at, dtype=torch.int64),
        torch.tensor([query.gain for query in found.queries], dtype=torch.float64),
        "resolve",
        "greedy",
    )
    p = found.learner.predict(at)[:, : len(names)] if at and len(found.learner.pool) else None
    items = _build_items(data, chosen, names, p)
    return [
        replace(item, source=query.source, price=query.price)
        for item, query in zip(items, found.queries, strict=True)
    ]


def _text(data: Data, position: int) -> str | None:
    """Return the text of an item, if items are texts."""
    if data.rows is None or data.rows.text is None:
        return None
    return str(data.rows.columns[data.rows.text][position] or "")


def _record(data: Data, position: int) -> dict[str, Any]:
    """Return the user's columns of one item."""
    if data.records is None:
        return {}
    return {
        name: to_python_list(column)[0]
        for name, column in data.records.take([position]).columns.items()
    }


def _label_pool(
    prepared: PreparedCampaign, labels: str | Path | None, classes: Sequence[str]
) -> tuple[Pool, CollectedLabels]:
    """Return the pool with its labels, and the labels; a network takes one for each item."""
    data, answers = prepared.data, prepared.answers
    pool = Pool(len(data), test=data.test)
    if prepared.kind.weighs_sources:
        given = collect_labels_by_source(data, answers, labels, classes)
    else:
        given = CollectedLabels(*collect_labels(data, answers, labels, classes))
    if given.labels:
        pool.label(list(given.labels), list(given.labels.values()))
    if len(pool) and len(given.classes) < 2:
        raise _name_other_classes(given.classes[0])
    return pool, given


def describe_sources(found: Mapping[str, SourceAccuracy]) -> tuple[str, ...]:
    """Return a note on how often each source is right, as the last fit estimates it.

    Args:
        found: The estimates by source; empty without two sources.
    """
    if not found:
        return ()
    listed = ", ".join(
        f"{name or 'no name'} {row.accuracy:.0%} of {row.labels}"
        if row.labels >= MIN_SOURCE_LABELS
        else f"{name or 'no name'} too few labels ({row.labels})"
        for name, row in found.items()
    )
    return (f"labels are weighed by the estimated accuracy of their source: {listed}",)


def collect_labels(
    data: Data, answers: Answers | None, labels: str | Path | None, classes: Sequence[str]
) -> tuple[dict[int, int], tuple[str, ...], tuple[str, ...]]:
    """Return the labels outside the test part by position, the names of all classes, and notes.

    Every item has one label: labels that contradict each other are an error.

    Args:
        data: The data.
        answers: The labels in the data.
        labels: A file of `id,label` with further ones.
        classes: Names of all classes, including those without labels.
    """
    names = data.classes
    given = _list_answers(answers)
    if labels is not None:
        at, numbers, names = read_labels(labels, data, classes)
        for position, number in zip(at.tolist(), numbers.tolist(), strict=True):
            if given.setdefault(position, number) != number:
                raise _describe_contradiction(
                    labels, data.ids[position], names, number, given[position]
                )
    outside, notes = _leave_out_test_part(data, given)
    return outside, merge_class_lists(names, classes), notes


def collect_labels_by_source(
    data: Data, answers: Answers | None, labels: str | Path | None, classes: Sequence[str]
) -> CollectedLabels:
    """Return the labels as `collect_labels`, and all labels of an item by different annotators.

    The label of an item is the class that most annotators give, the newest if there are several.
    Labels in the data have one source, which is also that of rows without an annotator: where
    these contradict each other, it is an error.

    Args:
        data: The data.
        answers: The labels in the data.
        labels: A file of `id,label,annotator` with further ones.
        classes: Names of all classes, including those without labels.
    """
    if labels is None:
        return CollectedLabels(*collect_labels(data, answers, None, classes))
    read, own = read_labels_by_source(labels, data, classes), _list_answers(answers)
    has_annotators = any(source != UNNAMED_SOURCE for _, _, source in read.labels)
    settled = tuple((p, number, UNNAMED_SOURCE) for p, number in read.resolved.items())
    for position, number, source in (*read.labels, *settled):
        is_one_label = not has_annotators or source == UNNAMED_SOURCE
        if is_one_label and own.get(position, number) != number:
            raise _describe_contradiction(
                labels, data.ids[position], read.classes, number, own[position]
            )
    # A resolved label is certain, so it has no source.
    rows = [(p, number, UNNAMED_SOURCE) for p, number in own.items() if p not in read.resolved]
    rows += read.labels
    given, notes = _leave_out_test_part(data, {**Annotations.vote(rows), **read.resolved})
    rows = [row for row in rows if row[0] in given]
    several = len({source for _, _, source in rows}) > 1
    return CollectedLabels(
        given,
        merge_class_lists(read.classes, classes),
        notes,
        Annotations.from_rows(rows) if several else None,
    )


def _list_answers(answers: Answers | None) -> dict[int, int]:
    """Return the labels in the data by position."""
    if answers is None:
        return {}
    known = answers.has_label.nonzero().squeeze(1)
    return dict(zip(known.tolist(), answers.take(known).tolist(), strict=True))


def _describe_contradiction(
    file: str | Path, item: str, names: Sequence[str], number: int, known: int
) -> InputError:
    return InputError(
        f"{file} gives {names[number]!r} for {item}, but the data give {names[known]!r}; expected "
        "one label: correct one of them"
    )


def _leave_out_test_part(
    data: Data, given: Mapping[int, int]
) -> tuple[dict[int, int], tuple[str, ...]]:
    """Return the labels outside the test part, and a note if there are others."""
    test = set(data.test.tolist())
    outside = {p: c for p, c in given.items() if p not in test}
    test_labels = len(given) - len(outside)
    note = f"{test_labels} labels are of test items, which are not used for training"
    return outside, (note,) if test_labels else ()


def format_query_items(query_items: Sequence[QueryItem], form: str) -> str:
    """Format the items as "csv" or "json".

    Columns: id, the user's columns, position, score, prediction, probability; if sources have prices,
    also source and price. Another task than classes has its own after the score; the score of a
    rating is `expected_score`.
    """
    records = Records({})
    for name in dict.fromkeys(name for q in query_items for name in q.record):
        records = records.with_column(name, [q.record.get(name) for q in query_items])
    if "id" in records.columns and [format_id(v) for v in records.columns["id"]] == [
        q.id for q in query_items
    ]:
        records = replace(records, id_column="id")
    query_columns = {
        name: [getattr(q, name) for q in query_items]
        for name in (
            *("position", "score"),
            *(() if query_items and query_items[0].columns else ("prediction", "probability")),
            *(("source", "price") if any(q.source for q in query_items) else ()),
        )
    }
    for name in query_items[0].columns if query_items else ():
        own = "expected_score" if name == "score" else name
        query_columns[own] = [q.columns[name] for q in query_items]
    columns = merge_columns([q.id for q in query_items], records, query_columns)
    if form == "json":
        return json.dumps(list(iter_json_rows(columns)), indent=1, ensure_ascii=False) + "\n"
    text = io.StringIO(newline="")
    write_csv(text, columns)
    return text.getvalue()
