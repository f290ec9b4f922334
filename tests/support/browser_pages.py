"""A real server and a browser client for tests of the page."""

import json
import os
import re
import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image
from sklearn.datasets import load_digits

from tests.support.waiting import PATIENCE, until
from tests.support.warm_processes import start_python

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
INTERCEPTED_PATHS = ("/api/answers", "/api/progress")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def browser_path() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def write_digits(folder: Path, count: int = 120) -> Path:
    """Write handwritten digits as images; the name contains the digit: n0017-3.png."""
    folder.mkdir()
    digits = load_digits()
    for i in range(count):
        pixels = (255 - digits.images[i] * 255 / 16).astype("uint8")
        Image.fromarray(pixels).save(folder / f"n{i:04d}-{digits.target[i]}.png")
    return folder


class Server:
    """`labelahead label` in its own process; it can be killed and restarted on the same port."""

    def __init__(self, data: Path, out: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.data = data
        self.command = [
            "-m",
            "labelahead",
            "label",
            str(data),
            "--out",
            str(out),
            "--no-browser",
            "--port",
            str(self.port),
            "--overlap",
            "0",
            "--threads",
            "1",
            *options,
        ]
        self.log = out.with_suffix(".log")
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "LABELAHEAD_VERIFY": "0"}
        with self.log.open("a") as log:
            self.process = start_python(self.command, output=log, env=environment, new_session=True)
        until(self._is_up, lambda: f"the server did not start:\n{self.log.read_text()}")

    def _is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.get("/api/health")["ok"]
        except OSError:
            return False

    def kill(self) -> None:
        """Kill the server and all of its processes, as a power cut would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def get(self, path: str):
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as reply:
            return json.load(reply)

    def labels(self) -> dict[str, str]:
        """Return item -> class name, as the server has it."""
        names = {c["number"]: c["name"] for c in self.get("/api/session")["classes"]}
        rows = self.get("/api/history?n=1000")
        return {r["item"]: names[r["current"]] for r in rows if r["current"] is not None}


class Annotator:
    """An annotator with the page in a browser.

    Attributes:
        interceptors: path -> function of the requests to it; only with `intercepts`.
    """

    def __init__(self, browser, server: Server, *, intercepts: bool = False, **options) -> None:
        """Open the page.

        intercepts: whether a test will intercept answers and polls. The routes must be there before
        the page is: for a moment after a route is added or removed, a busy Chromium lets requests
        pass that Playwright never sees.
        """
        # Without animations, because axe would measure the contrast of half-faded elements.
        options = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | options
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(1000 * PATIENCE)
        self.page, self.server = self.context.new_page(), server
        self.errors: list[str] = []
        self.traffic: list[str] = []  # what became of each request that changes something
        for event in ("request", "requestfailed", "requestfinished"):
            self.page.on(event, lambda request, event=event: self._note_request(event, request))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._collect_console_error)
        self.interceptors: dict[str, Callable[[Any], object]] = {}
        for path in INTERCEPTED_PATHS if intercepts else ():
            self.page.route("**" + path, self._intercept)
        self.page.goto(server.url + "/")
        self.page.wait_for_selector("#stage[data-position]:not([data-position='']), #first:visible")

    def _note_request(self, event: str, request) -> None:
        if request.method == "POST":
            self.traffic.append(f"{time.time():.3f} {event} {request.url} {request.post_data}")

    def _intercept(self, route) -> None:
        path = urlsplit(route.request.url).path
        self.interceptors.get(path, lambda r: r.continue_())(route)

    def _collect_console_error(self, message) -> None:
        # An unreachable or full server is not an error of the page; a broken security policy is.
        if message.type == "error" and not re.search(r"net::ERR_|a status of 50[37]", message.text):
            self.errors.append(message.text)

    @property
    def position(self) -> str:
        return self.page.get_attribute("#stage", "data-position")

    @property
    def item(self) -> str:
        return self.page.inner_text("#asked")

    @property
    def digit(self) -> str:
        """Return the true digit, from the item's name."""
        return re.search(r"-(\d)\.png", self.item)[1]

    def send_answer(self, key: str) -> None:
        """Press a key once the page accepts keys, and wait until the page has sent the answer."""
        self.page.wait_for_function("!document.body.classList.contains('busy')")
        with self.page.expect_request("**/api/answers"):
            self.page.keyboard.press(key)

    def wait_until(self, condition):
        """Run the browser until the condition holds and return its value."""
        return until(lambda: condition() or self.page.wait_for_timeout(20))

    def wait_for_message(self, text: str) -> None:
        self.page.wait_for_function(
            "text => document.getElementById('said').textContent.includes(text)", arg=text
        )

    def press_and_wait(self, key: str) -> None:
        """Press a key that answers and wait for the next item."""
        before = self.position
        self.page.keyboard.press(key)
        self.wait_for_next_item(before)

    def wait_for_next_item(self, before: str) -> None:
        self.page.wait_for_function(
            "before => document.getElementById('stage').dataset.position !== before"
            " && !document.body.classList.contains('busy')",
            arg=before,
        )

    def label_items(self, count: int) -> dict[str, str]:
        """Label `count` items correctly and return item -> digit."""
        labelled = {}
        for _ in range(count):
            item, digit = self.item, self.digit
            self.press_and_wait(digit)
            labelled[item] = digit
        return labelled

    def set_name(self, name: str) -> None:
        self.page.click("#me")
        self.page.fill("#whoname", name)
        self.page.keyboard.press("Enter")
        self.wait_for_message(f"Hello {name}")

    def close(self) -> None:
        self.context.close()
        assert self.errors == [], self.errors
