"""One contender of the dynamics benchmark in a process of its own.

    dynamics_worker.py METHOD NETWORK CLASSES ITEMS THREADS

METHOD is ours, backpack, vmap, forward (of the pool), or pass (forward and backward, the unit of
time). From a network, labels S and a pool whose outputs are known, as they are at a query, to
∇L(S) and the scores Δ(x|S) (DY-15). The rivals' gradients take a forward of their own; knowing the
outputs saves them nothing, so "forward" is timed for whoever wants to add it to ours.
"""

from __future__ import annotations

import copy
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

import timing
from labelahead.gp.dynamics import residuals
from labelahead.models import build_model
from labelahead.strategies.dynamical import gains, total_gradient
from networks import INPUT_SEED, WEIGHT_SEED, with_past

SHAPE, WIDTH, LABELS, GAMMA = (3, 32, 32), 16, 100, 2.0
CHUNKS = (16, 32, 64, 128, 256)
PILOT, REPEAT = 256, 3  # items that forms and chunks are tried on, and how often
cross_entropy = nn.functional.cross_entropy
Score = Callable[[Tensor], Tensor]  # inputs of a chunk -> its scores


def in_chunks(score: Score, x: Tensor, chunk: int) -> Tensor:
    """Scores of all, a chunk at a time."""
    return torch.cat([score(part) for part in torch.split(x, chunk)])


class Bench:
    """A seeded network, labels to learn from, and a pool."""

    def __init__(self, network: str, classes: int, items: int) -> None:
        torch.manual_seed(WEIGHT_SEED)
        made = build_model(network, SHAPE, classes, seed=WEIGHT_SEED, width=WIDTH)
        self.model = with_past(made, SHAPE)
        draw = torch.Generator().manual_seed(INPUT_SEED)
        self.known = torch.randn(LABELS, *SHAPE, generator=draw)
        self.labels = torch.randint(classes, (LABELS,), generator=draw)
        self.pool = torch.randn(items, *SHAPE, generator=draw)
        with torch.no_grad():
            self.outputs = in_chunks(self.model, self.pool, 64)

    def direction(self) -> dict[str, Tensor]:
        """∇L(S), the same way for all: it is a small part of the work."""
        with torch.no_grad():
            outputs = self.model(self.known)
        return total_gradient(self.model, self.known, residuals(outputs, self.labels))


def ours(bench: Bench, items: int) -> Tensor:
    """As a user would call it."""
    outputs = bench.outputs[:items]
    guess = residuals(outputs, outputs.argmax(1))
    return gains(bench.model, bench.pool[:items], guess, bench.direction(), GAMMA)


def forward(bench: Bench) -> Score:
    """What the known outputs have cost."""

    def score(x: Tensor) -> Tensor:
        with torch.no_grad():
            return bench.model(x).sum(1)

    return score


def one_pass(bench: Bench) -> Score:
    """Forward and backward of the summed loss by autograd: no per-sample quantity."""
    params = list(bench.model.parameters())

    def score(x: Tensor) -> Tensor:
        out = bench.model(x)
        loss = cross_entropy(out, out.argmax(1), reduction="sum")
        torch.autograd.grad(loss, params)
        return x.new_zeros(len(x))

    return score


def score_by_vmap(bench: Bench) -> Score:
    """torch.func: gradients of a chunk side by side, then norms and products."""
    state = dict(bench.model.named_parameters()), dict(bench.model.named_buffers())
    params, buffers = ({k: v.detach() for k, v in part.items()} for part in state)
    flat = {k: v.flatten() for k, v in bench.direction().items()}

    def loss(wanted: dict[str, Tensor], sample: Tensor) -> Tensor:
        out = functional_call(bench.model, {**wanted, **buffers}, (sample[None],))
        return cross_entropy(out, out.argmax(1), reduction="sum")

    gradients = vmap(grad(loss), in_dims=(None, 0))

    def score(x: Tensor) -> Tensor:
        rows = {k: v.flatten(1) for k, v in gradients(params, x).items()}
        total = x.new_zeros(len(x))
        for k, v in rows.items():
            total += v.square().sum(1) + GAMMA * (v @ flat[k])
        return total

    return score


def score_by_backpack(bench: Bench, form: str) -> Score:
    """BackPACK in one of two forms; quantities are read and dropped layer by layer.

    grad: BatchGrad gives norms and products; l2+jvp: BatchL2Grad the norms, one forward-mode pass
    along ∇L(S) the products. (BatchL2Grad beside BatchGrad was slower than BatchGrad alone.)
    """
    from backpack import backpack, extend
    from backpack.extensions import BatchGrad, BatchL2Grad

    direction = bench.direction()
    plain = copy.deepcopy(bench.model)
    state = {k: v.detach() for k, v in plain.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # containers have parameters but no rule; their parts do
        model = extend(copy.deepcopy(bench.model))
        lossfunc = extend(nn.CrossEntropyLoss(reduction="sum"))
    flat = {p: direction[k].flatten() for k, p in model.named_parameters()}
    wanted = BatchGrad() if form == "grad" else BatchL2Grad()
    total = torch.zeros(0)

    def collect(module: nn.Module) -> None:
        for p in module.parameters(recurse=False):
            if hasattr(p, "grad_batch"):
                rows = p.grad_batch.flatten(1)
                total.add_(rows.square().sum(1)).add_(rows @ flat[p], alpha=GAMMA)
                del p.grad_batch
            if hasattr(p, "batch_l2"):
                total.add_(p.batch_l2)
                del p.batch_l2

    def score(x: Tensor) -> Tensor:
        nonlocal total
        total = x.new_zeros(len(x))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = model(x)
            guess = out.argmax(1)
            with backpack(wanted, extension_hook=collect):
                lossfunc(out, guess).backward()
        model.zero_grad(set_to_none=True)
        if form == "l2+jvp":
            with torch.no_grad():
                _, along = jvp(lambda p: functional_call(plain, p, (x,)), (state,), (direction,))
            total.add_((residuals(out.detach(), guess) * along).sum(1), alpha=GAMMA)
        return total

    return score


FORMS: dict[str, dict[str, Callable[[Bench], Score]]] = {
    "forward": {"plain": forward},
    "pass": {"autograd": one_pass},
    "vmap": {"grad": score_by_vmap},
    "backpack": {
        form: lambda bench, form=form: score_by_backpack(bench, form) for form in ("grad", "l2+jvp")
    },
}


def best_form(method: str, bench: Bench) -> tuple[Callable[[Bench], Score], int]:
    """The fastest form and chunk of a rival, found on the beginning of the pool."""
    x = bench.pool[:PILOT]
    tried: dict[tuple[str, int], float] = {}
    for form, make in FORMS[method].items():
        score = make(bench)
        score(x[:2])
        for chunk in CHUNKS:
            for _ in range(REPEAT):
                start = time.perf_counter()
                in_chunks(score, x, chunk)
                seconds = (time.perf_counter() - start) / len(x)
                tried[form, chunk] = min(seconds, tried.get((form, chunk), seconds))
    form, chunk = min(tried, key=lambda key: tried[key])
    milliseconds = {f"{form}/{chunk}": round(1e3 * s, 3) for (form, chunk), s in tried.items()}
    timing.say(form=form, chunk=chunk, milliseconds_per_item=milliseconds)
    return FORMS[method][form], chunk


def save(result: Any, path: str) -> None:
    """Keep the scores: all contenders must agree."""
    np.save(path, result.detach().numpy())


def main() -> None:
    method, network, classes, items, threads = sys.argv[1:]
    timing.pin(int(threads))
    torch.set_num_threads(int(threads))
    bench = Bench(network, int(classes), int(items))
    ours(bench, 2)  # loads what torch loads lazily
    compute: Callable[[], Tensor] = lambda: ours(bench, int(items))  # noqa: E731
    if method != "ours":
        make, chunk = best_form(method, bench)
        compute = lambda: in_chunks(make(bench), bench.pool, chunk)  # noqa: E731
    timing.release()
    timing.serve(compute, timing.resident_mb(), save)


if __name__ == "__main__":
    main()
