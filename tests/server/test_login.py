"""Login, roles, and the header of a reverse proxy."""

from contextlib import contextmanager

import pytest
from starlette.testclient import TestClient

from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.server.accounts import Accounts, save_account
from labelahead.server.app import create_app
from labelahead.server.login import LoginGuard
from labelahead.server.serve import LoginSettings, serve
from labelahead.server.session import SessionOptions, open_session
from tests.server.test_confirm import EXACT, NAMES, write_clusters
from tests.support.web_sessions import CHANGE, HOME

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.json"
    for name, role in (("anna", "annotator"), ("ruth", "reviewer"), ("ada", "admin")):
        save_account(path, name, role, PASSWORD)
    return Accounts.from_file(path)


@contextmanager
def open_app(folder, **login):
    """Yield a function that makes clients of a session, and the session."""
    campaign = parse_campaign(
        {"data": {"name": str(write_clusters(folder / "x.npz"))}, "threads": 1, **EXACT}
    )
    with open_session(campaign, folder / "out", SessionOptions(classes=NAMES)) as session:
        app = create_app(session.service, session.schedule, **login)
        yield lambda **how: TestClient(app, base_url=HOME, follow_redirects=False, **how), session


def log_in(client, name, password=PASSWORD):
    body = {"name": name, "password": password}
    return client.post("/api/login", json=body, headers=CHANGE)


def send(client, path, body, **headers):
    return client.post(path, json=body, headers=CHANGE | headers)


def test_nothing_but_the_login_page_is_shown_without_a_login(users, tmp_path):
    with open_app(tmp_path, accounts=users) as (connect, _):
        client = connect()
        assert client.get("/").headers["location"] == "/login"
        assert "Log in to label" in client.get("/login").text
        assert client.get("/static/login.js").status_code == 200
        for path in ("/api/session", "/api/question", "/items/0", "/api/export/csv", "/api/model"):
            assert client.get(path).status_code == 401, path
            assert client.head(path).status_code == 401, path
        assert send(client, "/api/answers", {"position": 0, "kind": "label"}).status_code == 401
        assert log_in(client, "anna", "wrong password").status_code == 401
        assert log_in(client, "nobody").status_code == 401
        client.cookies.set("la_login_80", "guessed")
        assert client.get("/api/session").status_code == 401


def test_answers_are_signed_by_the_account_whatever_the_cookie_says(users, tmp_path):
    with open_app(tmp_path, accounts=users) as (connect, session):
        client = connect()
        assert log_in(client, "anna").json() == {"name": "anna", "role": "annotator"}
        client.cookies.set("la_who", "ben")
        session_of_anna = client.get("/api/session").json()
        assert session_of_anna["who"] == "anna"
        assert session_of_anna["account"] == {"role": "annotator", "can_log_out": True}
        body = {"position": 0, "kind": "label", "label": 1}
        assert send(client, "/api/answers", body).status_code == 200
        assert [e.who for e in session.service.journal.read_events()][-1] == "anna"
        assert send(client, "/api/me", {"who": "ben"}).status_code == 403
        assert send(client, "/api/logout", {}).status_code == 200
        assert client.get("/api/session").status_code == 401


@pytest.mark.parametrize(
    ("name", "allowed"), [("anna", set()), ("ruth", {"review", "settle"}), ("ada", None)]
)
def test_roles_allow_what_those_below_may_and_more(users, tmp_path, name, allowed):
    with open_app(tmp_path, accounts=users) as (connect, _):
        client = connect()
        log_in(client, name)
        answer = {"position": 0, "kind": "label", "label": 1}
        assert send(client, "/api/answers", answer).status_code == 200
        replies = {
            "review": client.get("/api/review"),
            "settle": send(client, "/api/answers", {**answer, "kind": "settle", "label": 0}),
            "export": client.get("/api/export/csv"),
            "import": client.post("/api/import?form=csv", content=b"", headers=CHANGE),
        }
        refused = {what for what, reply in replies.items() if reply.status_code == 403}
        assert refused == (set() if allowed is None else replies.keys() - allowed)
        for what in refused:
            assert "needs the role" in replies[what].json()["error"]


def test_guesses_at_passwords_are_rate_limited(users, tmp_path, monkeypatch):
    monkeypatch.setattr(Accounts, "check_password", lambda *given: None)  # scrypt takes its time
    with open_app(tmp_path, accounts=users) as (connect, _):
        client = connect()
        codes = [log_in(client, "anna", f"guess {n:03d}").status_code for n in range(25)]
        assert codes == [401] * 20 + [429] * 5


def test_proxy_names_the_user_and_the_file_their_role(users, tmp_path):
    with open_app(tmp_path, accounts=users, user_header="X-Remote-User") as (connect, session):
        client = connect()
        assert client.get("/api/session").status_code == 401
        twice = [("X-Remote-User", "ada"), ("X-Remote-User", "anna")]
        assert client.get("/api/session", headers=twice).status_code == 401
        assert client.get("/api/session", headers={"X-Remote-User": ""}).status_code == 401
        ada, new = {"X-Remote-User": "ada"}, {"X-Remote-User": "new"}
        session_of_new = client.get("/api/session", headers=new).json()
        assert session_of_new["who"] == "new"
        assert session_of_new["account"] == {"role": "annotator", "can_log_out": False}
        assert client.get("/api/export/csv", headers=ada).status_code == 200
        assert client.get("/api/export/csv", headers=new).status_code == 403
        assert log_in(client, "ada").status_code != 200  # nobody logs in beside the proxy
        assert client.get("/api/session").status_code == 401
        with pytest.raises(InputError, match=r"expected the host 127\.0\.0\.1"):
            serve(session, host="0.0.0.0", login=LoginSettings(users, "X-Remote-User"))


def test_header_is_ignored_unless_the_server_is_told_to_trust_it(users, tmp_path):
    with open_app(tmp_path, accounts=users) as (connect, _):
        reply = connect().get("/api/session", headers={"X-Remote-User": "ada"})
        assert reply.status_code == 401


def test_guard_without_users_and_header_is_refused():
    with pytest.raises(InputError, match="neither users nor a header"):
        LoginGuard(None, None)
