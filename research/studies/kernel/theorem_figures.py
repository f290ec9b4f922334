"""What the measurements of PN's theorems and TH's lemmas show."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from labelahead.simulation.comparison.statistics import Estimate, t_interval
from research.studies.charts import heading, line, mean, means, panels, slopes, span
from research.studies.design import Row, StudyFigure, values, where

__all__ = ["check_layers", "layers", "theorems"]

# TH: the exponents of the width that the lemmas allow at most, up to logarithms: (diagonal, off
# it).
ALLOWED = {"1": (0.0, None), "2": (1.0, -0.5)}
LATER = (1.0, 0.5)


def _slope(rows: Sequence[Row], value: str) -> Estimate:
    return t_interval(np.array(slopes(rows, "width", value)))


def logarithm(rows: Sequence[Row]) -> float:
    """The exponent that log n looks like over these widths.

    The lemmas' constants may grow as that.
    """
    at = np.log(np.array(values(rows, "width"), float))
    return float(np.polyfit(at, np.log(at), 1)[0])


def check_layers(rows: Sequence[Row]) -> list[bool]:
    """For every layer whether its largest entries, on and off the diagonal, may grow no faster than
    the lemmas allow.

    That is, whether the lower end of an exponent's interval is within what is allowed, times a
    logarithm.
    """
    found, more = [], logarithm(rows)

    def within(mine: Sequence[Row], value: str, allowed: float) -> bool:
        fit = _slope(mine, value)
        return (fit.mean if fit.low is None else fit.low) <= allowed + more + 1e-9

    for name in dict.fromkeys(r["layer"] for r in rows):
        mine = where(rows, layer=name)
        on, off = ALLOWED.get(name, LATER)
        found.append(within(mine, "diagonal", on))
        found.append(not any(r["off"] for r in mine) if off is None else within(mine, "off", off))
    return found


def _logs(axes: Any, y: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel="width", ylabel=y)
    axes.legend(fontsize=8)


def theorems(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """PN Theorems 5 and 6."""
    figure, axes = panels(2, height=3.4)
    for panel, title, names in (
        (axes[0], "largest eigenvalue (Theorem 5)", {"gap": "|λ̂ − λ|/√w", "gap_bound": "bound"}),
        (axes[1], "regression (Theorem 6)", {"apart": "‖f̂_lin − f_lin‖", "apart_bound": "bound"}),
    ):
        for number, (value, name) in enumerate(names.items()):
            line(panel, *means(rows, "width", value), number, name, band=False)
        _logs(panel, title)
        heading(panel, title)
    fits = {
        value: _slope(rows, value)
        for value in ("gap", "relative_gap", "apart", "relative_apart", "apart_bound")
    }
    broken = [sum(r[v] > r[f"{v}_bound"] for r in rows) for v in ("gap", "apart")]
    loose = [1 / max(r[v] / r[f"{v}_bound"] for r in rows) for v in ("gap", "apart")]
    near = abs(fits["apart"].mean + 0.5) <= 0.15
    return [
        StudyFigure(
            "theorems",
            "Theorems 5 and 6: eigenvalues and predictions",
            f"fcn, {s.theorem_items} items of {s.data}, {s.theorem_test} to regress at, "
            f"{s.rate_seeds} seeds, new "
            "weights, no "
            "regulariser, double precision. Theorem 5 (PN-4) has |λ̂_max − λ_max|/√w as "
            "O(w^(−1/2)): its exponent is "
            f"{span(fits['gap'])}"
            + (", not −0.5" if abs(fits["gap"].mean + 0.5) > 0.15 else ", as it says")
            + f"; relative to λ_max, as Figure 4 shows it, {span(fits['relative_gap'])}. (The "
            "constant in PN-25 has "
            "the largest entry "
            "of the hidden kernel in it, which grows with the width; TH states it relatively.) "
            f"Theorem 6 (PN-7) has ‖f̂_lin − f_lin‖ as O(w^(−1/2)): exponent {span(fits['apart'])}"
            + (", as it says" if near else ", not −0.5")
            + f" ({span(fits['relative_apart'])} relative to f_lin). The explicit bounds (PN-25 "
            "for all pairs; PN-34, "
            "with the eigenvalue λ "
            f"of the kernels over √w, which its proof needs) were exceeded {broken[0]} and "
            f"{broken[1]} times of "
            f"{len(rows)}; they "
            f"are at least {loose[0]:,.0f} and {loose[1]:.1g} times what they bound, and that of "
            "Theorem 6 has the "
            "exponent "
            f"{span(fits['apart_bound'])}: it says nothing of the rate.",
            figure=figure,
            table=[
                {
                    "width": w,
                    "|λ̂ − λ|/√w": mean(mine, "gap"),
                    "bound": mean(mine, "gap_bound"),
                    "relative to λ": mean(mine, "relative_gap"),
                    "‖f̂_lin − f_lin‖": mean(mine, "apart"),
                    "its bound": mean(mine, "apart_bound"),
                    "relative to f_lin": mean(mine, "relative_apart"),
                }
                for w in values(rows, "width")
                for mine in [where(rows, width=w)]
            ],
            alt=(
                "Gap of the largest eigenvalue and of the predictions against width, with their "
                "bounds."
            ),
        )
    ]


def layers(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """TH Lemmas A.7.5 to A.7.12."""
    names = list(dict.fromkeys(r["layer"] for r in rows))
    figure, axes = panels(2, height=3.4)
    table: list[Row] = []
    good = check_layers(rows)
    for number, name in enumerate(names):
        mine = where(rows, layer=name)
        line(axes[0], *means(mine, "width", "diagonal"), number, f"layer {name}", band=False)
        row: dict[str, Any] = {
            "layer": name,
            "largest on the diagonal: exponent": span(_slope(mine, "diagonal")),
        }
        on, off = ALLOWED.get(name, LATER)
        row["allowed"] = on
        if off is None:
            row |= {
                "largest off it: exponent": f"all {max(r['off'] for r in mine):g}",
                "allowed, off": "zero",
            }
        else:
            line(axes[1], *means(mine, "width", "off"), number, f"layer {name}", band=False)
            row |= {"largest off it: exponent": span(_slope(mine, "off")), "allowed, off": off}
        for value, title in (
            ("product", "f(x₁)·f(x₁): exponent"),
            ("cross", "f(x₁)·f(x₂): exponent"),
        ):
            row[title] = "–" if mine[0][value] is None else span(_slope(mine, value))
        table.append(row)
    _logs(axes[0], "largest diagonal entry")
    _logs(axes[1], "largest entry off the diagonal")
    last = where(rows, layer=names[-1])
    ratio: list[Row] = [{**r, "ratio": r["distance"] / r["norm"]} for r in last]
    first = where(rows, layer="1", width=max(values(rows, "width")))
    share = t_interval(np.array([r["share"] for r in first]))
    grows = {k: _slope(last, k) for k in ("distance", "norm")}
    return [
        StudyFigure(
            "layers",
            "The lemmas behind the rate, layer by layer",
            f"TH's Setting B: ReLU, weights N(0, 1/inputs), no biases, {s.layer_depth} hidden "
            "layers and "
            f"{s.layer_outputs} outputs, the "
            f"kernel of every layer at a pair of points by its recursion (A.20), {s.rate_seeds} "
            "seeds. The lemmas "
            "bound the largest "
            "entries, up to logarithms: constant and exactly diagonal in the first layer (A.7.5); "
            "n on the diagonal "
            "and 1/√n off it in "
            "the second (A.7.6); n and √n from then on (A.7.7, A.7.8). "
            f"{sum(good)} of {len(good)} exponents may be within what is allowed (table: their "
            "intervals; log n, "
            "which the "
            f"lemmas allow besides, looks like an exponent of {logarithm(rows):.2f} over these "
            "widths). "
            f"At the read-out ‖Θ − Θ̂⊗I‖ grows with the exponent {span(grows['distance'])} "
            "(A.7.9: at most 0.5), ‖Θ‖ "
            "with "
            f"{span(grows['norm'])} (A.7.10: at least 1), their ratio with "
            f"{span(_slope(ratio, 'ratio'))} (Theorem "
            "A.7.11: −0.5). "
            "Products of activations grow linearly at such a pair, drawn at random (A.7.12; last "
            "columns); at x₂ = −x₁ "
            "that of the first layer is zero, so that (A.49) and the lemma fail there (errata). "
            "(A.50) has E‖f¹(x)‖² = n‖x‖²/n₀; measured at the widest: "
            f"{span(share)} of that, since a rectified normal has half the square of a normal.",
            figure=figure,
            table=table,
            alt="Largest entries on and off the diagonal of each layer's kernel against width.",
        )
    ]
