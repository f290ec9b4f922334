"""A learner for your own labelling loop: query, teach, predict, save."""

import copy
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelahead.acquisition.sources import LabelSource, SourceQuery, select_pairs, source_view
from labelahead.batching import Inputs, Samples, as_inputs, count_samples
from labelahead.data.class_targets import make_class_targets
from labelahead.data.dataset import NONE_OF_THESE
from labelahead.data.pool import Pool
from labelahead.errors import InputError
from labelahead.files import replace_file
from labelahead.gp import checks
from labelahead.gp.checks import Positions
from labelahead.gp.class_quality import ClassReport
from labelahead.gp.posterior import Posterior
from labelahead.inference.exact import (
    ExactLearner,
    predict_answers,
    predict_proba,
    wrap_fitted_model,
)
from labelahead.inference.exact_model import ExactModel, append_pool_guesses, attach_pool_guesses
from labelahead.inference.forecast import ErrorForecast
from labelahead.inference.network import ModelLearner, outputs_to_probabilities
from labelahead.inference.pool_posterior import PoolPosterior, drift_warning
from labelahead.inference.sources import Annotations, SourceAccuracy
from labelahead.models.training import AuxiliaryObjective, Training, predict
from labelahead.models.trusted_code import (
    find_code_names,
    record_code,
    require_trusted_code,
    resolve_code_name,
)
from labelahead.seeds import derive_training_seed, make_generator, temporary_seed
from labelahead.strategies import PYTHON_OBJECT_PREFIX, find_strategy
from labelahead.strategies.base import QueryConfig, Strategy
from labelahead.strategies.context import QueryContext
from labelahead.strategies.query import propose
from labelahead.tasks import ClassPrediction, Task, find_task

__all__ = ["Learner"]

log = logging.getLogger("labelahead")
SAVED_ARGUMENTS = ("retrain_every", "loss", "test", "seed")  # saved unchanged
FitFunction = Callable[[nn.Module, Any, Tensor], object]  # (model, inputs, labels): trains in place


class Learner:
    """Query items and update the predictions with their labels.

        learner = Learner(model, inputs)
        for position in learner.query(10):
            learner.teach([position], [label_of(position)])
        learner.predict()

    Labels update the posterior at once. The network is trained again at the next query after
    `retrain_every` labels.

    Args:
        model: Any nn.Module with outputs (n, C), one per class; trained in place. The model of
            `exact(inputs, task=...)` may have another task: several classes, numbers, ratings.
        inputs: The whole data set: a tensor or an array (n, ...), a mapping or tuple of tensors, or
            `Samples` of a data set that is read in batches. Positions count along it. Arrays are not
            copied, and may be files mapped into memory.
        strategy: A strategy, its name, or a `QueryConfig`. None: "flip", or the first function of
            the task (`Task.acquisitions`).
        training: A `Training`, or a function (model, inputs, labels) that trains in place.
        retrain_every: Number of labels between two trainings.
        loss: "squared" or "cross-entropy", the loss of your own training function (default:
            squared).
        test: Positions that are never queried.
        seed: Of all random choices.
        task: What an answer is (`labelahead.tasks`), unless the model knows it. `teach` then takes
            answers as people write them, and `predict` returns the prediction of the task.
        guesses: What a language model, an old classifier or a heuristic says about the items, in
            the forms that `exact` takes. `model` stays as it is: the learner has a model of its own.

    Attributes:
        drift: Share of the candidates for which the linearised network, on which look-ahead is
            based, predicts another class than the trained one, as of the last training; None
            without look-ahead. Above 10 % a warning is logged.

    >>> learner = la.Learner(la.exact(x, 3), x, "resolve")
    >>> for position in learner.query(10):
    ...     learner.teach([position], [truth[position]])
    >>> learner.predict([0, 1]).shape
    torch.Size([2, 3])
    >>> learner = la.Learner(la.exact(x, task=la.tasks.Number(unit="kg")), x)
    >>> learner.teach([0, 1, 2], [3.5, "4 kg", 2])
    >>> low, high = learner.predict([3]).interval(0.9)
    >>> learner = la.Learner(la.exact(x, 3), x, guesses={"llm": truth})
    >>> learner.predict([0]).shape  # before any label: the guesses
    torch.Size([1, 3])
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs | NDArray[Any],
        strategy: QueryConfig | Strategy | str | None = None,
        *,
        training: Training | FitFunction | None = None,
        retrain_every: int = 10,
        loss: str | None = None,
        test: Positions = (),
        seed: int = 0,
        task: Task | None = None,
        guesses: Any = None,
    ) -> None:
        if retrain_every < 1:
            raise InputError(f"retrain_every is {retrain_every}; expected 1 or more")
        inputs = as_inputs(inputs)
        if guesses is not None:
            model = attach_pool_guesses(model, guesses, len(inputs))
        self.model = model
        self.inputs = append_pool_guesses(model, inputs)
        self.seed = seed
        self.task = _find_model_task(model, task)
        if strategy is None:
            strategy = "flip" if self.task is None else next(iter(self.task.acquisitions))
        self.query_config = (
            strategy if isinstance(strategy, QueryConfig) else QueryConfig(strategy=strategy)
        )
        self._strategy = find_strategy(self.query_config.strategy)  # a user's file is read once
        self._strategy.resolve_mode(self.query_config.mode, has_oracle=True)
        self._strategy.check_task(self.task)
        self._strategy.check_goal(self.query_config.goal, self.task)
        self.training = Training() if training is None else training
        self.retrain_every = retrain_every
        if loss not in (None, "squared", "cross-entropy"):
            raise InputError(f"loss is {loss!r}; expected 'squared' or 'cross-entropy'")
        own = self.training.loss if isinstance(self.training, Training) else "squared"
        self.loss = loss or own
        if isinstance(self.training, Training) and self.loss != own:
            raise InputError(f"loss is {loss!r}, but training.loss {own!r}; expected one of them")
        self.pool = Pool(len(self.inputs), test=test)
        self.test = torch.as_tensor(test if isinstance(test, Tensor) else list(test)).long()
        # It raises if the two do not fit.
        self._needs_training = wrap_fitted_model(model, self.inputs).needs_training
        self.classes = predict(model, self.inputs[:1]).shape[1]
        self._initial = copy.deepcopy(model)
        self._labels_since_training = 0
        self._trained = False
        self._pool_posterior: PoolPosterior | None = None
        self._memory: dict[str, Any] | None = None  # state of the strategy
        self.drift: float | None = None  # see the class
        self._annotations: dict[tuple[int, str], int] = {}  # (position, source) -> class
        # the auxiliary objective trained with the network
        self._objective: AuxiliaryObjective | None = None
        if self._strategy.objective is not None and not isinstance(self.training, Training):
            raise InputError(
                f"{self._strategy.name} trains a module of its own together with the network, but "
                "training is a "
                "function of yours; expected a labelahead.models.training.Training, or another "
                "strategy"
            )

    def query(self, n: int = 1) -> list[int]:
        """Return the n positions to label next, best first."""
        strategy = self._strategy
        self._train_if_due()
        if not strategy.look_ahead or n == 0:
            query = propose(
                self.model,
                self.inputs,
                self.pool,
                n,
                changed(self.query_config, strategy=strategy),
                loss=self.loss,
                seed=self.seed,
                fresh=self._make_network,
                training=self._training_recipe(),
                memory=self._memory,
                objective=self._objective or self._new_objective(),
            )
            self._memory = query.memory
            self.drift = query.drift
            return [int(p) for p in query.positions]
        free = len(self.pool.unlabelled)
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= free:
            raise InputError(
                f"{n!r} items requested, but {free} are unlabelled; expected up to that"
            )
        if self._pool_posterior is None or len(self._pool_posterior.view.candidates) < n:
            self._pool_posterior = self._build_posterior(n)
        rng, mode = (
            make_generator(self.seed, "pick", len(self.pool)),
            strategy.resolve_mode(self.query_config.mode, has_oracle=False),
        )
        positions, _ = self._pool_posterior.select_batch(
            strategy.choose_acquisition(self.pool.labels.tolist(), self._own_task), n, rng, mode
        )
        return [int(p) for p in positions]

    def query_sources(
        self,
        sources: Sequence[LabelSource],
        n: int = 1,
        *,
        budget: float | None = None,
        value: float | None = None,
    ) -> list[SourceQuery]:
        """Return up to n labels to ask for, and of whom: the largest expected gain per price first.

        Items that have a label of an unreliable source may be given to another one. Fewer than n
        labels are returned if no other is worth its price. For the exact learner.

        Args:
            sources: With prices and error rates, see `source_accuracy` for estimates of these. Labels
                of other sources count as careful.
            n: Number of labels.
            budget: Total price, at most.
            value: What a point of accuracy over the pool is worth, in the unit of the prices.

        >>> learner = la.Learner(la.exact(x, 3), x)
        >>> learner.teach([0, 1], truth[:2], source="anna")
        >>> anna = la.acquisition.LabelSource("anna", price=0.10)
        >>> llm = la.acquisition.LabelSource("llm", price=0.001, error_rate=0.3)
        >>> for query in learner.query_sources([anna, llm], 3, budget=0.2):
        ...     learner.teach([query.position], truth[[query.position]], source=query.source)
        >>> len(learner.pool)
        5
        """
        if self._own_task is not None:
            raise InputError(
                f"sources cannot be weighed for the task {self._own_task.name}; expected query"
            )
        if self._needs_training:
            raise InputError(
                "labels of sources cannot be weighed by a trained network; expected the exact "
                "learner: la.exact(inputs, classes)"
            )
        self._train_if_due()
        if self._pool_posterior is None:
            self._pool_posterior = self._build_posterior(min(n, len(self.pool.unlabelled)))
        points = self._pool_posterior.points
        allowed = (~torch.isin(points, self.test)).nonzero()[:, 0]
        view = source_view(self._weigh_declared(self._pool_posterior, sources), allowed)
        given = set(self._labels_by_row(points))
        chosen = select_pairs(view, sources, n, budget=budget, value=value, given=given)
        return [query._replace(position=int(points[query.position])) for query in chosen]

    def _labels_by_row(self, points: Tensor) -> list[tuple[int, str]]:
        """Return (row in points, source) of every label."""
        row = {p: i for i, p in enumerate(points.tolist())}
        return [(row[p], source) for p, source in self._annotations if p in row]

    def _weigh_declared(self, pool: PoolPosterior, sources: Sequence[LabelSource]) -> Posterior:
        """Return the posterior given all labels with the noise of their sources.

        With labels of one source only the learner itself cannot know how reliable it is.
        """
        error = {s.name: s.relative_noise(self.classes) for s in sources}
        precision = torch.zeros(len(pool.points), dtype=torch.float64)
        for row, source in self._labels_by_row(pool.points):
            relative = error.get(source, 0.0)
            precision[row] += math.inf if relative == 0 else 1 / relative
        at = (precision > 0).nonzero()[:, 0]
        if not len(at):
            return pool.start
        variance = precision[at].reciprocal()
        labels = torch.tensor([pool.labels[p] for p in pool.points[at].tolist()])
        one_hot = make_class_targets(labels, self.classes)
        # 1/s of `unbiased_targets`, by the noise that several sources have together.
        targets = 1 / self.classes + (one_hot - 1 / self.classes) * (1 + variance).sqrt()[:, None]
        base = pool.start.noise / pool.start.scale
        return pool.start.condition(at, targets, noise=base + variance * (1 + base))

    def _train_if_due(self) -> None:
        if self._labels_since_training >= self.retrain_every or (
            self._labels_since_training and not self._trained
        ):
            self.train()

    def teach(
        self,
        positions: Positions,
        labels: Tensor | NDArray[Any] | Sequence[Any],
        source: str | None = None,
    ) -> None:
        """Add labels; they update the posterior at once, without training.

        Args:
            positions: (q,) distinct positions.
            labels: (q,) class numbers, or `la.data.NONE_OF_THESE` for items that belong to none of the
                classes: all scores of such an item, and of similar ones, are lowered. Only the
                exact learner can learn that. With a task: answers as its `parse` reads them, such
                as lists of names, numbers, levels, or rows of an array.
            source: Who gave them: a person, a language model, a file. Several sources may label
                one item, and a source may correct itself. The exact learner finds out how often
                each is right, and weighs labels accordingly (docs/sources.md). Labels without a
                source count as those of one more source.

        >>> learner = la.Learner(la.exact(x, 3), x, "resolve")
        >>> learner.teach([0, 1], truth[:2], source="anna")
        >>> learner.teach([1, 2], [0, 0], source="language model")
        >>> sorted(learner.source_accuracy())
        ['anna', 'language model']
        """
        if self.task is not None:
            labels = self._parse_answers(labels)
        try:
            given = labels if isinstance(labels, Tensor) else torch.as_tensor(list(labels))
        except (TypeError, ValueError) as error:
            raise InputError(f"labels are {labels!r}; expected class numbers") from error
        if self._own_task is None and given.numel() and int(given.max()) >= self.classes:
            raise InputError(
                f"a label is class {int(given.max())}, but the network has {self.classes} outputs; "
                "expected one output per class"
            )
        if self._needs_training and bool((given == NONE_OF_THESE).any()):
            raise InputError(
                "a label is NONE_OF_THESE, which a trained network cannot learn; expected the exact "
                "learner: la.exact(inputs, classes), or labels without these items"
            )
        at = checks.check_positions(positions, "positions", len(self.inputs))
        revised = self._label_pool(at, given, source)
        self._labels_since_training += len(at)
        if revised:
            self._pool_posterior = None
        elif self._pool_posterior is not None:
            # Items outside the current kernel are included at the next one.
            new = dict(zip(at.tolist(), given.tolist(), strict=True))
            self._pool_posterior = self._pool_posterior.with_labels(
                {**self._pool_posterior.labels, **new}
            )

    @property
    def _own_task(self) -> Task | None:
        """The task, unless it is that of classes, which needs no care."""
        return None if self.task is None or self.task.name == "classes" else self.task

    def _parse_answers(self, answers: Any) -> Tensor:
        """Return the codes (q,) of answers; raise if one is missing or wrong."""
        assert self.task is not None
        if isinstance(answers, str) or not isinstance(answers, Iterable):
            raise InputError(
                f"labels are {answers!r}; expected a list with one answer per position"
            )
        codes = self.task.parse_all(answers)
        given = [code for code in codes if code is not None]
        if len(given) < len(codes):
            raise InputError(
                f"label {codes.index(None)} is missing; expected an answer: leave that item out"
            )
        return torch.tensor(given, dtype=torch.int64)

    def _label_pool(self, at: Tensor, given: Tensor, source: str | None) -> bool:
        """Add labels to the pool; return whether labelled items were among them."""
        if source is not None and (not isinstance(source, str) or not source):
            raise InputError(f"source is {source!r}; expected a name such as 'anna'")
        if source is not None and self._own_task is not None:
            raise InputError(
                f"labels of source {source!r} cannot be weighed for the task {self._own_task.name}; "
                "expected labels without a source"
            )
        if source is not None and self._needs_training:
            raise InputError(
                f"labels of source {source!r} cannot be weighed by a trained network; expected the "
                "exact learner: la.exact(inputs, classes), or labels without a source"
            )
        known = set(self.pool.labelled.tolist()) if source is not None else set()
        new = [i for i, p in enumerate(at.tolist()) if p not in known]
        if len(given) != len(at):
            raise InputError(f"{len(given)} labels for {len(at)} positions; expected one for each")
        if new or not len(at):
            self.pool.label(at[new], given[new])
        for p, label in zip(at.tolist(), given.tolist(), strict=True):
            self._annotations[p, source or ""] = int(label)
            if p in known:
                given_labels = [c for (q, _), c in self._annotations.items() if q == p]
                # The class that most sources give; the newest of them if there are several.
                self.pool.relabel(p, max(reversed(given_labels), key=given_labels.count))
        return len(new) < len(at)

    def _weigh_sources(self, learner: ModelLearner) -> ModelLearner:
        """Return the learner with all labels by source, if it can tell them apart."""
        if len({s for _, s in self._annotations}) < 2:
            return learner
        rows = [(p, label, source) for (p, source), label in self._annotations.items()]
        return learner.with_annotations(Annotations.from_rows(rows))

    def source_accuracy(self) -> dict[str, SourceAccuracy]:
        """Estimate how often each source is right, from all labels so far.

        Returns:
            source -> accuracy with a 90 % interval, and number of labels; empty if all labels have
            one source.
        """
        if self._needs_training or not len(self.pool):
            return {}
        learner = self._weigh_sources(self._make_learner(self.model))
        learner.fit(self.pool.labelled, self.pool.labels, seed=0)
        return dict(learner.source_accuracy())

    def predict(self, positions: Positions | None = None) -> Any:
        """Return class probabilities (q, C); with a task, its `Prediction` (`labelahead.tasks`).

        Those of the exact learner are calibrated and use all labels. A network's are those of its
        last training; for items in the current kernel, labels since then are included by
        look-ahead.
        """
        at = (
            torch.arange(len(self.inputs))
            if positions is None
            else checks.check_positions(positions, "positions", len(self.inputs), distinct=False)
        )
        # All inputs are read in blocks; a selection of them is a copy.
        some = self.inputs if positions is None else self.inputs[at]
        if self._own_task is not None:
            return predict_answers(self._current_network(), some)
        p = self._predict_classes(at, some)
        return p if self.task is None else ClassPrediction(self.task.outputs, p)

    def _predict_classes(self, at: Tensor, some: Tensor | Samples) -> Tensor:
        """Return class probabilities (q, C) of items, given their inputs as well."""
        p = predict_proba(self._current_network(), some, self.loss)
        if not self._needs_training or not self._labels_since_training:
            return p
        if self._pool_posterior is None and self._strategy.look_ahead and len(self.pool.unlabelled):
            self._pool_posterior = self._build_posterior(
                1
            )  # labels since the last training, as after `load`
        if self._pool_posterior is not None:
            inside = [
                i for i, position in enumerate(at.tolist()) if position in self._pool_posterior
            ]
            if inside:  # f_lin is on the scale of one-hot targets, whatever the loss.
                p[inside] = outputs_to_probabilities(
                    self._pool_posterior.mean(at[inside].tolist()), "squared"
                )
        return p

    def leave_one_out(self) -> Tensor:
        """Predict every label from the others by the exact learner: outputs (L, C).

        >>> learner = la.Learner(la.exact(x, 3), x)
        >>> learner.teach([0, 1, 2], truth[:3])
        >>> learner.leave_one_out().shape
        torch.Size([3, 3])
        """
        learner = self._require_exact("leave-one-out predictions")
        return learner.leave_one_out_predictions(self.pool.labelled, self.pool.labels)[0]

    def forecast(self) -> ErrorForecast:
        """Estimate the error over the pool, and by how much further labels reduce it.

        The unit is that of the task: share of wrong predictions, Hamming loss, root mean square
        error, mean absolute error (`Task.error_measure`). For the exact learner.

        >>> learner = la.Learner(la.exact(x, 3), x)
        >>> learner.teach([0, 1, 2, 3], truth[:4])
        >>> 0 <= learner.forecast().error.rate <= 1
        True
        """
        learner = self._require_exact("forecasts")
        at = self.pool.unlabelled
        order = torch.randperm(len(at), generator=make_generator(self.seed, "forecast"))
        return learner.forecast_error(self.pool.labelled, self.pool.labels, at[order])

    def class_quality(self) -> ClassReport:
        """Estimate precision, recall and F1 of every class, and the confusion matrix, over the pool.

        The estimates refer to the unlabelled items. For the exact learner and one class per item;
        for the quality that holds whatever the model, audit it (docs/audit.md).

        >>> learner = la.Learner(la.exact(x, 3), x)
        >>> learner.teach([0, 1, 2, 3], truth[:4])
        >>> report = learner.class_quality()
        >>> [row.labels for row in report.classes], 0 < report.macro_f1 < 1
        ([2, 1, 1], True)
        """
        learner = self._require_exact("estimates for every class")
        return learner.estimate_class_report(
            self.pool.labelled, self.pool.labels, self.pool.unlabelled
        )

    def _require_exact(self, what: str) -> ExactLearner:
        """Return the exact learner with all labels so far."""
        learner = self._weigh_sources(self._make_learner(self.model))
        if not isinstance(learner, ExactLearner):
            raise InputError(f"{what} need the exact learner: la.exact(inputs, classes)")
        if not len(self.pool):
            raise InputError("there is no label yet; expected some: teach first")
        return learner

    def train(self) -> None:
        """Train on all labels so far."""
        if len(self.pool) == 0:
            raise InputError("there is no label yet; expected some: teach first")
        if isinstance(self.training, Training):
            self._fit_network(self.model, self.training)
        else:
            some = self.inputs[self.pool.labelled]
            self.training(
                self.model,
                some.read() if isinstance(some, Samples) and some.is_in_memory else some,
                self.pool.labels,
            )
        self.model.eval()
        self._labels_since_training = 0
        self._pool_posterior = None
        self._trained = True

    def _fit_network(self, into: nn.Module, training: Training) -> None:
        """Train a network like ours on all labels so far."""
        seed = derive_training_seed(self.seed, len(self.pool), "t")
        learner = self._weigh_sources(self._make_learner(into, training))
        fitted_model = learner.fit(
            self.pool.labelled, self.pool.labels, seed=seed, previous=into.state_dict(), into=into
        )
        self._objective = fitted_model.objective
        for note in fitted_model.trained.notes if fitted_model.trained else ():
            log.warning("%s", note)

    def _make_learner(self, model: nn.Module, training: Training | None = None) -> ModelLearner:
        """Return the learner of models like ours."""
        return wrap_fitted_model(model, self.inputs).make_learner(
            self.classes,
            lambda _: copy.deepcopy(self._initial),
            training or self._training_recipe(),
            self._strategy.objective,
        )

    def _current_network(self) -> nn.Module:
        """Return the network; for the exact learner, one fitted to all labels, which takes
        milliseconds.
        """
        if (
            self._needs_training
            or not self._labels_since_training
            or not isinstance(self.training, Training)
        ):
            return self.model
        model = copy.deepcopy(self.model)
        self._fit_network(model, self.training)
        return model.eval()

    def save(self, path: str | Path) -> None:
        """Write everything in one step, except the inputs and your own training function or strategy."""
        own = (
            self.query_config.strategy
        )  # by its full name; one given in Python must be given again
        query_config = changed(
            self.query_config,
            strategy=resolve_code_name(own)
            if isinstance(own, str)
            else PYTHON_OBJECT_PREFIX + own.name,
        )
        state = {
            "version": 1,
            "model": self.model.state_dict(),
            "initial": self._initial.state_dict(),
            "labelled": self.pool.labelled,
            "labels": self.pool.labels,
            "fresh": self._labels_since_training,
            "trained": self._trained,
            "memory": self._memory,
            "objective": None if self._objective is None else self._objective.state_dict(),
            **{name: getattr(self, name) for name in SAVED_ARGUMENTS},
            "asking": asdict(query_config),
            "training": asdict(self.training) if isinstance(self.training, Training) else None,
            "items": len(self.inputs),
            "task": None if self.task is None else self.task.describe(),
            "annotations": [(p, s, c) for (p, s), c in self._annotations.items()],
        }
        replace_file(Path(path), lambda file: torch.save(state, file))
        record_code(find_code_names(state).values())

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        inputs: Inputs | NDArray[Any],
        *,
        training: FitFunction | None = None,
        strategy: Strategy | None = None,
        guesses: Any = None,
        trust_code: bool = False,
    ) -> "Learner":
        """Load a saved learner into a model of the same architecture.

        Args:
            path: The file.
            model: A network of the same architecture.
            inputs: The same inputs as before.
            training: The training function, if it was given in Python.
            strategy: The strategy, if it was given in Python.
            guesses: The same guesses as before, if there were some; they are not in the file.
            trust_code: Run a strategy of your own that the file names, even if this account has
                never used it.
        """
        state = _read_state(path)
        inputs = as_inputs(inputs)
        if state["items"] != count_samples(inputs):
            raise InputError(
                f"{path} was saved with {state['items']} inputs, not {count_samples(inputs)}"
            )
        if state["training"] is None and training is None:
            raise InputError(
                f"{path} was saved with a training function; expected it as `training`"
            )
        if strategy is None:
            require_trusted_code(find_code_names(state), Path(path), (), trust_code)
        query_config = QueryConfig(**state["asking"])
        if str(query_config.strategy).startswith(PYTHON_OBJECT_PREFIX) and strategy is None:
            name = str(query_config.strategy).removeprefix(PYTHON_OBJECT_PREFIX)
            raise InputError(
                f"{path} was saved with the strategy {name}; expected it as `strategy`"
            )
        if guesses is not None:
            model = attach_pool_guesses(model, guesses, len(inputs))
        task = _restore_task(path, state.get("task"), model)
        known = wrap_fitted_model(model, inputs).guessers
        if len(state["initial"].get("trust", ())) != known:
            raise InputError(
                f"{path} was saved with {len(state['initial'].get('trust', ()))} guessers, but the "
                f"model has {known}; expected the same as before, by guesses=..."
            )
        try:
            model.load_state_dict(state["initial"])
        except RuntimeError as error:
            cause = str(error).strip().splitlines()[-1].strip()
            raise InputError(f"{path} was saved with another architecture ({cause})") from error
        learner = cls(
            model,
            inputs,
            query_config if strategy is None else changed(query_config, strategy=strategy),
            training=training or Training(**state["training"]),
            task=task,
            **{name: state[name] for name in SAVED_ARGUMENTS},
        )
        model.load_state_dict(state["model"])
        model.eval()
        if len(state["labelled"]):
            learner.pool.label(state["labelled"], state["labels"])
        # Files of earlier versions have labels without sources.
        unnamed = [
            (p, "", c)
            for p, c in zip(*map(Tensor.tolist, (state["labelled"], state["labels"])), strict=True)
        ]
        learner._annotations = {
            (p, source): c for p, source, c in state.get("annotations", unnamed)
        }
        learner._labels_since_training = state["fresh"]
        learner._trained = state["trained"]
        learner._memory = state["memory"]
        if state["objective"] is not None:
            learner._objective = learner._new_objective()
            assert learner._objective is not None  # the strategy is the one that it was saved with
            learner._objective.load_state_dict(state["objective"])
        return learner

    def _new_objective(self) -> AuxiliaryObjective | None:
        """Make the auxiliary objective of the strategy, before any training."""
        make = self._strategy.objective
        if make is None or not self._needs_training:
            return None
        return make(
            self.model, self.inputs[:2], derive_training_seed(self.seed, len(self.pool), "t")
        ).eval()

    def _make_network(self, seed: int) -> nn.Module:
        """Make a network with the same architecture and new weights, for strategies that train networks."""
        model = copy.deepcopy(self._initial)
        with temporary_seed(seed):
            for module in model.modules():
                reset: Any = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
        return model

    def _training_recipe(self) -> Training:
        return self.training if isinstance(self.training, Training) else Training(loss=self.loss)  # type: ignore[arg-type]

    def _build_posterior(self, n: int) -> PoolPosterior:
        """Compute the posterior at the labelled items and at new candidates, at least n."""
        self.model.eval()
        query_config = self._strategy.with_default_noise(self.query_config)
        context = QueryContext.from_pool(
            self.model, self.inputs, self.pool, query_config, n, loss=self.loss, seed=self.seed
        )
        # With labels that the network was not trained on the two are expected to differ.
        self.drift = context.drift if self._trained and not self._labels_since_training else None
        if note := drift_warning(self.drift):
            log.warning("%s", note)
        return context.pool_posterior


def _find_model_task(model: nn.Module, task: Task | None) -> Task | None:
    """Return the task of a model, which is given with the model or beside it."""
    if task is not None and not isinstance(task, Task):
        raise InputError(
            f"task is {task!r}; expected one such as labelahead.tasks.Multilabel(['cat', 'dog'])"
        )
    own = model.task if isinstance(model, ExactModel) else None
    if own is None:
        if task is not None and task.name != "classes":
            raise InputError(
                f"the model does not know the task {task.name}; expected the exact learner: "
                "la.exact(inputs, task=task)"
            )
        return task
    if task is not None and task is not own:
        raise InputError(
            f"the model has the task {own.name}, and another one is given; expected it only once"
        )
    return own


def _restore_task(path: str | Path, saved: dict[str, Any] | None, model: nn.Module) -> Task | None:
    """Return the task of a saved learner, and hand it to the model."""
    own = model.task if isinstance(model, ExactModel) else None
    task = None if saved is None else find_task(**saved)
    names = ["classes" if t is None else t.name for t in (task, own)]
    if names[0] != names[1]:
        raise InputError(
            f"{path} was saved with the task {names[0]}, but the model has the task {names[1]}; "
            "expected la.exact(inputs, task=...) as before"
        )
    if task is not None and own is not None and isinstance(model, ExactModel):
        if task.outputs != own.outputs:
            raise InputError(
                f"{path} was saved with the outputs {', '.join(task.outputs)}, but the model has "
                f"{', '.join(own.outputs)}; expected the same"
            )
        model.task = task
    return task


def _read_state(path: str | Path) -> dict[str, Any]:
    """Read the file of a saved learner; only tensors and plain values are unpickled."""
    try:
        state = torch.load(Path(path), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; expected a file of Learner.save") from None
    except Exception as error:
        raise InputError(f"{path} cannot be read as a saved Learner ({error})") from error
    known = isinstance(state, dict) and state.get("version") == 1
    if not known or not {"memory", "objective"} <= state.keys():
        raise InputError(f"{path} is no saved Learner of this version")
    return dict(state)
