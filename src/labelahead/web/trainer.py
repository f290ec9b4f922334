"""Training and kernels for the page, in a process of its own: answers never wait for them.

The process is handed orders (labels, classes) and hands back snapshots as files; whatever happens
to it, no label is in it alone.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.advice import loo_estimate
from labelahead.config import parse
from labelahead.data.dataset import UNKNOWN, Answers
from labelahead.errors import InputError, LabelaheadError
from labelahead.loop import training_seed
from labelahead.pool import Pool
from labelahead.posterior import prior
from labelahead.prepare import Prepared, prepare
from labelahead.propose import situation
from labelahead.residuals import leave_one_out
from labelahead.situation import Asking
from labelahead.tangent import kernel
from labelahead.train import fresh_start, predict, train
from labelahead.train.data import place
from labelahead.web.mind import Snapshot, save_snapshot

__all__ = ["Order", "Trainer", "snapshot"]

DENSE = 6000  # items whose kernel is held whole; beyond that its features
FEATURES = 1024
EVALUATED = 500  # of such a pool, the part that scores sum over
MAPPED = 3000  # points of the map
POSIX = os.name == "posix"
Tell = Callable[[str, float], None]  # what is under way, how much of it is done


@dataclass(frozen=True)
class Order:
    """Train on these labels. round 0: do not train, an untrained network's kernel is asked for."""

    round: int
    labels: tuple[tuple[int, int], ...]  # (position, class) in the order they were given
    classes: int
    trusted: int = 0  # the first so many labels were drawn at random


def snapshot(ready: Prepared, order: Order, tell: Tell | None = None) -> Snapshot:
    """Train a fresh network on the labels and work out its kernel, as a campaign does it."""
    say = tell or (lambda what, done: None)
    campaign, inputs = ready.campaign, ready.inputs
    asking, classes = _asking(campaign.asking, len(inputs)), max(order.classes, 2)
    pool = Pool(len(inputs), test=ready.data.test)
    if order.labels:
        pool.label([p for p, _ in order.labels], [c for _, c in order.labels])
    seed = training_seed(campaign.seed, max(order.round - 1, 0))  # as a campaign counts
    facts: dict[str, Any] = {"labels": len(pool)}
    start = time.perf_counter()

    def network(number: int) -> nn.Module:
        return ready.network(classes, number)

    model = fresh_start(network, None, ready.training, seed=seed).to(ready.device).eval()
    if order.round:
        say("training", 0.0)
        x, y = inputs[pool.labelled], pool.labels
        done = train(model, x, y, classes, ready.training, seed=seed)
        facts |= {"train_accuracy": done.accuracy, "steps": done.steps, "notes": list(done.notes)}
        facts["accuracy"] = _accuracy(ready, model)
    facts["train_seconds"] = time.perf_counter() - start
    say("kernel", 0.5)
    start = time.perf_counter()
    trained = Pool(len(inputs), test=ready.data.test) if order.round == 0 else pool
    now = situation(model, inputs, trained, asking, loss=ready.training.loss, seed=campaign.seed)
    found = now.tangent
    outputs = now.start if order.round else torch.zeros_like(now.start)
    facts["kernel_seconds"] = time.perf_counter() - start
    say("map", 0.9)
    facts["map"] = _map(now.points, found)
    if len(pool) > 1:
        untrained = ready.network(classes, seed).to(ready.device).eval()
        facts |= _second_look(untrained, ready, pool, order.trusted)
    return Snapshot(
        round=order.round, points=now.points, outputs=outputs.double().cpu(),
        kernel=found.get("kernel"), features=found.get("features"),
        labels=dict(order.labels) if order.round else {}, noise=now.noise,
        strategy=asking.strategy if order.round else "variance", evaluation=asking.evaluation,
        facts=facts,
    )  # fmt: skip


def _asking(asking: Asking, items: int) -> Asking:
    """Every item is in play, if need be by features of its kernel."""
    if asking.kernel == "full":
        raise InputError("kernel is 'full'; the page expects a scalar one: pseudo, single or trace")
    if asking.sketch is None and items > DENSE and (asking.candidates or items) > DENSE:
        few = min(asking.evaluation or EVALUATED, EVALUATED)
        return replace(asking, candidates=None, sketch=FEATURES, evaluation=few)
    return asking


def _held_out(ready: Prepared, test: Mapping[int, int]) -> Prepared:
    """The same with these items to measure on; their class numbers are the page's."""
    at = torch.tensor(sorted(test), dtype=torch.int64)
    labels = torch.full((len(ready.data),), UNKNOWN)
    labels[at] = torch.tensor([test[int(p)] for p in at], dtype=torch.int64)
    answers = Answers(labels, ready.data.ids)
    return replace(ready, data=replace(ready.data, test=at), answers=answers)


def _accuracy(ready: Prepared, model: nn.Module) -> float | None:
    """On the test part of the data, where it has labels."""
    test = ready.data.test
    if ready.answers is None or not len(test):
        return None
    known = test[ready.answers.known[test]]
    if not len(known):
        return None
    guess = predict(model, ready.inputs[known]).argmax(1).cpu()
    return float((guess == ready.answers.take(known)).double().mean())


def _map(points: Tensor, found: Mapping[str, Tensor]) -> dict[str, Any]:
    """The two leading components of the centred kernel, for so many points."""
    n = min(len(points), MAPPED)
    if n < 3:
        return {"points": points.tolist(), "x": [0.0] * n, "y": [0.0] * n}
    if "kernel" in found:
        K = found["kernel"][:n, :n].double().cpu()
        centred = K - K.mean(0) - K.mean(1)[:, None] + K.mean()
    else:
        centred = found["features"][:n].double().cpu()
        centred = centred - centred.mean(0)
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(0)  # svd_lowrank draws from the global generator alone
    u, s, _ = torch.svd_lowrank(centred, q=min(6, n), niter=4)
    torch.random.set_rng_state(generator_state)
    xy = u[:, :2] * (s[:2] if "features" in found else s[:2].clamp_min(0).sqrt())
    xy = xy * torch.sign(xy[xy.abs().argmax(0), torch.arange(2)])  # one orientation
    xy = xy / xy.abs().amax(0).clamp_min(1e-12)
    return {"points": points[:n].tolist(), "x": _rounded(xy[:, 0]), "y": _rounded(xy[:, 1])}


def _rounded(values: Tensor) -> list[float]:
    return [round(v, 4) for v in values.tolist()]


def _second_look(untrained: nn.Module, ready: Prepared, pool: Pool, trusted: int) -> dict[str, Any]:
    """What the other labels say of each: by an untrained network, which has seen none of them."""
    x, labels = ready.inputs[pool.labelled], pool.labels
    device, dtype = place(untrained, x)
    K = kernel(untrained, x.to(device=device, dtype=dtype)).cpu()
    classes = int(labels.max()) + 1
    zero = torch.zeros((len(x), max(classes, 2)), dtype=torch.float64)
    post = prior(zero, K, noise=1e-2).condition(torch.arange(len(x)), labels)
    residual = leave_one_out(post)
    others = residual + post.targets  # what the other labels predict
    size, guess = residual.norm(dim=1), others.argmax(1)
    facts: dict[str, Any] = {
        "second_look": [
            [
                int(p),
                int(c),
                int(g),
                round(float(r), 4),
                round(float(o[g]), 4),
                round(float(o[c]), 4),
            ]
            for p, c, g, r, o in zip(pool.labelled, labels, guess, size, others, strict=True)
        ],
        "loo_all": float((guess == labels).double().mean()),
    }
    judged = loo_estimate(untrained, x, labels, trusted) if trusted else None
    facts["loo"] = judged.accuracy if judged else None
    facts["loo_error"] = judged.error if judged else float(size.square().mean())
    return facts


def _work(
    tables: Mapping[str, Any],
    folder: str,
    threads: int,
    test: Mapping[int, int],
    pipe: Connection,
) -> None:
    """The process: one order at a time until the pipe closes."""
    with suppress(OSError, AttributeError):
        os.nice(10)  # answers come first
    torch.set_num_threads(threads)
    try:
        ready = _held_out(prepare(replace(parse(tables), threads=threads)), test)
        _ = ready.inputs
        pipe.send(("ready", ""))
        while True:
            order = pipe.recv()
            try:
                found = snapshot(ready, order, lambda what, done: pipe.send((what, done)))
                path = Path(folder) / f"snapshot-{order.round:05d}.pt"
                save_snapshot(found, path)
                pipe.send(("done", str(path)))
            except LabelaheadError as error:
                pipe.send(("failed", str(error)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:  # told to whoever waits, then the process ends
        with suppress(OSError):
            pipe.send(("failed", f"{type(error).__name__}: {error}"))


class Trainer:
    """The process from the outside. A process that dies is started again with the next order.

    test: position -> class of the items that are kept for measuring.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        folder: Path,
        threads: int = 1,
        test: Mapping[int, int] | None = None,
    ) -> None:
        self._args = dict(tables), str(folder), threads, dict(test or {})
        self._process: Any = None
        self._pipe: Connection | None = None

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(*self._args, other), daemon=True)
        # Ctrl-C goes to all processes of a terminal; this one is told by whoever started it. The
        # mask is inherited, so it holds from the first instruction on. The tracker goes first: on
        # its start it would take the mask off again.
        if POSIX:
            resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if POSIX else None
        try:
            self._process.start()
        finally:
            if before is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        other.close()
        return self._pipe

    def run(self, order: Order, tell: Tell) -> Path:
        """Carry out an order and wait for it; raises `LabelaheadError` if it fails."""
        pipe = self._pipe
        if pipe is None or self._process is None or not self._process.is_alive():
            pipe = self._start()
            tell("loading", 0.0)
        try:
            pipe.send(order)
            while True:
                what, value = pipe.recv()
                if what == "done":
                    return Path(value)
                if what == "failed":
                    raise LabelaheadError(value)
                if what != "ready":
                    tell(what, value)
        except (EOFError, OSError) as error:
            self.stop()
            raise LabelaheadError(
                "the training process died, perhaps for want of memory; labels are safe, and it is "
                "tried again after the next answers"
            ) from error

    def stop(self) -> None:
        """End the process."""
        if self._process is not None and self._process.is_alive():
            self._process.terminate()
            self._process.join(5)
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None
