"""A simulated campaign: train, test, query, repeat until the budget is spent."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labelahead.data.pool import Pool
from labelahead.errors import InputError, LabelaheadError
from labelahead.inference.exact import ExactLearner
from labelahead.inference.forecast import ErrorForecast
from labelahead.inference.network import FittedModel, NetworkLearner
from labelahead.learner.config import Budget, Progress
from labelahead.learner.stopping import LeaveOneOut, estimate_leave_one_out
from labelahead.models.training import TrainingResult
from labelahead.seeds import make_generator
from labelahead.simulation.store import CONFIRMED_BY, Label, Round, Store
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.query import Query, propose
from labelahead.tasks import Task

__all__ = ["Labeller", "Simulation", "State", "run_rounds"]

# position -> class number, or the code of an answer: an oracle, or a person
Labeller = Callable[[int], int]


@dataclass(frozen=True, eq=False)
class Simulation:
    """Everything that the rounds depend on. Only `labeller` holds the labels."""

    learner: NetworkLearner | ExactLearner
    asking: QueryConfig
    budget: Budget
    labeller: Labeller
    test: Tensor  # (t,) positions
    test_labels: Tensor  # (t,)
    excluded: Tensor  # positions that cannot be queried: test items and items without labels
    ids: Sequence[str] = ()  # names of the items, and of the classes, for the record
    names: Sequence[str] = ()
    seed: int = 0
    forecast: bool = True  # whether every round estimates and forecasts its error
    task: Task | None = None  # what labels are codes of; None: class numbers


MAX_ESTIMATION_ITEMS = 1000  # sample for the error estimate
UNTRAINED = TrainingResult(0.0, 0.0, 0, 0.0, (), 0.0)  # without labels nothing is trained


class State(NamedTuple):
    """The pool and the network after a round."""

    pool: Pool
    model: nn.Module


def run_rounds(
    plan: Simulation,
    store: Store | None = None,
    progress: Progress | None = None,
    keep: Callable[[State], None] | None = None,
) -> Iterator[Round]:
    """Run a campaign and yield its rounds; a resumed campaign yields its earlier rounds first.

    All randomness derives from the seed and the number of labels, so a restarted round queries the
    same items. Recorded labels are not queried again.

    Args:
        plan: What to simulate.
        store: Keeps labels, rounds and weights.
        progress: Called with the stage, the work done and its total.
        keep: Called with the state after every round.
    """
    log = store.read_labels() if store else []
    done = store.read_rounds() if store else []
    simulation_run = _SimulationRun(plan, store, progress or (lambda what, done, total: None), log)
    pool = simulation_run.pool
    simulation_run.label_seed_set()
    previous: dict[str, Tensor] | None = None
    for number in range(len(done)):
        for label in log:
            if label.round == number + 1 and done[number].asked:
                pool.label([label.position], [label.label])
        if number + 1 < len(done) or done[number].asked:
            yield done[number]
    left = min(plan.budget.labels - simulation_run.count_spent(pool.labelled), len(pool.unlabelled))
    if done and done[-1].asked == 0 and left > 0:
        done = done[:-1]  # the budget has grown: the last round continues
    elif done and done[-1].asked == 0:
        if keep and store:
            model = plan.learner.network(plan.seed)
            model.load_state_dict(store.load_weights(len(done) - 1))
            keep(State(pool, model.eval()))
        yield done[-1]
        return
    if done and store and plan.learner.training.start in ("warm", "shrink"):
        previous = store.load_weights(len(done) - 1)
    memory = done[-1].memory if done else None
    for number in range(len(done), len(plan.learner.inputs)):
        model, entry = simulation_run.run_round(number, previous, memory)
        previous = {k: v.detach().clone() for k, v in model.state_dict().items()}
        memory = entry.memory
        if keep:
            keep(State(pool, model))
        yield entry
        if entry.asked == 0:
            return


class _SimulationRun:
    """A campaign in progress.

    Recorded labels are not queried again; a new label is stored before it is used.
    """

    def __init__(
        self, plan: Simulation, store: Store | None, report: Progress, log: list[Label]
    ) -> None:
        self.plan = plan
        self.store = store
        self.report = report
        self.pool = Pool(len(plan.learner.inputs), test=plan.excluded)
        self._recorded_labels = {
            entry.position: entry for entry in log
        }  # by position, as of opening the campaign
        self._confirmed_in_round = {
            e.position: e.round for e in log if e.by == CONFIRMED_BY
        }  # position -> the round that trains on it
        free = self.pool.unlabelled
        self._estimation_order = free[
            torch.randperm(len(free), generator=make_generator(plan.seed, "outlook"))
        ]

    def label_seed_set(self) -> None:
        """Label the seed set: random items, or with `balanced` equally many of every class as far as
        available.

        With `absent`, none of that many last classes, which only queries can discover.
        """
        budget, free = self.plan.budget, self.pool.unlabelled
        if budget.initial > len(free):
            raise InputError(
                f"initial is {budget.initial}, but the pool has {len(free)} items; expected fewer"
            )
        order = free[
            torch.randperm(len(free), generator=make_generator(self.plan.seed, "initial"))
        ].tolist()
        if budget.balanced or budget.absent:
            order = _filter_seed_set(self.plan, order)
        for position in order[: budget.initial]:
            self.pool.label([position], [self._get_label(position, 0)])
            self.report("first labels", len(self.pool), budget.initial)

    def run_round(
        self, number: int, previous: dict[str, Tensor] | None, memory: Mapping[str, Any] | None
    ) -> tuple[nn.Module, Round]:
        """Train, test and query.

        Args:
            number: Of the round.
            previous: Weights of the last round.
            memory: State that the strategy returned in the last round.
        """
        plan, pool, store = self.plan, self.pool, self.store
        learner, seed = plan.learner, plan.learner.training.derive_seed(plan.seed, number)
        labelled, labels = pool.labelled, pool.labels
        self.report("training", 0, 1)
        fitted = learner.fit(labelled, labels, seed=seed, previous=previous)
        trained = fitted.trained or UNTRAINED
        seconds = {"train": fitted.seconds}
        if store:
            store.save_weights(number, fitted.model.state_dict())
        start = time.perf_counter()
        if len(plan.test):
            self.report("testing", 0, 1)
        accuracy, measures = self._measure(fitted)
        seconds["test"] = time.perf_counter() - start
        count, confirming = self._next_batch_size(labelled)
        query, notes = None, trained.notes
        if count > 0:
            query = self._query_and_label(fitted, number, count, memory)
            seconds |= query.seconds
            notes = (*notes, *query.notes)
        queried = sum(
            p not in self._confirmed_in_round for p in pool.labelled[len(labelled) :].tolist()
        )
        if query and confirming:
            self._confirm_predictions(fitted, number, labelled, query.positions)
        start = time.perf_counter()
        loo, ahead, problem = self._estimate_error(labelled, labels, seed, queried=bool(query))
        notes = (*notes, *problem)
        seconds["leave-one-out"] = time.perf_counter() - start
        entry = Round(
            number=number,
            labels=self.count_spent(labelled),
            accuracy=accuracy,
            train_accuracy=trained.accuracy,
            train_loss=trained.loss,
            steps=trained.steps,
            asked=queried,
            gain=query.gain if query else None,
            loo=loo.accuracy if loo else None,
            loo_error=loo.error if loo else None,
            seconds=seconds,
            notes=notes,
            memory=query.memory if query else None,
            drift=query.drift if query else None,
            measures=measures,
            **_forecast_fields(ahead),
            **self._count_confirmed(labelled, labels),
        )
        if store:
            store.add_round(entry)
        return fitted.model, entry

    def _measure(self, fitted: FittedModel) -> tuple[float | None, dict[str, float]]:
        """Return the accuracy on the test items, or the measures of another task."""
        plan = self.plan
        if plan.task is None:
            return fitted.accuracy(plan.test, plan.test_labels), {}
        if not len(plan.test):
            return None, {}
        prediction = fitted.predict_answers(plan.test)
        found = {
            **plan.task.measure(prediction, plan.test_labels),
            **plan.task.measure_outputs(prediction, plan.test_labels),
        }
        # Without labels intervals are infinite, which no file can hold.
        return None, {name: value for name, value in found.items() if math.isfinite(value)}

    def _estimate_error(
        self, labelled: Tensor, labels: Tensor, seed: int, *, queried: bool
    ) -> tuple[LeaveOneOut | None, ErrorForecast | None, tuple[str, ...]]:
        """Estimate the error by leave-one-out and forecast it; also return notes about problems.

        Estimates are advice only: where they fail, the round continues.
        """
        plan, learner = self.plan, self.plan.learner
        loo: LeaveOneOut | None = None
        ahead: ErrorForecast | None = None
        try:
            if plan.task is None and queried and len(labels) > 1 and plan.budget.initial:
                others, residual = learner.leave_one_out_predictions(labelled, labels, seed=seed)
                loo = estimate_leave_one_out(others, residual, labels, plan.budget.initial)
            several = bool((labels != labels[:1]).any()) or (
                plan.task is not None and len(labels) > 1
            )
            if plan.forecast and several:
                votes = torch.tensor([p not in self._confirmed_in_round for p in labelled.tolist()])
                ahead = learner.forecast_error(
                    labelled, labels, self._sample_unlabelled(labelled), seed=seed, votes=votes
                )
        except LabelaheadError as error:
            return loo, ahead, (f"no estimate by leave-one-out: {error}",)
        return loo, ahead, ()

    def _next_batch_size(self, labelled: Tensor) -> tuple[int, bool]:
        """Return the number of labels to query, and whether the budget allows grids."""
        budget = self.plan.budget
        left = budget.labels - self.count_spent(labelled)
        confirming = bool(budget.confirm) and left > budget.price
        answers = budget.retrain_every - budget.price if confirming else budget.retrain_every
        return min(left, answers, len(self.pool.unlabelled)), confirming

    def count_spent(self, labelled: Tensor) -> int:
        """Return the cost of these labels, including confirmations."""
        rounds = {
            self._confirmed_in_round[p] for p in labelled.tolist() if p in self._confirmed_in_round
        }
        confirmed = sum(p in self._confirmed_in_round for p in labelled.tolist())
        return len(labelled) - confirmed + self.plan.budget.price * len(rounds)

    def _count_confirmed(self, labelled: Tensor, labels: Tensor) -> dict[str, Any]:
        """Return how many of these labels were confirmed in grids, and how many of those are wrong."""
        given = [
            (p, c)
            for p, c in zip(labelled.tolist(), labels.tolist(), strict=True)
            if p in self._confirmed_in_round
        ]
        return {
            "confirmed": len(given),
            "let_through": sum(self.plan.labeller(p) != c for p, c in given),
        }

    def _confirm_predictions(
        self, fitted: FittedModel, number: int, labelled: Tensor, queried: Tensor
    ) -> None:
        """Show the most confident predictions in a grid, and label those that look right."""
        plan, budget = self.plan, self.plan.budget
        if fitted.trained is None:
            return
        open_ = torch.ones(len(plan.learner.inputs), dtype=torch.bool)
        open_[torch.cat([labelled, queried.cpu(), plan.excluded])] = False
        at = open_.nonzero().squeeze(1)
        sure, guess = fitted.predict_proba(at).max(1)
        shown = torch.sort(sure, descending=True, stable=True).indices[: budget.confirm].cpu()
        recorded_positions = set(
            self.pool.labelled.tolist()
        )  # already recorded by an interrupted attempt of this round
        overlooked = (
            torch.rand(len(shown), generator=make_generator(plan.seed, "confirm", number))
            < budget.missed
        )
        for i, missed in zip(shown.tolist(), overlooked.tolist(), strict=True):
            position, label = int(at[i]), int(guess[i])
            if position in self._recorded_labels:
                label = self._recorded_labels[position].label
            elif plan.labeller(position) != label and not missed:
                continue
            elif self.store:
                item = plan.ids[position] if plan.ids else ""
                name = plan.names[label] if plan.names else ""
                self.store.add_label(
                    position, label, number + 1, CONFIRMED_BY, item=item, name=name
                )
            self._confirmed_in_round[position] = number + 1
            if position not in recorded_positions:
                self.pool.label([position], [label])

    def _sample_unlabelled(self, labelled: Tensor) -> Tensor:
        """Return random unlabelled items, for the error estimate."""
        return self._estimation_order[~torch.isin(self._estimation_order, labelled)][
            :MAX_ESTIMATION_ITEMS
        ]

    def _query_and_label(
        self, fitted: FittedModel, number: int, count: int, memory: Mapping[str, Any] | None
    ) -> Query:
        """Query items, get their labels and add them to the pool."""
        self.report("looking ahead", 0, count)
        given: dict[int, int] = {}

        def oracle(position: int) -> int:
            given[position] = self._get_label(position, number + 1)
            self.report("asking", len(given), count)
            return given[position]

        plan, learner = self.plan, self.plan.learner
        query = propose(
            fitted.model,
            learner.inputs,
            self.pool,
            count,
            plan.asking,
            loss=learner.training.loss,
            seed=plan.seed,
            oracle=oracle,
            fresh=learner.network,
            training=learner.training,
            memory=memory,
            objective=fitted.objective,
        )
        for position in query.positions.tolist():
            label = given[position] if position in given else oracle(position)
            self.pool.label([position], [label])
        # Accepted labels are never lost, even if another machine's rounding now selects other items.
        for entry in self._recorded_labels.values():
            if entry.round == number + 1 and entry.position not in given:
                self.pool.label([entry.position], [entry.label])
        return query

    def _get_label(self, position: int, round: int) -> int:
        """Return the recorded label of an item, or that of the labeller."""
        if position in self._recorded_labels:
            return self._recorded_labels[position].label
        plan, given_label = self.plan, self.plan.labeller(position)
        try:
            label = -1 if isinstance(given_label, bool) else index(given_label)
        except TypeError:
            label = -1
        count = plan.learner.classes if plan.task is None else len(plan.task.answers)
        if not 0 <= label < count:
            what = "a class number" if plan.task is None else "the code of an answer"
            raise InputError(
                f"the labeller returned {given_label!r} for item {position}; expected {what}, 0 to "
                f"{count - 1}"
            )
        if self.store:
            item = plan.ids[position] if plan.ids else ""
            name = plan.names[label] if plan.names else ""
            self.store.add_label(position, label, round, item=item, name=name)
        return label


def _forecast_fields(ahead: ErrorForecast | None) -> dict[str, Any]:
    """Return a forecast as fields of a `Round`."""
    if ahead is None:
        return {}
    rate, low, high = ahead.error
    return {"error": rate, "error_low": low, "error_high": high, "fall": ahead.fall}


def _filter_seed_set(plan: Simulation, order: list[int]) -> list[int]:
    """Return the items, in order, that `balanced` and `absent` admit to the seed set.

    Only a simulation can do this: an annotator cannot be queried for a class.
    """
    budget, present = plan.budget, plan.learner.classes - plan.budget.absent
    if present < 1:
        raise InputError(
            f"absent is {budget.absent}, but there are {plan.learner.classes} classes; expected "
            "fewer, so that at least one class has initial labels"
        )
    classes = [plan.labeller(position) for position in order]
    admitted = [(p, c) for p, c in zip(order, classes, strict=True) if c < present]
    if budget.initial > len(admitted):
        raise InputError(
            f"initial is {budget.initial}, but without the last {budget.absent} classes (absent) "
            f"the pool has {len(admitted)} items; expected fewer initial labels or absent classes"
        )
    share = -(-budget.initial // present) if budget.balanced else budget.initial
    taken, admissible = [0] * present, []
    for position, label in admitted:
        if taken[label] < share:
            taken[label] += 1
            admissible.append(position)
    return admissible
