"""Small data sets and sessions for tests of the page."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from labelahead.learner.config import parse_campaign
from labelahead.server.app import create_app
from labelahead.server.session import SessionOptions, open_session
from tests.support.waiting import until

HOME = "http://127.0.0.1:8765"
CHANGE = {"X-Labelahead": "1"}


def photo(path: Path, colour=(200, 30, 30), size=(40, 30), **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **options)
    return path


def photos(folder: Path, n: int = 12) -> Path:
    """Write unlabelled images of two classes, dark and light, with noise."""
    rng = np.random.default_rng(0)
    for i in range(n):
        level = 40 if i % 2 else 200
        pixels = (level + rng.integers(-30, 30, (24, 32, 3))).clip(0, 255).astype(np.uint8)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return folder


@contextmanager
def page(source, out, *, token=None, hosts=None, start=False, tables=None, **options):
    """Open a session and yield a client of its application, in this process, and the session.

    start: start the training schedule.
    """
    campaign = parse_campaign(
        {"data": {"name": str(source)}, "model": {"name": "mlp"}, "threads": 1} | (tables or {})
    )
    with open_session(campaign, out, SessionOptions(**options)) as session:
        host_options = {} if hosts is None else {"hosts": hosts}
        app = create_app(session.service, session.schedule, token=token, **host_options)
        if start:
            session.schedule.start()
        with TestClient(app, base_url=HOME, raise_server_exceptions=False) as client:
            yield client, session


def progress_once(client, condition):
    """Wait until the page's progress meets the condition and return the progress."""

    def read_progress():
        return client.get("/api/progress").json()

    return until(
        lambda: progress if condition(progress := read_progress()) else None, read_progress
    )


def make_dated_folders(folder, n=4):
    """Write images in one folder per month."""
    for k, month in enumerate(("2024-01", "2024-02")):
        for i in range(n):
            photo(folder / month / f"{i}.png", (60 * i, 100 * k, 30))
    return folder


@contextmanager
def labelled_page(folder: Path):
    """Open a session of the exact learner on pixels, with half of the images labelled.

    It yields the client, the session, the folder of the images and that of the session.
    """
    source, out = photos(folder / "set", 20), folder / "out"
    tables = {
        "model": {"name": "exact"},
        "asking": {"strategy": "resolve"},
        "data": {"name": str(source), "size": 16, "embedding": "raw"},
    }
    with page(source, out, classes=["light", "dark"], tables=tables) as (client, session):
        refused = client.get("/api/model")
        assert refused.status_code == 400
        assert "at least two classes" in refused.json()["error"]
        for position in range(10):
            body = {"position": position, "kind": "label", "label": position % 2}
            assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 200
        yield client, session, source, out
