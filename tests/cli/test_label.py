"""The label command."""

import csv
import os
import re
import signal
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from labelahead.cli import app
from labelahead.errors import InputError, LabelaheadError
from labelahead.server.client import Client
from tests.support.waiting import PATIENCE, until
from tests.support.warm_processes import start_python
from tests.support.web_sessions import CHANGE, page, photos, progress_once

GUIDE = (Path(__file__).parents[2] / "docs" / "labelling.md").read_text()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_label_command_serves_keeps_labels_and_stops_on_signals(tmp_path, monkeypatch):
    photos(tmp_path / "set", 6)
    command = ["-m", "labelahead", "label", "set", "--classes", "cat,dog"]
    for stop, extra in ((signal.SIGINT, []), (signal.SIGTERM, ["--token", "a-long-token"])):
        process = start_python(
            [*command, "--no-browser", "--port", "0", "--model", "mlp", *extra],
            cwd=tmp_path,
            new_session=True,
        )
        try:
            url = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/(\?token=a-long-token)?", url), url
            client = Client(url, who="robot")
            query = client.get_query()
            reply = client.add_answer(query["position"], "dog")
            assert reply["event"]["who"] == "robot"
            client.add_answer(query["position"], "dog", kind="keep")
            kept = [(k["position"], k["who"]) for k in client.list_kept_labels()]
            assert kept[0] == (query["position"], "robot")
            assert len(kept) == (2 if extra else 1)  # the label of the first server is kept
            assert client.list_suspect_labels() == []
            with pytest.raises(InputError, match="no class 'cow'"):
                client.add_answer(query["position"], "cow")
            with pytest.raises(InputError, match="there is no item 99"):
                client.add_answer(99, "dog")
            assert client.get_image(0).startswith(b"\x89PNG")
            if extra:
                with pytest.raises(InputError, match="token"):
                    Client(url.split("?")[0]).session()
                assert client.progress()["labels"] == 2  # the label of the first server is kept
                guide: dict = {}
                exec(re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)[1], guide)
                monkeypatch.chdir(tmp_path)
                guide["annotate"](url, {f"{i:02d}.png": "cat" for i in range(6)})
        finally:
            if stop == signal.SIGINT:  # Ctrl-C reaches the training process as well
                os.killpg(process.pid, stop)
            else:
                process.send_signal(stop)
            output = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 130, output
        assert "all labels are in labels-set" in output
        assert "Traceback" not in output
    with pytest.raises(LabelaheadError, match="cannot be reached"):
        client.session()
    with page(tmp_path / "set", tmp_path / "labels-set") as (_, session):
        assert sorted(session.service.label_state.labels.values()) == [0, 0, 0, 0, 1, 1]
    text = (tmp_path / "labels.csv").read_text()
    assert (text.count("dog,robot"), text.count("cat,robot")) == (2, 4)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_label_command_says_at_its_end_what_guessers_are_worth(tmp_path):
    """The column guesses big for every item; twelve labels alternate, six of them are small."""
    rows = "".join(f"n{i},{i % 2 + i / 100},{i % 3},big\n" for i in range(30))
    (tmp_path / "numbers.csv").write_text("id,a,b,llm\n" + rows)
    words = "label numbers.csv --classes small,big --guesses llm --retrain-every 12"
    process = start_python(
        ["-m", "labelahead", *words.split(), "--no-browser", "--port", "0"],
        cwd=tmp_path,
        new_session=True,
    )
    try:
        client = Client(process.stdout.readline().strip(), who="robot")
        for position in range(12):
            client.add_answer(position, ("small", "big")[position % 2])
        found = until(lambda: (p := client.progress())["guessers"] and p, client.progress)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=PATIENCE)[1]
    (said,) = found["guessers"]
    assert said.startswith("llm: right for 6 of 12 labelled items")
    assert said.endswith("where they are wrong: big for small (6)")
    assert said in output
    assert "all labels are in labels-numbers" in output


def test_labelling_guide_lists_every_option_route_and_client_method(tmp_path):
    for option in typer.main.get_command(app).commands["label"].params:
        names = [n for n in option.opts if n.startswith("--")] or ["photos/"]
        hidden = {
            "--browser": "--no-browser",
            "--target": "target column",
            "--root": "public data set",
        }
        assert any(hidden.get(n, n) in GUIDE for n in names), names
    with page(photos(tmp_path / "set", 2), tmp_path / "out") as (client, _):
        for path, methods in client.get("/api/openapi.json").json()["paths"].items():
            for method in methods:
                assert f"{method.upper()} `{path}" in GUIDE, path
    undocumented = [n for n in vars(Client) if not n.startswith("_") and n not in GUIDE]
    assert undocumented == []


TABLES = {"training": {"steps": 5}}


def run_label_command(folder: Path, out: Path, *more: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["label", str(folder), "--out", str(out), *more])
    return done.exit_code, " ".join(done.output.split())


def send_label(client, position: int, label: int) -> None:
    body = {"position": position, "kind": "label", "label": label}
    assert client.post("/api/answers", json=body, headers=CHANGE).status_code == 200


def wait_until_trained(client, labels: int) -> None:
    progress_once(
        client,
        lambda p: p["curve"] and p["curve"][-1]["labels"] == labels and p["training"]["idle"],
    )


def read_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_export_command_with_rest_predicts_as_the_page_does(tmp_path):
    folder, out = photos(tmp_path / "set", 12), tmp_path / "out"
    given = {"classes": ["light", "dark"], "tables": TABLES}
    with page(folder, out, start=True, retrain_every=4, **given) as (client, _):
        for position in (0, 1, 2, 3):
            send_label(client, position, position % 2)
        wait_until_trained(client, 4)
        send_label(client, 5, 0)  # newer than the last training; the export trains on it too
        live = client.get("/api/export/csv?rest=1").text
        plain = client.get("/api/export/csv?rest=0").content
    with page(folder, out, **given) as (client, session):  # the session, opened again
        session.schedule.restore()
        again = client.get("/api/export/csv?rest=1").content
        tasks = client.get("/api/export/label-studio?rest=1").content

    to = tmp_path / "all.csv"
    code, output = run_label_command(folder, out, "--export", "csv", "--to", str(to), "--rest")
    assert code == 0, output
    assert "5 labels and 7 predictions (by a model of all 5 labels) are in" in output
    assert to.read_bytes() == again
    written = read_rows(to.read_text())
    assert [r["source"] for r in written].count("prediction") == 7
    for mine, page_s in zip(written, read_rows(live), strict=True):
        probability, other = mine.pop("probability"), page_s.pop("probability")
        assert mine == page_s
        assert (probability == other == "") or float(probability) == pytest.approx(float(other))

    to = tmp_path / "tasks.json"
    assert (
        run_label_command(folder, out, "--export", "label-studio", "--to", str(to), "--rest")[0]
        == 0
    )
    assert to.read_bytes() == tasks
    to = tmp_path / "labels.csv"
    code, output = run_label_command(folder, out, "--export", "csv", "--to", str(to))
    assert (code, "5 labels are in" in output) == (0, True)
    assert to.read_bytes() == plain


def test_export_command_with_rest_refuses_labels_of_one_class(tmp_path):
    folder, out = photos(tmp_path / "set", 4), tmp_path / "out"
    with page(folder, out, classes=["a", "b"]) as (client, _):
        send_label(client, 0, 1)
    to = tmp_path / "all.csv"
    (out / "snapshot-00003.pt").write_bytes(b"cut short")
    code, output = run_label_command(folder, out, "--export", "csv", "--to", str(to), "--rest")
    assert code == 1, output
    assert "1 label exists, of 1 class; expected labels of at least two classes" in output
    assert "leave out --rest" in output
    assert not to.exists()
    code, output = run_label_command(folder, out, "--rest")
    assert (code, "--rest goes with --export" in output) == (2, True)
