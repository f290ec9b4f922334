"""The linear datamodelling score of attribution methods, on digits.

    python -m research attribution [--network mlp cnn] [--seeds 0 1] [--subsets 60]

Networks are trained on random halves of the training items. An attribution method predicts, for
every test item, how its margin log(p / (1 − p)) ranks over the halves; the score is Spearman's
correlation, averaged over test items (Park et al. 2023). No subset network is used for attribution.
Results are written to research/data/attribution.json and into docs/attribution.md.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import labelahead as la
from labelahead import attribution
from labelahead.data import load

RESULTS = Path(__file__).parent / "data" / "attribution.json"
PAGE = Path(__file__).parents[1] / "docs" / "attribution.md"
BEGIN, END = "<!-- begin attribution -->\n", "<!-- end -->"
TRAINING_STEPS = 150
LEARNING_RATE, WEIGHT_DECAY = 3e-3, 1e-2
NOISES = (1e-3, 1e-2, 1e-1, 1.0)
CHECKPOINTS = 5  # of TRAK, trained on further halves


def build_network(name: str, seed: int) -> nn.Module:
    """Build a small network for images of 8×8 pixels."""
    torch.manual_seed(seed)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, 10)),
    )


def train_network(name: str, x: Tensor, y: Tensor, seed: int) -> nn.Module:
    """Train by cross-entropy on all items at once."""
    model = build_network(name, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(TRAINING_STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


def compute_margins(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(m,): log(p / (1 − p)) of the true classes."""
    with torch.no_grad():
        logits = model(x).double()
    chosen = nn.functional.one_hot(y, logits.shape[1]).bool()
    return logits[chosen] - logits.masked_fill(chosen, -torch.inf).logsumexp(1)


def predict_by_influence(
    model: nn.Module, x: Tensor, y: Tensor, x2: Tensor, y2: Tensor, subsets: Tensor
) -> dict[str, Tensor]:
    """(s, m) predicted outputs for each amount of noise: by sums over items, and for the group."""
    K, cross = la.kernel(model, x), la.kernel(model, x2, x)
    targets, predicted = torch.eye(10)[y], {}
    for noise in NOISES:
        found = attribution.fit_influence(K, cross, targets, noise=noise)
        own = y2[:, None]
        predicted[f"influence, sum, noise {noise:g}"] = attribution.sum_scores(
            found.scores(y2), subsets
        )
        groups = [found.leave_group_out((~s).nonzero()[:, 0]) for s in subsets]
        predicted[f"influence, group, noise {noise:g}"] = torch.stack(
            [change.gather(1, own)[:, 0] for change in groups]
        )
    return predicted


def predict_by_gradients(
    name: str, x: Tensor, y: Tensor, x2: Tensor, y2: Tensor, model: nn.Module
) -> dict[str, Tensor]:
    """(m, n) scores of TRAK, with one network and several, and inner products of loss gradients."""
    halves = attribution.draw_subsets(len(x), CHECKPOINTS, seed=10_000)
    networks = [train_network(name, x[h], y[h], 10_000 + i) for i, h in enumerate(halves)]
    both, classes = torch.cat([x2, x]), torch.cat([y2, y])
    with torch.no_grad():
        gradients = model(both).softmax(1) - torch.eye(10)[classes]
    gram = la.ntk.gradient_gram(model, both, gradients)
    scores = {"inner products of loss gradients": gram[: len(x2), len(x2) :]}
    for sketch in (len(x) // 8, len(x) // 2):
        scores[f"TRAK, 1 network, {sketch}"] = attribution.compute_trak_scores(
            model, x, y, x2, y2, sketch=sketch
        )
        scores[f"TRAK, {CHECKPOINTS} networks, {sketch}"] = attribution.compute_trak_scores(
            networks, x, y, x2, y2, sketch=sketch
        )
    return scores


def run(network: str, items: int, tests: int, count: int, seed: int) -> dict[str, object]:
    """Train on all subsets, attribute, and return the scores."""
    data, answers = load("digits")
    order = torch.randperm(len(data.inputs), generator=torch.Generator().manual_seed(seed))
    at, at2 = order[:items], order[items : items + tests]
    x, y, x2, y2 = data.inputs[at], answers.take(at), data.inputs[at2], answers.take(at2)
    subsets = attribution.draw_subsets(items, count, seed=1)
    started = time.process_time()
    actual = torch.stack(
        [
            compute_margins(train_network(network, x[s], y[s], i), x2, y2)
            for i, s in enumerate(subsets)
        ]
    )
    trained = time.process_time()
    model = train_network(network, x, y, 99_999)
    accuracy = float((model(x2).argmax(1) == y2).double().mean())
    predicted = predict_by_influence(model, x, y, x2, y2, subsets)
    for name, scores in predict_by_gradients(network, x, y, x2, y2, model).items():
        predicted[name] = attribution.sum_scores(scores.double(), subsets)
    noise = torch.randn(tests, items, generator=torch.Generator().manual_seed(2))
    predicted["random scores"] = attribution.sum_scores(noise, subsets)
    rows = {}
    for name, values in predicted.items():
        score = attribution.linear_datamodelling_score(values, actual)
        rows[name] = [round(float(score.mean()), 4), round(float(score.std() / tests**0.5), 4)]
    return {
        "network": network,
        "seed": seed,
        "items": items,
        "tests": tests,
        "subsets": count,
        "accuracy": accuracy,
        "training seconds": round(trained - started, 1),
        "attribution seconds": round(time.process_time() - trained, 1),
        "scores": rows,
    }


def render_table(found: list[dict[str, object]]) -> str:
    """Render the measurements as a table in Markdown."""
    heads = [f"{r['network']}, seed {r['seed']} ({100 * r['accuracy']:.0f} %)" for r in found]  # type: ignore[operator]
    lines = ["| method | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(heads)]
    scores = [r["scores"] for r in found]
    for name in scores[0]:  # type: ignore[attr-defined]
        cells = ["{:.2f} ± {:.2f}".format(*of[name]) for of in scores]  # type: ignore[index]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write_page(page: Path, found: list[dict[str, object]]) -> None:
    """Write the table into the page, between its markers."""
    text = page.read_text()
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    page.write_text(text[:start] + render_table(found) + text[stop:])


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m research attribution", description=__doc__)
    parser.add_argument("--network", choices=("mlp", "cnn"), nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--subsets", type=int, default=60)
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--tests", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of the items")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = []
    for network, seed in itertools.product(given.network, given.seeds):
        result = run(network, given.items, given.tests, given.subsets, seed)
        found.append(result)
        print(f"{network}, seed {seed}: accuracy {result['accuracy']:.2f}, {given.subsets} subsets")
        for name, (score, error) in result["scores"].items():  # type: ignore[attr-defined]
            print(f"  {name:40} {score:6.3f} ± {error:.3f}", flush=True)
    given.results.write_text(json.dumps(found, indent=1) + "\n")
    if given.results == RESULTS:
        write_page(PAGE, found)
    return 0
