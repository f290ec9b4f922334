"""Label Studio for tests: a server that replays recorded responses, and a real one in a process."""

import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from labelahead.server.client import Client
from tests.support import browser_pages as pages

RECORDED = json.loads(
    (Path(__file__).parents[1] / "integrations" / "label_studio" / "recorded.json").read_text()
)
KEY = "0123456789abcdef0123456789abcdef01234567"
CONFIG = """<View><Text name="text" value="$text"/><Choices name="topic" toName="text">
<Choice value="sport"/><Choice value="food"/><Choice value="space"/></Choices></View>"""
TOPICS = "sport,food,space"
WORDS = {
    "sport": [
        "match",
        "goal",
        "team",
        "player",
        "season",
        "coach",
        "league",
        "stadium",
        "score",
        "winner",
    ],
    "food": [
        "soup",
        "bread",
        "oven",
        "recipe",
        "butter",
        "taste",
        "dinner",
        "sauce",
        "cheese",
        "salad",
    ],
    "space": [
        "rocket",
        "orbit",
        "planet",
        "star",
        "telescope",
        "moon",
        "launch",
        "gravity",
        "comet",
        "probe",
    ],
}
FILLER_WORDS = [
    "the",
    "a",
    "of",
    "and",
    "with",
    "from",
    "after",
    "before",
    "again",
    "many",
    "some",
    "great",
    "old",
]


def make_tasks(n: int, seed: int = 0) -> list[dict[str, str]]:
    """Make tasks whose topic determines some of their words; `truth` is the topic."""
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        topic = rng.choice(list(WORDS))
        words = [
            rng.choice(WORDS[topic] if rng.random() < 0.35 else FILLER_WORDS) for _ in range(14)
        ]
        rows.append({"text": f"{' '.join(words)} ({i})", "truth": topic})
    return rows


def make_choice(name: str) -> list[dict]:
    return [
        {"from_name": "topic", "to_name": "text", "type": "choices", "value": {"choices": [name]}}
    ]


class Replay(ThreadingHTTPServer):
    """A server that replies as the recorded Label Studio did and keeps every request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ReplayHandler)
        self.replies = deepcopy(RECORDED["replies"])
        self.replies["hooks"] = []
        self.replies["uploads"] = []
        self.project = int(RECORDED["project"])
        self.requests: list[tuple[str, str, object]] = []
        self.files: dict[str, bytes] = {}
        self.down = False
        self.drop_import_replies = False  # import tasks, but close the connection without a reply
        # The webhook of new tasks, called within the request that creates them.
        self.on_tasks_created = lambda tasks: None
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def sent(self, method: str, ending: str) -> list:
        """Return the bodies of all requests to paths with this ending."""
        return [body for m, path, body in self.requests if m == method and path.endswith(ending)]

    def reply(self, method: str, path: str, query: dict) -> object:
        home = f"/api/projects/{self.project}/"
        if method == "GET" and path == "/api/tasks/":
            page, size = int(query["page"][0]), int(query["page_size"][0])
            tasks_of_page = self.replies["tasks"]["tasks"][(page - 1) * size : page * size]
            return {**self.replies["tasks"], "tasks": tasks_of_page}
        reply_names = {
            home: "project",
            f"{home}export": "annotations",
            "/api/users/": "people",
            f"{home}model-versions/": "versions",
            "/api/webhooks/": "hooks",
            f"{home}file-uploads": "uploads",
        }
        if method == "GET":
            return self.replies[reply_names[path]] if path in reply_names else None
        sent = self.requests[-1][2]
        if method == "POST" and path == f"{home}import":
            return self.import_tasks(sent, query)
        if method == "PATCH" and path == home and isinstance(sent, dict):
            self.replies["project"] |= sent
        return {"created": len(sent) if isinstance(sent, list) else 1}

    def import_tasks(self, sent: object, query: dict) -> object:
        """Add tasks or uploaded files and return the reply of the recorded server."""
        reply, tasks = dict(RECORDED["replies"]["import"]), self.replies["tasks"]
        if isinstance(sent, bytes):
            assert query["commit_to_project"] == ["false"]
            names = [name.decode() for name in re.findall(rb'filename="([^"]+)"', sent)]
            first = len(self.replies["uploads"]) + 1
            new = [
                {"id": i, "file": f"upload/{self.project}/0a1b2c3d-{n}"}
                for i, n in enumerate(names, first)
            ]
            self.replies["uploads"] += new
            return {**reply, "task_count": 0, "file_upload_ids": [upload["id"] for upload in new]}
        first = max((task["id"] for task in tasks["tasks"]), default=0) + 1
        new = [{"id": i, "data": row} for i, row in enumerate(sent, first)]
        tasks["tasks"], tasks["total"] = [*tasks["tasks"], *new], tasks["total"] + len(new)
        self.replies["project"]["task_number"] = len(tasks["tasks"])
        self.on_tasks_created(new)
        task_ids = (
            {"task_ids": [task["id"] for task in new]}
            if query.get("return_task_ids") == ["true"]
            else {}
        )
        return {**reply, "task_count": len(new), "task_ids": [], **task_ids}


class _ReplayHandler(BaseHTTPRequestHandler):
    server: Replay

    def log_message(self, *args) -> None:
        pass

    def handle_request(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.server.down:
            self.close_connection = True
            return
        if self.path in self.server.files:
            self._send(200, self.server.files[self.path])
        elif self.headers.get("authorization") != f"Token {KEY}":
            self._send(401, b'{"detail": "Invalid token."}')
        else:
            is_json = self.headers.get("content-type", "").startswith("application/json")
            self.server.requests.append(
                (self.command, parts.path, json.loads(body) if body and is_json else body or None)
            )
            reply = self.server.reply(self.command, parts.path, parse_qs(parts.query))
            if self.server.drop_import_replies and parts.path.endswith("/import"):
                self.close_connection = True
                return
            self._send(*((404, b"{}") if reply is None else (200, json.dumps(reply).encode())))

    do_GET = do_POST = do_PATCH = do_DELETE = handle_request  # noqa: N815 (names of the library)

    def _send(self, code: int, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def replay() -> Iterator[Replay]:
    server = Replay()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Program:
    """A process that can be killed and started again."""

    def __init__(
        self, command: list[str], log: Path, environment: dict[str, str], url: str, ready: str
    ) -> None:
        self.command, self.log, self.environment, self.url, self.ready = (
            command,
            log,
            environment,
            url,
            ready,
        )
        self.start()

    def start(self, *, wait: bool = True) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        if wait:
            self.wait()

    def wait(self, seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(self.url + self.ready, timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)
        self.kill()  # the caller has no reference to it yet
        raise AssertionError(f"{self.command[0]} did not start:\n{self.log.read_text()[-3000:]}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the process and its children."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        self.process.wait(30)


class RealStudio(Program):
    """A real Label Studio that serves the files of a folder."""

    def __init__(self, program: str, folder: Path) -> None:
        port, self.files = free_port(), folder / "files"
        self.files.mkdir(parents=True)
        command = [
            program,
            "start",
            "--no-browser",
            "--internal-host",
            "127.0.0.1",
            "-p",
            str(port),
        ]
        command += [
            "--username",
            "anna@example.org",
            "--password",
            "anna-anna-1",
            "--user-token",
            KEY,
        ]
        command += ["--enable-legacy-api-token", "--data-dir", str(folder / "data")]
        settings = {
            "COLLECT_ANALYTICS": "false",
            "LATEST_VERSION_CHECK": "false",
            "SENTRY_DSN": "",
            "FRONTEND_SENTRY_DSN": "",
            "SSRF_PROTECTION_ENABLED": "false",
            "ML_BLOCK_LOCAL_IP": "false",
            "LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED": "true",
            "LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT": str(self.files),
            "LABEL_STUDIO_BASE_DATA_DIR": str(folder / "data"),
            "WEBHOOK_TIMEOUT": "10",
            "PYTHONPATH": "",
        }
        super().__init__(
            command, folder / "label-studio.log", settings, f"http://127.0.0.1:{port}", "/health"
        )

    def request(self, method: str, path: str, content: object = None, key: str = KEY):
        reply = self.read(path, method, content, key)
        return json.loads(reply) if reply else None

    def read(self, path: str, method: str = "GET", content: object = None, key: str = KEY) -> bytes:
        body = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"Token {key}", "Content-Type": "application/json"}
        http_request = urllib.request.Request(
            self.url + path, data=body, method=method, headers=headers
        )
        try:
            with urllib.request.urlopen(http_request, timeout=120) as reply:
                return reply.read()
        except HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error

    def new_project(self, rows: list, config: str = CONFIG, **more) -> int:
        number = self.request(
            "POST", "/api/projects/", {"title": "a project", "label_config": config} | more
        )["id"]
        if rows:
            self.request("POST", f"/api/projects/{number}/import", rows)
        return int(number)

    def next_task(self, project: int, key: str = KEY):
        return self.request("GET", f"/api/projects/{project}/next/", key=key)

    def annotate(self, task: int, name: str, key: str = KEY) -> int:
        return int(
            self.request(
                "POST", f"/api/tasks/{task}/annotations/", {"result": make_choice(name)}, key
            )["id"]
        )

    def tasks(self, project: int) -> list[dict]:
        return self.request("GET", f"/api/projects/{project}/tasks/?page_size=500")

    def invite_user(self, email: str, password: str) -> str:
        """Sign up a user with the invitation link and return the user's token."""
        address = urljoin(self.url, self.request("GET", "/api/invite")["invite_url"])
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=60) as page:
            csrf_token = re.search(
                r'name="csrfmiddlewaretoken" value="([^"]+)"', page.read().decode()
            ).group(1)
        form = urlencode(
            {"email": email, "password": password, "csrfmiddlewaretoken": csrf_token}
        ).encode()
        opener.open(
            urllib.request.Request(address, data=form, headers={"Referer": address}), timeout=60
        ).close()
        with opener.open(f"{self.url}/api/current-user/token", timeout=60) as reply:
            return str(json.load(reply)["token"])

    def annotations(self, project: int) -> list[dict]:
        tasks = self.request("GET", f"/api/projects/{project}/export?exportType=JSON")
        return [{**a, "task": t["id"]} for t in tasks for a in t["annotations"]]


class RealBridge(Program):
    """`labelahead label-studio` in its own process."""

    def __init__(
        self, studio: RealStudio, project: int, out: Path, *options: str, key: str = KEY
    ) -> None:
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "labelahead",
            "label-studio",
            studio.url,
            "--project",
            str(project),
        ]
        command += ["--out", str(out), "--port", str(port), "--threads", "1", *options]
        environment = {
            "OMP_NUM_THREADS": "1",
            "LABELAHEAD_VERIFY": "0",
            "LABEL_STUDIO_API_KEY": key,
        }
        super().__init__(
            command, out.with_suffix(".log"), environment, f"http://127.0.0.1:{port}", "/health"
        )

    def settle(self, seconds: float = 300) -> None:
        """Wait until training is idle and Label Studio serves the current order."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                idle = self._get("/api/progress")["training"]["idle"]
                if idle and self._get("/health")["current"]:
                    return
            except URLError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"not settled:\n{self.log.read_text()[-3000:]}")

    def _get(self, path: str):
        with urllib.request.urlopen(self.url + path, timeout=30) as reply:
            return json.load(reply)


def sign_in(page, studio: RealStudio) -> None:
    """Sign in to Label Studio with a browser page."""
    page.goto(f"{studio.url}/user/login/")
    page.fill("input[name=email]", "anna@example.org")
    page.fill("input[name=password]", "anna-anna-1")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "login" not in url)


def read_recorded_annotations(out: Path) -> dict[tuple[int, str], tuple]:
    """Read (annotation, event key) -> (task, kind, label) of all events that were not undone.

    Opens the journal read-only, outside the server.
    """
    with sqlite3.connect(f"file:{out / 'labels.db'}?mode=ro", uri=True) as db:
        items = dict(db.execute("SELECT position, item FROM items"))
        names = [
            row[0]
            for row in db.execute("SELECT text FROM events WHERE kind = 'class' ORDER BY seq")
        ]
        undone = {row[0] for row in db.execute("SELECT ref FROM events WHERE kind = 'undo'")}
        rows = db.execute(
            "SELECT seq, position, kind, label, key FROM events WHERE key IS NOT NULL AND kind != "
            "'undo'"
        )
        annotations = {}
        for seq, position, kind, label, key in rows:
            if seq not in undone:
                number = int(key.split()[1])
                assert (number, key) not in annotations
                annotations[number, key] = (
                    Path(items[position]).stem,
                    kind,
                    None if label is None else names[label],
                )
    return annotations


def read_current_annotations(out: Path) -> dict[int, tuple]:
    """Read annotation -> (task, kind, label) as currently recorded.

    Events are in order, so that the newest one of an annotation wins.
    """
    return {
        number: annotation for (number, _), annotation in read_recorded_annotations(out).items()
    }


def start_bridge_and_page(studio, tmp_path, start_program, count, *options):
    """Start a bridge of a new project, and a page of the same items."""
    project, out = studio.new_project(make_tasks(count)), tmp_path / "out"
    bridge = start_program(RealBridge, studio, project, out, *options)
    bridge.settle(900)
    page = start_program(
        pages.Server, out / "items", tmp_path / "page", "--classes", TOPICS, *options
    )
    client = Client(page.url, who="anna@example.org")
    client.wait(900)
    return project, bridge, client, out
