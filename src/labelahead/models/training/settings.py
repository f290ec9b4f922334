"""How a network is trained, and what came of it: plain values, checked when they are made."""

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
    """How to train.

    loss: "squared" is the mean over samples of ½‖f(x) − y‖² with one-hot y, so that its gradients
    have the size of cross-entropy's whatever the number of classes; a rate for PyTorch's
    `nn.MSELoss`, which divides by the number C of outputs, corresponds to 2/C of it here.
    optimiser, rate, momentum, weight_decay: as in torch.optim; momentum is for "sgd" only, and
    weight decay is an L2 penalty. schedule: "one-cycle" rises to `rate` over the first 30 % of the
    steps and falls to nothing, by cosines. steps: updates of the weights, whatever the number of
    samples. epochs: passes over the samples instead, so that training grows with them; `steps`
    counts for nothing then. batch: samples at most in an update; an epoch is cut into equal parts
    (of two at least where there is BatchNorm, so that batches of one or two make more passes).
    clip: the gradient's largest norm. start, of one training after the other: "same" from the new
    weights that the first began with, "cold" from others each time, "warm" from the last round's,
    "shrink" from shrink × the last + perturb × new ones (Ash & Adams 2020). stop_accuracy: end as
    soon as this part of the training set is right; `steps` or `epochs` is then the most there may
    be. augment, of pictures: how each is changed at random whenever it is trained on, and nowhere
    else. "crop" shifts it by up to an eighth of its side and fills up with zeros; "flip" mirrors
    half of the pictures from left to right, which is wrong for digits and letters; "crop-flip" does
    both.

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
        """The same for n samples, its epochs told in steps.

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
        """Of a campaign's training of that number: its weights and the order of its batches are
        drawn from it.

        Networks that began elsewhere differ by more than ten labels do, up and down, at no average
        gain; begun alike, two of them differ by what was labelled in between (docs/campaigns.md).
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
            if (value := getattr(self, name)) not in get_args(words):
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
    """What came of it, on the labelled set and in eval mode.

    >>> from labelahead.models.training import Training, train
    >>> trained = train(build_model("mlp", (4,), 2), x, y, 2, Training(steps=60), seed=0)
    >>> trained.steps, trained.accuracy > 0.9, trained.notes
    (60, True, ())
    """

    loss: float
    accuracy: float
    steps: int  # taken, in the attempt that counted
    rate: float  # really used: smaller than asked for after a divergence
    notes: tuple[str, ...]  # whatever did not go as usual
    seconds: float


def _is_number(value: object) -> bool:
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
    """How the network of this name is trained unless somebody says otherwise.

    >>> from labelahead.models.training import get_default_training
    >>> get_default_training("mlp").steps
    200
    """
    if isinstance(model, str) and ":" in model:
        return Training(**USER_MODEL_TRAINING)
    return Training(**get_model_spec(model).training)
