"""Training and kernels for the page, in a process of its own: answers never wait for them.

The process is handed orders (labels, classes) and hands back snapshots as files; whatever happens
to it, no label is in it alone.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelahead.campaign.config import parse
from labelahead.campaign.loop import Progress
from labelahead.campaign.prepare import Prepared, prepare
from labelahead.data.dataset import UNKNOWN, Answers
from labelahead.data.pool import Pool
from labelahead.errors import LabelaheadError
from labelahead.learners.exact import EXACT, ExactModel
from labelahead.learners.network import Learnt
from labelahead.seeds import stream, training_seed
from labelahead.strategies import find
from labelahead.strategies.asking import Asking
from labelahead.strategies.situation import Situation
from labelahead.web.refresh import Order, refreshed, second_look, told
from labelahead.web.snapshot import Snapshot, save_snapshot

__all__ = ["Order", "Worker", "snapshot"]

DENSE = 6000  # items whose kernel is held whole; beyond that its features
FEATURES = 1024
EVALUATED = 500  # of such a pool, the part that scores sum over
MAPPED = 3000  # points of the map
POSIX = os.name == "posix"
Tell = Callable[[str, float], None]  # what is under way, how much of it is done


def snapshot(ready: Prepared, order: Order, tell: Tell | None = None) -> Snapshot:
    """Train a fresh network on the labels and work out its kernel, as a campaign does it."""
    say = tell or (lambda what, done: None)
    campaign, inputs = ready.campaign, ready.inputs
    if campaign.model.name == EXACT:
        return refreshed(_units(ready, say), order)
    asking, classes = _asking(campaign.asking, len(inputs)), max(order.classes, 2)
    pool = Pool(len(inputs), test=ready.data.test)
    if order.labels:
        pool.label([p for p, _ in order.labels], [c for _, c in order.labels])
    seed = training_seed(campaign.seed, max(order.round - 1, 0))  # as a campaign counts
    facts: dict[str, Any] = {"labels": len(pool)}
    if order.round:
        say("training", 0.0)
    learner, trained = ready.learner(classes), pool if order.round else Pool(len(inputs), test=ready.data.test)
    learnt = learner.learn(trained.labelled, trained.labels, seed=seed)
    if learnt.trained:
        done = learnt.trained
        facts |= {"train_accuracy": done.accuracy, "steps": done.steps, "notes": list(done.notes)}
        facts["accuracy"] = _accuracy(ready, learnt)
    facts["train_seconds"] = learnt.seconds
    say("kernel", 0.5)
    start = time.perf_counter()
    now = Situation.of(learnt.model, inputs, trained, asking, loss=learnt.loss, seed=campaign.seed)
    tangent = now.tangent
    outputs = now.start if order.round else torch.zeros_like(now.start)
    facts["kernel_seconds"] = time.perf_counter() - start
    say("map", 0.9)
    facts["map"] = _map(now.points, tangent)
    if len(pool) > 1:
        others, residual = learner.others_say(pool.labelled, pool.labels, seed=seed, doubting=True)
        facts |= second_look(others, residual, pool.labelled, pool.labels, order.trusted)
    if len(set(pool.labels.tolist())) > 1 and len(now.candidates):
        facts |= told(learner.outlook(pool.labelled, pool.labels, now.candidates, seed=seed))
    return Snapshot(
        round=order.round,
        points=now.points,
        outputs=outputs.double().cpu(),
        kernel=tangent.get("kernel"),
        features=tangent.get("features"),
        labels=dict(order.labels) if order.round else {},
        noise=now.noise,
        strategy=str(asking.strategy) if order.round else "resolve",
        evaluation=asking.evaluation,
        facts=facts,
    )


def _units(ready: Prepared, say: Tell) -> Snapshot:
    """Of the exact learner, before any label: all that it will ever need of the data, every item in play."""
    campaign, inputs = ready.campaign, ready.rows
    asking = find(campaign.asking.strategy).settled(campaign.asking)
    pool = Pool(len(inputs), test=ready.data.test)
    order = torch.randperm(len(pool.unlabelled), generator=stream(campaign.seed, "candidates", 0))
    points = pool.unlabelled[order]  # criteria sum over the first ones
    say("kernel", 0.5)
    model = ready.learner(2).network(0)
    assert isinstance(model, ExactModel)
    assert isinstance(inputs, Tensor)  # nothing else becomes units
    units, known = model.unit(inputs[points]).cpu(), _known(ready)
    return Snapshot(
        round=0,
        points=points,
        outputs=torch.zeros((len(points), 2), dtype=torch.float64),
        kernel=None,
        features=None,
        labels={},
        noise=asking.noise or model.weights().noise,
        own_noise=asking.noise,
        strategy=str(asking.strategy),
        evaluation=min(asking.evaluation or EVALUATED, EVALUATED) if len(points) > DENSE else asking.evaluation,
        facts={"labels": 0, "map": _map(points, {"features": units})},
        units=units,
        weights=model.weights().weights,
        test=(model.unit(inputs[known]).cpu(), ready.answers.take(known)) if ready.answers and len(known) else None,
    )


def _asking(asking: Asking, items: int) -> Asking:
    """Every item is in play, if need be by features of its kernel."""
    asking = find(asking.strategy).settled(asking)
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


def _accuracy(ready: Prepared, learnt: Learnt) -> float | None:
    """On the test part of the data, where it has labels."""
    known = _known(ready)
    return None if ready.answers is None else learnt.accuracy(known, ready.answers.take(known))


def _known(ready: Prepared) -> Tensor:
    """(t,) positions of the test items whose class is known."""
    test = ready.data.test
    return test[:0] if ready.answers is None else test[ready.answers.known[test]]


def _map(points: Tensor, tangent: Mapping[str, Tensor]) -> dict[str, Any]:
    """The two leading components of the centred kernel, for so many points."""
    n = min(len(points), MAPPED)
    if n < 3:
        return {"points": points.tolist(), "x": [0.0] * n, "y": [0.0] * n}
    if "kernel" in tangent:
        K = tangent["kernel"][:n, :n].double().cpu()
        centred = K - K.mean(0) - K.mean(1)[:, None] + K.mean()
    else:
        centred = tangent["features"][:n].double().cpu()
        centred = centred - centred.mean(0)
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(0)  # svd_lowrank draws from the global generator alone
    u, s, _ = torch.svd_lowrank(centred, q=min(6, *centred.shape), niter=4)
    torch.random.set_rng_state(generator_state)
    xy = u[:, :2] * (s[:2] if "features" in tangent else s[:2].clamp_min(0).sqrt())
    xy = torch.nn.functional.pad(xy, (0, 2 - xy.shape[1]))  # one column alone lies on a line
    xy = xy * torch.sign(xy[xy.abs().argmax(0), torch.arange(2)])  # one orientation
    xy = xy / xy.abs().amax(0).clamp_min(1e-12)
    return {"points": points[:n].tolist(), "x": _rounded(xy[:, 0]), "y": _rounded(xy[:, 1])}


def _rounded(values: Tensor) -> list[float]:
    return [round(v, 4) for v in values.tolist()]


def _work(tables: Mapping[str, Any], folder: str, threads: int, test: Mapping[int, int], pipe: Connection) -> None:
    """The process: one order at a time until the pipe closes."""
    with suppress(OSError, AttributeError):
        os.nice(10)  # answers come first
    torch.set_num_threads(threads)
    try:
        told: Progress = lambda what, done, n: pipe.send((what, done / n))  # noqa: E731
        ready = _held_out(prepare(replace(parse(tables), threads=threads), progress=told), test)
        _ = ready.inputs
        pipe.send(("ready", ""))
        while True:
            order = pipe.recv()
            try:
                path = Path(folder) / f"snapshot-{order.round:05d}.pt"
                save_snapshot(snapshot(ready, order, lambda what, done: pipe.send((what, done))), path)
                pipe.send(("done", str(path)))
            except LabelaheadError as error:
                pipe.send(("failed", error))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:  # told to whoever waits, then the process ends
        with suppress(OSError):
            pipe.send(("failed", LabelaheadError(f"{type(error).__name__}: {error}")))


class Worker:
    """The process from the outside. A process that dies is started again with the next order.

    test: position -> class of the items that are kept for measuring.
    """

    def __init__(
        self, tables: Mapping[str, Any], folder: Path, threads: int = 1, test: Mapping[int, int] | None = None
    ) -> None:
        self._args = dict(tables), str(folder), threads, dict(test or {})
        self._process: Any = None
        self._pipe: Connection | None = None
        self._starting = threading.Lock()
        self._closed = False

    def _start(self) -> Connection:
        with self._starting:
            if self._closed:
                raise LabelaheadError("the page is being closed; labels are safe")
            return self._started()

    def _started(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(*self._args, other), daemon=True)
        # Ctrl-C goes to all processes of a terminal; this one is told by whoever started it. The mask is inherited, so
        # it holds from the first instruction on. The tracker goes first: on its start it would take the mask off again.
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
                if what in ("done", "failed"):
                    break
                if what != "ready":
                    tell(what, value)
        except (EOFError, OSError) as error:
            self.stop()
            raise LabelaheadError(
                "the training process died, perhaps for want of memory; labels are safe, and it is "
                "tried again after the next answers"
            ) from error
        if what == "failed":
            raise value
        return Path(value)

    def close(self) -> None:
        """End the process for good: none is started any more, not even by an order that is just being given."""
        with self._starting:
            self._closed = True
        self.stop()

    def stop(self) -> None:
        """End the process; the next order starts another."""
        if self._process is not None and self._process.is_alive():
            self._process.terminate()
            self._process.join(5)
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None
