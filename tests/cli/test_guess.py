"""`labelahead guess`, and language models in other commands."""

import csv
import json
from collections import Counter

import pytest
from typer.testing import CliRunner

import labelahead as la
from labelahead.cli import app
from labelahead.learner.preparation import prepare_campaign
from tests.support.chat_server import Reply, content_of, run_chat_server

CLASSES = ("big", "small")


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Numbers; an item is big if the first one is positive."""
    monkeypatch.setenv("LABELAHEAD_LLM_FOLDER", str(tmp_path / "answers"))
    monkeypatch.delenv("LABELAHEAD_LLM_KEY", raising=False)
    path = tmp_path / "numbers.csv"
    rows = [f"n{i},{(i * 7) % 11 - 5},{i % 4},{'x' if i % 3 else 'y'}" for i in range(20)]
    path.write_text("id,first,second,llm\n" + "\n".join(rows) + "\n")
    return path


def run_command(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


def answer_by_sign(body, number):
    first = float(content_of(body).split("\n")[0].removeprefix("first: "))
    return Reply("big" if first > 0 else "small")


def llm(server):
    return ("--guesses", f"llm:{server.url}", "--llm-model", "tiny/model:1")


def read_guesses(path):
    with path.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_guess_writes_a_file_that_other_commands_read(table, tmp_path):
    file = tmp_path / "guesses.csv"
    with run_chat_server(answer_by_sign) as server:
        code, output = run_command(
            "guess", table, "--classes", "big,small", *llm(server), "--out", file, "--yes",
            "--llm-price-input", "1000", "--llm-price-output", "0",
        )  # fmt: skip
    assert code == 0, output
    assert "20 items, about" in output
    assert "cost about" in output
    assert "guesses about 20 items" in output
    found = read_guesses(file)
    assert {row["guess"] for row in found.values()} == {*CLASSES}
    assert found["n1"]["guess"] == "big"
    assert float(found["n1"]["probability:big"]) == 0.9
    assert "llm" in server.requests[0]["messages"][1]["content"]  # an ordinary column here
    assert "n1" not in server.requests[0]["messages"][1]["content"]  # ids are not sent
    code, output = run_command(
        "query", "--data", table, "--classes", "big,small", "--guesses", file, "--n", 3,
        "--format", "json",
    )  # fmt: skip
    assert code == 0, output


def test_query_asks_the_language_model_once_and_keeps_a_column_of_guesses_apart(table, tmp_path):
    """Columns of guesses are not sent; the answers are prior knowledge as those of a file."""
    labels = tmp_path / "labels.csv"
    labels.write_text("item,label\nn0,small\nn1,big\n")
    classes = tmp_path / "classes.csv"
    classes.write_text("name,description\nbig,a positive number\nsmall,\n")
    words = ("query", "--data", table, "--classes", classes, "--labels", labels, "--n", 18)
    with run_chat_server(answer_by_sign) as server:
        words = (*words, *llm(server), "--format", "json", "--threads", 1, "--yes")
        with_column = table.read_text().replace(",x", ",big").replace(",y", ",")
        table.write_text(with_column)
        code, output = run_command(*words, "--guesses", "llm")
        assert code == 0, output
        assert len(server.requests) == 20
        again = run_command(*words, "--guesses", "llm")
        assert len(server.requests) == 20
    assert "tiny-model-1" in output
    assert "- big: a positive number" in server.requests[0]["messages"][0]["content"]
    assert "llm" not in content_of(server.requests[0])
    rows = json.loads(output[output.index("[\n") :])
    assert json.loads(again[1][again[1].index("[\n") :]) == rows
    (file,) = (tmp_path / "answers").rglob("*.csv")
    assert file.name == "tiny-model-1.csv"
    source = la.Source(str(table), guesses=(str(file), "llm"), classes=CLASSES)
    prepared = prepare_campaign(la.Campaign(data=source, threads=1))
    assert prepared.guesses.names == (str(file), "llm")


def test_query_asks_a_language_model_about_the_classes_of_the_label_file(table, tmp_path):
    """Without --classes the same questions are asked, and the answers are the same."""
    labels = tmp_path / "labels.csv"
    labels.write_text("item,label\nn0,small\nn1,big\n")
    words = ("query", "--data", table, "--labels", labels, "--n", 3, "--yes", "--format", "json")
    with run_chat_server(answer_by_sign) as server:
        words = (*words, *llm(server), "--guesses", "llm")
        table.write_text(table.read_text().replace(",x", ",big").replace(",y", ","))
        found = run_command(*words)
        assert found[0] == 0, found[1]
        assert len(server.requests) == 20
        named = run_command(*words, "--classes", "big,small")
        assert len(server.requests) == 20  # nothing is paid twice
    rows = [json.loads(output[output.index("[\n") :]) for _, output in (found, named)]
    assert rows[0] == rows[1]


def test_limit_leaves_items_for_the_next_call(table, tmp_path):
    file = tmp_path / "guesses.csv"
    with run_chat_server(answer_by_sign) as server:
        words = ("guess", table, "--classes", "big,small", *llm(server), "--out", file, "--yes")
        code, output = run_command(*words, "--llm-limit", 5)
        assert (code, len(server.requests)) == (0, 5)
        assert "15 not asked yet" in output
        assert sum(bool(row["guess"]) for row in read_guesses(file).values()) == 5
        code, output = run_command(*words)
        assert "15 items (5 more are answered already)" in output
    assert set(Counter(map(content_of, server.requests)).values()) == {1}


def test_nothing_is_sent_before_the_user_agrees(table, tmp_path):
    with run_chat_server(answer_by_sign) as server:
        words = ("guess", table, "--classes", "big,small", *llm(server))
        code, output = run_command(*words, "--out", tmp_path / "guesses.csv")
    assert (code, server.requests) == (2, [])
    assert "cost unknown" in output
    assert "add --yes" in output


def test_failure_says_that_answers_are_kept(table, tmp_path):
    def answer(body, number):
        return Reply(status=404, body=b"no model") if number > 4 else answer_by_sign(body, number)

    with run_chat_server(answer) as server:
        words = ("guess", table, "--classes", "big,small", *llm(server), "--yes")
        code, output = run_command(*words, "--out", tmp_path / "guesses.csv")
        assert code == 1
        assert "does not know the model 'tiny/model:1' (no model)" in output
        assert not (tmp_path / "guesses.csv").exists()
        server.answer = answer_by_sign
        code, output = run_command(*words, "--out", tmp_path / "guesses.csv")
    assert code == 0
    assert set(Counter(server.paid).values()) == {1}


def test_function_and_model_are_written_as_files_too(table, tmp_path):
    heuristic = tmp_path / "heuristic.py"
    heuristic.write_text(
        "def guess(rows):\n    return ['big' if int(r['first']) > 2 else None for r in rows]\n"
    )
    file = tmp_path / "guesses.csv"
    words = ("guess", table, "--classes", "big,small", "--guesses", f"{heuristic}:guess")
    code, output = run_command(*words, "--out", file)
    assert code == 0, output
    found = read_guesses(file)
    assert {row["guess"] for row in found.values()} == {"big", ""}
    count = sum(row["guess"] == "big" for row in found.values())
    assert f"guesses about {count} items" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--guesses", "llm:http://127.0.0.1:9"), "add --llm-model NAME"),
        (("--guesses", "llm"), "expected llm:URL, model:FOLDER or file.py:function"),
        (
            ("--guesses", "llm:http://127.0.0.1:9", "--llm-model", "m", "--prompt", "none.txt"),
            "--prompt none.txt cannot be read",
        ),
        (("--guesses", "llm:127.0.0.1:9", "--llm-model", "m"), "the address is '127.0.0.1:9'"),
        (
            ("--guesses", "llm:http://127.0.0.1:9", "--llm-model", "m", "--llm-rate", "0"),
            "the rate is 0",
        ),
    ],
)
def test_options_of_another_form_are_refused(table, tmp_path, words, message):
    code, output = run_command(
        "guess", table, "--classes", "big,small", "--out", tmp_path / "g.csv", "--yes", *words
    )
    assert code != 0
    assert message in output


def test_language_model_without_a_single_guess_is_an_error(table, tmp_path):
    file = tmp_path / "g.csv"
    with run_chat_server(lambda *_: Reply("As a model, I cannot tell.")) as server:
        code, output = run_command(
            "guess", table, "--classes", "big,small", *llm(server), "--out", file, "--yes",
            "--llm-limit", 3,
        )  # fmt: skip
    assert code == 1
    assert "names no class in 3 answers, such as 'As a model, I cannot tell.'" in output
    assert "--prompt" in output
    assert not file.exists()


def test_function_without_a_single_guess_is_an_error(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "silent.py").write_text("def guess(items):\n    return [None] * len(items)\n")
    code, output = run_command(
        "guess", table, "--classes", "big,small", "--guesses", "silent.py:guess", "--out", "g.csv"
    )
    assert code == 1
    assert "guesses nothing about 20 items; expected a class or probabilities" in output
    assert not (tmp_path / "g.csv").exists()


def test_options_of_a_language_model_need_one(table):
    code, output = run_command("run", "--data", table, "--llm-model", "m")
    assert (code, "--llm-model goes with --guesses llm:URL" in output) == (2, True)


TWO = ("--guesses", "llm:http://127.0.0.1:8", "--guesses", "llm:http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*TWO, "--llm-model", "m"), "names 2 language models, --llm-model 1"),
        (
            (*["--guesses", "llm:http://127.0.0.1:8"] * 2, *["--llm-model", "m"] * 2),
            "expected different models at the same address",
        ),
        (
            (*TWO, "--llm-model", "m", "--llm-model", "n", *["--llm-price-input", "1"] * 3),
            "--llm-price-input is given 3 times; expected one price for all models, or 2",
        ),
        (
            ("--guesses", "llm:http://127.0.0.1:9", "--llm-model", "m", "--llm-model", "n"),
            "names 1 language models, --llm-model 2",
        ),
    ],
)
def test_every_language_model_needs_its_own_options(table, words, message):
    code, output = run_command("query", "--data", table, "--classes", "a,b", "--yes", *words)
    assert (code, message in output) == (2, True), output


def test_query_asks_two_language_models_and_takes_both_as_guessers(table, tmp_path):
    """One confirmation for both; every answer is paid once; the query names both guessers."""
    labels = tmp_path / "labels.csv"
    labels.write_text("item,label\nn0,small\nn1,big\nn2,big\nn3,small\n")
    words = ("query", "--data", table, "--classes", "big,small", "--labels", labels, "--n", 3)
    with (
        run_chat_server(answer_by_sign) as first,
        run_chat_server(lambda *_: Reply("big")) as second,
    ):
        both = (
            "--guesses", f"llm:{first.url}", "--llm-model", "sign", "--guesses", f"llm:{second.url}",
            "--llm-model", "stubborn", "--llm-price-input", "1000", "--llm-price-input", "3000",
            "--format", "json", "--threads", 1,
        )  # fmt: skip
        code, output = run_command(*words, *both)
        assert (code, "cannot be confirmed without a terminal" in output) == (2, True)
        assert (first.requests, second.requests) == ([], [])
        code, output = run_command(*words, *both, "--yes")
        assert code == 0, output
        assert (len(first.requests), len(second.requests)) == (20, 20)
        assert {r["model"] for r in second.requests} == {"stubborn"}
        code, again = run_command(*words, *both)
    assert code == 0, again
    lines = [line for line in output.splitlines() if "cost about" in line]
    one, other, total = (float(line.split("cost about ")[1].split(",")[0]) for line in lines)
    assert other == pytest.approx(3 * one, rel=0.05)
    assert total == pytest.approx(one + other, abs=0.02)
    assert lines[2].startswith("all 2 language models")
    assert "prior knowledge: sign, stubborn" in output
    assert json.loads(again[again.index("[\n") :]) == json.loads(output[output.index("[\n") :])


def test_classes_are_needed(table, tmp_path):
    words = ("--guesses", "llm:http://127.0.0.1:9", "--llm-model", "m")
    code, output = run_command("guess", table, *words, "--out", tmp_path / "g.csv")
    assert (code, "expected them by --classes" in output) == (2, True)


def test_guesses_of_a_configuration_file_are_kept(table, tmp_path):
    """Repeatable options that are not given must not override a file."""
    config = tmp_path / "mine.toml"
    config.write_text('[data]\nguesses = ["llm:http://a", "llm:http://b"]\nclasses = "a,b"\n')
    code, output = run_command("query", "--data", table, "--config", config, "--llm-model", "m")
    assert (code, "names 2 language models" in output) == (2, True)
