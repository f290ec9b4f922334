"""The style of figures and their output formats."""

import re
from io import BytesIO

import pytest
from PIL import Image

from labelahead.simulation.comparison.plot_style import (
    GRID,
    INK,
    PALETTE,
    figure_style,
    render_figure,
)

matplotlib = pytest.importorskip("matplotlib")


def render(name="curves", colors=(PALETTE[0][0], PALETTE[3][0])):
    from matplotlib.figure import Figure

    with figure_style():
        figure = Figure(figsize=(3, 2), layout="constrained")
        axes = figure.subplots()
        axes.grid()
        for i, color in enumerate(colors):
            axes.plot([0, 1], [i, 1], color=color)
        return render_figure(name, figure)


def test_figure_style_is_undone_afterwards():
    before = dict(matplotlib.rcParams)
    with figure_style():
        assert matplotlib.rcParams["text.color"] == INK
    assert dict(matplotlib.rcParams) == before


def test_render_figure_is_deterministic():
    assert render() == render()
    assert Image.open(BytesIO(render().png)).size == (480, 320)  # inches times 160


def test_inline_svg_uses_colours_of_the_page_and_own_ids():
    inline = render("name").inline
    assert "var(--c0)" in inline
    assert "var(--c3)" in inline
    assert "currentColor" in inline
    assert not any(color in inline for color in (INK, GRID, PALETTE[0][0], PALETTE[3][0]))
    ids = re.findall(r'\bid="([^"]*)"', inline)
    used = re.findall(r'(?:href="|url\()#([^")]*)', inline)
    assert ids
    assert all(i.startswith("name-") for i in ids)
    assert set(used) <= set(ids)
    head = inline[: inline.index(">")]
    assert "viewBox" in head
    assert not re.search(r"\b(width|height)=", head)
    assert "<metadata>" not in inline


def test_small_png_has_64_colours_and_looks_the_same():
    figure = render()
    small = Image.open(BytesIO(figure.small))
    assert len(figure.small) < len(figure.png)
    assert len(small.getcolors()) <= 64
    full = Image.open(BytesIO(figure.png)).convert("RGB")
    pairs = zip(full.tobytes(), small.convert("RGB").tobytes(), strict=True)
    gaps = [abs(a - b) for a, b in pairs]
    assert sum(gaps) / len(gaps) < 1
