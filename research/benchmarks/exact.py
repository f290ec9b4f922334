"""The exact learner: choosing its kernel, absorbing a label, scoring a pool, against refitting and
against `flip`.

    make bench-exact [ARGS="--quick"]

Features are unit vectors around 20 centres (seed 0), as an encoder's are. One thread, medians of
interleaved repeats.
"""

import argparse
import statistics
import time

import torch

from labelahead.acquisition.functions import flip, resolve
from labelahead.acquisition.pool_view import view
from labelahead.gp.posterior import prior
from labelahead.inference.exact import ExactLearner
from labelahead.inference.exact_model import ExactModel
from labelahead.inference.mixture import choose_mixture, mixture_kernel

CLASSES, COLUMNS = 20, 384
WEIGHTS = (0.5, 0.25, 0.25)


def features(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, COLUMNS, generator=rng)
    labels = torch.randint(CLASSES, (n,), generator=rng)
    return centres[labels] + 1.5 * torch.randn(n, COLUMNS, generator=rng), labels


def median(work, repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def condition_on_labels(units: torch.Tensor, labels: torch.Tensor, labelled: int, evaluation: int):
    n = len(units)
    start = torch.full((n, CLASSES), 1 / CLASSES, dtype=torch.float64)
    post = prior(start, mixture_kernel(units, WEIGHTS), noise=0.1).condition(
        torch.arange(labelled), labels[:labelled]
    )
    rest = torch.arange(labelled, n)
    return view(post, rest, rest[:evaluation], cache_cross_covariance=True)


def steps(repeats: int) -> None:
    x, y = features(4300)
    units = torch.nn.functional.normalize(x - x.mean(0), dim=1)
    seen = condition_on_labels(units, y, 300, 1000)
    flip(seen), resolve(seen)
    absorb, by = [], {"flip": [], "resolve": []}
    for i in range(repeats):
        began = time.perf_counter()
        seen = seen.condition([300 + i], y[300 + i : 301 + i])
        absorb.append(time.perf_counter() - began)
        for name, acquisition in (("flip", flip), ("resolve", resolve)):
            began = time.perf_counter()
            acquisition(seen)
            by[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) for name, values in by.items()}
    again = median(lambda: condition_on_labels(units, y, 300, 1000)._cross(), 3)
    label = statistics.median(absorb)
    print(
        f"absorb a label, 4,000 x 1,000, 300 labels: {1e3 * label:6.1f} ms; "
        f"from scratch {again / label:.0f} times as long"
    )
    print(
        f"score all of them: resolve {1e3 * medians['resolve']:.0f} ms, flip "
        f"{1e3 * medians['flip']:.0f} ms: "
        f"{medians['resolve'] / medians['flip']:.2f} times"
    )


def choosing(repeats: int) -> None:
    x, y = features(1000)
    learner = ExactLearner(x, ExactModel(x.mean(0), CLASSES))
    for count in (100, 200, 500, 1000):
        at = torch.arange(count)
        model = learner.fit(at, y[:count]).kernel_model
        cosines = (model.support @ model.support.T).fill_diagonal_(1.0)
        targets = torch.nn.functional.one_hot(y[:count], CLASSES).double() - 1 / CLASSES
        took = median(lambda c=cosines, t=targets: choose_mixture(c, t), repeats)
        print(f"choose the kernel anew, {count:5,} labels: {1e3 * took:7.1f} ms")


def pools(sizes: list[int]) -> None:
    for n in sizes:
        x, y = features(n + 300)
        units = torch.nn.functional.normalize(x - x.mean(0), dim=1)
        began = time.perf_counter()
        start = torch.full((n + 300, CLASSES), 1 / CLASSES, dtype=torch.float64)
        post = prior(start, mixture_kernel(units, WEIGHTS), noise=0.1).condition(
            torch.arange(300), y[:300]
        )
        rest = torch.arange(300, n + 300)
        resolve(view(post, rest, rest[:1000]))
        print(
            f"score {n:7,} items against 1,000, 300 labels, from nothing: "
            f"{time.perf_counter() - began:6.2f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, {COLUMNS} features, {CLASSES} classes")
    choosing(1 if quick else 7)
    steps(3 if quick else 15)
    pools([10_000] if quick else [10_000, 100_000])


if __name__ == "__main__":
    main()
