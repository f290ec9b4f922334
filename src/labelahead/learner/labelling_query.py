"""Query the next items to label from real data with some labels."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from labelahead.data import Answers, Data, read_labels
from labelahead.data.classes import merge_class_lists, require_distinct_classes
from labelahead.data.pool import Pool
from labelahead.data.records import Records, format_id, to_python_list
from labelahead.data.table_writer import iter_json_rows, merge_columns, write_csv
from labelahead.errors import InputError
from labelahead.inference.exact import ExactModel
from labelahead.learner.config import Campaign, Progress
from labelahead.learner.preparation import PreparedCampaign, prepare_campaign
from labelahead.strategies import find_strategy
from labelahead.strategies.query import Query, propose

__all__ = ["QueryItem", "collect_labels", "format_query_items", "query_items"]


@dataclass(frozen=True)
class QueryItem:
    """An item to label next, with the current prediction."""

    id: str  # from the id column, or the file name, or the row number
    position: int
    score: float
    prediction: str | None  # the most probable class; None before the first label
    probability: float | None
    text: str | None = None  # the text, where items are texts
    record: Mapping[str, Any] = field(default_factory=dict)  # the user's own columns


def query_items(
    campaign: Campaign,
    n: int,
    *,
    labels: str | Path | None = None,
    classes: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[list[QueryItem], PreparedCampaign]:
    """Train on the labels and return the n items to label next, best first.

    Args:
        campaign: The configuration.
        n: Number of items.
        labels: A file of `id,label`; default: the labels in the data.
        classes: Names of all classes, including those without labels; default: those of the
            campaign's data.
        progress: Called with the stage, the work done and its total.
    """
    report = progress or (lambda what, done, total: None)
    report("loading", 0, 1)
    prepared = prepare_campaign(_without_test_part(campaign, classes), progress=progress)
    pool, names, notes = _label_pool(prepared, labels, prepared.campaign.data.classes)
    prepared = prepared.for_classes(names)
    count = max(len(names), 2)
    if n > len(pool.unlabelled):
        raise InputError(
            f"{n} items requested, but {len(pool.unlabelled)} of {len(prepared.data)} are unlabelled; "
            "expected at most that"
        )
    asking, strategy = campaign.asking, find_strategy(campaign.asking.strategy)
    if len(pool):
        report("training", 0, 1)
    elif strategy.look_ahead and strategy.choose_acquisition(()) != strategy.acquisition:
        # Predictions of an untrained network are noise; its similarities are not.
        notes += (f"no label yet: items that cover the data, by resolve and not {strategy.name}",)
        asking = replace(asking, strategy="resolve", mode="greedy")
    learner = prepared.make_learner(count, strategy.objective)
    order = (
        pool.labelled.argsort()
    )  # in the order of the labelling page, whatever the order of a file
    seed = prepared.training.derive_seed(campaign.seed, 0)
    fitted = learner.fit(pool.labelled[order], pool.labels[order], seed=seed)
    notes += fitted.trained.notes if fitted.trained else ()
    if prepared.guesses is not None and isinstance(fitted.model, ExactModel):
        trust = fitted.model.trust
        notes += prepared.guesses.describe_quality(pool.labelled, pool.labels, trust)
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
    p = fitted.predict_proba(chosen.positions, len(names) or None) if len(pool) else None
    items = _build_items(prepared.data, chosen, names, p)
    return items, replace(prepared, notes=(*prepared.notes, *notes))


def _without_test_part(campaign: Campaign, classes: Sequence[str]) -> Campaign:
    """Return the campaign with these classes, if any, and with every item in the pool."""
    names = tuple(require_distinct_classes(classes or campaign.data.classes))
    return replace(campaign, data=replace(campaign.data, test_fraction=0.0, classes=names))


def _build_items(
    data: Data, chosen: Query, names: Sequence[str], p: Tensor | None
) -> list[QueryItem]:
    """Return the selected items with their predictions; p (n, C), None before the first label."""
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
) -> tuple[Pool, tuple[str, ...], tuple[str, ...]]:
    """Return the pool with its labels, the names of all classes, and notes."""
    data = prepared.data
    pool = Pool(len(data), test=data.test)
    given, names, notes = collect_labels(data, prepared.answers, labels, classes)
    if given:
        pool.label(list(given), list(given.values()))
    if len(pool) and len(names) < 2:
        raise InputError(
            f"all labels are {names[0]!r}; expected at least two classes: name the others with "
            "--classes"
        )
    return pool, names, notes


def collect_labels(
    data: Data, answers: Answers | None, labels: str | Path | None, classes: Sequence[str]
) -> tuple[dict[int, int], tuple[str, ...], tuple[str, ...]]:
    """Return the labels outside the test part by position, the names of all classes, and notes.

    Args:
        data: The data.
        answers: The labels in the data.
        labels: A file of `id,label` with further ones.
        classes: Names of all classes, including those without labels.
    """
    notes, names = [], data.classes
    given: dict[int, int] = {}
    if answers is not None:
        known = answers.has_label.nonzero().squeeze(1)
        given = dict(zip(known.tolist(), answers.take(known).tolist(), strict=True))
    if labels is not None:
        at, numbers, names = read_labels(labels, data, classes)
        for position, number in zip(at.tolist(), numbers.tolist(), strict=True):
            if given.setdefault(position, number) != number:
                raise InputError(
                    f"{labels} gives {names[number]!r} for {data.ids[position]}, but the data give "
                    f"{names[given[position]]!r}; expected one label: correct one of them"
                )
    held = [p for p in given if p in set(data.test.tolist())]
    if held:
        notes.append(f"{len(held)} labels belong to the test part, which is not used for training")
    at_hand = {p: c for p, c in given.items() if p not in set(held)}
    return at_hand, merge_class_lists(names, classes), tuple(notes)


def format_query_items(query_items: Sequence[QueryItem], form: str) -> str:
    """Format the items as "csv" or "json".

    Columns: id, the user's columns, position, score, prediction, probability.
    """
    records = Records({})
    for name in dict.fromkeys(name for q in query_items for name in q.record):
        records = records.with_column(name, [q.record.get(name) for q in query_items])
    if "id" in records.columns and [format_id(v) for v in records.columns["id"]] == [
        q.id for q in query_items
    ]:
        records = replace(records, id_column="id")
    ours = {
        name: [getattr(q, name) for q in query_items]
        for name in ("position", "score", "prediction", "probability")
    }
    columns = merge_columns([q.id for q in query_items], records, ours)
    if form == "json":
        return json.dumps(list(iter_json_rows(columns)), indent=1, ensure_ascii=False) + "\n"
    text = io.StringIO(newline="")
    write_csv(text, columns)
    return text.getvalue()
