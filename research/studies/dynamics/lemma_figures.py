"""What the measurements of dynamicAL's premises show."""

from collections.abc import Sequence
from typing import Any

from research.studies.charts import heading, line, mean, means, over_seeds, panels, span
from research.studies.design import Row, StudyFigure, where

__all__ = ["lemma", "slack"]


def lemma(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """Lemma 1, by width."""
    ends = (s.lemma_widths[0], s.lemma_widths[-1])
    figure, axes = panels(2, height=3.4, share_y=True)
    later = [r for r in rows if r["steps"]]
    for panel, width in zip(axes, ends, strict=True):
        mine = where(later, width=width)
        for number, (value, name) in enumerate(
            {
                "real": "real network",
                "predicted": "E_t, as in the lemma",
                "from_start": "E_t of Y − f₀",
            }.items()
        ):
            line(panel, *means(mine, "steps", value), number, name, band=False)
        panel.set(xscale="log", yscale="log", xlabel="steps", ylabel="‖Y − f‖ / ‖Y‖")
        panel.legend(fontsize=8)
        heading(panel, f"width {width:g}")

    def off(width: float, value: str) -> Any:
        mine = where(later, width=width)
        each = {
            seed: max(abs(r[value] - r["real"]) for r in where(mine, seed=seed))
            for seed in range(s.seeds)
        }
        return over_seeds([{"gap": v} for v in each.values()], "gap")

    gaps = {w: (off(w, "predicted"), off(w, "from_start")) for w in s.lemma_widths}
    broken = sum(not r["theorem"] for r in rows)
    return [
        StudyFigure(
            "lemma",
            "Lemma 1: does a real network learn as its first kernel says?",
            f"fcn with two hidden layers, {s.lemma_items} items of {s.data}, gradient descent on "
            "the squared loss at "
            f"{s.lemma_rate:g}/λ_max, trace kernel at the start; largest gap along "
            f"{max(s.lemma_marks)} steps, in "
            "parts of ‖Y‖. "
            "Lemma 1 (DY-16) puts the residual after t steps at E_t ± ε for wide networks: off by "
            + ", ".join(f"{span(g[0])} (width {w:g})" for w, g in gaps.items())
            + ". It leaves out what f says before training; with Y − f₀ for Y it is off by "
            + ", ".join(f"{span(g[1])} (width {w:g})" for w, g in gaps.items())
            + f". Theorem 1's bounds on E_t² by the alignment fail {broken} times of {len(rows)}.",
            figure=figure,
            table=[
                {
                    "width": w,
                    "steps": t,
                    "real": mean(mine, "real"),
                    "E_t": mean(mine, "predicted"),
                    "E_t of Y − f₀": mean(mine, "from_start"),
                }
                for w in s.lemma_widths
                for t in s.lemma_marks
                for mine in [where(rows, width=w, steps=t)]
            ],
            alt="Residual of a real network and what its first kernel predicts, against steps.",
        )
    ]


def slack(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """App. B.3."""
    table = [
        {
            "batch": b,
            "labels": mine[0]["labels"],
            "MMD": mean(mine, "mmd"),
            "B": mean(mine, "bound"),
            "left out": mean(mine, "dropped"),
            "left out, corrected": mean(mine, "corrected"),
            "largest entry C": mean(mine, "largest"),
        }
        for b in s.batches
        for mine in [where(rows, batch=b)]
    ]
    least = min(r["left out"] / r["B"] for r in table)
    most = max(r["left out"] / r["B"] for r in table)
    least_sound, most_sound = (
        pick(r["left out, corrected"] / r["B"] for r in table) for pick in (min, max)
    )
    return [
        StudyFigure(
            "slack",
            "What is left out beside MMD",
            "The paper bounds the loss of chosen items by MMD + O(√(C ln(1/δ)/n)) and compares "
            "MMD alone with B (Figs "
            "1, 9). Its "
            "Appendix B.3 writes the other term out: 4√(C/n) + √(4C ln(4/δ)/(γn)), γ = n₀/n; "
            "corrected, "
            "2(√(C/n₀) + √(C/n)) + √(2C ln(4/δ)(n₀ + n)/(n₀n)) (errata). Here with a fresh "
            "network's kernel, C its "
            "largest entry, δ = 0.05, random batches. At mean diagonal 1 "
            f"it is {least:.2g} to {most:.2g} times B ({least_sound:.2g} to {most_sound:.2g} "
            "corrected), MMD at most "
            f"{max(r['MMD'] / r['B'] for r in table):.1g} times B (its unbiased estimate is often "
            "below zero, which "
            "counts as zero). A kernel s times as large makes each of these ratios s times as "
            "large. "
            + (
                "So the smallness of MMD/B alone does not show that the bound is small."
                if least > 0.1
                else "At this scale it is small beside B, as the paper supposes."
            ),
            table=table,
        )
    ]
