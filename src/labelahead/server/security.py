"""Who may ask: every request passes here before anything else sees it.

The server is meant for the people in front of it. What else could reach it is their own browser,
led by another page: by a form, a picture's address, a script, or a name that is made to point at
this machine (DNS rebinding). Hence: known host names only, no request that another origin began, a
header on every change that no form can send, and nothing inline or foreign on the page. Beyond this
machine, a token.
"""

import hmac
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelahead.errors import InputError
from labelahead.server.rate_limit import ATTEMPT_WINDOW_SECONDS, FailedAttempts

__all__ = [
    "ANY_ADDRESS",
    "LOOPBACK",
    "Guard",
    "HostNames",
    "is_loopback",
    "parse_cookies",
    "refuse_ambiguous",
    "set_cookie",
]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY_BYTES, MAX_IMPORT_BYTES = 64 << 10, 20 << 20  # bytes
ANY_ADDRESS = "*"  # a host that stands for every numeric address
WRITE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
READ_METHODS = frozenset({"GET", "HEAD"})
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
# A browser that was led here from another site keeps a strict cookie to itself until the page
# itself asks: hence the link.
TOKEN_PAGE = (
    "<!doctype html><meta charset=utf-8><title>labelahead</title><p>This page needs its token: "
    'open the whole address that labelahead printed. If you just did: <a href="/">go on</a>.</p>'
)


class Guard:
    """Around the application. hosts: names that requests may be addressed to, without port."""

    def __init__(self, app: ASGIApp, *, token: str | None = None, hosts: Iterable[str]) -> None:
        if token is not None and not re.fullmatch(r"[\w.~-]{8,200}", token, re.ASCII):
            raise InputError(
                "the token must be 8 to 200 letters, digits or any of . _ ~ -; leave its value "
                "out and one is made"
            )
        self.app, self.token = app, token
        self._hosts = HostNames(hosts)
        self._failed = FailedAttempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Headers(scope=scope)
        refusal = self._find_refusal(scope, request)
        if refusal is None and scope["method"] in WRITE_METHODS:
            body, refusal = await _read_body(scope, request, receive)
            receive = _replay(body, receive)
        await (refusal or self.app)(scope, receive, answer)

    def _find_refusal(self, scope: Scope, request: Headers) -> Response | None:
        """What to say instead of an answer, if the request is not let in."""
        method, path = scope["method"], scope["path"]
        refusal = refuse_ambiguous(request) or self._hosts.refuse_unknown(request)
        if refusal is not None:
            return refusal
        if method not in WRITE_METHODS and method not in READ_METHODS:
            return _error(405, "expected GET or POST")
        if self.token is not None:
            refusal = self._check_token(scope, request)
            if refusal is not None:
                return refusal
        site = request.get("sec-fetch-site", "same-origin")
        navigating = method in READ_METHODS and not path.startswith(("/api", "/items"))
        if site not in ("same-origin", "none") and not navigating:
            return _error(403, "another site began this request; use the labelling page itself")
        if method in WRITE_METHODS:
            origin = request.get("origin")
            if origin is not None and urlsplit(origin).netloc.lower() != request["host"].lower():
                return _error(403, "another site began this request; use the labelling page itself")
            if request.get("x-labelahead") != "1":
                return _error(403, "the header X-Labelahead: 1 is missing; every change needs it")
        return None

    def _check_token(self, scope: Scope, request: Headers) -> Response | None:
        """The answer to a request without the right token, or to one that brings it in the address.

        A right token passes however many wrong ones came before: several clients may share an
        address, behind a proxy for example, and one of them with an old cookie must not lock out
        the others.
        """
        in_address, rest = _read_token_from_url(scope)
        if in_address is not None and self._is_token(in_address):
            response = RedirectResponse(rest, status_code=303)
            set_cookie(response, _token_cookie_name(scope), self.token or "")
            return response
        given = _read_token_from_headers(scope, request)
        if self._is_token(given):
            return None
        wrong = in_address or given
        if wrong and self._failed.add(str((scope.get("client") or ("",))[0]), wrong):
            wait = f"{ATTEMPT_WINDOW_SECONDS:.0f}"
            sentence = (
                "too many wrong tokens; open the address that labelahead printed, or wait "
                f"for {wait} s"
            )
            return _error(429, sentence, {"Retry-After": wait})
        return _require_token(scope, request)

    def _is_token(self, given: str) -> bool:
        """Compared in the same time whatever was given."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), (self.token or "").encode())


class HostNames:
    """The names that a server may be addressed by.

    Any other may be one that is made to point here (DNS rebinding).
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        named = {host.lower() for host in hosts}
        self._names = frozenset(named - {ANY_ADDRESS})
        self._any_address = ANY_ADDRESS in named

    def refuse_unknown(self, request: Headers) -> Response | None:
        """The answer to a request whose Host header is missing, given twice, or none of the names."""
        hosts = request.getlist("host")
        if len(hosts) == 1 and hosts[0] in self:
            return None
        return _error(403, "this server does not go by that name; use the address it printed")

    def __contains__(self, host: str) -> bool:
        """Whether a Host header, with or without port, is one of the names."""
        match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(:\d{1,5})?", host.lower())
        if match is None:
            return False
        name = match[1].removesuffix(".")
        # A name can be made to point anywhere; a numeric address points at what it says.
        return name in self._names or (self._any_address and _parse_address(name) is not None)


def refuse_ambiguous(request: Headers) -> Response | None:
    """The answer to a request that gives the length of its body twice, or None if it does not.

    Where Content-Length and Transfer-Encoding are both present, a proxy may go by one and this
    server by the other: the end of one body is then read as the next request (request smuggling;
    RFC 9112, 6.1).
    """
    if "content-length" in request and "transfer-encoding" in request:
        sentence = "the request has both Content-Length and Transfer-Encoding; send one of them"
        return _error(400, sentence, {"Connection": "close"})
    return None


def _read_token_from_url(scope: Scope) -> tuple[str | None, str]:
    """The token in the address of a GET request, if there is one, and the address without it."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given = next((value for name, value in pairs if name == "token"), None)
    rest = urlencode([(name, value) for name, value in pairs if name != "token"])
    # One slash: two would make the rest another host.
    path = quote("/" + scope["path"].lstrip("/\\"))
    return given if scope["method"] == "GET" else None, path + (f"?{rest}" if rest else "")


def _read_token_from_headers(scope: Scope, request: Headers) -> str:
    kind, _, bearer = request.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return bearer.strip()
    return parse_cookies(request).get(_token_cookie_name(scope), "")


def _token_cookie_name(scope: Scope) -> str:
    """Browsers keep cookies by host alone.

    Without the port two pages of one machine would take each other's.
    """
    server = scope.get("server")
    return f"la_token_{server[1]}" if server and server[1] else "la_token"


def _require_token(scope: Scope, request: Headers) -> Response:
    if scope["path"] == "/" and "text/html" in request.get("accept", ""):
        return HTMLResponse(TOKEN_PAGE, status_code=401)
    return _error(401, "the token is missing or wrong; open the address that was printed")


def set_cookie(response: Response, name: str, value: str) -> None:
    """A cookie that scripts cannot read and other sites cannot send; any text will do."""
    response.set_cookie(
        name,
        quote(value, safe=""),
        httponly=True,
        samesite="strict",
        path="/",
        max_age=365 * 24 * 3600 if name == "la_who" else None,
    )


def parse_cookies(request: Headers) -> dict[str, str]:
    """All cookies by name, as they were set; the first of a name, which is the most specific.

    Not by http.cookies: it gives up at a strange one, and every program on localhost sets some.
    """
    values: dict[str, str] = {}
    for pair in "; ".join(request.getlist("cookie")).split(";"):
        name, _, value = pair.partition("=")
        values.setdefault(name.strip(), unquote(value.strip()))
    return values


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to it."""
    address = _parse_address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _parse_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


async def _read_body(
    scope: Scope, request: Headers, receive: Receive
) -> tuple[bytes, Response | None]:
    """The whole body, or a refusal: too large, or not what it should be."""
    taking_in = scope["path"] == "/api/import"
    limit = MAX_IMPORT_BYTES if taking_in else MAX_BODY_BYTES
    too_large = _error(413, f"more than {limit >> 10} kB; send less at a time")
    announced = request.get("content-length", "0")
    if not announced.isdecimal():
        return b"", _error(400, "Content-Length is no number")
    if len(announced) > 12 or int(announced) > limit:
        return b"", too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"", _error(400, "the request was cut short")
        body += message.get("body", b"")
        if len(body) > limit:
            return b"", too_large
        if not message.get("more_body"):
            break
    return bytes(body), None if taking_in else _refuse_invalid_json(bytes(body), request)


def _refuse_invalid_json(body: bytes, request: Headers) -> Response | None:
    kind = request.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return _error(415, "expected Content-Type: application/json")
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return _error(422, "the body is no valid JSON")
    return None if isinstance(content, dict) else _error(422, "expected a JSON object")


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once more, for the application; then whatever comes."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _error(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status_code=status, headers=headers)
