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
its least confident items (`threshold`); `fusion`: `inference.label_fusion`, where the next items
for people are those with the largest gain, of themselves (the probability that the class is wrong) and
of the others (`acquisition.sources`); and `pairs`: what `labelahead run` and `compare` do with sources,
which also choose whom to ask.
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
from labelahead.learner.simulated_source import SimulatedSource
from labelahead.simulation.source_campaign import SourceCampaign, iterate_money_rounds
from labelahead.simulation.source_labels import SourceLabels, estimate_ease, give_wrong_labels
from research.results.routing_pools import OUT as POOLS

OUT = Path(__file__).parents[1] / "data" / "routing.csv"
ITEMS, EVALUATION = 400, 150
PERSON, MODEL, PERSON_ERROR = 0.10, 0.001, 0.05
TARGETS = (0.80, 0.85, 0.90, 0.93)
SETS = ("newsgroups", "r8", "cifar10")
MODELS = {"llm 60": 0.60, "llm 75": 0.75, "llm 90": 0.90, "llm 75 random": 0.75}
PEOPLE = ("random", "flip", "majority")
FUSED = ("fusion", "pairs")
EXPECTED_MODEL_ERROR = 0.25  # of a language model, before its first label
GOAL = 0.6  # of the cost of the cheapest other policy
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


def label_by_pairs(pool: Pool, guess: Tensor, confidence: Tensor, seed: int) -> Curve:
    """Pairs of item and source with the largest expected gain per price, as in `labelahead run`."""
    n = len(guess)
    setting = SourceCampaign(
        pool.rows,
        pool.units,
        pool.truth,
        pool.classes,
        SimulatedSource("person", PERSON, PERSON_ERROR),
        SimulatedSource("model", MODEL, EXPECTED_MODEL_ERROR),
        (SourceLabels(pool.person, torch.ones(n, dtype=torch.float64), PERSON_ERROR),),
        SourceLabels(guess, confidence, EXPECTED_MODEL_ERROR),
        budget=MAX_SHARE * PERSON * n + MODEL * n,
        initial=10,
        batch=10,
        seed=seed,
    )
    for entry in iterate_money_rounds(setting, "pairs"):
        yield entry.cost, entry.accuracy


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
                    policies = ("threshold", *FUSED)
                    yield from ((name, kind, policy, seed) for policy in policies)


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
            label = label_by_fusion if policy == "fusion" else label_by_pairs
            curve = label(pool, *simulate_model(pool, kind, seed), seed)
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


Costs = dict[tuple[str, str, str, int, float], float]


def collect_costs(rows: list[dict[str, str]]) -> Costs:
    """Return the cost of every set, model, policy, seed and target; infinite: not reached."""
    return {
        (r["set"], r["model"], r["policy"], int(r["seed"]), t): float(
            r[f"cost at {t:.2f}"] or "inf"
        )
        for r in rows
        for t in TARGETS
    }


def format_table(rows: list[dict[str, str]]) -> str:
    """Return mean costs, and the ratios of `fusion` and `pairs` to the cheapest policy of the others.

    That is the one with the lowest mean cost. A mean counts the seeds of which all other policies have a
    row, and a ratio those of which its policy has one, too; "-" where some of them did not reach the
    target.
    """
    costs = collect_costs(rows)
    others = [*PEOPLE, "threshold"]
    columns = [*others, *FUSED, *(f"{name} / cheapest other" for name in FUSED)]
    lines = [
        "| set | language model | accuracy | seeds | " + " | ".join(columns) + " |",
        "| --- | --- | ---: | ---: | " + " | ".join("---:" for _ in columns) + " |",
    ]
    ratios: dict[str, list[float]] = {name: [] for name in FUSED}
    for name in SETS:
        for kind in MODELS:
            for target in TARGETS:
                key = name, kind, target
                values = _collect_seeds(costs, key, others)
                own = {p: _collect_seeds(costs, key, [*others, p]) for p in FUSED}
                if not any(own.values()):
                    continue
                means = [_format_mean(values[policy]) for policy in others]
                means += [_format_mean(own[p][p]) if own[p] else "-" for p in FUSED]
                cells = [_format_ratio(own[p], p) if own[p] else "-" for p in FUSED]
                head = f"| {name} | {kind.removeprefix('llm ')} | {target:.2f} | "
                head += f"{len(values['random'])} | "
                lines.append(head + " | ".join([*means, *cells]) + " |")
                for policy in (p for p in FUSED if own[p]):
                    ratio, _ = compute_ratio(own[policy], policy)
                    ratios[policy] += [ratio] if np.isfinite(ratio) else []
    lines += ["", *(_format_goal(policy, found) for policy, found in ratios.items() if found)]
    return "\n".join(lines)


def _collect_seeds(
    costs: Costs, key: tuple[str, str, float], policies: list[str]
) -> dict[str, np.ndarray]:
    """Return the costs by policy (seeds,), of the seeds of which all are known.

    Args:
        costs: Of all rows.
        key: The set, the language model and the target.
        policies: Which policies.
    """
    name, kind, target = key

    def cost(policy: str, seed: int) -> float | None:
        return costs.get((name, "none" if policy in PEOPLE else kind, policy, seed, target))

    seeds = sorted({key[3] for key in costs if key[0] == name})
    seeds = [s for s in seeds if all(cost(p, s) is not None for p in policies)]
    if not seeds:
        return {}
    return {p: np.array([cost(p, s) for s in seeds], dtype=float) for p in policies}


def compute_ratio(values: dict[str, np.ndarray], policy: str) -> tuple[float, float]:
    """Return the ratio of mean costs to the cheapest other policy, with its standard error.

    It is infinite if one of the two did not reach the target with some seed.
    """
    others = min((v for p, v in values.items() if p not in FUSED), key=lambda v: v.mean())
    own = values[policy]
    if not (np.isfinite(others).all() and np.isfinite(own).all()):
        return float("inf"), 0.0
    ratio = own.mean() / others.mean()
    if len(own) < 2:
        return float(ratio), 0.0
    # of a ratio of means, by the residuals of each seed
    error = (own - ratio * others).std(ddof=1) / len(own) ** 0.5 / others.mean()
    return float(ratio), float(error)


def _format_mean(values: np.ndarray) -> str:
    return f"{values.mean():.1f}" if np.isfinite(values).all() else "-"


def _format_ratio(values: dict[str, np.ndarray], policy: str) -> str:
    ratio, error = compute_ratio(values, policy)
    return f"{ratio:.2f} ± {error:.2f}" if np.isfinite(ratio) else "-"


def _format_goal(policy: str, ratios: list[float]) -> str:
    met = sum(ratio <= GOAL for ratio in ratios)
    dearer = sum(ratio > 1 for ratio in ratios)
    return (
        f"{policy} costs at most {GOAL} of the cheapest other policy in {met} of {len(ratios)} rows, and more "
        f"than it in {dearer}; median {np.median(ratios):.2f}."
    )


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
