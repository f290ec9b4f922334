"""What `labelahead study kernel` shows of new networks; of trained ones, see `kernel_training`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelahead.laboratory.charts import line, means, panels
from labelahead.laboratory.experiment import Exhibit, Row, where
from labelahead.laboratory.kernel_rows import TITLES
from labelahead.laboratory.kernel_training import trained
from labelahead.laboratory.quality import KINDS
from labelahead.study.drawing import INK

__all__ = ["Slope", "exhibits", "slope"]

THEORY, GOAL = -0.5, 0.15


def exhibits(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """All exhibits for the parts that were measured."""
    made = {"rate": rates, "variants": variants, "bound": bounds, "training": trained}
    return [e for part in s.parts for e in made[part](s, where(rows, part=part))]


@dataclass(frozen=True)
class Slope:
    """Of a straight line through log y against log width; error: standard, None for one seed."""

    value: float
    error: float | None

    def __str__(self) -> str:
        text = f"{self.value:.2f}" + (f" ± {self.error:.2f}" if self.error is not None else "")
        return text.replace("-", "−")


def slope(rows: Sequence[Row], name: str) -> Slope | None:
    """Least squares for each seed alone, and the mean over seeds; None for a single width.

    The networks of one seed see the same items at every width, so that only seeds are independent.
    """
    found = []
    for seed in sorted({r["seed"] for r in rows}):
        x, y = (np.log([r[k] for r in where(rows, seed=seed)]) for k in ("width", name))
        if len(set(x)) < 2:
            return None
        found.append(float(np.polyfit(x, y, 1)[0]))
    error = float(np.std(found, ddof=1)) / len(found) ** 0.5 if len(found) > 1 else None
    return Slope(float(np.mean(found)), error)


def rates(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """PN Figs 2 and 3 at initialisation, as rates in the width."""
    names = [n for n in TITLES if where(rows, network=n)]
    if not names:
        return []
    figure, axes = panels(len(names), columns=2)
    table: list[Row] = []
    slopes: dict[str, Slope] = {}
    theirs: dict[str, Slope] = {}
    for name, here in zip(names, axes, strict=True):
        mine = where(rows, network=name)
        for number, kind in enumerate(KINDS):
            line(here, *means(mine, "width", f"error_{kind}"), number, kind)
        _guide(here, mine, "error_pseudo")
        _logarithmic(here, mine)
        here.set_title(TITLES[name], loc="left", fontsize=10)
        row: dict[str, Any] = {"network": name, "widths": _widths(mine)}
        for kind in KINDS:
            row[f"slope, {kind}"] = str(slope(mine, f"error_{kind}") or "–")
        row["slope, pseudo, wider half"] = str(slope(_wider(mine), "error_pseudo") or "–")
        row["slope, pseudo, PN's ratio"] = str(slope(mine, "distance_pseudo") or "–")
        row["slope, off/on diagonal"] = str(slope(mine, "off_over_on") or "–")
        row["pseudo at the widest"] = _mean(_widest(mine), "distance_pseudo")
        row["trace/pseudo"] = _mean(mine, lambda r: r["distance_trace"] / r["distance_pseudo"])
        row["single/pseudo"] = _mean(mine, lambda r: r["distance_single"] / r["distance_pseudo"])
        table.append(row)
        for kept, value in ((slopes, "error_pseudo"), (theirs, "distance_pseudo")):
            if (found := slope(mine, value)) is not None:
                kept[name] = found
    for here in axes[::2]:
        here.set_ylabel("error of K⊗I")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    share, single = ([r[f"{kind}/pseudo"] for r in table] for kind in ("trace", "single"))
    C = rows[0]["classes"]
    return [
        Exhibit(
            "rate",
            "New networks: how fast does the error fall with the width?",
            f"{s.rate_items} items of {s.data}, {s.rate_seeds} seeds a width, new weights, "
            "BatchNorm's statistics settled on the data. Error: ‖K⊗I − Θ‖ over the norm of the "
            "trace kernel ⊗ I; dotted: width^(−1/2), the rate of PN's Theorem 1 (TH 3.3.1). "
            f"Slopes (± standard error over seeds) of the pseudo-NTK: {_listed(slopes)} (table: "
            "also from the middle width on). PN's own ratio divides by ‖Θ‖, which contains the "
            f"error, so that it cannot grow much beyond one: {_listed(theirs)}. The other norm and "
            "the settling of BatchNorm were chosen after a pilot with PN's; judge by both. No "
            "scalar kernel can come nearer to Θ than the trace kernel, its projection: here "
            f"{min(share):.2f} to {max(share):.2f} of the pseudo-NTK's distance (Gaussian read-out "
            f"weights would give √((C+2)/(C+4)) = {((C + 2) / (C + 4)) ** 0.5:.2f} at {C} "
            "classes), for C times the work. PN argue that single logit and sum of logits are "
            f"alike at initialisation: their distances differ by factors of {min(single):.2f} to "
            f"{max(single):.2f} here.",
            figure=figure,
            table=table,
        )
    ]


def _listed(slopes: dict[str, Slope]) -> str:
    """Slopes by network, and how many are near the theory's."""
    if not slopes:
        return "none, for there is one width"
    near = sum(abs(v.value - THEORY) <= GOAL for v in slopes.values())
    told = "; ".join(f"{n} {v}" for n, v in slopes.items())
    return f"{told}; {near} of {len(slopes)} within {GOAL} of −1/2"


def variants(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """TH A.7.5: other activations and truncated weights."""
    names = [v for v in (*s.activations, "truncated") if where(rows, variant=v)]
    if not names:
        return []
    figure, (axes,) = panels(1, height=3.8)
    table: list[Row] = []
    for number, name in enumerate(names):
        mine = where(rows, variant=name)
        label = "relu, truncated weights" if name == "truncated" else name
        line(axes, *means(mine, "width", "error_pseudo"), number, label, band=False)
        table.append({
            "fcn with": label, "slope, error": str(slope(mine, "error_pseudo") or "–"),
            "slope, PN's ratio": str(slope(mine, "distance_pseudo") or "–"),
            "slope, off/on diagonal": str(slope(mine, "off_over_on") or "–"),
            **{f"width {w:g}": _mean(where(mine, width=w), "distance_pseudo")
               for w in sorted({r["width"] for r in mine})},
        })  # fmt: skip
    _guide(axes, where(rows, variant=names[0]), "error_pseudo")
    _logarithmic(axes, rows)
    axes.set_ylabel("error of the pseudo-NTK ⊗ I")
    axes.legend(ncols=2)
    found = {n: slope(where(rows, variant=n), "error_pseudo") for n in names}
    slopes = {n: v for n, v in found.items() if v is not None}
    widest = [_mean(_widest(where(rows, variant=n)), "distance_pseudo") for n in names]
    spread = max(widest) / min(widest)
    verdict = "no more than constants differ" if spread < 1.5 else "constants differ by that much"
    return [
        Exhibit(
            "variants",
            "Other activations, other initial weights",
            "The fcn again. TH (A.7.5) expects the same rate with other constants for every "
            "activation that behaves, and for truncated normal weights, and calls the influence "
            f"marginal. Slopes here: {_listed(slopes)}. At the widest the distances "
            "(columns “width”: PN's ratio) differ by a factor of "
            f"{spread:.2f}: {verdict}. Truncated weights have the same standard deviation.",
            figure=figure,
            table=table,
        )
    ]


def bounds(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """TH Fig A.10: how tight is the bound?"""
    if not rows:
        return []
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
    measured, above = slope(rows, "relative"), slope(rows, "relative_bound")
    broken = sum(r["violated"] for r in rows)
    loose = [
        1 / _mean(where(rows, width=w), "tightness") for w in sorted({r["width"] for r in rows})
    ]
    table = [
        {
            "width": w, "distance": _mean(mine, "distance"), "PN's bound": _mean(mine, "bound"),
            "distance / bound": _mean(mine, "tightness"), "relative": _mean(mine, "relative"),
            "relative bound": _mean(mine, "relative_bound"),
            "relative × √width": _mean(mine, "scaled"),
        }
        for w in sorted({r["width"] for r in rows})
        for mine in [where(rows, width=w)]
    ]  # fmt: skip
    return [
        Exhibit(
            "bound",
            "Is the bound tight?",
            f"‖Θ̂⊗I − Θ‖ of single pairs of items (fcn, {s.bound_items} items, {s.rate_seeds} "
            "seeds) beside PN's explicit bound (PN-22) with α, the largest entry of the hidden "
            f"kernel, measured. It was exceeded {broken} times of "
            f"{sum(s.bound_items**2 for _ in rows)}, and is {min(loose):,.0f} to "
            f"{max(loose):,.0f} times what it bounds. Relative to ‖Θ‖ its slope in the width is "
            f"{above or '–'}: it allows every entry of the hidden kernel the size of the diagonal "
            "ones, which are √width times larger. TH therefore states the rate anew, relative to "
            f"‖Θ‖, with unnamed constants, and shows its tightness (Fig A.10). Measured slope: "
            f"{measured or '–'}, from the middle width on "
            f"{slope(_wider(rows), 'relative') or '–'}; where the "
            "rate width^(−1/2) is tight the curve on the right is level.",
            figure=figure,
            table=table,
        )
    ]


def _guide(axes: Any, rows: Sequence[Row], name: str) -> None:
    """A line of slope −1/2 through the widest mean."""
    at = np.array(sorted({r["width"] for r in rows}), float)
    end = _mean(_widest(rows), name)
    axes.plot(
        at, end * (at / at[-1]) ** THEORY, color=INK, ls=(0, (1, 1.2)), lw=1.4, zorder=2,
        label="width^(−1/2)",
    )  # fmt: skip


def _logarithmic(axes: Any, rows: Sequence[Row], both: bool = True) -> None:
    at = sorted({r["width"] for r in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, [f"{w:g}" for w in at])
    axes.set_xlabel("width")
    if both:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
        axes.yaxis.set_minor_formatter(lambda v, _: f"{v:g}" if f"{v:e}"[0] in "235" else "")


def _widest(rows: Sequence[Row]) -> list[Row]:
    return where(rows, width=max(r["width"] for r in rows))


def _wider(rows: Sequence[Row]) -> list[Row]:
    """From the middle width on: where the rate, which is one for large widths, should hold best."""
    at = sorted({r["width"] for r in rows})
    return [r for r in rows if r["width"] >= at[(len(at) - 1) // 2]]


def _widths(rows: Sequence[Row]) -> str:
    at = sorted({r["width"] for r in rows})
    return f"{at[0]:g} to {at[-1]:g}"


def _mean(rows: Sequence[Row], name: Any) -> float:
    value = name if callable(name) else (lambda r: r[name])
    return float(np.mean([value(r) for r in rows]))
