"""Who may ask: every request passes here before anything else sees it.

The server is meant for the people in front of it. What else could reach it is their own browser, led by another page:
by a form, a picture's address, a script, or a name that is made to point at this machine (DNS rebinding). Hence: known
host names only, no request that another origin began, a header on every change that no form can send, and nothing
inline or foreign on the page. Beyond this machine, a token.
"""

import hmac
import ipaddress
import json
import re
import time
from collections.abc import Iterable
from typing import NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelahead.errors import InputError

__all__ = ["ANY_ADDRESS", "LOOPBACK", "Guard", "cookies", "is_loopback", "set_cookie"]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
BODY, IMPORT = 64 << 10, 20 << 20  # bytes
GUESSES, GUESSES_WITHIN = 20, 60.0  # wrong tokens of one address, seconds
ADDRESSES = 1000  # that are remembered at least
ANY_ADDRESS = "*"  # a host that stands for every numeric address
CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
READING = frozenset({"GET", "HEAD"})
HEADERS = {
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
NO_TOKEN = (
    "<!doctype html><meta charset=utf-8><title>labelahead</title><p>This page needs its token: "
    'open the whole address that labelahead printed. If you just did: <a href="/">go on</a>.</p>'
)


class Guard:
    """Around the application. hosts: names that requests may be addressed to, without port."""

    def __init__(self, app: ASGIApp, *, token: str | None = None, hosts: Iterable[str]) -> None:
        if token is not None and not re.fullmatch(r"[\w.~-]{8,200}", token, re.ASCII):
            raise InputError(
                "the token must be 8 to 200 letters, digits or any of . _ ~ -; leave its value out and one is made"
            )
        self.app, self.token = app, token
        self._wrong: dict[str, list[float]] = {}  # address -> when it last gave a wrong token
        named = {host.lower() for host in hosts}
        self.hosts, self.numbers = frozenset(named - {ANY_ADDRESS}), ANY_ADDRESS in named

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
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Headers(scope=scope)
        refusal = self._refusal(scope, request)
        if refusal is None and scope["method"] in CHANGING:
            body, refusal = await _body(scope, request, receive)
            receive = _replay(body, receive)
        await (refusal or self.app)(scope, receive, answer)

    def _refusal(self, scope: Scope, request: Headers) -> Response | None:
        """What to say instead of an answer, if the request is not let in."""
        method, path = scope["method"], scope["path"]
        hosts = request.getlist("host")
        if len(hosts) != 1 or not self._known(hosts[0]):
            return _error(403, "this server does not go by that name; use the address it printed")
        if method not in CHANGING and method not in READING:
            return _error(405, "expected GET or POST")
        if self.token is not None:
            if self._guessing(scope):
                return _error(429, f"too many wrong tokens from this address; wait for {GUESSES_WITHIN:.0f} s")
            moved = self._by_address(scope)
            if moved is not None or not self._let_in(scope, request):
                return moved or _no_token(scope, request)
        site = request.get("sec-fetch-site", "same-origin")
        navigating = method in READING and not path.startswith(("/api", "/items"))
        if site not in ("same-origin", "none") and not navigating:
            return _error(403, "another site began this request; use the labelling page itself")
        if method in CHANGING:
            origin = request.get("origin")
            if origin is not None and urlsplit(origin).netloc.lower() != hosts[0].lower():
                return _error(403, "another site began this request; use the labelling page itself")
            if request.get("x-labelahead") != "1":
                return _error(403, "the header X-Labelahead: 1 is missing; every change needs it")
        return None

    def _known(self, host: str) -> bool:
        match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(:\d{1,5})?", host.lower())
        if match is None:
            return False
        name = match[1].removesuffix(".")
        if name in self.hosts:
            return True
        # A name can be made to point anywhere; a number points at what it says.
        return self.numbers and _address(name) is not None

    def _let_in(self, scope: Scope, request: Headers) -> bool:
        given = cookies(request).get(_token_cookie(scope), "")
        kind, _, bearer = request.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            given = bearer.strip()
        return self._right(scope, given)

    def _right(self, scope: Scope, given: str) -> bool:
        """In the same time whatever was given; wrong ones are counted."""
        right = hmac.compare_digest(given.encode("utf-8", "replace"), (self.token or "").encode())
        if given and not right:
            self._wrong.setdefault(_client(scope), []).append(time.monotonic())
        return right

    def _guessing(self, scope: Scope) -> bool:
        """Whether this address has given too many wrong tokens lately."""
        since = time.monotonic() - GUESSES_WITHIN
        if len(self._wrong) > ADDRESSES:
            self._wrong = {who: times for who, times in self._wrong.items() if times[-1] > since}
        times = self._wrong.get(_client(scope), [])
        times[:] = [t for t in times[-GUESSES:] if t > since]
        return len(times) >= GUESSES

    def _by_address(self, scope: Scope) -> Response | None:
        """A token in the address becomes a cookie, and leaves the address."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in pairs if name == "token"), None)
        if given is None or scope["method"] != "GET" or not self._right(scope, given):
            return None
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        # One slash: two would make the rest another host.
        path = quote("/" + scope["path"].lstrip("/\\"))
        response = RedirectResponse(path + (f"?{rest}" if rest else ""), status_code=303)
        set_cookie(response, _token_cookie(scope), self.token or "")
        return response


def _token_cookie(scope: Scope) -> str:
    """Browsers keep cookies by host alone: without the port two pages of one machine would take each other's."""
    server = scope.get("server")
    return f"la_token_{server[1]}" if server and server[1] else "la_token"


def _client(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _no_token(scope: Scope, request: Headers) -> Response:
    if scope["path"] == "/" and "text/html" in request.get("accept", ""):
        return HTMLResponse(NO_TOKEN, status_code=401)
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


def cookies(request: Headers) -> dict[str, str]:
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
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


async def _body(scope: Scope, request: Headers, receive: Receive) -> tuple[bytes, Response | None]:
    """The whole body, or a refusal: too large, or not what it should be."""
    taking_in = scope["path"] == "/api/import"
    limit = IMPORT if taking_in else BODY
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
    return bytes(body), None if taking_in else _not_json(bytes(body), request)


def _not_json(body: bytes, request: Headers) -> Response | None:
    kind = request.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return _error(415, "expected Content-Type: application/json")
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError):
        return _error(422, "the body is no valid JSON")
    return None if isinstance(content, dict) else _error(422, "expected a JSON object")


def _no_number(name: str) -> NoReturn:
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


def _error(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status_code=status)
