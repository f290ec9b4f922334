"""Whether the ways to look ahead differ: Friedman's test and paired t-tests (TH Table 2.1)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from labelahead.laboratory.charts import span
from labelahead.laboratory.experiment import Exhibit, Row, where
from labelahead.study.statistics import ALPHA, area, omnibus, pairs, t_interval

__all__ = ["areas", "differences"]

PAPER_FRIEDMAN = 0.0045  # TH §2.5
# TH Table 2.1
PAPER = {
    ("ntk", "one-step"): 0.0109,
    ("ntk", "infinite-ntk"): 0.0093,
    ("ntk", "gp"): 0.0014,
    ("one-step", "infinite-ntk"): 0.6863,
    ("one-step", "gp"): 0.0422,
    ("infinite-ntk", "gp"): 0.0742,
}
METHODS = ("ntk", "one-step", "infinite-ntk", "gp")


def areas(rows: Sequence[Row], arm: str, *, process: bool | None = None) -> dict[int, float]:
    """Seed -> mean accuracy along the way, in per cent.

    process: whether the Gaussian process is judged instead of the network; None: in the arm `gp`.
    """
    kind = "process_accuracy" if (arm == "gp" if process is None else process) else "accuracy"
    found = {}
    for seed in sorted({r["seed"] for r in where(rows, arm=arm)}):
        mine = sorted(where(rows, arm=arm, seed=seed), key=lambda r: r["labels"])
        labels = np.array([r["labels"] for r in mine], float)
        found[seed] = 100 * float(area(labels, np.array([r[kind] for r in mine], float)))
    return found


def differences(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """The exhibit, if there are arms and seeds enough to test."""
    arms = [a for a in METHODS if a in s.arms]
    if s.seeds < 2 or len(arms) < 3:
        return []
    columns = [areas(rows, a) for a in arms]
    seeds = sorted(columns[0])
    whole = omnibus(np.array([[c[seed] for c in columns] for seed in seeds]))
    table: list[Row] = []
    better, worse, unknown = list[str](), list[str](), list[str]()
    for pair in pairs(columns):
        one, other = arms[pair.first], arms[pair.second]
        table.append({
            "first": one, "second": other, "first − second, points": span(pair.difference),
            "p": pair.p, "p, Holm": pair.holm, "p in the thesis": PAPER[one, other],
        })  # fmt: skip
        if one == "ntk":
            kept = better if pair.difference.mean > 0 else worse
            (kept if pair.p < ALPHA else unknown).append(other)
    said = [f"{word} {', '.join(names)}" for word, names in
            (("is better than", better), ("is worse than", worse),
             ("cannot be told from", unknown)) if names]  # fmt: skip
    return [
        Exhibit(
            "tests",
            "Do they differ?",
            f"Mean accuracy along the way, seeds as blocks ({len(seeds)}); of the Gaussian process "
            "its own accuracy. Friedman's test that all are alike: the thesis finds p = "
            f"{PAPER_FRIEDMAN}, we find {whole.p:.2g}. Then paired t-tests: in the thesis the "
            "network's own kernel differs from each of the others at 0.05 (TH Table 2.1, no "
            f"correction); here, by the same rule, it {'; it '.join(said)}. Corrected for testing "
            f"all pairs (Holm), {_kept(table)} below 0.05.{_models(rows) if 'gp' in arms else ''}",
            table=table,
        )
    ]


def _kept(table: Sequence[Row]) -> str:
    """How many pairs differ after the correction, in words."""
    kept = sum(row["p, Holm"] < ALPHA for row in table)
    return f"{kept or 'none'} of the {len(table)} p-values {'is' if kept == 1 else 'are'}"


def _models(rows: Sequence[Row]) -> str:
    """How much of the process's gap is there without any choice."""
    process, network = areas(rows, "random", process=True), areas(rows, "random", process=False)
    found = t_interval(np.array([process[k] - network[k] for k in sorted(process)]))
    return (
        " The process is another model, not only another choice: on the same random labels it is "
        f"{span(found)} points from the network."
    )
