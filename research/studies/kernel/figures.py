"""What `python -m research study kernel` shows, of new networks and along training, beside what PN
and TH found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelahead.simulation.comparison.plot_style import DOTS, INK
from labelahead.simulation.comparison.statistics import Estimate, t_interval
from research.studies.charts import (
    close_up,
    heading,
    legend_below,
    line,
    mean,
    means,
    over_seeds,
    panels,
    reference,
    slopes,
    span,
)
from research.studies.design import Row, StudyFigure, values, where
from research.studies.kernel import theorem_figures
from research.studies.quality import KINDS

__all__ = ["build_figures", "slope"]

TITLES = {
    "fcn": "fcn (3 hidden layers)",
    "convnet": "convnet (8 layers)",
    "resnet18": "ResNet18",
    "wrn16": "WideResNet-16-k",
}
THEORY, GOAL = -0.5, 0.15  # the slope, and how near counts as near


def build_figures(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """All exhibits for the parts that were measured."""
    made = {
        "rate": rates,
        "variants": variants,
        "bound": bounds,
        "theorems": theorem_figures.theorems,
        "layers": theorem_figures.layers,
        "training": build_training_figures,
    }
    own = {part: where(rows, part=part) for part in s.parts}
    return [e for part, mine in own.items() if mine for e in made[part](s, mine)]


# --- new networks
# -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slope:
    """Of a straight line through log y against log width; error: standard, None for one seed."""

    value: float
    error: float | None

    def __str__(self) -> str:
        text = f"{self.value:.2f}" + (f" ± {self.error:.2f}" if self.error is not None else "")
        return text.replace("-", "−")


def slope(rows: Sequence[Row], name: str) -> Slope | None:
    """The mean over seeds; None for a single width."""
    each = slopes(rows, "width", name)
    if not each:
        return None
    error = float(np.std(each, ddof=1)) / len(each) ** 0.5 if len(each) > 1 else None
    return Slope(float(np.mean(each)), error)


def rates(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """PN Figs 2 and 3 at initialisation, as rates in the width."""
    names = _networks(rows)
    figure, axes = panels(len(names), columns=2)
    table: list[Row] = []
    for name, here in zip(names, axes, strict=True):
        mine = where(rows, network=name)
        for number, kind in enumerate(KINDS):
            line(here, *means(mine, "width", f"error_{kind}"), number, kind)
        _guide(here, mine, "error_pseudo")
        _logarithmic(here, mine)
        heading(here, TITLES[name])
        widths = values(mine, "width")
        table.append(
            {
                "network": name,
                "widths": f"{widths[0]:g} to {widths[-1]:g}",
                **{f"slope, {kind}": _format_slope(mine, f"error_{kind}") for kind in KINDS},
                "slope, pseudo, wider half": _format_slope(_select_wide_half(mine), "error_pseudo"),
                "slope, pseudo, PN's ratio": _format_slope(mine, "distance_pseudo"),
                "slope, off/on diagonal": _format_slope(mine, "off_over_on"),
                "pseudo at the widest": mean(_widest(mine), "distance_pseudo"),
                "trace/pseudo": mean(mine, lambda r: r["distance_trace"] / r["distance_pseudo"]),
                "single/pseudo": mean(mine, lambda r: r["distance_single"] / r["distance_pseudo"]),
            }
        )
    for here in axes[::2]:
        here.set_ylabel("error of K⊗I")
    legend_below(figure, axes[0], 4)
    ours, theirs = (
        _list_slopes({name: where(rows, network=name) for name in names}, value)
        for value in ("error_pseudo", "distance_pseudo")
    )
    share, single = ([r[f"{kind}/pseudo"] for r in table] for kind in ("trace", "single"))
    C = rows[0]["classes"]
    return [
        StudyFigure(
            "rate",
            "New networks: how fast does the error fall with the width?",
            f"{s.rate_items} items of {s.data}, {s.rate_seeds} seeds a width, new weights, "
            "BatchNorm's statistics "
            "settled on the data. Error: ‖K⊗I − Θ‖ over the norm of the trace kernel ⊗ I; dotted: "
            "width^(−1/2), the "
            "rate of PN's Theorem 1 (TH 3.3.1). Slopes (± standard error over seeds) of the "
            f"pseudo-NTK: {ours} "
            "(table: also from the middle width on). PN's own ratio divides by ‖Θ‖, which "
            "contains the error, so that "
            f"it cannot grow much beyond one: {theirs}. The other norm and the settling of "
            "BatchNorm were chosen after "
            "a pilot with PN's; judge by both. No scalar kernel can come nearer to Θ than the "
            "trace kernel, its "
            f"projection: here {min(share):.2f} to {max(share):.2f} of the pseudo-NTK's distance "
            "(Gaussian read-out "
            f"weights would give √((C+2)/(C+4)) = {((C + 2) / (C + 4)) ** 0.5:.2f} at {C} "
            "classes), for C times the "
            "work. PN argue that single logit and sum of logits are alike at initialisation: "
            "their distances differ by "
            f"factors of {min(single):.2f} to {max(single):.2f} here.",
            figure=figure,
            table=table,
        )
    ]


def variants(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """TH A.7.5: other activations and truncated weights."""
    by_name = {v: mine for v in (*s.activations, "truncated") if (mine := where(rows, variant=v))}
    figure, (axes,) = panels(1, height=3.8)
    table: list[Row] = []
    for number, (name, mine) in enumerate(by_name.items()):
        label = "relu, truncated weights" if name == "truncated" else name
        line(axes, *means(mine, "width", "error_pseudo"), number, label, band=False)
        table.append(
            {
                "fcn with": label,
                "slope, error": _format_slope(mine, "error_pseudo"),
                "slope, PN's ratio": _format_slope(mine, "distance_pseudo"),
                "slope, off/on diagonal": _format_slope(mine, "off_over_on"),
                **{
                    f"width {w:g}": mean(where(mine, width=w), "distance_pseudo")
                    for w in values(mine, "width")
                },
            }
        )
    _guide(axes, next(iter(by_name.values())), "error_pseudo")
    _logarithmic(axes, rows)
    axes.set_ylabel("error of the pseudo-NTK ⊗ I")
    axes.legend(ncols=2)
    at_widest = [mean(_widest(mine), "distance_pseudo") for mine in by_name.values()]
    spread = max(at_widest) / min(at_widest)
    verdict = "no more than constants differ" if spread < 1.5 else "constants differ by that much"
    return [
        StudyFigure(
            "variants",
            "Other activations, other initial weights",
            "The fcn again. TH (A.7.5) expects the same rate with other constants for every "
            "activation that behaves, "
            "and for truncated normal weights, and calls the influence marginal. Slopes here: "
            f"{_list_slopes(by_name, 'error_pseudo')}. At the widest the distances (columns “width”: "
            "PN's ratio) differ by "
            f"a factor of {spread:.2f}: {verdict}. Truncated weights have the same standard "
            "deviation.",
            figure=figure,
            table=table,
        )
    ]


def bounds(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """TH Fig A.10: how tight is the bound?"""
    figure, (left, right) = panels(2, height=3.6)
    line(left, *means(rows, "width", "relative_bound"), 1, "PN's bound, δ = 0.05")
    line(left, *means(rows, "width", "relative"), 0, "measured")
    _logarithmic(left, rows)
    left.set_ylabel("relative distance of a pair's block")
    left.legend()
    line(right, *means(rows, "width", "scaled"), 0, "measured × √width")
    _logarithmic(right, rows, both=False)
    right.set_ylim(bottom=0)
    right.set_ylabel("relative distance × √width")
    broken = sum(r["violated"] for r in rows)
    columns = {
        "distance": "distance",
        "PN's bound": "bound",
        "distance / bound": "tightness",
        "relative": "relative",
        "relative bound": "relative_bound",
        "relative × √width": "scaled",
    }
    table = [
        {"width": w, **{title: mean(where(rows, width=w), name) for title, name in columns.items()}}
        for w in values(rows, "width")
    ]
    loose = [1 / row["distance / bound"] for row in table]
    return [
        StudyFigure(
            "bound",
            "Is the bound tight?",
            f"‖Θ̂⊗I − Θ‖ of single pairs of items (fcn, {s.bound_items} items, {s.rate_seeds} "
            "seeds) beside PN's "
            "explicit bound (PN-22) with α, the largest entry of the hidden kernel, measured. It "
            "was exceeded "
            f"{broken} times of {s.bound_items**2 * len(rows)}, and is {min(loose):,.0f} to "
            f"{max(loose):,.0f} times "
            "what it bounds. Relative to ‖Θ‖ its slope in the width is "
            f"{_format_slope(rows, 'relative_bound')}: it allows "
            "every entry of the hidden kernel the size of the diagonal ones, which are √width "
            "times larger. TH "
            "therefore states the rate anew, relative to ‖Θ‖, with unnamed constants, and shows "
            "its tightness (Fig "
            f"A.10). Measured slope: {_format_slope(rows, 'relative')}, from the middle width on "
            f"{_format_slope(_select_wide_half(rows), 'relative')}; where the rate width^(−1/2) is tight the curve "
            "on the right is level.",
            figure=figure,
            table=table,
        )
    ]


def _format_slope(rows: Sequence[Row], name: str) -> str:
    return str(slope(rows, name) or "–")


def _list_slopes(rows: dict[str, list[Row]], value: str) -> str:
    """Slopes by network or variant, and how many are near the theory's."""
    each = {name: own for name, mine in rows.items() if (own := slope(mine, value)) is not None}
    if not each:
        return "none, for there is one width"
    near = sum(abs(v.value - THEORY) <= GOAL for v in each.values())
    listed = "; ".join(f"{name} {v}" for name, v in each.items())
    return f"{listed}; {near} of {len(each)} within {GOAL} of −1/2"


def _guide(axes: Any, rows: Sequence[Row], name: str) -> None:
    """A line of slope −1/2 through the widest mean."""
    at = np.array(values(rows, "width"), float)
    end = mean(_widest(rows), name)
    axes.plot(
        at,
        end * (at / at[-1]) ** THEORY,
        color=INK,
        ls=DOTS,
        lw=1.4,
        zorder=2,
        label="width^(−1/2)",
    )


def _logarithmic(axes: Any, rows: Sequence[Row], both: bool = True) -> None:
    at = values(rows, "width")
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, [f"{w:g}" for w in at])
    axes.set_xlabel("width")
    if both:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
        axes.yaxis.set_minor_formatter(lambda v, _: f"{v:g}" if f"{v:e}"[0] in "235" else "")


def _select_wide_half(rows: Sequence[Row]) -> list[Row]:
    """From the middle width on: where the rate, which is one for large widths, should hold best."""
    at = values(rows, "width")
    return [r for r in rows if r["width"] >= at[(len(at) - 1) // 2]]


# --- along training
# -----------------------------------------------------------------------------------------


def build_training_figures(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """All exhibits that trained networks give."""
    made = (_diagonality, _distance, _spectrum, _outputs, _accuracy, _cost)
    return [make(s, rows, _networks(rows)) for make in made]


def _diagonality(s: Any, rows: Sequence[Row], names: Sequence[str]) -> StudyFigure:
    """PN Fig 2."""
    figure, axes = panels(len(names), columns=2, height=2.9)
    for name, here in zip(names, axes, strict=True):
        _draw_by_width(here, where(rows, network=name), "off_over_on")
        heading(here, TITLES[name])
        here.set_ylabel("mean |off| / mean |on|")
        here.set_ylim(bottom=0)
        here.legend(fontsize=8)
    first, last = _both_ends(s, rows)
    grown = [
        n for n in names if _at_widest(last, n, "off_over_on") > _at_widest(first, n, "off_over_on")
    ]
    return StudyFigure(
        "diagonality",
        "Along training: is the full kernel diagonal?",
        f"Each network is trained on {s.items} items of {s.data} by SGD ({s.steps} steps, batch "
        f"{s.batch}, rate "
        f"{s.rate:g}, {s.loss} loss; {s.seeds} seeds), and the kernels are taken of the same "
        "items. Mean |entry| off "
        "the diagonal over mean |entry| on it, over the C×C blocks of all pairs of items. PN (Fig "
        "2) find it falling "
        "with the width before training, and not diagonal for practical widths. Here the widest "
        "networks have "
        f"{_extent(first, names, 'off_over_on')} at the start and "
        f"{_extent(last, names, 'off_over_on')} at the end; "
        f"training makes the blocks less diagonal for {', '.join(grown) or 'none of them'}.",
        figure=figure,
    )


def _distance(s: Any, rows: Sequence[Row], names: Sequence[str]) -> StudyFigure:
    """PN Fig 3, with two further substitutes."""
    figure, axes = panels(len(names), columns=2, height=2.9)
    first, last = _both_ends(s, rows)
    table: list[Row] = []
    for name, here in zip(names, axes, strict=True):
        mine = _widest(where(rows, network=name))
        for number, kind in enumerate(KINDS):
            line(here, *means(mine, "checkpoint", f"distance_{kind}"), number, kind)
        heading(here, f"{TITLES[name]}, width {mine[0]['width']:g}")
        here.set(ylabel="‖K⊗I − Θ‖ / ‖Θ‖", ylim=(0, 1.3))
        _percent_axis(here)
        for width in values(where(rows, network=name), "width"):
            row: dict[str, Any] = {"network": name, "width": width}
            for part, word in ((first, "start"), (last, "end")):
                at = where(part, network=name, width=width)
                row |= {
                    f"{kind}, {word}": span(over_seeds(at, f"distance_{kind}")) for kind in KINDS
                }
            table.append(row)
    legend_below(figure, axes[0], 3)
    ends = {name: _widest(where(last, network=name)) for name in names}
    worse = [
        n
        for n, end in ends.items()
        if all(r["distance_pseudo"] > 1.1 * r["distance_trace"] for r in end)
    ]
    up = [
        n
        for n in names
        if _at_widest(last, n, "distance_pseudo") > _at_widest(first, n, "distance_pseudo")
    ]
    return StudyFigure(
        "distance",
        "Along training: how far is each substitute from the full kernel?",
        "Relative Frobenius distance for the widest network of each kind; bands: 95 % over seeds. "
        "PN (Fig 3) find the "
        "pseudo-NTK's distance falling with the width at the start, and no longer after some "
        "epochs. Here it ends "
        f"above its start for {', '.join(up) or 'none'}. New: the other two substitutes. After "
        "training the pseudo-NTK "
        "is more than a tenth farther from the full kernel than the trace kernel, with every "
        "seed, for "
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


def _spectrum(s: Any, rows: Sequence[Row], names: Sequence[str]) -> StudyFigure:
    """PN Figs 4, 5 and 6."""
    figure, axes = panels(3 * len(names), columns=3, height=2.3)
    words = {"largest": "λ max", "smallest": "λ min", "condition": "condition"}
    table: list[Row] = []
    for i, name in enumerate(names):
        mine = where(rows, network=name)
        for here, value in zip(axes[3 * i : 3 * i + 3], words, strict=True):
            _draw_by_width(here, mine, f"{value}_gap_pseudo", band=False)
            heading(here, f"{name}: {words[value]}")
            if value == "smallest":
                here.set_yscale("log")
            else:  # never above one: the spectrum lies within the full one's
                here.set_ylim(0, 1.05)
            if i < len(names) - 1:
                here.set_xlabel("")
        for part in (s.checkpoints[0], s.checkpoints[-1]):
            at = where(_widest(mine), checkpoint=part)
            row: dict[str, Any] = {
                "network": name,
                "width": at[0]["width"],
                "training": f"{part:.0%}",
            }
            for value, word in words.items():
                row |= {
                    f"{word}, {kind}": _median(at, f"{value}_{kind}")
                    for kind in ("full", "pseudo", "trace")
                }
            table.append(row)
    _legends(figure, axes, names)
    falls = [
        name
        for name in names
        if _falls(where(_both_ends(s, rows)[0], network=name), "largest_gap_pseudo")
    ]
    lost = sum(r["condition_full"] is None for r in rows)
    inside = sum(
        r["largest_pseudo"] <= r["largest_full"] and r["smallest_pseudo"] >= r["smallest_full"]
        for r in rows
    )
    return StudyFigure(
        "spectrum",
        "The ends of the spectrum",
        "Relative difference |λ̂ − λ| / λ of the pseudo-NTK's largest and smallest eigenvalue and "
        "of the condition "
        "number from the full kernel's, against the part of training done; one line a width. PN "
        "(Figs 4 to 6) find all "
        "three falling with the width at the start, and very large values for the convnet, whose "
        "smallest eigenvalue "
        "is nearly zero. Here the gap of the largest falls from the narrowest to the widest for "
        f"{', '.join(falls) or 'none'}. The pseudo-NTK is the full kernel seen along one "
        "direction of the outputs, so "
        "its spectrum lies within the full one's, and its condition number is never larger "
        f"({inside} of {len(rows)} "
        f"measurements agree). In {lost} of {len(rows)} the full kernel's smallest eigenvalue is "
        "lost in the rounding "
        "of double precision (too few parameters or dead units); these are left out of λ min and "
        "the condition. Table: "
        "medians over seeds.",
        figure=figure,
        table=table,
    )


def _legends(figure: Any, axes: Sequence[Any], names: Sequence[str]) -> None:
    """One for all if there is one network.

    Else in every panel, for widths differ from network to network.
    """
    if len(names) == 1:
        legend_below(figure, axes[0], 4)
    else:
        for here in axes:
            if here.get_lines():
                here.legend(fontsize=7)


def _outputs(s: Any, rows: Sequence[Row], names: Sequence[str]) -> StudyFigure:
    """PN Fig 7, and what it leaves out."""
    figure, axes = panels(2 * len(names), columns=2, height=2.5)
    for i, name in enumerate(names):
        mine = where(rows, network=name)
        for here, value, word in (
            (axes[2 * i], "output_gap_pseudo", "of the outputs"),
            (axes[2 * i + 1], "step_gap_pseudo", "of what the regression adds"),
        ):
            _draw_by_width(here, mine, value, band=False)
            heading(here, f"{name}: {word}")
            here.set_ylabel("relative difference")
            here.set_ylim(bottom=0)
            if value == "step_gap_pseudo":
                reference(here, 1.0)
    _legends(figure, axes, names)
    first, last = _both_ends(s, rows)
    fit = [n for n in names if _at_widest(last, n, "train_accuracy") > 0.95]
    judged = fit or names
    who = (
        f"For the networks that fit their training set ({', '.join(fit)}) it is "
        if fit
        else "Here no network fits its training set: it is "
    )
    before, after = (_average(at, judged, "step_gap_pseudo") for at in (first, last))
    less = _average(last, judged, "output_gap_pseudo") < _average(
        first, judged, "output_gap_pseudo"
    )
    apart = bool(fit) and less and after >= 0.8 * before
    return StudyFigure(
        "regression",
        "Kernel regression: do both kernels predict the same?",
        f"f_lin from f by the full and by the pseudo kernel (PN-5, PN-6; {s.items} items, "
        f"{s.test} test items, "
        f"regulariser {s.noise:g}). Left: ‖f̂_lin − f_lin‖ / ‖f_lin‖, as PN measure it; they are "
        "surprised that it "
        "vanishes along training while the kernels part (Fig 7). "
        f"{who}{_extent(first, judged, 'output_gap_pseudo')} "
        f"at the start and {_extent(last, judged, 'output_gap_pseudo')} at the end. Right: the "
        "same difference "
        f"relative to f_lin − f, what the regression adds: {after:.2f} at the end and "
        f"{before:.2f} at the start, on "
        "average over these networks. "
        + (
            "So PN's surprise has a plain cause: a network that fits its labels leaves no "
            "residual, neither kernel has anything to add, and f̂_lin and f_lin agree because both "
            "are f; what the kernels themselves would do has not come closer."
            if apart
            else "So what the kernels add comes closer, too."
            if after < 0.8 * before
            else ""
        ),
        figure=figure,
        table=[
            {
                "network": n,
                "width": mine[0]["width"],
                "training": f"{c:.0%}",
                "residual ‖Y − f‖/‖Y‖": mean(mine, "residual"),
                **{f"outputs, {k}": mean(mine, f"output_gap_{k}") for k in KINDS},
                **{f"added, {k}": mean(mine, f"step_gap_{k}") for k in KINDS},
            }
            for n in names
            for c in s.checkpoints
            for mine in [where(_widest(where(rows, network=n)), checkpoint=c)]
        ],
    )


def _accuracy(s: Any, rows: Sequence[Row], names: Sequence[str]) -> StudyFigure:
    """PN Figs 8 to 12."""
    figure, axes = panels(len(names), columns=2, height=3.0)
    labels = {"f": "f itself", **{kind: f"f_lin, {kind}" for kind in ("full", *KINDS)}}
    for name, here in zip(names, axes, strict=True):
        mine = _widest(where(rows, network=name))
        percent: list[Row] = [
            {**r, **{kind: 100 * r[f"accuracy_{kind}"] for kind in labels}} for r in mine
        ]
        for number, (kind, label) in enumerate(labels.items()):
            line(here, *means(percent, "checkpoint", kind), number, label, band=False)
        heading(here, f"{TITLES[name]}, width {mine[0]['width']:g}")
        here.set_ylabel("test accuracy, %")
        close_up(here, low=0, high=100.5)
        _percent_axis(here)
    legend_below(figure, axes[0], 5)
    first, last = _both_ends(s, rows)
    start, end = (
        span(_points_ahead(at, "accuracy_pseudo", "accuracy_full"), 1) for at in (first, last)
    )
    better = sum(r["accuracy_pseudo"] >= r["accuracy_full"] for r in rows)
    over = _points_ahead(last, "accuracy_pseudo", "accuracy_f")
    return StudyFigure(
        "accuracy",
        "Accuracy of the network, and of regression from it",
        "Test accuracy of f and of f_lin by each kernel, widest networks, means over seeds. PN "
        "(Fig 8) find regression "
        "by the pseudo-NTK always more accurate than by the full kernel. Here it is at least as "
        f"accurate in {better} "
        f"of {len(rows)} measurements (all widths); points ahead: {start} at the start, {end} at "
        "the end. From trained "
        f"weights it is {span(over, 1)} points from f itself (PN Fig 11). One test set has "
        f"{s.test} items, so that a "
        "single line is good to a few points only.",
        figure=figure,
        table=[
            {
                "network": n,
                "width": w,
                "training": f"{c:.0%}",
                **{
                    label.removesuffix(" itself"): 100 * mean(mine, f"accuracy_{k}")
                    for k, label in labels.items()
                },
            }
            for n in names
            for w in values(where(rows, network=n), "width")
            for c in (s.checkpoints[0], s.checkpoints[-1])
            for mine in [where(rows, network=n, width=w, checkpoint=c)]
        ],
    )


def _cost(s: Any, rows: Sequence[Row], names: Sequence[str]) -> StudyFigure:
    """Seconds, memory, learning rates."""
    rates = sorted({r["learning_rate"] for r in rows}, reverse=True)
    fallen = [f"{r['network']} {r['width']:g}" for r in rows if r["learning_rate"] < s.rate]
    return StudyFigure(
        "cost",
        "What it took",
        "Seconds and megabytes of the full kernel (double precision), and the largest memory of "
        "the measuring process "
        f"so far. Learning rates: {', '.join(f'{r:g}' for r in rates)}"
        + (
            f"; fell back after divergence: {', '.join(dict.fromkeys(fallen))}."
            if fallen
            else "; none had to fall back."
        ),
        table=[
            {
                "network": n,
                "width": w,
                "rows of the full kernel": mine[0]["rows_of_full"],
                "its MB": mine[0]["kernel_megabytes"],
                "s": mean(mine, "kernel_seconds"),
                "peak MB": max(r["peak_megabytes"] for r in mine),
                "train accuracy at the end": mean(
                    where(mine, checkpoint=s.checkpoints[-1]), "train_accuracy"
                ),
            }
            for n in names
            for w in values(where(rows, network=n), "width")
            for mine in [where(rows, network=n, width=w)]
        ],
    )


def _draw_by_width(axes: Any, rows: Sequence[Row], name: str, band: bool = True) -> None:
    """One line a width, against the part of the run."""
    for number, width in enumerate(values(rows, "width")):
        mine = [r for r in where(rows, width=width) if r[name] is not None]
        if mine:
            line(axes, *means(mine, "checkpoint", name), number, f"width {width:g}", band)
    _percent_axis(axes)


def _percent_axis(axes: Any) -> None:
    """Parts of the run as per cent."""
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
    axes.set_xlabel("part of the training, %")


# --- rows
# ---------------------------------------------------------------------------------------------------


def _networks(rows: Sequence[Row]) -> list[str]:
    return [n for n in TITLES if where(rows, network=n)]


def _both_ends(s: Any, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The rows before and after all training."""
    return where(rows, checkpoint=s.checkpoints[0]), where(rows, checkpoint=s.checkpoints[-1])


def _widest(rows: Sequence[Row]) -> list[Row]:
    return where(rows, width=max(r["width"] for r in rows))


def _at_widest(rows: Sequence[Row], name: str, value: str) -> float:
    """The mean over the widest networks of that name."""
    return mean(_widest(where(rows, network=name)), value)


def _average(rows: Sequence[Row], names: Sequence[str], value: str) -> float:
    """Over the widest networks of these names."""
    return sum(_at_widest(rows, n, value) for n in names) / len(names)


def _extent(rows: Sequence[Row], names: Sequence[str], value: str) -> str:
    """Smallest to largest mean over the widest networks."""
    each = [_at_widest(rows, n, value) for n in names]
    low, high = f"{min(each):.2g}", f"{max(each):.2g}"
    return low if low == high else f"{low}–{high}"


def _median(rows: Sequence[Row], name: str) -> float | None:
    """Over all rows that have a value."""
    known = [r[name] for r in rows if r[name] is not None]
    return float(np.median(known)) if known else None


def _falls(rows: Sequence[Row], value: str) -> bool:
    """Whether the median is lower at the widest network than at the narrowest, of those that have
    one.
    """
    each = [_median(where(rows, width=w), value) for w in values(rows, "width")]
    known = [v for v in each if v is not None]
    return len(known) > 1 and known[-1] < known[0]


def _points_ahead(rows: Sequence[Row], ours: str, other: str) -> Estimate:
    """Mean difference of accuracies in points, over networks and widths; one value a seed."""
    each = [
        mean(where(rows, seed=k), lambda r: 100 * (r[ours] - r[other]))
        for k in values(rows, "seed")
    ]
    return t_interval(np.array(each))
