"""Login: who sends a request, and whether their role allows it.

This middleware is inside `Guard`, which has checked the host, the origin and the token. It replaces
the cookie with the annotator's name by the name of the account, so that nobody can label under
another name. Logins are kept in memory: they end with the server.
"""

import json
import re
import secrets
import threading
import time
from pathlib import Path
from urllib.parse import quote

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from labelahead.data.classes import check_name
from labelahead.errors import InputError
from labelahead.server.accounts import Account, Accounts
from labelahead.server.rate_limit import ATTEMPT_WINDOW_SECONDS, FailedAttempts
from labelahead.server.security import parse_cookies, replay_body, set_cookie

__all__ = ["LoginGuard", "describe_account"]

LOGIN_SECONDS = 12 * 3600.0
NAME_COOKIE = "la_who"
MAX_NAME_CHARACTERS = 60
PAGE = Path(__file__).parent / "templates" / "login.html"
ACCOUNT_SCOPE = "labelahead.account"  # key of the ASGI scope that holds the account
PUBLIC_PATHS = re.compile(r"/login|/api/(login|health)|/static/.*")
REVIEW_KINDS = ("settle", "keep", "doubt")
# (method, path) -> role that is needed; everything else is open to annotators
NEEDED_ROLES = (
    ("GET", re.compile(r"/api/(export/.*|model)"), "admin"),
    ("POST", re.compile(r"/api/import"), "admin"),
    ("POST", re.compile(r"/api/classes/\d+"), "reviewer"),
    ("GET", re.compile(r"/api/review"), "reviewer"),
)


def describe_account(scope: Scope) -> dict[str, object] | None:
    """Return the role of the account that sends a request, None without accounts.

    `can_log_out` is false if a reverse proxy names the user: the login is the proxy's.
    """
    found: dict[str, object] | None = scope.get(ACCOUNT_SCOPE)
    return found


class LoginGuard:
    """Middleware for accounts.

    Args:
        app: The application.
        accounts: The users; None: only the proxy's header tells who they are.
        user_header: Header in which a reverse proxy names the user; None: users log in. It must be
            impossible to reach the server except through this proxy.
    """

    def __init__(
        self, app: ASGIApp, accounts: Accounts | None, user_header: str | None = None
    ) -> None:
        if accounts is None and user_header is None:
            raise InputError("neither users nor a header; expected a file of users, or a header")
        self.app, self.accounts, self.user_header = app, accounts, user_header
        self._lock = threading.Lock()
        self._logins: dict[str, tuple[str, float]] = {}  # cookie -> name, end
        self._failed = FailedAttempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request, path = Headers(scope=scope), scope["path"]
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        account = self._find_account(scope, request)
        response: Response | None = None
        if self.user_header is None and path == "/login" and method == "GET":
            response = HTMLResponse(PAGE.read_text(encoding="utf-8"))
        elif self.user_header is None and path == "/api/login" and method == "POST":
            response = await self._log_in(scope, await _read_json(receive))
        elif path == "/api/logout" and method == "POST":
            response = self._log_out(scope, request)
        elif account is None and not PUBLIC_PATHS.fullmatch(path):
            response = self._refuse(path)
        elif account is not None:
            body = await _read_all(receive) if method == "POST" else b""
            response = _refuse_role(account, method, path, body)
            receive = replay_body(body, receive) if method == "POST" else receive
            scope = _with_name(scope, account.name)
            scope[ACCOUNT_SCOPE] = {"role": account.role, "can_log_out": self.user_header is None}
        await (response or self.app)(scope, receive, send)

    def _find_account(self, scope: Scope, request: Headers) -> Account | None:
        """Return the account of a request, None without a valid login."""
        if self.user_header is not None:
            return self._find_header_account(request.getlist(self.user_header))
        cookie = parse_cookies(request).get(_cookie_name(scope), "")
        with self._lock:
            name, end = self._logins.get(cookie, ("", 0.0))
        if time.monotonic() >= end or self.accounts is None:
            return None
        return self.accounts.find(name)

    def _find_header_account(self, given: list[str]) -> Account | None:
        """Return the account that the proxy names; one that is in no file is an annotator's."""
        if len(given) != 1:
            return None
        try:
            name = check_name(given[0].encode("latin-1").decode("utf-8"), "the name")
        except (InputError, UnicodeError):
            return None
        if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
            return None
        known = None if self.accounts is None else self.accounts.find(name)
        return known or Account(name, "annotator", "")

    async def _log_in(self, scope: Scope, given: dict[str, object]) -> Response:
        name, password = str(given.get("name", "")), str(given.get("password", ""))
        address = str((scope.get("client") or ("",))[0])
        assert self.accounts is not None
        # Before the password is compared: guesses must be expensive for those who guess.
        if self._failed.add(address, f"login {name}"):
            return JSONResponse(
                {"error": f"too many attempts; wait for {ATTEMPT_WINDOW_SECONDS:.0f} s"}, 429
            )
        account = await run_in_threadpool(self.accounts.check_password, name, password)
        if account is None:
            return JSONResponse({"error": "the name or the password is wrong"}, 401)
        cookie, now = secrets.token_urlsafe(24), time.monotonic()
        with self._lock:
            self._logins = {c: login for c, login in self._logins.items() if login[1] > now}
            self._logins[cookie] = account.name, now + LOGIN_SECONDS
        response = JSONResponse({"name": account.name, "role": account.role})
        set_cookie(response, _cookie_name(scope), cookie)
        return response

    def _log_out(self, scope: Scope, request: Headers) -> Response:
        with self._lock:
            self._logins.pop(parse_cookies(request).get(_cookie_name(scope), ""), None)
        response = JSONResponse({"ok": True})
        response.delete_cookie(_cookie_name(scope))
        return response

    def _refuse(self, path: str) -> Response:
        """Return the response to a request without a login."""
        if self.user_header is not None:
            return JSONResponse({"error": "the proxy names no user; log in there"}, 401)
        if path == "/":
            return RedirectResponse("/login", status_code=303)
        return JSONResponse({"error": "you are not logged in; reload the page to log in"}, 401)


def _refuse_role(account: Account, method: str, path: str, body: bytes) -> Response | None:
    """Return an error if the role does not allow the request, else None."""
    if (method, path) == ("POST", "/api/me"):
        sentence = "your name is that of your account; log in under another account to change it"
        return JSONResponse({"error": sentence}, 403)
    needed = next(
        (role for verb, route, role in NEEDED_ROLES if verb == method and route.fullmatch(path)),
        "annotator",
    )
    if (method, path) == ("POST", "/api/answers") and _parse(body).get("kind") in REVIEW_KINDS:
        needed = "reviewer"
    if (method, path) == ("POST", "/api/gallery/labels") and _parse(body).get("replace"):
        needed = "reviewer"
    if account.may_act_as(needed):
        return None
    return JSONResponse({"error": f"this needs the role {needed}; yours is {account.role}"}, 403)


def _with_name(scope: Scope, name: str) -> Scope:
    """Return the scope with the account's name in the cookie of the annotator's name."""
    cookies = parse_cookies(Headers(scope=scope)) | {NAME_COOKIE: name}
    header = "; ".join(f"{key}={quote(value, safe='')}" for key, value in cookies.items())
    rest = [(key, value) for key, value in scope["headers"] if key.lower() != b"cookie"]
    return {**scope, "headers": [*rest, (b"cookie", header.encode("latin-1", "replace"))]}


def _cookie_name(scope: Scope) -> str:
    """Return the name of the login cookie; browsers share cookies between ports."""
    server = scope.get("server")
    return f"la_login_{server[1]}" if server and server[1] else "la_login"


async def _read_all(receive: Receive) -> bytes:
    """Read the body, whose size `Guard` has checked."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body"):
            return bytes(body)


async def _read_json(receive: Receive) -> dict[str, object]:
    return _parse(await _read_all(receive))


def _parse(body: bytes) -> dict[str, object]:
    """Return the JSON object of a body; {} if it is none."""
    try:
        content = json.loads(body)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
