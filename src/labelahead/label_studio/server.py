"""What Label Studio may call: a webhook, and the five addresses of an ML backend. The page may be watched beside it."""

import base64
import binascii
import hmac
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, HTTPException, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from labelahead.label_studio.bridge import VERSION, Bridge
from labelahead.web.app import one_sentence
from labelahead.web.routes import Json

__all__ = ["SECRET", "Doors", "protocol"]

SECRET = "X-Labelahead-Secret"
LONGEST = 64 << 20  # bytes of a body: a webhook brings whole tasks
PATHS = ("/health", "/setup", "/predict", "/webhook", "/versions")
UNCHANGING = ("GET", "HEAD")


class Doors:
    """Label Studio's calls go to `calls`; of the page, what changes nothing is let through."""

    def __init__(self, calls: ASGIApp, page: ASGIApp) -> None:
        self.calls, self.page = calls, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http" and scope["path"] in PATHS:
            await (_too_long(scope) or self.calls)(scope, receive, send)
        elif scope["type"] != "http" or (scope["method"] in UNCHANGING and scope["path"] != "/api/question"):
            await self.page(scope, receive, send)
        else:
            await Json({"error": "labels are given in Label Studio; here they can be looked at"}, 403)(
                scope, receive, send
            )


def _too_long(scope: Scope) -> Json | None:
    announced = Headers(scope=scope).get("content-length", "0" if scope["method"] in UNCHANGING else "")
    if announced.isdecimal() and len(announced) < 12 and int(announced) <= LONGEST:
        return None
    return Json({"error": f"expected Content-Length, and at most {LONGEST >> 20} MB"}, 413)


def protocol(bridge: Bridge, secret: str, *, open_to_all: bool) -> FastAPI:
    """The calls. secret: comes with every webhook, or as the password of an ML backend.

    open_to_all: predictions are handed to whoever asks, as on a machine that is its own.
    """
    app = FastAPI(
        title="labelahead for Label Studio",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        default_response_class=Json,
    )
    one_sentence(app)

    def known(request: Request) -> None:
        if not _right(request, secret):
            raise HTTPException(
                401, "the secret is missing or wrong; restart labelahead, which tells it to Label Studio"
            )

    def near(request: Request) -> None:
        if not open_to_all:
            known(request)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "UP", "model_class": VERSION, "current": bridge.current}

    @app.get("/versions")
    def versions() -> dict[str, Any]:
        return {"versions": [VERSION]}

    @app.post("/setup", dependencies=[Depends(near)])
    def setup(told: Annotated[dict[str, Any], Body()]) -> dict[str, str]:
        return {"model_version": VERSION}

    @app.post("/predict", dependencies=[Depends(near)])
    def predict(told: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        return {"results": bridge.predict(told.get("tasks") or ()), "model_version": VERSION}

    @app.post("/webhook", status_code=201, dependencies=[Depends(known)])
    def webhook(told: Annotated[dict[str, Any], Body()]) -> dict[str, str]:
        """201 says that it is on the disk."""
        bridge.hear(told)
        return {"status": "recorded"}

    return app


def _right(request: Request, secret: str) -> bool:
    """In the same time whatever was given: in our own header, or as a password."""
    given = request.headers.get(SECRET, "")
    kind, _, content = request.headers.get("authorization", "").partition(" ")
    if not given and kind.lower() == "basic":
        try:
            given = base64.b64decode(content, validate=True).decode("utf-8", "replace").partition(":")[2]
        except binascii.Error:
            return False
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())
