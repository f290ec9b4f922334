"""The server: pages, errors, and the way in.

What is answered is in `routes`; who may ask is in `security`.
"""

import logging
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp

from labelahead.errors import InputError, LabelaheadError, MissingExtra, StorageError
from labelahead.files import as_storage_error
from labelahead.server.routes import Json, build_routes
from labelahead.server.schedule import Schedule
from labelahead.server.security import LOOPBACK, Guard
from labelahead.server.service import LabellingService

__all__ = ["add_error_handlers", "create_app"]

HERE = Path(__file__).parent
ABOUT = """The server behind the labelling page. Every POST needs the header `X-Labelahead: 1`, and
JSON. Errors are `{"error": "one sentence"}`. Who you are is the cookie `la_who`, see /api/me."""
DISK_FULL_MESSAGE = (
    "the server's disk is full; nothing that was accepted is lost: make room and try again"
)
STORAGE_MESSAGE = (
    "the server cannot use its files now; nothing that was accepted is lost: its terminal "
    "says why; try again"
)
RETRY_HEADER = {"Retry-After": "2"}  # seconds
log = logging.getLogger("labelahead")


def create_app(
    service: LabellingService,
    schedule: Schedule,
    *,
    token: str | None = None,
    hosts: Iterable[str] = LOOPBACK,
    labelled_at: str | None = None,
) -> ASGIApp:
    """The whole application. token: asked of everyone. hosts: names that it may be called by.

    labelled_at: the address where labels are given, if that is elsewhere; the page then offers no
    way to change any.
    """
    app = FastAPI(
        title="labelahead",
        version=version("labelahead"),
        description=ABOUT,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        default_response_class=Json,
    )
    add_error_handlers(app)
    for routes in build_routes(service, schedule, labelled_at=labelled_at):
        app.include_router(routes)
    _add_pages(app, service)
    return Guard(app, token=token, hosts=hosts)


def _add_pages(app: FastAPI, service: LabellingService) -> None:
    """The page and its files; a template escapes whatever is put into it."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined
    )

    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        name = service.items.data.name
        return HTMLResponse(templates.get_template("page.html").render(name=name))

    class Static(StaticFiles):
        def file_response(self, *args: Any, **kwargs: Any) -> Response:
            response = super().file_response(*args, **kwargs)
            response.headers["Cache-Control"] = "private, no-cache"  # asked again, sent if changed
            return response

    app.mount("/static", Static(directory=HERE / "static"), name="static")


def add_error_handlers(app: FastAPI) -> None:
    """Every error is one sentence."""

    @app.exception_handler(InputError)
    def wrong(request: Request, error: Exception) -> Json:
        return Json({"error": str(error)}, 400)

    @app.exception_handler(StorageError)
    @app.exception_handler(OSError)
    def unusable(request: Request, error: Exception) -> Json:
        assert isinstance(error, OSError)
        log.error(
            "%s %s failed: %s", request.method, request.url.path, error
        )  # where on the disk is said here alone
        full = as_storage_error(Path(), error).full
        return (
            Json({"error": DISK_FULL_MESSAGE}, 507)
            if full
            else Json({"error": STORAGE_MESSAGE}, 503, headers=RETRY_HEADER)
        )

    @app.exception_handler(MissingExtra)
    def missing(request: Request, error: Exception) -> Json:
        said = str(error).replace(f" ({error.__cause__})", "")  # Python names files there
        return Json({"error": said}, 503, headers=RETRY_HEADER)

    @app.exception_handler(RequestValidationError)
    def unfit(request: Request, error: Exception) -> Json:
        assert isinstance(error, RequestValidationError)
        said = "; ".join(
            f"{'.'.join(str(part) for part in e['loc'][1:]) or 'the body'}: {e['msg']}"
            for e in error.errors()
        )
        return Json({"error": said}, 422)

    @app.exception_handler(AnyHTTPException)
    def stopped(request: Request, error: Exception) -> Json:
        assert isinstance(error, AnyHTTPException)
        said = (
            f"there is no {request.url.path} here" if error.detail == "Not Found" else error.detail
        )
        return Json({"error": said}, error.status_code, headers=error.headers)

    @app.exception_handler(LabelaheadError)
    @app.exception_handler(Exception)
    def failed(request: Request, error: Exception) -> Json:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        known = isinstance(error, LabelaheadError)
        said = str(error) if known else "something went wrong here; the labels are safe: try again"
        return Json({"error": said}, 500)
