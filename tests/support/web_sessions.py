"""Small data and sessions that the tests of the page share."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from labelahead.learner.config import parse_campaign
from labelahead.server.app import create_app
from labelahead.server.session import open_session
from tests.support.waiting import until

HOME = "http://127.0.0.1:8765"
CHANGE = {"X-Labelahead": "1"}


def photo(path: Path, colour=(200, 30, 30), size=(40, 30), **more) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **more)
    return path


def photos(folder: Path, n: int = 12) -> Path:
    """Two classes' worth of pictures without labels: dark and light, each a little different."""
    rng = np.random.default_rng(0)
    for i in range(n):
        level = 40 if i % 2 else 200
        pixels = (level + rng.integers(-30, 30, (24, 32, 3))).clip(0, 255).astype(np.uint8)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return folder


@contextmanager
def page(source, out, *, token=None, hosts=None, start=False, tables=None, **more):
    """A client of the application in this process, and its session; untrained unless started."""
    campaign = parse_campaign(
        {"data": {"name": str(source)}, "model": {"name": "mlp"}, "threads": 1} | (tables or {})
    )
    with open_session(campaign, out, **more) as session:
        named = {} if hosts is None else {"hosts": hosts}
        app = create_app(session.service, session.schedule, token=token, **named)
        if start:
            session.schedule.start()
        with TestClient(app, base_url=HOME, raise_server_exceptions=False) as client:
            yield client, session


def progress_once(client, wanted):
    """What the page says of itself, once that is as wanted."""

    def said():
        return client.get("/api/progress").json()

    return until(lambda: progress if wanted(progress := said()) else None, said)
