"""Which classes a session has: those that were named, and those of its record."""

from typer.testing import CliRunner

from labelahead.cli.shell import app
from tests.support.web_sessions import CHANGE, page, photo

NAMES = ("cat", "dog")


def dated(folder, n=4):
    """Photographs in one folder for each month."""
    for k, month in enumerate(("2024-01", "2024-02")):
        for i in range(n):
            photo(folder / month / f"{i}.png", (60 * i, 100 * k, 30))
    return folder


def classes_of(session):
    label_state = session.service.label_state
    return [label_state.classes[c] for c in label_state.active_classes]


def test_dated_folders_do_not_become_classes_when_a_session_goes_on(tmp_path):
    source = dated(tmp_path / "photos")
    with page(source, tmp_path / "out", classes=NAMES) as (client, session):
        assert classes_of(session) == ["cat", "dog"]
        assert client.get("/api/items/0").json()["shown"] == "2024-01/0.png"
        client.post("/api/classes", json={"name": "fox"}, headers=CHANGE)
    with page(source, tmp_path / "out") as (_, session):
        assert classes_of(session) == ["cat", "dog", "fox"]
        assert any(
            "none of the classes cat, dog, fox: 2024-01, 2024-02" in note for note in session.notes
        )
    with page(source, tmp_path / "out", classes=["owl"]) as (_, session):
        assert classes_of(session) == ["cat", "dog", "fox", "owl"]


def test_class_folders_stay_classes_of_a_session_that_renamed_them(tmp_path):
    for name in NAMES:
        for i in range(10):
            photo(tmp_path / "photos" / name / f"{i}.png", (20 * i, 100, 30))
    with page(tmp_path / "photos", tmp_path / "out", test=0.2) as (_, session):
        measured = set(session.service.held_out)
        assert len(measured) == 4
        session.service.journal.change_class("me", "rename", 0, "feline")
    with page(tmp_path / "photos", tmp_path / "out", test=0.2) as (_, session):
        assert classes_of(session) == ["feline", "dog"]
        assert set(session.service.held_out) == measured


def test_names_of_a_session_decide_what_a_label_of_its_table_is(tmp_path):
    labels = ["World", "None", "World;Sport", "Sport"] * 3
    rows = ["v,label", *(f"{i},{label}" for i, label in enumerate(labels))]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    names = ["World", "Sport", "World;Sport", "None"]
    with page(tmp_path / "t.csv", tmp_path / "out", classes=names) as (_, session):
        assert classes_of(session) == names
    with page(tmp_path / "t.csv", tmp_path / "out", start_from_folders=True) as (_, session):
        assert classes_of(session) == names
        assert len(session.service.label_state.labels) == 12


def test_query_takes_dated_folders_with_classes(tmp_path):
    source = dated(tmp_path / "photos")
    options = ["--model", "exact", "--embedding", "raw", "--set", "data.size=8", "--threads", "1"]
    asked = CliRunner().invoke(
        app,
        [
            "query",
            "--data",
            str(source),
            "--classes",
            "cat,dog",
            "--n",
            "3",
            "--out",
            str(tmp_path / "n.csv"),
            *options,
        ],
    )
    assert asked.exit_code == 0, asked.output
    rows = (tmp_path / "n.csv").read_text().splitlines()
    assert len(rows) == 4
    assert all(row.startswith("2024-0") for row in rows[1:])


def test_failed_start_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("v,label\n1,a;b\n2,a\n3,b\n")
    done = CliRunner().invoke(app, ["label", "t.csv", "--no-browser"])
    assert done.exit_code == 1
    assert "several classes per item" in done.output
    assert not (tmp_path / "labels-t").exists()
