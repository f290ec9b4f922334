"""The interface of a strategy, and the configuration of a query.

Simulations, queries and the labelling page use the same values.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor

from labelahead.acquisition import Acquisition, find_output_acquisition
from labelahead.acquisition.batch_selection import LABEL_FREE
from labelahead.acquisition.pool_view import GOALS
from labelahead.errors import InputError
from labelahead.models.training.objective import MakeObjective
from labelahead.tasks import Task

__all__ = ["Oracle", "QueryBatch", "QueryConfig", "Strategy"]

PREDICTION_BASED_ACQUISITIONS = (
    "flip",
    "mlmoc",
    "changes",
    "emoc",
    "eer",
)  # acquisition functions of the predictions
MIN_SKETCH_FEATURES = 32  # fewer features are too noisy
Oracle = Callable[[int], int]  # position in the data set -> class number


class QueryBatch(NamedTuple):
    """The selected items, best first.

    `memory` is handed to the strategy at its next query as `context.memory`. It is stored as JSON.
    Some of the selected items may still be unlabelled by then.

    >>> batch = la.strategies.QueryBatch(torch.tensor([7, 3]), torch.tensor([0.9, 0.2]))
    >>> batch.positions[0].item()  # the best comes first
    7
    """

    positions: Tensor  # (q,) distinct positions in the data set
    scores: Tensor  # (q,) each as it was when chosen; larger = label sooner
    memory: dict[str, Any] | None = None


@dataclass(frozen=True)
class Strategy:
    """A query strategy.

    Attributes:
        name: Its name in configurations.
        when: When to use it, in one sentence.
        paper: Where it was published.
        select_batch: (context, q, rng, mode, oracle) -> `QueryBatch`. `oracle` labels one item at
            once; only the mode "sequential" uses it.
        modes: How a batch can be built, the default first.
        acquisition: Of look-ahead strategies, the function or name that scores the candidates of a
            view.
        noise: The relative noise that suits the strategy, if it has a preference.
        needs_network: Whether it needs gradients of a network, or trains some.
        tasks: Names of the tasks that it works for (`labelahead.tasks`); None: for all.
        objective: Makes the auxiliary objective that is trained with the network and becomes
            `context.objective`: (network, two samples, seed) -> `AuxiliaryObjective`.

    >>> def first(context, q, rng, mode, oracle):
    ...     return la.strategies.QueryBatch(context.candidates[:q], torch.ones(q))
    >>> mine = la.strategies.Strategy("first", "a baseline for tests", "nobody", first)
    >>> len(la.propose(model, x, la.Pool(30), 3, mine).positions)  # candidates come in random order
    3
    """

    name: str
    when: str
    paper: str
    select_batch: Callable[..., QueryBatch]
    modes: tuple[str, ...] = ("top",)
    acquisition: str | Acquisition | None = None
    noise: float | None = None
    needs_network: bool = False
    objective: MakeObjective | None = None
    tasks: tuple[str, ...] | None = ("classes",)

    def check_task(self, task: Task | None) -> None:
        """Raise unless the strategy works for a task; None stands for classes.

        Raises:
            InputError: It does not. The message names strategies that do.
        """
        name = "classes" if task is None else task.name
        if self.tasks is None or name in self.tasks:
            return
        if task is not None and self.name in (*task.acquisitions, *task.baselines):
            return  # a task of a user's own
        if task is not None and self.acquisition == self.name:
            task.check_acquisition(self.name)
        works = ("flip", "resolve") if task is None else (*task.acquisitions, *task.baselines)
        raise InputError(
            f"{self.name} works for the task {' and '.join(self.tasks)}, not for {name}; expected "
            f"one of {', '.join((*works, 'random'))}"
        )

    def check_goal(self, goal: str, task: Task | None = None) -> None:
        """Raise unless the strategy can query for this goal.

        Raises:
            InputError: The goal is not "accuracy", and the strategy does not sum over evaluation
                items in closed form, or the task is not classes.
        """
        if goal == "accuracy":
            return
        if task is not None:
            raise InputError(f"the goal {goal} needs one class per item; the task is {task.name}")
        if self.acquisition not in LABEL_FREE:
            raise InputError(
                f"{self.name} cannot weigh classes for the goal {goal}; expected one of "
                f"{', '.join(LABEL_FREE)}, or the goal accuracy"
            )

    def with_default_noise(self, query_config: "QueryConfig") -> "QueryConfig":
        """Return the configuration with the strategy's own noise, unless it sets one."""
        return replace(query_config, noise=query_config.noise or self.noise)

    @property
    def look_ahead(self) -> bool:
        """Whether its scores are updated after every label, without training."""
        return self.acquisition is not None

    def choose_acquisition(
        self, labels: Iterable[int], task: Task | None = None
    ) -> str | Acquisition:
        """Return the acquisition function for these labels.

        Before two classes have labels, functions of the predictions are replaced by `resolve`:
        `flip`, for example, would keep querying items like those already labelled.
        """
        assert self.acquisition is not None
        if task is not None:
            if not isinstance(self.acquisition, str):
                return self.acquisition
            unknown = self.acquisition in PREDICTION_BASED_ACQUISITIONS and len(set(labels)) < 2
            return find_output_acquisition("resolve" if unknown else self.acquisition)
        return (
            "resolve"
            if self.acquisition in PREDICTION_BASED_ACQUISITIONS
            and len({label for label in labels if label >= 0}) < 2
            else self.acquisition
        )

    def resolve_mode(self, requested: str | None, *, has_oracle: bool) -> str:
        """Return the batch mode to use.

        Args:
            requested: The mode that the user requests; None: the strategy's default.
            has_oracle: Whether items can be labelled during the query. Without an oracle
                "sequential" becomes "greedy".

        Raises:
            InputError: The strategy does not support the requested mode.
        """
        if requested is not None and requested not in self.modes:
            raise InputError(
                f"mode is {requested!r}, but {self.name} works as {' or '.join(self.modes)}: "
                "leave `mode` out or choose one of these"
            )
        mode = requested or self.modes[0]
        return "greedy" if mode == "sequential" and not has_oracle else mode


@dataclass(frozen=True)
class QueryConfig:
    """How items are queried; simulations, queries and the labelling page use the same values.

    Attributes:
        strategy: A name of `STRATEGIES`, your own as "file.py:name", or a `Strategy`.
        mode: How look-ahead builds a batch: "top" (the best scores at once), "greedy" (one by one,
            on predicted labels) or "sequential" (one by one, on true labels). None: the strategy's
            default.
        kernel: pseudo, single, trace or full.
        candidates: At most so many items, drawn at random, are scored.
        evaluation: Scores sum over at most so many candidates.
        noise: Relative noise; None: the learner's own.
        sketch: Number of features of a low-rank kernel, for pools whose kernel does not fit into
            memory.
        gamma: Of `dynamical`, the weight of the labels so far relative to an item's own gradient;
            from 0 to infinity.
        retrainings: Of `naive`, the number of candidates for which a network is trained.
        goal: What queries improve: "accuracy", or "macro-f1", which gives every class the same
            weight (flip, resolve and variance).

    >>> la.QueryConfig("flip", mode="greedy", candidates=500).candidates
    500
    """

    strategy: str | Strategy = "flip"
    mode: Literal["top", "greedy", "sequential"] | None = None
    kernel: Literal["pseudo", "single", "trace", "full"] = "pseudo"
    candidates: int | None = 4000
    evaluation: int | None = 1000
    noise: float | None = None
    sketch: int | None = None
    gamma: float = 2.0
    retrainings: int | None = 50
    goal: Literal["accuracy", "macro-f1"] = "accuracy"

    def __post_init__(self) -> None:
        if self.sketch is not None and self.sketch < MIN_SKETCH_FEATURES:
            raise InputError(
                f"sketch is {self.sketch}; expected {MIN_SKETCH_FEATURES} features or more, "
                "commonly some thousand"
            )
        for name in ("candidates", "evaluation", "retrainings"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; expected 1 or more, or 'none' for no limit")
        if self.goal not in GOALS:
            raise InputError(f"goal is {self.goal!r}; expected one of {', '.join(GOALS)}")
        if not self.gamma >= 0:
            raise InputError(f"gamma is {self.gamma}; expected 0 or more, or infinity")
        if self.noise is not None and not 0 < self.noise < float("inf"):
            raise InputError(f"noise is {self.noise}; expected a positive number such as 1e-3")
