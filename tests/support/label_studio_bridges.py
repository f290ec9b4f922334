"""A session of the replayed Label Studio project with its bridge."""

from contextlib import contextmanager

from starlette.testclient import TestClient

from labelahead.integrations.label_studio.connection import Connection
from labelahead.integrations.label_studio.gateway import SECRET_HEADER, LabelStudioGateway, protocol
from labelahead.learner.config import parse_campaign
from labelahead.server.app import create_app
from labelahead.server.session import SessionOptions, open_session
from tests.support.label_studio import KEY, RECORDED
from tests.support.waiting import until

TASKS = [t["id"] for t in RECORDED["replies"]["tasks"]["tasks"]]
WEBHOOKS = [w["body"] for w in RECORDED["webhooks"]]
ANNA = "anna@example.org"
NO_ANNOTATIONS: list = []


@contextmanager
def open_bridge(
    studio, out, *, annotations=NO_ANNOTATIONS, predictions=False, start_schedule=False
):
    """Open a session of the replayed project with its bridge and a client of the gateway."""
    studio.replies["annotations"] = annotations
    connection = Connection.open(studio.url, KEY, studio.project, out)
    fetched = connection.fetch_tasks(lambda done, of: None)
    data = {"name": str(fetched.folder), "embedding": "words"}
    tables = {"data": data | connection.interface.data_settings, "threads": 1}
    options = SessionOptions(connection.interface.choices)
    with open_session(parse_campaign(tables), out, options) as session:
        if start_schedule:
            session.schedule.start()
        bridge = connection.make_bridge(session.service, fetched, predictions=predictions)
        page = create_app(session.service, session.schedule)
        with TestClient(
            LabelStudioGateway(protocol(bridge), page, secret="s3cret-s3cret"),
            base_url="http://127.0.0.1",
        ) as client:
            client.headers[SECRET_HEADER] = "s3cret-s3cret"
            yield bridge, session, client


def read_serving_order(studio, solved=frozenset()) -> list[int]:
    """Return tasks in the order in which Label Studio serves them, without `solved`."""
    version = studio.sent("PATCH", f"/projects/{studio.project}/")[-1]["model_version"]
    sent = [row for rows in studio.sent("POST", "/import/predictions") for row in rows]
    rows = sorted((row["score"], row["task"]) for row in sent if row["model_version"] == version)
    assert all(0 < score < 1 for score, _ in rows)
    assert len({score for score, _ in rows}) == len(rows)
    return [task for task in dict.fromkeys(task for _, task in rows) if task not in solved]


def wait_until_idle(session) -> None:
    """Wait until the page model is up to date."""
    until(
        lambda: (
            session.service.page_model
            and not session.service.is_behind
            and session.schedule.is_idle
        )
    )
