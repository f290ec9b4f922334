"""A scikit-learn estimator: fit, predict, predict_proba and query.

from labelahead.learner.sklearn import Classifier

classifier = Classifier().fit(X, y)      # kernel regression: exact, nothing is trained
classifier.predict_proba(X_new)
classifier.query(X_pool, 10)             # rows to label next, best first
classifier.partial_fit(X_more, y_more)   # add labels
"""

import copy
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelahead.data.pool import Pool
from labelahead.errors import InputError, import_extra
from labelahead.inference.exact import ExactLearner, exact, predict_proba
from labelahead.inference.network import NetworkLearner
from labelahead.models.training import Training
from labelahead.models.training.objective import MakeObjective
from labelahead.strategies import find_strategy
from labelahead.strategies.base import QueryConfig, Strategy
from labelahead.strategies.query import propose

import_extra("sklearn", "app", "the scikit-learn estimator")
from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: E402 (after the message that explains how to install it)
from sklearn.utils import check_random_state  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

__all__ = ["Classifier"]

log = logging.getLogger("labelahead")

Array = np.ndarray[Any, Any]


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn classifier that also queries labels.

    Args:
        module: An untrained nn.Module with one output per class, of which `fit` trains a copy.
            None: the exact learner, for features or rows of a table.
        strategy: How `query` selects: a name, a `Strategy` or a `QueryConfig`. None: resolve, or
            flip with a module.
        training: How the module is trained.
        random_state: An integer makes the results reproducible.

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

    def fit(self, X: Any, y: Any, *, X_pool: Any = None) -> "Classifier":
        """Fit labelled rows; earlier labels are forgotten.

        Args:
            X: (n, ...) rows.
            y: (n,) their labels, of any type.
            X_pool: (m, ...) the unlabelled rows to be predicted. Without a module, features are
                centred over them and X, as `Learner` and the labelling page do over the pool; a few
                selected labels alone are a poor sample of it.
        """
        rows, labels = self._validate_labelled(X, y, reset=True)
        self._pool = None if X_pool is None else self._validate_rows(X_pool)
        return self._fit_rows(rows, labels, None)

    def partial_fit(self, X: Any, y: Any, classes: Sequence[Any] | None = None) -> "Classifier":
        """Fit these labels and all earlier ones.

        Args:
            X: (n, ...) rows.
            y: (n,) labels.
            classes: All labels that may occur, at the first call.
        """
        known = getattr(self, "classes_", None)
        rows, labels = self._validate_labelled(X, y, reset=known is None)
        if known is None:
            self._pool = None
            return self._fit_rows(rows, labels, classes)
        unknown = [label for label in np.unique(labels).tolist() if label not in known.tolist()]
        if unknown and not self._accepts_new_classes:
            raise InputError(
                f"label {unknown[0]!r} is not among the classes {known.tolist()}; expected one of "
                "them: name all at "
                "the first partial_fit, or call fit again"
            )
        rows = torch.cat([self._rows, rows.to(self._rows)])
        labels = np.concatenate([self.classes_[self._codes], labels])
        return self._fit_rows(rows, labels, None if self._accepts_new_classes else known)

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities (n, C), in the order of `classes_`."""
        check_is_fitted(self)
        answer: Array = predict_proba(
            self.model_, self._validate_rows(X), self._recipe.loss, len(self.classes_)
        ).numpy()
        return answer

    def predict(self, X: Any) -> Array:
        """Return the most probable labels (n,)."""
        p = self.predict_proba(X)
        answer: Array = self.classes_[p.argmax(1)]
        return answer

    def query(self, X: Any, n: int = 1) -> Array:
        """Return which n rows of an unlabelled pool to label next, best first.

        Without any label, rows that cover the pool.
        """
        fitted = hasattr(self, "classes_")
        rows = self._validate_rows(X, reset=not fitted)
        first = len(self._rows) if fitted else 0
        everything = torch.cat([self._rows, rows.to(self._rows)]) if fitted else rows
        pool = Pool(len(everything))
        if fitted:
            pool.label(range(first), self._codes.tolist())
        query_config = self._query_config
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
        state = self.random_state
        if isinstance(state, int | np.integer) and state >= 0:
            return int(state)
        return int(check_random_state(state).randint(2**31 - 1))

    def _learner(self, rows: Tensor, classes: int) -> ExactLearner | NetworkLearner:
        if self.module is None:
            return ExactLearner(rows, exact(rows, max(classes, 2)))
        module = self.module
        make = lambda _: copy.deepcopy(module)  # noqa: E731
        return NetworkLearner(rows, classes, make, self._recipe, objective=self._make_objective)

    def _fit_rows(self, rows: Tensor, labels: Array, classes: Sequence[Any] | None) -> "Classifier":
        seen = np.unique(labels)
        names = seen if classes is None else np.unique(np.asarray(classes))
        if not set(seen.tolist()) <= set(names.tolist()):
            raise InputError(
                f"labels are {seen.tolist()}, classes {names.tolist()}; expected labels among the "
                "classes"
            )
        codes = torch.from_numpy(np.searchsorted(names, labels)).long()
        everything = rows if self._pool is None else torch.cat([rows, self._pool.to(rows)])
        fitted_model = self._learner(everything, len(names)).fit(
            torch.arange(len(rows)), codes, seed=self._seed()
        )
        self.model_ = fitted_model.model
        self.classes_ = names
        self._accepts_new_classes = classes is None
        self._rows = rows
        self._codes = codes
        self._objective = fitted_model.objective
        return self

    def _validate_labelled(self, X: Any, y: Any, *, reset: bool) -> tuple[Tensor, Array]:
        X, y = validate_data(self, X, y, reset=reset, **self._validation_options())
        check_classification_targets(y)
        return self._to_tensor(X), y

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
