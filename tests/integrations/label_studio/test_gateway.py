"""Calls are refused by their headers before their body is read.

Malformed bodies are client errors.
"""

import asyncio
import base64
import json
import random

import pytest
from starlette.testclient import TestClient

from labelahead.integrations.label_studio.connection import Connection
from labelahead.integrations.label_studio.gateway import (
    MAX_CALL_BYTES,
    SECRET_HEADER,
    LabelStudioGateway,
    protocol,
)
from labelahead.learner.config import parse_campaign
from labelahead.server.app import create_app
from labelahead.server.session import SessionOptions, open_session
from tests.support.label_studio import KEY, RECORDED, replay
from tests.support.malformed import iter_malformed

BODIES = [call["body"] for call in RECORDED["webhooks"]]
OUR_SECRET = "s3cret-s3cret"
FUZZED_BODIES = 400


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """Open the gateway of a session of the recorded project."""
    out = tmp_path_factory.mktemp("server") / "out"
    with replay() as studio:
        studio.replies["annotations"] = []
        connection = Connection.open(studio.url, KEY, studio.project, out)
        fetched = connection.fetch_tasks(lambda done, of: None)
        tables = {"data": {"name": str(fetched.folder), "embedding": "words"}, "threads": 1}
        with open_session(
            parse_campaign(tables), out, SessionOptions(connection.interface.choices)
        ) as session:
            bridge = connection.make_bridge(session.service, fetched, predictions=False)
            page = create_app(session.service, session.schedule)
            yield LabelStudioGateway(
                protocol(bridge),
                page,
                secret=OUR_SECRET,
                hosts=("127.0.0.1", "labelahead.internal"),
            )


@pytest.fixture
def client(gateway):
    with TestClient(
        gateway, base_url="http://127.0.0.1:8770", raise_server_exceptions=False
    ) as test_client:
        test_client.headers[SECRET_HEADER] = OUR_SECRET
        yield test_client


def status_by_headers(app, path, headers):
    """Send a POST whose body must not be read and return its status."""
    messages = []

    async def receive():
        raise AssertionError("the body was read")

    async def send(message):
        messages.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "http_version": "1.1",
    }
    scope["headers"] = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(app(scope, receive, send))
    return messages[0]["status"]


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({SECRET_HEADER: "wrong"}, 401),
        ({SECRET_HEADER: ""}, 401),
        ({SECRET_HEADER: "", "Authorization": "Basic \xff"}, 401),
        (
            {
                SECRET_HEADER: "",
                "Authorization": "Basic " + base64.b64encode(b"user:wrong").decode(),
            },
            401,
        ),
        ({"Host": "evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Content-Length": str(MAX_CALL_BYTES + 1)}, 413),
        ({"Content-Length": "9" * 5000}, 413),
        ({"Content-Length": "x"}, 411),
        ({"Transfer-Encoding": "chunked"}, 400),
    ],
)
@pytest.mark.parametrize("path", ["/webhook", "/predict"])
def test_invalid_headers_are_refused_before_the_body_is_read(gateway, path, changed, status):
    valid = {
        "Host": "127.0.0.1:8770",
        "Content-Type": "application/json",
        "Content-Length": "60000",
        SECRET_HEADER: OUR_SECRET,
    }
    assert status_by_headers(gateway, path, {**valid, **changed}) == status


def test_calls_to_an_unknown_host_are_refused(client):
    for path in ("/health", "/versions"):
        assert client.get(path, headers={"Host": "evil.example:8770"}).status_code == 403
        for host in ("127.0.0.1:8770", "labelahead.internal:8770"):
            assert client.get(path, headers={"Host": host}).status_code == 200
    for path in ("/predict", "/setup", "/webhook"):
        assert client.post(path, json={}, headers={"Host": "evil.example"}).status_code == 403


def test_predictions_without_a_secret_are_refused_for_unknown_hosts(gateway):
    app = LabelStudioGateway(
        gateway.calls, gateway.page, secret=OUR_SECRET, predictions_need_secret=False
    )
    with TestClient(app, base_url="http://127.0.0.1:8770") as client:
        assert client.post("/predict", json={"tasks": []}).status_code == 200
        assert (
            client.post(
                "/predict", json={"tasks": []}, headers={"Host": "evil.example"}
            ).status_code
            == 403
        )
        assert client.post("/webhook", json={}).status_code == 401


def test_malformed_webhooks_are_client_errors(client):
    """A sample, drawn with a fixed seed, of every recorded call with every wrong value at every
    node.
    """
    cases = [(path, body) for recorded in BODIES for path, body in iter_malformed(recorded)]
    for path, body in random.Random(0).sample(cases, FUZZED_BODIES):
        reply = client.post(
            "/webhook", content=json.dumps(body), headers={"Content-Type": "application/json"}
        )
        assert reply.status_code < 500, (path, reply.text)
        if reply.status_code != 201:
            assert reply.status_code >= 400
            assert list(reply.json()) == ["error"]
            assert len(reply.json()["error"]) > 20


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"id": %s}' % (b"9" * 10_000),
        b"null",
        b"NaN",
        b'"x"',
        b"[{}]",
        b"{}",
    ],
)
@pytest.mark.parametrize("path", ["/webhook", "/predict"])
def test_bodies_other_than_json_objects_are_client_errors(client, path, content):
    reply = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert (
        reply.status_code == 200
        if (path, content) == ("/predict", b"{}")
        else 400 <= reply.status_code < 500
    )
    if reply.status_code != 200:
        assert reply.json()["error"]


def test_malformed_prediction_requests_are_client_errors(client):
    recorded = next(
        call["body"] for call in RECORDED["backend"] if call["path"].startswith("/predict")
    )
    for path, body in iter_malformed({"tasks": recorded["tasks"][:1]}):
        reply = client.post(
            "/predict", content=json.dumps(body), headers={"Content-Type": "application/json"}
        )
        assert reply.status_code < 500, (path, reply.text)
