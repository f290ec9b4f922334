"""HTTP endpoints for Label Studio: a webhook and an ML backend, beside the read-only page."""

import base64
import hmac
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import Body, FastAPI
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from labelahead.integrations.label_studio.bridge import MODEL_VERSION_PREFIX, Bridge
from labelahead.integrations.label_studio.payloads import parse_task_ids
from labelahead.server.app import add_error_handlers
from labelahead.server.routes import Json
from labelahead.server.security import LOOPBACK, HostNames, refuse_ambiguous

__all__ = ["MAX_CALL_BYTES", "SECRET_HEADER", "LabelStudioGateway", "protocol"]

SECRET_HEADER = "X-Labelahead-Secret"
# A webhook brings the annotation, its project and its whole task. Of a text at most 1 MB is read,
# which is some 3 MB as JSON. What is larger, such as the import of many thousand tasks, is noticed
# at the next comparison with Label Studio.
MAX_CALL_BYTES = 4 << 20
PUBLIC_PATHS = ("/health", "/versions")
PREDICTION_PATHS = ("/setup", "/predict")
ALLOWED_PATHS = (*PUBLIC_PATHS, *PREDICTION_PATHS, "/webhook")
SAFE_METHODS = ("GET", "HEAD")


class LabelStudioGateway:
    """Route calls of Label Studio to `calls`, and read-only requests to the page.

    A call is refused by its headers alone, before any of its body is read.

    Args:
        calls: The application of `protocol`.
        page: The labelling page.
        secret: Comes with every webhook, or as the password of an ML backend.
        hosts: Names that calls may be addressed to, without port.
        predictions_need_secret: Whether predictions are for Label Studio alone, or for every
            program of this machine.
    """

    def __init__(
        self,
        calls: ASGIApp,
        page: ASGIApp,
        *,
        secret: str,
        hosts: Iterable[str] = LOOPBACK,
        predictions_need_secret: bool = True,
    ) -> None:
        self.calls = calls
        self.page = page
        self._secret = secret
        self._hosts = HostNames(hosts)
        self._open_paths = (
            PUBLIC_PATHS if predictions_need_secret else (*PUBLIC_PATHS, *PREDICTION_PATHS)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request."""
        if scope["type"] == "http" and scope["path"] in ALLOWED_PATHS:
            await (self._refuse_call(scope) or self.calls)(scope, receive, send)
        elif scope["type"] != "http" or (
            scope["method"] in SAFE_METHODS and scope["path"] != "/api/question"
        ):
            await self.page(scope, receive, send)
        else:
            await Json({"error": "labelling happens in Label Studio; this page is read-only"}, 403)(
                scope, receive, send
            )

    def _refuse_call(self, scope: Scope) -> Response | None:
        """Return an error for a call that is not allowed, or None; the body is not read."""
        request = Headers(scope=scope)
        refusal = refuse_ambiguous(request) or self._hosts.refuse_unknown(request)
        if refusal is not None:
            return refusal
        if scope["path"] not in self._open_paths and not _has_secret(request, self._secret):
            return Json(
                {
                    "error": (
                        "the secret is missing or wrong; restart labelahead, which registers "
                        "it with Label Studio"
                    )
                },
                401,
            )
        return _refuse_length(request, needed=scope["method"] not in SAFE_METHODS)


def _refuse_length(request: Headers, *, needed: bool) -> Response | None:
    """Return an error for a body of unknown length or with too many bytes, or None."""
    length = request.get("content-length", "" if needed or "transfer-encoding" in request else "0")
    if not (length.isascii() and length.isdecimal()):
        return Json(
            {
                "error": (
                    "Content-Length is missing or not a number; send the length of the body in bytes"
                )
            },
            411,
        )
    if len(length) > 12 or int(length) > MAX_CALL_BYTES:
        return Json(
            {"error": f"the body has {length} bytes; expected at most {MAX_CALL_BYTES}: send less"},
            413,
        )
    return None


def protocol(bridge: Bridge) -> FastAPI:
    """Create the application for the calls that `LabelStudioGateway` accepts."""
    app = FastAPI(
        title="labelahead for Label Studio",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        default_response_class=Json,
    )
    add_error_handlers(app)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "UP", "model_class": MODEL_VERSION_PREFIX, "current": bridge.is_current}

    @app.get("/versions")
    def versions() -> dict[str, Any]:
        return {"versions": [MODEL_VERSION_PREFIX]}

    @app.post("/setup")
    def setup(payload: Annotated[dict[str, Any], Body()]) -> dict[str, str]:
        return {"model_version": MODEL_VERSION_PREFIX}

    @app.post("/predict")
    def predict(payload: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        return {
            "results": bridge.predict_tasks(parse_task_ids(payload)),
            "model_version": MODEL_VERSION_PREFIX,
        }

    @app.post("/webhook", status_code=201)
    def webhook(payload: Annotated[dict[str, Any], Body()]) -> dict[str, str]:
        """Return 201 once the event is stored durably."""
        bridge.handle_webhook(payload)
        return {"status": "recorded"}

    return app


def _has_secret(request: Headers, secret: str) -> bool:
    """Return whether the secret is in our header or is the password; constant-time comparison."""
    given = request.get(SECRET_HEADER, "")
    kind, _, content = request.get("authorization", "").partition(" ")
    if not given and kind.lower() == "basic":
        try:
            given = (
                base64.b64decode(content, validate=True)
                .decode("utf-8", "replace")
                .partition(":")[2]
            )
        except ValueError:  # not base64, or not even ASCII
            return False
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())
