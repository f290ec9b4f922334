"""What a query costs: every strategy on one network, and the choice alone against other libraries.

First, 20 items out of a pool of 4,000 after 100 labels, by every strategy and mode, on a dense and
a convolutional network, in units of one forward pass of the pool. Then the choice alone, from the
same embedding and read-out layer, by scikit-activeml, DISTIL, baal and batchbald-redux beside ours,
each in a fresh process with its time and its peak memory; at 4,000 and at 20,000 items. Pixels are
random unless --data names a folder with mnist/.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.cluster  # noqa: F401 (loading it is no part of a query)
import torch
from threadpoolctl import threadpool_limits

from contenders import HERE, FailedError, Limits, Outcome, Worker
from cycle import pixels
from labelahead.data.pool import Pool
from labelahead.models import build_model
from labelahead.models.training import Training, get_default_training, predict, train
from labelahead.models.training.forward import compute_penultimate_features
from labelahead.seeds import make_generator
from labelahead.strategies import STRATEGIES
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.bayesian import sample_networks
from labelahead.strategies.context import QueryContext
from labelahead.strategies.query import propose
from query_table import goals, print_choices, print_queries

RESULTS = HERE / "results" / "query.json"
PEERS = HERE.parents[1] / ".venv-competitors" / "bin" / "python"
LABELS, ASKED, CLASSES, SHAPE = 100, 20, 10, (1, 28, 28)
NETWORKS = {"mlp": {"width": 128, "depth": 2}, "cnn": {"width": 16}}
LOSS = "cross-entropy"  # the other libraries know no probabilities but softmax
DROPOUT = 0.2  # BALD needs it; all other strategies see the network in eval mode
PILOT, PATIENCE = 2, 30.0  # picks made where all of them would take more seconds than this
SLOW = 5.0  # seconds after which a strategy is not timed again
OWN = ("labelahead", "labelahead-query")
READING = ("labelahead-query", "distil")  # these read the embedding off the network themselves
CHOICES = {  # strategy -> whose implementations are timed on the same embedding or samples
    "entropy": ("labelahead", "scikit-activeml", *READING),
    "margin": ("labelahead", "scikit-activeml", *READING),
    "badge": ("labelahead", "scikit-activeml", *READING),
    "coreset": ("labelahead", "scikit-activeml", *READING),
    "typiclust": ("labelahead", "scikit-activeml", "labelahead-query"),
    "probcover": ("labelahead", "scikit-activeml", "labelahead-query"),
    "bald": ("labelahead", "baal"),
    "batchbald": ("labelahead", "batchbald-redux"),
}
LARGE = ("badge", "coreset", "typiclust", "probcover")


class Bench:
    """A network trained on the first labels of a pool."""

    def __init__(self, network: str, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y
        self.scoring: dict[str, float] = {}  # seconds to score all candidates once
        self.fresh = partial(self._build, network)
        self.recipe: Training = replace(get_default_training(network), loss=LOSS)
        self.model = self.fresh(0)
        train(self.model, x[:LABELS], y[:LABELS], CLASSES, self.recipe, seed=0)
        self.model.eval()
        self.pool = Pool(len(x))
        self.pool.label(range(LABELS), y[:LABELS])

    @staticmethod
    def _build(network: str, seed: int) -> torch.nn.Module:
        return build_model(network, SHAPE, CLASSES, seed=seed, dropout=DROPOUT, **NETWORKS[network])

    def forward(self) -> float:
        """Seconds of one forward pass of the unlabelled items."""
        start = time.perf_counter()
        predict(self.model, self.x[LABELS:])
        return time.perf_counter() - start

    def query(self, strategy: str, mode: str) -> tuple[float, dict[str, float]]:
        """Seconds of one query, and of its parts.

        Where picks one by one would take long, a few are made and the rest of the scoring is
        extrapolated: every pick costs the same. How long, the mode "top" tells, which comes first.
        """
        if mode == "top" or self.scoring.get(strategy, 0) * ASKED < PATIENCE:
            seconds, parts = self._time_query(strategy, mode, ASKED)
            if mode == "top":
                self.scoring[strategy] = parts.get("score", 0.0)
            return seconds, parts
        seconds, parts = self._time_query(strategy, mode, PILOT)
        more = parts["score"] * (ASKED / PILOT - 1)
        return seconds + more, {**parts, "score": parts["score"] + more, "extrapolated": more}

    def _time_query(self, strategy: str, mode: str, count: int) -> tuple[float, dict[str, float]]:
        start = time.perf_counter()
        query = propose(
            self.model,
            self.x,
            self.pool,
            count,
            QueryConfig(strategy, mode, candidates=None),
            oracle=lambda i: int(self.y[i]),
            loss=LOSS,
            fresh=self.fresh,
            training=self.recipe,
        )
        return time.perf_counter() - start, query.seconds

    def export(self, path: Path, *, samples: bool) -> None:
        """Embedding, read-out and, if wanted, dropout samples, for the workers."""
        last = [m for m in self.model.modules() if isinstance(m, torch.nn.Linear)][-1]
        drawn = torch.zeros(0)
        if samples:
            asking = QueryConfig("bald", candidates=None)
            now = QueryContext.from_pool(self.model, self.x, self.pool, asking, loss=LOSS)
            drawn = sample_networks(now, make_generator(0, "x"))
        np.savez(
            path,
            embedding=compute_penultimate_features(self.model, self.x).numpy(),
            labels=self.y[:LABELS].numpy(),
            weight=last.weight.detach().numpy(),
            bias=last.bias.detach().numpy(),
            samples=drawn.numpy(),
        )


def queries(network: str, bench: Bench, repeat: int, names: list[str]) -> list[dict[str, Any]]:
    """Every strategy and mode in turn, `repeat` times over, so that a noisy minute hits all."""
    members = [s for s in STRATEGIES.values() if s.name in names]
    every = [(s.name, mode) for s in members for mode in sorted(s.modes, reverse=True)]
    best: dict[tuple[str, str], tuple[float, dict[str, float]]] = {}
    passes = [bench.forward() for _ in range(3)]
    for round_ in range(repeat):
        for which in every:
            if round_ and best[which][0] > SLOW:
                continue
            took = bench.query(*which)
            best[which] = min(best.get(which, took), took, key=lambda pair: pair[0])
            print(f"  {network} {' '.join(which)}: {took[0]:.3f} s", file=sys.stderr, flush=True)
        passes += [bench.forward() for _ in range(3)]
    rows = [{"network": network, "strategy": "forward", "mode": "", "seconds": min(passes)}]
    for (name, mode), (seconds, parts) in best.items():
        row = {"network": network, "strategy": name, "mode": mode, "seconds": seconds}
        rows.append({**row, "passes": seconds / min(passes), "parts": parts})
    return rows


def choice(library: str, strategy: str, path: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Time and peak memory of one library's choice, in a fresh process."""
    python = sys.executable if library in OWN else str(PEERS)
    script = [python, str(HERE / "query_worker.py"), library, strategy, str(path)]
    limits = Limits(given.memory_mb, given.seconds, 0)
    outcome, kept = Outcome(), path.with_name("picks.json")
    picks: list[int] = []
    try:
        with Worker([*script, str(ASKED), str(given.threads)], limits) as worker:
            worker.ready(300)
            worker.run(outcome, kept)
            picks = json.loads(kept.read_text())
            while outcome.seconds[-1] < SLOW and len(outcome.seconds) < given.repeat:
                worker.run(outcome)
    except FailedError as failure:
        outcome.failure = str(failure)
    return {"library": library, "strategy": strategy, "picks": picks, **outcome.as_json()}


def choices(network: str, bench: Bench, large: bool, given: argparse.Namespace) -> list[dict]:
    """All libraries on the same embedding, one after the other."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "given.npz"
        wanted = [s for s in (LARGE if large else CHOICES) if s in given.strategies]
        bench.export(path, samples="bald" in wanted or "batchbald" in wanted)
        for strategy in wanted:
            for library in CHOICES[strategy]:
                if library not in OWN and not PEERS.exists():
                    continue
                row = choice(library, strategy, path, given)
                outcome = row["failure"] or f"{row['best_seconds']:.3f} s, {row['peak_mb']:.0f} MB"
                print(f"  {library} {strategy}: {outcome}", file=sys.stderr, flush=True)
                rows.append({"network": network, "items": len(bench.x) - LABELS, **row})
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--items", type=int, default=4000)
    parser.add_argument("--large", type=int, default=20000, help="0: leave the large pool out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600, help="a library may take, per choice")
    parser.add_argument("--memory-mb", type=float, default=12000)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    given, before = arguments(), os.getloadavg()[0]
    torch.set_num_threads(given.threads)
    if not PEERS.exists():
        print("no .venv-competitors, so only our own are timed: `make test-competitors` creates it")
    x, y = pixels(given.data, LABELS + max(given.items, given.large))
    small = slice(LABELS + given.items)
    made, chosen = [], []
    for network in given.networks:
        bench = Bench(network, x[small], y[small])
        with threadpool_limits(given.threads):
            made += queries(network, bench, given.repeat, given.strategies)
        chosen += choices(network, bench, False, given)
    if given.large:
        chosen += choices("mlp", Bench("mlp", x[: LABELS + given.large], y), True, given)
    print_queries(made)
    print_choices(chosen)
    reached = goals(made, chosen)
    for line in reached:
        print(line)
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(given).items()}
    settings |= {"labels": LABELS, "asked": ASKED, "load": [before, os.getloadavg()[0]]}
    about = {"torch": torch.__version__, "settings": settings, "goals": reached}
    text = json.dumps({**about, "queries": made, "choices": chosen}, indent=1)
    given.results.write_text(text + "\n")


if __name__ == "__main__":
    main()
