"""The command line as a stranger uses it, mostly in this process."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from labelahead.cli import app
from tests.support.waiting import PATIENCE, Gate, until

runner = CliRunner()
QUICK = [
    "--model=mlp",
    "--width=8",
    "--labels=24",
    "--initial=12",
    "--retrain-every=6",
    "--threads=1",
    "--set=training.steps=10",
    "--set=data.limit=150",
]


def invoke(*arguments):
    return runner.invoke(app, [str(a) for a in arguments])


def table(path, n=40, labelled=0):
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "b", "colour", "label"])
        for i in range(n):
            y = i % 2
            label = ("yes", "no")[y] if i < labelled else ""
            rows.writerow([rng.normal() + 3 * y, rng.normal(), ("red", "blue")[i % 2], label])
    return path


def test_run_resume_and_what_is_left_behind(tmp_path):
    folder = tmp_path / "a"
    done = invoke("run", *QUICK, "--out", folder)
    assert done.exit_code == 0, done.output
    assert "test accuracy" in done.output
    assert str(folder) in done.output.replace("\n", "")
    for name in ("config.toml", "labels.jsonl", "rounds.jsonl", "curve.png", "data.json"):
        assert (folder / name).stat().st_size > 0
    with Image.open(folder / "curve.png") as picture:
        assert picture.size[0] > 600
    again = invoke("run", *QUICK, "--out", folder)
    assert again.exit_code == 1
    assert "resume" in again.output
    whole = (folder / "labels.jsonl").read_bytes()
    assert invoke("resume", folder).exit_code == 0
    assert (folder / "labels.jsonl").read_bytes() == whole


def test_a_budget_that_nobody_chose_is_no_larger_than_the_pool(tmp_path):
    path = table(tmp_path / "t.csv", 60, labelled=60)
    asked = ("run", "--data", path, "--threads=1")
    done = invoke(*asked, "--out", tmp_path / "a")
    assert done.exit_code == 0, done.output
    assert "the pool has 48 items: 30 labels are queried, not 100" in " ".join(done.output.split())
    assert (
        json.loads((tmp_path / "a" / "rounds.jsonl").read_text().splitlines()[-1])["labels"] == 30
    )
    for chosen in (("--labels", 100), ("--set", "budget.labels=100")):
        refused = invoke(*asked, *chosen, "--out", tmp_path / "b")
        assert refused.exit_code == 1
        assert "labels is 100, but the pool has 48 items" in " ".join(refused.output.split())


def test_a_table_without_labels_is_told_how_to_name_its_column(tmp_path):
    path = tmp_path / "news.csv"
    path.write_text("a,topic\n" + "\n".join(f"{i},{'xy'[i % 2]}" for i in range(40)))
    refused = invoke("run", "--data", path, "--out", tmp_path / "a")
    assert refused.exit_code == 1
    assert "--target (data.target), one of a, topic" in " ".join(refused.output.split())
    asked = invoke(
        "query",
        "--data",
        path,
        "--classes",
        "x,y",
        "--n",
        3,
        "--set",
        "data.without=topic",
        "--threads=1",
    )
    assert asked.exit_code == 0, asked.output
    assert "1 numeric and 0 categorical columns became 1 numbers a row: a (" in " ".join(
        asked.output.split()
    )
    assert "left out: topic" in asked.output


def test_against_another_until_it_is_as_good(tmp_path):
    done = invoke(
        "run", *QUICK, "--set=training.steps=60", "--against", "random", "--out", tmp_path / "a"
    )
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    ours = [
        float(r["accuracy"])
        for r in map(json.loads, (tmp_path / "a" / "rounds.jsonl").read_text().splitlines())
    ]
    rows = re.findall(
        r"^ +(\d+) +([\d.]+) % +([\d.]+) %$", done.output, re.MULTILINE
    )  # both, side by side
    assert [row[1] for row in rows] == [f"{100 * value:.1f}" for value in ours]
    assert rows[0][1] == rows[0][2]  # the same first labels, the same weights
    lines = re.findall(r"random round +\d+ +(\d+) labels test accuracy ([\d.]+)%", text)
    theirs = {int(n): float(right) for n, right in lines}
    there = [n for n, right in theirs.items() if right >= round(100 * ours[-1], 1)]
    said = (
        f"random needed {there[0]} labels."
        if there
        else f"random did not reach it with {max(theirs)} labels"
    )
    assert said in text
    assert max(theirs) == max(24, *(there or [4 * 24])[:1])  # it stops then
    assert "This compares one campaign each" in text
    assert "`--seeds 3` runs three pairs" in text
    wrong = invoke("run", *QUICK, "--against", "randon")
    assert wrong.exit_code == 2
    assert "did you mean" in wrong.output


def test_several_seeds_give_a_ratio_with_an_interval_and_can_be_resumed(tmp_path):
    given = [
        "run",
        *QUICK,
        "--model=exact",
        "--against",
        "random",
        "--seeds",
        2,
        "--out",
        tmp_path / "a",
    ]
    done = invoke(*given)
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "campaign 1 of 4: flip, seed 0" in text
    assert re.search(r"campaign 4 of 4: random, seed 1 \(about \d+ s left, until \d\d:\d\d\)", text)
    said = re.search(
        r"random needed (at least )?[\d.]+ times as many labels as flip \(95 % interval .* 2 "
        r"seeds\)",
        text,
    )
    assert said
    again = invoke("resume", tmp_path / "a")
    assert again.exit_code == 0, again.output
    assert said[0] in " ".join(again.output.split())
    assert invoke(*given).exit_code == 1  # the folder is in use
    alone = invoke("run", *QUICK, "--seeds", 2)
    assert alone.exit_code == 2
    assert "--seeds goes with --against" in alone.output
    changed = invoke("resume", tmp_path / "a", "--labels", 30)
    assert changed.exit_code == 2


def test_default_folders_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert invoke("run", *QUICK).exit_code == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "digits-flip-0",
        "digits-flip-0-2",
    ]


def test_a_strategy_of_your_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = (
        "from labelahead.acquisition import flip\n\ndef mine(view, rng):\n    return flip(view)\n"
    )
    Path("own.py").write_text(code)
    done = invoke("run", *QUICK, "--strategy", "own.py:mine")
    assert done.exit_code == 0, done.output
    assert invoke("run", *QUICK).exit_code == 0
    labels = [
        Path("runs", name, "labels.jsonl").read_text().splitlines()
        for name in ("digits-mine-0", "digits-flip-0")
    ]
    own, named = ([json.loads(line)["position"] for line in lines] for lines in labels)
    assert own == named
    assert str(tmp_path / "own.py:mine") in Path("runs/digits-mine-0/config.toml").read_text()


def test_a_strategy_of_any_name_stays_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "from labelahead.strategies.base import QueryBatch, Strategy\n"
        "def first(s, q, rng, mode, oracle):\n    return QueryBatch(s.candidates[:q], "
        "s.candidates[:q].double())\n"
        "mine = Strategy('../../a b/[c]:*', '', '', first)\n"
    )
    done = invoke("run", *QUICK, "--strategy", "own.py:mine")
    assert done.exit_code == 0, done.output
    assert [p.name for p in Path("runs").iterdir()] == ["digits-..-..-a b-[c]--0"]


@pytest.mark.parametrize("what", ["strategies", "models", "data"])
def test_lists(what):
    from labelahead.data import DATASETS
    from labelahead.models import MODELS
    from labelahead.strategies import STRATEGIES

    members = {"strategies": STRATEGIES, "models": MODELS, "data": DATASETS}[what]
    done = invoke("list", what)
    assert done.exit_code == 0
    words = done.output.split()
    assert all(name in words for name in members)


def test_all_that_there_is_by_name():
    from labelahead.strategies import STRATEGIES

    done = invoke("list")
    assert done.exit_code == 0, done.output
    words = done.output.replace(",", " ").split()
    assert {
        *STRATEGIES,
        "mlp",
        "exact",
        "digits",
        "strategies",
        "models",
        "embeddings",
        "data",
    } <= set(words)


COMMANDS = ("run", "resume", "query", "list", "compare", "report", "label")


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_the_light_core_says_what_its_command_line_needs(module):
    code = f"import sys; sys.modules[{module!r}] = None; import labelahead.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "the command line needs more packages: pip install 'labelahead[app]'\n"


def test_every_command_is_there():
    overview = invoke("--help").output
    assert [name for name in COMMANDS if f" {name} " not in overview] == []


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_shows_examples(command):
    done = invoke(*command, "--help")
    assert done.exit_code == 0
    if command:
        assert f"labelahead {command[0]}" in done.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "--strategy", "flop"], 2, "did you mean 'flip'"),
        (["run", "--set", "budget.lables=3"], 2, "did you mean 'labels'"),
        (["run", "--set", "nonsense"], 2, "KEY=VALUE"),
        (["run", "--labels", "x"], 2, "--labels"),
        (["run", "--labels", "5"], 2, "labels is 5"),
        (["run", "--nonsense"], 2, "No such option"),
        (["run", "--config", "/none.toml"], 2, "does not exist"),
        (["run", "--data", "mnits"], 1, "mnist"),
        (["run", "--model", "cn"], 2, "cnn"),
        (["run", "--set", "training.rate=-1"], 2, "rate is -1"),
        (["run", "--set", "device=warp"], 1, "device is 'warp'"),
        (["query", "--data", "digits", "--out", "nowhere/x.csv"], 2, "a folder that exists"),
        (["run", "--model", "nowhere:net"], 1, "nowhere"),
        (["run", "--labels", "5000"], 1, "the pool has"),
        (["resume", "/nowhere"], 2, "contains no campaign"),
        (["list", "things"], 2, "strategies"),
        (["query", "--data", "/nowhere.csv"], 1, "/nowhere.csv"),
        (["query", "--data", "digits", "--format", "xml"], 2, "csv or json"),
        (["query", "--data", "digits", "--n", "0"], 2, "--n"),
        (["query", "--data", "digits", "--classes", "cat,Cat"], 1, "expected every class once"),
        (["run", "--data", "digits", "--target", "y"], 1, "target"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_wrong_usage_is_one_clear_sentence(arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert done.exit_code == code, done.output
    assert message in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output
    assert not list(tmp_path.iterdir())  # nothing begun is left behind


def test_query_a_table(tmp_path):
    data = table(tmp_path / "t.csv", labelled=6)
    done = invoke("query", "--data", data, "--n", 3, "--threads", 1)
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) == 3
    assert all(int(r["position"]) >= 6 for r in rows)
    assert {r["prediction"] for r in rows} <= {"yes", "no"}
    found = tmp_path / "next.json"
    done = invoke("query", "--data", data, "--n", 3, "--format", "json", "--out", found)
    assert done.exit_code == 0
    assert [r["position"] for r in json.loads(found.read_text())] == [
        int(r["position"]) for r in rows
    ]


def test_query_a_table_returns_its_texts(tmp_path):
    said = [
        f"Post {i}: the arm cannot\nlift its own weight, {'again and ' * 40}again."
        for i in range(5)
    ]
    with (tmp_path / "posts.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                ["text"],
                *([t] for t in ["=1+1 is the sum that nobody would run here, really", *said]),
            ]
        )
    arguments = (
        "query",
        "--data",
        tmp_path / "posts.csv",
        "--n",
        6,
        "--classes",
        "a,b",
        "--embedding",
        "words",
    )
    rows = list(csv.DictReader(io.StringIO(invoke(*arguments).stdout)))
    texts = {int(r["position"]): r["text"] for r in rows}
    assert (
        texts.pop(0) == "'=1+1 is the sum that nobody would run here, really"
    )  # no formula in a spreadsheet
    assert texts == {i + 1: text for i, text in enumerate(said)}
    whole = {
        row["position"]: row["text"]
        for row in json.loads(invoke(*arguments, "--format", "json").stdout)
    }
    assert whole == {0: "=1+1 is the sum that nobody would run here, really", **texts}


def test_query_before_the_first_label(tmp_path):
    done = invoke("query", "--data", table(tmp_path / "t.csv"), "--n", 4, "--classes", "yes,no")
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len({r["position"] for r in rows}) == 4
    assert {r["prediction"] for r in rows} == {""}


def test_query_a_folder_with_your_own_network(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(12):
        pixels = rng.integers(0, 120, (20, 24, 3)) + 100 * (i % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(photos / f"{i:02d}.png")
    (photos / "broken.png").write_bytes(b"not a picture")
    labels = tmp_path / "labels.csv"
    labels.write_text("item,label\n00.png,dark\n01.png,bright\n02.png,dark\n")
    (tmp_path / "mynet.py").write_text(
        "from torch import nn\n"
        "def make(shape, classes):\n"
        "    size = shape[0] * shape[1] * shape[2]\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(size, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = invoke(
        "query",
        "--data",
        photos,
        "--labels",
        labels,
        "--model",
        "mynet:make",
        "--n",
        5,
        "--threads",
        1,
    )
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) == 5
    assert not {r["id"] for r in rows} & {"00.png", "01.png", "02.png", "broken.png"}
    assert "broken.png" in done.stderr


def photos(folder, names):
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 16, 3)).astype(np.uint8)).save(folder / name)
    return folder


def items(done):
    assert done.exit_code == 0, done.output
    return [r["id"] for r in csv.DictReader(done.stdout.splitlines())]


SMALL = ["--model", "mlp", "--width", "8", "--threads", "1", "--set", "training.steps=3"]


def test_query_leaves_the_test_part_alone(tmp_path):
    names = [f"{part}/{c}/{i}.png" for part in ("train", "test") for c in "ab" for i in range(3)]
    folder = photos(tmp_path / "p", [*names, *(f"unlabelled/{i}.png" for i in range(4))])
    done = invoke("query", "--data", folder, "--n", 4, *SMALL)
    assert all(name.startswith("unlabelled/") for name in items(done))
    assert "6 labels belong to the test part" in done.stderr


def test_query_adds_a_label_file_to_what_the_data_say(tmp_path):
    folder = photos(
        tmp_path / "p", ["a/1.png", "b/2.png", *(f"unlabelled/{i}.png" for i in range(5))]
    )
    labels = tmp_path / "l.csv"
    labels.write_text("item,label\nunlabelled/0.png,a\nunlabelled/1.png,\n")
    done = invoke("query", "--data", folder, "--labels", labels, "--n", 4, *SMALL)
    assert sorted(items(done)) == [f"unlabelled/{i}.png" for i in range(1, 5)]
    labels.write_text("item,label\na/1.png,b\n")
    done = invoke("query", "--data", folder, "--labels", labels, *SMALL)
    assert done.exit_code == 1
    assert "expected one label" in done.output


def test_query_checks_classes_when_they_are_named(tmp_path):
    folder = photos(tmp_path / "p", [f"{i}.png" for i in range(6)])
    labels = tmp_path / "l.csv"
    labels.write_text("file,label\n0.png,cat\n1.png,dgo\n")
    done = invoke("query", "--data", folder, "--labels", labels, "--classes", "cat,dog", *SMALL)
    assert done.exit_code == 1
    assert "did you mean 'dog'" in " ".join(done.output.split())


def test_query_does_as_told_before_the_first_label(tmp_path):
    folder = photos(tmp_path / "p", [f"{i:02d}.png" for i in range(30)])
    by = {
        s: items(invoke("query", "--data", folder, "--n", 8, "--strategy", s, *SMALL))
        for s in ("flip", "resolve", "variance", "random", "coreset")
    }
    assert by["flip"] == by["resolve"]
    assert by["random"] != by["variance"]
    assert by["coreset"] != by["variance"]
    assert len({tuple(chosen) for chosen in by.values()}) == 4  # the others do as they are told


def test_a_broken_photo_takes_its_label_with_it(tmp_path, caplog):
    folder = photos(tmp_path / "p", [f"{i}.png" for i in range(6)])
    (folder / "3.png").write_bytes(b"broken")
    labels = tmp_path / "l.csv"
    labels.write_text("filename,label\n0.png,a\n1.png,b\n3.png,a\n")
    assert len(items(invoke("query", "--data", folder, "--labels", labels, "--n", 2, *SMALL))) == 2
    assert "left out" in caplog.text


def test_results_inside_the_data_are_not_data(tmp_path, monkeypatch):
    folder = photos(tmp_path / "p", [f"{c}/{i}.png" for c in "ab" for i in range(12)])
    monkeypatch.chdir(folder)
    more = ["--initial", "4", "--labels", "8", "--retrain-every", "2"]
    assert invoke("run", "--data", ".", *SMALL, *more).exit_code == 0
    assert (folder / "runs").exists()
    monkeypatch.chdir(tmp_path)  # and it is resumed from anywhere
    found = next((folder / "runs").iterdir())
    done = invoke("resume", found)
    assert done.exit_code == 0, done.output
    moved = folder.rename(tmp_path / "moved")
    found = next((moved / "runs").iterdir())
    assert invoke("resume", found).exit_code == 1
    done = invoke("resume", found, "--data", moved, "--labels", "10")
    assert done.exit_code == 0, done.output
    assert len((found / "labels.jsonl").read_text().splitlines()) == 10


def test_names_that_look_like_markup_or_mathematics(tmp_path):
    folder = photos(tmp_path / "my $x^^_$ é", [f"{c}/{i}.png" for c in "ab" for i in range(8)])
    more = ["--initial", "4", "--labels", "6", "--retrain-every", "2", "--out", tmp_path / "r[red]"]
    done = invoke("run", "--data", folder, *SMALL, *more)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "r[red]" / "curve.png").exists()


CELLS = st.text(max_size=6) | st.sampled_from(
    ["", "1", "-2.5", "nan", "inf", "yes", "no", '"', "\0"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(st.lists(CELLS, max_size=4), max_size=8), name=st.sampled_from(["csv", "tsv"]))
def test_broken_tables(rows, name, tmp_path_factory):
    folder = tmp_path_factory.mktemp("t")
    path = folder / f"t.{name}"
    path.write_text("\n".join(",".join(r) for r in rows), encoding="utf-8", errors="replace")
    done = invoke(
        "query", "--data", path, "--n", 1, "--set", "training.steps=2", "--out", folder / "next.csv"
    )
    calm(done)
    assert done.exit_code == 0 or not (folder / "next.csv").exists()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=60) | st.lists(st.lists(CELLS, max_size=3), max_size=5))
def test_broken_label_files(content, tmp_path_factory):
    folder = tmp_path_factory.mktemp("l")
    data, labels = table(folder / "t.csv", n=8), folder / "labels.csv"
    if isinstance(content, bytes):
        labels.write_bytes(content)
    else:
        text = "item,label\n" + "\n".join(",".join(r) for r in content)
        labels.write_text(text, encoding="utf-8", errors="replace")
    done = invoke(
        "query",
        "--data",
        data,
        "--labels",
        labels,
        "--n",
        1,
        "--classes",
        "yes,no",
        "--set",
        "training.steps=2",
    )
    calm(done)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    files=st.lists(
        st.tuples(
            st.sampled_from(["a.png", "b.jpg", "c.gif", "sub/d.png", ".hidden.png", "e.txt"]),
            st.binary(max_size=40),
        ),
        max_size=5,
    )
)
def test_broken_image_folders(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("f")
    for name, content in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    calm(invoke("query", "--data", folder, "--n", 1, "--classes", "a,b", "--model", "mlp"))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=60))
def test_broken_configuration_files(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("c")
    (folder / "c.toml").write_text(text, encoding="utf-8", errors="replace")
    done = invoke("run", "--config", folder / "c.toml", "--labels", "nine")
    assert done.exit_code == 2
    done = invoke("query", "--data", folder, "--config", folder / "c.toml")
    calm(done)


def calm(done) -> None:
    """No traceback, an exit code of ours, and a sentence when it failed."""
    assert done.exit_code in (0, 1, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output
    assert "--debug" not in done.output, done.output
    if done.exit_code:
        assert "error" in done.output.lower()


def start(*arguments, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "labelahead", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_interrupted_by_the_keyboard(tmp_path):
    gate = Gate(tmp_path, begun=tmp_path / "a" / "rounds.jsonl")
    process = start(
        "run", *QUICK, "--model", gate.model, "--labels", "40", "--out", "a", cwd=tmp_path
    )
    until(lambda: (tmp_path / "a" / "rounds.jsonl").exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, (out, err)
    assert "labelahead resume a" in err
    assert "Traceback" not in out + err
    count = len((tmp_path / "a" / "labels.jsonl").read_text().splitlines())
    gate.open()
    done = start("resume", "a", cwd=tmp_path)
    out, err = done.communicate(timeout=PATIENCE)
    assert done.returncode == 0, err
    assert len((tmp_path / "a" / "labels.jsonl").read_text().splitlines()) == 40 > count


def test_a_traceback_only_when_asked_for(tmp_path):
    process = start("--debug", "run", "--data", "nowhere", cwd=tmp_path)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "Traceback" in err
