"""A minimal client of Label Studio's HTTP API, for one project."""

import base64
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from mimetypes import guess_type
from secrets import token_hex
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote_to_bytes, urlencode, urljoin, urlsplit
from urllib.request import OpenerDirector, ProxyHandler, Request, build_opener

from labelahead.errors import InputError, LabelaheadError
from labelahead.server.security import is_loopback

__all__ = ["UNCERTAINTY_SAMPLING", "LabelStudioClient", "Unreachable"]

TASKS_PER_PAGE = 500  # per request
# Serves the lowest score first; the open edition hides this setting, but supports it.
UNCERTAINTY_SAMPLING = "Uncertainty sampling"
CLOUD_SCHEMES = ("s3://", "gs://", "azure-blob://", "azure_spi://")
MAX_RESPONSE_BYTES = 1 << 30  # of one response
EXPORT_TIMEOUT_SECONDS = 600.0  # for all annotations of a large project
FOREIGN_TIMEOUT_SECONDS = 20.0  # for a picture on another host


class Unreachable(LabelaheadError):  # noqa: N818 (the name is a state)
    """Label Studio, or another host with its pictures, cannot be reached; the call can be retried."""

    def __init__(self, message: str, *, elsewhere: bool = False) -> None:
        super().__init__(message)
        self.elsewhere = elsewhere


class LabelStudioClient:
    """One project of a running Label Studio. Threads may share it.

    key: an access token of a user who may change the project, legacy or personal.
    """

    def __init__(self, url: str, key: str, project: int, *, timeout: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InputError(
                f"url is {url!r}; expected http://HOST:PORT, as the browser shows it on Label "
                "Studio"
            )
        if not key.strip().isascii() or not key.strip():
            raise InputError(
                "the access token is empty or not ASCII; copy it from Label Studio: Account & "
                "Settings"
            )
        self.url, self.number, self.timeout = url.rstrip("/"), project, timeout
        self._key, self._access_token, self._token_lock = key.strip(), "", threading.Lock()
        near = is_loopback(parts.hostname or "")
        self._opener: OpenerDirector = build_opener(*([ProxyHandler({})] if near else []))

    def get_project(self) -> dict[str, Any]:
        """Return the description of the project."""
        return dict(self._request_json("GET", f"/api/projects/{self.number}/"))

    def list_tasks(self, *, predictions: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the id and data of every task, with its predictions on request."""
        page, seen = 1, 0
        while True:
            wanted = {
                "project": self.number,
                "page": page,
                "page_size": TASKS_PER_PAGE,
                "fields": "all" if predictions else "task_only",
            }
            reply = self._request_json("GET", f"/api/tasks/?{urlencode(wanted)}")
            yield from reply["tasks"]
            page, seen = page + 1, seen + len(reply["tasks"])
            if seen >= reply["total"] or not reply["tasks"]:
                return

    def list_annotations(self) -> list[dict[str, Any]]:
        """Return every annotation including skips, the oldest change first."""
        tasks = self._request_json(
            "GET",
            f"/api/projects/{self.number}/export?exportType=JSON",
            timeout_seconds=EXPORT_TIMEOUT_SECONDS,
        )
        made = [
            {**annotation, "task": task["id"]}
            for task in tasks
            for annotation in task["annotations"]
        ]
        return sorted(made, key=lambda annotation: str(annotation["updated_at"]))

    def list_users(self) -> dict[int, str]:
        """Return the e-mail address of every user, by id."""
        return {
            int(user["id"]): str(user["email"]) for user in self._request_json("GET", "/api/users/")
        }

    def add_predictions(self, version: str, predictions: Sequence[Mapping[str, Any]]) -> None:
        """Add predictions (task, result and score) of a model version."""
        rows = [{**one, "model_version": version} for one in predictions]
        done = self._request_json("POST", f"/api/projects/{self.number}/import/predictions", rows)
        if done["created"] != len(rows):  # it returns 201 even then
            raise InputError(
                f"{self.url} accepted {done['created']} of {len(rows)} predictions; see its log"
            )

    def add_tasks(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Import tasks with these data.

        Returns:
            Their ids in this order; empty if Label Studio imports them asynchronously.
        """
        answer = self._request_json(
            "POST", f"/api/projects/{self.number}/import?return_task_ids=true", list(rows)
        )
        return [int(number) for number in answer.get("task_ids") or ()]

    def upload_files(self, named: Sequence[tuple[str, bytes]]) -> list[str]:
        """Upload files (name, content) without creating tasks, and return their addresses."""
        border = token_hex(16)
        body = b"".join(
            f'--{border}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n'
            f"Content-Type: {guess_type(name)[0] or 'image/jpeg'}\r\n\r\n".encode()
            + content
            + b"\r\n"
            for name, content in named
        )
        where = f"/api/projects/{self.number}/import?commit_to_project=false"
        headers = {"Content-Type": f"multipart/form-data; boundary={border}"}
        request = Request(
            self.url + where,
            data=body + f"--{border}--\r\n".encode(),
            method="POST",
            headers=headers,
        )
        numbers = json.loads(self._request(request, timeout_seconds=EXPORT_TIMEOUT_SECONDS))[
            "file_upload_ids"
        ]
        kept = self._request_json(
            "GET", f"/api/projects/{self.number}/file-uploads?ids={quote(json.dumps(numbers))}"
        )
        # Label Studio stores each file as PREFIX-NAME.
        by_name = {str(one["file"]).rpartition("-")[2]: f"/data/{one['file']}" for one in kept}
        return [by_name[name] for name, _ in named]

    def serve_lowest_scores(self, version: str) -> None:
        """Serve tasks with predictions of this version, the lowest score first."""
        self._request_json(
            "PATCH",
            f"/api/projects/{self.number}/",
            {"model_version": version, "sampling": UNCERTAINTY_SAMPLING},
        )

    def list_versions(self) -> list[str]:
        """Return the model versions of all predictions."""
        return list(self._request_json("GET", f"/api/projects/{self.number}/model-versions/"))

    def delete_predictions(self, version: str) -> None:
        """Remove the predictions of a model version."""
        self._request_json(
            "DELETE", f"/api/projects/{self.number}/model-versions/", {"model_version": version}
        )

    def register_webhook(
        self, url: str, actions: Sequence[str], headers: Mapping[str, str]
    ) -> None:
        """Register a webhook for this URL, and remove duplicates."""
        wanted = {
            "url": url,
            "project": self.number,
            "send_payload": True,
            "send_for_all_actions": False,
            "is_active": True,
            "actions": list(actions),
            "headers": dict(headers),
        }
        hooks = self._request_json("GET", f"/api/webhooks/?project={self.number}")
        known = [
            h["id"]
            for h in hooks
            if h["url"] == url or (h.get("headers") or {}).keys() >= headers.keys()
        ]
        for extra in known[1:]:
            self._request_json("DELETE", f"/api/webhooks/{extra}/")
        if known:
            self._request_json("PATCH", f"/api/webhooks/{known[0]}/", wanted)
        else:
            self._request_json("POST", "/api/webhooks/", wanted)

    def download(self, address: str, task: int) -> bytes:
        """Download the file that a task refers to; the token is sent to Label Studio only."""
        try:
            return self._download(address, task)
        except LabelaheadError:
            raise
        except ValueError as error:  # the address is not valid
            raise InputError(
                f"{address[:100]} cannot be read ({error}); expected the address of a file"
            ) from error

    def _download(self, address: str, task: int) -> bytes:
        if address.startswith("data:"):
            kind, _, content = address.partition(",")
            return (
                base64.b64decode(content) if kind.endswith(";base64") else unquote_to_bytes(content)
            )
        if address.startswith(CLOUD_SCHEMES):
            return self._download_from_cloud(address, task)
        absolute = urljoin(self.url + "/", quote(address, safe="/:?&=%#+,;@~!$'()*[]"))
        if urlsplit(absolute).scheme not in ("http", "https"):
            raise InputError(
                f"{address[:100]} is not a supported address; expected http://..., or a file "
                "of Label Studio"
            )
        if absolute.startswith(self.url + "/"):
            return self._request(Request(absolute))
        return self._request(
            Request(absolute), send_token=False, timeout_seconds=FOREIGN_TIMEOUT_SECONDS
        )

    def _download_from_cloud(self, address: str, task: int) -> bytes:
        """Download a file of a cloud storage through Label Studio, which has the credentials."""
        uri = quote(base64.b64encode(address.encode()).decode(), safe="")
        try:
            return self._request(Request(f"{self.url}/tasks/{task}/resolve/?fileuri={uri}"))
        except InputError as error:
            raise InputError(
                f"{address[:100]} is in no storage that the project can read ({error}); see its "
                "Settings, Cloud Storage"
            ) from error

    def _request_json(
        self, method: str, path: str, content: Any = None, *, timeout_seconds: float | None = None
    ) -> Any:
        body = None if content is None else json.dumps(content).encode()
        request = Request(
            self.url + path, data=body, method=method, headers={"Content-Type": "application/json"}
        )
        reply = self._request(request, timeout_seconds=timeout_seconds)
        try:
            return json.loads(reply) if reply else None
        except ValueError as error:
            raise InputError(
                f"{self.url}{path} does not answer with JSON; check that it is a Label Studio "
                "server"
            ) from error

    def _request(
        self,
        request: Request,
        *,
        send_token: bool = True,
        may_retry: bool = True,
        timeout_seconds: float | None = None,
    ) -> bytes:
        if send_token:  # not sent to redirects, which may lead to a cloud storage
            request.add_unredirected_header("Authorization", self._authorization())
        try:
            with self._opener.open(request, timeout=timeout_seconds or self.timeout) as reply:
                content = bytes(reply.read(MAX_RESPONSE_BYTES + 1))
        except HTTPError as error:
            with error:
                message = _read_error(error.read())
            if (
                error.code == 401 and send_token and may_retry and self._access_token
            ):  # the short-lived token has expired
                self._access_token = ""
                return self._request(
                    request, send_token=send_token, may_retry=False, timeout_seconds=timeout_seconds
                )
            raise self._make_error(
                request.get_method(), error.url or request.full_url, error.code, message
            ) from None
        except (OSError, HTTPException) as error:
            raise Unreachable(
                f"{_origin(request.full_url)} cannot be reached "
                f"({getattr(error, 'reason', error)})",
                elsewhere=not request.full_url.startswith(self.url + "/"),
            ) from error
        if len(content) > MAX_RESPONSE_BYTES:
            raise InputError(
                f"{urlsplit(request.full_url).path} is larger than {MAX_RESPONSE_BYTES >> 20} MB; "
                "expected less"
            )
        return content

    def _make_error(self, method: str, url: str, code: int, message: str) -> LabelaheadError:
        """Return the error for an HTTP status. url: after redirects."""
        parts, send_token = urlsplit(url), url.startswith(self.url + "/")
        where, by = f"{method} {parts.path}", self.url if send_token else _origin(url)
        if code == 401 and send_token:
            return InputError(
                f"{self.url} does not know the access token ({message}); copy it from Label "
                "Studio: Account & Settings"
            )
        if code in (403, 404) and send_token and f"/api/projects/{self.number}/" in url:
            return InputError(
                f"{self.url} has no project {self.number} that this token may change; {where}: "
                f"{message}"
            )
        if code >= 500:
            return Unreachable(
                f"{by} failed at {where} ({code}: {message})", elsewhere=not send_token
            )
        return InputError(f"{by} refused {where} ({code}: {message})")

    def _authorization(self) -> str:
        """Return the header; a personal token is first exchanged for a short-lived one."""
        if self._key.count(".") != 2:
            return f"Token {self._key}"
        with self._token_lock:
            if not self._access_token:
                body = json.dumps({"refresh": self._key}).encode()
                headers = {"Content-Type": "application/json"}
                reply = self._request(
                    Request(f"{self.url}/api/token/refresh/", data=body, headers=headers),
                    send_token=False,
                )
                self._access_token = str(json.loads(reply)["access"])
            return f"Bearer {self._access_token}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _read_error(body: bytes) -> str:
    """Return the error message in a response, which may be a whole page."""
    try:
        answer = json.loads(body)
        return str(answer.get("validation_errors") or answer["detail"])[:300]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "no reason given"
