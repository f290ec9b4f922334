"""Nothing but the data set's own items leaves the server, and only for those who may ask."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from labelahead.data import load
from labelahead.errors import InputError
from labelahead.server.security import ANY_ADDRESS, LOOPBACK, Guard, HostNames, is_loopback
from tests.support.web_sessions import CHANGE, HOME, page, photo, photos

TOKEN = "a-very-secret-token"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A page that several tests only look at."""
    room = tmp_path_factory.mktemp("plain")
    (room / "secret.txt").write_text("SECRET")
    with page(photos(room / "set"), room / "out", classes=["cat", "dog"]) as (client, _):
        yield client


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    room = tmp_path_factory.mktemp("locked")
    with page(photos(room / "set", 4), room / "out", token=TOKEN, classes=["a", "b"]) as (
        client,
        _,
    ):
        yield client


ESCAPES = [
    "/items/../secret.txt",
    "/items/..%2f..%2fsecret.txt",
    "/items/%2e%2e/%2e%2e/secret.txt",
    "/items/%2e%2e%2fsecret.txt",
    "/items/..%5c..%5csecret.txt",
    "/items//etc/passwd",
    "/items/%2fetc%2fpasswd",
    "/items/00.png",
    "/items/0/../../secret.txt",
    "/items/-1",
    "/items/1e0",
    "/items/999999",
    "/items/99999999999999999999999",
    "/items/1%00",
    "/items/file:%2f%2f%2fetc%2fpasswd",
    "/static/../app.py",
    "/static/%2e%2e/app.py",
    "/static/..%2fapp.py",
    "/static/..%5capp.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/",
    "/static/../../../etc/passwd",
    "/templates/page.html",
    "/labels.db",
    "/..%2fout%2flabels.db",
    "/api/export/..%2f..%2fsecret.txt",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_no_path_leads_out(plain, path):
    # Not through the client's own tidying of paths: the server must see it as it is.
    reply = raw(plain, path)
    assert reply.status_code in (400, 404, 405, 422), reply.text
    assert "SECRET" not in reply.text
    assert "root:" not in reply.text
    assert "import" not in reply.text
    assert set(reply.json()) == {"error"}


def raw(client, path):
    """A request whose path is not normalised on the way."""
    url = client.base_url.copy_with(
        raw_path=path.encode()
    )  # whichever library the client is made with
    return client.send(client.build_request("GET", url), follow_redirects=False)


def test_links_out_of_the_folder_are_left_out(tmp_path):
    secret = photo(tmp_path / "private" / "me.png", (1, 2, 3))
    folder = photos(tmp_path / "set", 3)
    (folder / "me.png").symlink_to(secret)
    (folder / "all").symlink_to(secret.parent)
    (folder / "again.png").symlink_to(folder / "00.png")  # inside: fine
    with page(folder, tmp_path / "out") as (client, session):
        ids = session.service.items.ids
        assert list(ids) == ["00.png", "01.png", "02.png", "again.png"]
        assert any("2 links lead out of the folder: all, me.png" in n for n in session.notes)
        # A file that becomes such a link later is not served either.
        (folder / "02.png").unlink()
        (folder / "02.png").symlink_to(secret)
        reply = client.get(f"/items/{ids.index('02.png')}")
        assert reply.status_code == 404
        assert "leads out" in reply.json()["error"]
    data, _ = load(folder, test_fraction=0)  # simulations may follow them, as ever
    assert "all/me.png" in data.ids


def test_pictures_are_encoded_anew(tmp_path):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "SECRET PLACE"  # turned by 90 degrees; a description
    photo(tmp_path / "set" / "a.jpg", size=(600, 300), exif=exif)
    hidden = tmp_path / "set" / "b.png"
    photo(hidden, size=(30, 20))
    hidden.write_bytes(hidden.read_bytes() + b"<script>SECRET</script>")
    with page(tmp_path / "set", tmp_path / "out") as (client, _):
        for position, size in ((0, (300, 600)), (1, (30, 20))):
            reply = client.get(f"/items/{position}")
            assert reply.headers["content-type"] in ("image/jpeg", "image/png")
            assert b"SECRET" not in reply.content
            assert Image.open(io.BytesIO(reply.content)).size == size


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "localhost.evil.example:8765",
        "192.168.0.7",
        "localhost@evil.example",
        "[::2]",
        "127.0.0.1:80:80",
        "localhost:abc",
    ],
)
def test_other_host_names_are_refused(plain, host):
    for path in ("/", "/api/session", "/items/0", "/static/label.js"):
        assert plain.get(path, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:1234", "LOCALHOST", "[::1]:8765", "localhost."]
)
def test_own_host_names_are_accepted(plain, host):
    assert plain.get("/api/health", headers={"Host": host}).status_code == 200


def test_a_server_for_all_takes_numbers_but_no_names():
    names = HostNames((*LOOPBACK, ANY_ADDRESS, "desk7"))
    assert all(h in names for h in ("192.168.0.7:80", "[fe80::1]:80", "10.0.0.1", "desk7:1"))
    assert not any(h in names for h in ("evil.example", "10.0.0.1.evil.example", "*", "1.2.3"))
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.7", "desk7")))


def test_without_token_nothing_is_said(locked):
    locked.cookies.clear()
    for path in ("/", "/api/session", "/api/health", "/items/0", "/static/label.js", "/nowhere"):
        assert locked.get(path).status_code == 401, path
    for wrong in ("", TOKEN[:-1], TOKEN + "x", "é", "\udc80".encode("utf-8", "surrogateescape")):
        query = {"token": wrong}
        assert locked.get("/", params=query, follow_redirects=False).status_code == 401
        if isinstance(wrong, str) and wrong.isascii():
            headers = {"Authorization": f"Bearer {wrong}"}
            assert locked.get("/api/session", headers=headers).status_code == 401
            headers = {"Cookie": f"la_token={wrong}"}
            assert locked.get("/api/session", headers=headers).status_code == 401
    posted = locked.post("/api/undo", params={"token": TOKEN}, json={}, headers=CHANGE)
    assert posted.status_code == 401  # the address is no place for it save once
    page_ = locked.get("/", headers={"Accept": "text/html"})
    assert page_.status_code == 401
    assert "token" in page_.text


def test_the_token_leaves_the_address_for_a_cookie(locked):
    locked.cookies.clear()
    reply = locked.get("/", params={"a": "1&x", "token": TOKEN, "b": ""}, follow_redirects=False)
    assert reply.status_code == 303
    assert reply.headers["location"] == "/?a=1%26x&b="
    cookie = reply.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert locked.get("/api/session").status_code == 200  # by the cookie
    again = locked.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert again.headers["location"] == "/"  # it never stays in the address
    locked.cookies.clear()
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert locked.get("/api/session", headers=bearer).status_code == 200


def test_the_redirect_stays_here(locked):
    locked.cookies.clear()
    for path in ("//evil.example/", "/%5c%5cevil.example", "///evil.example"):
        reply = raw(locked, f"{path}?token={TOKEN}")
        target = reply.headers["location"]
        assert target.startswith("/")
        assert not target.startswith(("//", "/\\"))


@pytest.mark.parametrize("token", ["short", "with space in it", "semi;colon;token", "ümlaut-token"])
def test_tokens_that_cannot_be_sent_are_refused(token):
    with pytest.raises(InputError, match="token"):
        Guard(None, token=token, hosts=LOOPBACK)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Labelahead": "0"},
        {**CHANGE, "Origin": "http://evil.example"},
        {**CHANGE, "Origin": "null"},
        {**CHANGE, "Origin": "http://127.0.0.1:9999"},
        {**CHANGE, "Sec-Fetch-Site": "cross-site"},
        {**CHANGE, "Sec-Fetch-Site": "same-site"},
    ],
)
def test_changes_begun_elsewhere_are_refused(plain, headers):
    for path in ("/api/answers", "/api/undo", "/api/classes", "/api/me", "/api/import"):
        reply = plain.post(path, json={"name": "evil"}, headers=headers)
        assert reply.status_code == 403, path
    assert len(plain.get("/api/session").json()["classes"]) == 2


def test_changes_of_the_page_are_accepted(plain):
    own = {**CHANGE, "Origin": HOME, "Sec-Fetch-Site": "same-origin"}
    assert plain.post("/api/undo", json={}, headers=own).status_code == 200


def test_other_sites_cannot_read_by_address(plain):
    for path in ("/items/0", "/api/session", "/api/export/csv"):
        assert plain.get(path, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert plain.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link


def test_bodies_have_a_limit(plain):
    big = b'{"name": "' + b"x" * (64 << 10) + b'"}'
    kind = {**CHANGE, "Content-Type": "application/json"}
    assert plain.post("/api/classes", content=big, headers=kind).status_code == 413
    pieces = (big[i : i + 1000] for i in range(0, len(big), 1000))
    assert plain.post("/api/classes", content=pieces, headers=kind).status_code == 413  # chunked
    huge = (b"x" * (1 << 20) for _ in range(21))
    assert plain.post("/api/import", content=huge, headers=CHANGE).status_code == 413
    lying = {**kind, "Content-Length": "9" * 30}
    assert plain.post("/api/classes", content=b"{}", headers=lying).status_code == 413
    strange = {**kind, "Content-Length": "-1"}
    assert plain.post("/api/classes", content=b"{}", headers=strange).status_code == 400


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"name": "x"}', "text/plain", 415),
        (b"name=x", "application/x-www-form-urlencoded", 415),
        (b'{"name": "x"}', "", 415),
        (b"[" * 60000, "application/json", 422),
        (b'{"a":' * 10000, "application/json", 422),
        (b'{"name": NaN}', "application/json", 422),
        (b'{"name": Infinity}', "application/json", 422),
        (b'{"name": "x"', "application/json", 422),
        (b"", "application/json", 422),
        (b'"x"', "application/json", 422),
        (b'{"name": "\xff"}', "application/json", 422),
        (b'{"name": 7}', "application/json", 422),
        (b'{"name": ["x"]}', "application/json", 422),
        (b'{"name": ""}', "application/json", 409),
        (b'{"name": "\\ud800"}', "application/json", 409),
        (b'{"name": "' + b"x" * 5000 + b'"}', "application/json", 409),
        (b"9" * 10000, "application/json", 422),
    ],
)
def test_broken_bodies_are_refused(plain, body, kind, status):
    reply = plain.post("/api/classes", content=body, headers={**CHANGE, "Content-Type": kind})
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == {"error"}


@pytest.mark.parametrize(
    "answer",
    [
        {"position": 10**30, "kind": "label", "label": 0},
        {"position": -1, "kind": "skip"},
        {"position": 0, "kind": "label", "label": 99},
        {"position": 0, "kind": "label"},
        {"position": 0, "kind": "undo"},
        {"position": True, "kind": "skip"},
        {"position": 0.5, "kind": "skip"},
        {"position": "0", "kind": "skip"},
        {"kind": "skip"},
        {"position": 0, "kind": "skip", "label": 1},
        {"position": 0, "kind": "doubt"},
        {"position": 0, "kind": "keep", "label": 0},
        {"position": 0, "kind": "keep"},
        {"position": 0, "kind": "skip", "key": "k" * 300},
    ],
)
def test_impossible_answers_are_refused(plain, answer):
    reply = plain.post("/api/answers", json=answer, headers=CHANGE)
    assert 400 <= reply.status_code < 500, reply.text
    assert plain.get("/api/history").json() == []


def test_every_answer_is_fenced_in(plain, locked):
    locked.cookies.clear()
    answers = [
        plain.get("/"),
        plain.get("/api/session"),
        plain.get("/items/0"),
        plain.get("/nowhere"),
        plain.get("/static/icon.svg"),
        plain.get("/api/session", headers={"Host": "evil.example"}),
        plain.post("/api/undo", json={}),
        plain.options("/api/undo"),
        locked.get("/"),
        plain.request("TRACE", "/"),
        plain.get("/api/openapi.json"),
    ]
    for reply in answers:
        policy = reply.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "cache-control" in reply.headers
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_what_browsers_may_keep(plain):
    url = plain.get("/api/question").json()["url"]
    assert plain.get(url).headers["cache-control"] == "private, max-age=31536000, immutable"
    other = url.split("?")[0] + "?v=other"
    assert plain.get(other).headers["cache-control"] == "private, no-cache"
    assert plain.get("/api/session").headers["cache-control"] == "no-store"


def test_an_unforeseen_error_says_nothing_of_the_inside(tmp_path):
    with page(photos(tmp_path / "set", 2), tmp_path / "out") as (client, session):
        session.service.items.data.images.pixels.resize_(0)  # does no harm to pictures
        session.service.journal.close()
        reply = client.get("/api/question")
        assert reply.status_code == 503  # a closed journal, as any file that cannot be used
        assert str(tmp_path) not in reply.text
        session.service.items.data = None
        reply = client.get("/api/session")
        assert reply.status_code == 500
        assert reply.json() == {
            "error": "an unexpected error occurred; the labels are safe: try again"
        }
        assert "content-security-policy" in reply.headers


def test_html_stays_text(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    texts = [f"{evil} and much more text that nobody needs to read {w}" for w in ("one", "two") * 4]
    table = tmp_path / "t.csv"
    table.write_text("words,n\n" + "".join(f'"{t}",{i}\n' for i, t in enumerate(texts)))
    with page(table, tmp_path / "out", classes=[evil, "b"]) as (client, _):
        reply = client.get("/api/question")
        assert reply.headers["content-type"] == "application/json"
        assert reply.json()["text"].startswith(evil)
        session = client.get("/api/session")
        assert session.headers["content-type"] == "application/json"
        assert session.json()["classes"][0]["name"] == evil
        said = client.post("/api/me", json={"who": evil}, headers=CHANGE)
        assert said.json()["who"] == evil
        missing = client.get(f"/{evil}")
        assert missing.headers["content-type"] == "application/json"


def test_names_in_the_page_are_escaped(tmp_path):
    folder = photos(tmp_path / "<script>alert(1)<&", 2)
    with page(folder, tmp_path / "out") as (client, _):
        assert "<script>alert" not in client.get("/").text
        assert "&lt;script&gt;alert(1)" in client.get("/").text
        name = client.get("/api/export/csv").headers["content-disposition"]
        assert "<" not in name


def test_who_is_a_cookie_that_scripts_cannot_read(plain):
    reply = plain.post("/api/me", json={"who": " Änna 猫 "}, headers=CHANGE)
    assert reply.json()["who"] == "Änna 猫"
    cookie = reply.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert plain.get("/api/session").json()["who"] == "Änna 猫"
    for bad in ("", "x" * 61, "a\nb", "a\x00b"):
        assert plain.post("/api/me", json={"who": bad}, headers=CHANGE).status_code == 400
    plain.cookies.clear()
    for strange in ("la_who=" + "x" * 100, 'junk="{;la_who=', "la_who=%00", "la_who=%ff"):
        assert plain.get("/api/session", headers={"Cookie": strange}).json()["who"] in (
            None,
            "\ufffd",
        )
    kept = plain.get("/api/session", headers={"Cookie": 'other={"a":1}; la_who=anna'})
    assert kept.json()["who"] == "anna"


def test_numbers_that_json_has_no_word_for(tmp_path):
    values = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    np.savez(tmp_path / "v.npz", x=values)
    with page(tmp_path / "v.npz", tmp_path / "out", classes=["a", "b"]) as (client, session):
        session.schedule.rounds.append(
            {"labels": 1, "gain": float("nan"), "accuracy": None, "loo_error": float("inf")}
        )
        reply = client.get("/api/progress")
        assert reply.status_code == 200
        assert json.loads(reply.text, parse_constant=pytest.fail)["curve"][0]["gain"] is None
