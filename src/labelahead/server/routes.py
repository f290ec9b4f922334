"""The routes of the HTTP API: queries, changes, panels and files.

Endpoints are synchronous functions, so that each runs in its own thread and may block.
"""

import json
import math
import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import fastapi
from fastapi import APIRouter, Body, Depends, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field, StrictInt
from starlette.background import BackgroundTask

from labelahead.data.classes import check_name
from labelahead.errors import InputError
from labelahead.server import progress as overview
from labelahead.server.audit_routes import build_audit_routes
from labelahead.server.auditing import PageAudit
from labelahead.server.exchange import CONFIG_FORMAT, EXPORT_FORMATS, export_labels, import_labels
from labelahead.server.fitting import build_exported_model, predict_pool
from labelahead.server.gallery import Gallery
from labelahead.server.gallery_routes import build_gallery_routes
from labelahead.server.items import DISPLAY_PIXELS, FULL_PIXELS, THUMBNAIL_PIXELS
from labelahead.server.login import describe_account
from labelahead.server.meaning import MeaningSearch
from labelahead.server.neighbour_map import NeighbourMap
from labelahead.server.review_queue import RANDOM_SHARE, list_review_queue, measure_item_seconds
from labelahead.server.schedule import Schedule
from labelahead.server.security import parse_cookies, set_cookie
from labelahead.server.service import GRID_ITEMS, LabellingService
from labelahead.server.session import TEMPORARY_PREFIX

__all__ = ["Json", "build_routes"]

DEFAULT_ANNOTATOR = "me"  # annotator of requests without a name
MAX_NAME_CHARACTERS = 60
# format -> file suffix, media type
EXPORT_FILES = {
    "csv": (".csv", "text/csv; charset=utf-8"),
    "jsonl": (".jsonl", "application/x-ndjson"),
    "parquet": (".parquet", "application/vnd.apache.parquet"),
    "label-studio": (".label-studio.json", "application/json"),
    CONFIG_FORMAT: (".label-studio.xml", "application/xml"),
    "hf": (".hf.zip", "application/zip"),
    "folders": (".folders.zip", "application/zip"),
}
IMPORT_SUFFIXES = {"csv": ".csv", "jsonl": ".jsonl", "label-studio": ".json", "parquet": ".parquet"}
MAX_CONFIRMED_ITEMS = 200  # with one request
CACHE_FOREVER = "private, max-age=31536000, immutable"


class Json(JSONResponse):
    """JSON without NaN, and with lone surrogates as escapes."""

    def render(self, content: Any) -> bytes:
        """Encode the content."""
        text = json.dumps(_replace_non_finite(content), ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")  # JSON writes a lone surrogate as \\ud800


def _replace_non_finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _replace_non_finite(inner) for key, inner in value.items()}
    return (
        [_replace_non_finite(inner) for inner in value]
        if isinstance(value, list | tuple)
        else value
    )


class Me(BaseModel):
    """Name of the annotator."""

    who: str = Field(description=f"A name, at most {MAX_NAME_CHARACTERS} characters.")


class Answer(BaseModel):
    """An annotator's answer to an item."""

    position: StrictInt = Field(description="The item's position in the data set.")
    kind: Literal["label", "skip", "unsure", "settle", "keep", "doubt"]
    label: StrictInt | None = Field(
        None, description="A class number, or -2 for none of these; for label, settle, keep."
    )
    value: Any = Field(
        None,
        description="The answer to a task instead of the label: a list of class names, a number, "
        "a level. Or the name of a class.",
    )
    key: str | None = Field(
        None, max_length=200, description="Idempotency key: the same answer sent twice counts once."
    )


class Undo(BaseModel):
    """The answer to undo."""

    seq: StrictInt | None = Field(
        None, description="Number of an event of this annotator; default: the last."
    )
    key: str | None = Field(
        None, max_length=200, description="Idempotency key: sent twice, it undoes once."
    )


class NewClass(BaseModel):
    """A new class."""

    name: str
    positions: list[StrictInt] = Field(
        default=[],
        max_length=MAX_CONFIRMED_ITEMS,
        description="Items that get the class at once: unlabelled ones, or none of these.",
    )
    key: str | None = Field(
        None, max_length=200, description="Idempotency key: sent twice, it counts once."
    )


class ClassChange(BaseModel):
    """A change of a class."""

    kind: Literal["rename", "merge", "remove"]
    name: str | None = Field(None, description="rename: the new name; merge: the other class.")
    key: str | None = Field(
        None, max_length=200, description="Idempotency key: sent twice, it counts once."
    )


class Confirmation(BaseModel):
    """Items to label with one class."""

    positions: list[StrictInt] = Field(min_length=1, max_length=MAX_CONFIRMED_ITEMS)
    label: StrictInt = Field(description="Their class number.")
    key: str | None = Field(
        None, max_length=200, description="Idempotency key: sent twice, it counts once."
    )


def build_routes(
    service: LabellingService, schedule: Schedule, *, labelled_at: str | None = None
) -> tuple[APIRouter, ...]:
    """Build all routes except the page itself. labelled_at: see `create_app`."""
    fit_lock = threading.Lock()  # fits one model at a time
    gallery = Gallery(service, MeaningSearch(schedule.campaign))
    return (
        _query_routes(service, labelled_at),
        _write_routes(service),
        _read_routes(service, schedule),
        _overview_routes(service),
        build_gallery_routes(service, gallery, _read_annotator_or_default),
        build_audit_routes(PageAudit(service, schedule), _read_annotator_or_default),
        _file_routes(service, schedule, fit_lock),
        _item_routes(service),
        _model_routes(service, schedule, fit_lock),
    )


async def _read_annotator(request: Request) -> str | None:
    """Return the annotator's name from the cookie, or None if it is missing or not valid."""
    try:
        return _check_name(parse_cookies(request.headers).get("la_who", ""))
    except InputError:
        return None


async def _read_annotator_or_default(request: Request) -> str:
    return await _read_annotator(request) or DEFAULT_ANNOTATOR


def _check_name(text: str) -> str:
    name = check_name(text, "the name")
    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise InputError(
            f"the name must be printable, and at most {MAX_NAME_CHARACTERS} characters"
        )
    return name


Annotator = Annotated[str, Depends(_read_annotator_or_default)]
OptionalAnnotator = Annotated[str | None, Depends(_read_annotator)]


def _describe_session(
    service: LabellingService,
    who: str | None,
    labelled_at: str | None = None,
    account: dict[str, object] | None = None,
) -> dict[str, Any]:
    return {
        "name": service.items.data.name,
        "items": len(service.items) - len(service.held_out) - len(service.excluded),
        "classes": service.describe_classes(),
        "classes_seq": service.label_state.classes_seq,
        "none_of_these": service.describe_none_of_these(),
        "task": service.describe_task(),
        "kind": service.items.kind,
        "version": version("labelahead"),
        "who": who,
        "account": account,
        "test": bool(service.held_out),
        "labelled_at": labelled_at,
    }


def _query_routes(service: LabellingService, labelled_at: str | None) -> APIRouter:
    routes = APIRouter(prefix="/api")

    @routes.get("/health", summary="Health check")
    def health() -> dict[str, bool]:
        return {"ok": True}

    @routes.get("/session", summary="The session and the annotator")
    def session(request: Request, who: OptionalAnnotator) -> dict[str, Any]:
        """`account`: its role, if the server has accounts."""
        return _describe_session(service, who, labelled_at, describe_account(request.scope))

    @routes.get("/question", summary="The item to label now")
    def question(who: Annotator, fresh: bool = False) -> Json:
        """Without an answer in between, it is the same item.

        fresh=1: release that item and choose the best one now, for example after a training.
        """
        return Json(service.next_query(who, fresh=fresh))

    @routes.get("/confirmations", summary="Confident predictions of one class")
    def grid(
        who: Annotator,
        n: Annotated[int, fastapi.Query(ge=1, le=MAX_CONFIRMED_ITEMS)] = GRID_ITEMS,
        label: int | None = None,
    ) -> Json:
        """Of the given class, or of the class with most confident predictions.

        `sure`: number of confident predictions per class.
        """
        return Json(service.build_grid(who, n, label))

    return routes


def _write_routes(service: LabellingService) -> APIRouter:
    routes = APIRouter(prefix="/api")

    @routes.post("/me", summary="Set the annotator's name")
    def me(given: Annotated[Me, Body()]) -> Json:
        """Sets the cookie `la_who`. The name identifies the annotator; it is not a password."""
        who = _check_name(given.who)
        response = Json(_describe_session(service, who))
        set_cookie(response, "la_who", who)
        return response

    @routes.post("/answers", summary="Record an answer")
    def answers(given: Annotated[Answer, Body()], who: Annotator) -> Json:
        """Stored durably when this returns. For a labelled item: a correction or second opinion.

        settle: resolve a conflict; no annotator's own answer changes.
        keep: exclude the current label from the review; doubt: include it again.
        """
        if given.kind in ("skip", "unsure", "doubt") and given.label is not None:
            raise InputError(f"{given.kind} with the label {given.label}; expected no label")
        return Json(service.record_answer(who, **given.model_dump()))

    @routes.post("/confirmations", summary="Label many items with one class")
    def confirmed(given: Annotated[Confirmation, Body()], who: Annotator) -> Json:
        """Each item gets its own answer, marked as a confirmation.

        One undo reverts all of them. Labelled items are left unchanged.
        """
        return Json(service.confirm_items(who, given.positions, given.label, given.key))

    @routes.post("/undo", summary="Undo an answer")
    def undo(given: Annotated[Undo, Body()], who: Annotator) -> Json:
        """Undo the annotator's last answer, or one by its number; repeat to undo earlier ones.

        A bulk confirmation is undone as a whole, and so is a change of classes.
        """
        return Json(service.undo_answer(who, given.seq, given.key))

    @routes.post("/classes", summary="Add a class")
    def classes(given: Annotated[NewClass, Body()], who: Annotator) -> dict[str, Any]:
        """If a class has this name, ignoring case, it is returned.

        positions: unlabelled items, and items that were answered "none of these", get the class at
        once; one undo reverts their labels.
        """
        try:
            return service.add_class(who, given.name, given.positions, given.key)
        except InputError as error:
            raise HTTPException(409, str(error)) from error

    @routes.post("/classes/{number}", summary="Rename, merge or remove a class")
    def change(
        number: int, given: Annotated[ClassChange, Body()], who: Annotator
    ) -> dict[str, Any]:
        """merge: its labels become labels of the other class. remove: its items become unlabelled.

        Undo reverts the change.
        """
        return service.change_class(who, given.kind, number, given.name, given.key)

    return routes


def _read_routes(service: LabellingService, schedule: Schedule) -> APIRouter:
    routes = APIRouter(prefix="/api")

    @routes.get("/items/{position}", summary="Content of an item")
    def item(position: int) -> dict[str, Any]:
        if not 0 <= position < len(service.items):
            raise HTTPException(404, f"there is no item {position}")
        return service.items.describe_item(position)

    @routes.get("/why/{position}", summary="Explanation of an item")
    def why(position: int, who: Annotator) -> dict[str, Any]:
        if not 0 <= position < len(service.items):
            raise HTTPException(404, f"there is no item {position}")
        return overview.explain_item(service, position, who)

    @routes.get("/progress", summary="Progress, accuracy and advice")
    def progress() -> dict[str, Any]:
        return overview.summarize_progress(service, schedule)

    @routes.get("/doubts", summary="Labels to review")
    def doubts(n: Annotated[int, fastapi.Query(ge=1, le=500)] = 24) -> dict[str, Any]:
        """enough: whether there are enough labels. Outputs are leave-one-out predictions."""
        return overview.list_doubts(service, n)

    @routes.get("/none-of-these", summary="Items that belong to none of the classes")
    def none_of_these(n: Annotated[int, fastapi.Query(ge=1, le=200)] = 24) -> dict[str, Any]:
        """Answered so, the newest first; `similar`: unlabelled items that resemble them.

        A new class can be made of them: `POST /api/classes` with their positions.
        """
        return service.list_none_of_these(n)

    @routes.get("/people", summary="Annotators and conflicts")
    def people() -> dict[str, Any]:
        """seconds: median time between two answers of the annotator; None if unknown."""
        found = overview.list_annotators(service)
        answers = service.label_state.answers.values()
        seconds = measure_item_seconds(answer for given in answers for answer in given)
        for row in found["people"]:
            row["seconds"] = seconds.get(row["who"])
        return found

    @routes.get("/history", summary="The newest answers, of all annotators or of one")
    def history(
        me: Annotator,
        n: Annotated[int, fastapi.Query(ge=1, le=1000)] = 50,
        who: str | None = None,
        mine: bool = False,
    ) -> list[dict[str, Any]]:
        """mine=1: those of the annotator who sends the request."""
        return overview.list_history(service, n, me if mine else who)

    return routes


def _overview_routes(service: LabellingService) -> APIRouter:
    routes = APIRouter(prefix="/api")

    @routes.get("/review", summary="Labels of others to review")
    def review(
        who: Annotator,
        n: Annotated[int, fastapi.Query(ge=1, le=200)] = 24,
        share: Annotated[float, fastapi.Query(ge=0, le=1)] = RANDOM_SHARE,
    ) -> dict[str, Any]:
        """Disagreements, doubts, and a random share of each annotator's labels.

        Accept a label by the answer `keep`, correct it by `settle`.
        """
        return list_review_queue(service, who, n, share)

    neighbours = NeighbourMap()

    @routes.get("/map", summary="Map of the pool")
    def pool_map(
        layout: Literal["components", "neighbours"] = "components", refresh: bool = False
    ) -> dict[str, Any]:
        """components: of the kernel. neighbours: t-SNE, computed on the first request.

        While `state` is "computing", the coordinates are the components. refresh=1: compute again.
        """
        if layout == "components" or service.page_model is None:
            return overview.build_map(service) | {"layout": "components", "state": "ready"}
        found = neighbours.read(service.page_model, refresh=refresh)
        used = "neighbours" if found.coordinates else "components"
        return overview.build_map(service, found.coordinates) | {
            "layout": used,
            "state": found.state,
        }

    return routes


def _send_file(
    service: LabellingService, ending: str, media: str, write: Callable[[Path], object]
) -> FileResponse:
    """Write a file or folder, send it (zipped if a folder), and delete it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=service.journal.folder))
    try:
        target = folder / ending.removesuffix(".zip")
        write(target)
        if target.is_dir():
            target = Path(shutil.make_archive(str(target), "zip", target))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    name = re.sub(r"[^\w.-]+", "-", service.items.data.name, flags=re.ASCII).strip("-.")
    return FileResponse(
        target,
        media_type=media,
        filename=f"{name or 'items'}-{ending}",
        background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True),
    )


def _model_routes(
    service: LabellingService, schedule: Schedule, fit_lock: threading.Lock
) -> APIRouter:
    routes = APIRouter()

    @routes.get("/api/model", summary="The model", response_class=FileResponse)
    def model(onnx: bool = False) -> FileResponse:
        """A zipped folder for `labelahead predict`, fitted now on all labels.

        One request at a time. onnx=1: also as ONNX.
        """
        if not fit_lock.acquire(blocking=False):
            raise HTTPException(
                409, "a model is already being fitted for another request; try again in a moment"
            )
        try:
            exported = build_exported_model(service, schedule)
            return _send_file(
                service,
                "model.zip",
                "application/zip",
                lambda target: exported.save(target, onnx=onnx),
            )
        finally:
            fit_lock.release()

    return routes


def _cache_headers(service: LabellingService, version: str) -> dict[str, str]:
    """Return the headers of an item's content; URLs of the current version may be cached."""
    current = version == service.items.version
    return {"Cache-Control": CACHE_FOREVER if current else "private, no-cache"}


def _parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Return start and stop of one byte range, None for the whole file (RFC 9110, 14.2).

    A header that is not a single range of bytes is ignored.

    Raises:
        HTTPException: 416 if the range begins after the end.
    """
    match = re.fullmatch(r"bytes=(\d{0,15})-(\d{0,15})", header.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if match[1]:
        start = int(match[1])
        stop = min(size, int(match[2]) + 1) if match[2] else size
    else:  # the last bytes
        start, stop = max(0, size - int(match[2])), size
    if match[1] and match[2] and int(match[2]) < start:
        return None
    if start >= size:
        raise HTTPException(
            416, f"the sound has {size} bytes", headers={"Content-Range": f"bytes */{size}"}
        )
    return start, stop


async def _read_body(request: Request) -> bytes:
    return await request.body()


def _file_routes(
    service: LabellingService, schedule: Schedule, fit_lock: threading.Lock
) -> APIRouter:
    routes = APIRouter()

    # The id is that of release 0.2, for generated clients.
    @routes.get(
        "/api/export/{form}",
        summary="All labels as a file",
        response_class=FileResponse,
        operation_id="sent_api_export__form__get",
    )
    def export_file(
        form: str, rest: bool = False, probabilities: bool = False, pictures_at: str | None = None
    ) -> FileResponse:
        """csv, jsonl, parquet, label-studio, label-studio-config; hf and folders come zipped.

        rest=1 adds predictions for unlabelled items by a model fitted now on all labels;
        probabilities=1: with the probability of every class. pictures_at: URL prefix of pictures in
        Label Studio tasks; without it, pictures are embedded.
        """
        if form not in EXPORT_FILES:
            raise HTTPException(
                404,
                f"no form {form!r}; expected one of {', '.join((*EXPORT_FORMATS, CONFIG_FORMAT))}",
            )
        suffix, media = EXPORT_FILES[form]
        options: dict[str, Any] = {"probabilities": probabilities, "pictures_at": pictures_at}
        if rest:
            with fit_lock:
                options["predicted"] = predict_pool(service, schedule)
        return _send_file(
            service,
            f"labels{suffix}",
            media,
            lambda target: export_labels(service, form, target, **options),
        )

    # As above: the id of release 0.2.
    @routes.post("/api/import", summary="Labels from a file", operation_id="taken_api_import_post")
    def import_file(
        body: Annotated[bytes, Depends(_read_body)],
        form: Annotated[
            str, fastapi.Query(description="csv, jsonl, label-studio or parquet")
        ] = "csv",
    ) -> dict[str, Any]:
        """The body is the file, at most 20 MB; either all of its labels are imported, or none."""
        if form not in IMPORT_SUFFIXES:
            raise InputError(f"form is {form!r}; expected one of {', '.join(IMPORT_SUFFIXES)}")
        with tempfile.TemporaryDirectory(
            prefix=TEMPORARY_PREFIX, dir=service.journal.folder
        ) as folder:
            path = Path(folder) / f"import{IMPORT_SUFFIXES[form]}"
            path.write_bytes(body)
            try:
                return import_labels(service, path, form)
            except InputError as error:  # the client does not know the temporary path
                raise InputError(str(error).replace(str(path), "the file")) from error

    return routes


def _item_routes(service: LabellingService) -> APIRouter:
    routes = APIRouter()

    @routes.get("/items/{position}", summary="An item's picture", response_class=Response)
    def picture(position: int, v: str = "", small: bool = False, full: bool = False) -> Response:
        """By position in the data set, decoded and encoded again; of a sound, its waveform.

        small=1: a thumbnail; full=1: in full resolution.
        """
        try:
            content, media = service.items.encode_image(
                position, THUMBNAIL_PIXELS if small else FULL_PIXELS if full else DISPLAY_PIXELS
            )
        except InputError as error:
            raise HTTPException(404, str(error)) from error
        return Response(content, media_type=media, headers=_cache_headers(service, v))

    @routes.get("/items/{position}/sound", summary="An item's sound", response_class=Response)
    def sound(
        position: int, v: str = "", range: Annotated[str, fastapi.Header()] = ""
    ) -> StreamingResponse:
        """As a .wav file of 16 bits, decoded from the item's own file; byte ranges are supported."""
        try:
            size = service.items.get_sound_size(position)
        except InputError as error:
            raise HTTPException(404, str(error)) from error
        part = _parse_range(range, size)
        start, stop = part or (0, size)
        headers = _cache_headers(service, v) | {
            "Accept-Ranges": "bytes",
            "Content-Length": str(stop - start),
        }
        if part is not None:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        status = 200 if part is None else 206
        content = service.items.iter_sound(position, start, stop)
        return StreamingResponse(content, status, headers, media_type="audio/wav")

    return routes
