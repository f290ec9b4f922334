"""A scikit-learn regressor: numbers with intervals; import it from `labelahead.learner.sklearn`."""

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data.pool import Pool
from labelahead.errors import InputError, import_extra
from labelahead.inference.exact import ExactLearner, FittedExactModel
from labelahead.inference.exact_model import exact
from labelahead.strategies import find_strategy
from labelahead.strategies.base import QueryConfig, Strategy
from labelahead.strategies.query import propose
from labelahead.tasks import Number, NumberPrediction, Task

import_extra("sklearn", "app", "the scikit-learn estimator")
from sklearn.base import BaseEstimator, RegressorMixin  # noqa: E402 (after the message that explains how to install it)
from sklearn.utils import check_random_state  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

__all__ = ["Regressor", "draw_seed", "fit_answers", "query_answers"]

log = logging.getLogger("labelahead")

Array = np.ndarray[Any, Any]


def draw_seed(random_state: Any) -> int:
    """Return the seed of a scikit-learn random_state."""
    if isinstance(random_state, int | np.integer) and random_state >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def fit_answers(task: Task, rows: Tensor, codes: Tensor, pool: Tensor | None) -> FittedExactModel:
    """Fit the exact learner to rows (n, ...) with answers (n,), centred over these and a pool."""
    everything = rows if pool is None else torch.cat([rows, pool.to(rows)])
    learner = ExactLearner(everything, exact(everything, task=task))
    return learner.fit(torch.arange(len(rows)), codes)


def query_answers(
    task: Task,
    labelled: Tensor | None,
    codes: Tensor,
    rows: Tensor,
    n: int,
    strategy: QueryConfig | Strategy | str | None,
    seed: int,
) -> Array:
    """Return which n rows (m, ...) of an unlabelled pool to label next, best first.

    Args:
        task: What an answer is.
        labelled: (l, ...) labelled rows; None before the first label.
        codes: (l,) their answers.
        rows: (m, ...) the pool.
        n: Number of rows.
        strategy: None: the first acquisition function of the task.
        seed: Of random choices.
    """
    everything = rows if labelled is None else torch.cat([labelled, rows.to(labelled)])
    pool = Pool(len(everything))
    if labelled is not None:
        pool.label(range(len(labelled)), codes)
    model = exact(everything, task=task)
    if len(pool):
        ExactLearner(everything, model).fit(pool.labelled, pool.labels, into=model)
    chosen = strategy or next(iter(task.acquisitions))
    query = propose(model.eval(), everything, pool, n, chosen, seed=seed)
    for note in query.notes:
        log.warning("%s", note)
    return (query.positions - len(pool)).numpy()


class Regressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn regressor: kernel regression, exact, nothing is trained.

    Args:
        strategy: How `query` selects: a name, a `Strategy` or a `QueryConfig`. None: variance.
        random_state: An integer makes the results reproducible.

    Attributes of a fitted regressor: `model_` and `task_`.

    >>> from sklearn.datasets import load_diabetes
    >>> from labelahead.learner.sklearn import Regressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> first = Regressor().query(X, 40)  # no label yet: rows that cover the data
    >>> regressor = Regressor().fit(X[first], y[first], X_pool=X)
    >>> mean, deviation = regressor.predict(X[:5], return_std=True)
    >>> low, high = regressor.predict_interval(X[:5], level=0.9)
    >>> mean.shape, regressor.query(X, 3).shape, regressor.score(X, y) > 0.3
    ((5,), (3,), True)
    """

    def __init__(
        self, *, strategy: QueryConfig | Strategy | str | None = None, random_state: Any = 0
    ) -> None:
        self.strategy = strategy
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, X_pool: Any = None) -> "Regressor":
        """Fit labelled rows; earlier labels are forgotten.

        Args:
            X: (n, d) rows.
            y: (n,) numbers, or (n, D) of several targets.
            X_pool: (m, d) the unlabelled rows to be predicted. Features are centred over them and
                X, as `Learner` does over the pool.
        """
        rows, targets = self._validate(X, y, reset=True)
        self._check_strategy()
        self._pool = None if X_pool is None else self._validate_rows(X_pool)
        self._is_flat = targets.ndim == 1
        return self._fit_rows(rows, targets)

    def partial_fit(self, X: Any, y: Any) -> "Regressor":
        """Fit these labels and all earlier ones.

        Args:
            X: (n, d) rows.
            y: (n,) or (n, D) numbers.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y)
        rows, targets = self._validate(X, y, reset=False)
        known = self._targets
        if targets.shape[1:] != known.shape[1:]:
            raise InputError(
                f"y has shape {targets.shape}, but earlier ones had {known.shape}; expected the "
                "same number of targets"
            )
        rows = torch.cat([self._rows, rows.to(self._rows)])
        return self._fit_rows(rows, np.concatenate([known, targets]))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return means (n,) or (n, D), and their standard deviations if `return_std`.

        The deviation is that of a new answer, its noise included.
        """
        prediction = self._predict(X)
        mean = self._shape(prediction.mean)
        return (mean, self._shape(prediction.deviation)) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Array, Array]:
        """Return the ends, (n,) or (n, D) each, of intervals that hold answers with this probability."""
        low, high = self._predict(X).interval(level)
        return self._shape(low), self._shape(high)

    def query(self, X: Any, n: int = 1) -> Array:
        """Return which n rows of an unlabelled pool to label next, best first.

        Without any label, rows that cover the pool.
        """
        self._check_strategy()
        fitted = hasattr(self, "model_")
        rows = self._validate_rows(X, reset=not fitted)
        task = self.task_ if fitted else Number()
        labelled = self._rows if fitted else None
        codes = self._codes if fitted else torch.zeros(0, dtype=torch.int64)
        return query_answers(
            task, labelled, codes, rows, n, self.strategy, draw_seed(self.random_state)
        )

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: several targets are allowed."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _check_strategy(self) -> None:
        given = self.strategy
        name = given.strategy if isinstance(given, QueryConfig) else given
        if name is not None:
            find_strategy(name).check_task(Number())

    def _predict(self, X: Any) -> NumberPrediction:
        check_is_fitted(self)
        prediction = self.model_.predict_answers(self._validate_rows(X))
        assert isinstance(prediction, NumberPrediction)
        return prediction

    def _shape(self, values: Tensor) -> Array:
        array: Array = values.numpy()
        return array[:, 0] if self._is_flat else array

    def _fit_rows(self, rows: Tensor, targets: Array) -> "Regressor":
        columns = targets[:, None] if targets.ndim == 1 else targets
        width = columns.shape[1]
        task = Number(["value"] if width == 1 else [f"target{d}" for d in range(width)])
        self._codes = torch.tensor([task.parse(row) for row in columns])
        self.model_ = fit_answers(task, rows, self._codes, self._pool).kernel_model
        self.task_ = task
        self._rows = rows
        self._targets = targets
        return self

    def _validate(self, X: Any, y: Any, *, reset: bool) -> tuple[Tensor, Array]:
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=(np.float64, np.float32),
            multi_output=True,
            y_numeric=True,
        )
        return torch.tensor(X), np.asarray(y, dtype=np.float64)

    def _validate_rows(self, X: Any, *, reset: bool = False) -> Tensor:
        return torch.tensor(validate_data(self, X, reset=reset, dtype=(np.float64, np.float32)))
