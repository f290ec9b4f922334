"""`labelahead encoders`, and `--embedding auto:`."""

import json

from typer.testing import CliRunner

from labelahead.cli import app
from tests.learner.test_encoder_comparison import source

__all__ = ["source"]


def test_command_compares_draws_and_queries(source):
    names = f"{source / 'bad.npy'},{source / 'good.npy'},words"
    done = CliRunner().invoke(
        app,
        ["encoders", str(source / "t.csv"), "--labels", str(source / "labels.csv"),
         "--embedding", names, "--plot", str(source / "plot.png"), "--threads", "1"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "best on 24 labels: good.npy" in done.output
    table = [line.split()[0] for line in done.output.splitlines() if " to " in line]
    assert {"good.npy", "bad.npy", "words"} <= set(table)  # in 80 columns no name is broken
    assert (source / "plot.png").read_bytes().startswith(b"\x89PNG")
    done = CliRunner().invoke(
        app,
        ["query", "--data", str(source / "t.csv"), "--labels", str(source / "labels.csv"),
         "--embedding", f"auto:{names}", "--n", "2", "--out", str(source / "next.csv")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["run", "--embedding", "auto:a,b"])
    assert done.exit_code == 2
    assert "a simulation has yet to query" in done.output


def test_commands_take_the_classes_of_guesses_from_the_label_file(source):
    table, labels = source / "t.csv", str(source / "labels.csv")
    header, *lines = table.read_text().splitlines()
    said = [f"{line},{'xyz'[k % 3 if k % 4 else (k + 1) % 3]}" for k, line in enumerate(lines)]
    table.write_text("\n".join([f"{header},llm", *said]) + "\n")
    names = f"{source / 'bad.npy'},{source / 'good.npy'}"
    query = ["query", "--data", str(table), "--guesses", "llm", "--embedding", f"auto:{names}"]
    encoders = ["encoders", str(table), "--embedding", names, "--set", 'data.guesses=["llm"]']
    found = []
    for words in ((), ("--classes", "x,y,z")):
        done = CliRunner().invoke(app, [*query, "--labels", labels, *words, "--format", "json"])
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout))
        done = CliRunner().invoke(app, [*encoders, "--labels", labels, *words])
        assert done.exit_code == 0, done.output
        assert "best on 24 labels: good.npy" in done.output
    assert found[0] == found[1]
    assert len(found[0]) == 10
