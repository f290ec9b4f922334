"""`make bench-lookahead`: what one look at every candidate costs, against the rivals, on one core.

    python research/benchmarks/lookahead.py [--quick] [--seed 0]

Prints tables and writes research/benchmarks/results/lookahead.json. Times are the best of a few
runs, wall clock. Solving per candidate is timed on a random subset and extrapolated; the tables say
so.
"""

import argparse
import gc
import json
import math
import os
import platform
import resource
import sys
import time
from functools import partial
from pathlib import Path

import torch

from labelahead.acquisition import changes, eer, emoc, flip, mlmoc, resolve
from labelahead.acquisition.pool_view import view
from labelahead.gp.posterior import prior
from labelahead.ntk import features
from lookahead_competitors import (
    CLASSES,
    Pool,
    best_of,
    digits_pool,
    gemm_rate,
    make_pool,
    paper_block,
    plain_solve,
    table,
)

RESULTS = Path(__file__).parent / "results" / "lookahead.json"
NOISE = 1e-5
SKETCH_LABELS = 100
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
COMPETITORS = ("solve", "plain", "paper")


def scoring(pool: Pool, labels: int, seed: int, subset: int, rivals: bool) -> dict[str, float]:
    """Times in seconds of one round of scoring, and of the rivals."""
    n = len(pool.outputs)
    labelled, candidates = torch.arange(labels), torch.arange(labels, n)

    def posterior():
        post = prior(pool.outputs, pool.kernel, noise=NOISE)
        look = view(post.condition(labelled, pool.truth[:labels]), candidates)
        look.covariance(candidates[:1] - labels)  # forms k(candidates, candidates)
        look.innovation_factors()
        return look

    out = {"L": labels, "U": n - labels}
    out["posterior"], look = best_of(posterior)
    for name, acquisition in {
        "mlmoc": mlmoc,
        "mlmoc lin": partial(mlmoc, baseline="linearised"),
        "changes": changes,
        "emoc": emoc,
        "emoc lin": partial(emoc, baseline="linearised"),
        "flip": flip,
        "resolve": resolve,
    }.items():
        out[name], value = best_of(partial(acquisition, look), 10)
        if name == "mlmoc":
            scores = value
    some = torch.randperm(n - labels, generator=torch.Generator().manual_seed(seed))[:subset]
    few = view(look.posterior, candidates[some], candidates)
    out["eer"] = best_of(partial(eer, few), 1)[0] * (n - labels) / subset
    out["total mlmoc"] = out["posterior"] + out["mlmoc"]
    if rivals:
        few_solved = best_of(partial(mlmoc, few, method="solve"), 2)
        out["solve"] = few_solved[0] * (n - labels) / subset
        plain = best_of(lambda: plain_solve(pool, labelled, candidates, candidates[some], NOISE), 1)
        out["plain"] = plain[0] * (n - labels) / subset
        out["paper"], block = best_of(lambda: paper_block(pool, labelled, candidates, NOISE), 2)
        out["agree solve"] = float((few_solved[1] / scores[some] - 1).abs().max())
        out["agree plain"] = float((plain[1] / scores[some] - 1).abs().max())
        out["agree paper"] = float((block / scores - 1).abs().max())
    return out


def scoring_table(seed: int, quick: bool) -> list[dict[str, float]]:
    sizes = [(100, 1000), (100, 4000), (1000, 1000), (1000, 2000), (1000, 4000), (1000, 6000)]
    if quick:
        sizes = [(100, 1000), (300, 1500)]
    rows = []
    for labels, unlabelled in sizes:
        pool = make_pool(labels + unlabelled, seed)
        rows.append(scoring(pool, labels, seed, subset=32, rivals=True))
        gc.collect()
    table(
        "One round of scoring, seconds (C=10, float32 kernel, float64 solves; posterior: from "
        "kernel to k(U,U); eer from 32 random candidates)",
        [
            {k: f"{v:.3g}" for k, v in row.items() if "agree" not in k and k not in COMPETITORS}
            for row in rows
        ],
    )
    table(
        "MLMOC from kernel to scores: how many times faster than the rivals (solve: Cholesky of "
        "the bordered system per candidate,\n  plain: torch.linalg.solve of it, both from 32 "
        "random candidates and extrapolated; paper: block formula, batched)",
        [
            {
                "L": row["L"],
                "U": row["U"],
                "ours s": f"{row['total mlmoc']:.3f}",
                **{f"{k} s": f"{row[k]:.3g}" for k in COMPETITORS},
                **{f"x {k}": f"{row[k] / row['total mlmoc']:.1f}" for k in COMPETITORS},
                "emoc/mlmoc lin": f"{row['emoc lin'] / row['mlmoc lin']:.2f}",
                "largest rel. difference": f"{max(row['agree ' + k] for k in COMPETITORS):.1e}",
            }
            for row in rows
        ],
    )
    growth(rows)
    return rows


def growth(rows: list[dict[str, float]]) -> None:
    """Print p of cost ~ U^p between the two largest pools, and add it to the last row."""
    small, large = rows[-2:]
    ratio = math.log(large["U"] / small["U"])
    exponent = {k: math.log(large[k] / small[k]) / ratio for k in ("total mlmoc", "mlmoc", "flip")}
    large.update({f"exponent {k}": round(v, 2) for k, v in exponent.items()})
    text = ", ".join(f"{k} {v:.2f}" for k, v in exponent.items())
    print(f"  growing as U^p from U={small['U']} to {large['U']} at L={large['L']}, p: {text}")


def steps(seed: int, quick: bool) -> list[dict[str, object]]:
    """A label in, the next best out."""
    labels, unlabelled = (300, 1500) if quick else (1000, 4000)
    rows = []
    for dtype in (torch.float32, torch.float64):
        pool = make_pool(labels + unlabelled, seed)
        pool.kernel = pool.kernel.to(dtype)
        time_posterior = scoring_posterior(pool, labels)
        for name, acquisition, points in (
            ("mlmoc squared", partial(mlmoc, squared=True), unlabelled),
            ("mlmoc", mlmoc, unlabelled),
            ("flip", flip, min(1000, unlabelled)),
            ("resolve", resolve, min(1000, unlabelled)),
        ):
            each, fresh = walk(pool, labels, acquisition, points, 10 if quick else 30)
            rows.append(
                {
                    "kernel": str(dtype)[6:],
                    "criterion": name,
                    "L": labels,
                    "U": unlabelled,
                    "evaluation": points,
                    "posterior ms": round(1e3 * time_posterior, 1),
                    "step ms (best)": round(1e3 * each[0], 2),
                    "(median)": round(1e3 * each[len(each) // 2], 2),
                    "posterior / step": round(time_posterior / each[0], 1),
                    "drift from fresh": f"{fresh:.1e}",
                }
            )
    table("A sequential step: a true label in, the next best candidate out", rows)
    return rows


def scoring_posterior(pool: Pool, labels: int) -> float:
    """Seconds from kernel to k(U,U)."""
    every = torch.arange(labels, len(pool.outputs))

    def run():
        post = prior(pool.outputs, pool.kernel, noise=NOISE)
        look = view(post.condition(torch.arange(labels), pool.truth[:labels]), every)
        look.covariance(every[:1] - labels)

    return best_of(run)[0]


def walk(
    pool: Pool, labels: int, acquisition, points: int, count: int
) -> tuple[list[float], float]:
    """Seconds of each step, sorted, and how far its scores are from a fresh view's at the end."""
    every = torch.arange(labels, len(pool.outputs))
    post = prior(pool.outputs, pool.kernel, noise=NOISE)
    post = post.condition(torch.arange(labels), pool.truth[:labels])
    look = view(post, every, every[:points])
    pick = int(look.candidates[acquisition(look).argmax()])
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        look = look.condition([pick], pool.truth[[pick]])
        scores = acquisition(look)
        pick = int(look.candidates[scores.argmax()])
        times.append(time.perf_counter() - begin)
    again = view(
        prior(pool.outputs, pool.kernel, noise=NOISE).condition(
            look.labelled, look.posterior.targets
        ),
        look.candidates,
        every[:points],
    )
    fresh = acquisition(again)
    return sorted(times), float((scores - fresh).abs().max() / fresh.abs().max())


def low_rank(seed: int, quick: bool) -> dict[str, object]:
    """U points through k features: squared MLMOC over all pairs."""
    labels, unlabelled, k = (300, 4000, 512) if quick else (1000, 50_000, 2048)
    rng = torch.Generator().manual_seed(seed)
    n = labels + unlabelled
    features = torch.empty(n, k)
    scales = torch.arange(1, k + 1) ** -0.5
    for lo in range(0, n, 4096):  # in parts: the peak we report is ours, not the generator's
        part = features[lo : lo + 4096]
        part.copy_(torch.randn(part.shape, generator=rng)).mul_(scales)
    label = torch.randint(CLASSES, (n,), generator=rng)
    truth = torch.nn.functional.one_hot(label, CLASSES).double()
    outputs = 0.8 * truth + 0.1 * torch.randn(n, CLASSES, generator=rng).double()
    begin = time.perf_counter()
    post = prior(outputs, features=features, noise=NOISE)
    post = post.condition(torch.arange(labels), truth[:labels])
    look = view(post, torch.arange(labels, n))
    pick = int(look.candidates[mlmoc(look, squared=True).argmax()])
    total = time.perf_counter() - begin
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        look = look.condition([pick], truth[[pick]])
        pick = int(look.candidates[mlmoc(look, squared=True).argmax()])
        times.append(time.perf_counter() - begin)
    step = min(times)
    row = {
        "L": labels,
        "U": unlabelled,
        "k": k,
        "features to scores s": round(total, 2),
        "step ms (best)": round(1e3 * step, 1),
        "(median)": round(1e3 * sorted(times)[len(times) // 2], 1),
        "scoring / step": round(total / step),
        "peak RSS GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2, 2),
    }
    table("Low rank: squared MLMOC over all pairs, float32 features", [row])
    return row


def sketch(seed: int, quick: bool) -> list[dict[str, object]]:
    """Do tangent features, `features(sketch=k)`, keep the best candidates of the exact kernel?"""
    rows: list[dict[str, object]] = []
    for network in ("mlp",) if quick else ("mlp", "cnn"):
        pool = digits_pool(seed, SKETCH_LABELS, network)
        weights = sum(p.numel() for p in pool.model.parameters())
        exact = leaders(pool, kernel=pool.kernel)
        for k in (1024,) if quick else (1024, 4096):
            for trial in range(1 if quick else 2):
                psi = features(pool.model, pool.x, sketch=k, seed=seed + trial)
                got = leaders(pool, features=psi)
                same = {name: f"{len(exact[name] & got[name]) / 50:.2f}" for name in exact}
                row = {"network": network, "P": weights, "k": k, "seed": seed + trial}
                rows.append({**row, **same})
    table(f"Top 50 of the digits that features(sketch=k) keep (noise {NOISE:g})", rows)
    return rows


def leaders(pool: Pool, **kernel) -> dict[str, set[int]]:
    """The fifty best candidates by each acquisition function."""
    labelled = torch.arange(SKETCH_LABELS)
    post = prior(pool.outputs, noise=NOISE, **kernel).condition(labelled, pool.truth[labelled])
    look = view(post, torch.arange(SKETCH_LABELS, len(pool.outputs)))
    scored = {"mlmoc": mlmoc(look), "mlmoc squared": mlmoc(look, squared=True), "flip": flip(look)}
    return {name: set(scores.topk(50).indices.tolist()) for name, scores in scored.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if any(os.environ.get(v) != "1" for v in THREADS):  # BLAS reads them when it is loaded
        os.execve(
            sys.executable, [sys.executable, *sys.argv], os.environ | dict.fromkeys(THREADS, "1")
        )
    torch.set_num_threads(1)
    start = time.perf_counter()
    rates = {str(t)[6:]: round(gemm_rate(t), 1) for t in (torch.float32, torch.float64)}
    machine = {
        "threads": 1,
        "seed": args.seed,
        "torch": torch.__version__,
        "cpu": platform.processor() or platform.machine(),
        "load": os.getloadavg()[0],
        "gemm GFLOP/s": rates,
    }
    print("  ".join(f"{k}: {v}" for k, v in machine.items()))
    result = {
        "machine": machine,
        # first, so that the peak of memory is its own
        "low rank": low_rank(args.seed, args.quick),
        "scoring": scoring_table(args.seed, args.quick),
        "steps": steps(args.seed, args.quick),
        "sketch": sketch(args.seed, args.quick),
    }
    machine["gemm GFLOP/s at the end"] = {
        str(t)[6:]: round(gemm_rate(t), 1) for t in (torch.float32, torch.float64)
    }
    machine["seconds"] = round(time.perf_counter() - start, 1)
    print(f"gemm at the end: {machine['gemm GFLOP/s at the end']}  took {machine['seconds']} s")
    if not args.quick:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
