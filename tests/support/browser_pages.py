"""A real server, a real browser: what the tests of the page share."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

from tests.support.waiting import PATIENCE, until

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def browser_path() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def write_digits(folder: Path, count: int = 120) -> Path:
    """Handwritten digits as files; each says in its name which digit it is: n0017-3.png."""
    folder.mkdir()
    digits = load_digits()
    for i in range(count):
        pixels = (255 - digits.images[i] * 255 / 16).astype("uint8")
        Image.fromarray(pixels).save(folder / f"n{i:04d}-{digits.target[i]}.png")
    return folder


class Server:
    """`labelahead label` in a process of its own; it may die and come back at the same port."""

    def __init__(self, data: Path, out: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [
            sys.executable,
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
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        until(self._up, lambda: f"the server did not start:\n{self.log.read_text()}")

    def _up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.get("/api/health")["ok"]
        except OSError:
            return False

    def kill(self) -> None:
        """As a power cut would: the server and whatever it had started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def get(self, path: str):
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as answer:
            return json.load(answer)

    def labels(self) -> dict[str, str]:
        """Item -> the name of its class, as the server has it."""
        names = {c["number"]: c["name"] for c in self.get("/api/session")["classes"]}
        rows = self.get("/api/history?n=1000")
        return {r["item"]: names[r["current"]] for r in rows if r["current"] is not None}


class Person:
    """Somebody before the page."""

    def __init__(self, browser, server: Server, **options) -> None:
        # Without motion: axe would measure the contrast of what is still fading in.
        options = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | options
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(1000 * PATIENCE)
        self.page, self.server = self.context.new_page(), server
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._heard)
        self.page.goto(server.url + "/")
        self.page.wait_for_selector("#stage[data-position]:not([data-position='']), #first:visible")

    def _heard(self, message) -> None:
        # A server that is gone or has no room is no fault of the page; a broken security policy is.
        if message.type == "error" and not re.search(r"net::ERR_|a status of 50[37]", message.text):
            self.complaints.append(message.text)

    @property
    def position(self) -> str:
        return self.page.get_attribute("#stage", "data-position")

    @property
    def item(self) -> str:
        return self.page.inner_text("#asked")

    @property
    def digit(self) -> str:
        """What the item is, by its name."""
        return re.search(r"-(\d)\.png", self.item)[1]

    def send_answer(self, key: str) -> None:
        """Press a key until the page has sent an answer; a page that is still busy takes no key."""
        sent = []
        self.page.on(
            "request", lambda r: sent.append(r.url) if r.url.endswith("/api/answers") else None
        )
        for _ in range(60):
            self.page.keyboard.press(key)
            for _ in range(100):
                if sent:
                    return
                self.page.wait_for_timeout(50)
        raise AssertionError(
            f"no answer was sent by {key!r} at {self.item}: {self.page.inner_text('body')[:500]}"
        )

    def wait_until(self, happened):
        """Let the browser go on until something has happened; return it."""
        return until(lambda: happened() or self.page.wait_for_timeout(20))

    def said(self, text: str) -> None:
        self.page.wait_for_function(
            "text => document.getElementById('said').textContent.includes(text)", arg=text
        )

    def press(self, key: str) -> None:
        """A key that answers: until another item is asked about."""
        before = self.position
        self.page.keyboard.press(key)
        self.another(before)

    def another(self, before: str) -> None:
        self.page.wait_for_function(
            "before => document.getElementById('stage').dataset.position !== before"
            " && !document.body.classList.contains('busy')",
            arg=before,
        )

    def label(self, count: int) -> dict[str, str]:
        """Label so many, rightly; what was labelled."""
        done = {}
        for _ in range(count):
            item, digit = self.item, self.digit
            self.press(digit)
            done[item] = digit
        return done

    def call_me(self, name: str) -> None:
        self.page.click("#me")
        self.page.fill("#whoname", name)
        self.page.keyboard.press("Enter")
        self.said(f"Hello {name}")

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []
