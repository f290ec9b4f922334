"""The web application: pages, error handling and access control.

The HTTP API is in `routes`, access control in `security`.
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
from labelahead.server.accounts import Accounts
from labelahead.server.login import LoginGuard
from labelahead.server.routes import Json, build_routes
from labelahead.server.schedule import Schedule
from labelahead.server.security import LOOPBACK, Guard
from labelahead.server.service import LabellingService

__all__ = ["add_error_handlers", "create_app"]

SERVER_FOLDER = Path(__file__).parent
API_DESCRIPTION = """The server of the labelling page. Every POST needs the header `X-Labelahead: 1` and a JSON
body. Errors are `{"error": "one sentence"}`. The cookie `la_who` has the annotator's name, see /api/me."""
DISK_FULL_MESSAGE = (
    "the server's disk is full; all accepted answers are safe: free some space and try again"
)
STORAGE_MESSAGE = (
    "the server cannot use its files; all accepted answers are safe: see its terminal for the "
    "reason, and try again"
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
    accounts: Accounts | None = None,
    user_header: str | None = None,
) -> ASGIApp:
    """Create the application.

    Args:
        service: The labelling service.
        schedule: The training schedule.
        token: Access token that every request needs, or None.
        hosts: Allowed values of the Host header, without port.
        labelled_at: URL of Label Studio, if labelling happens there; the page is then read-only.
        accounts: The users, who must log in; None: a name is a signature.
        user_header: Header in which a reverse proxy names the user (`LoginGuard`).
    """
    app = FastAPI(
        title="labelahead",
        version=version("labelahead"),
        description=API_DESCRIPTION,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        default_response_class=Json,
    )
    add_error_handlers(app)
    for routes in build_routes(service, schedule, labelled_at=labelled_at):
        app.include_router(routes)
    _add_pages(app, service)
    inner: ASGIApp = app
    if accounts is not None or user_header is not None:
        inner = LoginGuard(app, accounts, user_header)
    return Guard(inner, token=token, hosts=hosts)


def _add_pages(app: FastAPI, service: LabellingService) -> None:
    """Add the page and its static files; templates escape all values."""
    templates = Environment(
        loader=FileSystemLoader(SERVER_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
    )

    @app.get("/", include_in_schema=False)
    def serve_page() -> HTMLResponse:
        name = service.items.data.name
        return HTMLResponse(templates.get_template("page.html").render(name=name))

    class Static(StaticFiles):
        def file_response(self, *args: Any, **kwargs: Any) -> Response:
            response = super().file_response(*args, **kwargs)
            response.headers["Cache-Control"] = (
                "private, no-cache"  # browsers revalidate, so that an update is used at once
            )
            return response

    app.mount("/static", Static(directory=SERVER_FOLDER / "static"), name="static")


def add_error_handlers(app: FastAPI) -> None:
    """Return every error as JSON with one sentence."""

    @app.exception_handler(InputError)
    def handle_input_error(request: Request, error: Exception) -> Json:
        return Json({"error": str(error)}, 400)

    @app.exception_handler(StorageError)
    @app.exception_handler(OSError)
    def handle_storage_error(request: Request, error: Exception) -> Json:
        assert isinstance(error, OSError)
        log.error(
            "%s %s failed: %s", request.method, request.url.path, error
        )  # paths are logged, but not sent
        full = as_storage_error(Path(), error).full
        return (
            Json({"error": DISK_FULL_MESSAGE}, 507)
            if full
            else Json({"error": STORAGE_MESSAGE}, 503, headers=RETRY_HEADER)
        )

    @app.exception_handler(MissingExtra)
    def handle_missing_extra(request: Request, error: Exception) -> Json:
        message = str(error).replace(f" ({error.__cause__})", "")  # the cause contains paths
        return Json({"error": message}, 503, headers=RETRY_HEADER)

    @app.exception_handler(RequestValidationError)
    def handle_invalid_request(request: Request, error: Exception) -> Json:
        assert isinstance(error, RequestValidationError)
        message = "; ".join(
            f"{'.'.join(str(part) for part in e['loc'][1:]) or 'the body'}: {e['msg']}"
            for e in error.errors()
        )
        return Json({"error": message}, 422)

    @app.exception_handler(AnyHTTPException)
    def handle_http_error(request: Request, error: Exception) -> Json:
        assert isinstance(error, AnyHTTPException)
        message = (
            f"{request.url.path} does not exist" if error.detail == "Not Found" else error.detail
        )
        return Json({"error": message}, error.status_code, headers=error.headers)

    @app.exception_handler(LabelaheadError)
    @app.exception_handler(Exception)
    def handle_other_error(request: Request, error: Exception) -> Json:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        known = isinstance(error, LabelaheadError)
        message = (
            str(error) if known else "an unexpected error occurred; the labels are safe: try again"
        )
        return Json({"error": message}, 500)
