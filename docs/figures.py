"""The pictures of docs/principles.md, from the product itself: `.venv/bin/python docs/figures.py
[name ...]`.

Needs the extra `app`. Without names, all are drawn, into docs/figures; a minute or two on one core.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from PIL import Image
from sklearn.datasets import make_moons
from torch import Tensor, nn

import labelahead as la
from labelahead.data import load
from labelahead.simulation.comparison.plot_style import GRID, INK, PALETTE

PNG_COLOURS = 256
OUT = Path(__file__).parent / "figures"
BLUE, ORANGE, GREEN, PINK = (pair[0] for pair in PALETTE[:4])
STYLE = {
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "font.size": 10,
    "legend.frameon": False,
    "savefig.facecolor": "white",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def curve_network(width: int = 256) -> nn.Module:
    """A network from one number to one number, as PyTorch starts it but for smoother bends."""
    torch.manual_seed(4)
    model = nn.Sequential(
        nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )
    with torch.no_grad():
        model[0].weight.mul_(3)
        model[0].bias.mul_(3)
    return model.eval()


LINE = torch.linspace(-3, 3, 201)[:, None]


def at(value: float) -> int:
    """Where on the line a number is."""
    return int((LINE[:, 0] - value).abs().argmin())


def step(ax: Axes, ax2: Axes) -> None:
    """One gradient step on one item, and what the kernel foretells of it everywhere."""
    model, rate, here = curve_network(), 2e-3, at(0.6)
    before = model(LINE).detach()
    K = la.kernel(model, LINE)
    predicted = before + rate * K[:, [here]] * (1.0 - before[here])
    loss = 0.5 * (model(LINE[[here]]) - 1.0).square().sum()
    for weight, gradient in zip(
        model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        weight.data -= rate * gradient
    after = model(LINE).detach()
    ax.plot(LINE, before, color=INK, label="network before")
    ax.plot(LINE, after, color=BLUE, label="after one step on the item")
    ax.plot(LINE, predicted, color=ORANGE, ls=(0, (2, 2)), lw=2.4, label="what the kernel foretold")
    ax.scatter(LINE[here], [1.0], color=PINK, zorder=3, label="the item and its label")
    ax.set(title="One step moves every prediction", xlabel="input", ylabel="output")
    ax.legend(loc="upper left", fontsize=8)
    ax2.plot(LINE, K[here], color=GREEN)
    ax2.axvline(float(LINE[here]), color=PINK, lw=1)
    ax2.set(title="The tangent kernel of that item", xlabel="input", ylabel="how much it moves")
    ax2.axhline(0, color=GRID, lw=1)


def kernel(ax: Axes, ax2: Axes) -> None:
    """The pseudo-NTK between 100 digits, of a network trained on 200 others."""
    data, answers = load("digits")
    x, truth = data.inputs, answers.take(torch.arange(len(data)))
    for axis, steps, title in (
        (ax, 0, "NewItems network"),
        (ax2, 200, "Trained on 200 other digits"),
    ):
        model = trained_on(x[:200], truth[:200], steps)
        some = torch.cat([200 + (truth[200:] == c).nonzero()[:10, 0] for c in range(10)])
        K = la.kernel(model, x[some])
        scale = K.diagonal().rsqrt()
        axis.imshow(
            scale[:, None] * K * scale, cmap="Blues", vmin=0, vmax=1, interpolation="nearest"
        )
        axis.set(title=title, xticks=range(5, 100, 10), yticks=range(5, 100, 10))
        axis.set_xticklabels(range(10))
        axis.set_yticklabels(range(10))
        axis.tick_params(length=0)
        axis.set(xlabel="digit, ten of each", ylabel="digit, ten of each")


def trained_on(x: Tensor, y: Tensor, steps: int) -> nn.Module:
    """The small dense network of the catalogue."""
    from labelahead.models import build_model
    from labelahead.models.training import Training, train

    model = build_model("mlp", tuple(x.shape[1:]), 10, seed=0)
    if steps:
        train(model, x, y, 10, Training(steps=steps), seed=0)
    return model.eval()


POINTS = [at(v) for v in (-2.2, -1.3, 0.4, 1.5)]
VALUES = torch.tensor([[-0.6], [0.7], [0.2], [1.0]])


def linear(ax: Axes, ax2: Axes) -> None:
    """Really trained to the end, and the linearised network, for two widths."""
    for axis, width in ((ax, 32), (ax2, 1024)):
        model = curve_network(width)
        before = model(LINE).detach()
        post = la.prior(before, la.kernel(model, LINE), noise=1e-6).condition(POINTS, VALUES)
        x = LINE[POINTS]
        rate = 1.0 / float(torch.linalg.eigvalsh(la.kernel(model, x)).max())
        optimiser = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(4000):
            optimiser.zero_grad()
            (0.5 * (model(x) - VALUES).square().sum()).backward()
            optimiser.step()
        axis.plot(LINE, before, color=GRID, lw=2, label="network before")
        axis.plot(LINE, model(LINE).detach(), color=BLUE, label="trained, 4,000 steps")
        axis.plot(
            LINE, post.mean, color=ORANGE, ls=(0, (2, 2)), lw=2.4, label="linearised, no training"
        )
        axis.scatter(x, VALUES, color=PINK, zorder=3, label="labels")
        axis.set(title=f"{width} units a layer", xlabel="input", ylim=(-1.6, 1.9))
    ax.set_ylabel("output")
    ax.legend(loc="lower right", fontsize=8)


def lookahead(ax: Axes, ax2: Axes) -> None:
    """What is held of every input, and what one more label would make of it."""
    model = curve_network(1024)
    post = la.prior(model(LINE).detach(), la.kernel(model, LINE), noise=1e-3).condition(
        POINTS, VALUES
    )
    here = at(2.5)
    for axis, held, title in (
        (ax, post, "Before"),
        (ax2, post.condition([here], torch.tensor([[0.0]])), "After a label there"),
    ):
        spread = held.variance().reshape(-1).clamp(min=0).sqrt() * post.amplitude() ** 0.5 * 2
        middle = held.mean[:, 0]
        axis.fill_between(
            LINE[:, 0], middle - spread, middle + spread, color=BLUE, alpha=0.15, lw=0
        )
        axis.scatter(LINE[POINTS], VALUES, color=PINK, zorder=3)
        axis.set(title=title, xlabel="input", ylim=(-2.6, 3.1))
        axis.axvline(float(LINE[here]), color=GRID, lw=1)
    ax.plot(LINE, post.mean, color=BLUE, label="prediction, and how unsure it is")
    answers = torch.tensor([[-1.0], [0.0], [1.0]])
    for future, colour in zip(
        torch.cat(list(la.lookahead(post, [here] * 3, answers))), (ORANGE, INK, GREEN), strict=True
    ):
        for axis in (ax, ax2) if colour == INK else (ax,):
            axis.plot(LINE, future, color=colour, lw=1.2, ls="-" if axis is ax2 else (0, (3, 2)))
    ax.plot([], [], color=INK, lw=1.2, ls=(0, (3, 2)), label="three answers that may come")
    ax.set_ylabel("output")
    ax.legend(loc="upper left", fontsize=8)


def score(ax: Axes, ax2: Axes) -> None:
    """Two moons: what a label of each item would be worth, with no label and with six."""
    points, truth = make_moons(300, noise=0.12, random_state=0)
    x = torch.tensor(points, dtype=torch.float32)
    learner = la.Learner(la.exact(x, 2), x, "resolve", retrain_every=1)
    for axis, labels in ((ax, 0), (ax2, 6)):
        while len(learner.pool) < labels:
            (position,) = learner.query(1)
            learner.teach([position], [int(truth[position])])
        query = la.propose(
            learner.model,
            x,
            learner.pool,
            len(learner.pool.unlabelled),
            la.QueryConfig("resolve", mode="top"),
        )
        worth = torch.zeros(len(x), dtype=torch.float64).index_put(
            (query.positions,), query.scores.double()
        )
        dots = axis.scatter(*x[query.positions].T, c=worth[query.positions], cmap="viridis", s=16)
        given = learner.pool.labelled
        for c, marker, colour in ((0, "s", BLUE), (1, "^", ORANGE)):
            some = given[learner.pool.labels == c]
            axis.scatter(*x[some].T, color=colour, edgecolor=INK, marker=marker, s=60, zorder=3)
        axis.scatter(
            *x[query.positions[0]], facecolor="none", edgecolor=PINK, s=160, lw=2.2, zorder=4
        )
        axis.set(
            title=f"{labels or 'No'} labels yet" if not labels else f"After {labels} labels",
            xticks=[],
            yticks=[],
        )
        axis.set_aspect("equal")
        plt.colorbar(dots, ax=axis, shrink=0.6, label="predictions put right")


def curves(ax: Axes, ax2: Axes) -> None:
    """Digits, the learner that is never trained: asked by resolve, and at random."""
    for axis, trained in ((ax, False), (ax2, True)):
        for strategy, colour in (("random", INK), ("flip" if trained else "resolve", BLUE)):
            runs = []
            for seed in range(3 if trained else 5):
                plan = {"seed": seed, "asking": {"strategy": strategy}, "threads": 1}
                plan["model"] = {"name": "mlp" if trained else "exact"}
                plan["budget"] = {"initial": 20, "labels": 100}
                runs.append(la.run(plan, forecast=False).curve)
            labels = [n for n, _ in runs[0]]
            height = torch.tensor([[a for _, a in run] for run in runs]) * 100
            axis.plot(labels, height.mean(0), color=colour, marker="o", ms=3.5, label=strategy)
            axis.fill_between(
                labels, height.amin(0), height.amax(0), color=colour, alpha=0.12, lw=0
            )
        axis.set(
            title="A trained network" if trained else "The learner that is never trained",
            xlabel="labels",
            ylim=(50, 100),
        )
        axis.legend(loc="lower right")
    ax.set_ylabel("digits right, %")


def small(path: Path) -> None:
    """The same with a palette: a third of its size, and to the eye the same."""
    with Image.open(path) as picture:
        flat = picture.convert("RGB").quantize(PNG_COLOURS, dither=Image.Dither.NONE)
    flat.save(path, optimize=True)


FIGURES = {f.__name__: f for f in (step, kernel, linear, lookahead, score, curves)}


def main(names: list[str]) -> None:
    """Draw them."""
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    for name in names or FIGURES:
        with plt.rc_context(STYLE):
            figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
            FIGURES[name](*axes)
            figure.savefig(
                OUT / f"{name}.png", dpi=130, bbox_inches="tight", metadata={"Software": None}
            )
            plt.close(figure)
        small(OUT / f"{name}.png")
        print(OUT / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
