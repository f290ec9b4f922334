"""A scikit-learn estimator: fit, predict, predict_proba and query.

from labelahead.learner.sklearn import Classifier

classifier = Classifier().fit(X, y)      # kernel regression: exact, nothing is trained
classifier.predict_proba(X_new)
classifier.query(X_pool, 10)             # rows to label next, best first
classifier.partial_fit(X_more, y_more)   # add labels
Classifier().fit(X, Y)                   # Y (n, C) of 0 and 1: several classes at once

Regressor().fit(X, y).predict(X_new, return_std=True)  # numbers
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from labelahead.data.dataset import Guesses
from labelahead.data.guesses import parse_guesses, stack_deviations
from labelahead.data.pool import Pool
from labelahead.errors import InputError, import_extra
from labelahead.inference.exact import ExactLearner, predict_proba
from labelahead.inference.exact_model import ExactModel, exact
from labelahead.inference.network import NetworkLearner
from labelahead.inference.sources import Annotations, SourceAccuracy
from labelahead.learner.sklearn_regressor import Regressor, draw_seed, fit_answers, query_answers
from labelahead.models.training import Training
from labelahead.models.training.objective import MakeObjective
from labelahead.strategies import find_strategy
from labelahead.strategies.base import QueryConfig, Strategy
from labelahead.strategies.query import propose
from labelahead.tasks import Multilabel, MultilabelPrediction

import_extra("sklearn", "app", "the scikit-learn estimator")
from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: E402 (after the message that explains how to install it)
from sklearn.utils.multiclass import check_classification_targets, type_of_target  # noqa: E402
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data  # noqa: E402

__all__ = ["Classifier", "Regressor"]

log = logging.getLogger("labelahead")

Array = np.ndarray[Any, Any]


class _SourceLabels(NamedTuple):
    """The labels (n,) of L items by several sources."""

    first_rows: Tensor  # (L,) the first row of each item
    item: Tensor  # (n,) its number, 0..L-1
    labels: Array  # (n,)
    sources: tuple[str, ...]  # (n,)

    def list_rows(self, names: Array) -> list[tuple[int, int, str]]:
        """Return (item, class number, source)."""
        codes = np.searchsorted(names, self.labels).tolist()
        return list(zip(self.item.tolist(), codes, self.sources, strict=True))

    def vote(self, names: Array) -> Array:
        """Return the label (L,) that most sources give each item."""
        found = Annotations.vote(self.list_rows(names))
        chosen: Array = names[[found[i] for i in range(len(self.first_rows))]]
        return chosen


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn classifier that also queries labels.

    Args:
        module: An untrained nn.Module with one output per class, of which `fit` trains a copy.
            None: the exact learner, for features or rows of a table.
        strategy: How `query` selects: a name, a `Strategy` or a `QueryConfig`. None: resolve, or
            flip with a module.
        training: How the module is trained.
        random_state: An integer makes the results reproducible.

    Attributes of a fitted classifier: `classes_`, `model_`, and `source_accuracy_`, the estimated
    accuracy of each source of labels by name (empty unless `fit` was given two sources).

    >>> from sklearn.datasets import load_iris
    >>> from labelahead.learner.sklearn import Classifier
    >>> X, y = load_iris(return_X_y=True)
    >>> first = Classifier().query(X, 9)  # no label yet: rows that cover the data
    >>> classifier = Classifier().fit(X[first], y[first])
    >>> classifier.score(X, y) > 0.5, classifier.query(X, 3).shape
    (True, (3,))
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        *,
        strategy: QueryConfig | Strategy | str | None = None,
        training: Training | None = None,
        random_state: Any = 0,
    ) -> None:
        self.module = module
        self.strategy = strategy
        self.training = training
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        X_pool: Any = None,
        classes: Sequence[Any] | None = None,
        guesses: Any = None,
        pool_guesses: Any = None,
        sources: Sequence[str | None] | None = None,
        items: Sequence[Any] | None = None,
    ) -> "Classifier":
        """Fit labelled rows; earlier labels are forgotten.

        Args:
            X: (n, ...) rows.
            y: (n,) their labels, of any type; or (n, C) of 0 and 1, several classes at once: then
                `predict` returns such rows, `predict_proba` a probability for each class, and
                `classes_` are the column numbers.
            X_pool: (m, ...) the unlabelled rows to be predicted. Without a module, features are
                centred over them and X, as `Learner` and the labelling page do over the pool; a few
                selected labels alone are a poor sample of it.
            classes: All labels that may occur, if some are not in y.
            guesses: What a language model, an old classifier or a heuristic says about X: (n,)
                labels, None or NaN where it says nothing; (n, C) probabilities in the order of the
                sorted classes, a row of zeros or NaN for none; or a dictionary of such arrays for
                several guessers. How much each counts is learnt from the labels.
            pool_guesses: The same about X_pool.
            sources: (n,) who gave each label, None where it is unknown. How often each source is
                right is estimated, in `source_accuracy_`, and its labels are weighed accordingly.
            items: (n,) which item each row is, if several sources labelled the same item: rows of
                one item are equal. Without it every row is an item of its own.
        """
        rows, labels = self._validate_labelled(X, y, reset=True)
        self._multilabel: Multilabel | None = None
        if labels.ndim == 2:
            self._require_plain(classes, guesses, pool_guesses, sources, items)
            self._pool = None if X_pool is None else self._validate_rows(X_pool)
            return self._fit_multilabel(rows, labels)
        answers = self._read_answers(rows, labels, sources, items)
        self._pool = None if X_pool is None else self._validate_rows(X_pool)
        names = np.unique(labels if classes is None else np.asarray(classes))
        self._require_guessable(guesses, pool_guesses)
        self._guesses: Tensor | None = None  # (n + m, G, C) g − 1/C
        self._guessers: tuple[str, ...] = ()
        if guesses is not None or pool_guesses is not None:
            given = [_name_guessers(g) for g in (guesses, pool_guesses)]
            self._guessers = tuple(dict.fromkeys(name for each in given for name in each))
            pooled = 0 if self._pool is None else len(self._pool)
            self._guesses = torch.cat(
                [
                    _encode_guesses(each, self._guessers, count, names)
                    for each, count in zip(given, (len(rows), pooled), strict=True)
                ]
            )
        if answers is None:
            return self._fit_rows(rows, labels, classes)
        first = answers.first_rows
        if self._guesses is not None:
            kept = torch.cat([first, torch.arange(len(rows), len(self._guesses))])
            self._guesses = self._guesses[kept]
        return self._fit_rows(rows[first], answers.vote(names), names.tolist(), answers)

    def partial_fit(
        self, X: Any, y: Any, classes: Sequence[Any] | None = None, guesses: Any = None
    ) -> "Classifier":
        """Fit these labels and all earlier ones.

        Args:
            X: (n, ...) rows.
            y: (n,) labels.
            classes: All labels that may occur, at the first call.
            guesses: About X, as `fit` takes them, by the same guessers.
        """
        known = getattr(self, "classes_", None)
        if known is None:
            return self.fit(X, y, classes=classes, guesses=guesses)
        if self._annotations is not None:
            raise InputError(
                "fit was given sources, to which partial_fit cannot add labels; expected fit with "
                "all labels and their sources"
            )
        rows, labels = self._validate_labelled(X, y, reset=False)
        if labels.ndim == 2 or self._multilabel is not None:
            self._require_plain(guesses)
            return self._add_multilabel(rows, labels)
        unknown = [label for label in np.unique(labels).tolist() if label not in known.tolist()]
        if unknown and not self._accepts_new_classes:
            raise InputError(
                f"label {unknown[0]!r} is not among the classes {known.tolist()}; expected one of "
                "them: name all at "
                "the first partial_fit, or call fit again"
            )
        self._add_guesses(guesses, len(rows), labels)
        rows = torch.cat([self._rows, rows.to(self._rows)])
        labels = np.concatenate([self.classes_[self._codes], labels])
        return self._fit_rows(rows, labels, None if self._accepts_new_classes else known)

    def predict_proba(self, X: Any, guesses: Any = None) -> Array:
        """Return probabilities (n, C), in the order of `classes_`.

        Args:
            X: (n, ...) rows.
            guesses: About X, as `fit` takes them, by the same guessers; None: without.
        """
        check_is_fitted(self)
        if self._multilabel is not None:
            self._require_plain(guesses)
            p: Array = self._predict_multilabel(X).probabilities.numpy()
            return p
        rows = self._append_guesses(self._validate_rows(X), guesses)
        answer: Array = predict_proba(
            self.model_, rows, self._recipe.loss, len(self.classes_)
        ).numpy()
        return answer

    def predict(self, X: Any, guesses: Any = None) -> Array:
        """Return the most probable labels (n,); guesses as in `predict_proba`.

        With several classes at once: (n, C) of 0 and 1. A class is predicted from the probability
        on that maximises its F1 in leave-one-out.
        """
        check_is_fitted(self)
        if self._multilabel is not None:
            self._require_plain(guesses)
            chosen: Array = self._predict_multilabel(X).chosen.numpy().astype(self._label_type)
            return chosen
        p = self.predict_proba(X, guesses)
        answer: Array = self.classes_[p.argmax(1)]
        return answer

    def query(self, X: Any, n: int = 1, guesses: Any = None) -> Array:
        """Return which n rows of an unlabelled pool to label next, best first.

        Without any label, rows that cover the pool. Guesses as in `predict_proba`.
        """
        fitted = hasattr(self, "classes_")
        rows = self._validate_rows(X, reset=not fitted)
        if fitted and self._multilabel is not None:
            self._require_plain(guesses)
            return query_answers(
                self._multilabel, self._rows, self._codes, rows, n, self.strategy, self._seed()
            )
        if guesses is not None and not fitted:
            raise InputError("guesses are given, but there are no labels yet; expected fit first")
        first = len(self._rows) if fitted else 0
        everything = torch.cat([self._rows, rows.to(self._rows)]) if fitted else rows
        pool = Pool(len(everything))
        if fitted:
            pool.label(range(first), self._codes.tolist())
        query_config = self._query_config
        if fitted and self._guesses is not None:
            about = self._encode_later(guesses, len(rows), self.classes_)
            deviations = torch.cat([self._guesses[:first], about])
            everything = torch.cat([everything, deviations.flatten(1).to(everything)], 1)
        learner = self._learner(everything, len(self.classes_) if fitted else 2)
        # The exact learner sees the pool for the first time here, and is centred on it.
        fitted_model = (
            learner.fit(pool.labelled, pool.labels, seed=self._seed())
            if self.module is None
            else None
        )
        model = (
            fitted_model.model
            if fitted_model
            else self.model_
            if fitted
            else learner.network(self._seed()).eval()
        )
        objective = self._objective if fitted else None
        if objective is None and self._make_objective is not None:
            objective = self._make_objective(model, everything[:2], self._seed())
        query = propose(
            model,
            everything,
            pool,
            n,
            query_config,
            loss=self._recipe.loss,
            seed=self._seed(),
            fresh=learner.network,
            training=self._recipe,
            objective=objective,
        )
        for note in query.notes:
            log.warning("%s", note)
        return (query.positions - first).numpy()

    @property
    def _query_config(self) -> QueryConfig | Strategy | str:
        return self.strategy or ("resolve" if self.module is None else "flip")

    @property
    def _make_objective(self) -> MakeObjective | None:
        """The auxiliary objective of the strategy."""
        query_config = self._query_config
        strategy = query_config.strategy if isinstance(query_config, QueryConfig) else query_config
        return None if self.module is None else find_strategy(strategy).objective

    @property
    def _recipe(self) -> Training:
        return self.training or Training()

    def _seed(self) -> int:
        return draw_seed(self.random_state)

    def _describe_sources(
        self, learner: ExactLearner | NetworkLearner
    ) -> dict[str, SourceAccuracy]:
        """Return how often each source is right, by the last fit; empty without two sources."""
        return dict(learner.source_accuracy())

    def _learner(self, rows: Tensor, classes: int) -> ExactLearner | NetworkLearner:
        if self.module is None:
            guessers = len(getattr(self, "_guessers", ()))
            model = exact(rows[:, : rows.shape[1] - guessers * classes], max(classes, 2))
            known = model.with_guessers(guessers, classes) if guessers else model
            # Positions of labelled rows are the same in every pool: they come first.
            return ExactLearner(rows, known, annotations=getattr(self, "_annotations", None))
        module = self.module
        make = lambda _: copy.deepcopy(module)  # noqa: E731
        return NetworkLearner(rows, classes, make, self._recipe, objective=self._make_objective)

    def _fit_rows(
        self,
        rows: Tensor,
        labels: Array,
        classes: Sequence[Any] | None,
        answers: _SourceLabels | None = None,
    ) -> "Classifier":
        seen = np.unique(labels)
        names = seen if classes is None else np.unique(np.asarray(classes))
        if not set(seen.tolist()) <= set(names.tolist()):
            raise InputError(
                f"labels are {seen.tolist()}, classes {names.tolist()}; expected labels among the "
                "classes"
            )
        codes = torch.from_numpy(np.searchsorted(names, labels)).long()
        everything = rows if self._pool is None else torch.cat([rows, self._pool.to(rows)])
        if self._guesses is not None:
            everything = torch.cat([everything, self._guesses.flatten(1).to(rows)], 1)
        self._annotations = (
            None if answers is None else Annotations.from_rows(answers.list_rows(names))
        )
        learner = self._learner(everything, len(names))
        fitted_model = learner.fit(torch.arange(len(rows)), codes, seed=self._seed())
        self.source_accuracy_ = self._describe_sources(learner)
        self.model_ = fitted_model.model
        self.classes_ = names
        self._accepts_new_classes = classes is None
        self._rows = rows
        self._codes = codes
        self._objective = fitted_model.objective
        return self

    def _require_plain(self, *given: Any) -> None:
        """Raise if labels of several classes at once come with what is for single classes."""
        if self.module is not None:
            raise InputError(
                "y has several classes at once, which the exact learner predicts, but there is a "
                "module; expected Classifier() without one"
            )
        if any(value is not None for value in given):
            raise InputError(
                "y has several classes at once; expected no classes, guesses, sources or items: "
                "they work for one class per item"
            )

    def _fit_multilabel(self, rows: Tensor, labels: Array) -> "Classifier":
        strategy = self.strategy
        name = strategy.strategy if isinstance(strategy, QueryConfig) else strategy
        task = Multilabel([str(c) for c in range(labels.shape[1])])
        if name is not None:
            find_strategy(name).check_task(task)
        self._codes = torch.tensor(task.parse_all(labels))
        self.model_ = fit_answers(task, rows, self._codes, self._pool).kernel_model
        self._label_type = labels.dtype
        self._multilabel = task
        self.classes_ = np.arange(labels.shape[1])
        self.source_accuracy_ = {}
        self._annotations = None
        self._rows = rows
        self._indicators = labels
        return self

    def _add_multilabel(self, rows: Tensor, labels: Array) -> "Classifier":
        known = self._indicators.shape[1] if self._multilabel is not None else 0
        if labels.ndim != 2 or labels.shape[1] != known:
            raise InputError(
                f"y has shape {labels.shape}, but earlier labels "
                + (f"had {known} columns" if known else "were single classes")
                + "; expected labels of the same kind"
            )
        rows = torch.cat([self._rows, rows.to(self._rows)])
        return self._fit_multilabel(rows, np.concatenate([self._indicators, labels]))

    def _predict_multilabel(self, X: Any) -> MultilabelPrediction:
        assert isinstance(self.model_, ExactModel)
        prediction = self.model_.predict_answers(self._validate_rows(X))
        assert isinstance(prediction, MultilabelPrediction)
        return prediction

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: the exact learner takes several classes at once."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self.module is None
        return tags

    def _read_answers(
        self,
        rows: Tensor,
        labels: Array,
        sources: Sequence[str | None] | None,
        items: Sequence[Any] | None,
    ) -> _SourceLabels | None:
        """Return the labels by source and item; None without sources."""
        if sources is None:
            if items is not None:
                raise InputError("items are given without sources; expected who gave each label")
            return None
        if self.module is not None:
            raise InputError(
                "sources are weighed by the exact learner, but there is a module; expected "
                "Classifier() without one, or no sources"
            )
        given = [None if s is None or s != s else s for s in np.asarray(sources, object).tolist()]
        numbers = list(range(len(rows))) if items is None else np.asarray(items).tolist()
        for what, values in (("sources", given), ("items", numbers)):
            if len(values) != len(rows):
                raise InputError(f"{len(values)} {what} for {len(rows)} labels; expected one each")
        odd = next((s for s in given if s is not None and (not isinstance(s, str) or not s)), None)
        if odd is not None:
            raise InputError(f"a source is {odd!r}; expected a name such as 'anna', or None")
        number = {name: i for i, name in enumerate(dict.fromkeys(numbers))}
        item = torch.tensor([number[name] for name in numbers], dtype=torch.int64)
        first: dict[int, int] = {}
        for row, i in enumerate(item.tolist()):
            first.setdefault(i, row)
        first_rows = torch.tensor(list(first.values()), dtype=torch.int64)
        different = (rows != rows[first_rows[item]]).flatten(1).any(1).nonzero()[:, 0]
        if len(different):
            row = int(different[0])
            raise InputError(
                f"rows {int(first_rows[item[row]])} and {row} of X are both item {numbers[row]!r}, "
                "but differ; expected equal rows for one item"
            )
        return _SourceLabels(first_rows, item, labels, tuple(s or "" for s in given))

    def _require_guessable(self, *guesses: Any) -> None:
        """Raise if guesses are given to a module."""
        if self.module is not None and any(g is not None for g in guesses):
            raise InputError(
                "guesses are prior knowledge of the exact learner, but there is a module; expected "
                "Classifier() without one, or no guesses"
            )

    def _encode_later(self, guesses: Any, n: int, names: Array) -> Tensor:
        """Return the deviations (n, G, C) of guesses about other rows, by the guessers of `fit`."""
        self._require_guessable(guesses)
        given = _name_guessers(guesses)
        other = next((name for name in given if name not in self._guessers), None)
        if other is not None:
            raise InputError(
                f"guesses are those of {other!r}, but fit was given "
                f"{', '.join(map(repr, self._guessers)) or 'none'}; expected the same guessers"
            )
        return _encode_guesses(given, self._guessers, n, names)

    def _append_guesses(self, rows: Tensor, guesses: Any) -> Tensor:
        if guesses is None:
            return rows
        about = self._encode_later(guesses, len(rows), self.classes_)
        return torch.cat([rows, about.flatten(1).to(rows)], 1)

    def _add_guesses(self, guesses: Any, n: int, labels: Array) -> None:
        """Insert guesses about n more labelled rows, in the columns of all classes so far."""
        if self._guesses is None:
            self._encode_later(guesses, n, self.classes_)
            return
        known = self.classes_
        names = np.union1d(known, labels) if self._accepts_new_classes else known
        first = len(self._rows)
        spread = self._guesses.new_zeros(*self._guesses.shape[:2], len(names))
        spread[:, :, torch.from_numpy(np.searchsorted(names, known))] = self._guesses
        about = self._encode_later(guesses, n, names)
        self._guesses = torch.cat([spread[:first], about, spread[first:]])

    def _validate_labelled(self, X: Any, y: Any, *, reset: bool) -> tuple[Tensor, Array]:
        X, y = validate_data(
            self, X, y, reset=reset, multi_output=True, **self._validation_options()
        )
        check_classification_targets(y)
        if type_of_target(y) == "multilabel-indicator":
            return self._to_tensor(X), y.toarray() if hasattr(y, "toarray") else y
        return self._to_tensor(X), column_or_1d(y, warn=True)

    def _validate_rows(self, X: Any, *, reset: bool = False) -> Tensor:
        return self._to_tensor(validate_data(self, X, reset=reset, **self._validation_options()))

    def _validation_options(self) -> dict[str, Any]:
        """Return what scikit-learn checks.

        Numbers without NaN and the same number of columns as before; any shape for modules.
        """
        if self.module is None:
            return {"dtype": (np.float64, np.float32)}
        return {"dtype": None, "allow_nd": True}

    def _to_tensor(self, X: Array) -> Tensor:
        rows = torch.tensor(X)  # a copy: rows are kept
        like = None if self.module is None else next(self.module.parameters(), None)
        return rows if like is None or not rows.is_floating_point() else rows.to(like.dtype)


def _name_guessers(guesses: Any) -> dict[str, Any]:
    """Return guesses by the name of their guesser; one guesser is called "guesses"."""
    if guesses is None:
        return {}
    return dict(guesses) if isinstance(guesses, Mapping) else {"guesses": guesses}


def _encode_guesses(
    given: Mapping[str, Any], guessers: Sequence[str], n: int, names: Array
) -> Tensor:
    """Return g − 1/C (n, G, C) of these guessers; 0 where one says nothing."""
    numbers = [str(i) for i in range(len(names))]
    made = []
    for name in guessers:
        values = given.get(name)
        p = torch.zeros(n, len(names))
        if values is not None:
            p = parse_guesses(_to_codes(values, names, name), n, numbers, f"guesses {name!r}")
        made.append(stack_deviations([Guesses(tuple(numbers), p)], numbers))
    return torch.stack(made, 1) if made else torch.zeros(n, 0, len(names))


def _to_codes(values: Any, names: Array, guesser: str) -> Any:
    """Return labels as class numbers, -1 where there is none; probabilities as they are."""
    array = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1:
        return array
    number = {name: i for i, name in enumerate(names.tolist())}
    listed = array.tolist()
    missing = [v is None or v != v for v in listed]
    unknown = [v for v, gone in zip(listed, missing, strict=True) if not gone and v not in number]
    if unknown:
        raise InputError(
            f"guesses {guesser!r} name the class {unknown[0]!r}, but the classes are "
            f"{names.tolist()[:20]}; expected one of them or None: give all classes as "
            "fit(..., classes=[...])"
        )
    return np.array([-1 if gone else number[v] for v, gone in zip(listed, missing, strict=True)])
