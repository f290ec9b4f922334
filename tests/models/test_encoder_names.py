"""Names and revisions of encoders, with a hub of our own, a cache and no network."""

import hashlib
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from labelahead.errors import InputError
from labelahead.models.encoder_names import (
    TEXT,
    looks_like_encoder,
    parse_encoder_name,
    resolve_encoder,
)
from labelahead.models.encoders import load_encoder

pytest.importorskip("transformers")


def test_names_are_split_into_their_parts():
    name = parse_encoder_name("hf:google/vit@main#mean")
    assert (name.kind, name.name, name.revision, name.pooling) == (
        "hf",
        "google/vit",
        "main",
        "mean",
    )
    assert str(name) == "hf:google/vit@main#mean"
    assert parse_encoder_name("open_clip:ViT-B-32/laion2b").name == "ViT-B-32/laion2b"
    assert [looks_like_encoder(n) for n in ("facebook/dinov2-small", "timm:resnet18", "raw")] == [
        True,
        True,
        False,
    ]
    assert not looks_like_encoder("file.py:encode")


def test_revision_follows_the_weights(folder, tmp_path):
    before = resolve_encoder(str(folder / "bert"))
    copy = tmp_path / "bert"
    copy.mkdir()
    for path in (folder / "bert").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert resolve_encoder(str(copy)).revision == before.revision
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert resolve_encoder(str(copy)).revision != before.revision


def test_pinned_folder_that_has_moved_is_reported_with_its_path(tmp_path):
    gone = tmp_path / "gone"
    with pytest.raises(InputError, match=r"the encoder was in .*gone, .*--encoder"):
        resolve_encoder(f"hf:{gone}@{'0' * 40}")


def test_hub_cache_is_read_without_a_network(folder, tmp_path, monkeypatch):
    """A repository in the layout of the hub's cache, with HF_HUB_OFFLINE=1."""
    import huggingface_hub.constants as constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--somebody--tiny-bert"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for path in (folder / "bert").iterdir():
        (snapshot / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = resolve_encoder("somebody/tiny-bert")
    assert (found.kind, found.revision) == ("hf", commit)
    with pytest.raises(InputError, match="hf download somebody/other --local-dir"):
        resolve_encoder("somebody/other")


def test_cache_of_the_hub_without_weights_is_refused_in_one_sentence(folder, tmp_path, monkeypatch):
    """As an interrupted download leaves it."""
    import huggingface_hub.constants as constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--somebody--broken"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for path in (folder / "bert").iterdir():
        if path.suffix != ".safetensors":
            (snapshot / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"somebody/broken cannot be loaded .*download it again"):
        load_encoder("somebody/broken", TEXT)


COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


class Hub(BaseHTTPRequestHandler):
    """The part of huggingface.co that answers for single files, on this machine."""

    repository: Path  # of open/tiny

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_content):
        owner, _, rest = self.path.strip("/").partition("/")
        path = self.repository / rest.rpartition("/")[2].partition("?")[0]
        refusals = {"gated": (403, "GatedRepo"), "none": (404, "RepoNotFound")}
        if "/resolve/nosuch/" in self.path:
            refusals["open"] = (404, "RevisionNotFound")
        code, why = refusals.get(owner, (200, "") if path.is_file() else (404, "EntryNotFound"))
        content = path.read_bytes() if code == 200 else b""
        self.send_response(code)
        self.send_header("X-Repo-Commit", COMMIT)
        if why:
            self.send_header("X-Error-Code", why)
        else:
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(folder, tmp_path, monkeypatch):
    """Let huggingface_hub talk to a server of ours."""
    import huggingface_hub.constants as constants

    handler = type("TinyHub", (Hub,), {"repository": folder / "bert"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield
    server.shutdown()


def test_repository_of_a_hub_is_pinned_to_its_commit(hub):
    found = resolve_encoder("open/tiny")
    assert (found.kind, found.revision) == ("hf", COMMIT)
    assert str(found) == f"hf:open/tiny@{COMMIT}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gated/model", "is gated: accept its licence on https://huggingface.co/gated/model"),
        ("none/model", "there is no none/model on huggingface.co, or it is private"),
        ("open/tiny@nosuch", "has no revision 'nosuch'"),
    ],
)
def test_refusals_of_a_hub_are_one_sentence(hub, name, message):
    with pytest.raises(InputError, match=message):
        resolve_encoder(name)


def test_unreachable_hub_is_asked_once_and_reported_in_one_sentence(tmp_path, monkeypatch, capfd):
    import huggingface_hub.constants as constants

    with socket.socket() as free:  # a port that nobody listens on
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(InputError, match="cannot be reached; expected a network"):
        resolve_encoder("somebody/unreachable")
    assert "Retry" not in "".join(capfd.readouterr())


def test_id_without_a_network_is_refused_in_one_sentence_by_the_command(tmp_path):
    """In a process of its own: the hub's library loads its modules when they are first used."""
    (tmp_path / "t.csv").write_text(
        "text,label\nthe cat sat on the mat,x\nthe dog ran after the cat,y\n"
    )
    command = [sys.executable, "-m", "labelahead", "run", "--data", str(tmp_path / "t.csv")]
    done = subprocess.run(
        [*command, "--embedding", "somebody/unreachable"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "run `hf download somebody/unreachable --local-dir FOLDER`" in done.stderr
    assert "Traceback" not in done.stderr
