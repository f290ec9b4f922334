"""`python -m research study wallclock`: networks, order of timings and reported ratios."""

from dataclasses import replace

import pytest

from labelahead.errors import InputError
from research.studies import conduct
from research.studies.wallclock import (
    WALLCLOCK,
    Settings,
    _network,
    cells,
    exhibits,
    how_many,
    in_turn,
)

TINY = Settings(
    shape=(1, 6, 6), classes=(2, 5), depths=(6, 10), width=4, resnet_width=2, items=3, repeats=1
)


def test_networks_have_stated_depth_and_outputs():
    for cell in cells(TINY):
        model = _network(TINY, cell)
        # 1x1 shortcuts do not count as layers (He et al.).
        layers = [
            p for p in model.parameters() if p.dim() > 1 and not (p.dim() == 4 and p.shape[-1] == 1)
        ]
        assert len(layers) == cell["depth"]
        assert layers[-1].shape[0] == cell["classes"]


def test_in_turn_alternates_jobs_after_one_warm_up():
    calls = []
    took = in_turn({name: lambda name=name: calls.append(name) for name in "ab"}, 3)
    assert calls == list("ab") * 4
    assert {name: len(found) for name, found in took.items()} == {"a": 3, "b": 3}


@pytest.mark.slow
def test_study_reports_ratios(tmp_path):
    small = replace(TINY, depths=(6,))
    report = conduct(WALLCLOCK, small, tmp_path)
    (found,) = report.exhibits
    assert len(found.table) == 2 * len(cells(small)) == 8
    assert WALLCLOCK.alone
    for row in found.table:
        assert row["full, s"] > 0
        assert row["pseudo/full, %"] > 0
    assert "2 classes" in found.caption
    assert "stay within" not in found.caption  # ten classes were not timed


def test_caption_counts_measured_cases():
    common = {"network": "wrn2", "depth": 6, "items": 2, "parameters": 9, "full_seconds": 1.0}
    rows = [
        common
        | {
            "classes": C,
            "what": what,
            "pseudo_seconds": r,
            "ratio": r,
            "ratio_low": r,
            "ratio_high": r,
        }
        for C, what, r in (
            (10, "pair", 0.5),
            (10, "items", 0.1),
            (100, "pair", 0.25),
            (100, "items", 0.01),
        )
    ]
    (found,) = exhibits(Settings(depths=(6,)), rows)
    assert "1 of 2 cases stay within the 15 %" in found.caption
    assert "100 classes: 25.0 to 25.0 % for one pair, 1.0 to 1.0 %" in found.caption


def test_invalid_settings_raise():
    with pytest.raises(InputError, match=r"a depth is 8; expected 4k \+ 2"):
        Settings(depths=(8,))
    with pytest.raises(InputError, match="expected 2 items"):
        Settings(items=1)


def test_how_many_decreases_with_classes():
    assert how_many(Settings(), 10) == 100
    assert how_many(Settings(), 100) == 12
    assert how_many(Settings(most_rows=50), 100) == 2
