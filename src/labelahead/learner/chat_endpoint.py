"""A client of an OpenAI-compatible chat endpoint: rate limit, retries with back-off, plain errors.

The key is sent to the endpoint alone. It is part of no message, log or file.
"""

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from labelahead.errors import InputError, LabelaheadError

__all__ = [
    "ChatEndpoint",
    "ChatReply",
    "EndpointError",
    "RefusedRequest",
    "RequestLimits",
    "StoppedRequest",
    "Token",
    "find_key",
    "find_keys",
]

KEY_VARIABLES = ("LABELAHEAD_LLM_KEY", "OPENAI_API_KEY")
CHAT_PATH = "/chat/completions"
MAX_PAUSE_SECONDS = 60.0  # between two attempts, unless the server asks for more
MAX_RETRY_AFTER_SECONDS = 3600.0
MAX_RESPONSE_BYTES = 1 << 24
MAX_ALTERNATIVES = 5  # tokens with their log-probability; some servers allow no more
# Parameters that some servers or models refuse; the request works without them, too.
OPTIONAL_PARAMETERS = ("top_logprobs", "logprobs", "temperature", "max_tokens")
TEMPORARY_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
REFUSED_STATUSES = frozenset({400, 413, 415, 422})  # this request, not the next one
MAX_SERVER_WORDS = 200  # characters of the server's own message


class EndpointError(LabelaheadError, ConnectionError):
    """The language model cannot be asked: wrong address, key or model, or no answer."""


class RefusedRequest(EndpointError):  # noqa: N818 (says what happened)
    """The endpoint refuses this request, for example because the item is too long."""


class StoppedRequest(EndpointError):  # noqa: N818 (says what happened)
    """The request was not sent, because another one has failed or the user stopped."""


@dataclass(frozen=True)
class RequestLimits:
    """How fast and how patiently a language model is asked.

    Attributes:
        threads: requests at the same time.
        per_minute: requests per minute, at most; None: no limit.
        timeout_seconds: of one request.
        attempts: per request, if the server is busy or fails.
        first_pause_seconds: before the second attempt; the pause then doubles.
        max_tokens: of one answer.

    >>> from labelahead.learner.chat_endpoint import RequestLimits
    >>> RequestLimits(per_minute=60).threads
    4
    """

    threads: int = 4
    per_minute: float | None = None
    timeout_seconds: float = 60.0
    attempts: int = 6
    first_pause_seconds: float = 1.0
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if self.per_minute is not None and not self.per_minute > 0:
            raise InputError(f"the rate is {self.per_minute}; expected requests per minute above 0")
        for name in ("threads", "attempts", "max_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected 1 or more")


@dataclass(frozen=True)
class Token:
    """A token of an answer: its text, log-probability, and those of the alternatives to it."""

    text: str
    log_probability: float
    alternatives: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class ChatReply:
    """One answer.

    Attributes:
        text: of the answer.
        tokens: of the answer; empty if the server gives no log-probabilities.
        input_tokens: that the server counted, 0 if it does not say.
        output_tokens: likewise.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0


class _NoRedirect(HTTPRedirectHandler):
    """Refuse redirects: another host must not get the key."""

    def redirect_request(self, *args: Any, **more: Any) -> None:
        """Return no further request; the redirect then is an error."""
        return


def find_key(url: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the key for an endpoint from the environment; "" if there is none.

    OPENAI_API_KEY is not sent in the clear to another machine.
    """
    own, usual = (environ.get(name, "").strip() for name in KEY_VARIABLES)
    return own or (usual if url.startswith("https://") or _is_local(url) else "")


def find_keys(urls: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the keys of several endpoints, in their order.

    Endpoints of one server share the key of `find_key`. Where there are several servers, the key of
    one must not be sent to another: LABELAHEAD_LLM_KEY_1 is that of the first endpoint, and so on;
    empty: it has none. A server of this machine needs none.

    Raises:
        InputError: There is a key, and it is not said which server it is for.
    """
    complete = [complete_url(url) for url in urls]
    if len({urlsplit(url)[:2] for url in complete}) == 1:
        return [find_key(url, environ) for url in complete]
    keys = []
    for number, url in enumerate(complete, 1):
        name = f"{KEY_VARIABLES[0]}_{number}"
        unclear = any(environ.get(known, "").strip() for known in KEY_VARIABLES)
        if name not in environ and unclear and not _is_local(url):
            raise InputError(
                f"the language models have different servers, and it is not said which of them gets "
                f"the key; expected the key of {url} in {name} (empty: none)"
            )
        keys.append(environ.get(name, "").strip())
    return keys


class ChatEndpoint:
    """An endpoint that speaks the protocol `/v1/chat/completions`. Threads may share it.

    Args:
        url: http(s)://HOST:PORT, with or without /v1.
        model: the name of the model.
        key: sent as a bearer token; None: from the environment, see `find_key`.
        limits: how fast and how patiently to ask.
    """

    def __init__(
        self, url: str, model: str, *, key: str | None = None, limits: RequestLimits | None = None
    ) -> None:
        self.url, self.model = complete_url(url), model
        if not model:
            raise InputError("the model is empty; expected the name of a language model")
        self.limits = limits or RequestLimits()
        self._key = find_key(self.url) if key is None else key.strip()
        if not self._key.isascii() or any(c.isspace() for c in self._key):
            raise InputError(f"the key in {KEY_VARIABLES[0]} is not one ASCII word; copy it again")
        proxies = [ProxyHandler({})] if _is_local(self.url) else []
        self._opener = build_opener(_NoRedirect(), *proxies)
        self._lock = threading.Lock()
        self._dropped: set[str] = set()  # parameters that the server refuses
        self._next_slot = 0.0  # of the rate limit
        self._not_before = 0.0  # the server asked all to wait
        self._stopped = threading.Event()
        self._has_answered = False

    def stop(self) -> None:
        """Send no further request; those under way finish."""
        self._stopped.set()

    def resume(self) -> None:
        """Allow requests again."""
        self._stopped.clear()

    def complete(self, messages: Sequence[Mapping[str, Any]]) -> ChatReply:
        """Ask for the answer to some messages; wait and repeat while the server is busy.

        Raises:
            RefusedRequest: the endpoint refuses this request for good.
            EndpointError: the endpoint cannot be used.
            StoppedRequest: `stop` was called.
        """
        attempt = 0
        while True:
            self._wait_for_turn()
            dropped = frozenset(self._dropped)
            try:
                reply = self._send(messages, dropped)
            except HTTPError as error:
                words = self._read_error(error)
                if error.code in REFUSED_STATUSES and self._drop_parameter(words, dropped):
                    continue
                if error.code not in TEMPORARY_STATUSES:
                    raise self._explain_status(error, words) from None
                attempt += 1
                self._pause(attempt, error.headers.get("Retry-After"), f"{error.code} {words}")
            except (URLError, TimeoutError, OSError, HTTPException) as error:
                reason = error.reason if isinstance(error, URLError) else error
                if not self._has_answered and not isinstance(reason, TimeoutError):
                    raise self._explain_unreachable(reason) from None
                attempt += 1
                self._pause(attempt, None, _describe_reason(reason, self.limits.timeout_seconds))
            except ValueError as error:
                attempt += 1
                self._pause(attempt, None, f"an answer that is not of the protocol ({error})")
            else:
                self._has_answered = True
                return reply

    def _send(self, messages: Sequence[Mapping[str, Any]], dropped: frozenset[str]) -> ChatReply:
        options = {
            "temperature": 0,
            "max_tokens": self.limits.max_tokens,
            "logprobs": True,
            "top_logprobs": MAX_ALTERNATIVES,
        }
        body: dict[str, Any] = {"model": self.model, "messages": list(messages)}
        body |= {name: value for name, value in options.items() if name not in dropped}
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = Request(self.url, json.dumps(body).encode(), headers, method="POST")
        with self._opener.open(request, timeout=self.limits.timeout_seconds) as response:
            return parse_reply(response.read(MAX_RESPONSE_BYTES))

    def _wait_for_turn(self) -> None:
        """Wait for the rate limit and for what the server asked; raise if stopped."""
        interval = 60 / self.limits.per_minute if self.limits.per_minute else 0.0
        while not self._stopped.is_set():
            with self._lock:
                now = time.monotonic()
                slot = max(self._next_slot, self._not_before)
                if slot <= now:
                    self._next_slot = now + interval
                    return
            self._stopped.wait(slot - now)
        raise StoppedRequest("stopped; no further request was sent")

    def _pause(self, attempt: int, retry_after: str | None, why: str) -> None:
        """Let all requests wait before the next attempt; raise after the last one."""
        if attempt >= self.limits.attempts:
            raise EndpointError(
                f"{self.url} still gives no answer after {attempt} attempts ({why}); wait, or ask "
                "more slowly with --llm-rate, and run the same command again: answers so far are "
                "kept"
            )
        pause = min(self.limits.first_pause_seconds * 2.0 ** (attempt - 1), MAX_PAUSE_SECONDS)
        asked = _parse_retry_after(retry_after)
        with self._lock:
            until = time.monotonic() + (pause if asked is None else asked)
            self._not_before = max(self._not_before, until)

    def _drop_parameter(self, words: str, dropped: frozenset[str]) -> bool:
        """Leave a parameter out from now on if the server names it; return whether it does."""
        named = [p for p in OPTIONAL_PARAMETERS if p in words and p not in dropped]
        if "logprobs" in " ".join(named):
            named = ["logprobs", "top_logprobs"]
        with self._lock:
            self._dropped.update(named)
        return bool(named)

    def _read_error(self, error: HTTPError) -> str:
        """Return what the server says about an error, without the key."""
        try:
            text = error.read(MAX_RESPONSE_BYTES).decode("utf-8", "replace")
        except (OSError, HTTPException):
            return ""
        try:
            found = json.loads(text)
            inner = found.get("error", found)
            text = str(inner.get("message", inner) if isinstance(inner, dict) else inner)
        except (ValueError, AttributeError):
            pass  # plain text
        hidden = text.replace(self._key, "***") if self._key else text
        return " ".join(hidden.split())[:MAX_SERVER_WORDS]

    def _explain_status(self, error: HTTPError, words: str) -> EndpointError:
        said = f" ({words})" if words else ""
        if error.code in (401, 403):
            known = "the key from the environment" if self._key else "a request without a key"
            return EndpointError(
                f"{self.url} refuses {known}{said}; expected a valid one in {KEY_VARIABLES[0]}"
            )
        if error.code == 404:
            return EndpointError(
                f"{self.url} is not there, or does not know the model {self.model!r}{said}; expected "
                "llm:http://HOST:PORT of an OpenAI-compatible server, and one of its models"
            )
        if error.code in REFUSED_STATUSES:
            return RefusedRequest(f"{self.url} refuses the request with {error.code}{said}")
        if 300 <= error.code < 400:
            to = error.headers.get("Location", "another address")
            return EndpointError(
                f"{self.url} redirects to {to}; give that address if you trust it with your key"
            )
        return EndpointError(f"{self.url} answers {error.code}{said}; see its documentation")

    def _explain_unreachable(self, reason: object) -> EndpointError:
        what = _describe_reason(reason, self.limits.timeout_seconds)
        return EndpointError(
            f"{self.url} cannot be reached ({what}); start the server, or correct the address"
        )


def complete_url(url: str) -> str:
    """Return the address of the chat endpoint of a server.

    >>> from labelahead.learner.chat_endpoint import complete_url
    >>> complete_url("http://localhost:11434")
    'http://localhost:11434/v1/chat/completions'
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InputError(f"the address is {url!r}; expected http://HOST:PORT or https://HOST/v1")
    if parts.username is not None or parts.password is not None:
        raise InputError(
            f"the address of {parts.hostname} holds a name or password, which would be stored; put "
            f"the key into {KEY_VARIABLES[0]}"
        )
    path = parts.path.rstrip("/")
    if not path.endswith(CHAT_PATH):
        path = (path or "/v1") + CHAT_PATH
    return f"{parts.scheme}://{parts.netloc}{path}"


def parse_reply(content: bytes) -> ChatReply:
    """Read the body of a response.

    Raises:
        ValueError: it is not of the protocol.
    """
    body = json.loads(content)
    try:
        choice = body["choices"][0]
        text = choice["message"].get("content") or ""
        usage = body.get("usage") or {}
        listed = (choice.get("logprobs") or {}).get("content") or ()
        return ChatReply(
            text if isinstance(text, str) else json.dumps(text),
            tuple(_parse_token(token) for token in listed),
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _parse_token(token: Mapping[str, Any]) -> Token:
    others = tuple((str(o["token"]), float(o["logprob"])) for o in token.get("top_logprobs") or ())
    return Token(str(token["token"]), float(token["logprob"]), others)


def _parse_retry_after(value: str | None) -> float | None:
    """Return the seconds that a header Retry-After asks for; None without a readable one."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (TypeError, ValueError):
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def _describe_reason(reason: object, timeout_seconds: float) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer within {timeout_seconds:g} seconds"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")
