"""Access control: every request is checked here first.

The threat is a malicious web page in an annotator's browser, which can send requests to this server
by a form, an image URL, a script, or a host name that resolves to this machine (DNS rebinding).
Therefore only known host names are accepted, requests from other origins are rejected, every change
needs a header that a form cannot send, and the page loads nothing inline or from other hosts.
Requests from other machines need a token.
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
    "replay_body",
    "set_cookie",
]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY_BYTES, MAX_IMPORT_BYTES = 64 << 10, 20 << 20  # bytes
ANY_ADDRESS = "*"  # allows every numeric address as host
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
# A browser that follows a link from another site does not send a strict cookie, but it does when
# the user clicks a link on this page.
TOKEN_PAGE = (
    "<!doctype html><meta charset=utf-8><title>labelahead</title><p>This page needs a token: "
    'open the full URL that labelahead printed. If you just did, <a href="/">continue</a>.</p>'
)


class Guard:
    """Middleware that checks every request. hosts: allowed Host headers, without port."""

    def __init__(self, app: ASGIApp, *, token: str | None = None, hosts: Iterable[str]) -> None:
        if token is not None and not re.fullmatch(r"[\w.~-]{8,200}", token, re.ASCII):
            raise InputError(
                "the token must have 8 to 200 letters, digits or any of . _ ~ -; without a value, "
                "a token is generated"
            )
        self.app, self.token = app, token
        self._hosts = HostNames(hosts)
        self._failed = FailedAttempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request."""
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
            receive = replay_body(body, receive)
        await (refusal or self.app)(scope, receive, answer)

    def _find_refusal(self, scope: Scope, request: Headers) -> Response | None:
        """Return the error response for a request that is not allowed, or None."""
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
            return _error(403, "the request comes from another site; use the labelling page itself")
        if method in WRITE_METHODS:
            origin = request.get("origin")
            if origin is not None and urlsplit(origin).netloc.lower() != request["host"].lower():
                return _error(
                    403, "the request comes from another site; use the labelling page itself"
                )
            if request.get("x-labelahead") != "1":
                return _error(403, "the header X-Labelahead: 1 is missing; every change needs it")
        return None

    def _check_token(self, scope: Scope, request: Headers) -> Response | None:
        """Return an error or redirect for a request without a valid token in its headers, or None.

        A valid token is accepted however many wrong ones came before: several clients may share an
        IP address, for example behind a proxy, and one of them with an old cookie must not lock out
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
                f"too many wrong tokens; open the URL that labelahead printed, or wait for {wait} s"
            )
            return _error(429, sentence, {"Retry-After": wait})
        return _require_token(scope, request)

    def _is_token(self, given: str) -> bool:
        """Compare with the token in constant time."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), (self.token or "").encode())


class HostNames:
    """Allowed Host headers; any other may be an attack by DNS rebinding."""

    def __init__(self, hosts: Iterable[str]) -> None:
        named = {host.lower() for host in hosts}
        self._names = frozenset(named - {ANY_ADDRESS})
        self._any_address = ANY_ADDRESS in named

    def refuse_unknown(self, request: Headers) -> Response | None:
        """Return an error if the Host header is missing, repeated or not allowed, else None."""
        hosts = request.getlist("host")
        if len(hosts) == 1 and hosts[0] in self:
            return None
        return _error(403, "this host name is not allowed; use the URL that the server printed")

    def __contains__(self, host: str) -> bool:
        """Return whether a Host header, with or without port, is allowed."""
        match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(:\d{1,5})?", host.lower())
        if match is None:
            return False
        name = match[1].removesuffix(".")
        # A name can resolve to any address; a numeric address cannot be redirected.
        return name in self._names or (self._any_address and _parse_address(name) is not None)


def refuse_ambiguous(request: Headers) -> Response | None:
    """Return an error if a request gives the length of its body twice, else None.

    If Content-Length and Transfer-Encoding are both present, a proxy may use one and this server the
    other: the end of one body is then read as the next request (request smuggling; RFC 9112, 6.1).
    """
    if "content-length" in request and "transfer-encoding" in request:
        sentence = "the request has both Content-Length and Transfer-Encoding; send one of them"
        return _error(400, sentence, {"Connection": "close"})
    return None


def _read_token_from_url(scope: Scope) -> tuple[str | None, str]:
    """Return the token in the URL of a GET request, if any, and the URL without it."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given = next((value for name, value in pairs if name == "token"), None)
    rest = urlencode([(name, value) for name, value in pairs if name != "token"])
    # One leading slash: with two, the path would be read as a host.
    path = quote("/" + scope["path"].lstrip("/\\"))
    return given if scope["method"] == "GET" else None, path + (f"?{rest}" if rest else "")


def _read_token_from_headers(scope: Scope, request: Headers) -> str:
    kind, _, bearer = request.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return bearer.strip()
    return parse_cookies(request).get(_token_cookie_name(scope), "")


def _token_cookie_name(scope: Scope) -> str:
    """Return the name of the token cookie.

    It contains the port, because browsers share cookies between all ports of a host.
    """
    server = scope.get("server")
    return f"la_token_{server[1]}" if server and server[1] else "la_token"


def _require_token(scope: Scope, request: Headers) -> Response:
    if scope["path"] == "/" and "text/html" in request.get("accept", ""):
        return HTMLResponse(TOKEN_PAGE, status_code=401)
    return _error(401, "the token is missing or wrong; open the URL that labelahead printed")


def set_cookie(response: Response, name: str, value: str) -> None:
    """Set a cookie that scripts cannot read and other sites cannot send; any text is allowed."""
    response.set_cookie(
        name,
        quote(value, safe=""),
        httponly=True,
        samesite="strict",
        path="/",
        max_age=365 * 24 * 3600 if name == "la_who" else None,
    )


def parse_cookies(request: Headers) -> dict[str, str]:
    """Return all cookies by name; the first of a name, which is the most specific one.

    http.cookies is not used, because it fails on invalid cookies, which other programs on localhost
    may set.
    """
    values: dict[str, str] = {}
    for pair in "; ".join(request.getlist("cookie")).split(";"):
        name, _, value = pair.partition("=")
        values.setdefault(name.strip(), unquote(value.strip()))
    return values


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server bound to this host."""
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
    """Read the body; return it and an error response if it is too large or not valid."""
    taking_in = scope["path"] == "/api/import"
    limit = MAX_IMPORT_BYTES if taking_in else MAX_BODY_BYTES
    too_large = _error(413, f"more than {limit >> 10} kB; send less at a time")
    announced = request.get("content-length", "0")
    if not announced.isdecimal():
        return b"", _error(400, "Content-Length is not a number")
    if len(announced) > 12 or int(announced) > limit:
        return b"", too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"", _error(400, "the request was incomplete")
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
        return _error(422, "the body is not valid JSON")
    return None if isinstance(content, dict) else _error(422, "expected a JSON object")


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(name)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that first yields the body that was already read."""
    sent = False

    async def receive_again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _error(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status_code=status, headers=headers)
