"""What the measurements of `labelahead study fidelity` show."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labelahead.laboratory.charts import line, means, panels, reference, span
from labelahead.laboratory.experiment import Exhibit, Row, where
from labelahead.laboratory.fidelity_tables import cold, over_seeds, scores, told
from labelahead.study.drawing import INK, MARKERS, PALETTE
from labelahead.train import recipe

__all__ = ["exhibits"]

TITLES = {"pseudo": "pseudo (default)", "trace": "trace", "full": "full"}


def exhibits(s: Any, rows: Sequence[Row]) -> list[Exhibit]:
    """All exhibits for the parts that were measured."""
    found: list[Exhibit] = []
    if "warm" in s.parts:
        warm = where(rows, part="warm")
        made = (short, sizes, networks, widths, lengths, scores)
        found += [make(s, warm) for make in made]
    if "cold" in s.parts:
        found.append(cold(s, where(rows, part="cold")))
    return found


def _usual(s: Any, rows: Sequence[Row], model: str, width: int, **more: Any) -> list[Row]:
    return where(rows, model=model, width=width, before=recipe(model).steps, **more)


def _ends(s: Any, rows: Sequence[Row], model: str, width: int, kind: str = "pseudo") -> list[Row]:
    """Summaries at the end of the continued training, one a seed."""
    return _usual(s, rows, model, width, row="summary", kernel=kind, steps=s.marks[-1])


def short(s: Any, rows: Sequence[Row]) -> Exhibit:
    """Where it holds and where it fails, in one table."""
    model, width = s.networks[0]
    steps, narrow, early = recipe(model).steps, min(s.widths), min(s.before, default=0)
    where_of = {f"{m}, width {w}": (m, w, recipe(m).steps) for m, w in s.networks}
    where_of[f"{model}, narrow (width {narrow})"] = (model, narrow, steps)
    where_of[f"{model}, trained for {early} steps only"] = (model, width, early)
    table: list[Row] = []
    for name, (m, w, before) in where_of.items():
        at = {"model": m, "width": w, "before": before, "row": "summary", "steps": s.marks[-1]}
        mine, full = (where(rows, kernel=k, **at) for k in ("pseudo", "full"))
        if not mine:
            continue
        order, way = over_seeds(mine, "spearman").mean, over_seeds(mine, "cosine").mean
        table.append({
            "network": name, "order of candidates": f"{_mark(order)} ({order:.2f})",
            "… by the residual alone": f"{over_seeds(mine, 'null').mean:.2f}".replace("-", "−"),
            "direction of Δf": f"{_mark(way)} ({way:.2f})",
            "… with the full kernel": f"{over_seeds(full, 'cosine').mean:.2f}",
            "predicted / real size": f"{over_seeds(mine, 'ratio').mean:.2f}",
            "accuracy before": f"{over_seeds(mine, 'accuracy').mean:.2f}",
        })  # fmt: skip
    return Exhibit(
        "short",
        "In short",
        "The product's look-ahead (pseudo kernel) against training that really goes on with one "
        "more label. Order: Spearman's correlation of predicted and real ‖Δf‖ over candidates. "
        "Direction: cosine of predicted and real Δf. Good is 0.9 or more, fair 0.7, weak 0.4; "
        f"means over {s.seeds} seeds, with their intervals below. Look-ahead is a statement about "
        "a trained, wide enough network that goes on training; in the last two rows one of these "
        "is missing.",
        table=table,
    )


def _mark(value: float) -> str:
    steps = ((0.9, "good"), (0.7, "fair"), (0.4, "weak"), (-2.0, "fails"))
    return next(word for least, word in steps if round(value, 2) >= least)


def sizes(s: Any, rows: Sequence[Row]) -> Exhibit:
    """Predicted against real size of the change, a point a candidate."""
    figure, axes = panels(len(s.networks), height=3.2)
    found = []
    for panel, (model, width) in zip(axes, s.networks, strict=True):
        mine = _usual(s, rows, model, width, row="candidate")
        for seed in sorted({r["seed"] for r in mine}):
            here, style = where(mine, seed=seed), seed % len(PALETTE)
            panel.scatter(
                [r["predicted_pseudo"] for r in here], [r["real"] for r in here], s=14, alpha=0.75,
                lw=0, color=PALETTE[style][0], marker=MARKERS[style],
            )  # fmt: skip
        values = [r[k] for r in mine for k in ("predicted_pseudo", "real")]
        span_of = [max(min(values), 1e-3 * max(values)), max(values)]
        panel.plot(span_of, span_of, color=INK, ls=(0, (1, 1.2)), lw=1.4)
        panel.set(xscale="log", yscale="log", xlabel="predicted ‖Δf‖", ylabel="real ‖Δf‖")
        ticks = [v for v in (0.01, 0.03, 0.1, 0.3, 1, 3, 10) if span_of[0] <= v <= span_of[1]]
        panel.minorticks_off()
        panel.set_xticks(ticks, [f"{v:g}" for v in ticks])
        panel.set_yticks(ticks, [f"{v:g}" for v in ticks])
        panel.set_title(f"{model}, width {width}", loc="left", fontsize=10)
        ends = _ends(s, rows, model, width)
        found.append(f"{model}: Spearman {told(ends, 'spearman')}")
    return Exhibit(
        "sizes",
        "Which label would change most? Predicted and real",
        f"A point is a candidate, a colour a seed: the size of the change at {s.evaluation} "
        f"held-out items, as look-ahead (the product's own: pseudo kernel, noise {s.noise:g}) "
        f"predicts it and as {s.marks[-1]} steps of full-batch gradient descent on the squared "
        f"loss make it, from a network trained on {s.initial} labels. On the dotted line both are "
        f"equal. Order of the candidates: {'; '.join(found)} (95 % over seeds). The paper "
        "(LA) proves this for infinite width and does not measure it on real networks.",
        figure=figure,
        alt="Scatter plots of predicted against real size of the change of outputs.",
    )


def networks(s: Any, rows: Sequence[Row]) -> Exhibit:
    """The table of architectures and kernels."""
    table: list[Row] = []
    for model, width in s.networks:
        for kind in TITLES:
            ends = _ends(s, rows, model, width, kind)
            table.append({
                "network": f"{model}, width {width}", "kernel": TITLES[kind],
                "Spearman of ‖Δf‖": told(ends, "spearman"),
                "residual alone": told(ends, "null"),
                "Spearman given the residual": told(ends, "partial"),
                "cosine": told(ends, "cosine"),
                "predicted / real size": told(ends, "ratio"),
            })  # fmt: skip
    first = _ends(s, rows, *s.networks[0])
    rank, null = over_seeds(first, "spearman").mean, over_seeds(first, "null").mean
    worst = min(s.networks, key=lambda n: over_seeds(_ends(s, rows, *n), "cosine").mean)
    low = over_seeds(_ends(s, rows, *worst), "cosine").mean
    better = over_seeds(_ends(s, rows, worst[0], worst[1], "full"), "cosine").mean
    return Exhibit(
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
        + "BatchNorm is trained with frozen statistics here, as the tangent kernel "
        "supposes.",
        table=table,
    )


def widths(s: Any, rows: Sequence[Row]) -> Exhibit:
    """Spearman, cosine and size against the width of the first network."""
    model, _ = s.networks[0]
    ends = where(rows, model=model, before=recipe(model).steps, row="summary", steps=s.marks[-1])
    ends = [r for r in ends if r["width"] in s.widths]
    figure = _three(s, ends, "width", [str(w) for w in s.widths], list(s.widths), "hidden units")
    low, high = (where(ends, width=w, kernel="full") for w in (min(s.widths), max(s.widths)))
    ours = [over_seeds(where(ends, width=w, kernel="pseudo"), "cosine")
            for w in (min(s.widths), max(s.widths))]  # fmt: skip
    loss = [over_seeds(of, "train_loss").mean for of in (low, high)]
    return Exhibit(
        "widths",
        "Does width make it truer?",
        f"The {model} at several widths, otherwise as above; lines are kernels. From width "
        f"{min(s.widths)} to {max(s.widths)} the cosine goes from "
        f"{told(low, 'cosine')} to {told(high, 'cosine')} with the full "
        f"kernel and from {span(ours[0])} to {span(ours[1])} with the pseudo kernel. Theory says "
        "that both errors vanish as width grows, the pseudo kernel's for networks near their "
        f"initial weights. The narrowest starts from a loss of {loss[0]:.2g} on its own labels, "
        f"the widest from {loss[1]:.2g}: what does not fit yet moves far when training goes on. "
        "Bands: 95 % over seeds.",
        figure=figure,
        table=_summary_table(ends, "width"),
    )


def lengths(s: Any, rows: Sequence[Row]) -> Exhibit:
    """Against how long the network was trained before, and how long after."""
    model, width = s.networks[0]
    mine = where(rows, model=model, width=width, row="summary")
    steps = sorted({*s.before, recipe(model).steps})
    ends = [r for r in where(mine, steps=s.marks[-1]) if r["before"] in steps]
    after = where(mine, before=recipe(model).steps)
    figure, axes = panels(4, height=3.0, columns=2)
    kinds = {"pseudo": "pseudo (default)", "full": "full", "full, same steps": "full, same steps"}
    for number, (kind, label) in enumerate(kinds.items()):
        for panel, what, of, x in (
            (axes[0], "cosine", ends, "before"), (axes[1], "cosine", after, "steps"),
            (axes[2], "spearman", ends, "before"), (axes[3], "spearman", after, "steps"),
        ):  # fmt: skip
            line(panel, *means(where(of, kernel=kind), x, what), number, label)
    for panel, of, x in ((axes[2], ends, "before"), (axes[3], after, "steps")):
        line(panel, *means(where(of, kernel="pseudo"), x, "null"), 3, "residual alone")
    for number, panel in enumerate(axes):
        late = number % 2
        panel.set_xscale("symlog", linthresh=10) if not late else panel.set_xscale("log")
        at = list(s.marks) if late else steps
        panel.set_xticks(at, [str(v) for v in at])
        panel.minorticks_off()
        panel.set_ylim(max(-1.02, _lowest(panel) - 0.1), 1.02)
        panel.set_ylabel("Spearman of ‖Δf‖" if number > 1 else "cosine of Δf")
        panel.set_xlabel("steps continued with the label" if late else "steps trained before")
    figure.legend(*axes[2].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return Exhibit(
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
        return told(where(of, kernel=kind, **at), "cosine")

    first, last, usual = steps[0], steps[-1], recipe(s.networks[0][0]).steps
    return (
        "Left: the network is trained for so many steps, then looked ahead from. "
        f"Cosine with the default kernel after {first} steps {cosine(ends, 'pseudo', before=first)}"
        f", after the usual {usual} {cosine(ends, 'pseudo', before=usual)}, after {last} "
        f"{cosine(ends, 'pseudo', before=last)}. A network far from its labels moves far in the "
        "continued training, and its kernel with it. Right: the usual network, and real training "
        "read off early and late. Look-ahead speaks of the end of training; “same steps” is "
        "the linearised network stopped when the real one is. After "
        f"{s.marks[0]} steps the first has {cosine(after, 'full', steps=s.marks[0])}, the second "
        f"{cosine(after, 'full, same steps', steps=s.marks[0])}; after {s.marks[-1]} steps "
        f"{cosine(after, 'full', steps=s.marks[-1])} and "
        f"{cosine(after, 'full, same steps', steps=s.marks[-1])}. Where both are alike, look-ahead "
        "waits for nothing more, and what is missing from 1 is that the network is not linear."
    )


def _three(s: Any, ends: Sequence[Row], x: str, ticks: list[str], at: list[int], label: str) -> Any:
    figure, axes = panels(3, height=3.4)
    ends = [r for r in ends if r["kernel"] in TITLES]
    for number, kind in enumerate(TITLES):
        for panel, what in zip(axes, ("spearman", "cosine", "ratio"), strict=True):
            line(panel, *means(where(ends, kernel=kind), x, what), number, TITLES[kind])
    line(axes[0], *means(where(ends, kernel="pseudo"), x, "null"), 3, "residual alone")
    reference(axes[2], 1.0)
    names = ("Spearman of ‖Δf‖", "cosine of Δf", "predicted / real size")
    for panel, name in zip(axes, names, strict=True):
        panel.set(xscale="log", xlabel=label, ylabel=name)
        panel.set_xticks(at, ticks)
        panel.minorticks_off()
        if name != names[2]:
            panel.set_ylim(max(-1.02, _lowest(panel) - 0.1), 1.02)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _lowest(panel: Any) -> float:
    return min(float(np.min(li.get_ydata())) for li in panel.get_lines())


def _summary_table(ends: Sequence[Row], x: str, name: str = "") -> list[Row]:
    """Means over seeds by x and kernel."""
    mean: Callable[[Sequence[Row], str], float] = lambda of, k: over_seeds(of, k).mean  # noqa: E731
    return [
        {"varied": name or x, "value": v, "kernel": kind,
         "Spearman": mean(of, "spearman"), "residual alone": mean(of, "null"),
         "given the residual": mean(of, "partial"), "cosine": mean(of, "cosine"),
         "predicted / real": mean(of, "ratio"), "accuracy before": mean(of, "accuracy")}
        for v in sorted({r[x] for r in ends})
        for kind in ("pseudo", "full", "full, same steps")
        if (of := where(ends, kernel=kind, **{x: v}))
    ]  # fmt: skip
