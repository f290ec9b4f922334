"""Studies: cells are measured once, stored and resumed; the page shows the measurements."""

import json
import multiprocessing
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from labelahead.errors import InputError
from research.studies import EXPERIMENTS, conduct, experiment, settings_of
from research.studies.design import Experiment, StudyFigure
from research.studies.execution import table_text
from research.studies.study_data import peak_memory
from tests.support.waiting import PATIENCE, until


@dataclass(frozen=True)
class Sizes:
    """Settings of the toy experiment."""

    most: int = 3
    fail_at: int | None = None
    log: str | None = None


def _cells(s: Sizes) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(s.most)]


def _square(s: Sizes, cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    if s.log:
        with open(s.log, "a") as file:
            file.write(f"{cell['n']}\n")
    if cell["n"] == s.fail_at:
        raise InputError("this cell fails")
    value = float("nan") if cell["n"] == 99 else cell["n"] ** 2
    return [{"square": value}]


def _make_figures(s: Sizes, rows: Any) -> list[StudyFigure]:
    total = sum(r["square"] for r in rows)
    return [StudyFigure("sum", "The sum <of> squares", f"It is {total}.", table=rows)]


TOY = Experiment("toy", "Squares", "What is the sum?", Sizes, _cells, _square, _make_figures)


def test_conduct_measures_records_and_writes_page(tmp_path):
    progress_calls = []
    report = conduct(
        TOY, Sizes(4), tmp_path, workers=1, progress=lambda *a: progress_calls.append(a)
    )
    assert report.exhibits[0].caption == "It is 14."
    page = (tmp_path / "index.html").read_text()
    assert "It is 14." in page
    assert "The sum &lt;of&gt; squares" in page
    assert (tmp_path / "sum.csv").read_text() == "n,square\n0,0\n1,1\n2,4\n3,9\n"
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [r["square"] for r in rows["rows"]] == [0, 1, 4, 9]
    assert progress_calls[0][1:] == (0, 4)
    assert progress_calls[-1][1:] == (4, 4)


def test_conduct_resumes_with_missing_cells_only(tmp_path):
    log = tmp_path / "log"
    out = tmp_path / "out"
    with pytest.raises(InputError, match="this cell fails"):
        conduct(TOY, Sizes(4, fail_at=2, log=str(log)), out, workers=1)
    text = (out / "settings.toml").read_text().replace("fail_at = 2", 'fail_at = "none"')
    (out / "settings.toml").write_text(text)
    (out / "cells.jsonl").open("a").write('{"cell":{"n":3},"ro')  # cut short by a kill
    log.write_text("")
    conduct(TOY, Sizes(4, log=str(log)), out, workers=1)
    assert log.read_text() == "2\n3\n"


def test_conduct_treats_equal_floats_and_integers_as_same_cell(tmp_path):
    conduct(TOY, Sizes(3), tmp_path, workers=1)
    floats = replace(
        TOY, cells=lambda s: [{"n": float(n)} for n in range(s.most)], measure=lambda s, c: 1 / 0
    )
    assert conduct(floats, Sizes(3), tmp_path, workers=1).exhibits[0].caption == "It is 5."


@pytest.mark.slow
def test_conduct_with_two_workers_equals_one_worker(tmp_path):
    one = conduct(TOY, Sizes(5), tmp_path / "1", workers=1)
    two = conduct(TOY, Sizes(5), tmp_path / "2", workers=2)
    assert (tmp_path / "1/rows.csv").read_text() == (tmp_path / "2/rows.csv").read_text()
    assert one.exhibits[0].caption == two.exhibits[0].caption


def _sleep_or_fail(s: Sizes, cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    if cell["n"] == 0:
        raise InputError("this cell fails")
    time.sleep(2 * PATIENCE)
    return [{"square": 1}]


@pytest.mark.slow
def test_conduct_stops_workers_after_error(tmp_path):
    slow = replace(TOY, measure=_sleep_or_fail)
    before = multiprocessing.active_children()
    with pytest.raises(InputError, match="this cell fails"):
        conduct(slow, Sizes(2), tmp_path, workers=2)
    # The pool's own thread waits for the workers too, so they may end a moment later.
    assert until(
        lambda: set(multiprocessing.active_children()) <= set(before),
        multiprocessing.active_children,
    )


def test_conduct_with_other_settings_or_study_raises(tmp_path):
    conduct(TOY, Sizes(3), tmp_path, workers=1)
    with pytest.raises(InputError, match="most = 3, not 4"):
        conduct(TOY, Sizes(4), tmp_path, workers=1)
    with pytest.raises(InputError, match="holds the study 'toy'"):
        conduct(replace(TOY, name="other"), Sizes(3), tmp_path, workers=1)


def test_conduct_with_nan_raises(tmp_path):
    only = replace(TOY, cells=lambda s: [{"n": 99}])
    with pytest.raises(InputError, match="not finite"):
        conduct(only, Sizes(), tmp_path, workers=1)
    assert not (tmp_path / "index.html").exists()


def test_conduct_with_damaged_cells_raises(tmp_path):
    conduct(TOY, Sizes(2), tmp_path, workers=1)
    (tmp_path / "cells.jsonl").write_text('{"cell": 1}\n')
    with pytest.raises(InputError, match="line 1 is damaged"):
        conduct(TOY, Sizes(2), tmp_path, workers=1)


def test_settings_of_applies_scale_changes_and_options(tmp_path):
    study = experiment("dynamics")
    assert settings_of(study) == study.settings()
    assert settings_of(study, "paper").initial == 500
    changed = settings_of(study, changes=["seeds=9"], options={"data": "mnist", "root": None})
    assert (changed.seeds, changed.data) == (9, "mnist")
    with pytest.raises(InputError, match="did you mean 'seeds'"):
        settings_of(study, changes=["seed=9"])
    with pytest.raises(InputError, match="expected small or paper"):
        settings_of(study, "large")
    with pytest.raises(InputError, match="expected small or paper or whole"):
        settings_of(experiment("regression"), "large")
    with pytest.raises(InputError, match=r"there are: .*dynamics"):
        experiment("dynamic")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_study_has_both_scales_and_settings_round_trip(name, tmp_path):
    found = EXPERIMENTS[name]
    small, paper = settings_of(found), settings_of(found, "paper")
    assert small != paper
    if name == "regression":
        assert settings_of(found, "whole").whole == paper.whole  # all points, another network
    for settings in (small, paper):
        cells = found.cells(settings)
        assert len({json.dumps(c, sort_keys=True) for c in cells}) == len(cells) > 0
    from labelahead.learner.config import to_toml

    (tmp_path / "s.toml").write_text(f'experiment = "{name}"\n' + to_toml(paper))
    assert settings_of(found, file=tmp_path / "s.toml") == paper


def test_table_text_has_a_column_for_every_key():
    assert table_text([{"a": 1}, {"a": 2, "b": [1]}]) == "a,b\n1,\n2,[1]\n"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc of Linux")
def test_peak_memory_is_in_bytes():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert peak_memory() == pytest.approx(1024 * int(status["VmHWM"].split()[0]), rel=0.05)
