"""Training settings and results: plain values that are checked when they are created."""

from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, get_args

from labelahead.errors import InputError
from labelahead.models import USER_MODEL_TRAINING, get_model_spec
from labelahead.seeds import derive_training_seed

__all__ = ["Training", "TrainingResult", "get_default_training"]

Loss = Literal["squared", "cross-entropy"]
Optimiser = Literal["sgd", "adam"]
Schedule = Literal["one-cycle", "constant"]
Start = Literal["same", "cold", "warm", "shrink"]
Augment = Literal["crop", "flip", "crop-flip"]


@dataclass(frozen=True)
class Training:
    """How to train a network.

    Args:
        loss: "squared" is the mean over samples of ½‖f(x) − y‖² with one-hot y, so that its
            gradients have the size of those of cross-entropy for any number of classes. A rate for
            PyTorch's `nn.MSELoss`, which divides by the number C of outputs, corresponds to 2/C of
            it here.
        optimiser: "adam" or "sgd".
        rate: the learning rate, as in torch.optim.
        schedule: "one-cycle" rises to `rate` over the first 30 % of the steps and falls to nearly
            0, by cosines; "constant" keeps it.
        momentum: of "sgd" only.
        weight_decay: an L2 penalty, as in torch.optim.
        steps: the number of updates, for any number of samples.
        batch: the largest number of samples per update. An epoch is cut into equal parts (of at
            least two samples if there is BatchNorm, so that batches of one or two need more
            passes).
        clip: the largest norm of the gradient; None for no clipping.
        start: the initial weights of successive trainings: "same" from the weights of the first
            one, "cold" from new weights each time, "warm" from the previous round, "shrink" from
            shrink × previous + perturb × new weights (Ash & Adams 2020).
        shrink: the factor of the previous weights, for "shrink".
        perturb: the factor of the new weights, for "shrink".
        stop_accuracy: stop as soon as this fraction of the training set is correct; `steps` or
            `epochs` is then the maximum.
        epochs: the number of passes over the samples, instead of `steps`.
        augment: random augmentation of training images, used nowhere else. "crop" shifts an image
            by up to an eighth of its side and fills with zeros; "flip" mirrors half of the images
            horizontally, which is wrong for digits and letters; "crop-flip" does both.

    >>> from labelahead.models.training import Training
    >>> Training(loss="cross-entropy", steps=200, rate=1e-3).optimiser
    'adam'
    """

    loss: Loss = "squared"
    optimiser: Optimiser = "adam"
    rate: float = 2e-3
    schedule: Schedule = "one-cycle"
    momentum: float = 0.9
    weight_decay: float = 0.0
    steps: int = 120
    batch: int = 32
    clip: float | None = None
    start: Start = "same"
    shrink: float = 0.4
    perturb: float = 0.1
    stop_accuracy: float | None = None
    epochs: int | None = None
    augment: Augment | None = None

    def with_epochs_as_steps(self, n: int) -> "Training":
        """Return the settings for n samples, with epochs converted to steps.

        >>> from labelahead.models.training import Training
        >>> Training(epochs=30, batch=128).with_epochs_as_steps(1000).steps
        240
        """
        return (
            self
            if self.epochs is None
            else replace(self, steps=self.epochs * -(-n // self.batch), epochs=None)
        )

    def derive_seed(self, seed: int, number: int) -> int:
        """Return the seed of the weights and the batch order of a training.

        With start="same" every training has the same seed. Networks with different initial weights
        differ by more than ten labels do, without an average gain; with the same weights they
        differ only by the labels in between (docs/campaigns.md).

        Args:
            seed: the seed of the campaign.
            number: the number of the training.
        """
        return derive_training_seed(seed, 0 if self.start == "same" else number)

    def __post_init__(self) -> None:
        """Raise `InputError` for a value out of range."""
        for name, words in (
            ("loss", Loss),
            ("optimiser", Optimiser),
            ("schedule", Schedule),
            ("start", Start),
        ):
            value = getattr(self, name)
            if value not in get_args(words):
                raise InputError(
                    f"{name} is {value!r}; expected one of {', '.join(map(repr, get_args(words)))}"
                )
        if self.augment not in (None, *get_args(Augment)):
            raise InputError(
                f"augment is {self.augment!r}; expected one of "
                f"{', '.join(map(repr, get_args(Augment)))}, or None"
            )
        _require_above("rate", self.rate, 0)
        _require_within("momentum", self.momentum, 0, 1, last=False)
        _require_within("weight_decay", self.weight_decay, 0, None)
        _require_count("steps", self.steps, minimum=0)
        _require_count("batch", self.batch, minimum=1)
        if self.epochs is not None:
            _require_count("epochs", self.epochs, minimum=1)
        if self.clip is not None:
            _require_above("clip", self.clip, 0)
        _require_within("shrink", self.shrink, 0, None)
        _require_within("perturb", self.perturb, 0, None)
        if self.stop_accuracy is not None:
            _require_above("stop_accuracy", self.stop_accuracy, 0)
            _require_within("stop_accuracy", self.stop_accuracy, 0, 1)


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training, measured on the labelled set in eval mode.

    Attributes:
        loss: the loss of the network.
        accuracy: the fraction of correct predictions.
        steps: the updates in the successful attempt.
        rate: the learning rate used; smaller than requested after a divergence.
        notes: anything unusual, for the user.
        seconds: the duration.

    >>> from labelahead.models.training import Training, train
    >>> trained = train(build_model("mlp", (4,), 2), x, y, 2, Training(steps=60), seed=0)
    >>> trained.steps, trained.accuracy > 0.9, trained.notes
    (60, True, ())
    """

    loss: float
    accuracy: float
    steps: int
    rate: float
    notes: tuple[str, ...]
    seconds: float


def _is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _require_above(name: str, value: float, low: float) -> None:
    if not _is_number(value) or value <= low:
        raise InputError(f"{name} is {value!r}; expected a number above {low}")


def _require_within(
    name: str, value: float, low: float, high: float | None, *, last: bool = True
) -> None:
    top = high is None or (_is_number(value) and (value <= high if last else value < high))
    if not _is_number(value) or value < low or not top:
        upper = "" if high is None else f" to {'' if last else 'below '}{high}"
        raise InputError(f"{name} is {value!r}; expected a number from {low}{upper}")


def _require_count(name: str, value: object, *, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(f"{name} is {value!r}; expected a whole number of at least {minimum}")


def get_default_training(model: str) -> Training:
    """Return the default training of a network by its name.

    >>> from labelahead.models.training import get_default_training
    >>> get_default_training("mlp").steps
    200
    """
    if isinstance(model, str) and ":" in model:
        return Training(**USER_MODEL_TRAINING)
    return Training(**get_model_spec(model).training)
