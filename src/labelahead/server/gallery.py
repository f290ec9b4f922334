"""The gallery: all items of a session, filtered and ordered, in pages whose order is stable.

A view is the list of positions that a filter selects, in an order. It is computed once and kept, so
that its pages fit together while people label and the model changes; what the pages say about each
item is always current.
"""

import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from labelahead.errors import InputError
from labelahead.gp.positive_counts import estimate_positive_count
from labelahead.server.items import Items
from labelahead.server.label_state import LabelState
from labelahead.server.meaning import MeaningSearch
from labelahead.server.page_model import PageModel
from labelahead.server.progress import find_doubtful, find_open_suspects
from labelahead.server.service import LabellingService

__all__ = ["BULK_SOURCE", "ORDERS", "STATUSES", "Gallery", "GalleryFilter"]

STATUSES = ("all", "unlabelled", "labelled", "doubtful", "unlike")
ORDERS = ("name", "least-certain", "most-certain", "gain", "similar", "probability", "meaning")
BULK_SOURCE = "bulk labels"  # the source of labels that were given to many items at once
NO_LABEL = -1  # class numbers start at 0, and `NONE_OF_THESE` is -2
NO_PREDICTION = -1
MAX_VIEWS_KEPT = 32
MAX_CHARACTERS = 400  # of a text in a cell
MAX_COLUMNS = 8  # of a row in a cell
Result = TypeVar("Result")


@dataclass(frozen=True)
class GalleryFilter:
    """Which items a view has, and in which order.

    Attributes:
        status: One of `STATUSES`. doubtful: the label contradicts its leave-one-out prediction;
            unlike: unlabelled, and unlike anything labelled.
        label: Class number of the label, or `NONE_OF_THESE`.
        predicted: Class number of the prediction.
        min_probability: Least probability of the predicted class; of unlabelled items.
        max_probability: Bound that it stays below.
        source: Annotator whose label counts, or `BULK_SOURCE`.
        text: Substring of the name or content, ignoring case.
        meaning: A text, for the order "meaning".
        like: Position of an item, for the order "similar".
        sought: Class number, for the order "probability".
        positions: The only items to show; None: all.
        order: One of `ORDERS`.
    """

    status: str = "all"
    label: int | None = None
    predicted: int | None = None
    min_probability: float = 0.0
    max_probability: float | None = None
    source: str | None = None
    text: str = ""
    meaning: str = ""
    like: int | None = None
    sought: int | None = None
    positions: tuple[int, ...] | None = None
    order: str = "name"

    def __post_init__(self) -> None:
        for name, known in (("status", STATUSES), ("order", ORDERS)):
            if getattr(self, name) not in known:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}"
                )
        if self.order == "similar" and self.like is None:
            raise InputError("the order 'similar' needs an item; give its position as like")
        if self.order == "meaning" and not self.meaning.strip():
            raise InputError("the order 'meaning' needs a text; give it as meaning")
        if self.order == "probability" and self.sought is None:
            raise InputError("the order 'probability' needs a class; give its number as sought")


@dataclass(frozen=True, eq=False)
class ItemTable:
    """What is known about every item, by position; immutable.

    The model may cover only some of the items: there is no prediction for the others.
    """

    label_state: LabelState
    page_model: PageModel | None
    positions: Tensor  # (n,) of the items that are shown, ascending
    doubtful: frozenset[int]
    size: int  # number of all items

    @property
    def predicts(self) -> bool:
        """Return whether there are predictions of one class per item."""
        model = self.page_model
        return model is not None and model.has_labels and self.label_state.task is None

    @cached_property
    def labels(self) -> Tensor:
        """(size,) class numbers, `NONE_OF_THESE` or `NO_LABEL`."""
        return self._scatter(self.label_state.labels, NO_LABEL)

    @cached_property
    def predicted(self) -> Tensor:
        """(size,) class numbers, or `NO_PREDICTION`."""
        out = torch.full((self.size,), NO_PREDICTION)
        if self.page_model is not None and self.predicts:
            out[self._points] = self.page_model.pool_posterior.predicted_classes.cpu()
        return out

    @cached_property
    def probability(self) -> Tensor:
        """(size,) of the predicted class; NaN without a prediction."""
        out = torch.full((self.size,), torch.nan, dtype=torch.float64)
        if self.page_model is not None and self.predicts:
            out[self._points] = self.page_model.confidence.double().cpu()
        return out

    @cached_property
    def gain(self) -> Tensor:
        """(size,) acquisition scores of the candidates; −∞ for other items."""
        out = torch.full((self.size,), -torch.inf, dtype=torch.float64)
        model = self.page_model
        if model is not None and len(model.query_posterior.view.candidates):
            posterior = model.query_posterior
            at = posterior.points[posterior.view.candidates.cpu()]
            out[at] = posterior.scores(model.acquisition).double().cpu()
        return out

    @cached_property
    def unlike(self) -> Tensor:
        """(size,) bool: unlabelled, and unlike anything labelled (`PageModel.unlike_labelled`)."""
        out = torch.zeros(self.size, dtype=torch.bool)
        if self.page_model is not None:
            out[self._points] = self.page_model.unlike_labelled().cpu()
        return out & (self.labels == NO_LABEL)

    def similarity(self, position: int) -> Tensor:
        """Return the correlation (size,) of every item with one of them; −∞ outside the model."""
        if self.page_model is None or position not in self.page_model.pool_posterior:
            raise InputError(
                f"item {position} has no embedding yet; try again after the next training"
            )
        out = torch.full((self.size,), -torch.inf, dtype=torch.float64)
        out[self._points] = self.page_model.similarities(position).cpu()
        return out

    def class_probability(self, label: int) -> Tensor:
        """Return the probability (size,) of one class; NaN without a prediction."""
        out = torch.full((self.size,), torch.nan, dtype=torch.float64)
        model = self.page_model
        if model is not None and self.predicts and label < model.pool_posterior.classes:
            rows = torch.arange(len(self._points), device=model.pool_posterior.points.device)
            out[self._points] = model.predict_proba(rows)[:, label].double().cpu()
        return out

    def source_of(self, position: int) -> str:
        """Return who gave an item's label, or `BULK_SOURCE`; "" without a label."""
        if position not in self.label_state.labels:
            return ""
        if position in self.label_state.confirmed:
            return BULK_SOURCE
        return self.label_state.find_deciding_answer(position).who

    @property
    def _points(self) -> Tensor:
        assert self.page_model is not None
        return self.page_model.pool_posterior.points.cpu()

    def _scatter(self, values: Any, missing: int) -> Tensor:
        out = torch.full((self.size,), missing)
        if values:
            at = torch.tensor(list(values.keys()))
            out[at] = torch.tensor(list(values.values()))
        return out


@dataclass(frozen=True, eq=False)
class GalleryView:
    """A filter and the positions that it selects, in order."""

    wanted: GalleryFilter
    positions: Tensor  # (m,)
    scores: Tensor | None  # (m,) of the order, if it has numbers


class Gallery:
    """Views of the items of one session. Threads may share it."""

    def __init__(self, service: LabellingService, meaning: MeaningSearch | None = None) -> None:
        self.service = service
        self.meaning = meaning
        # One thread: it needs no locks, and the BLAS library keeps buffers for every thread.
        self._executor = ThreadPoolExecutor(1, "gallery")
        self._views: OrderedDict[str, GalleryView] = OrderedDict()
        self._table: tuple[object, ItemTable] | None = None
        self._texts: list[str] = []
        self._name_ranks = torch.empty(0, dtype=torch.int64)

    def open_view(self, wanted: GalleryFilter) -> dict[str, Any]:
        """Compute a view and return its key, its size, and how many items there are of each kind."""
        task = self.service.label_state.task
        if task is not None:
            raise InputError(
                f"the task is {task.name}, and the gallery shows sessions of one class per item; "
                "expected the page, where the items are queried one by one"
            )
        return self._run(lambda: self._open_view(wanted))

    def read_page(self, key: str, offset: int, n: int) -> dict[str, Any] | None:
        """Return items of a view from an offset, as they are now; None if the view is not kept."""
        return self._run(lambda: self._read_page(key, offset, n))

    def list_positions(self, key: str, offset: int, n: int) -> dict[str, Any] | None:
        """Return positions of a view and which of them are labelled; None if it is not kept."""
        view = self._run(lambda: self._find_view(key))
        if view is None:
            return None
        chosen = view.positions[offset : offset + n].tolist()
        labels = self.service.label_state.labels
        return {"positions": chosen, "labelled": [p for p in chosen if p in labels]}

    def _run(self, act: Callable[[], Result]) -> Result:
        return self._executor.submit(act).result()

    def _open_view(self, wanted: GalleryFilter) -> dict[str, Any]:
        table = self._read_table()
        view = GalleryView(wanted, *self._arrange(table, wanted))
        key = secrets.token_hex(6)
        self._views[key] = view
        while len(self._views) > MAX_VIEWS_KEPT:
            self._views.popitem(last=False)
        found: dict[str, Any] = {
            "view": key,
            "total": len(view.positions),
            "predicts": table.predicts,
            "meaning": self.meaning is not None
            and self.meaning.is_possible(self.service.items.data),
            **_count_kinds(table),
        }
        if wanted.sought is not None:
            found["expected"] = _describe_expected(table, wanted.sought)
        return found

    def _read_page(self, key: str, offset: int, n: int) -> dict[str, Any] | None:
        view = self._find_view(key)
        if view is None:
            return None
        table = self._read_table()
        items = [
            self._describe_cell(table, p) for p in view.positions[offset : offset + n].tolist()
        ]
        return {"view": key, "total": len(view.positions), "offset": offset, "items": items}

    def _find_view(self, key: str) -> GalleryView | None:
        if key in self._views:
            self._views.move_to_end(key)
        return self._views.get(key)

    def _read_table(self) -> ItemTable:
        service = self.service
        with service.lock:
            label_state, page_model = service.label_state, service.page_model
            size, hidden_positions = len(service.items), service.held_out | service.excluded.keys()
        state = (label_state.seq, page_model, size, len(hidden_positions))
        if self._table is not None and self._table[0] == state:
            return self._table[1]
        hidden = torch.zeros(size, dtype=torch.bool)
        hidden[list(hidden_positions)] = True
        table = ItemTable(
            label_state,
            page_model,
            (~hidden).nonzero().squeeze(1),
            _find_doubtful_positions(page_model, label_state),
            size,
        )
        self._table = state, table
        return table

    def _arrange(self, table: ItemTable, wanted: GalleryFilter) -> tuple[Tensor, Tensor | None]:
        """Return the positions of a view in order, and the values that they are ordered by."""
        at = table.positions
        at = at[self._rank_names()[at].argsort()]  # items of equal score are in the order of names
        if wanted.positions is not None:
            at = at[torch.isin(at, torch.tensor(wanted.positions, dtype=torch.int64))]
        at = _keep_status(table, wanted, at)
        if wanted.label is not None:
            at = at[table.labels[at] == wanted.label]
        if wanted.predicted is not None:
            at = at[table.predicted[at] == wanted.predicted]
        if wanted.min_probability > 0:
            at = at[table.probability[at] >= wanted.min_probability]
        if wanted.max_probability is not None:
            at = at[table.probability[at] < wanted.max_probability]
        if wanted.source:
            kept = [p for p in at.tolist() if table.source_of(p) == wanted.source]
            at = torch.tensor(kept, dtype=torch.int64)
        if wanted.text.strip():
            at = self._search(wanted.text, at)
        if wanted.order == "name":
            return at, None
        values = self._score(table, wanted)[at]
        ascending = wanted.order == "least-certain"
        missing = torch.inf if ascending else -torch.inf
        known = torch.where(values.isnan(), missing, values)
        order = known.sort(descending=not ascending, stable=True).indices
        return at[order], values[order]

    def _score(self, table: ItemTable, wanted: GalleryFilter) -> Tensor:
        """Return the values (size,) that the items are ordered by."""
        if wanted.order != "meaning":
            return _score_order(table, wanted)
        if self.meaning is None:
            raise InputError("this session cannot search by meaning; search by name instead")
        return self.meaning.compare(self.service.items.data, wanted.meaning)

    def _search(self, text: str, at: Tensor) -> Tensor:
        """Return the positions whose name, text or cells contain this text, ignoring case."""
        items, sought = self.service.items, text.strip().casefold()
        known = len(self._texts)
        self._texts += [_join_texts(items, p) for p in range(known, len(items))]
        found = [p for p in at.tolist() if sought in self._texts[p]]
        return torch.tensor(found, dtype=torch.int64)

    def _rank_names(self) -> Tensor:
        """Return the rank (size,) of every item's name; numbers in names count as numbers."""
        ids = self.service.items.ids
        if len(self._name_ranks) != len(ids):
            order = sorted(range(len(ids)), key=lambda p: _natural_key(ids[p]))
            ranks = torch.empty(len(ids), dtype=torch.int64)
            ranks[torch.tensor(order, dtype=torch.int64)] = torch.arange(len(ids))
            self._name_ranks = ranks
        return self._name_ranks

    def _describe_cell(self, table: ItemTable, position: int) -> dict[str, Any]:
        """Return what a cell of the gallery shows."""
        cell = self.service.items.describe_item(position)
        if cell["text"]:
            cell["text"] = cell["text"][:MAX_CHARACTERS]
        if cell["row"]:
            cell["row"] = cell["row"][:MAX_COLUMNS]
        label, predicted = int(table.labels[position]), int(table.predicted[position])
        return cell | {
            "label": None if label == NO_LABEL else label,
            "answer": None if label == NO_LABEL else table.label_state.name_label(label),
            "source": table.source_of(position),
            "doubtful": position in table.doubtful,
            "predicted": None if predicted == NO_PREDICTION else predicted,
            "p": None
            if predicted == NO_PREDICTION
            else round(float(table.probability[position]), 4),
        }


def _find_doubtful_positions(
    page_model: PageModel | None, label_state: LabelState
) -> frozenset[int]:
    """Return the positions of the labels that the last fit contradicts."""
    rows = find_doubtful(page_model, label_state)
    suspects = find_open_suspects(page_model, label_state)
    return frozenset([row.position for row in rows] + [row.position for row in suspects])


def _count_kinds(table: ItemTable) -> dict[str, Any]:
    """Return how many items are of each status, and how many labels are from each source."""
    shown, sources = table.positions, Counter(map(table.source_of, table.label_state.labels))
    labelled = int((table.labels[shown] != NO_LABEL).sum())
    return {
        "counts": {
            "all": len(shown),
            "unlabelled": len(shown) - labelled,
            "labelled": labelled,
            "doubtful": len(table.doubtful),
            "unlike": int(table.unlike[shown].sum()),
        },
        "sources": [{"source": name, "items": n} for name, n in sources.most_common()],
    }


def _keep_status(table: ItemTable, wanted: GalleryFilter, at: Tensor) -> Tensor:
    """Return the positions of this status; probabilities of predictions are of unlabelled items."""
    if wanted.status == "labelled":
        return at[table.labels[at] != NO_LABEL]
    if wanted.status == "doubtful":
        return at[torch.tensor([p in table.doubtful for p in at.tolist()], dtype=torch.bool)]
    if wanted.status == "unlike":
        return at[table.unlike[at]]
    bounded = wanted.min_probability > 0 or wanted.max_probability is not None
    if wanted.status == "unlabelled" or bounded or wanted.sought is not None:
        return at[table.labels[at] == NO_LABEL]
    return at


def _score_order(table: ItemTable, wanted: GalleryFilter) -> Tensor:
    if wanted.order == "gain":
        return table.gain
    if wanted.order == "similar":
        assert wanted.like is not None
        return table.similarity(wanted.like)
    if wanted.order == "probability":
        assert wanted.sought is not None
        return table.class_probability(wanted.sought)
    return table.probability


def _describe_expected(table: ItemTable, label: int) -> dict[str, Any]:
    """Return how many unlabelled items are probably of a class, and how many are labelled so."""
    p = table.class_probability(label)[table.positions]
    rest = p[(table.labels[table.positions] == NO_LABEL) & ~p.isnan()]
    found = estimate_positive_count(rest.clamp(0, 1))
    return {
        "label": label,
        "found": int((table.labels[table.positions] == label).sum()),
        "candidates": len(rest),
        **found._asdict(),
    }


def _join_texts(items: Items, position: int) -> str:
    shown = items.describe_item(position)
    cells = [str(cell["value"]) for cell in shown["row"] or () if cell["value"] is not None]
    return "\n".join([shown["shown"], shown["text"] or "", *cells]).casefold()


def _natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key by which item10 comes after item9."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part), "") if i % 2 else (1, 0, part) for i, part in enumerate(parts))
