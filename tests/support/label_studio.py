"""Label Studio for tests.

One that replays what a real one said, and a real one in a process of its own.
"""

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
FILLING = [
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


def texts(n: int, seed: int = 0) -> list[dict[str, str]]:
    """Tasks whose topic shows in some of their words; `truth` says which."""
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        topic = rng.choice(list(WORDS))
        words = [rng.choice(WORDS[topic] if rng.random() < 0.35 else FILLING) for _ in range(14)]
        rows.append({"text": f"{' '.join(words)} ({i})", "truth": topic})
    return rows


def choice(name: str) -> list[dict]:
    return [
        {"from_name": "topic", "to_name": "text", "type": "choices", "value": {"choices": [name]}}
    ]


class Replay(ThreadingHTTPServer):
    """Answers as the recorded Label Studio did.

    Predictions and changes that it is sent are kept.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Replaying)
        self.replies = deepcopy(RECORDED["replies"])
        self.replies["hooks"] = []
        self.replies["uploads"] = []
        self.project = int(RECORDED["project"])
        self.asked: list[tuple[str, str, object]] = []
        self.files: dict[str, bytes] = {}
        self.down = False
        self.cut = False  # whether imports are done, but nobody hears of it
        self.told = lambda tasks: (
            None
        )  # a webhook of new tasks, called within the request that makes them
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def sent(self, method: str, ending: str) -> list:
        """What came to addresses that end so."""
        return [body for m, path, body in self.asked if m == method and path.endswith(ending)]

    def reply(self, method: str, path: str, query: dict) -> object:
        home = f"/api/projects/{self.project}/"
        if method == "GET" and path == "/api/tasks/":
            page, size = int(query["page"][0]), int(query["page_size"][0])
            some = self.replies["tasks"]["tasks"][(page - 1) * size : page * size]
            return {**self.replies["tasks"], "tasks": some}
        known = {
            home: "project",
            f"{home}export": "annotations",
            "/api/users/": "people",
            f"{home}model-versions/": "versions",
            "/api/webhooks/": "hooks",
            f"{home}file-uploads": "uploads",
        }
        if method == "GET":
            return self.replies[known[path]] if path in known else None
        sent = self.asked[-1][2]
        if method == "POST" and path == f"{home}import":
            return self.imported(sent, query)
        if method == "PATCH" and path == home and isinstance(sent, dict):
            self.replies["project"] |= sent
        return {"created": len(sent) if isinstance(sent, list) else 1}

    def imported(self, sent: object, query: dict) -> object:
        """New tasks, or files that are kept, with what the real one says of them."""
        said, tasks = dict(RECORDED["replies"]["import"]), self.replies["tasks"]
        if isinstance(sent, bytes):
            assert query["commit_to_project"] == ["false"]
            names = [name.decode() for name in re.findall(rb'filename="([^"]+)"', sent)]
            first = len(self.replies["uploads"]) + 1
            new = [
                {"id": i, "file": f"upload/{self.project}/0a1b2c3d-{n}"}
                for i, n in enumerate(names, first)
            ]
            self.replies["uploads"] += new
            return {**said, "task_count": 0, "file_upload_ids": [one["id"] for one in new]}
        first = max((task["id"] for task in tasks["tasks"]), default=0) + 1
        new = [{"id": i, "data": row} for i, row in enumerate(sent, first)]
        tasks["tasks"], tasks["total"] = [*tasks["tasks"], *new], tasks["total"] + len(new)
        self.replies["project"]["task_number"] = len(tasks["tasks"])
        self.told(new)
        asked_for = (
            {"task_ids": [task["id"] for task in new]}
            if query.get("return_task_ids") == ["true"]
            else {}
        )
        return {**said, "task_count": len(new), "task_ids": [], **asked_for}


class _Replaying(BaseHTTPRequestHandler):
    server: Replay

    def log_message(self, *args) -> None:
        pass

    def answer(self) -> None:
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
            plain = self.headers.get("content-type", "").startswith("application/json")
            self.server.asked.append(
                (self.command, parts.path, json.loads(body) if body and plain else body or None)
            )
            reply = self.server.reply(self.command, parts.path, parse_qs(parts.query))
            if self.server.cut and parts.path.endswith("/import"):
                self.close_connection = True
                return
            self._send(*((404, b"{}") if reply is None else (200, json.dumps(reply).encode())))

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 (their names are the library's)

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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Program:
    """A process that may be killed and started again."""

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
        self.kill()  # nobody else knows of it yet
        raise AssertionError(f"{self.command[0]} did not start:\n{self.log.read_text()[-3000:]}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        """With all that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        self.process.wait(30)


class RealStudio(Program):
    """A real Label Studio, with a folder whose files it may serve."""

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

    def ask(self, method: str, path: str, content: object = None, key: str = KEY):
        said = self.read(path, method, content, key)
        return json.loads(said) if said else None

    def read(self, path: str, method: str = "GET", content: object = None, key: str = KEY) -> bytes:
        body = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"Token {key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=body, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.read()
        except HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error

    def new_project(self, rows: list, config: str = CONFIG, **more) -> int:
        number = self.ask(
            "POST", "/api/projects/", {"title": "a project", "label_config": config} | more
        )["id"]
        if rows:
            self.ask("POST", f"/api/projects/{number}/import", rows)
        return int(number)

    def next_task(self, project: int, key: str = KEY):
        return self.ask("GET", f"/api/projects/{project}/next/", key=key)

    def annotate(self, task: int, name: str, key: str = KEY) -> int:
        return int(
            self.ask("POST", f"/api/tasks/{task}/annotations/", {"result": choice(name)}, key)["id"]
        )

    def tasks(self, project: int) -> list[dict]:
        return self.ask("GET", f"/api/projects/{project}/tasks/?page_size=500")

    def invited(self, email: str, password: str) -> str:
        """Somebody signs up by the link that colleagues are sent; their token."""
        address = urljoin(self.url, self.ask("GET", "/api/invite")["invite_url"])
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(address, timeout=60) as page:
            hidden = re.search(
                r'name="csrfmiddlewaretoken" value="([^"]+)"', page.read().decode()
            ).group(1)
        filled = urlencode(
            {"email": email, "password": password, "csrfmiddlewaretoken": hidden}
        ).encode()
        opener.open(
            urllib.request.Request(address, data=filled, headers={"Referer": address}), timeout=60
        ).close()
        with opener.open(f"{self.url}/api/current-user/token", timeout=60) as reply:
            return str(json.load(reply)["token"])

    def annotations(self, project: int) -> list[dict]:
        tasks = self.ask("GET", f"/api/projects/{project}/export?exportType=JSON")
        return [{**a, "task": t["id"]} for t in tasks for a in t["annotations"]]


class RealBridge(Program):
    """`labelahead label-studio` in a process of its own."""

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
        """Until everything is learnt and Label Studio serves what follows from it."""
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


def signed_in(shown, studio: RealStudio) -> None:
    """In a browser."""
    shown.goto(f"{studio.url}/user/login/")
    shown.fill("input[name=email]", "anna@example.org")
    shown.fill("input[name=password]", "anna-anna-1")
    shown.keyboard.press("Enter")
    shown.wait_for_url(lambda url: "login" not in url)


def recorded(out: Path) -> dict[tuple[int, str], tuple]:
    """By annotation and event, what the record says that was not taken back.

    Task, kind, label; read from outside.
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
        said = {}
        for seq, position, kind, label, key in rows:
            if seq not in undone:
                number = int(key.split()[1])
                assert (number, key) not in said
                said[number, key] = (
                    Path(items[position]).stem,
                    kind,
                    None if label is None else names[label],
                )
    return said


def standing(out: Path) -> dict[int, tuple]:
    """By annotation, what the record says of it now: task, kind, label."""
    return {number: said for (number, _), said in recorded(out).items()}  # the oldest event first


def beside_a_page(studio, tmp_path, started, count, *options):
    """A project that is labelled in Label Studio, and a page of our own over the same items."""
    project, out = studio.new_project(texts(count)), tmp_path / "out"
    bridge = started(RealBridge, studio, project, out, *options)
    bridge.settle(900)
    page = started(pages.Server, out / "items", tmp_path / "page", "--classes", TOPICS, *options)
    client = Client(page.url, who="anna@example.org")
    client.wait(900)
    return project, bridge, client, out
