"""What a label costs: people, a language model, and both, on the same items and seeds.

    python -m research.results.routing_pools --data ../shared/data   # once: the features
    python -m research.results.routing run --seeds 0-10              # one row per campaign, resumable
    python -m research.results.routing table

Every item of a pool of 400 (drawn by the seed from 2,000) gets a class; accuracy is that of all of
them. A person costs 0.10 a label and is wrong in 5 %; a simulated language model costs 0.001 and is
right in 60, 75 or 90 %. It errs where the classes overlap: the difficulty of an item, and the class
that is given instead, are those of a kernel learner that knows the labels of all other items. Its
stated confidence is overconfident, with an area under the ROC curve of 0.65 to 0.75. Errors at random
are `llm 75 random`.

Policies: people alone (random, or `flip` of the exact learner, which predicts the rest);
three people and the majority of them, at random; the language model for everything and people for
its least confident items (`threshold`); and `fusion`: `inference.label_fusion`, where the next items
for people are those with the largest gain, of themselves (the probability that the class is wrong) and
of the others (`acquisition.sources`).
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import labelahead as la
from labelahead.acquisition.sources import LabelSource, source_view
from labelahead.inference.exact_model import exact
from labelahead.inference.label_fusion import LabelEvidence, fuse_labels
from labelahead.simulation.source_labels import estimate_ease, give_wrong_labels
from research.results.routing_pools import OUT as POOLS

OUT = Path(__file__).parents[1] / "data" / "routing.csv"
ITEMS, EVALUATION = 400, 150
PERSON, MODEL, PERSON_ERROR = 0.10, 0.001, 0.05
TARGETS = (0.80, 0.85, 0.90, 0.93)
SETS = ("newsgroups", "r8", "cifar10")
MODELS = {"llm 60": 0.60, "llm 75": 0.75, "llm 90": 0.90, "llm 75 random": 0.75}
PEOPLE = ("random", "flip", "majority")
FIELDS = ("set", "model", "policy", "seed", *(f"cost at {t:.2f}" for t in TARGETS))
MAX_SHARE = 0.8  # of the items that people label
GROWTH = 0.4  # of a round, relative to the labels so far
Curve = Iterator[tuple[float, float]]  # cost, accuracy


@dataclass(frozen=True, eq=False)
class Pool:
    """Items with their features, true classes and the labels that a person gives them."""

    rows: Tensor
    units: Tensor
    truth: Tensor
    classes: int
    person: Tensor


def draw_pool(name: str, seed: int) -> Pool:
    with np.load(POOLS / f"{name}.npz") as arrays:
        x, y = torch.from_numpy(arrays["x"]).float(), torch.from_numpy(arrays["y"]).long()
    rng = torch.Generator().manual_seed(seed)
    at = torch.randperm(len(x), generator=rng)[:ITEMS]
    classes = int(y.max()) + 1
    units = exact(x[at], classes).normalise_rows(x[at]).double()
    return Pool(x[at], units, y[at], classes, give_labels(y[at], classes, rng))


def give_labels(truth: Tensor, classes: int, rng: torch.Generator) -> Tensor:
    """Labels of a person, who is wrong in 5 %."""
    wrong = torch.rand(len(truth), generator=rng) < PERSON_ERROR
    other = (truth + torch.randint(1, classes, (len(truth),), generator=rng)) % classes
    return torch.where(wrong, other, truth)


def simulate_model(pool: Pool, kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """Labels (n,) and stated confidences (n,) of a language model."""
    rng = np.random.default_rng([seed, list(MODELS).index(kind)])
    at_random = kind.endswith("random")
    hard = None if at_random else estimate_ease(pool.units, pool.truth, pool.classes)
    return give_wrong_labels(pool.truth, MODELS[kind], rng, hard, pool.classes)


def label_by_people(pool: Pool, policy: str, seed: int) -> Curve:
    """People label some items, the exact learner predicts the others."""
    rng = torch.Generator().manual_seed(seed + 1)
    labels, price = pool.person, PERSON
    if policy == "majority":
        votes = [labels, *(give_labels(pool.truth, pool.classes, rng) for _ in range(2))]
        labels, price = torch.stack(votes).mode(0).values, 3 * PERSON
    strategy = "flip" if policy == "flip" else "random"
    config = la.QueryConfig(strategy=strategy, candidates=ITEMS)
    learner = la.Learner(la.exact(pool.rows, pool.classes), pool.rows, config, seed=seed)
    first = torch.randperm(len(labels), generator=rng)[:10].tolist()
    learner.teach(first, labels[first])
    while True:
        known = learner.pool.labelled
        predicted = learner.predict().argmax(1)
        predicted[known] = labels[known]
        yield price * len(known), float((predicted == pool.truth).double().mean())
        if len(known) >= MAX_SHARE * len(labels):
            return
        chosen = learner.query(round_size(len(known)))
        learner.teach(chosen, labels[chosen])


def label_by_threshold(pool: Pool, guess: Tensor, confidence: Tensor) -> Curve:
    """The language model labels everything, people its least confident items."""
    labels = guess.clone()
    for i, item in enumerate([None, *confidence.argsort().tolist()]):
        if item is not None:
            labels[item] = pool.person[item]
        yield MODEL * len(guess) + PERSON * i, float((labels == pool.truth).double().mean())


def label_by_fusion(pool: Pool, guess: Tensor, confidence: Tensor, seed: int) -> Curve:
    """The language model labels everything; people the items with the largest gain."""
    rng = torch.Generator().manual_seed(seed + 2)
    n = len(guess)
    evaluation = torch.randperm(n, generator=rng)[:EVALUATION].sort().values
    people = torch.full_like(guess, -1)
    while True:
        evidence = LabelEvidence(people, guess, confidence, PERSON_ERROR)
        fused = fuse_labels(pool.units, evidence, pool.classes)
        predicted = fused.probabilities.argmax(1)
        count = int((people >= 0).sum())
        yield MODEL * n + PERSON * count, float((predicted == pool.truth).double().mean())
        if count >= MAX_SHARE * n:
            return
        view = source_view(
            fused.posterior, torch.arange(n), evaluation, label_noise=fused.label_noise
        )
        others = view.gains([LabelSource("person", PERSON, PERSON_ERROR)])[:, 0]
        own = (1 - fused.probabilities.max(1).values - PERSON_ERROR).clamp_min(0)
        score = (own + others * n / EVALUATION).masked_fill(people >= 0, -1.0)
        chosen = score.topk(round_size(count)).indices
        people[chosen] = pool.person[chosen]


def round_size(labels: int) -> int:
    """How many items people label next."""
    return min(max(10, int(GROWTH * labels)), ITEMS - labels)


def find_costs(curve: Curve) -> list[float | None]:
    """The cost at which each target is first reached, interpolated; None: never."""
    costs: list[float | None] = [None] * len(TARGETS)
    before = (0.0, 0.0)
    for cost, accuracy in curve:
        for i, target in enumerate(TARGETS):
            if costs[i] is None and accuracy >= target:
                share = (target - before[1]) / (accuracy - before[1])
                costs[i] = before[0] + share * (cost - before[0]) if before[0] else cost
        before = (cost, accuracy)
        if costs[-1] is not None:
            break
    return costs


def list_jobs(seeds: range) -> Iterator[tuple[str, str, str, int]]:
    for kinds in (list(MODELS)[:3], list(MODELS)[3:]):
        for seed in seeds:
            for name in SETS:
                yield from ((name, "none", policy, seed) for policy in PEOPLE if len(kinds) > 1)
                for kind in kinds:
                    yield from ((name, kind, policy, seed) for policy in ("threshold", "fusion"))


def run_all(seeds: range) -> None:
    done = {(r["set"], r["model"], r["policy"], int(r["seed"])) for r in read_rows()}
    for job in list_jobs(seeds):
        if job in done:
            continue
        name, kind, policy, seed = job
        pool = draw_pool(name, seed)
        if kind == "none":
            curve = label_by_people(pool, policy, seed)
        elif policy == "threshold":
            curve = label_by_threshold(pool, *simulate_model(pool, kind, seed))
        else:
            curve = label_by_fusion(pool, *simulate_model(pool, kind, seed), seed)
        costs = ["" if c is None else f"{c:.3f}" for c in find_costs(curve)]
        new = not OUT.exists()
        with OUT.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([FIELDS] if new else [])
            writer.writerow([*job, *costs])
        print(*job, *costs, flush=True)


def read_rows() -> list[dict[str, str]]:
    if not OUT.exists():
        return []
    with OUT.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def format_table(rows: list[dict[str, str]]) -> str:
    """Return mean costs, and the ratio of `fusion` to the cheapest other policy, paired by seed.

    The cheapest other policy is the one with the lowest mean cost. A mean counts the seeds of which
    every policy has a row; "-" where some of them did not reach the target.
    """
    costs = {
        (r["set"], r["model"], r["policy"], int(r["seed"]), t): float(
            r[f"cost at {t:.2f}"] or "inf"
        )
        for r in rows
        for t in TARGETS
    }
    policies = [*PEOPLE, "threshold", "fusion"]
    lines = [
        "| set | language model | accuracy | seeds | "
        + " | ".join(policies)
        + " | fusion / cheapest other |",
        "| --- | --- | ---: | ---: | " + " | ".join("---:" for _ in policies) + " | ---: |",
    ]
    for name in SETS:
        for kind in MODELS:
            for target in TARGETS:
                line = _format_line(costs, name, kind, target, policies)
                lines += [line] if line else []
    return "\n".join(lines)


def _format_line(
    costs: dict[tuple[str, str, str, int, float], float],
    name: str,
    kind: str,
    target: float,
    policies: list[str],
) -> str:
    def cost(policy: str, seed: int) -> float | None:
        return costs.get((name, "none" if policy in PEOPLE else kind, policy, seed, target))

    seeds = sorted({key[3] for key in costs if key[0] == name})
    seeds = [s for s in seeds if all(cost(p, s) is not None for p in policies)]
    if not seeds:
        return ""
    values = {p: np.array([cost(p, s) for s in seeds], dtype=float) for p in policies}
    cells = [f"{v.mean():.1f}" if np.isfinite(v).all() else "-" for v in values.values()]
    others = min((v for p, v in values.items() if p != "fusion"), key=lambda v: v.mean())
    ratio = "-"
    if np.isfinite(others).all() and np.isfinite(values["fusion"]).all():
        each = values["fusion"] / others
        error = each.std(ddof=1) / len(each) ** 0.5 if len(each) > 1 else 0.0
        ratio = f"{values['fusion'].mean() / others.mean():.2f} ± {error:.2f}"
    head = f"| {name} | {kind.removeprefix('llm ')} | {target:.2f} | {len(seeds)} | "
    return head + " | ".join(cells) + f" | {ratio} |"


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--seeds", default="0-10", help="FIRST-END")
    given = parser.parse_args(words)
    if given.what == "run":
        torch.set_num_threads(1)
        run_all(range(*map(int, given.seeds.split("-"))))
    print(format_table(read_rows()))


if __name__ == "__main__":
    main(sys.argv[1:])
