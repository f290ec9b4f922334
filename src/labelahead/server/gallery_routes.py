"""The routes of the gallery: views, their pages, and labels for many items at once."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import fastapi
from fastapi import APIRouter, Body, Depends, HTTPException, Request
from pydantic import BaseModel, Field, StrictInt

from labelahead.data.dataset import NONE_OF_THESE
from labelahead.server.gallery import Gallery, GalleryFilter
from labelahead.server.service import LabellingService

__all__ = ["build_gallery_routes"]

MAX_PAGE_ITEMS = 200
MAX_POSITIONS = 20_000  # of one request
MAX_BULK_ITEMS = 5000  # labelled with one request


class BulkLabels(BaseModel):
    """Items to label with one class."""

    positions: list[StrictInt] = Field(min_length=1, max_length=MAX_BULK_ITEMS)
    label: StrictInt = Field(description="Their class number.")
    replace: bool = Field(False, description="Also change items that have another label.")
    key: str | None = Field(
        None, max_length=200, description="Idempotency key: sent twice, it counts once."
    )


class ViewRequest(BaseModel):
    """Filter and order of a view."""

    status: Literal["all", "unlabelled", "labelled", "doubtful", "unlike"] = "all"
    order: Literal[
        "name", "least-certain", "most-certain", "gain", "similar", "probability", "meaning"
    ] = "name"
    label: int | None = Field(None, description="Class number of the label.")
    predicted: int | None = Field(None, description="Class number of the prediction.")
    least: float = Field(0.0, ge=0, le=1, description="Least probability of the prediction.")
    below: float | None = Field(
        None, ge=0, le=1, description="Bound below which the probability of the prediction is."
    )
    source: str | None = Field(None, description="Annotator whose label counts, or 'bulk labels'.")
    text: str = Field("", max_length=500, description="A part of the name, text or cells.")
    meaning: str = Field("", max_length=500, description="A text, for the order 'meaning'.")
    like: int | None = Field(None, description="Position of an item, for the order 'similar'.")
    sought: int | None = Field(None, description="Class number, for the order 'probability'.")

    def to_filter(self, positions: tuple[int, ...] | None = None) -> GalleryFilter:
        """Return the filter. positions: the only items to show."""
        values = self.model_dump(exclude={"least", "below", "positions"})
        return GalleryFilter(
            min_probability=self.least, max_probability=self.below, positions=positions, **values
        )


class ChosenViewRequest(ViewRequest):
    """Filter and order of a view of some items."""

    positions: list[StrictInt] = Field(
        max_length=MAX_BULK_ITEMS, description="The only items to show."
    )


def build_gallery_routes(
    service: LabellingService, gallery: Gallery, read_annotator: Callable[[Request], Awaitable[str]]
) -> APIRouter:
    """Build the routes. read_annotator: returns the annotator of a request."""
    routes = APIRouter(prefix="/api/gallery")

    @routes.get("", summary="A view of the items")
    def open_view(wanted: Annotated[ViewRequest, fastapi.Query()]) -> dict[str, Any]:
        """Filter and order the items; `/{view}` has the pages, whose order stays as it is.

        Bounds of the probability select unlabelled items. With `sought`, `expected` says how many
        unlabelled items are probably of this class.
        """
        _check_known(service, wanted)
        return gallery.open_view(wanted.to_filter())

    @routes.post("", summary="A view of some items")
    def open_chosen_view(wanted: Annotated[ChosenViewRequest, Body()]) -> dict[str, Any]:
        """As GET, among the items at these positions, for example those lassoed on the map."""
        _check_known(service, wanted)
        return gallery.open_view(wanted.to_filter(tuple(wanted.positions)))

    @routes.get("/{view}", summary="Items of a view")
    def read_page(
        view: str,
        offset: Annotated[int, fastapi.Query(ge=0)] = 0,
        n: Annotated[int, fastapi.Query(ge=1, le=MAX_PAGE_ITEMS)] = 60,
    ) -> dict[str, Any]:
        """With their present labels and predictions, in the order of the view."""
        return _require_view(gallery.read_page(view, offset, n))

    @routes.get("/{view}/positions", summary="Positions of a view")
    def list_positions(
        view: str,
        offset: Annotated[int, fastapi.Query(ge=0)] = 0,
        n: Annotated[int, fastapi.Query(ge=1, le=MAX_POSITIONS)] = 1000,
    ) -> dict[str, Any]:
        """To select many items without showing each; `labelled`: those that have a label."""
        return _require_view(gallery.list_positions(view, offset, n))

    @routes.post("/labels", summary="Label the selected items with one class")
    def label_items(
        given: Annotated[BulkLabels, Body()], who: Annotated[str, Depends(read_annotator)]
    ) -> dict[str, Any]:
        """Each item gets its own answer, marked as a confirmation; one undo reverts all of them.

        replace=false: labelled items are left unchanged.
        """
        return service.confirm_items(
            who, given.positions, given.label, given.key, replace=given.replace
        )

    return routes


def _check_known(service: LabellingService, wanted: ViewRequest) -> None:
    """Raise if an item or a class does not exist."""
    if wanted.like is not None and not 0 <= wanted.like < len(service.items):
        raise HTTPException(404, f"there is no item {wanted.like}")
    count = len(service.label_state.classes)
    for label in (wanted.label, wanted.predicted, wanted.sought):
        if label is not None and not NONE_OF_THESE <= label < count:
            raise HTTPException(404, f"there is no class {label}; expected 0 to {count - 1}")


def _require_view(found: dict[str, Any] | None) -> dict[str, Any]:
    if found is None:
        raise HTTPException(404, "this view is no longer kept; open it again")
    return found
