"""The command line, mostly called in this process."""

import csv
import io
import json
import re
import signal
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from labelahead.cli import app
from tests.support.command_line import check_no_traceback, invoke, start_command
from tests.support.waiting import PATIENCE, Gate, until
from tests.support.web_sessions import make_dated_folders

QUICK_RUN = [
    "--model=mlp",
    "--width=8",
    "--labels=24",
    "--initial=12",
    "--retrain-every=6",
    "--threads=1",
    "--set=training.steps=10",
    "--set=data.limit=150",
]


def write_table(path, n=40, labelled=0):
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["a", "b", "colour", "label"])
        for i in range(n):
            y = i % 2
            label = ("yes", "no")[y] if i < labelled else ""
            rows.writerow([rng.normal() + 3 * y, rng.normal(), ("red", "blue")[i % 2], label])
    return path


def test_run_writes_its_folder_and_resume_keeps_a_finished_run(tmp_path):
    folder = tmp_path / "a"
    result = invoke("run", *QUICK_RUN, "--out", folder)
    assert result.exit_code == 0, result.output
    assert "test accuracy" in result.output
    assert str(folder) in result.output.replace("\n", "")
    for name in ("config.toml", "labels.jsonl", "rounds.jsonl", "curve.png", "data.json"):
        assert (folder / name).stat().st_size > 0
    with Image.open(folder / "curve.png") as image:
        assert image.size[0] > 600
    repeated = invoke("run", *QUICK_RUN, "--out", folder)
    assert repeated.exit_code == 1
    assert "resume" in repeated.output
    labels = (folder / "labels.jsonl").read_bytes()
    assert invoke("resume", folder).exit_code == 0
    assert (folder / "labels.jsonl").read_bytes() == labels


def test_run_limits_the_default_budget_to_the_pool_and_refuses_a_larger_one(tmp_path):
    path = write_table(tmp_path / "t.csv", 60, labelled=60)
    arguments = ("run", "--data", path, "--threads=1")
    result = invoke(*arguments, "--out", tmp_path / "a")
    assert result.exit_code == 0, result.output
    assert "the pool has 48 items: 30 labels are queried, not 100" in " ".join(
        result.output.split()
    )
    assert (
        json.loads((tmp_path / "a" / "rounds.jsonl").read_text().splitlines()[-1])["labels"] == 30
    )
    for chosen in (("--labels", 100), ("--set", "budget.labels=100")):
        refused = invoke(*arguments, *chosen, "--out", tmp_path / "b")
        assert refused.exit_code == 1
        assert "labels is 100, but the pool has 48 items" in " ".join(refused.output.split())


def test_run_on_a_table_without_labels_names_the_target_option(tmp_path):
    path = tmp_path / "news.csv"
    path.write_text("a,topic\n" + "\n".join(f"{i},{'xy'[i % 2]}" for i in range(40)))
    refused = invoke("run", "--data", path, "--out", tmp_path / "a")
    assert refused.exit_code == 1
    assert "--target (data.target), one of a, topic" in " ".join(refused.output.split())
    query = invoke(
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
    assert query.exit_code == 0, query.output
    assert "1 numeric and 0 categorical columns became 1 numbers a row: a (" in " ".join(
        query.output.split()
    )
    assert "left out: topic" in query.output


def test_run_against_a_baseline_stops_when_it_is_as_good(tmp_path):
    result = invoke(
        "run", *QUICK_RUN, "--set=training.steps=60", "--against", "random", "--out", tmp_path / "a"
    )
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    accuracies = [
        float(r["accuracy"])
        for r in map(json.loads, (tmp_path / "a" / "rounds.jsonl").read_text().splitlines())
    ]
    rows = re.findall(
        r"^ +(\d+) +([\d.]+) % +([\d.]+) %$", result.output, re.MULTILINE
    )  # strategy and baseline side by side
    assert [row[1] for row in rows] == [f"{100 * value:.1f}" for value in accuracies]
    assert rows[0][1] == rows[0][2]  # same seed set and initial weights
    lines = re.findall(r"random round +\d+ +(\d+) labels test accuracy ([\d.]+)%", text)
    baseline_accuracies = {int(n): float(right) for n, right in lines}
    reached = [
        n for n, right in baseline_accuracies.items() if right >= round(100 * accuracies[-1], 1)
    ]
    expected = (
        f"random needed {reached[0]} labels."
        if reached
        else f"random did not reach it with {max(baseline_accuracies)} labels"
    )
    assert expected in text
    assert max(baseline_accuracies) == max(
        24, *(reached or [4 * 24])[:1]
    )  # the baseline stops there
    assert "This compares one campaign each" in text
    assert "`--seeds 3` runs three pairs" in text
    wrong = invoke("run", *QUICK_RUN, "--against", "randon")
    assert wrong.exit_code == 2
    assert "did you mean" in wrong.output


def test_run_against_a_baseline_with_several_seeds_prints_a_ratio_and_can_be_resumed(tmp_path):
    arguments = [
        "run",
        *QUICK_RUN,
        "--model=exact",
        "--against",
        "random",
        "--seeds",
        2,
        "--out",
        tmp_path / "a",
    ]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "campaign 1 of 4: flip, seed 0" in text
    assert re.search(r"campaign 4 of 4: random, seed 1 \(about \d+ s left, until \d\d:\d\d\)", text)
    ratio = re.search(
        r"random needed (at least )?[\d.]+ times as many labels as flip \(95 % interval .* 2 "
        r"seeds\)",
        text,
    )
    assert ratio
    resumed = invoke("resume", tmp_path / "a")
    assert resumed.exit_code == 0, resumed.output
    assert ratio[0] in " ".join(resumed.output.split())
    assert invoke(*arguments).exit_code == 1  # the folder is in use
    without_baseline = invoke("run", *QUICK_RUN, "--seeds", 2)
    assert without_baseline.exit_code == 2
    assert "--seeds goes with --against" in without_baseline.output
    changed = invoke("resume", tmp_path / "a", "--labels", 30)
    assert changed.exit_code == 2


def test_run_default_folders_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert invoke("run", *QUICK_RUN).exit_code == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "digits-flip-0",
        "digits-flip-0-2",
    ]


def test_run_accepts_a_custom_acquisition_function(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = (
        "from labelahead.acquisition import flip\n\ndef mine(view, rng):\n    return flip(view)\n"
    )
    Path("own.py").write_text(code)
    result = invoke("run", *QUICK_RUN, "--strategy", "own.py:mine")
    assert result.exit_code == 0, result.output
    assert invoke("run", *QUICK_RUN).exit_code == 0
    labels = [
        Path("runs", name, "labels.jsonl").read_text().splitlines()
        for name in ("digits-mine-0", "digits-flip-0")
    ]
    own, named = ([json.loads(line)["position"] for line in lines] for lines in labels)
    assert own == named
    assert str(tmp_path / "own.py:mine") in Path("runs/digits-mine-0/config.toml").read_text()


def test_run_folder_name_of_a_custom_strategy_is_safe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "from labelahead.strategies.base import QueryBatch, Strategy\n"
        "def first(s, q, rng, mode, oracle):\n    return QueryBatch(s.candidates[:q], "
        "s.candidates[:q].double())\n"
        "mine = Strategy('../../a b/[c]:*', '', '', first)\n"
    )
    result = invoke("run", *QUICK_RUN, "--strategy", "own.py:mine")
    assert result.exit_code == 0, result.output
    assert [p.name for p in Path("runs").iterdir()] == ["digits-..-..-a b-[c]--0"]


def test_query_of_a_table_predicts_unlabelled_rows_in_csv_and_json(tmp_path):
    data = write_table(tmp_path / "t.csv", labelled=6)
    result = invoke("query", "--data", data, "--n", 3, "--threads", 1)
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 3
    assert all(int(r["position"]) >= 6 for r in rows)
    assert {r["prediction"] for r in rows} <= {"yes", "no"}
    json_path = tmp_path / "next.json"
    result = invoke("query", "--data", data, "--n", 3, "--format", "json", "--out", json_path)
    assert result.exit_code == 0
    assert [r["position"] for r in json.loads(json_path.read_text())] == [
        int(r["position"]) for r in rows
    ]


def test_query_of_a_table_returns_whole_texts_without_formulas(tmp_path):
    posts = [
        f"Post {i}: the arm cannot\nlift its own weight, {'again and ' * 40}again."
        for i in range(5)
    ]
    with (tmp_path / "posts.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                ["text"],
                *([t] for t in ["=1+1 is the sum that nobody would run here, really", *posts]),
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
    )  # escaped against spreadsheet formulas
    assert texts == {i + 1: text for i, text in enumerate(posts)}
    json_texts = {
        row["position"]: row["text"]
        for row in json.loads(invoke(*arguments, "--format", "json").stdout)
    }
    assert json_texts == {0: "=1+1 is the sum that nobody would run here, really", **texts}


def test_query_without_labels_makes_no_prediction(tmp_path):
    result = invoke(
        "query", "--data", write_table(tmp_path / "t.csv"), "--n", 4, "--classes", "yes,no"
    )
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len({r["position"] for r in rows}) == 4
    assert {r["prediction"] for r in rows} == {""}


def test_query_of_a_folder_accepts_a_custom_network_and_a_label_file(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(12):
        pixels = rng.integers(0, 120, (20, 24, 3)) + 100 * (i % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i:02d}.png")
    (folder / "broken.png").write_bytes(b"not a picture")
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
    result = invoke(
        "query",
        "--data",
        folder,
        "--labels",
        labels,
        "--model",
        "mynet:make",
        "--n",
        5,
        "--threads",
        1,
    )
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 5
    assert not {r["id"] for r in rows} & {"00.png", "01.png", "02.png", "broken.png"}
    assert "broken.png" in result.stderr


def write_images(folder, names):
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 16, 3)).astype(np.uint8)).save(folder / name)
    return folder


def read_ids(result):
    assert result.exit_code == 0, result.output
    return [r["id"] for r in csv.DictReader(result.stdout.splitlines())]


SMALL_MODEL = ["--model", "mlp", "--width", "8", "--threads", "1", "--set", "training.steps=3"]


def test_query_excludes_items_of_the_test_part(tmp_path):
    names = [f"{part}/{c}/{i}.png" for part in ("train", "test") for c in "ab" for i in range(3)]
    folder = write_images(tmp_path / "p", [*names, *(f"unlabelled/{i}.png" for i in range(4))])
    result = invoke("query", "--data", folder, "--n", 4, *SMALL_MODEL)
    assert all(name.startswith("unlabelled/") for name in read_ids(result))
    assert "6 labels are of test items" in result.stderr


def test_query_adds_a_label_file_to_the_labels_of_the_data(tmp_path):
    folder = write_images(
        tmp_path / "p", ["a/1.png", "b/2.png", *(f"unlabelled/{i}.png" for i in range(5))]
    )
    labels = tmp_path / "l.csv"
    labels.write_text("item,label\nunlabelled/0.png,a\nunlabelled/1.png,\n")
    result = invoke("query", "--data", folder, "--labels", labels, "--n", 4, *SMALL_MODEL)
    assert sorted(read_ids(result)) == [f"unlabelled/{i}.png" for i in range(1, 5)]
    labels.write_text("item,label\na/1.png,b\n")
    result = invoke("query", "--data", folder, "--labels", labels, *SMALL_MODEL)
    assert result.exit_code == 1
    assert "expected one label" in result.output


def test_query_refuses_labels_outside_the_named_classes(tmp_path):
    folder = write_images(tmp_path / "p", [f"{i}.png" for i in range(6)])
    labels = tmp_path / "l.csv"
    labels.write_text("file,label\n0.png,cat\n1.png,dgo\n")
    result = invoke(
        "query", "--data", folder, "--labels", labels, "--classes", "cat,dog", *SMALL_MODEL
    )
    assert result.exit_code == 1
    assert "did you mean 'dog'" in " ".join(result.output.split())


def test_query_without_labels_uses_the_given_strategy(tmp_path):
    folder = write_images(tmp_path / "p", [f"{i:02d}.png" for i in range(30)])
    chosen_by = {
        s: read_ids(invoke("query", "--data", folder, "--n", 8, "--strategy", s, *SMALL_MODEL))
        for s in ("flip", "resolve", "variance", "random", "coreset")
    }
    assert chosen_by["flip"] == chosen_by["resolve"]
    assert chosen_by["random"] != chosen_by["variance"]
    assert chosen_by["coreset"] != chosen_by["variance"]
    assert len({tuple(ids) for ids in chosen_by.values()}) == 4  # only flip falls back to resolve


def test_query_leaves_out_unreadable_images_with_their_labels(tmp_path, caplog):
    folder = write_images(tmp_path / "p", [f"{i}.png" for i in range(6)])
    (folder / "3.png").write_bytes(b"broken")
    labels = tmp_path / "l.csv"
    labels.write_text("filename,label\n0.png,a\n1.png,b\n3.png,a\n")
    assert (
        len(read_ids(invoke("query", "--data", folder, "--labels", labels, "--n", 2, *SMALL_MODEL)))
        == 2
    )
    assert "was excluded from the data" in caplog.text


def test_run_folder_inside_the_data_is_not_read_as_data(tmp_path, monkeypatch):
    folder = write_images(tmp_path / "p", [f"{c}/{i}.png" for c in "ab" for i in range(12)])
    monkeypatch.chdir(folder)
    options = ["--initial", "4", "--labels", "8", "--retrain-every", "2"]
    assert invoke("run", "--data", ".", *SMALL_MODEL, *options).exit_code == 0
    assert (folder / "runs").exists()
    monkeypatch.chdir(tmp_path)  # resume works from any folder
    run_folder = next((folder / "runs").iterdir())
    result = invoke("resume", run_folder)
    assert result.exit_code == 0, result.output
    moved = folder.rename(tmp_path / "moved")
    run_folder = next((moved / "runs").iterdir())
    assert invoke("resume", run_folder).exit_code == 1
    result = invoke("resume", run_folder, "--data", moved, "--labels", "10")
    assert result.exit_code == 0, result.output
    assert len((run_folder / "labels.jsonl").read_text().splitlines()) == 10


def test_run_accepts_folder_names_with_markup(tmp_path):
    folder = write_images(
        tmp_path / "my $x^^_$ é", [f"{c}/{i}.png" for c in "ab" for i in range(8)]
    )
    options = [
        "--initial",
        "4",
        "--labels",
        "6",
        "--retrain-every",
        "2",
        "--out",
        tmp_path / "r[red]",
    ]
    result = invoke("run", "--data", folder, *SMALL_MODEL, *options)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "r[red]" / "curve.png").exists()


CELLS = st.text(max_size=6) | st.sampled_from(
    ["", "1", "-2.5", "nan", "inf", "yes", "no", '"', "\0"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(st.lists(CELLS, max_size=4), max_size=8), name=st.sampled_from(["csv", "tsv"]))
def test_query_of_a_malformed_table_prints_no_traceback(rows, name, tmp_path_factory):
    folder = tmp_path_factory.mktemp("t")
    path = folder / f"t.{name}"
    path.write_text("\n".join(",".join(r) for r in rows), encoding="utf-8", errors="replace")
    result = invoke(
        "query", "--data", path, "--n", 1, "--set", "training.steps=2", "--out", folder / "next.csv"
    )
    check_no_traceback(result)
    assert result.exit_code == 0 or not (folder / "next.csv").exists()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=60) | st.lists(st.lists(CELLS, max_size=3), max_size=5))
def test_query_with_a_malformed_label_file_prints_no_traceback(content, tmp_path_factory):
    folder = tmp_path_factory.mktemp("l")
    data, labels = write_table(folder / "t.csv", n=8), folder / "labels.csv"
    if isinstance(content, bytes):
        labels.write_bytes(content)
    else:
        text = "item,label\n" + "\n".join(",".join(r) for r in content)
        labels.write_text(text, encoding="utf-8", errors="replace")
    result = invoke(
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
    check_no_traceback(result)


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
def test_query_of_malformed_images_prints_no_traceback(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("f")
    for name, content in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    check_no_traceback(
        invoke("query", "--data", folder, "--n", 1, "--classes", "a,b", "--model", "mlp")
    )


def test_run_interrupted_by_ctrl_c_can_be_resumed(tmp_path):
    gate = Gate(tmp_path, begun=tmp_path / "a" / "rounds.jsonl")
    process = start_command(
        "run", *QUICK_RUN, "--model", gate.model, "--labels", "40", "--out", "a", cwd=tmp_path
    )
    until(lambda: (tmp_path / "a" / "rounds.jsonl").exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, (out, err)
    assert "labelahead resume a" in err
    assert "Traceback" not in out + err
    count = len((tmp_path / "a" / "labels.jsonl").read_text().splitlines())
    gate.open()
    resumed = start_command("resume", "a", cwd=tmp_path)
    out, err = resumed.communicate(timeout=PATIENCE)
    assert resumed.returncode == 0, err
    assert len((tmp_path / "a" / "labels.jsonl").read_text().splitlines()) == 40 > count


def test_query_command_accepts_dated_folders_with_classes(tmp_path):
    source = make_dated_folders(tmp_path / "photos")
    options = ["--model", "exact", "--embedding", "raw", "--set", "data.size=8", "--threads", "1"]
    result = CliRunner().invoke(
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
    assert result.exit_code == 0, result.output
    rows = (tmp_path / "n.csv").read_text().splitlines()
    assert len(rows) == 4
    assert all(row.startswith("2024-0") for row in rows[1:])
