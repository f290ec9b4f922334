"""What a strategy is, and what may be asked of one.

The same values serve a simulation, a query and the page.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor

from labelahead.acquisition import Acquisition
from labelahead.errors import InputError
from labelahead.models.training.objective import MakeObjective

__all__ = ["Oracle", "QueryBatch", "QueryConfig", "Strategy"]

PREDICTION_BASED_ACQUISITIONS = (
    "flip",
    "mlmoc",
    "changes",
    "emoc",
    "eer",
)  # criteria that ask what the predictions are
MIN_SKETCH_FEATURES = 32  # below that it is noise
Oracle = Callable[[int], int]  # position in the data set -> class number


class QueryBatch(NamedTuple):
    """What was chosen, best first.

    memory: what the strategy wants to be told next time, by `context.memory`; goes through JSON.
    Not all that was chosen need have been labelled by then.

    >>> picks = la.QueryBatch(torch.tensor([7, 3]), torch.tensor([0.9, 0.2]))
    >>> picks.positions[0].item()  # the best comes first
    7
    """

    positions: Tensor  # (q,) distinct positions in the data set
    scores: Tensor  # (q,) each as it was when chosen; larger = label sooner
    memory: dict[str, Any] | None = None


@dataclass(frozen=True)
class Strategy:
    """One way to choose.

    pick(situation, q, rng, mode, ask): `oracle` labels one item at once; only mode "sequential" uses
    it. modes: how a batch can be made, the default first. criterion: of look-ahead, what scores the
    candidates of a view. noise: the relative regulariser it works best with, if it has one of its
    own. needs_network: whether it takes gradients of a network, or trains some. objective: makes
    what is trained together with the campaign's network, for `context.objective`: (network, two
    samples, seed) -> an `AuxiliaryObjective`.

    >>> def first(context, q, rng, mode, oracle):
    ...     return la.QueryBatch(context.candidates[:q], torch.ones(q))
    >>> mine = la.Strategy("first", "a baseline for tests", "nobody", first)
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

    def with_default_noise(self, asking: "QueryConfig") -> "QueryConfig":
        """With the strategy's own noise where none is asked for.

        Without either, the learner's counts.
        """
        return replace(asking, noise=asking.noise or self.noise)

    @property
    def look_ahead(self) -> bool:
        """Whether every answer moves its choice at once, without training."""
        return self.acquisition is not None

    def choose_acquisition(self, labels: Iterable[int]) -> str | Acquisition:
        """What look-ahead scores by after labels of these classes.

        Before there are two of them every prediction is the same, and nothing but coverage can be
        told: `flip` would ask for ever more items like those that are known.
        """
        assert self.acquisition is not None
        return (
            "resolve"
            if self.acquisition in PREDICTION_BASED_ACQUISITIONS and len(set(labels)) < 2
            else self.acquisition
        )

    def resolve_mode(self, requested: str | None, *, has_oracle: bool) -> str:
        """Return the batch mode to use.

        Args:
            requested: The mode that the user asks for; None: the strategy's default.
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
    """How items are chosen; the same values serve a simulation, a query and the labelling page.

    strategy: a name of STRATEGIES, your own as "file.py:name", or a `Strategy`. mode: how
    look-ahead makes a batch: "top" (best scores at once), "greedy" (one by one on predicted labels)
    or "sequential" (one by one on the true labels); None: the strategy's own. kernel: pseudo,
    single, trace or full. candidates: at most so many items, drawn at random, are scored.
    evaluation: at most so many candidates are summed over. noise: relative regulariser; None: the
    learner's own. sketch: low-rank kernel of so many features, for pools whose kernel does not fit.
    gamma: of `dynamical`, what the labels so far count beside an item's own gradient; 0 and
    infinity are its two ends. retrainings: of `naive`, for at most so many candidates a network is
    trained.

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

    def __post_init__(self) -> None:
        if self.sketch is not None and self.sketch < MIN_SKETCH_FEATURES:
            raise InputError(
                f"sketch is {self.sketch}; expected {MIN_SKETCH_FEATURES} features or more, commonly "
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
