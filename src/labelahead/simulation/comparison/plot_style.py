"""The common style of all figures, and their three output formats.

Colours, markers and line styles all differ, so figures are readable without colour.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

__all__ = [
    "DASHES",
    "DOTS",
    "FIGURE_WIDTH_INCHES",
    "GRID",
    "INK",
    "MARKERS",
    "PALETTE",
    "RenderedFigure",
    "figure_style",
    "render_figure",
]

INK, GRID = "#23262b", "#c9ccd1"
# Okabe & Ito's colours, then Tol's, for white and black backgrounds; the reference uses INK.
PALETTE = (
    ("#0072b2", "#5aaee8"),
    ("#d55e00", "#ff8b45"),
    ("#009e73", "#35c79b"),
    ("#cc79a7", "#e6a0c8"),
    ("#e69f00", "#f0b73a"),
    ("#56b4e9", "#8fd0f5"),
    ("#882255", "#d46fa0"),
    ("#999933", "#c8c862"),
    ("#332288", "#9a8cf0"),
    ("#117733", "#5cc47e"),
)
MARKERS = ("o", "^", "D", "v", "P", "X", "<", "p", ">", "*", "h")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (3, 1, 1, 1)))
DOTS: Any = (0, (1, 1.2))  # of reference lines
FIGURE_WIDTH_INCHES = 8.4
PNG_COLOURS = 64  # of a small figure


@dataclass(frozen=True)
class RenderedFigure:
    """One figure in three formats. inline: SVG for a page, in the page's colours."""

    name: str
    png: bytes
    svg: bytes
    inline: str

    @property
    def small(self) -> bytes:
        """The PNG with a palette: a quarter of its size, and visually the same."""
        from PIL import Image

        flat = Image.open(BytesIO(self.png)).convert("RGB")
        file = BytesIO()
        flat.quantize(PNG_COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
        return file.getvalue()


@contextmanager
def figure_style() -> Iterator[None]:
    """Set the matplotlib style of all figures inside the context."""
    import matplotlib

    changes: Any = {
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "svg.hashsalt": "labelahead",
        "svg.fonttype": "path",
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "legend.frameon": False,
        "axes.axisbelow": True,
    }
    with matplotlib.rc_context(changes):
        yield


def render_figure(name: str, figure: Any) -> RenderedFigure:
    """Render a matplotlib figure in its three formats."""
    png, svg = BytesIO(), BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "labelahead"})
    figure.set_layout_engine("none")  # keep the layout of the SVG
    figure.savefig(png, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    return RenderedFigure(
        name, png.getvalue(), svg.getvalue(), _inline(name, svg.getvalue().decode())
    )


def _inline(name: str, svg: str) -> str:
    """Return the SVG for a page: its own ids, the page's colours, full width."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", text)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = text.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    for i, (light, _) in enumerate(PALETTE):
        text = text.replace(light, f"var(--c{i})")
    return text
