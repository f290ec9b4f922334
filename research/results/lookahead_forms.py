"""Forms of look-ahead side by side: which predictions changes are measured from, and what is
counted.

    python -m research.results.lookahead_forms [--widths 32 128] [--seeds 8]

Whole campaigns on the 8x8 digits, 20 to 200 labels, 20 a round, 1,000 candidates, dense networks;
into research/data/lookahead-forms.csv, where what is there is not run again. Then, with 400 labels,
how many of the best 20 candidates lie in the part of the candidates that scores are summed over,
with and without a candidate's own change.
"""

import argparse
import sys
import time
from functools import partial

import numpy as np
import torch

from labelahead.acquisition import mlmoc
from labelahead.acquisition.pool_view import View
from labelahead.gp.lookahead import lookahead
from labelahead.learner.config import Budget, Campaign, Network
from labelahead.simulation.comparison.statistics import t_interval
from labelahead.simulation.run import run
from labelahead.strategies.base import QueryBatch, QueryConfig, Strategy
from labelahead.strategies.lookahead import make_lookahead_strategy
from research.results.lines import CSV, TrialLine, read_csv, write_csv

FILE = CSV.parent / "lookahead-forms.csv"
RANDOM = "random"
STALE = make_lookahead_strategy(
    "mlmoc-from-f",
    "studies: baseline and label from f",
    acquisition=partial(mlmoc, baseline="outputs"),
)
FORMS = {
    RANDOM: QueryConfig("random", candidates=1000),
    "mlmoc": QueryConfig("mlmoc", mode="sequential", candidates=1000),
    "mlmoc from f": QueryConfig(STALE, mode="sequential", candidates=1000),
    "mlmoc:top": QueryConfig("mlmoc", mode="top", candidates=1000),
    "changes:top": QueryConfig("changes", mode="top", candidates=1000),
    "changes": QueryConfig("changes", mode="sequential", candidates=1000),
}
PART, BEST = 200, 20  # candidates that are summed over, and how many of the best are looked at


def campaign(width: int, form: str, seed: int) -> list[TrialLine]:
    """Run one campaign and return its rounds."""
    asked = Campaign(
        seed=seed,
        model=Network("mlp", width),
        asking=FORMS[form],
        budget=Budget(initial=20, labels=200, retrain_every=20),
        threads=1,
    )
    began = time.perf_counter()
    done = run(asked, forecast=False)
    seconds = round(time.perf_counter() - began, 1)
    table = f"{width} units"
    return [
        TrialLine(table, form, seed, r.labels, round(r.accuracy or 0.0, 5), seconds)
        for r in done.rounds
    ]


def differences(lines: list[TrialLine]) -> str:
    """Describe each form minus random, and minus `mlmoc from f`, along the curve with 95 %
    intervals.
    """
    text = []
    for table in dict.fromkeys(x.table for x in lines):
        means: dict[str, dict[int, float]] = {}
        for form in dict.fromkeys(x.variant for x in lines if x.table == table):
            rows = [x for x in lines if (x.table, x.variant) == (table, form)]
            means[form] = {
                s: 100 * np.mean([x.accuracy for x in rows if x.seed == s])
                for s in {x.seed for x in rows}
            }
        for form in means:
            for other in (RANDOM, "mlmoc from f"):
                seeds = sorted(set(means[form]) & set(means.get(other, ())))
                if form == other or len(seeds) < 2:
                    continue
                e = t_interval(np.array([means[form][s] - means[other][s] for s in seeds]))
                ends = f"({e.low or 0:+.1f} to {e.high or 0:+.1f})"
                text.append(
                    f"{table}: {form} - {other}: {e.mean:+.1f} {ends} points, {len(seeds)} seeds"
                )
    return "\n".join(text)


def shares_inside(seed: int) -> tuple[float, float]:
    """Share of the best 20 candidates that are summed over.

    With their own change counted where they are, without.
    """
    found: list[tuple[float, float]] = []

    def select_batch(s, q, rng, mode, oracle):  # type: ignore[no-untyped-def]
        view = s.view
        found.append((_share(view, mlmoc(view) + _own_changes(view)), _share(view, mlmoc(view))))
        return QueryBatch(s.candidates[:q], torch.ones(q))

    asking = QueryConfig(
        Strategy("look", "studies: looks, and takes the first", "—", select_batch),
        candidates=None,
        evaluation=PART,
    )
    run(
        Campaign(
            seed=seed,
            model=Network("mlp", 128),
            asking=asking,
            budget=Budget(initial=400, labels=401),
            threads=1,
        ),
        forecast=False,
    )
    return found[0]


def _own_changes(view: View) -> torch.Tensor:
    """What a candidate's label changes at the candidate itself, where it is summed over: (m,)."""
    inside = (view.evaluation_index() >= 0).nonzero()[:, 0]
    at, out = view.candidates[inside], torch.zeros(len(view.candidates), dtype=torch.float64)
    now = view.values()
    for i, place, target in zip(
        inside.tolist(), at.tolist(), view.predicted_targets()[inside], strict=True
    ):
        after = next(iter(lookahead(view.posterior, [place], target[None], evaluate=[place])))[0, 0]
        out[i] = (after - now[place]).norm() - (view.posterior.mean[place] - now[place]).norm()
    return out


def _share(view: View, scores: torch.Tensor) -> float:
    return float(
        (view.evaluation_index()[scores.argsort(descending=True)[:BEST]] >= 0).double().mean()
    )


def main() -> int:
    """Run what is missing and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--seeds", type=int, default=8)
    given = parser.parse_args()
    lines = read_csv(FILE, TrialLine) if FILE.exists() else []
    done = {(x.table, x.variant, x.seed) for x in lines}
    for seed in range(given.seeds):
        for width in given.widths:
            for form in given.forms:
                if (f"{width} units", form, seed) not in done:
                    lines += campaign(width, form, seed)
                    write_csv(FILE, TrialLine, sorted(lines))
    print(differences(lines))
    shares = np.array([shares_inside(seed) for seed in range(given.seeds)])
    with_own, without = shares.mean(0)
    print(
        f"best {BEST} that are summed over: {with_own:.0%} with their own change counted, "
        f"{without:.0%} without"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
