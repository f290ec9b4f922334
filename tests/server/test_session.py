"""The classes of a session come from its options and its journal."""

import pytest
from typer.testing import CliRunner

from labelahead.cli.shell import app
from labelahead.learner.config import read_toml
from tests.support.web_sessions import CHANGE, make_dated_folders, page, photo

NAMES = ("cat", "dog")


def active_class_names(session):
    label_state = session.service.label_state
    return [label_state.classes[c] for c in label_state.active_classes]


def test_dated_folders_do_not_become_classes_of_a_reopened_session(tmp_path):
    source = make_dated_folders(tmp_path / "photos")
    with page(source, tmp_path / "out", classes=NAMES) as (client, session):
        assert active_class_names(session) == ["cat", "dog"]
        assert client.get("/api/items/0").json()["shown"] == "2024-01/0.png"
        client.post("/api/classes", json={"name": "fox"}, headers=CHANGE)
    with page(source, tmp_path / "out") as (_, session):
        assert active_class_names(session) == ["cat", "dog", "fox"]
        assert any(
            "none of the classes cat, dog, fox: 2024-01, 2024-02" in note for note in session.notes
        )
    with page(source, tmp_path / "out", classes=["owl"]) as (_, session):
        assert active_class_names(session) == ["cat", "dog", "fox", "owl"]


def test_class_folders_keep_their_renamed_classes_in_a_reopened_session(tmp_path):
    for name in NAMES:
        for i in range(10):
            photo(tmp_path / "photos" / name / f"{i}.png", (20 * i, 100, 30))
    with page(tmp_path / "photos", tmp_path / "out", test=0.2) as (_, session):
        held_out = set(session.service.held_out)
        assert len(held_out) == 4
        session.service.journal.change_class("me", "rename", 0, "feline")
    with page(tmp_path / "photos", tmp_path / "out", test=0.2) as (_, session):
        assert active_class_names(session) == ["feline", "dog"]
        assert set(session.service.held_out) == held_out


def test_class_names_of_a_session_decide_how_table_labels_are_read(tmp_path):
    labels = ["World", "None", "World;Sport", "Sport"] * 3
    rows = ["v,label", *(f"{i},{label}" for i, label in enumerate(labels))]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    names = ["World", "Sport", "World;Sport", "None"]
    with page(tmp_path / "t.csv", tmp_path / "out", classes=names) as (_, session):
        assert active_class_names(session) == names
    with page(tmp_path / "t.csv", tmp_path / "out", start_from_folders=True) as (_, session):
        assert active_class_names(session) == names
        assert len(session.service.label_state.labels) == 12


def test_failed_start_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("v,label\n1,a;b\n2,a\n3,b\n")
    result = CliRunner().invoke(app, ["label", "t.csv", "--no-browser"])
    assert result.exit_code == 1
    assert "several classes per item" in result.output
    assert not (tmp_path / "labels-t").exists()


def write_texts(folder):
    rows = [f'"text number {i} about a trip to the sea, with words",' for i in range(12)]
    (folder / "t.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return folder / "t.csv"


def open_by_command(folder, classes, *words):
    """Open a session by the command, and return the prior that it records and its output.

    A token that cannot be read stops the command after that, before it serves the page.
    """
    stop = ["--token", "@no-such-file", "--out", str(folder / "out")]
    where = ["label", str(write_texts(folder)), "--target", "label", "--classes", classes]
    result = CliRunner().invoke(app, [*where, *words, *stop])
    assert "@no-such-file cannot be read" in result.output
    return read_toml(folder / "out" / "session.toml")["data"]["prior"], result.output


@pytest.mark.parametrize(
    ("classes", "words", "prior"),
    [
        ("travel,kitchen", (), "class-names"),
        ("travel,kitchen", ("--prior", "none"), "none"),
        ("travel,kitchen", ("--set", "data.prior=none"), "none"),
        ("travel,kitchen", ("--embedding", "words"), "none"),
        ("0,1", (), "none"),
    ],
)
def test_new_session_of_texts_starts_from_class_names_that_are_words(
    tmp_path, classes, words, prior
):
    found, output = open_by_command(tmp_path, classes, *words)
    assert found == prior
    assert ("--prior none does without" in output) == (prior == "class-names")


def test_session_without_settings_or_with_another_prior_keeps_it(tmp_path):
    def read_prior(*words):
        return open_by_command(tmp_path, "travel,kitchen", *words)[0]

    assert read_prior("--prior", "none") == "none"
    assert read_prior() == "none"  # as this session began
    (tmp_path / "out" / "session.toml").unlink()  # earlier versions wrote none
    assert read_prior() == "none"
    assert read_prior("--prior", "class-names") == "class-names"
    assert read_prior() == "class-names"
    assert read_prior("--embedding", "words") == "none"  # which does not read class names


@pytest.mark.parametrize("chosen", [True, False])
def test_only_the_command_chooses_a_prior(tmp_path, chosen):
    tables = {"model": {}, "data": {"name": str(write_texts(tmp_path)), "target": "label"}}
    options = {"classes": ["travel", "kitchen"], "choose_prior": chosen}
    with page(tmp_path / "t.csv", tmp_path / "out", tables=tables, **options) as (_, session):
        assert session.schedule.campaign.data.has_guesses == chosen
