"""What `labelahead study kernel` shows of regression by the kernels of trained networks."""

from collections.abc import Sequence
from typing import Any

from labelahead.laboratory.charts import close_up, line, means, panels, reference, span
from labelahead.laboratory.experiment import Exhibit, Row, where
from labelahead.laboratory.kernel_rows import (
    TITLES,
    both_ends,
    draw_by_width,
    extent,
    mean,
    percent_axis,
    points_ahead,
    widest,
)
from labelahead.laboratory.quality import KINDS

__all__ = ["accuracy", "cost", "outputs"]


def outputs(s: Any, rows: Sequence[Row], names: Sequence[str]) -> Exhibit:
    """PN Fig 7, and what it leaves out."""
    figure, axes = panels(2 * len(names), columns=2, height=2.5)
    for i, name in enumerate(names):
        mine = where(rows, network=name)
        for here, value, word in (
            (axes[2 * i], "output_gap_pseudo", "of the outputs"),
            (axes[2 * i + 1], "step_gap_pseudo", "of what the regression adds"),
        ):
            draw_by_width(here, mine, value, band=False)
            here.set_title(f"{name}: {word}", loc="left", fontsize=10)
            here.set_ylabel("relative difference")
            here.set_ylim(bottom=0)
            if value == "step_gap_pseudo":
                reference(here, 1.0)
            here.legend(fontsize=7)
    first, last = both_ends(s, rows)
    fit = [n for n in names if mean(widest(last, n), "train_accuracy") > 0.95]
    where_fit = (
        f"For the networks that fit their training set ({', '.join(fit)}) it is "
        f"{extent(first, fit, 'output_gap_pseudo')} at the start and "
        f"{extent(last, fit, 'output_gap_pseudo')} at the end."
        if fit
        else "Here no network fits its training set: it is "
        f"{extent(first, names, 'output_gap_pseudo')} at the start and "
        f"{extent(last, names, 'output_gap_pseudo')} at the end."
    )
    before, after = (mean_of(at, fit or names, "step_gap_pseudo") for at in (first, last))
    less = mean_of(last, fit or names, "output_gap_pseudo") < mean_of(
        first, fit or names, "output_gap_pseudo"
    )
    apart = bool(fit) and less and after >= 0.8 * before
    return Exhibit(
        "regression",
        "Kernel regression: do both kernels predict the same?",
        f"f_lin from f by the full and by the pseudo kernel (PN-5, PN-6; {s.items} items, "
        f"{s.test} test items, regulariser {s.noise:g}). Left: ‖f̂_lin − f_lin‖ / ‖f_lin‖, as PN "
        "measure it; they are surprised that it vanishes along training while the kernels part "
        f"(Fig 7). {where_fit} Right: the same difference relative to f_lin − f, "
        f"what the regression adds: {after:.2f} at the end and {before:.2f} at the start, on "
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
            {"network": n, "width": w, "training": f"{c:.0%}",
             "residual ‖Y − f‖/‖Y‖": mean(mine, "residual"),
             **{f"outputs, {k}": mean(mine, f"output_gap_{k}") for k in KINDS},
             **{f"added, {k}": mean(mine, f"step_gap_{k}") for k in KINDS}}
            for n in names for w in [max(r["width"] for r in where(rows, network=n))]
            for c in s.checkpoints
            for mine in [where(rows, network=n, width=w, checkpoint=c)]
        ],
    )  # fmt: skip


def mean_of(rows: Sequence[Row], names: Sequence[str], value: str) -> float:
    """Over the widest networks of these names."""
    return sum(mean(widest(rows, n), value) for n in names) / len(names)


def accuracy(s: Any, rows: Sequence[Row], names: Sequence[str]) -> Exhibit:
    """PN Figs 8 to 12."""
    figure, axes = panels(len(names), columns=2, height=3.0)
    for name, here in zip(names, axes, strict=True):
        mine = widest(rows, name)
        for number, kind in enumerate(("f", "full", *KINDS)):
            found = means(mine, "checkpoint", lambda r, k=kind: 100 * r[f"accuracy_{k}"])  # type: ignore[misc]
            label = "f itself" if kind == "f" else f"f_lin, {kind}"
            line(here, *found, number, label, band=False)
        here.set_title(f"{TITLES[name]}, width {mine[0]['width']:g}", loc="left", fontsize=10)
        here.set_ylabel("test accuracy, %")
        close_up(here, low=0, high=100.5)
        percent_axis(here)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    first, last = both_ends(s, rows)
    gain = {w: points_ahead(r, "accuracy_pseudo", "accuracy_full") for w, r in
            (("start", first), ("end", last), ("all", rows))}  # fmt: skip
    better = sum(r["accuracy_pseudo"] >= r["accuracy_full"] for r in rows)
    over = points_ahead(last, "accuracy_pseudo", "accuracy_f")
    return Exhibit(
        "accuracy",
        "Accuracy of the network, and of regression from it",
        "Test accuracy of f and of f_lin by each kernel, widest networks, means over seeds. PN "
        "(Fig 8) find regression by the pseudo-NTK always more accurate than by the full "
        f"kernel. Here it is at least as accurate in {better} of {len(rows)} measurements (all "
        f"widths); points ahead: {span(gain['start'], 1)} at the start, {span(gain['end'], 1)} at "
        f"the end. From trained weights it is {span(over, 1)} points from f itself (PN Fig 11). "
        f"One test set has {s.test} items, so that a single line is good to a few points only.",
        figure=figure,
        table=[
            {"network": n, "width": w, "training": f"{c:.0%}",
             **{("f" if k == "f" else f"f_lin, {k}"): 100 * mean(mine, f"accuracy_{k}")
                for k in ("f", "full", *KINDS)}}
            for n in names for w in sorted({r["width"] for r in where(rows, network=n)})
            for c in (s.checkpoints[0], s.checkpoints[-1])
            for mine in [where(rows, network=n, width=w, checkpoint=c)]
        ],
    )  # fmt: skip


def cost(s: Any, rows: Sequence[Row], names: Sequence[str]) -> Exhibit:
    """Seconds, memory, learning rates."""
    rates = sorted({r["learning_rate"] for r in rows}, reverse=True)
    fallen = [f"{r['network']} {r['width']:g}" for r in rows if r["learning_rate"] < s.rate]
    return Exhibit(
        "cost",
        "What it took",
        "Seconds and megabytes of the full kernel (double precision), and the largest memory of "
        "the measuring process so far. Learning rates: "
        f"{', '.join(f'{r:g}' for r in rates)}"
        + (f"; fell back after divergence: {', '.join(dict.fromkeys(fallen))}." if fallen else
           "; none had to fall back."),
        table=[
            {"network": n, "width": w, "rows of the full kernel": mine[0]["rows_of_full"],
             "its MB": mine[0]["kernel_megabytes"], "s": mean(mine, "kernel_seconds"),
             "peak MB": max(r["peak_megabytes"] for r in mine),
             "train accuracy at the end": mean(where(mine, checkpoint=s.checkpoints[-1]),
                                               "train_accuracy")}
            for n in names for w in sorted({r["width"] for r in where(rows, network=n)})
            for mine in [where(rows, network=n, width=w)]
        ],
    )  # fmt: skip
