"""What the measurements of `python -m research study linear` show, beside what the lecture (LE)
claims.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from labelahead.simulation.comparison.plot_style import DOTS, INK, PALETTE
from labelahead.simulation.comparison.statistics import Estimate, t_interval
from research.studies.charts import heading, line, means, over_seeds, panels, slopes, span
from research.studies.design import Row, StudyFigure, where
from research.studies.linear import wide_figures

__all__ = ["build_figures", "slope"]


def build_figures(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """All exhibits for the parts that were measured."""
    made = {
        "error": errors,
        "limit": limits,
        "flow": flows,
        "lazy": lazy,
        "warm": warm,
        "supremum": wide_figures.supremum,
        "drift": wide_figures.drift,
        "trained": wide_figures.draw_trained_networks,
        "universal": wide_figures.universal,
        "separation": wide_figures.separation,
    }
    return [made[part](s, where(rows, part=part)) for part in s.parts]


def slope(rows: Sequence[Row], x: str, y: str) -> Estimate:
    """The exponent of y in x, with its interval over seeds."""
    return t_interval(np.array(slopes(rows, x, y)))


def _logs(axes: Any, x: str, y: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)


def errors(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """Linearisation error against width, with the bounds."""
    figure, axes = panels(2, height=3.6, share_y=True)
    fits = {}
    for panel, name in zip(axes, ("tanh", "relu"), strict=True):
        mine = where(rows, activation=name)
        line(panel, *means(mine, "width", "error"), 0, "measured", band=False)
        line(panel, *means(mine, "width", "bound"), 2, "the lecture's bound", band=False)
        if name == "tanh":
            line(panel, *means(mine, "width", "worst"), 1, "worst direction", band=False)
        _logs(panel, "width m", "largest |f − f_lin|")
        heading(panel, name)
        panel.legend(fontsize=9)
        fits[name] = slope(mine, "width", "error")
    smooth = where(rows, activation="tanh")
    wide = [r for r in smooth if r["width"] >= s.widths[-min(3, len(s.widths))]]
    closest = max(r["error"] / r["bound"] for r in smooth)
    broken = sum(r["error"] > r["bound"] for r in rows)
    far = [over_seeds(where(smooth, width=w), "distance") for w in (s.widths[0], s.widths[-1])]
    return StudyFigure(
        "error",
        "The linearisation error falls with width",
        f"The network is trained on {s.items} points for {s.steps} steps of gradient descent and "
        "compared with its linearisation at the initial weights, moved as far. Lecture: for smooth "
        "σ the error is at most β/(2√m)·‖W − W₀‖², for any W; for ReLU at most (2·∛B⁴ + "
        "B·∜log(1/δ))/⁶√m within ‖W − W₀‖ ≤ B, with probability 1 − δ (drawn: δ = 0.05). "
        f"We find {broken or 'none'} of {len(rows)} errors above the bound; the closest for tanh "
        f"has {100 * closest:.0f} % of it. The exponent of m after training is "
        f"{span(fits['tanh'])} for tanh and {span(fits['relu'])} for ReLU, where the bounds "
        f"have −0.5 and −1/6 as long as ‖W − W₀‖ stays the same (from "
        f"{far[0].mean:.1f} at m = {s.widths[0]} to {far[1].mean:.1f} at m = {s.widths[-1]}). "
        "The difference is in the signs aⱼ: they are random, so that second-order terms cancel. "
        "Moved as far in a direction where they add up "
        f"(worst direction, at one point), the exponent is {span(slope(wide, 'width', 'worst'))} "
        f"from m = {wide[0]['width']} on, below which single units move so far that they saturate.",
        figure=figure,
        table=[
            {
                "activation": a,
                "width": m,
                **{
                    k: over_seeds(of, k).mean for k in ("error", "bound", "distance", "train_error")
                },
            }
            for a in ("tanh", "relu")
            for m in s.widths
            if (of := where(rows, activation=a, width=m))
        ],
        alt="Linearisation error against width on logarithmic axes, below its bound.",
    )


def limits(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """The empirical kernel against the arc-cosine kernel."""
    figure, (axes,) = panels(1, height=3.2)
    at, gap = means(rows, "width", "error")
    line(axes, at, gap, 0, "measured")
    axes.plot(
        at,
        [gap[0].mean * (m / at[0]) ** -0.5 for m in at],
        color=INK,
        ls=DOTS,
        lw=1.4,
        label="slope −1/2",
    )
    _logs(axes, "width m", "relative error of the kernel")
    axes.legend(fontsize=9)
    fit = slope(rows, "width", "error")
    return StudyFigure(
        "limit",
        "The kernel of a wide ReLU network is the arc-cosine kernel",
        "The tangent kernel of random networks, by the product's own engine, against the closed "
        "form of infinite width, x·x'·(1/2 − arccos(x·x')/2π) (lecture). The relative error is "
        f"{gap[0].mean:.2g} at m = {at[0]} and {gap[-1].mean:.2g} at m = {at[-1]}; its "
        f"exponent is {span(fit)}. A mean of m independent units has −0.5. Band: 95 % over seeds.",
        figure=figure,
        alt="Error of the kernel against width on logarithmic axes; a line of slope −1/2.",
    )


def flows(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """Closed-form trajectories against gradient descent."""
    figure, axes = panels(3, height=3.3)
    for panel, m in zip(axes, (s.flow_widths[0], s.flow_widths[-1]), strict=False):
        mine = where(rows, width=m, seed=0)
        for i in range(len(mine[0]["real"])):
            color = PALETTE[i][0]
            time = [r["time"] for r in mine]
            panel.plot(time, [r["predicted"][i] for r in mine], color=color, lw=1.8)
            panel.plot(time, [r["real"][i] for r in mine], color=color, ls="", marker="o", ms=5)
        panel.set_xscale("symlog", linthresh=0.3)
        panel.set(xlabel="training time · λ_max", ylabel="outputs at new points")
        heading(panel, f"m = {m}: line predicted, dots real")
    late = [r for r in rows if r["steps"] > 0]
    for number, m in enumerate(s.flow_widths):
        line(axes[2], *means(where(late, width=m), "time", "error"), number, f"m = {m}", band=False)
    _logs(axes[2], "training time · λ_max", "relative error")
    axes[2].legend(fontsize=8)
    last = s.flow_marks[-1]
    ends = where(rows, steps=last)
    few, many = (
        over_seeds(where(ends, width=m), "error") for m in (s.flow_widths[0], s.flow_widths[-1])
    )
    return StudyFigure(
        "flow",
        "Gradient flow in closed form follows real training",
        "f_t(x) = f(x) + Θ(x,X) Θ(X,X)⁻¹ (I − e^{−tΘ}) (Y − f(X)), from the kernel at the start "
        f"(LA-5), against gradient descent with steps of {s.flow_step:g}/λ_max. At the end of "
        f"{last} steps they are {span(few)} apart at new points, relative to how far training "
        f"went, for m = {s.flow_widths[0]} and {many.mean:.1g} for m = {s.flow_widths[-1]}; the "
        f"exponent of m is {span(slope(ends, 'width', 'error'))}. Early in training even narrow "
        "networks are linear, and what is left then is the length of the steps.",
        figure=figure,
        alt="Trajectories of outputs, predicted and real; error against time by width.",
    )


def lazy(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """What moves, against the scale of the outputs."""
    figure, (left, right) = panels(2, height=3.4)
    names = {
        "distance": "distance to linearised predictions",
        "kernel_moved": "kernel movement",
        "weights_moved": "weight movement",
    }
    tests = {"test_error": "squared error", "linear_test_error": "of the linearised network"}
    for number, (key, name) in enumerate(names.items()):
        line(left, *means(rows, "scale", key), number, name, band=False)
    _logs(left, "output scale α", "relative size")
    left.legend(fontsize=8)
    line(right, *means(rows, "scale", "test_error"), 3, "network")
    line(right, *means(rows, "scale", "linear_test_error"), 4, "linearised network")
    right.set(xscale="log", xlabel="output scale α", ylabel="squared error at new points")
    right.legend(fontsize=9)
    wide = [r for r in rows if r["scale"] >= 1]
    low, high = (
        over_seeds(where(rows, scale=a), "kernel_moved") for a in (s.scales[0], s.scales[-1])
    )
    return StudyFigure(
        "lazy",
        "Larger outputs, lazier training",
        f"Width m = {s.lazy_width} stays; the outputs α(f − f₀) are scaled, and the loss divided "
        "by α² (Chizat & Bach; "
        "the lecture says that a small scale “zooms in” on the Taylor expansion: a large α lets "
        "the weights move as "
        f"little as 1/α). The kernel moves by {low.mean:.2g} of its size at "
        f"α = {s.scales[0]:g} and {high.mean:.2g} at α = {s.scales[-1]:g}. From α = 1 on, "
        "exponents of α are "
        f"{span(slope(wide, 'scale', 'weights_moved'))} for the weights, "
        f"{span(slope(wide, 'scale', 'kernel_moved'))} "
        f"for the kernel and {span(slope(wide, 'scale', 'distance'))} for the distance to the "
        "linearised network: "
        "theory says −1 for all of them, until what is left of the distance is the length of the "
        "steps. So any width "
        "can be made linear; the right panel shows what that does to the error on this task.",
        figure=figure,
        table=[
            {
                "α": a,
                **{v: over_seeds(where(rows, scale=a), k).mean for k, v in (names | tests).items()},
            }
            for a in s.scales
        ],
        alt="Movement of kernel and weights against the output scale, falling.",
    )


def warm(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """Theorem 3.1 of LA."""
    keys = list(dict.fromkeys((r["kind"], r["time"], r["width"]) for r in rows))
    apart = {
        k: over_seeds(where(rows, kind=k[0], time=k[1], width=k[2]), "difference") for k in keys
    }
    exact = max(r["difference"] for r in where(rows, kind="fixed kernel", time="∞"))
    real = where(rows, kind="real network")
    early = apart["fixed kernel", f"{s.warm_times[0]:g}", 0]
    first, last = (
        over_seeds(where(real, width=m), "difference").mean
        for m in (s.flow_widths[0], s.flow_widths[-1])
    )
    return StudyFigure(
        "warm",
        "One set after the other, or all at once: the same, if the kernel stands still",
        f"Theorem 3.1 of the look-ahead paper: training on {s.stages} growing sets, each time "
        "from where the last one "
        "ended, gives what training on the last set alone gives. The table has how far both end "
        "up apart at new "
        "points, relative to how far training went. With a fixed kernel and training to the end "
        "it holds to "
        f"{exact:.0e}, by the product's own solver. It needs both: stopped after a training time "
        "of "
        f"{s.warm_times[0]:g}/λ_max for each set, the difference is {span(early)}; and real "
        "networks, whose kernel "
        f"moves, differ by {first:.2g} at m = {s.flow_widths[0]} and {last:.2g} at m = "
        f"{s.flow_widths[-1]} (exponent "
        f"{span(slope(real, 'width', 'difference'))}).",
        table=[
            {
                "model": kind,
                "width": width or "any",
                "training time of each set · λ_max": time,
                "relative difference": e.mean,
                "95 % from": e.low and max(e.low, 0.0),
                "to": e.high,
            }
            for (kind, time, width), e in apart.items()
        ],
    )
