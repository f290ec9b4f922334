"""Where a campaign's cycle spends its time: train, capture, kernel, solve, score.

One cycle as in the look-ahead paper's MNIST protocol: 100 labels, 4,000 candidates, 20 more asked
for one by one. Pixels are random unless --data names a folder with mnist/: times do not depend on
them. `capture` is the forward and backward of the kernel, timed on its own; `kernel` is the rest of
the kernel's time.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from labelahead.data import load
from labelahead.data.pool import Pool
from labelahead.models import build_model
from labelahead.models.training import get_default_training, train
from labelahead.ntk.engine import build_directions, open_engine
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.query import propose

RESULTS = Path(__file__).parent / "results" / "cycle.json"
NETWORKS = {"mlp": {}, "cnn": {}, "wrn1": {"width": 16}}
PARTS = ("train", "outputs", "capture", "kernel", "solve", "score", "other")


def pixels(folder: Path | None, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    if folder is not None:
        data, answers = load("mnist", root=folder / "mnist", limit=n, download=False)
        at = torch.arange(n)
        return data.inputs[at], answers.take(at)
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, 1, 28, 28, generator=rng), torch.arange(n) % 10


def time_passes(model: torch.nn.Module, x: torch.Tensor) -> float:
    """Seconds for the forward and backward passes alone."""
    chosen = dict(model.named_parameters())
    start = time.perf_counter()
    with open_engine(model, chosen, x) as engine:
        cotangents = build_directions("pseudo", 10, x).expand(len(x), -1, -1)
        for _ in engine.capture_factors(x, cotangents):
            pass
    return time.perf_counter() - start


def cycle(
    name: str, x: torch.Tensor, y: torch.Tensor, asking: QueryConfig, q: int
) -> dict[str, float]:
    model = build_model(name, tuple(x.shape[1:]), 10, **NETWORKS[name])
    pool = Pool(len(x))
    pool.label(range(100), y[:100])
    start = time.perf_counter()
    train(model, x[:100], y[:100], 10, get_default_training(name), seed=0)
    seconds = {"train": time.perf_counter() - start}
    start = time.perf_counter()
    query = propose(model, x, pool, q, asking, oracle=lambda i: int(y[i]))
    whole = time.perf_counter() - start
    seconds |= query.seconds
    seconds["other"] = whole - sum(query.seconds.values())
    seconds["capture"] = min(time_passes(model, x), seconds["kernel"])
    seconds["kernel"] -= seconds["capture"]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--candidates", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--strategies", nargs="+", default=["flip", "mlmoc"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    x, y = pixels(given.data, given.candidates + 100)
    rows = []
    print(f"{'network':8} {'strategy':8} {'seconds':>8}  " + " ".join(f"{p:>8}" for p in PARTS))
    for name in NETWORKS:
        for strategy in given.strategies:
            asking = QueryConfig(strategy, "sequential", candidates=given.candidates)
            runs = [cycle(name, x, y, asking, 20) for _ in range(given.repeat)]
            best = min(runs, key=lambda r: sum(r.values()))
            total = sum(best.values())
            shares = " ".join(f"{best[p] / total:>8.1%}" for p in PARTS)
            print(f"{name:8} {strategy:8} {total:8.2f}  {shares}", flush=True)
            rows.append({"network": name, "strategy": strategy, "seconds": best})
    settings = {
        "candidates": given.candidates,
        "threads": given.threads,
        "labels": 100,
        "asked": 20,
    }
    text = json.dumps({"torch": torch.__version__, "settings": settings, "rows": rows}, indent=1)
    given.results.write_text(text + "\n")


if __name__ == "__main__":
    main()
