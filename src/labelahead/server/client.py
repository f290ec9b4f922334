"""A Python client of the labelling page: query, answer and monitor over its HTTP API.

    page = Client("http://127.0.0.1:8765/", who="robot")
    query = page.get_query()
    while not query["done"]:
        query = page.add_answer(query["position"], "cat")["next"]

Methods return the JSON of the server (docs/labelling.md) as dictionaries and lists.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener
from uuid import uuid4

from labelahead.errors import InputError, LabelaheadError, StorageError

__all__ = ["Client"]

MAX_ATTEMPTS = 3  # per answer; its key makes a repeated answer count once
PAUSE_SECONDS = 0.2  # between two attempts or polls
STORAGE_STATUS = {
    503: False,
    507: True,
}  # what a server answers that cannot use its disk -> because it is full
FORMAT_OF_SUFFIX = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".json": "label-studio",
    ".parquet": "parquet",
}


class _NoRedirect(HTTPRedirectHandler):
    """Follow no redirect: a token must not be sent to another server."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Refuse the redirect."""


class Client:
    """A client that labels as one annotator. url: as printed by the server, with or without token.
    pause_seconds: between two attempts or polls.

    >>> from labelahead.server.client import Client
    >>> page = Client("http://127.0.0.1:8765/", who="robot")
    >>> query = page.get_query()
    >>> saved = page.add_answer(query["position"], "7")  # by class number or name
    >>> page.list_answers()[0]["who"]
    'robot'
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8765/",
        *,
        who: str | None = None,
        token: str | None = None,
        timeout: float = 60.0,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InputError(
                f"url is {url!r}; expected http://HOST:PORT/, as printed by the server"
            )
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.who, self.timeout = who, timeout
        self.pause_seconds = pause_seconds
        self.token = token or next(iter(parse_qs(parts.query).get("token", [])), None)
        self._opener: OpenerDirector = build_opener(ProxyHandler({}), _NoRedirect())
        self._numbers: dict[str, int] = {}

    def session(self) -> dict[str, Any]:
        """Return the session: name, items, classes, kind."""
        return dict(self._get("/api/session"))

    def get_query(self, *, fresh: bool = False) -> dict[str, Any]:
        """Return the item to label now; fresh: release the current item first."""
        return dict(self._get("/api/question", {"fresh": 1} if fresh else None))

    def add_answer(
        self,
        position: int,
        label: int | str | None = None,
        *,
        kind: str = "label",
        key: str | None = None,
        value: Any = None,
    ) -> dict[str, Any]:
        """Answer a query.

        Args:
            position: Position of the item.
            label: Class number or name; "none of these" if no class fits.
            kind: label, skip, unsure, settle, keep (exclude the label from the review) or doubt
                (include it again).
            key: Idempotency key; default: a random one.
            value: The answer to a task in place of the label: a list of class names, a number, a
                level.
        """
        number = self._find_class(label) if isinstance(label, str) else label
        body = {"position": position, "kind": kind, "label": number, "key": key or uuid4().hex}
        body |= {} if value is None else {"value": value}
        return dict(self._post("/api/answers", body, tries=MAX_ATTEMPTS))

    def undo(self, seq: int | None = None) -> dict[str, Any]:
        """Undo the last answer, or event `seq`."""
        return dict(self._post("/api/undo", {"seq": seq, "key": uuid4().hex}, tries=MAX_ATTEMPTS))

    def add_class(self, name: str, positions: Sequence[int] = ()) -> dict[str, Any]:
        """Add a class, unless one has that name, and return it.

        positions: items that get the class at once: unlabelled ones, or "none of these".
        """
        if not positions:
            return dict(self._post("/api/classes", {"name": name}))
        body = {"name": name, "positions": list(positions), "key": uuid4().hex}
        return dict(self._post("/api/classes", body, tries=MAX_ATTEMPTS))

    def list_none_of_these(self, n: int = 24) -> dict[str, Any]:
        """Return items that belong to none of the classes, and unlabelled items like them."""
        return dict(self._get("/api/none-of-these", {"n": n}))

    def change_class(self, name: str, kind: str, to: str | None = None) -> dict[str, Any]:
        """Rename a class (to: the new name), merge it (to: the other class) or remove it."""
        number, self._numbers = self._find_class(name), {}
        body = {"kind": kind, "name": to, "key": uuid4().hex}
        return dict(self._post(f"/api/classes/{number}", body, tries=MAX_ATTEMPTS))

    def get_confirmation_grid(self, n: int = 24, label: int | str | None = None) -> dict[str, Any]:
        """Return confident predictions of one class, for bulk confirmation."""
        number = self._find_class(label) if isinstance(label, str) else label
        return dict(
            self._get(
                "/api/confirmations", {"n": n} | ({} if number is None else {"label": number})
            )
        )

    def confirm(
        self, positions: Sequence[int], label: int | str, *, key: str | None = None
    ) -> dict[str, Any]:
        """Label all these items with one class; one undo reverts them."""
        number = self._find_class(label) if isinstance(label, str) else label
        body = {"positions": list(positions), "label": number, "key": key or uuid4().hex}
        return dict(self._post("/api/confirmations", body, tries=MAX_ATTEMPTS))

    def explain_query(self, position: int) -> dict[str, Any]:
        """Explain an item: effect of each answer, and labels for and against the prediction."""
        return dict(self._get(f"/api/why/{position}"))

    def progress(self) -> dict[str, Any]:
        """Return progress, accuracy and state of training."""
        return dict(self._get("/api/progress"))

    def list_suspect_labels(self, n: int = 24) -> list[dict[str, Any]]:
        """Return labels that differ from their leave-one-out prediction; none with few labels."""
        return list(self._get("/api/doubts", {"n": n})["doubts"])

    def list_kept_labels(self, n: int = 24) -> list[dict[str, Any]]:
        """Return labels that were kept and are excluded from the review, newest first."""
        return list(self._get("/api/doubts", {"n": n})["kept"])

    def list_annotators(self) -> dict[str, Any]:
        """Return annotators, agreement and conflicts."""
        return dict(self._get("/api/people"))

    def list_answers(self, n: int = 50) -> list[dict[str, Any]]:
        """Return the newest answers."""
        return list(self._get("/api/history", {"n": n}))

    def get_image(self, position: int) -> bytes:
        """Return an item's encoded picture."""
        return self._request(f"/items/{position}")

    def export(
        self,
        form: str,
        to: str | Path,
        *,
        rest: bool = False,
        probabilities: bool = False,
        pictures_at: str | None = None,
    ) -> Path:
        """Download all labels to a new file (hf and folders: a zip file).

        Args:
            form: Format, such as csv.
            to: Output file.
            rest: Add predictions for unlabelled items.
            probabilities: Add the probability of every class.
            pictures_at: URL prefix of pictures in Label Studio tasks.
        """
        wanted: dict[str, Any] = {"rest": int(rest), "probabilities": int(probabilities)}
        wanted |= {} if pictures_at is None else {"pictures_at": pictures_at}
        return _write_new_file(
            to, self._request(f"/api/export/{quote(form, safe='')}?{urlencode(wanted)}")
        )

    def download_model(self, to: str | Path, *, onnx: bool = False) -> Path:
        """Download the model as a zipped folder for `labelahead predict`; onnx: also as ONNX."""
        return _write_new_file(to, self._request(f"/api/model?{urlencode({'onnx': int(onnx)})}"))

    def import_labels(self, path: str | Path, form: str | None = None) -> dict[str, Any]:
        """Import labels from a file: csv, jsonl, label-studio or parquet."""
        form = form or FORMAT_OF_SUFFIX.get(Path(path).suffix.lower())
        if form is None:
            raise InputError(
                f"{path} has an unknown suffix; expected {', '.join(FORMAT_OF_SUFFIX)}"
            )
        body = Path(path).read_bytes()
        reply = self._request(f"/api/import?form={quote(form)}", body, "application/octet-stream")
        return dict(json.loads(reply))

    def wait(self, timeout: float = 600.0) -> dict[str, Any]:
        """Wait until nothing is being trained and nothing is due, and return the progress."""
        end = time.monotonic() + timeout
        while True:
            progress = self.progress()
            if progress["training"]["idle"]:
                return progress
            if time.monotonic() > end:
                raise LabelaheadError(f"still training after {timeout:g} s; wait longer")
            time.sleep(self.pause_seconds)

    def _find_class(self, name: str) -> int:
        if name not in self._numbers:
            session = self.session()
            known = [*session["classes"], session.get("none_of_these")]
            self._numbers = {c["name"]: c["number"] for c in known if c}
        if name not in self._numbers:
            raise InputError(
                f"there is no class {name!r}; expected one of {', '.join(self._numbers)}, or call "
                "add_class first"
            )
        return self._numbers[name]

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        return json.loads(self._request(path + (f"?{urlencode(query)}" if query else "")))

    def _post(self, path: str, content: Mapping[str, Any], tries: int = 1) -> Any:
        return json.loads(self._request(path, json.dumps(content).encode(), tries=tries))

    def _request(
        self, path: str, body: bytes | None = None, kind: str = "application/json", tries: int = 1
    ) -> bytes:
        headers = {"X-Labelahead": "1"} | ({"Content-Type": kind} if body is not None else {})
        if self.who is not None:
            headers["Cookie"] = f"la_who={quote(self.who, safe='')}"
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        request = Request(self.url + path, data=body, headers=headers)
        while True:
            tries -= 1
            try:
                with self._opener.open(request, timeout=self.timeout) as reply:
                    return bytes(reply.read())
            except HTTPError as error:
                with error:
                    message = _read_error(error.read(), error.code)
                if error.code not in STORAGE_STATUS:
                    raise (InputError if error.code < 500 else LabelaheadError)(message) from None
                if not tries:
                    raise StorageError(message, full=STORAGE_STATUS[error.code]) from None
            except OSError as error:
                if not tries:
                    raise LabelaheadError(f"{self.url} cannot be reached ({error})") from error
            time.sleep(self.pause_seconds)


def _read_error(body: bytes, code: int) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {code}"


def _write_new_file(to: str | Path, content: bytes) -> Path:
    """Write a new file; an existing one is not overwritten."""
    target = Path(to)
    with target.open("xb") as file:
        file.write(content)
    return target
