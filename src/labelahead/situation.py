"""What a strategy may see at the moment of asking. No label of the pool is reachable from it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from labelahead.acquisition import View, view
from labelahead.acquisition.probability import softmax
from labelahead.errors import InputError
from labelahead.posterior import Posterior, prior
from labelahead.tangent import features, kernel
from labelahead.train import Training, predict
from labelahead.train.data import place
from labelahead.train.embedding import penultimate

__all__ = ["Asking", "Situation", "stream"]

SMALLEST_SKETCH = 32  # below that it is noise
LARGEST_KERNEL = 6 << 30  # bytes of a dense kernel; beyond it a sketch is asked for


@dataclass(frozen=True)
class Asking:
    """How items are chosen; the same values serve a simulation, a query and the labelling page.

    strategy: a name of STRATEGIES. mode: how look-ahead makes a batch: "top" (best scores at once),
    "greedy" (one by one on predicted labels) or "sequential" (one by one on the true labels);
    None: the strategy's own. kernel: pseudo, single, trace or full. candidates: at most so many
    items, drawn at random, are scored. evaluation: at most so many candidates are summed over.
    noise: relative regulariser; None: the strategy's own. sketch: low-rank kernel of so many
    features, for pools whose kernel does not fit. gamma: of `dynamical`, what the labels so far
    count beside an item's own gradient; 0 and infinity are its two ends. retrainings: of `naive`,
    for at most so many candidates a network is trained.
    """

    strategy: str = "flip"
    mode: Literal["top", "greedy", "sequential"] | None = None
    kernel: Literal["pseudo", "single", "trace", "full"] = "pseudo"
    candidates: int | None = 4000
    evaluation: int | None = 1000
    noise: float | None = None
    sketch: int | None = None
    gamma: float = 2.0
    retrainings: int | None = 50

    def __post_init__(self) -> None:
        if self.sketch is not None and self.sketch < SMALLEST_SKETCH:
            raise InputError(
                f"sketch is {self.sketch}; expected {SMALLEST_SKETCH} features or more, commonly "
                "some thousand"
            )
        for name in ("candidates", "evaluation", "retrainings"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; expected 1 or more, or 'none' for no limit")
        if not self.gamma >= 0:
            raise InputError(f"gamma is {self.gamma}; expected 0 or more, or infinity")
        if self.noise is not None and not 0 < self.noise < float("inf"):
            raise InputError(f"noise is {self.noise}; expected a positive number such as 1e-3")


def stream(seed: int, *names: int | str) -> torch.Generator:
    """A generator of its own for each purpose, so that no draw depends on what ran before."""
    state = seed & 0xFFFFFFFFFFFFFFFF
    for name in names:
        for byte in str(name).encode() + b"/":  # FNV-1a: Python's own hash changes by process
            state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return torch.Generator().manual_seed(state & 0x7FFFFFFFFFFFFFFF)


@dataclass(eq=False)
class Situation:
    """A trained network, the inputs, the labels given so far, and the items that may be asked for.

    Positions are those of the full data set. `points` lists those in play, labelled ones first; the
    posterior and the view count along it.
    """

    model: nn.Module
    inputs: Tensor  # (n, ...) of the whole data set
    labelled: Tensor  # (L,)
    labels: Tensor  # (L,) class numbers
    candidates: Tensor  # (m,) in random order
    asking: Asking
    loss: str = "squared"
    fresh: Callable[[int], nn.Module] | None = None  # seed -> an untrained network of this kind
    training: Training | None = None  # how such a network is trained
    memory: Mapping[str, Any] | None = None  # what this strategy handed out last time
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def noise(self) -> float:
        """Relative regulariser of the posterior."""
        return self.asking.noise or 1e-3

    @cached_property
    def points(self) -> Tensor:
        """(L + m,) positions in play: the labelled, then the candidates."""
        return torch.cat([self.labelled, self.candidates])

    @cached_property
    def outputs(self) -> Tensor:
        """(L + m, C) what the network says at `points`."""
        with self.timed("outputs"):
            out = predict(self.model, self.inputs[self.points])
        if len(self.labels) and int(self.labels.max()) >= out.shape[1]:
            raise InputError(
                f"a label is class {int(self.labels.max())}, but the network has {out.shape[1]} "
                "outputs; expected one output per class: make the network with more classes"
            )
        return out

    @cached_property
    def candidate_outputs(self) -> Tensor:
        """(m, C) what the network says of the candidates alone."""
        if "outputs" in self.__dict__:
            return self.outputs[len(self.labelled) :]
        return predict(self.model, self.inputs[self.candidates])

    @cached_property
    def embedding(self) -> Tensor:
        """(L + m, h) what goes into the network's last linear layer, float64."""
        with self.timed("outputs"):
            return penultimate(self.model, self.inputs[self.points]).double().cpu()

    @property
    def candidate_embedding(self) -> Tensor:
        """(m, h) the candidates' part of the embedding."""
        return self.embedding[len(self.labelled) :]

    @cached_property
    def start(self) -> Tensor:
        """(L + m, C) where look-ahead begins, on the scale of one-hot targets.

        A network trained by cross-entropy is looked ahead from its probabilities p: y − p is the
        direction in which that loss pushes the outputs, as y − f is for squared loss.
        """
        return softmax(self.outputs) if self.loss == "cross-entropy" else self.outputs

    @cached_property
    def tangent(self) -> dict[str, Tensor]:
        """The kernel at `points`, as "kernel", or its "features" where a sketch was asked for."""
        outputs, x = self.outputs, self.at_network(self.points)
        with self.timed("kernel"):
            if self.asking.sketch is None:
                self._require_memory(outputs)
                return {"kernel": kernel(self.model, x, kind=self.asking.kernel)}
            k = self.asking.sketch
            return {"features": features(self.model, x, kind=self.asking.kernel, sketch=k)}

    @cached_property
    def posterior(self) -> Posterior:
        """The linearised network at `points`, given the labels so far."""
        found = self.tangent
        with self.timed("solve"):
            post = prior(self.start, **found, noise=self.noise)
            if len(self.labelled):
                post = post.condition(torch.arange(len(self.labelled)), self.labels)
        return post

    @cached_property
    def view(self) -> View:
        """The posterior with the candidates, and the candidates that criteria sum over."""
        post, first = self.posterior, len(self.labelled)
        here = torch.arange(first, first + len(self.candidates))
        # Candidates come in random order, so the first ones are a random part of them.
        limit = self.asking.evaluation
        return view(post, here, here if limit is None else here[:limit])

    def at_network(self, positions: Tensor) -> Tensor:
        """Inputs of items, on the network's device and in its dtype."""
        device, dtype = place(self.model, self.inputs)
        return self.inputs[positions].to(device=device, dtype=dtype)

    def at(self, local: Tensor) -> Tensor:
        """Positions along `points` as positions in the data set."""
        return self.points[local.cpu()]

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the seconds spent inside to `seconds[part]`."""
        start = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start

    def _require_memory(self, outputs: Tensor) -> None:
        rows = len(outputs) * (outputs.shape[1] if self.asking.kernel == "full" else 1)
        size = outputs.element_size() * rows**2
        if size > LARGEST_KERNEL:
            raise InputError(
                f"the {self.asking.kernel} kernel of {len(outputs)} items needs {size / 2**30:.0f} "
                f"GiB; expected at most {LARGEST_KERNEL >> 30}: lower `candidates`, or set `sketch`"
                " to some thousand features"
            )
