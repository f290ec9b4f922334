"""The model of the exact learner: kernel regression on frozen features.

Features are centred over the pool and scaled to unit length. The prediction is the posterior mean
f(x) = 1/C + K(x,X) α with α = (K(X,X) + σI)⁻¹ (Y − 1/C) and the kernel of
`labelahead.inference.mixture`. Items outside the pool are predicted from L×C numbers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from labelahead.batching import Samples, share_array
from labelahead.data.dataset import Guesses
from labelahead.data.guesses import parse_guesses, stack_deviations
from labelahead.errors import InputError, count_noun
from labelahead.gp.calibration import fit_scale, gaussian_class_probabilities
from labelahead.gp.linalg import cholesky
from labelahead.gp.posterior import prior
from labelahead.inference.mixture import Mixture, cosine_matrix, mix_kernels, mixture_kernel
from labelahead.inference.pool_posterior import Observation
from labelahead.inference.trust import apply_trust, initial_sharpness, initial_trust
from labelahead.tasks import Classes, LeaveOneOut, Prediction, Task, TaskState

__all__ = [
    "EXACT_DESCRIPTION",
    "ExactModel",
    "append_pool_guesses",
    "attach_pool_guesses",
    "compute_bias_feature",
    "exact",
    "find_kernel_model",
]


EXACT_DESCRIPTION = (
    "nothing is trained: kernel regression on features, rows or pixels, exact after every label"
)
PREDICT_BATCH_ROWS = 1024
# Inputs are converted to unit rows and summed in blocks of about so many numbers, so that inputs of
# half precision or on a disk are never copied whole: 32 MB in float32.
BLOCK_NUMBERS = 1 << 23
# Sums over rows are computed for a multiple of so many columns at a time. Then each column is
# summed in the same order as in a sum over all columns at once (with 8 the last bits differed).
MEAN_BLOCK_COLUMNS = 64
# In rows with few columns the length is as informative as the direction. A constant coordinate, as
# large as their average length, preserves it under normalisation. It hurts embeddings, and rows
# with more columns gain little.
MAX_BIAS_FEATURE_COLUMNS = 4
# Numbers and ratings grow with the length of a row, not only with its direction: on scikit-learn's
# diabetes (10 columns) the feature lowers the error at every number of random labels.
MAX_REGRESSION_BIAS_COLUMNS = 64
# Lower bound of predictive variances: copies of a labelled item are not infinitely certain.
MIN_VARIANCE = 1e-9
# Buffers that models saved by earlier versions do not have.
ADDED_BUFFERS = ("trust", "guess_classes", "label_noise", "offset", "task_state")


class ExactModel(nn.Module):
    """Fitted kernel regression as an `nn.Module` without parameters: features (n, ...) -> outputs (n,
    C).

    Use `predict_proba` for probabilities: it calibrates them.

    Args:
        centre: (d,) mean of the pool's features. Empty: inputs are unit rows already
            (`for_unit_rows`).
        classes: Number of outputs C.
        bias_feature: Value of a constant coordinate that is appended to every row; 0: none. The
            buffer is called `lift`, as in saved models.
        guessers: Number of guessers G. The last G·C columns of every input are their guesses, as
            deviations g − 1/C; 0 where a guesser said nothing. Inputs without these columns have no
            guesses.
        guess_classes: Number of classes that the guessers know; default: all.
        task: What the outputs mean; None: the classes of the items.
    """

    centre: Tensor  # (d,)
    support: Tensor  # (L, d) unit features of the labelled items
    alpha: Tensor  # (L, C)
    mixture: Tensor  # (4,)
    lift: Tensor  # (1,) one more coordinate of every row, or (0,)
    variance_scale: Tensor  # (1,) s²a² of `linear.calibration`, or (0,): not worked out yet
    trust: Tensor  # (G, C, C) in each guesser (`labelahead.inference.trust`)
    sharpness: Tensor  # (G, 2) of each guesser (`labelahead.inference.trust.sharpen`)
    guess_classes: Tensor  # (1,) classes that each guesser knows, or (0,) without guessers
    label_noise: Tensor  # (L,) what each label adds to the noise, or (0,): labels of one source
    offset: Tensor  # (C,) prior mean of the outputs of a task, or (0,)
    task_state: Tensor  # `TaskState.pack`, or (0,): no task, or not calibrated

    def __init__(
        self,
        centre: Tensor,
        classes: int,
        bias_feature: float = 0.0,
        *,
        guessers: int = 0,
        guess_classes: int | None = None,
        task: Task | None = None,
    ) -> None:
        super().__init__()
        self.task = task
        self.classes = classes
        self.register_buffer("centre", centre)
        self.register_buffer("support", centre.new_zeros((0, len(centre))))
        self.register_buffer("alpha", torch.zeros((0, classes), dtype=torch.float64))
        self.register_buffer("mixture", torch.tensor(Mixture(), dtype=torch.float64))
        self.register_buffer(
            "lift", torch.tensor([bias_feature] if bias_feature else [], dtype=torch.float64)
        )
        self.register_buffer("variance_scale", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("label_noise", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("trust", initial_trust(guessers, classes))
        self.register_buffer("sharpness", initial_sharpness(guessers, classes))
        known = [classes if guess_classes is None else guess_classes] if guessers else []
        self.register_buffer("guess_classes", torch.tensor(known, dtype=torch.int64))
        self.known_classes = sum(known)  # as a number: exporters cannot read tensors
        nothing = torch.zeros((0, classes), dtype=torch.float64)
        self.register_buffer(
            "offset", nothing[0:0, 0] if task is None else task.prior_mean(nothing)
        )
        self.register_buffer("task_state", torch.zeros(0, dtype=torch.float64))
        self._whitening: tuple[Tensor, Tensor] | None = None  # (support, whitening)
        self.pool_guesses: Tensor | None = None  # (n, G·C) about the items it was made for
        # position -> what its labels amount to, of the last fit; empty for labels of one source
        self.observations: Mapping[int, Observation] = {}

    def normalise_rows(self, x: Tensor) -> Tensor:
        """Centre rows and scale them to unit length, (n, ...) -> (n, d).

        A row that equals the centre stays zero. Guesses follow unchanged: (n, d + G·C).
        """
        if not len(self.centre):  # inputs are unit rows: see `for_unit_rows`
            return x.flatten(1)
        if self.guess_width:
            features, guesses = self._split_guesses(x.flatten(1))
            return torch.cat([self._normalise_features(features), guesses.to(self.centre)], 1)
        return self._normalise_features(x.flatten(1))

    def _split_guesses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split inputs (n, d) or (n, d + G·C) into features and guesses, which are 0 if missing."""
        width = len(self.centre)
        if x.shape[1] == width:
            return x, x.new_zeros(len(x), self.guess_width)
        return x[:, :width], x[:, width:]

    def _normalise_features(self, x: Tensor) -> Tensor:
        rows = x.to(self.centre) - self.centre
        if len(self.lift):
            rows = torch.cat(
                [rows, torch.ones_like(rows[:, :1]) * self.lift.to(rows)], 1
            )  # ONNX: any number of rows
        peak = rows.abs().amax(1, keepdim=True)
        odd = (peak > 1e15) | ((peak < 1e-15) & (peak > 0))  # whose squares overflow or underflow
        return F.normalize(rows / torch.where(odd, peak, 1.0), dim=1, eps=1e-30)

    @property
    def guess_width(self) -> int:
        """Number of columns that hold guesses, G·C."""
        return len(self.trust) * self.known_classes

    def take_features(self, units: Tensor) -> Tensor:
        """Return the columns of unit rows that the kernel compares, without the guesses."""
        return units[:, : units.shape[1] - self.guess_width] if self.guess_width else units

    def take_guesses(self, units: Tensor) -> Tensor:
        """Return the deviations (n, G, C) of the guesses in unit rows, float64."""
        known = self.known_classes
        last = units[:, units.shape[1] - self.guess_width :].double()
        blocks = last.view(-1, len(self.trust), known)
        return F.pad(blocks, (0, self.classes - known))

    def prior_mean(self, units: Tensor) -> Tensor:
        """Return the prior mean (n, C) at unit rows: 1/C, and what the guesses add to it.

        With a task: the same `offset` everywhere.
        """
        if self.task is not None:
            zeros = torch.zeros_like(units[:, :1], dtype=torch.float64)  # ONNX: any number of rows
            return zeros + self.offset.to(units.device)
        if not self.guess_width:
            return torch.full(
                (units.shape[0], self.classes),
                1 / self.classes,
                dtype=torch.float64,
                device=units.device,
            )
        mean = torch.zeros_like(units[:, :1], dtype=torch.float64) + 1 / self.classes  # for ONNX
        guesses = self.take_guesses(units)
        return mean + apply_trust(self.trust.to(mean), guesses, self.sharpness.to(mean))

    def get_mixture(self) -> Mixture:
        """Return the kernel mixture."""
        return Mixture(*self.mixture.tolist())

    @property
    def noise(self) -> float:
        """Relative noise, chosen together with the mixture."""
        return self.get_mixture().noise

    @property
    def noise_of_labels(self) -> float | Tensor:
        """Noise of the labels: (L,) if they have several sources, else one number."""
        return self.noise + self.label_noise if len(self.label_noise) else self.noise

    def kernel_inputs(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit rows (n, d), the inputs of the kernel, and the prior mean (n, C)."""
        units = self.normalise_rows(rows)
        return units, self.prior_mean(units).cpu()

    def kernel_arguments(self, units: Tensor) -> dict[str, Any]:
        """Return the mixture kernel between unit rows (n, d), as arguments of `prior`."""
        return {"kernel": mixture_kernel(self.take_features(units), self.get_mixture().weights)}

    def forward(self, x: Tensor) -> Tensor:
        """Compute the prior mean + K(x, X) α."""
        return self.predict_units(self.normalise_rows(x))

    def predict_units(self, units: Tensor) -> Tensor:
        """Return the outputs (n, C) for unit rows (n, d)."""
        out = self.prior_mean(units).to(units.dtype)
        if len(self.support):
            K = self._cross_kernel(units)
            out = out + K @ self.alpha.to(K.dtype)
        return out

    def _cross_kernel(self, units: Tensor) -> Tensor:
        """Return the kernel (n, L) between unit rows and the labelled items, in their dtype."""
        cosines = self.take_features(units) @ self.take_features(self.support).to(units.dtype).T
        return mix_kernels(cosines, self.get_mixture().weights)

    @classmethod
    def for_unit_rows(cls, classes: int, guessers: int = 0) -> "ExactModel":
        """Create a model whose inputs are unit rows already, as `normalise_rows` of another model
        returns them.
        """
        return cls(torch.zeros(0), classes, guessers=guessers)

    def without_labels(self, classes: int | None = None) -> "ExactModel":
        """Return a model with the same preprocessing and no labels."""
        return ExactModel(
            self.centre,
            classes or self.classes,
            float(self.lift.sum()),
            guessers=len(self.trust),
            guess_classes=self.known_classes if len(self.trust) else None,
            task=self.task,
        )

    def with_guessers(self, guessers: int, guess_classes: int) -> "ExactModel":
        """Return a model without labels that takes the guesses of so many guessers, too.

        Args:
            guessers: Number of guessers G.
            guess_classes: Number of classes that they know.
        """
        return ExactModel(
            self.centre,
            self.classes,
            float(self.lift.sum()),
            guessers=guessers,
            guess_classes=guess_classes,
        )

    def predict_proba(self, x: Tensor, classes: int | None = None) -> Tensor:
        """Return calibrated class probabilities.

        Args:
            x: (n, ...) features, as `forward` takes them.
            classes: Number of classes, if the model has one output more (data with a single class).

        Returns:
            (n, C) float64 on the CPU. Before the first label: the mean of the guesses, 1/C without
            any.
        """
        return self.predict_proba_units(self.normalise_rows(x), classes)

    def predict_proba_at(self, units: Tensor, start: Tensor, classes: int | None = None) -> Tensor:
        """Do the same as `predict_proba` for the inputs (n, d) and (n, C) of the kernel."""
        return self.predict_proba_units(units, classes)

    def predict_proba_units(self, units: Tensor, classes: int | None = None) -> Tensor:
        """Do the same as `predict_proba` for unit rows (n, d)."""
        if self.task is not None:
            return find_probabilities(self.predict_answers_units(units))
        count = classes or self.classes
        parts = [units.new_full((0, count), 1.0, dtype=torch.float64).cpu()]
        for some in torch.split(units, PREDICT_BATCH_ROWS):
            if len(self.support):
                # float64: rounding of the cosines is multiplied by α, which is large if the noise
                # is small.
                K = self._cross_kernel(some.double())
                mean = (self.prior_mean(some) + K @ self.alpha)[:, :count]
                spread = self.ensure_variance_scale() * self._variance_from_kernel(K).clamp_min(
                    MIN_VARIANCE
                )
                parts.append(gaussian_class_probabilities(mean, spread).cpu())
            else:
                parts.append(self._mean_guess(some, count).cpu())
        return torch.cat(parts)

    def predict_answers(self, x: Tensor) -> Prediction:
        """Return what the task predicts for features (n, ...)."""
        return self.predict_answers_units(self.normalise_rows(x))

    def predict_answers_units(self, units: Tensor) -> Prediction:
        """Return what the task predicts for unit rows (n, d)."""
        if self.task is None:
            raise InputError(
                "the model has no task, so its answers are classes; expected predict_proba"
            )
        mean, variance = self.predict_mean(units), self.predict_variance(units)
        return self.task.predict(mean.cpu(), variance.cpu(), self.get_task_state())

    def predict_mean(self, units: Tensor) -> Tensor:
        """Return posterior means (n, C) at unit rows (n, d), float64."""
        means = [units.new_zeros((0, self.classes), dtype=torch.float64)]
        for some in torch.split(units, PREDICT_BATCH_ROWS):
            mean = self.prior_mean(some)
            if len(self.support):
                mean = mean + self._cross_kernel(some.double()) @ self.alpha
            means.append(mean)
        return torch.cat(means)

    def get_task_state(self) -> TaskState:
        """Return how means and variances become predictions."""
        assert self.task is not None
        if len(self.task_state):
            return TaskState.unpack(self.task_state, self.classes)
        nothing = torch.zeros((0, self.classes), dtype=torch.float64)
        return self.task.calibrate(LeaveOneOut(nothing, nothing[:, 0], self.noise, nothing))

    def _mean_guess(self, units: Tensor, count: int) -> Tensor:
        """Return the mean (n, count) of the guesses as probabilities."""
        p = units.new_full((len(units), count), 1 / count, dtype=torch.float64)
        if self.guess_width:
            p = (p + self.take_guesses(units).mean(1)[:, :count]).clamp_min(0.0)
        return p / p.sum(1, keepdim=True)

    def predict_variance(self, units: Tensor) -> Tensor:
        """Return posterior variances (n,) at unit rows (n, d); the prior variance is 1."""
        parts = [units.new_ones(0, dtype=torch.float64)]
        for some in torch.split(units, PREDICT_BATCH_ROWS):
            parts.append(
                self._variance_from_kernel(self._cross_kernel(some.double()))
                if len(self.support)
                else torch.ones_like(some[:, 0], dtype=torch.float64)
            )
        return torch.cat(parts)

    def _variance_from_kernel(self, K: Tensor) -> Tensor:
        """Return 1 − k(K + σI)⁻¹kᵀ (n,) from the kernel (n, L) with the labelled items."""
        return (1 - (K.double() @ self.compute_whitening().T).square().sum(1)).clamp_min(0.0)

    def compute_whitening(self) -> Tensor:
        """Return the inverse Cholesky factor (L, L) of K(X,X) + σI, computed once per set of labels."""
        if self._whitening is None or self._whitening[0] is not self.support:
            weights = self.get_mixture().weights
            system = mix_kernels(cosine_matrix(self.take_features(self.support)), weights)
            system.diagonal().add_(self.noise_of_labels)
            lower, _ = cholesky(system, what="the kernel of the labelled items")
            eye = torch.eye(len(system), dtype=torch.float64, device=system.device)
            self._whitening = self.support, torch.linalg.solve_triangular(lower, eye, upper=False)
        return self._whitening[1]

    def leave_one_out_variance(self) -> Tensor:
        """Return leave-one-out variances (L,) of the labelled items."""
        return self.compute_whitening().square().sum(0).reciprocal() - self.noise_of_labels

    def ensure_variance_scale(self) -> float:
        """Return s²a², the variance scale that maximises the leave-one-out likelihood of the labels.

        It is computed on first use.
        """
        if not len(self.variance_scale):
            self.calibrate()
        return float(self.variance_scale)

    def calibrate(self, votes: Tensor | None = None) -> None:
        """Fit the variance scale s²a².

        Args:
            votes: (L,) bool, the labels to calibrate on (`labelahead.gp.calibration`); default:
                all.
        """
        mixture, features = self.get_mixture(), self.take_features(self.support)
        targets = mix_kernels(
            cosine_matrix(features), mixture.weights
        ) @ self.alpha + self._scale_by_noise(self.alpha)
        start = self.prior_mean(self.support)
        post = prior(start, mixture_kernel(features, mixture.weights), noise=mixture.noise)
        noise = self.noise_of_labels if len(self.label_noise) else None
        post = post.condition(torch.arange(len(features)), targets + start, noise)
        self.variance_scale = targets.new_tensor([fit_scale(post, votes) ** 2 * post.amplitude()])

    def _scale_by_noise(self, alpha: Tensor) -> Tensor:
        """Return D α (L, C), with the noise D of the labels."""
        noise = self.noise_of_labels
        return (noise[:, None] if isinstance(noise, Tensor) else noise) * alpha

    def _load_from_state_dict(self, state: Mapping[str, Any], prefix: str, *args: Any) -> None:
        for name in (
            "centre",
            "support",
            "alpha",
            "mixture",
            "lift",
            "variance_scale",
            "trust",
            "sharpness",
            "guess_classes",
            "label_noise",
            "offset",
            "task_state",
        ):  # their shapes depend on the number of labels
            if prefix + name not in state and name in ADDED_BUFFERS:
                # saved by an earlier version
                state[prefix + name] = getattr(self, name)[:0]  # type: ignore[index]
            if prefix + name in state:
                setattr(self, name, state[prefix + name].clone().to(getattr(self, name).device))
        self.classes = self.alpha.shape[1]
        if self.trust.dim() == 1:  # saved by a version with one number per guesser
            eye = torch.eye(self.classes, dtype=self.trust.dtype, device=self.trust.device)
            self.trust = self.trust[:, None, None] * eye
            state[prefix + "trust"] = self.trust  # type: ignore[index]
        if len(self.sharpness) != len(self.trust) or prefix + "sharpness" not in state:
            # saved by an earlier version
            self.sharpness = initial_sharpness(len(self.trust), self.classes).to(self.trust.device)
            state[prefix + "sharpness"] = self.sharpness  # type: ignore[index]
        self.known_classes = int(self.guess_classes.sum())
        super()._load_from_state_dict(state, prefix, *args)


def find_kernel_model(model: nn.Module) -> ExactModel | None:
    """Return a model as an `ExactModel` if it is one and has labels, else None."""
    return model if isinstance(model, ExactModel) and len(model.support) else None


def find_probabilities(prediction: Prediction) -> Tensor:
    """Return the probabilities (n, C) of a prediction; raise if the task has none."""
    p = getattr(prediction, "probabilities", None)
    if not isinstance(p, Tensor):
        raise InputError(
            "a number has no class probabilities; expected Learner.predict, which returns the mean "
            "and an interval"
        )
    return p


def exact(
    inputs: Tensor | NDArray[Any],
    classes: int | None = None,
    guesses: Any = None,
    *,
    task: Task | None = None,
) -> ExactModel:
    """Create a model for `Learner` and `propose` that needs no training: kernel regression on inputs
    (n, ...).

    Args:
        inputs: (n, ...) features, rows or pixels of all items: a tensor or an array. A file mapped
            into memory, `numpy.load(path, mmap_mode="r")`, is read in blocks and not copied.
        classes: Number of classes, two or more.
        guesses: What a language model, an old classifier or a heuristic says about the items:
            (n, C) probabilities, or (n,) class numbers with -1 where there is none; a dictionary of
            such arrays for several guessers. How much each counts is learnt from the labels.
        task: What an answer is, instead of `classes`: several classes at once, a number, a rating
            (`labelahead.tasks`).

    >>> import torch
    >>> import labelahead as la
    >>> x = torch.cat([torch.randn(20, 2) - 4, torch.randn(20, 2) + 4])
    >>> learner = la.Learner(la.exact(x, 2), x, "resolve")
    >>> learner.teach([0, 20], [0, 1])
    >>> learner.predict([5, 30]).argmax(1).tolist()
    [0, 1]
    """
    if isinstance(inputs, np.ndarray):
        inputs = share_array(inputs)
    if not isinstance(inputs, Tensor) or inputs.dim() < 2 or not len(inputs):
        raise InputError(
            "inputs is no tensor or array (n, ...); expected the features, rows or pixels of all "
            "items, stacked"
        )
    count = _count_outputs(classes, guesses, task)
    rows = inputs.flatten(1)
    if task is not None and not isinstance(task, Classes):
        most = MAX_BIAS_FEATURE_COLUMNS if task.decides else MAX_REGRESSION_BIAS_COLUMNS
        return ExactModel(_compute_centre(rows), count, compute_bias_feature(rows, most), task=task)
    model = ExactModel(_compute_centre(rows), count, compute_bias_feature(rows))
    return model if guesses is None else attach_pool_guesses(model, guesses, len(rows))


def attach_pool_guesses(model: nn.Module, guesses: Any, n: int) -> ExactModel:
    """Return a model like this one that takes guesses; the given one is not changed.

    Args:
        model: What `exact` returned, without guesses and labels.
        guesses: About the items of the pool, in the forms that `exact` takes.
        n: Number of items.

    Raises:
        InputError: The model is a trained network or has another task, guesses or labels, or the
            guesses do not fit the items and classes.

    >>> import torch
    >>> from labelahead.inference.exact_model import attach_pool_guesses
    >>> model = attach_pool_guesses(la.exact(torch.randn(3, 2), 2), [0, 1, -1], 3)
    >>> model.pool_guesses.shape
    torch.Size([3, 2])
    """
    if not isinstance(model, ExactModel):
        raise InputError(
            f"guesses are prior knowledge of the exact learner, but the model is a "
            f"{type(model).__name__}; expected la.exact(inputs, classes), or no guesses"
        )
    if model.task is not None:
        raise _refuse_guesses(model.task)
    if len(model.trust):
        raise InputError(
            "the model has guesses already; expected them once: those of all guessers in one dictionary"
        )
    if len(model.support):
        raise InputError(
            f"guesses are given for a model that has {count_noun(len(model.support), 'label')} "
            "already; expected a new one: la.exact(inputs, classes)"
        )
    names = tuple(str(c) for c in range(model.classes))
    each = guesses if isinstance(guesses, Mapping) else {"guesses": guesses}
    if not each:
        raise InputError("guesses is empty; expected an array for each guesser, or None")
    parsed = [
        Guesses(names, parse_guesses(values, n, names, str(name))) for name, values in each.items()
    ]
    guessing = model.with_guessers(len(parsed), model.classes).to(model.centre.device)
    guessing.pool_guesses = stack_deviations(parsed, names)
    return guessing


def _refuse_guesses(task: Task) -> InputError:
    """Return the error for guesses about another task than classes."""
    return InputError(
        f"guesses are given for the task {task.name}; they work for one class per item only: "
        "leave them out"
    )


def _count_outputs(classes: int | None, guesses: Any, task: Task | None) -> int:
    """Check the arguments of `exact` and return the number of outputs."""
    if task is None:
        if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
            raise InputError(f"classes is {classes!r}; expected two or more")
        return classes
    if not isinstance(task, Task):
        raise InputError(
            f"task is {task!r}; expected one such as labelahead.tasks.Multilabel(['cat', 'dog'])"
        )
    if classes is not None:
        raise InputError(f"classes={classes!r} and a task are given; expected only one of them")
    if guesses is not None and not isinstance(task, Classes):
        raise _refuse_guesses(task)
    return len(task.outputs)


def _convert_to_real(rows: Tensor) -> Tensor:
    """Return rows in float32 or float64: half precision, as it is stored, is not computed with."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def _compute_centre(rows: Tensor) -> Tensor:
    """Return the mean (d,) of rows (n, d) in the dtype that they are computed with.

    Summed in float64, it does not depend on the order of the rows.
    """
    steps = max(1, BLOCK_NUMBERS // (len(rows) * MEAN_BLOCK_COLUMNS))
    blocks = torch.split(rows, steps * MEAN_BLOCK_COLUMNS, dim=1)
    means = [_convert_to_real(block).mean(0, dtype=torch.float64) for block in blocks]
    return torch.cat(means).to(_convert_to_real(rows[:0]).dtype)


def append_pool_guesses(model: nn.Module, inputs: Tensor | Samples) -> Tensor | Samples:
    """Return the inputs (n, ...) of a pool with the guesses that `exact` was given for it."""
    guesses = model.pool_guesses if isinstance(model, ExactModel) else None
    if guesses is None or not isinstance(inputs, Tensor):
        return inputs
    rows = inputs.flatten(1)
    if rows.shape[1] == len(model.centre) + guesses.shape[1]:  # type: ignore[arg-type]
        return inputs  # they have them already
    if len(rows) != len(guesses):
        raise InputError(
            f"the model has guesses about {len(guesses)} items, but there are {len(rows)} inputs; "
            "expected as many, in the same order"
        )
    rows = _convert_to_real(rows)
    return torch.cat([rows, guesses.to(rows)], 1)


def compute_bias_feature(rows: Tensor, max_columns: int = MAX_BIAS_FEATURE_COLUMNS) -> float:
    """Return the value of the bias feature for rows (n, d).

    It is the root mean square length of centred rows with at most `max_columns` columns, else 0.
    """
    if rows.shape[1] > max_columns:
        return 0.0
    rows = _convert_to_real(rows)
    length = float((rows.double() - rows.double().mean(0)).square().sum(1).mean().sqrt())
    return length if 0 < length < 1e15 else 0.0
