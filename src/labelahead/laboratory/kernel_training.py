"""What `labelahead study kernel` shows along training, beside what PN found."""

from collections.abc import Sequence
from typing import Any

from labelahead.laboratory.charts import line, means, panels, span
from labelahead.laboratory.experiment import Exhibit, Row, where
from labelahead.laboratory.kernel_regression import accuracy, cost, outputs
from labelahead.laboratory.kernel_rows import (
    TITLES,
    both_ends,
    by_width,
    draw_by_width,
    extent,
    interval,
    mean,
    median,
    percent_axis,
    widest,
)
from labelahead.laboratory.quality import KINDS

__all__ = ["trained"]


def trained(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """All exhibits that trained networks give."""
    names = [n for n in TITLES if where(rows, network=n)]
    if not names:
        return []
    return [
        _diagonality(s, rows, names), _distance(s, rows, names), _spectrum(s, rows, names),
        outputs(s, rows, names), accuracy(s, rows, names), cost(s, rows, names),
    ]  # fmt: skip


def _diagonality(s: Any, rows: Sequence[Row], names: Sequence[str]) -> Exhibit:
    """PN Fig 2."""
    figure, axes = panels(len(names), columns=2, height=2.9)
    for name, here in zip(names, axes, strict=True):
        draw_by_width(here, where(rows, network=name), "off_over_on")
        here.set_title(TITLES[name], loc="left", fontsize=10)
        here.set_ylabel("mean |off| / mean |on|")
        here.set_ylim(bottom=0)
        here.legend(fontsize=8)
    first, last = both_ends(s, rows)
    measured = {n: [mean(widest(at, n), "off_over_on") for at in (first, last)] for n in names}
    grown = [n for n, (before, after) in measured.items() if after > before]
    return Exhibit(
        "diagonality",
        "Along training: is the full kernel diagonal?",
        f"{_setting(s, rows)} Mean |entry| off the diagonal over mean |entry| on it, over the C×C "
        "blocks of all pairs of items. PN (Fig 2) find it falling with the width before training, "
        "and not diagonal for practical widths. Here the widest networks have "
        f"{extent(first, names, 'off_over_on')} at the start and "
        f"{extent(last, names, 'off_over_on')} at the end; training makes the blocks less diagonal "
        f"for {', '.join(grown) or 'none of them'}.",
        figure=figure,
    )


def _distance(s: Any, rows: Sequence[Row], names: Sequence[str]) -> Exhibit:
    """PN Fig 3, with two further substitutes."""
    figure, axes = panels(len(names), columns=2, height=2.9)
    table: list[Row] = []
    for name, here in zip(names, axes, strict=True):
        mine = widest(rows, name)
        for number, kind in enumerate(KINDS):
            line(here, *means(mine, "checkpoint", f"distance_{kind}"), number, kind)
        here.set_title(f"{TITLES[name]}, width {mine[0]['width']:g}", loc="left", fontsize=10)
        here.set(ylabel="‖K⊗I − Θ‖ / ‖Θ‖", ylim=(0, 1.3))
        percent_axis(here)
        for width in sorted({r["width"] for r in where(rows, network=name)}):
            row: dict[str, Any] = {"network": name, "width": width}
            for part, word in ((s.checkpoints[0], "start"), (s.checkpoints[-1], "end")):
                at = where(rows, network=name, width=width, checkpoint=part)
                for kind in KINDS:
                    row[f"{kind}, {word}"] = span(interval(at, f"distance_{kind}"))
            table.append(row)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    first, last = both_ends(s, rows)
    worse = [
        n for n in names
        if all(r["distance_pseudo"] > 1.1 * r["distance_trace"] for r in widest(last, n))
    ]  # fmt: skip
    up = [n for n in names if mean(widest(last, n), "distance_pseudo")
          > mean(widest(first, n), "distance_pseudo")]  # fmt: skip
    return Exhibit(
        "distance",
        "Along training: how far is each substitute from the full kernel?",
        "Relative Frobenius distance for the widest network of each kind; bands: 95 % over seeds. "
        "PN (Fig 3) find the pseudo-NTK's distance falling with the width at the start, and no "
        "longer after some epochs. Here it ends above its start for "
        f"{', '.join(up) or 'none'}. New: the other two substitutes. After training the "
        "pseudo-NTK is more than a tenth farther from the full kernel than the trace kernel, with "
        "every seed, for "
        f"{', '.join(worse) or 'none'}. "
        + (
            "An explanation: one-hot targets add up to one, so the sum of outputs has only a "
            "constant to learn, and its kernel does not follow what the outputs learn one by one."
            if worse
            else ""
        ),
        figure=figure,
        table=table,
    )


def _spectrum(s: Any, rows: Sequence[Row], names: Sequence[str]) -> Exhibit:
    """PN Figs 4, 5 and 6."""
    figure, axes = panels(3 * len(names), columns=3, height=2.3)
    words = {"largest": "λ max", "smallest": "λ min", "condition": "condition"}
    for i, name in enumerate(names):
        for here, value in zip(axes[3 * i : 3 * i + 3], words, strict=True):
            mine = where(rows, network=name)
            draw_by_width(here, mine, f"{value}_gap_pseudo", band=False)
            here.set_title(f"{name}: {words[value]}", loc="left", fontsize=10)
            if value == "smallest":
                here.set_yscale("log")
            else:  # never above one: the spectrum lies within the full one's
                here.set_ylim(0, 1.05)
            if here.get_lines():
                here.legend(fontsize=7)
            here.set_xlabel("")
    table: list[Row] = []
    for name in names:
        for part in (s.checkpoints[0], s.checkpoints[-1]):
            mine = where(widest(rows, name), checkpoint=part)
            row: dict[str, Any] = {"network": name, "width": mine[0]["width"],
                                   "training": f"{part:.0%}"}  # fmt: skip
            for value, word in words.items():
                for kind in ("full", "pseudo", "trace"):
                    row[f"{word}, {kind}"] = median(mine, f"{value}_{kind}")
            table.append(row)
    first, _ = both_ends(s, rows)
    lost = sum(r["condition_full"] is None for r in rows)
    largest = {n: by_width(first, n, "largest_gap_pseudo") for n in names}
    falls = [n for n, v in largest.items() if len(v) > 1 and v[-1] < v[0]]
    inside = [
        r for r in rows
        if r["largest_pseudo"] <= r["largest_full"] and r["smallest_pseudo"] >= r["smallest_full"]
    ]  # fmt: skip
    return Exhibit(
        "spectrum",
        "The ends of the spectrum",
        "Relative difference |λ̂ − λ| / λ of the pseudo-NTK's largest and smallest eigenvalue and "
        "of the condition number from the full kernel's, against the part of training done; one "
        "line a width. PN (Figs 4 to 6) find all three falling with the width at the start, and "
        "very large values for the convnet, whose smallest eigenvalue is nearly zero. Here the gap "
        f"of the largest falls from the narrowest to the widest for {', '.join(falls) or 'none'}. "
        "The pseudo-NTK is the full kernel seen along one direction of the outputs, so its "
        f"spectrum lies within the full one's, and its condition number is never larger "
        f"({len(inside)} of {len(rows)} measurements agree). In {lost} of {len(rows)} the full "
        "kernel's smallest eigenvalue is lost in the rounding of double precision (too few "
        "parameters or dead units); these are left out of λ min and the condition. Table: medians "
        "over seeds.",
        figure=figure,
        table=table,
    )


def _setting(s: Any, rows: Sequence[Row]) -> str:
    return (
        f"Each network is trained on {s.items} items of {s.data} by SGD ({s.steps} steps, batch "
        f"{s.batch}, rate {s.rate:g}, {s.loss} loss; {s.seeds} seeds), and the kernels are taken "
        "of the same items."
    )
