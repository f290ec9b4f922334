"""The information available to a strategy at query time. It does not include labels of unqueried
items.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.acquisition.pool_view import View
from labelahead.batching import Samples
from labelahead.data.pool import Pool
from labelahead.errors import InputError
from labelahead.inference.exact import wrap_fitted_model
from labelahead.inference.network import FittedModel
from labelahead.inference.pool_posterior import PoolPosterior, PosteriorOptions
from labelahead.models.training import AuxiliaryObjective, Training
from labelahead.seeds import make_generator
from labelahead.strategies.base import Oracle, QueryBatch, QueryConfig

__all__ = ["QueryContext", "make_scoring_strategy"]

MAX_KERNEL_BYTES = 6 << 30  # of a dense kernel; above it the error advises a sketch


@dataclass(eq=False)
class QueryContext:
    """A trained network, the inputs, the labels so far, and the candidates.

    Positions are those of the full data set. `points` lists the labelled items and then the
    candidates; `pool_posterior` is the posterior of the linearised network at them.
    """

    fitted: FittedModel
    labelled: Tensor  # (L,)
    labels: Tensor  # (L,) class numbers
    candidates: Tensor  # (m,) in random order
    query_config: QueryConfig
    fresh: Callable[[int], nn.Module] | None = None  # seed -> an untrained network of this kind
    training: Training | None = None  # how such a network is trained
    memory: Mapping[str, Any] | None = None  # state that the strategy returned last time
    # the auxiliary objective trained with the network, if the strategy has one
    objective: AuxiliaryObjective | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_pool(
        cls,
        model: nn.Module,
        inputs: Tensor | Samples,
        pool: Pool,
        query_config: QueryConfig,
        n: int = 1,
        *,
        loss: str = "squared",
        seed: int = 0,
        **more: Any,
    ) -> "QueryContext":
        """Create a context whose candidates are a random part of the unlabelled items, in random
        order.

        There are at least n candidates, whatever the configured limit.
        """
        free = pool.unlabelled
        order = torch.randperm(len(free), generator=make_generator(seed, "candidates", len(pool)))
        limit = len(free) if query_config.candidates is None else max(query_config.candidates, n)
        fitted = wrap_fitted_model(model, inputs, loss)
        return cls(fitted, pool.labelled, pool.labels, free[order[:limit]], query_config, **more)

    @property
    def model(self) -> nn.Module:
        """The network, as last trained."""
        return self.fitted.model

    @property
    def inputs(self) -> Tensor | Samples:
        """(n, ...) of the whole data set."""
        return self.fitted.inputs

    @property
    def loss(self) -> str:
        """The loss the network was trained with."""
        return self.fitted.loss

    @property
    def noise(self) -> float:
        """Relative noise of the posterior."""
        return self.query_config.noise or self.fitted.noise

    @cached_property
    def points(self) -> Tensor:
        """(L + m,) positions of the labelled items, then of the candidates."""
        return torch.cat([self.labelled, self.candidates])

    @cached_property
    def outputs(self) -> Tensor:
        """(L + m, C) outputs of the network at `points`."""
        with self.time_stage("outputs"):
            out = self.fitted.outputs(self.points)
        classes = self.fitted.task is None  # of another task labels are codes of answers
        if classes and len(self.labels) and int(self.labels.max()) >= out.shape[1]:
            raise InputError(
                f"a label is class {int(self.labels.max())}, but the network has {out.shape[1]} "
                "outputs; expected one output per class: build the network with more classes"
            )
        return out

    @cached_property
    def candidate_outputs(self) -> Tensor:
        """(m, C) outputs of the network at the candidates."""
        if "outputs" in self.__dict__:
            return self.outputs[len(self.labelled) :]
        return self.fitted.outputs(self.candidates)

    @cached_property
    def embedding(self) -> Tensor:
        """(L + m, h) inputs of the network's last linear layer, float64."""
        with self.time_stage("outputs"):
            return self.fitted.embedding(self.points)

    @property
    def candidate_embedding(self) -> Tensor:
        """(m, h) embedding of the candidates."""
        return self.embedding[len(self.labelled) :]

    @cached_property
    def start(self) -> Tensor:
        """(L + m, C) prior mean of look-ahead, on the scale of one-hot targets.

        Before the first label it is uniform: the predictions of an untrained network are noise.
        """
        start = self.fitted.start(self.outputs, self.points)
        if len(self.labelled) or self.fitted.task is not None:
            return start
        return torch.full_like(start, 1 / start.shape[1])

    @cached_property
    def kernel_arguments(self) -> dict[str, Any]:
        """The kernel at `points`, as {"kernel": ...}, or {"features": ...} if a sketch is configured."""
        outputs, kind, sketch = self.outputs, self.query_config.kernel, self.query_config.sketch
        with self.time_stage("kernel"):
            if sketch is None and self.fitted.forms_kernel:
                rows = len(outputs) * (outputs.shape[1] if kind == "full" else 1)
                self.require_memory(rows, outputs.element_size())
            return self.fitted.kernel_arguments(self.points, kind, sketch)

    @cached_property
    def pool_posterior(self) -> PoolPosterior:
        """The posterior of the linearised network at `points`, given the labels so far."""
        return self.condition_posterior(self.start, self.kernel_arguments)

    def condition_posterior(self, start: Tensor, tangent: Mapping[str, Any]) -> PoolPosterior:
        """Return the posterior at `points` from a prior mean (L + m, C) and a "kernel" or "features"."""
        with self.time_stage("solve"):
            known = dict(zip(self.labelled.tolist(), self.labels.tolist(), strict=True))
            # Candidates are in random order, so the first ones are a random sample.
            return PoolPosterior.from_kernel(
                self.points,
                start,
                tangent,
                self.noise,
                known,
                PosteriorOptions(
                    evaluation=self.query_config.evaluation,
                    baseline=self.fitted.baseline,
                    observations=self.fitted.observations,
                    task=self.fitted.task,
                    goal=self.query_config.goal,
                ),
            )

    @cached_property
    def drift(self) -> float | None:
        """Share of the candidates for which f_lin predicts another class than the trained network.

        None before the first label, and for the exact learner, which is its own linearisation.
        """
        if self.fitted.baseline != "outputs" or not len(self.labelled):
            return None
        return self.pool_posterior.drift()

    @property
    def view(self) -> View:
        """The input of acquisition functions, along `points`."""
        return self.pool_posterior.view

    @contextmanager
    def time_stage(self, part: str) -> Iterator[None]:
        """Add the time spent inside to `seconds[part]`."""
        start = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start

    def require_memory(self, rows: int, entry: int) -> None:
        """Raise if a dense kernel with this number of rows and bytes per entry is too large."""
        size = entry * rows**2
        if size > MAX_KERNEL_BYTES:
            raise InputError(
                f"the {self.query_config.kernel} kernel of {len(self.points)} items needs "
                f"{size / 2**30:.0f} GiB; expected at most {MAX_KERNEL_BYTES >> 30}: lower "
                "`candidates`, or set `sketch` to some thousand features"
            )


def make_scoring_strategy(
    score: Callable[[QueryContext, torch.Generator], Tensor],
    required: Callable[[QueryContext], object] = lambda context: None,
) -> Callable[..., QueryBatch]:
    """Make a strategy that selects the q largest scores; ties go to the first candidate, at random.

    Args:
        score: (context, rng) -> scores (m,).
        ready: Computes what the score needs beforehand, so that no time is counted twice.
    """

    def select_batch(
        context: QueryContext, q: int, rng: torch.Generator, mode: str, oracle: Oracle | None
    ) -> QueryBatch:
        required(context)
        with context.time_stage("score"):
            scores = score(context, rng).cpu().double()
        order = torch.sort(scores, descending=True, stable=True).indices[:q]
        return QueryBatch(context.candidates[order], scores[order])

    return select_batch
