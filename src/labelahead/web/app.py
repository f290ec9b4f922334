"""The server: addresses to answers. What the answers say is decided elsewhere.

Endpoints are plain functions, so that each runs in a thread of its own and may wait for the desk.
"""

import json
import logging
import math
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel, Field, StrictInt
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp

from labelahead.errors import InputError, LabelaheadError
from labelahead.web import overview
from labelahead.web.conductor import Conductor
from labelahead.web.desk import Desk
from labelahead.web.names import checked_name
from labelahead.web.security import LOOPBACK, Guard, cookies, set_cookie
from labelahead.web.transfer import file_routes

__all__ = ["create_app"]

HERE = Path(__file__).parent
NOBODY = "me"  # who answers before anyone has said a name
LONGEST_NAME = 60
ABOUT = """The server behind the labelling page. Every POST needs the header `X-Labelahead: 1`, and
JSON. Errors are `{"error": "one sentence"}`. Who you are is the cookie `la_who`, see /api/me."""
log = logging.getLogger("labelahead")


class Json(JSONResponse):
    """JSON for any page: no NaN, and half characters as escapes."""

    def render(self, content: Any) -> bytes:
        """As bytes."""
        text = json.dumps(_finite(content), ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")  # \\ud800 is how JSON spells such a half


class Me(BaseModel):
    """Who answers from now on."""

    who: str = Field(description=f"A name, at most {LONGEST_NAME} characters.")


class Answer(BaseModel):
    """What a person says of an item."""

    position: StrictInt = Field(description="The item's position in the data set.")
    kind: Literal["label", "skip", "unsure", "settle", "keep", "doubt"]
    label: StrictInt | None = Field(None, description="A class number, for label, settle, keep.")
    key: str | None = Field(
        None,
        max_length=200,
        description="Made by the sender: the same answer sent twice counts once.",
    )


class Undo(BaseModel):
    """What to take back."""

    seq: StrictInt | None = Field(None, description="An event of this person; none: the last.")
    key: str | None = Field(
        None, max_length=200, description="Made by the sender: sent twice, it takes back once."
    )


class NewClass(BaseModel):
    """A class that is new."""

    name: str


def create_app(
    desk: Desk,
    conductor: Conductor,
    *,
    token: str | None = None,
    hosts: Iterable[str] = LOOPBACK,
) -> ASGIApp:
    """The whole application. token: asked of everyone. hosts: names that it may be called by."""
    app = FastAPI(
        title="labelahead", version=version("labelahead"), description=ABOUT,
        openapi_url="/api/openapi.json", docs_url=None, redoc_url=None,
        default_response_class=Json,
    )  # fmt: skip
    _errors(app)
    for routes in (_asking(desk), _changing(desk), _watching(desk, conductor), file_routes(desk)):
        app.include_router(routes)
    _pages(app, desk)
    return Guard(app, token=token, hosts=hosts)


def _who(request: Request) -> str | None:
    """Who has said a name; one that is none counts as unsaid."""
    try:
        return _name(cookies(request.headers).get("la_who", ""))
    except InputError:
        return None


def _someone(request: Request) -> str:
    return _who(request) or NOBODY


def _name(given: str) -> str:
    name = checked_name(given, "the name")
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise InputError(f"the name must be printable, and at most {LONGEST_NAME} characters")
    return name


Who = Annotated[str, Depends(_someone)]
Said = Annotated[str | None, Depends(_who)]


def _session(desk: Desk, who: str | None) -> dict[str, Any]:
    return {
        "name": desk.items.data.name, "items": len(desk.items) - len(desk.closed),
        "classes": desk.classes(), "kind": desk.items.kind, "version": version("labelahead"),
        "who": who, "test": bool(desk.closed),
    }  # fmt: skip


def _asking(desk: Desk) -> APIRouter:
    routes = APIRouter(prefix="/api")

    @routes.get("/health", summary="Whether the server is up")
    def health() -> dict[str, bool]:
        return {"ok": True}

    @routes.get("/session", summary="What is labelled here, and who you are")
    def session(who: Said) -> dict[str, Any]:
        return _session(desk, who)

    @routes.get("/question", summary="The item to label now")
    def question(who: Who, fresh: bool = False) -> dict[str, Any]:
        """Asked again without an answer in between, it is the same item.

        fresh=1: hand that one back, and take what matters most by now, say after a training.
        """
        return desk.question(who, fresh=fresh)

    return routes


def _changing(desk: Desk) -> APIRouter:
    routes = APIRouter(prefix="/api")

    @routes.post("/me", summary="Say who you are")
    def me(given: Annotated[Me, Body()]) -> Json:
        """Sets the cookie `la_who`. A name is a signature, not a password."""
        who = _name(given.who)
        response = Json(_session(desk, who))
        set_cookie(response, "la_who", who)
        return response

    @routes.post("/answers", summary="Answer")
    def answers(given: Annotated[Answer, Body()], who: Who) -> dict[str, Any]:
        """On the disk when this returns. For a labelled item: a correction or second opinion.

        settle: what counts where people disagree; it changes nobody's own answer.
        keep: a label that is doubted is right, the label that counts; doubt: let it be doubted.
        """
        if given.kind in ("skip", "unsure", "doubt") and given.label is not None:
            raise InputError(f"{given.kind} with the label {given.label}; expected none")
        return desk.answer(who, given.position, given.kind, given.label, given.key)

    @routes.post("/undo", summary="Take an answer back")
    def undo(given: Annotated[Undo, Body()], who: Who) -> dict[str, Any]:
        """The last answer of this person, or one by its number; as often as wanted."""
        return desk.undo(who, given.seq, given.key)

    @routes.post("/classes", summary="Add a class")
    def classes(given: Annotated[NewClass, Body()], who: Who) -> dict[str, Any]:
        """A name that is there already, whatever its capital letters, is that class."""
        try:
            return desk.add_class(who, given.name)
        except InputError as error:
            raise HTTPException(409, str(error)) from error

    return routes


def _watching(desk: Desk, conductor: Conductor) -> APIRouter:
    routes = APIRouter(prefix="/api")

    @routes.get("/items/{position}", summary="What is shown of an item")
    def item(position: int) -> dict[str, Any]:
        if not 0 <= position < len(desk.items):
            raise HTTPException(404, f"there is no item {position}")
        return {"position": position, **desk.items.describe(position)}

    @routes.get("/why/{position}", summary="What an answer would change, and what speaks for it")
    def why(position: int) -> dict[str, Any]:
        if not 0 <= position < len(desk.items):
            raise HTTPException(404, f"there is no item {position}")
        return overview.why(desk, position)

    @routes.get("/progress", summary="How far it is, how good, and whether to go on")
    def progress() -> dict[str, Any]:
        return overview.progress(desk, conductor)

    @routes.get("/map", summary="The pool in the plane")
    def pool_map() -> dict[str, Any]:
        return overview.pool_map(desk)

    @routes.get("/doubts", summary="Labels that the others contradict")
    def doubts(n: Annotated[int, Query(ge=1, le=500)] = 24) -> dict[str, Any]:
        """enough: whether there are labels enough to judge by. Outputs are leave-one-out's."""
        return overview.doubts(desk, n)

    @routes.get("/people", summary="Who labels, and where two disagree")
    def people() -> dict[str, Any]:
        return overview.people(desk)

    @routes.get("/history", summary="The newest answers, of everyone or of one person")
    def history(
        me: Who,
        n: Annotated[int, Query(ge=1, le=1000)] = 50,
        who: str | None = None,
        mine: bool = False,
    ) -> list[dict[str, Any]]:
        """mine=1: those of whoever asks."""
        return overview.history(desk, n, me if mine else who)

    return routes


def _pages(app: FastAPI, desk: Desk) -> None:
    """The page and its files; a template escapes whatever is put into it."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined
    )

    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        name = desk.items.data.name
        return HTMLResponse(templates.get_template("page.html").render(name=name))

    class Static(StaticFiles):
        def file_response(self, *args: Any, **kwargs: Any) -> Response:
            response = super().file_response(*args, **kwargs)
            response.headers["Cache-Control"] = "private, no-cache"  # asked again, sent if changed
            return response

    app.mount("/static", Static(directory=HERE / "static"), name="static")


def _errors(app: FastAPI) -> None:
    """Every error is one sentence."""

    @app.exception_handler(InputError)
    def refused(request: Request, error: Exception) -> Json:
        return Json({"error": str(error)}, 400)

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


def _finite(value: Any) -> Any:
    """Without NaN and infinities, for which JSON has no word."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value
