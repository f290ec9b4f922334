"""The scores and the cold start, as tables of `labelahead study fidelity`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from labelahead.laboratory.charts import panels, span
from labelahead.laboratory.experiment import Exhibit, Row, where
from labelahead.study.drawing import INK, PALETTE
from labelahead.study.statistics import Estimate, t_interval
from labelahead.train import recipe

__all__ = ["cold", "over_seeds", "scores", "told"]

TRUTHS = {
    "mlmoc": "change if the network's guess were the label",
    "change": "change by the true label",
    "decisions": "decisions it changes",
    "gain": "squared error it removes",
}


def scores(s: Any, rows: Sequence[Row]) -> Exhibit:
    """Scores before the label is known, against what it really did."""
    table: list[Row] = []
    for model, width in s.networks:
        mine = where(rows, model=model, width=width, before=recipe(model).steps, row="score")
        for score in dict.fromkeys(r["score"] for r in mine):
            here = where(mine, score=score)
            row = {v: told(here, k) for k, v in TRUTHS.items()}
            table.append({"network": f"{model}, width {width}", "score": score, **row})
    model, width = s.networks[0]
    mine = where(rows, model=model, width=width, before=recipe(model).steps, row="score")

    def found(score: str, truth: str) -> str:
        return told(where(mine, score=score), truth)

    return Exhibit(
        "scores",
        "Scores, before the label is known",
        "Spearman's correlation over candidates between a score and what training really did "
        "(columns; sums over held-out items, gradient descent as above). MLMOC's own claim is the "
        f"change if the network's guess were the label: for the {model} "
        f"{found('MLMOC', 'mlmoc')}, where the small margin alone gets "
        f"{found('small margin', 'mlmoc')}. The change by the true label, which no score knows, "
        f"MLMOC ranks at {found('MLMOC', 'change')}, flip at {found('flip', 'change')}, the small "
        f"margin at {found('small margin', 'change')}. But change is not use: the error that the "
        f"label really removes is ranked at {found('flip', 'gain')} by flip, "
        f"{found('MLMOC', 'gain')} by MLMOC, {found('small margin', 'gain')} by the margin, and at "
        f"{found('look-ahead, true label', 'gain')} by a look-ahead that is told the true label "
        "(last row): so much a better guess of labels could buy. flip does not try to rank single "
        "changes; it is made for batches. With "
        f"{s.candidates} candidates and {s.seeds} seeds these intervals are wide.",
        table=table,
    )


def cold(s: Any, rows: Sequence[Row]) -> Exhibit:
    """One label's effect beside the noise of training."""
    kinds = list(dict.fromkeys(r["kind"] for r in rows))
    table: list[Row] = []
    for kind in kinds:
        mine = where(rows, kind=kind)
        table.append({"trained how": kind, "‖Δf‖": told(mine, "real")}
                     | {name: told(mine, key) if key in mine[0] else None
                        for key, name in COLUMNS.items()})  # fmt: skip
    size = {k: over_seeds(where(rows, kind=k), "real") for k in kinds}
    guess = over_seeds(where(rows, kind=kinds[0]), "predicted")
    return Exhibit(
        "cold",
        "Begin again: does the effect of one label drown?",
        f"The same {s.cold_candidates} candidates a seed, network and look-ahead "
        f"({s.networks[0][0]}, pseudo kernel); only how the real Δf comes about differs. Gradient "
        "descent has no noise. The usual training is the recipe (Adam, minibatches), "
        f"{s.repeats} repetitions with other orders. The last two have no candidate at all: two "
        "trainings on the same labels, minus each other. " + _cold_text(rows, kinds, size, guess),
        figure=_bars(kinds, size, guess),
        table=table,
        alt="Bars: the size of the change of outputs by kind of training, beside the noise.",
    )


SIZES = ("real", "predicted", "ratio", "mean_ratio")
COLUMNS = {
    "ratio": "predicted / real size",
    "cosine": "cosine",
    "spearman": "Spearman",
    "null": "residual alone",
    "repeats": "part that repeats",
    "mean_cosine": "cosine of the mean over repetitions",
    "mean_spearman": "Spearman of the mean",
}


def _cold_text(
    rows: Sequence[Row], kinds: Sequence[str], size: dict[str, Estimate], guess: Estimate
) -> str:
    warm, usual, again, retrained, order, weights = kinds
    mean = {k: {c: over_seeds(where(rows, kind=k), c).mean for c in ("cosine",)} for k in kinds}
    share = over_seeds(where(rows, kind=retrained), "repeats").mean
    many = over_seeds(where(rows, kind=retrained), "mean_cosine").mean
    lasting = max(share, 0.0) ** 0.5 * size[retrained].mean
    return (
        f"Look-ahead predicts ‖Δf‖ = {guess.mean:.2f} on average. Training on: "
        f"{size[warm].mean:.2f}, cosine {mean[warm]['cosine']:.2f} ({usual.split(', ')[1]}: "
        f"{size[usual].mean:.2f}, {mean[usual]['cosine']:.2f}). Beginning again without noise: "
        f"{size[again].mean:.2f}, {mean[again]['cosine']:.2f}. Beginning again as usual: "
        f"{size[retrained].mean:.2f}, {mean[retrained]['cosine']:.2f}; {100 * share:.0f} % of its "
        f"square comes again in a second training from the same weights, a lasting change of "
        f"{lasting:.2f}, and the mean over repetitions has cosine {many:.2f}. With no new label, "
        f"another order changes {size[order].mean:.2f} and other initial weights "
        f"{size[weights].mean:.2f}. So one label's effect {_beside(lasting, size[order].mean)} of "
        f"another order and {_beside(lasting, size[weights].mean)} of other weights. Look-ahead "
        "tells what a label does to this network, not what the next training run will say."
    )


def _beside(effect: float, noise: float) -> str:
    if effect < 0.5 * noise:
        return "drowns in the noise"
    return "is as large as the noise" if effect < 2 * noise else "stands out from the noise"


def _bars(kinds: Sequence[str], size: dict[str, Estimate], guess: Estimate) -> Any:
    figure, (axes,) = panels(1, height=2.9)
    y = np.arange(len(kinds))[::-1]
    colors = [PALETTE[0][0] if "no label" not in k else PALETTE[1][0] for k in kinds]
    found = [size[k] for k in kinds]
    axes.barh(y, [e.mean for e in found], color=colors, height=0.6, zorder=2)
    for at, e in zip(y, found, strict=True):
        if e.low is not None:
            axes.plot([max(e.low, 0), e.high], [at, at], color=INK, lw=1.2, zorder=3)
    axes.axvline(guess.mean, color=INK, ls=(0, (1, 1.2)), lw=1.4, zorder=4)
    axes.annotate("predicted", (guess.mean, len(kinds) - 0.45), ha="center", va="bottom",
                  annotation_clip=False, fontsize=9)  # fmt: skip
    axes.set_yticks(y, kinds)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("mean ‖Δf‖ (orange: no label was added)")
    return figure


def over_seeds(rows: Sequence[Row], name: str) -> Estimate:
    """The mean of a column with its interval; one row a seed."""
    return t_interval(np.array([r[name] for r in rows], float))


def told(rows: Sequence[Row], name: str) -> str:
    """The same in words; Student's interval of a correlation may pass 1, which says nothing."""
    e = over_seeds(rows, name)
    if name in SIZES or e.low is None or e.high is None:
        return span(e)
    return span(replace(e, low=max(e.low, -1.0), high=min(e.high, 1.0)))
