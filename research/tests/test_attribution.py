"""The command that scores attribution methods runs and writes what it prints."""

import json

from research.attribution import BEGIN, END, PAGE, RESULTS, main, render_table


def test_attribution_command_scores_every_method(tmp_path, capsys):
    out = tmp_path / "scores.json"
    options = [
        "--network",
        "mlp",
        "--seeds",
        "0",
        "--subsets",
        "3",
        "--items",
        "40",
        "--tests",
        "5",
    ]
    assert main([*options, "--results", str(out)]) == 0
    (found,) = json.loads(out.read_text())
    printed = capsys.readouterr().out
    assert len(found["scores"]) == 14
    assert all(name in printed for name in found["scores"])
    assert all(-1 <= score <= 1 for score, _ in found["scores"].values())


def test_page_shows_the_stored_measurements():
    text = PAGE.read_text()
    shown = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert shown == render_table(json.loads(RESULTS.read_text()))
