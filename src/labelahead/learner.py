"""A learner for people with their own loop: query, teach, predict, save."""

import copy
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelahead import checks
from labelahead.acquisition import View
from labelahead.acquisition.probability import probabilities, softmax
from labelahead.checks import Positions
from labelahead.errors import InputError
from labelahead.models import seeded
from labelahead.pool import Pool
from labelahead.propose import propose, situation
from labelahead.situation import Asking, Situation, stream
from labelahead.strategy import batch, find
from labelahead.train import Training, fresh_start, predict, train

__all__ = ["Learner"]

log = logging.getLogger("labelahead")
Trainer = Callable[[nn.Module, Tensor, Tensor], object]  # (model, inputs, labels): trains in place


class Learner:
    """A network that asks for labels and learns from them.

        learner = Learner(model, inputs)
        for position in learner.query(10):
            learner.teach([position], [label_of(position)])
        learner.predict()

    model: any nn.Module with outputs (n, C), one per class; trained in place. inputs: (n, ...) the
    whole data set; positions count along it. training: a `Training`, or a function
    (model, inputs, labels) that trains in place. Answers move the view of the pool at once; the
    network is trained again when `retrain_every` of them have come in, at the next query. loss:
    "squared" or "cross-entropy", what a function of your own trains with (default: squared).
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        asking: Asking | str = "flip",
        *,
        training: Training | Trainer | None = None,
        retrain_every: int = 10,
        loss: str | None = None,
        test: Positions = (),
        seed: int = 0,
    ) -> None:
        if retrain_every < 1:
            raise InputError(f"retrain_every is {retrain_every}; expected 1 or more")
        self.model, self.inputs, self.seed = model, inputs, seed
        self.asking = Asking(strategy=asking) if isinstance(asking, str) else asking
        find(self.asking.strategy).mode(self.asking.mode, ask=True)
        self.training = Training() if training is None else training
        self.retrain_every = retrain_every
        if loss not in (None, "squared", "cross-entropy"):
            raise InputError(f"loss is {loss!r}; expected 'squared' or 'cross-entropy'")
        own = self.training.loss if isinstance(self.training, Training) else "squared"
        self.loss = loss or own
        if isinstance(self.training, Training) and self.loss != own:
            raise InputError(f"loss is {loss!r}, but training.loss {own!r}; expected one of them")
        self.pool = Pool(len(inputs), test=test)
        self.test = torch.as_tensor(test if isinstance(test, Tensor) else list(test)).long()
        self.classes = predict(model, inputs[:1]).shape[1]
        self._initial = copy.deepcopy(model)
        self._fresh = 0  # labels since the last training
        self._trained = False
        self._seen: tuple[Situation, View] | None = None
        self._memory: dict[str, Any] | None = None  # what the strategy is told at the next query

    def query(self, n: int = 1) -> list[int]:
        """The n positions to label next, best first."""
        if self._fresh >= self.retrain_every or (self._fresh and not self._trained):
            self.train()
        if not self._look_ahead or n == 0:
            found = propose(
                self.model, self.inputs, self.pool, n, self.asking, loss=self.loss, seed=self.seed,
                fresh=self._another, training=self._recipe(), memory=self._memory,
            )  # fmt: skip
            self._memory = found.memory
            return [int(p) for p in found.positions]
        free = len(self.pool.unlabelled)
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= free:
            raise InputError(f"{n!r} items asked for, {free} are unlabelled; expected up to that")
        if self._seen is None or len(self._seen[1].candidates) < n:
            self._look(n)
        assert self._seen is not None
        now, view = self._seen
        name, rng = self.asking.strategy, stream(self.seed, "pick", len(self.pool))
        mode = find(name).mode(self.asking.mode, ask=False)
        return [int(p) for p in now.at(batch(view, name, n, rng, mode).positions)]

    def teach(self, positions: Positions, labels: Tensor | Sequence[int]) -> None:
        """Take in answers; the view of the pool moves at once, without training."""
        try:
            given = labels if isinstance(labels, Tensor) else torch.as_tensor(list(labels))
        except (TypeError, ValueError) as error:
            raise InputError(f"labels are {labels!r}; expected class numbers") from error
        if given.numel() and int(given.max()) >= self.classes:
            raise InputError(
                f"a label is class {int(given.max())}, but the network has {self.classes} outputs; "
                "expected one output per class"
            )
        self.pool.label(positions, labels)
        at = checks.positions(positions, "positions", len(self.inputs))
        self._fresh += len(at)
        if self._seen is None:
            return
        now, view = self._seen
        here = {int(p): i for i, p in enumerate(now.points.tolist())}
        # An item that was not among the candidates is not in the kernel: it waits for the next one.
        known = [
            (here[p], y) for p, y in zip(at.tolist(), given.tolist(), strict=True) if p in here
        ]
        if known:
            local, classes = zip(*known, strict=True)
            self._seen = now, view.condition(list(local), torch.tensor(classes))

    def predict(self, positions: Positions | None = None) -> Tensor:
        """(q, C) class probabilities: the network's as last trained, or with the answers since.

        Items in the present kernel know of every answer at once; the others wait for training.
        """
        at = (
            torch.arange(len(self.inputs))
            if positions is None
            else checks.positions(positions, "positions", len(self.inputs), distinct=False)
        )
        out = predict(self.model, self.inputs[at]).double().cpu()
        if self.loss == "cross-entropy":
            out = softmax(out)
        if self._seen is None and self._fresh and self._look_ahead and len(self.pool.unlabelled):
            self._look(1)  # answers that no training has heard of yet, as after `load`
        if self._seen is not None:
            now, view = self._seen
            here = torch.full((len(self.inputs),), -1)
            here[now.points] = torch.arange(len(now.points))
            local = here[at]
            out[local >= 0] = view.posterior.mean[local[local >= 0]].cpu()
        return probabilities(out, "simplex")

    def train(self) -> None:
        """Train on all labels so far."""
        if len(self.pool) == 0:
            raise InputError("there is no label yet; expected some: teach first")
        inputs, labels = self.inputs[self.pool.labelled], self.pool.labels
        if isinstance(self.training, Training):
            seed = int(torch.randint(2**31, (1,), generator=stream(self.seed, "t", len(self.pool))))
            start = fresh_start(
                lambda _: copy.deepcopy(self._initial), self.model.state_dict(), self.training,
                seed=seed,
            )  # fmt: skip
            self.model.load_state_dict(start.state_dict())
            done = train(self.model, inputs, labels, self.classes, self.training, seed=seed)
            for note in done.notes:
                log.warning("%s", note)
        else:
            self.training(self.model, inputs, labels)
        self.model.eval()
        self._fresh, self._seen, self._trained = 0, None, True

    def save(self, path: str | Path) -> None:
        """Everything but the inputs and a training function of your own, in one step."""
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        state = {
            "version": 1,
            "model": self.model.state_dict(),
            "initial": self._initial.state_dict(),
            "labelled": self.pool.labelled,
            "labels": self.pool.labels,
            "fresh": self._fresh,
            "trained": self._trained,
            "test": self.test,
            "loss": self.loss,
            "asking": asdict(self.asking),
            "training": asdict(self.training) if isinstance(self.training, Training) else None,
            "retrain_every": self.retrain_every,
            "seed": self.seed,
            "items": len(self.inputs),
            "memory": self._memory,
        }
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        inputs: Tensor,
        *,
        training: Trainer | None = None,
    ) -> "Learner":
        """A learner as it was saved, with a model of the same architecture."""
        try:
            state = torch.load(Path(path), map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise InputError(f"{path} does not exist; expected a file of Learner.save") from None
        except Exception as error:
            raise InputError(f"{path} cannot be read as a saved Learner ({error})") from error
        if not isinstance(state, dict) or state.get("version") != 1:
            raise InputError(f"{path} is no saved Learner of this version")
        if state["items"] != len(inputs):
            raise InputError(f"{path} was saved with {state['items']} inputs, not {len(inputs)}")
        if state["training"] is None and training is None:
            raise InputError(
                f"{path} was saved with a training function; expected it as `training`"
            )
        try:
            model.load_state_dict(state["initial"])
        except RuntimeError as error:
            cause = str(error).strip().splitlines()[-1].strip()
            raise InputError(f"{path} was saved with another architecture ({cause})") from error
        learner = cls(
            model, inputs, Asking(**state["asking"]), loss=state["loss"], test=state["test"],
            training=training or Training(**state["training"]), seed=state["seed"],
            retrain_every=state["retrain_every"],
        )  # fmt: skip
        model.load_state_dict(state["model"])
        model.eval()
        if len(state["labelled"]):
            learner.pool.label(state["labelled"], state["labels"])
        learner._fresh, learner._trained = state["fresh"], state["trained"]
        learner._memory = state.get("memory")  # older files have none
        return learner

    @property
    def _look_ahead(self) -> bool:
        return find(self.asking.strategy).look_ahead

    def _another(self, seed: int) -> nn.Module:
        """A network like the first one with weights of its own, for strategies that train some."""
        model = copy.deepcopy(self._initial)
        with seeded(seed):
            for module in model.modules():
                reset: Any = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
        return model

    def _recipe(self) -> Training:
        return self.training if isinstance(self.training, Training) else Training(loss=self.loss)  # type: ignore[arg-type]

    def _look(self, n: int) -> None:
        """The kernel of the labelled items and fresh candidates, and the view on it."""
        self.model.eval()
        now = situation(
            self.model, self.inputs, self.pool, self.asking, n, loss=self.loss, seed=self.seed
        )
        self._seen = now, now.view
