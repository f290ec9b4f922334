"""What the measurements of `python -m research study fidelity` show."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from labelahead.models.training import get_default_training
from labelahead.simulation.comparison.plot_style import DOTS, INK, PALETTE
from labelahead.simulation.comparison.statistics import Estimate
from research.studies.charts import (
    heading,
    legend_below,
    line,
    mean,
    means,
    over_seeds,
    panels,
    reference,
    span,
    style,
    ticks,
)
from research.studies.design import Row, StudyFigure, values, where

__all__ = ["build_figures"]

KERNELS = {"pseudo": "pseudo (default)", "trace": "trace", "full": "full"}
GRADES = ((0.9, "good"), (0.7, "fair"), (0.4, "weak"), (-2.0, "fails"))
TRUTHS = {
    "mlmoc": "change if the network's guess were the label",
    "change": "change by the true label",
    "decisions": "decisions it changes",
    "gain": "squared error it removes",
}
SIZES = ("real", "predicted", "ratio", "mean_ratio")
COLD = {
    "ratio": "predicted / real size",
    "cosine": "cosine",
    "spearman": "Spearman",
    "null": "residual alone",
    "repeats": "part that repeats",
    "mean_cosine": "cosine of the mean over repetitions",
    "mean_spearman": "Spearman of the mean",
}


def build_figures(s: Any, rows: Sequence[Row]) -> list[StudyFigure]:
    """All exhibits for the parts that were measured."""
    shown: list[StudyFigure] = []
    if "warm" in s.parts:
        made = (short, sizes, networks, widths, lengths, scores)
        shown += [make(s, where(rows, part="warm")) for make in made]
    if "cold" in s.parts:
        shown.append(cold(s, where(rows, part="cold")))
    return shown


def _usual(rows: Sequence[Row], model: str, width: int, **more: Any) -> list[Row]:
    """Of a network that was trained as long as its recipe says."""
    return where(rows, model=model, width=width, before=get_default_training(model).steps, **more)


def _ends(s: Any, rows: Sequence[Row], model: str, width: int, kind: str = "pseudo") -> list[Row]:
    """Summaries at the end of the continued training, one a seed."""
    return _usual(rows, model, width, row="summary", kernel=kind, steps=s.marks[-1])


def format_mean(rows: Sequence[Row], name: str) -> str:
    """Format a mean over seeds.

    Student's interval of a correlation may pass 1, which says nothing.
    """
    e = over_seeds(rows, name)
    if name in SIZES or e.low is None or e.high is None:
        return span(e)
    return span(replace(e, low=max(e.low, -1.0), high=min(e.high, 1.0)))


def short(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """Where it holds and where it fails, in one table."""
    model, width = s.networks[0]
    steps, narrow, early = (
        get_default_training(model).steps,
        min(s.widths),
        min(s.before, default=0),
    )
    shown = {f"{m}, width {w}": (m, w, get_default_training(m).steps) for m, w in s.networks}
    shown[f"{model}, narrow (width {narrow})"] = (model, narrow, steps)
    shown[f"{model}, trained for {early} steps only"] = (model, width, early)
    table: list[Row] = []
    for name, (m, w, before) in shown.items():
        at = {"model": m, "width": w, "before": before, "row": "summary", "steps": s.marks[-1]}
        mine, full = (where(rows, kernel=k, **at) for k in ("pseudo", "full"))
        if not mine:
            continue
        order, way = mean(mine, "spearman"), mean(mine, "cosine")
        table.append(
            {
                "network": name,
                "order of candidates": f"{_mark(order)} ({order:.2f})",
                "… by the residual alone": f"{mean(mine, 'null'):.2f}".replace("-", "−"),
                "direction of Δf": f"{_mark(way)} ({way:.2f})",
                "… with the full kernel": f"{mean(full, 'cosine'):.2f}",
                "predicted / real size": f"{mean(mine, 'ratio'):.2f}",
                "accuracy before": f"{mean(mine, 'accuracy'):.2f}",
            }
        )
    return StudyFigure(
        "short",
        "In short",
        "The product's look-ahead (pseudo kernel) against training that really goes on with one "
        "more label. Order: "
        "Spearman's correlation of predicted and real ‖Δf‖ over candidates. Direction: cosine of "
        "predicted and real "
        f"Δf. Good is 0.9 or more, fair 0.7, weak 0.4; means over {s.seeds} seeds, with their "
        "intervals below. "
        "Look-ahead is a statement about a trained, wide enough network that goes on training; in "
        "the last two rows "
        "one of these is missing.",
        table=table,
    )


def _mark(value: float) -> str:
    return next(word for least, word in GRADES if round(value, 2) >= least)


def sizes(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """Predicted against real size of the change, a point a candidate."""
    figure, axes = panels(len(s.networks), height=3.2)
    orders = []
    for panel, (model, width) in zip(axes, s.networks, strict=True):
        mine = _usual(rows, model, width, row="candidate")
        for seed in values(mine, "seed"):
            here = where(mine, seed=seed)
            x, y = [r["predicted_pseudo"] for r in here], [r["real"] for r in here]
            panel.scatter(x, y, s=14, alpha=0.75, lw=0, **style(seed % len(PALETTE)))
        every = [r[k] for r in mine for k in ("predicted_pseudo", "real")]
        ends = [max(min(every), 1e-3 * max(every)), max(every)]
        panel.plot(ends, ends, color=INK, ls=DOTS, lw=1.4)
        panel.set(xscale="log", yscale="log", xlabel="predicted ‖Δf‖", ylabel="real ‖Δf‖")
        marks = [v for v in (0.01, 0.03, 0.1, 0.3, 1, 3, 10) if ends[0] <= v <= ends[1]]
        ticks(panel, marks)
        panel.set_yticks(marks, [f"{v:g}" for v in marks])
        heading(panel, f"{model}, width {width}")
        orders.append(f"{model}: Spearman {format_mean(_ends(s, rows, model, width), 'spearman')}")
    return StudyFigure(
        "sizes",
        "Which label would change most? Predicted and real",
        f"A point is a candidate, a colour a seed: the size of the change at {s.evaluation} "
        "held-out items, as "
        f"look-ahead (the product's own: pseudo kernel, noise {s.noise:g}) predicts it and as "
        f"{s.marks[-1]} steps of "
        "full-batch gradient descent on the squared loss make it, from a network trained on "
        f"{s.initial} labels. On "
        f"the dotted line both are equal. Order of the candidates: {'; '.join(orders)} (95 % over "
        "seeds). The paper "
        "(LA) proves this for infinite width and does not measure it on real networks.",
        figure=figure,
        alt="Scatter plots of predicted against real size of the change of outputs.",
    )


def networks(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """The table of architectures and kernels."""
    table: list[Row] = []
    for model, width in s.networks:
        for kind in KERNELS:
            ends = _ends(s, rows, model, width, kind)
            table.append(
                {
                    "network": f"{model}, width {width}",
                    "kernel": KERNELS[kind],
                    "Spearman of ‖Δf‖": format_mean(ends, "spearman"),
                    "residual alone": format_mean(ends, "null"),
                    "Spearman given the residual": format_mean(ends, "partial"),
                    "cosine": format_mean(ends, "cosine"),
                    "predicted / real size": format_mean(ends, "ratio"),
                }
            )
    first = _ends(s, rows, *s.networks[0])
    rank, null = mean(first, "spearman"), mean(first, "null")
    worst = min(s.networks, key=lambda n: mean(_ends(s, rows, *n), "cosine"))
    low = mean(_ends(s, rows, *worst), "cosine")
    better = mean(_ends(s, rows, worst[0], worst[1], "full"), "cosine")
    return StudyFigure(
        "networks",
        "Order, direction and size, by network and kernel",
        "Cosine: between predicted and real Δf over all held-out items and classes, mean over "
        "candidates. Residual alone: how well ‖y' − f(x')‖, with no kernel at all, ranks the real "
        f"changes. For the {s.networks[0][0]} it gets {null:.2f} where look-ahead gets {rank:.2f}: "
        + (
            "once the label is known, most of the order is how wrong the network was. "
            if null > 0.8 * rank
            else "the order is not only how wrong the network was. "
        )
        + "What look-ahead adds to the residual is the column after it (partial correlation), and "
        "the direction, which a residual does not have. The direction is weakest for the "
        f"{worst[0]}, {low:.2f} with the pseudo kernel and {better:.2f} with the full one"
        + (
            ": one number for every pair of items cannot say how a label of one class moves the "
            "outputs of another. "
            if better > low + 0.05
            else ". "
        )
        + "BatchNorm is trained with frozen statistics here, as the tangent kernel supposes.",
        table=table,
    )


def widths(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """Spearman, cosine and size against the width of the first network."""
    model, _ = s.networks[0]
    ends = where(
        rows,
        model=model,
        before=get_default_training(model).steps,
        row="summary",
        steps=s.marks[-1],
    )
    ends = [r for r in ends if r["width"] in s.widths]
    figure = _three(ends, s.widths)
    low, high = (where(ends, width=w, kernel="full") for w in (min(s.widths), max(s.widths)))
    ours = [
        over_seeds(where(ends, width=w, kernel="pseudo"), "cosine")
        for w in (min(s.widths), max(s.widths))
    ]
    loss = [mean(of, "train_loss") for of in (low, high)]
    return StudyFigure(
        "widths",
        "Does width make it truer?",
        f"The {model} at several widths, otherwise as above; lines are kernels. From width "
        f"{min(s.widths)} to "
        f"{max(s.widths)} the cosine goes from {format_mean(low, 'cosine')} to {format_mean(high, 'cosine')} "
        "with the full kernel "
        f"and from {span(ours[0])} to {span(ours[1])} with the pseudo kernel. Theory says that "
        "both errors vanish as "
        "width grows, the pseudo kernel's for networks near their initial weights. The narrowest "
        "starts from a loss of "
        f"{loss[0]:.2g} on its own labels, the widest from {loss[1]:.2g}: what does not fit yet "
        "moves far when "
        "training goes on. Bands: 95 % over seeds.",
        figure=figure,
        table=_summary_table(ends, "width"),
    )


def lengths(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """Against how long the network was trained before, and how long after."""
    model, width = s.networks[0]
    mine = where(rows, model=model, width=width, row="summary")
    steps = sorted({*s.before, get_default_training(model).steps})
    ends = [r for r in where(mine, steps=s.marks[-1]) if r["before"] in steps]
    after = where(mine, before=get_default_training(model).steps)
    figure, axes = panels(4, height=3.0, columns=2)
    kinds = {"pseudo": "pseudo (default)", "full": "full", "full, same steps": "full, same steps"}
    for number, (kind, label) in enumerate(kinds.items()):
        for panel, what, of, x in (
            (axes[0], "cosine", ends, "before"),
            (axes[1], "cosine", after, "steps"),
            (axes[2], "spearman", ends, "before"),
            (axes[3], "spearman", after, "steps"),
        ):
            line(panel, *means(where(of, kernel=kind), x, what), number, label)
    for panel, of, x in ((axes[2], ends, "before"), (axes[3], after, "steps")):
        line(panel, *means(where(of, kernel="pseudo"), x, "null"), 3, "residual alone")
    for number, panel in enumerate(axes):
        late = number % 2
        panel.set_xscale("symlog", linthresh=10) if not late else panel.set_xscale("log")
        ticks(panel, s.marks if late else steps)
        panel.set_ylim(max(-1.02, _lowest(panel) - 0.1), 1.02)
        panel.set_ylabel("Spearman of ‖Δf‖" if number > 1 else "cosine of Δf")
        panel.set_xlabel("steps continued with the label" if late else "steps trained before")
    legend_below(figure, axes[2], 4)
    return StudyFigure(
        "lengths",
        "Trained how long before, and how long after?",
        _length_text(s, ends, after, steps),
        figure=figure,
        table=[
            *_summary_table(ends, "before", "steps trained before"),
            *_summary_table(after, "steps", "steps continued"),
        ],
        alt="Cosine and Spearman correlation against steps of training before and after.",
    )


def _length_text(s: Any, ends: Sequence[Row], after: Sequence[Row], steps: Sequence[int]) -> str:
    def cosine(of: Sequence[Row], kind: str, **at: int) -> str:
        return format_mean(where(of, kernel=kind, **at), "cosine")

    first, last, usual = steps[0], steps[-1], get_default_training(s.networks[0][0]).steps
    return (
        "Left: the network is trained for so many steps, then looked ahead from. Cosine with the "
        "default kernel after "
        f"{first} steps {cosine(ends, 'pseudo', before=first)}, after the usual {usual} "
        f"{cosine(ends, 'pseudo', before=usual)}, after {last} "
        f"{cosine(ends, 'pseudo', before=last)}. A network far "
        "from its labels moves far in the continued training, and its kernel with it. Right: the "
        "usual network, and "
        "real training read off early and late. Look-ahead speaks of the end of training; “same "
        "steps” is the "
        f"linearised network stopped when the real one is. After {s.marks[0]} steps the first has "
        f"{cosine(after, 'full', steps=s.marks[0])}, the second "
        f"{cosine(after, 'full, same steps', steps=s.marks[0])}; "
        f"after {s.marks[-1]} steps {cosine(after, 'full', steps=s.marks[-1])} and "
        f"{cosine(after, 'full, same steps', steps=s.marks[-1])}. Where both are alike, "
        "look-ahead waits for nothing "
        "more, and what is missing from 1 is that the network is not linear."
    )


def _three(ends: Sequence[Row], at: Sequence[int]) -> Any:
    """Order, direction and size against the width."""
    figure, axes = panels(3, height=3.4)
    ends = [r for r in ends if r["kernel"] in KERNELS]
    for number, kind in enumerate(KERNELS):
        for panel, what in zip(axes, ("spearman", "cosine", "ratio"), strict=True):
            line(panel, *means(where(ends, kernel=kind), "width", what), number, KERNELS[kind])
    line(axes[0], *means(where(ends, kernel="pseudo"), "width", "null"), 3, "residual alone")
    reference(axes[2], 1.0)
    names = ("Spearman of ‖Δf‖", "cosine of Δf", "predicted / real size")
    for panel, name in zip(axes, names, strict=True):
        panel.set(xscale="log", xlabel="hidden units", ylabel=name)
        ticks(panel, at)
        if name != names[2]:
            panel.set_ylim(max(-1.02, _lowest(panel) - 0.1), 1.02)
    legend_below(figure, axes[0], 4)
    return figure


def _lowest(panel: Any) -> float:
    return min(float(np.min(li.get_ydata())) for li in panel.get_lines())


def _summary_table(ends: Sequence[Row], x: str, name: str = "") -> list[Row]:
    """Means over seeds by x and kernel."""
    columns = {
        "Spearman": "spearman",
        "residual alone": "null",
        "given the residual": "partial",
        "cosine": "cosine",
        "predicted / real": "ratio",
        "accuracy before": "accuracy",
    }
    return [
        {
            "varied": name or x,
            "value": v,
            "kernel": kind,
            **{title: mean(of, column) for title, column in columns.items()},
        }
        for v in values(ends, x)
        for kind in ("pseudo", "full", "full, same steps")
        if (of := where(ends, kernel=kind, **{x: v}))
    ]


def scores(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """Scores before the label is known, against what it really did."""
    table: list[Row] = []
    for model, width in s.networks:
        mine = _usual(rows, model, width, row="score")
        for score in dict.fromkeys(r["score"] for r in mine):
            here = where(mine, score=score)
            row = {v: format_mean(here, k) for k, v in TRUTHS.items()}
            table.append({"network": f"{model}, width {width}", "score": score, **row})
    model, width = s.networks[0]
    mine = _usual(rows, model, width, row="score")

    def ranked(score: str, truth: str) -> str:
        return format_mean(where(mine, score=score), truth)

    return StudyFigure(
        "scores",
        "Scores, before the label is known",
        "Spearman's correlation over candidates between a score and what training really did "
        "(columns; sums over "
        "held-out items, gradient descent as above). MLMOC's own claim is the change if the "
        "network's guess were the "
        f"label: for the {model} {ranked('MLMOC', 'mlmoc')}, where the small margin alone gets "
        f"{ranked('small margin', 'mlmoc')}. The change by the true label, which no score knows, "
        "MLMOC ranks at "
        f"{ranked('MLMOC', 'change')}, flip at {ranked('flip', 'change')}, the small margin at "
        f"{ranked('small margin', 'change')}. But change is not use: the error that the label "
        "really removes is ranked "
        f"at {ranked('flip', 'gain')} by flip, {ranked('MLMOC', 'gain')} by MLMOC, "
        f"{ranked('small margin', 'gain')} by "
        f"the margin, and at {ranked('look-ahead, true label', 'gain')} by a look-ahead that is "
        "told the true label "
        "(last row): so much a better guess of labels could buy. flip does not try to rank single "
        "changes; it is made "
        f"for batches. With {s.candidates} candidates and {s.seeds} seeds these intervals are "
        "wide.",
        table=table,
    )


def cold(s: Any, rows: Sequence[Row]) -> StudyFigure:
    """One label's effect beside the noise of training."""
    kinds = list(dict.fromkeys(r["kind"] for r in rows))
    table: list[Row] = []
    for kind in kinds:
        mine = where(rows, kind=kind)
        table.append(
            {"trained how": kind, "‖Δf‖": format_mean(mine, "real")}
            | {
                name: format_mean(mine, key) if mine[0].get(key) is not None else None
                for key, name in COLD.items()
            }
        )
    size = {k: over_seeds(where(rows, kind=k), "real") for k in kinds}
    guess = over_seeds(where(rows, kind=kinds[0]), "predicted")
    return StudyFigure(
        "cold",
        "Begin again: does the effect of one label drown?",
        f"The same {s.cold_candidates} candidates a seed, network and look-ahead "
        f"({s.networks[0][0]}, pseudo kernel); "
        "only how the real Δf comes about differs. Gradient descent has no noise. The usual "
        "training is the recipe "
        f"(Adam, minibatches), {s.repeats} repetitions with other orders. The last two have no "
        "candidate at all: two "
        "trainings on the same labels, minus each other. " + _cold_text(rows, kinds, size, guess),
        figure=_bars(kinds, size, guess),
        table=table,
        alt="Bars: the size of the change of outputs by kind of training, beside the noise.",
    )


def _cold_text(
    rows: Sequence[Row], kinds: Sequence[str], size: dict[str, Estimate], guess: Estimate
) -> str:
    warm, usual, again, retrained, order, weights = kinds
    cosine = {k: mean(where(rows, kind=k), "cosine") for k in kinds}
    share = mean(where(rows, kind=retrained), "repeats")
    many = mean(where(rows, kind=retrained), "mean_cosine")
    lasting = max(share, 0.0) ** 0.5 * size[retrained].mean
    return (
        f"Look-ahead predicts ‖Δf‖ = {guess.mean:.2f} on average. Training on: "
        f"{size[warm].mean:.2f}, cosine "
        f"{cosine[warm]:.2f} ({usual.split(', ')[1]}: {size[usual].mean:.2f}, "
        f"{cosine[usual]:.2f}). Beginning again "
        f"without noise: {size[again].mean:.2f}, {cosine[again]:.2f}. Beginning again as usual: "
        f"{size[retrained].mean:.2f}, {cosine[retrained]:.2f}; {100 * share:.0f} % of its square "
        "comes again in a "
        f"second training from the same weights, a lasting change of {lasting:.2f}, and the mean "
        "over repetitions has "
        f"cosine {many:.2f}. With no new label, another order changes {size[order].mean:.2f} and "
        "other initial weights "
        f"{size[weights].mean:.2f}. So one label's effect {_beside(lasting, size[order].mean)} of "
        "another order and "
        f"{_beside(lasting, size[weights].mean)} of other weights. Look-ahead tells what a label "
        "does to this network, "
        "not what the next training run will say."
    )


def _beside(effect: float, noise: float) -> str:
    if effect < 0.5 * noise:
        return "drowns in the noise"
    return "is as large as the noise" if effect < 2 * noise else "stands out from the noise"


def _bars(kinds: Sequence[str], size: dict[str, Estimate], guess: Estimate) -> Any:
    figure, (axes,) = panels(1, height=2.9)
    y = np.arange(len(kinds))[::-1]
    colors = [PALETTE[0][0] if "no label" not in k else PALETTE[1][0] for k in kinds]
    axes.barh(y, [size[k].mean for k in kinds], color=colors, height=0.6, zorder=2)
    for at, e in zip(y, size.values(), strict=True):
        if e.low is not None:
            axes.plot([max(e.low, 0), e.high], [at, at], color=INK, lw=1.2, zorder=3)
    axes.axvline(guess.mean, color=INK, ls=DOTS, lw=1.4, zorder=4)
    axes.annotate(
        "predicted",
        (guess.mean, len(kinds) - 0.45),
        ha="center",
        va="bottom",
        annotation_clip=False,
        fontsize=9,
    )
    axes.set_yticks(y, kinds)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("mean ‖Δf‖ (orange: no label was added)")
    return figure
