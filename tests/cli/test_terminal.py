"""What a campaign and a comparison look like on a terminal."""

import io

import pytest
from PIL import Image
from rich.console import Console

from labelahead.cli.terminal import (
    PairProgress,
    ProgressText,
    ShownMeasures,
    build_comparison_table,
    build_rounds_table,
    draw_curve_text,
    show_campaign,
    summarize_comparison,
    write_curve_png,
)
from labelahead.simulation.store import Round


def make_round(number, labels, accuracy, asked=10, **more):
    return Round(number, labels, accuracy, 1.0, 0.1, 5, asked, seconds={"train": 1.5}, **more)


OURS = ("flip", [make_round(0, 10, 0.5), make_round(1, 20, 0.8), make_round(2, 30, 0.9, asked=0)])
SLOW = ("random", [make_round(0, 10, 0.5), make_round(1, 25, 0.7), make_round(2, 60, 0.95)])


def print_to_text(*shown):
    console = Console(file=io.StringIO(), width=120)
    console.print(*shown)
    return console.file.getvalue()


def test_show_campaign_without_a_terminal_prints_one_line_per_round():
    console = Console(file=io.StringIO(), width=200)
    with show_campaign(console, 30, "digits") as display:
        display.progress("training", 3, 10)  # is not printed
        display.round(make_round(0, 10, 0.5, drift=0.25, notes=("train longer [x]",)))
        display.round(make_round(1, 20, None, error=0.2, error_low=0.1, error_high=0.4))
    first, note, second = console.file.getvalue().splitlines()
    assert first.split() == [
        "round",
        "0",
        "10",
        "labels",
        "test",
        "accuracy",
        "50.0%",
        "drift",
        "25%",
        "1.5",
        "s",
    ]
    assert note == "  round 0: train longer [x]"
    want = "round 1 20 labels estimated 80.0% (60.0% to 90.0%) 1.5 s"
    assert second.split() == want.split()


def test_show_campaign_on_a_terminal_draws_the_curve():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with show_campaign(console, 30, "digits, flip") as display:
        for entry in OURS[1]:
            display.round(entry)
    shown = console.file.getvalue()
    assert "digits, flip" in shown
    assert "test accuracy, %" in shown
    assert "round   2" in shown


def test_progress_text_counts_more_than_one_step():
    progress = ProgressText()
    assert progress.describe("training", 3, 10) == "training 3/10"
    assert progress.is_next_tenth
    assert progress.describe("training", 3, 10) == "training 3/10"
    assert not progress.is_next_tenth
    assert progress.describe("scoring", 0, 1) == "scoring"


def test_draw_curve_text_spans_the_budget_and_names_curves():
    lines = draw_curve_text([OURS, SLOW], 60, "digits", width=60).splitlines()
    text = "\n".join(lines)
    assert len(lines) == 16
    assert all(word in text for word in ("digits", "flip", "random", "60.0", "10.0"))


def test_write_curve_png_writes_an_image(tmp_path):
    pytest.importorskip("matplotlib")
    path = write_curve_png(OURS[1], tmp_path / "curve.png", "cost in $ of $x", SLOW, "flip")
    assert Image.open(path).size == (960, 600)
    assert len(set(Image.open(path).convert("RGB").tobytes())) > 2  # not blank


def test_build_comparison_table_has_one_row_per_number_of_labels():
    rows = [line.split() for line in print_to_text(build_comparison_table(OURS, SLOW)).splitlines()]
    assert rows[0] == ["labels", "flip", "random"]
    assert rows[1] == ["10", "50.0", "%", "50.0", "%"]
    assert [row[0] for row in rows[1:]] == ["10", "20", "25", "30", "60"]
    assert rows[3] == ["25", "70.0", "%"]


def test_summarize_comparison_counts_labels_of_both():
    want = "test accuracy 90.0%: flip needed 30 labels; random needed 60 labels."
    assert summarize_comparison(OURS, SLOW) == want
    stopped = ("random", SLOW[1][:2])
    assert summarize_comparison(OURS, stopped).endswith(
        "random did not reach it with 25 labels (70.0%)."
    )


def test_build_rounds_table_shows_missing_values_as_dashes():
    table = build_rounds_table([make_round(0, 10, None, gain=0.5), make_round(1, 20, 0.75)])
    rows = [line.split() for line in print_to_text(table).splitlines()]
    assert rows[1] == ["0", "10", "—", "—", "0.5", "—", "1.5"]
    assert rows[2] == ["1", "20", "75.0%", "—", "—", "—", "1.5"]


def test_pair_progress_estimates_the_end_after_the_first_campaign():
    console = Console(file=io.StringIO(), width=200)
    progress = PairProgress(console)
    for done in range(3):
        progress.campaign(done, 2, 7, "flip")
    first, second = console.file.getvalue().splitlines()
    assert first == "campaign 1 of 2: flip, seed 7"
    assert second.startswith("campaign 2 of 2: flip, seed 7   (about 0 s left, until ")


def make_error_round(number, labels, rmse, asked=10):
    return make_round(
        number,
        labels,
        None,
        asked,
        measures={"rmse": rmse, "r2": 0.5},
        error=5.0,
        error_low=4.0,
        error_high=6.0,
    )


ERRORS = ("variance", [make_error_round(0, 10, 9.0), make_error_round(1, 20, 4.0, asked=0)])
SLOW_ERRORS = ("random", [make_error_round(0, 10, 9.0), make_error_round(1, 40, 3.5)])


def test_rounds_of_numbers_are_shown_by_their_error_in_its_unit():
    measures = ShownMeasures.of_task("number", "mg")
    console = Console(file=io.StringIO(), width=200)
    with show_campaign(console, 20, "doses", measures=measures) as display:
        display.round(ERRORS[1][0])
    line = " ".join(console.file.getvalue().split())
    assert "test root mean square error 9 mg estimated 5 mg (4 mg to 6 mg)" in line
    table = print_to_text(build_rounds_table(ERRORS[1], measures))
    assert table.startswith("labels  test RMSE   R²  ")
    assert "9 mg" in table
    assert "0.5" in table
    assert "coverage" not in table  # no round has it


def test_comparison_of_numbers_counts_the_labels_to_an_error_as_small(tmp_path):
    measure = ShownMeasures.of_task("number", "mg").main
    want = "test root mean square error 4 mg: variance needed 20 labels; random needed 40 labels."
    assert summarize_comparison(ERRORS, SLOW_ERRORS, measure) == want
    stopped = ("random", SLOW_ERRORS[1][:1])
    assert "did not reach it with 10 labels (9 mg)" in summarize_comparison(
        ERRORS, stopped, measure
    )
    table = print_to_text(build_comparison_table(ERRORS, SLOW_ERRORS, measure)).splitlines()
    assert table[1].split() == ["10", "9", "mg", "9", "mg"]
    curves = draw_curve_text([ERRORS, SLOW_ERRORS], 40, "doses", width=60, measure=measure)
    assert "test root mean square error, mg" in curves
    path = write_curve_png(ERRORS[1], tmp_path / "curve.png", "x", SLOW_ERRORS, "v", measure)
    assert Image.open(path).size[0] > 500
