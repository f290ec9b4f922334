"""The studies in docs: what is shown there is what was measured."""

from pathlib import Path

import pytest
from PIL import Image

from labelahead.compare.drawing import drawing
from labelahead.errors import InputError
from labelahead.studies.execution import table_text
from results.studies import read_measured, read_rows, readme, write_studies

STUDIES = Path(__file__).parents[2] / "docs" / "results" / "studies"


def test_rows_read_back_as_they_were_written():
    cells = [
        {"part": "a", "gamma": "2", "width": 64.0, "seed": 0},
        {"part": "a", "gamma": "inf", "width": 64.5, "seed": 1},
        {"part": "b", "gamma": None, "width": 8, "seed": 0},
    ]
    made = [
        {"time": 1, "is": True, "path": [0.5, 1e-07], "word": None},
        {"time": 1.5, "is": False, "path": [], "word": None},
        {"time": "∞", "is": None, "path": None, "word": "x"},
        {"time": "10", "is": None, "path": None, "word": "y, z"},
    ]
    rows = [owner | row for owner, row in zip([*cells, cells[2]], made, strict=True)]
    text = table_text(rows)
    assert read_rows(text, cells) == rows
    assert table_text(read_rows(text, cells)) == text
    assert read_rows(text, cells[::-1]) == rows  # in whatever order the cells were measured
    with pytest.raises(InputError, match="belongs to no cell"):
        read_rows(text, cells[:2])


@pytest.mark.parametrize("name", sorted(p.name for p in STUDIES.iterdir()))
def test_the_page_says_what_was_measured(name):
    folder = STUDIES / name
    measured = read_measured(folder)
    assert table_text(measured.rows) == (folder / "rows.csv").read_text()
    with drawing():
        exhibits = measured.experiment.exhibits(measured.settings, measured.rows)
    for exhibit in exhibits:
        if exhibit.table:
            assert table_text(exhibit.table) == (folder / f"{exhibit.name}.csv").read_text()
        assert (exhibit.figure is not None) == (folder / f"{exhibit.name}.png").exists()
    assert readme(name, measured, exhibits) == (folder / "README.md").read_text()


def test_a_study_is_made_anew_from_what_is_kept_of_it(tmp_path):
    kept, folder = STUDIES / "wallclock", tmp_path / "wallclock"
    folder.mkdir()
    for name in ("settings.toml", "rows.csv", "machine.json"):
        (folder / name).write_bytes((kept / name).read_bytes())
    assert list(write_studies(tmp_path)) == [folder / "README.md"]
    assert {p.name for p in folder.iterdir()} == {p.name for p in kept.iterdir()} | {"index.html"}
    assert (folder / "README.md").read_bytes() == (kept / "README.md").read_bytes()
    assert Image.open(folder / "wallclock.png").mode == "P"
    page = (folder / "index.html").read_text()
    assert "<svg" in page  # drawn into the page
    assert ".svg" not in page
    assert "rows.json" not in page
    assert "AMD EPYC" in page  # where it was measured, not where the page was made
