"""The pages of the studies in docs equal the measured rows."""

from pathlib import Path

import pytest
from PIL import Image

from labelahead.errors import InputError
from labelahead.simulation.comparison.plot_style import figure_style
from research.results.studies import read_measured, read_rows, readme, write_studies
from research.studies.execution import table_text

ROOT = Path(__file__).parents[3]
STUDIES = ROOT / "research" / "data" / "studies"
PAGES = ROOT / "docs" / "results" / "studies"


def test_read_rows_round_trip():
    cells = [
        {"part": "a", "gamma": "2", "width": 64.0, "seed": 0},
        {"part": "a", "gamma": "inf", "width": 64.5, "seed": 1},
        {"part": "b", "gamma": None, "width": 8, "seed": 0},
    ]
    values = [
        {"time": 1, "is": True, "path": [0.5, 1e-07], "word": None},
        {"time": 1.5, "is": False, "path": [], "word": None},
        {"time": "∞", "is": None, "path": None, "word": "x"},
        {"time": "10", "is": None, "path": None, "word": "y, z"},
    ]
    rows = [cell | row for cell, row in zip([*cells, cells[2]], values, strict=True)]
    text = table_text(rows)
    assert read_rows(text, cells) == rows
    assert table_text(read_rows(text, cells)) == text
    assert read_rows(text, cells[::-1]) == rows  # independent of the order of the cells
    with pytest.raises(InputError, match="belongs to no cell"):
        read_rows(text, cells[:2])


@pytest.mark.parametrize("name", sorted(p.name for p in STUDIES.iterdir()))
def test_page_of_study_equals_measured_rows(name):
    folder = STUDIES / name
    measured = read_measured(folder)
    assert table_text(measured.rows) == (folder / "rows.csv").read_text()
    with figure_style():
        exhibits = measured.experiment.exhibits(measured.settings, measured.rows)
    for exhibit in exhibits:
        if exhibit.table:
            assert table_text(exhibit.table) == (folder / f"{exhibit.name}.csv").read_text()
        assert (exhibit.figure is not None) == (PAGES / name / f"{exhibit.name}.png").exists()
    assert readme(name, measured, exhibits) == (PAGES / name / "README.md").read_text()


def test_write_studies_reproduces_files_from_kept_rows(tmp_path):
    stored, folder = STUDIES / "wallclock", tmp_path / "data" / "wallclock"
    folder.mkdir(parents=True)
    for name in ("settings.toml", "rows.csv", "machine.json"):
        (folder / name).write_bytes((stored / name).read_bytes())
    page, written = PAGES / "wallclock", tmp_path / "docs" / "wallclock"
    assert list(write_studies(tmp_path / "data", tmp_path / "docs")) == [written / "README.md"]
    assert {p.name for p in folder.iterdir()} == {p.name for p in stored.iterdir()}
    assert {p.name for p in written.iterdir()} == {p.name for p in page.iterdir()} | {"index.html"}
    assert (written / "README.md").read_bytes() == (page / "README.md").read_bytes()
    assert Image.open(written / "wallclock.png").mode == "P"
    text = (written / "index.html").read_text()
    assert "<svg" in text  # the figure is inlined
    assert ".svg" not in text
    assert "rows.json" not in text
    assert "AMD EPYC" in text  # the machine of the measurement
