"""What goes in and out as files: labels of other programs, exports, and the items' pictures."""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import FileResponse, Response
from starlette.background import BackgroundTask

from labelahead.errors import InputError
from labelahead.web.desk import Desk
from labelahead.web.exchange import FORMS, export, read_import
from labelahead.web.items import LARGE, SMALL
from labelahead.web.overview import predictions

__all__ = ["file_routes", "take_in", "write_export"]

# form -> what the file is called, its media type
SENT = {
    "csv": (".csv", "text/csv; charset=utf-8"),
    "jsonl": (".jsonl", "application/x-ndjson"),
    "parquet": (".parquet", "application/vnd.apache.parquet"),
    "label-studio": (".label-studio.json", "application/json"),
    "hf": (".hf.zip", "application/zip"),
    "folders": (".folders.zip", "application/zip"),
}
TAKEN = {"csv": ".csv", "jsonl": ".jsonl", "label-studio": ".json", "parquet": ".parquet"}
KEPT = "private, max-age=31536000, immutable"


def write_export(desk: Desk, form: str, out: Path, *, rest: bool = False) -> int:
    """The labels as a file or folder; rest: with predictions for what has none."""
    with desk.lock:
        standing = desk.standing
        guesses = predictions(desk) if rest else None
    return export(standing, desk.items.ids, guesses, form, out, source=desk.items.opener())


def take_in(desk: Desk, path: Path, form: str | None = None) -> dict[str, Any]:
    """The labels of a file or folder; what is not in the data, or held out, is counted."""
    found = read_import(path, desk.items.ids, desk.standing.classes, form=form)
    rows = [row for row in found.labels if row[0] not in desk.closed]
    done = desk.bring_in(rows)
    return done | {
        "unknown": len(found.unknown), "unclear": len(found.unclear), "blank": found.blank,
        "held_out": len(found.labels) - len(rows),
    }  # fmt: skip


async def _raw(request: Request) -> bytes:
    return await request.body()


def file_routes(desk: Desk) -> APIRouter:
    """Export, import, pictures."""
    routes = APIRouter()

    @routes.get("/api/export/{form}", summary="All labels as a file", response_class=FileResponse)
    def sent(form: str, rest: bool = False) -> FileResponse:
        """csv, jsonl, parquet, label-studio; hf and folders come zipped.

        rest=1 adds what the network thinks of items without a label, marked as predictions.
        """
        if form not in SENT:
            raise HTTPException(404, f"no form {form!r}; expected one of {', '.join(FORMS)}")
        suffix, media = SENT[form]
        room = Path(tempfile.mkdtemp(prefix="labelahead-"))
        try:
            target = room / f"labels{suffix.removesuffix('.zip')}"
            write_export(desk, form, target, rest=rest)
            if target.is_dir():
                target = Path(shutil.make_archive(str(target), "zip", target))
        except BaseException:
            shutil.rmtree(room, ignore_errors=True)
            raise
        name = re.sub(r"[^\w.-]+", "-", desk.items.data.name, flags=re.ASCII).strip("-.")
        return FileResponse(
            target, media_type=media, filename=f"{name or 'items'}-labels{suffix}",
            background=BackgroundTask(shutil.rmtree, room, ignore_errors=True),
        )  # fmt: skip

    @routes.post("/api/import", summary="Labels from a file")
    def taken(
        body: Annotated[bytes, Depends(_raw)],
        form: Annotated[str, Query(description="csv, jsonl, label-studio or parquet")] = "csv",
    ) -> dict[str, Any]:
        """The file itself is the body, at most 20 MB; all of its labels are taken in, or none."""
        if form not in TAKEN:
            raise InputError(f"form is {form!r}; expected one of {', '.join(TAKEN)}")
        with tempfile.TemporaryDirectory(prefix="labelahead-") as room:
            path = Path(room) / f"import{TAKEN[form]}"
            path.write_bytes(body)
            try:
                return take_in(desk, path, form)
            except InputError as error:  # whoever sent it does not know where it lay here
                raise InputError(str(error).replace(str(path), "the file")) from error

    @routes.get("/items/{position}", summary="An item's picture", response_class=Response)
    def picture(position: int, v: str = "", small: bool = False) -> Response:
        """By position in the data set, decoded and encoded anew. small=1: for a thumbnail."""
        try:
            content, media = desk.items.picture(position, SMALL if small else LARGE)
        except InputError as error:
            raise HTTPException(404, str(error)) from error
        cache = KEPT if v == desk.items.version else "private, no-cache"
        return Response(content, media_type=media, headers={"Cache-Control": cache})

    return routes
