"""What the further measurements of `python -m research study linear` show.

Rates, suprema, limits, and where a kernel fails.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from labelahead.simulation.comparison.statistics import Estimate, t_interval
from research.studies.charts import heading, line, mean, means, over_seeds, panels, slopes, span
from research.studies.design import Row, StudyFigure, where

__all__ = ["draw_trained_networks", "drift", "separation", "supremum", "universal"]


def _slope(rows: Sequence[Row], x: str, y: str) -> Estimate:
    return t_interval(np.array(slopes(rows, x, y)))


def _logs(axes: Any, x: str, y: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    axes.legend(fontsize=8)


def supremum(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """The ReLU bound with its δ."""
    figure, axes = panels(len(s.radii), height=3.2, share_y=True)
    tight = s.deltas[-1]
    for panel, radius in zip(axes, s.radii, strict=True):
        mine = where(rows, radius=radius)
        line(panel, *means(mine, "width", "median"), 0, "supremum, median", band=False)
        line(
            panel,
            *means(mine, "width", f"quantile_{tight:g}"),
            1,
            f"supremum, quantile 1 − {tight:g}",
            band=False,
        )
        line(
            panel, *means(mine, "width", f"bound_{tight:g}"), 2, f"bound, δ = {tight:g}", band=False
        )
        _logs(panel, "width m", "sup |f − f_lin|")
        heading(panel, f"B = {radius:g}")
    above = {delta: max(r[f"above_{delta:g}"] for r in rows) for delta in s.deltas}
    wide = [r for r in rows if r["width"] >= s.sup_widths[(len(s.sup_widths) - 1) // 2]]
    by_width = {radius: _slope(where(wide, radius=radius), "width", "median") for radius in s.radii}
    by_radius = _slope(where(rows, width=s.sup_widths[-1]), "radius", "median")
    share = max(mean(where(rows, radius=b, width=m), lambda r: r["median"] / r[f"bound_{tight:g}"])
                for b in s.radii for m in s.sup_widths)  # fmt: skip
    broken = [f"{delta:g}" for delta, most in above.items() if most > delta]
    return StudyFigure(
        "supremum",
        "ReLU: the supremum itself, beside the lecture's bound and its δ",
        "sup |f − f_lin| at a point of norm 1 over all W with ‖W − W₀‖ ≤ B, in closed form: the "
        "units nearest to "
        "their kinks, "
        f"moved across together. {s.sup_draws} draws of the weights a width and seed. The "
        "lecture's bound, (2∛B⁴ + "
        "B∜log(1/δ))/⁶√m, "
        "may be exceeded with probability δ. We find it exceeded in "
        + ", ".join(f"{most:.1%} (δ = {delta:g})" for delta, most in above.items())
        + " of the draws at most, "
        + (
            f"more often than allowed for δ = {', '.join(broken)}"
            if broken
            else "never more often than allowed"
        )
        + (
            f"; the median supremum is up to {share:.0%} of the bound. Exponent of m in the wider "
            "half: "
        )
        + ", ".join(f"{span(v)} (B = {b:g})" for b, v in by_width.items())
        + f", where the bound has −1/6 = −0.17; exponent of B at m = {s.sup_widths[-1]}: "
        f"{span(by_radius)}, where it "
        "has 4/3 "
        "for large B. So the rate cannot be improved, only its constant.",
        figure=figure,
        table=[
            {
                "B": b,
                "m": m,
                "median": mean(mine, "median"),
                **{f"quantile 1 − {d:g}": mean(mine, f"quantile_{d:g}") for d in s.deltas},
                **{f"bound, δ = {d:g}": mean(mine, f"bound_{d:g}") for d in s.deltas},
            }
            for b in s.radii
            for m in s.sup_widths
            for mine in [where(rows, radius=b, width=m)]
        ],
        alt="Supremum of the linearisation error against width, below its bound and as steep.",
    )


def drift(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """LA-9, by width and depth."""
    figure, axes = panels(3, height=3.4)
    names = {
        "kernel_moved": "sup ‖Θ_t − Θ₀‖ / ‖Θ₀‖",
        "output_gap": "sup |f_t − f_t^lin|, root mean square",
        "limit_gap": "‖Θ₀ − Θ∞‖ / ‖Θ∞‖",
    }
    fits: dict[str, dict[int, Estimate]] = {name: {} for name in names}
    for panel, (value, title) in zip(axes, names.items(), strict=True):
        for number, depth in enumerate(s.depths):
            mine = where(rows, depth=depth)
            line(panel, *means(mine, "width", value), number, f"{depth} hidden", band=False)
            fits[value][depth] = _slope(mine, "width", value)
        _logs(panel, "width m", title)
    said = {
        name: ", ".join(f"{span(v)} ({d} hidden)" for d, v in each.items())
        for name, each in fits.items()
    }
    widest = s.drift_widths[-1]
    deep = {d: mean(where(rows, depth=d, width=widest), "limit_gap") for d in s.depths}
    far = {d: mean(where(rows, depth=d, width=widest), "kernel_moved") for d in s.depths}
    left = max(r["left"] for r in rows)
    by_depth, limit_by_depth = (
        _slope(where(rows, width=widest), "depth", k) for k in ("kernel_moved", "limit_gap")
    )
    return StudyFigure(
        "drift",
        "How far does the kernel move in training, by width and depth?",
        "ReLU networks in the NTK parametrisation, all layers trained by gradient descent on "
        f"{s.items} points until "
        "at most "
        f"{left:.2g} of the residual was left. The look-ahead paper (LA-9, after Lee et al. 2019) "
        "has sup_t ‖Θ_t − "
        "Θ_0‖ and sup_t "
        f"‖f_t − f_t^lin‖ as O(1/√width). Exponents of the width: kernel {said['kernel_moved']}; "
        "outputs "
        f"{said['output_gap']}; "
        f"distance of Θ₀ from its infinite limit {said['limit_gap']} (−0.5 in theory). "
        f"At width {widest} the kernel moves by {_list(far)} of its size with "
        f"{_list(deep, keys=True)} hidden layers, "
        "and is "
        f"{_list(deep)} from its limit; exponents of the depth {span(by_depth)} and "
        f"{span(limit_by_depth)}.",
        figure=figure,
        table=[
            {
                "hidden layers": d,
                "width": m,
                **{
                    title: mean(where(rows, depth=d, width=m), value)
                    for value, title in names.items()
                },
            }
            for d in s.depths
            for m in s.drift_widths
        ],
        alt=(
            "Movement of the kernel, gap of the outputs and distance from the limit against "
            "width, a line a depth."
        ),
    )


def _list(each: dict[int, float], keys: bool = False) -> str:
    return ", ".join(f"{k}" if keys else f"{v:.2g}" for k, v in each.items())


def draw_trained_networks(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """Theorem 3.2."""
    figure, (axes,) = panels(1, height=3.6)
    for number, kappa in enumerate(s.kappas):
        line(
            axes,
            *means(where(rows, kappa=kappa), "width", "distance"),
            number,
            f"κ = {kappa:g}",
            band=False,
        )
    _logs(axes, "width m", "distance from regression with the limit")
    widest = s.trained_widths[-1]
    ends = {k: over_seeds(where(rows, kappa=k, width=widest), "distance") for k in s.kappas}
    fits = {k: _slope(where(rows, kappa=k), "width", "distance") for k in s.kappas}
    best = min(ends, key=lambda k: ends[k].mean)
    short = sum(r["left"] > 0.05 for r in rows)
    return StudyFigure(
        "trained",
        "A trained network, and regression with the kernel of infinite width",
        f"κf with {s.trained_depth} hidden layers of ReLU units, trained on {s.items} points "
        f"({short} of {len(rows)} "
        "were left with more than a twentieth of the targets), against regression with the "
        "infinite kernel at new "
        "points, "
        "relative to its answer. Lecture, Theorem 3.2 (Arora et al. 2019): as near as one likes "
        "for small κ and a "
        "width that is "
        f"large for that κ. At width {widest}: "
        + "; ".join(f"κ = {k:g} {span(v)}" for k, v in ends.items())
        + f". Smallest at κ = {best:g}. Exponents of the width: "
        + "; ".join(f"κ = {k:g} {span(v)}" for k, v in fits.items())
        + (
            ". A large κ leaves the initial outputs in; a small one makes the weights move 1/κ, "
            "which needs width."
        ),
        figure=figure,
        table=[
            {
                "width": m,
                **{f"κ = {k:g}": mean(where(rows, kappa=k, width=m), "distance") for k in s.kappas},
            }
            for m in s.trained_widths
        ],
        alt=(
            "Distance between trained networks and the infinite kernel's regression against "
            "width, a line a scale."
        ),
    )


def universal(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """Where the arc-cosine kernel is universal, and where not."""
    figure, axes = panels(2, height=3.2, share_y=True)
    for panel, kind in zip(axes, ("odd", "even"), strict=True):
        for number, (place, name) in enumerate(
            (("sphere", "on the sphere"), ("raised", "with x_{d+1} = 1/√2"))
        ):
            line(
                panel,
                *means(where(rows, target=kind, place=place), "items", "error"),
                number,
                name,
                band=False,
            )
        _logs(panel, "points", "variance left at new points")
        heading(panel, {"odd": "odd target, x₁³", "even": "even target, x₁²x₂²"}[kind])
    most = s.universal_items[-1]
    end = {
        (kind, place): over_seeds(where(rows, target=kind, place=place, items=most), "error")
        for kind in ("odd", "even")
        for place in ("sphere", "raised")
    }
    blind = end["even", "sphere"].mean > 0.8 > end["even", "raised"].mean
    return StudyFigure(
        "universal",
        "Where the arc-cosine kernel can learn everything",
        "Lecture: 1/2 − arccos(x·x')/2π is universal on the part of the sphere where the last "
        "coordinate is 1/√2. On "
        "the whole "
        "sphere it is not: beyond a constant it has odd parts only. Regression without noise, "
        f"{s.universal_dimension} dimensions, {most} points: of the variance is left, for the odd "
        "target, "
        f"{span(end['odd', 'sphere'], 3)} on the sphere and {span(end['odd', 'raised'], 3)} with "
        "the constant "
        "coordinate; for the even one "
        f"{span(end['even', 'sphere'], 3)} and {span(end['even', 'raised'], 3)}. "
        + (
            "So it is: the constant coordinate makes even functions learnable."
            if blind
            else "The difference is smaller than theory has it."
        ),
        figure=figure,
        alt=(
            "Variance left against the number of points, for an odd and an even target, on the "
            "sphere and above it."
        ),
    )


def separation(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """One unit against kernels."""
    figure, axes = panels(len(s.separation_dimensions), height=3.2, share_y=True)
    names = {
        "unit": "one ReLU unit, trained",
        "tangent": "its own initial kernel",
        "infinite": "infinitely wide kernel",
    }
    for panel, d in zip(axes, s.separation_dimensions, strict=True):
        for number, (value, name) in enumerate(names.items()):
            line(panel, *means(where(rows, dimension=d), "items", value), number, name, band=False)
        _logs(panel, "points", "variance left at new points")
        heading(panel, f"{d} dimensions")
    most = s.separation_shares[-1]
    ends = {
        d: {k: over_seeds(where(rows, dimension=d, share=most), k) for k in names}
        for d in s.separation_dimensions
    }
    learnt = sum(r["unit"] < 1e-3 for r in where(rows, share=most))
    shares = "; ".join(
        f"{d} dimensions: unit {e['unit'].mean:.1g}, its kernel {span(e['tangent'])}, infinite "
        "kernel "
        f"{span(e['infinite'], 3)}"
        for d, e in ends.items()
    )
    return StudyFigure(
        "separation",
        "A target that training learns and a kernel does not",
        "y = max(0, w·x), x normal. The lecture (Yehudai & Shamir 2019; Malach et al. 2021): "
        "there are targets that "
        "gradient descent "
        "learns from few points and no fixed kernel can. One unit from a random start by gradient "
        "descent, against "
        "regression with "
        "its own tangent kernel at that start and with that of an infinitely wide network (the "
        "best of four "
        "regularisers, in "
        f"hindsight). Of the variance is left with {most:g} points a dimension: {shares}. The unit "
        "learns it to 0.1 % "
        f"in {learnt} of "
        f"{len(where(rows, share=most))} runs. (That no kernel at all can do it needs weights of "
        "length d², not "
        "measured.)",
        figure=figure,
        table=[
            {
                "dimensions": r["dimension"],
                "points": r["items"],
                "seed": r["seed"],
                **{n: r[k] for k, n in names.items()},
            }
            for r in where(rows, share=most)
        ],
        alt=(
            "Variance left against the number of points, for a trained unit and two kernels, a "
            "panel a dimension."
        ),
    )
