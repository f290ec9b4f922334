"""Train a network: initial weights, the training loop, and BatchNorm statistics afterwards."""

import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import cos, isfinite, pi

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelahead.batching import Inputs, Samples, read_batch, take_samples
from labelahead.errors import InputError, ModelError, NumericalError
from labelahead.models.layers import require_whole_number, restore_modes
from labelahead.models.training.augmentation import augment_pictures, require_pictures
from labelahead.models.training.forward import (
    check_inputs,
    choose_batch_rows,
    eval_mode,
    get_device_and_dtype,
    predict,
    run_forward,
)
from labelahead.models.training.objective import AuxiliaryObjective
from labelahead.models.training.settings import Training, TrainingResult
from labelahead.seeds import make_generator, temporary_seed

__all__ = [
    "find_batchnorms",
    "initialise_model",
    "iter_batches",
    "iter_learning_rates",
    "make_optimiser",
    "recompute_batchnorm_statistics",
    "train",
]

log = logging.getLogger("labelahead")
LOSS_CHECK_EVERY = 10  # steps between two checks of the loss
MAX_RETRIES = 3
DIVERGENCE_FACTOR = 1e4  # training has diverged if the loss exceeds the first one by this factor
INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def initialise_model(
    model_factory: Callable[[int], nn.Module],
    previous: Mapping[str, Tensor] | None,
    training: Training,
    *,
    seed: int,
) -> nn.Module:
    """Return a new network with the initial weights that `training.start` requests.

    "same", "cold", and any start without a `previous` state: what the factory makes of `seed`.
    "warm": the previous state. "shrink": shrink × previous + perturb × new weights, parameter by
    parameter (Ash & Adams 2020); frozen parameters and buffers are the previous ones.

    Args:
        model_factory: seed -> network.
        previous: the state dict of the previous training, if there was one.
        training: the settings.
        seed: the seed of new weights.

    Raises:
        ModelError: if the previous state does not fit the network.

    >>> from labelahead.models.training import Training, initialise_model
    >>> make = lambda seed: build_model("mlp", (4,), 2, seed=seed)
    >>> old = make(0).state_dict()
    >>> warm = initialise_model(make, old, Training(start="warm"), seed=1)
    >>> all(torch.equal(warm.state_dict()[name], old[name]) for name in old)
    True
    """
    with temporary_seed(seed):
        model = model_factory(seed)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"the factory returned a {type(model).__name__}; expected a torch.nn.Module"
        )
    if previous is None or training.start in ("same", "cold"):
        return model
    new = {k: p.detach().clone() for k, p in model.named_parameters() if p.requires_grad}
    try:
        model.load_state_dict(dict(previous))
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise ModelError(
            f"the previous weights do not fit the network ({lines[min(1, len(lines) - 1)]}); "
            "expected the same architecture and classes: use start='cold' after a change"
        ) from error
    if training.start == "shrink":
        with torch.no_grad():
            for key, p in model.named_parameters():
                if key in new:
                    p.mul_(training.shrink).add_(new[key], alpha=training.perturb)
    return model


def train(
    model: nn.Module,
    inputs: Inputs,
    labels: Tensor,
    classes: int,
    training: Training,
    *,
    seed: int,
    objective: AuxiliaryObjective | None = None,
) -> TrainingResult:
    """Train `model` in place; it ends in eval mode.

    The same seed gives bit-identical weights on one machine. If training diverges, it restarts from
    the initial weights with a tenth of the rate, at most three times; `notes` reports it. A batch
    that does not fit into the device's memory is split into halves, whose gradients are summed.

    Args:
        model: the network.
        inputs: (n, ...) the labelled inputs.
        labels: (n,) class numbers.
        classes: the number of classes.
        training: the settings.
        seed: the seed of the batch order and of dropout.
        objective: trained in place together with the network; its value is added to the loss in
            every step. The reported loss is that of the network alone.

    Raises:
        InputError: if inputs, labels or settings are invalid.
        ModelError: if the network has nothing to train or other outputs.
        NumericalError: if training diverges at all rates.

    >>> from labelahead.models.training import Training, predict, train
    >>> model = build_model("mlp", (4,), 2)
    >>> trained = train(model, x, y, 2, Training(steps=60), seed=0)
    >>> bool((predict(model, x).argmax(1) == y).double().mean() > 0.9)
    True
    """
    began = time.perf_counter()
    if not isinstance(training, Training):
        raise InputError(
            f"training is a {type(training).__name__}; expected a Training, such as recipe('mlp')"
        )
    classes = require_whole_number(classes, "classes")
    samples, labels = check_labelled_set(inputs, labels, classes)
    training = training.with_epochs_as_steps(len(samples))
    run = _TrainingRun(model, samples, labels, classes, training, seed, objective)
    modules = [model] if objective is None else [model, objective]
    initial_states = [copy.deepcopy(module.state_dict()) for module in modules]
    rate, notes = training.rate, run.warnings()
    for attempt in range(MAX_RETRIES + 1):
        try:
            steps, (loss, accuracy) = run.run(rate)
            break
        except _DivergedError as trouble:
            for module, state in zip(modules, initial_states, strict=True):
                module.load_state_dict(state)
            if attempt == MAX_RETRIES:
                raise NumericalError(
                    f"training diverged at the rate {training.rate:g} and at {MAX_RETRIES} rates "
                    f"down to {rate:g} ({trouble}); expected a finite loss: scale the inputs to "
                    "order one, or use a smaller rate or clip"
                ) from None
            notes.append(f"{trouble} at the rate {rate:g}; began again with {rate / 10:g}")
            rate /= 10
        finally:
            for module in modules:
                module.zero_grad(set_to_none=True)
                module.eval()
    target = training.stop_accuracy
    if target is not None and accuracy < target:
        notes.append(
            f"accuracy on the labelled set is {accuracy:.3f} after all {steps} steps; "
            f"{target:.3f} was requested"
        )
    return TrainingResult(loss, accuracy, steps, rate, tuple(notes), time.perf_counter() - began)


class _TrainingRun:
    """One call of `train`: the state that all attempts share."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor | Samples,
        labels: Tensor,
        classes: int,
        training: Training,
        seed: int,
        objective: AuxiliaryObjective | None,
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.training = training
        self.seed = seed
        self.objective = objective
        self.parameters = [
            *get_trainable_parameters(model),
            *(objective.parameters() if objective is not None else ()),
        ]
        self.norms = find_batchnorms(model)
        self.device, self.dtype = get_device_and_dtype(model, inputs)
        self.labels = labels.to(self.device)
        self.classes = classes
        self.is_single_sample = len(inputs) == 1 and bool(self.norms)
        self.max_pass_rows: int | None = None  # that fit into memory, once a batch did not
        weights = next(p for p in self.parameters)
        self.targets = F.one_hot(self.labels, classes).to(weights.dtype)
        if training.augment is not None:
            require_pictures(read_batch(inputs[:1]), training.augment)

    def warnings(self) -> list[str]:
        """Return notes for the user that are known before the first step."""
        warnings = []
        if self.is_single_sample:
            warnings.append(
                "one labelled sample has no variance: BatchNorm's statistics stay fixed"
            )
        elif self.norms and self.training.batch == 1:
            warnings.append("batches have at least two samples: BatchNorm cannot be trained on one")
        return warnings

    def run(self, rate: float) -> tuple[int, tuple[float, float]]:
        """Run one attempt; return the steps, and (loss, accuracy) on the labelled set.

        Raises:
            _DivergedError: if weights, loss or outputs become infinite.
        """
        # Dropout draws from the global generator.
        with temporary_seed(self.seed), torch.enable_grad(), self._observe():
            steps = self._descend(rate)
        if not all(bool(torch.isfinite(p.detach()).all()) for p in self.parameters):
            raise _DivergedError(f"weights became infinite by step {steps}")
        recompute_batchnorm_statistics(self.model, self.norms, self.inputs)
        return steps, self._measure()

    def _descend(self, rate: float) -> int:
        """Run the training loop and return the number of steps."""
        t = self.training
        optimiser = make_optimiser(self.parameters, t, rate)
        group = optimiser.param_groups[0]
        n = len(self.inputs)
        sizes = iter_batches(
            n, t.batch, t.steps, self.seed, pairs=bool(self.norms) and not self.is_single_sample
        )
        measure_every = max(LOSS_CHECK_EVERY, -(-n // t.batch))
        monitor = _LossMonitor()
        everything: tuple[Inputs, Tensor] | None = None
        # A generator of its own: the order of the batches is the same with and without
        # augmentation.
        rng = make_generator(self.seed, "augment")
        step = 0
        self._set_train_mode()
        for step, (at, now) in enumerate(zip(sizes, iter_learning_rates(t, rate), strict=True), 1):
            if at is None:
                everything = everything or self._take_batch(None)
            x, y = self._take_batch(at) if at is not None or everything is None else everything
            if t.augment is not None:
                assert isinstance(x, Tensor)  # checked by `require_pictures`
                x = augment_pictures(x, t.augment, rng)
            group["lr"] = now
            optimiser.zero_grad(set_to_none=True)
            loss = self._backpropagate(x, y, (step - 1) / t.steps)
            if t.clip is not None:
                nn.utils.clip_grad_norm_(self.parameters, t.clip)
            optimiser.step()
            monitor.record(loss, step)
            if t.stop_accuracy is not None and step % measure_every == 0 and step < t.steps:
                recompute_batchnorm_statistics(self.model, self.norms, self.inputs)
                if self._measure()[1] >= t.stop_accuracy:
                    break
                self._set_train_mode()
        monitor.check(step)
        return step

    def _observe(self) -> AbstractContextManager[None]:
        """Return the context in which the auxiliary objective observes the network."""
        return (
            nullcontext() if self.objective is None else self.objective.record_features(self.model)
        )

    def _backpropagate(self, x: Inputs, y: Tensor, progress: float) -> Tensor:
        """Compute the gradients of a step and return its loss.

        The sum of the gradients of two halves is that of the whole batch, up to rounding; dropout
        draws other numbers.

        Raises:
            InputError: if one sample does not fit into memory, or a batch that cannot be split:
                BatchNorm and an auxiliary objective depend on all of it.
        """
        while True:
            rows = min(self.max_pass_rows or len(y), len(y))
            try:
                return self._sum_gradients(x, y, progress, rows)
            except torch.OutOfMemoryError as error:
                if rows == 1 or self.norms or self.objective is not None:
                    raise InputError(
                        f"training on {rows} samples at once does not fit into the memory of "
                        f"{self.device}; expected a smaller training.batch or network, or device = "
                        "cpu"
                    ) from error
            # Outside of the except block: the error's traceback holds the activations.
            for parameter in self.parameters:
                parameter.grad = None
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.max_pass_rows = -(-rows // 2)
            log.warning(
                "training: %d samples at once do not fit into the memory of %s, trying %d",
                rows,
                self.device,
                self.max_pass_rows,
            )

    def _sum_gradients(self, x: Inputs, y: Tensor, progress: float, rows: int) -> Tensor:
        """Backpropagate the mean loss of a batch, `rows` samples at a time, and return it."""
        n = len(y)
        if rows == n:
            loss = self._total_loss(x, y, progress)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        total = torch.zeros((), dtype=y.dtype, device=y.device)
        for first in range(0, n, rows):
            part = slice(first, first + rows)
            share = len(y[part]) / n
            loss = share * self._total_loss(take_samples(x, part), y[part], progress)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _total_loss(self, x: Inputs, y: Tensor, progress: float) -> Tensor:
        """Return the loss of a step: the network's loss plus the auxiliary objective, if any."""
        outputs = self._compute_outputs(x)
        loss = self._loss(outputs, y)
        if not loss.requires_grad:
            raise ModelError(
                "the network's outputs depend on none of its trainable parameters; expected "
                "trainable parameters: unfreeze a layer that the outputs pass through"
            )
        if self.objective is None:
            return loss
        added: Tensor = self.objective(self._sample_losses(outputs.detach(), y), progress)
        return loss + added

    def _set_train_mode(self) -> None:
        """Set train mode; BatchNorm stays in eval mode if there is only one sample."""
        self.model.train()
        if self.objective is not None:
            self.objective.train()
        if self.is_single_sample:
            for norm in self.norms:
                norm.training = False

    def _take_batch(self, at: Tensor | None) -> tuple[Inputs, Tensor]:
        """Return inputs and one-hot targets at positions, or all of them if `at` is None."""
        x = self.inputs if at is None else self.inputs[at.to(getattr(self.inputs, "device", "cpu"))]
        y = self.targets if at is None else self.targets[at.to(self.device)]
        return read_batch(x.to(device=self.device, dtype=self.dtype)), y

    def _compute_outputs(self, x: Inputs) -> Tensor:
        """Return the outputs (n, classes) of the network."""
        out = run_forward(self.model, x)
        if out.shape[1] != self.classes:
            raise ModelError(
                f"the network has {out.shape[1]} outputs for {self.classes} classes; expected as "
                "many: build it for that number of classes"
            )
        return out

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        if self.training.loss == "cross-entropy":
            return F.cross_entropy(outputs, targets)
        return 0.5 * F.mse_loss(outputs, targets, reduction="sum") / len(targets)

    def _sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each sample, (n,)."""
        if self.training.loss == "cross-entropy":
            return F.cross_entropy(outputs, targets, reduction="none")
        return 0.5 * (outputs - targets).square().sum(1)

    def _measure(self) -> tuple[float, float]:
        """Return loss and accuracy on the labelled set in eval mode."""
        try:
            outputs = predict(self.model, self.inputs)
        except NumericalError as error:
            raise _DivergedError("outputs became infinite") from error
        loss = float(self._loss(outputs, self.targets))
        if not isfinite(loss):
            raise _DivergedError("the loss became infinite")
        return loss, int((outputs.argmax(1) == self.labels).sum()) / len(self.labels)


class _DivergedError(Exception):
    """The loss became infinite or grew far beyond its first value."""


class _LossMonitor:
    """Check the loss every few steps: each check synchronises with the device."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.first: float | None = None

    def record(self, loss: Tensor, step: int) -> None:
        """Add a loss; a NaN or infinity stays in the sum."""
        self.total = loss if self.total is None else self.total + loss
        if step == 1 or step % LOSS_CHECK_EVERY == 0:
            self.check(step)

    def check(self, step: int) -> None:
        """Raise if a loss since the last check was not finite, or has grown too much."""
        if self.total is None:
            return
        total, self.total = float(self.total), None
        if self.first is None:
            self.first = total
        if not isfinite(total):
            raise _DivergedError(f"the loss became infinite by step {step}")
        if total > DIVERGENCE_FACTOR * (1.0 + self.first):
            raise _DivergedError(f"the loss rose from {self.first:.3g} to {total:.3g}")


def check_labelled_set(
    given: Inputs, labels: Tensor, classes: int
) -> tuple[Tensor | Samples, Tensor]:
    """Check inputs and labels, and return them with labels as int64 (n,).

    Raises:
        InputError: if labels have another type, shape or range than expected.
    """
    inputs = check_inputs(given)
    if not isinstance(labels, Tensor) or labels.dtype not in INTEGER_DTYPES:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(
            f"labels are {kind}; expected class numbers as an integer tensor (n,): "
            "convert them with torch.as_tensor(labels).long()"
        )
    if labels.shape != (len(inputs),):
        shape = tuple(inputs.shape) if isinstance(inputs, Tensor) else f"{len(inputs)} samples"
        raise InputError(
            f"labels have shape {tuple(labels.shape)} and inputs {shape}; expected "
            f"one label for each of the {len(inputs)} inputs, shape ({len(inputs)},)"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"labels reach from {low} to {high}; expected class numbers from 0 to {classes - 1}"
        )
    return inputs.detach() if isinstance(inputs, Tensor) else inputs, labels.detach().long()


def get_trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that require a gradient.

    Raises:
        ModelError: if there are none, or a lazy layer has no shape yet.
        NumericalError: if a parameter is not finite.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}: wrap it in one")
    everything = list(model.named_parameters())
    for name, p in everything:
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ModelError(
                f"parameter {name!r} has no shape yet: pass one batch through the lazy layers first"
            )
        if not bool(torch.isfinite(p.detach()).all()):
            raise NumericalError(
                f"parameter {name!r} holds NaN or infinity before training; expected finite "
                "weights: start from new ones"
            )
    chosen = [p for _, p in everything if p.requires_grad]
    if not chosen:
        raise ModelError(
            f"none of the network's {len(everything)} parameters requires a gradient; expected "
            "something to train: unfreeze some with requires_grad_(True)"
        )
    return chosen


def iter_batches(
    n: int, size: int, steps: int, seed: int, *, pairs: bool
) -> Iterator[Tensor | None]:
    """Yield the positions of each of `steps` batches; None means the whole set.

    Every epoch is shuffled and cut into equal parts of at most `size`, so that there is no small
    remainder.

    Args:
        n: the number of samples.
        size: the largest batch.
        steps: the number of batches.
        seed: the seed of the order.
        pairs: whether every batch needs two samples, for BatchNorm, if there are two.
    """
    parts = -(-n // size)
    if pairs and n // parts < 2:
        parts = max(1, n // 2)
    if parts == 1:
        yield from (None for _ in range(steps))
        return
    rng = torch.Generator().manual_seed(seed)
    done_steps = 0
    while True:
        for part in torch.randperm(n, generator=rng).tensor_split(parts):
            if done_steps == steps:
                return
            done_steps += 1
            yield part


def make_optimiser(
    parameters: Sequence[Tensor], training: Training, rate: float
) -> torch.optim.Optimizer:
    """Return the optimiser that `training` requests."""
    decay = training.weight_decay
    fused = parameters[0].device.type in ("cpu", "cuda")  # half the time of `foreach` when small
    if training.optimiser == "adam":
        return torch.optim.Adam(
            parameters, lr=rate, weight_decay=decay, fused=fused, foreach=not fused
        )
    return torch.optim.SGD(
        parameters,
        lr=rate,
        momentum=training.momentum,
        weight_decay=decay,
        fused=fused,
        foreach=not fused,
    )


def iter_learning_rates(training: Training, rate: float) -> Iterator[float]:
    """Yield the learning rate of each step.

    One-cycle as in Smith & Topin and torch's OneCycleLR: by a cosine from rate/25 up to the rate
    over the first 30 %, then down to rate/250,000.
    """
    steps = training.steps
    if training.schedule == "constant":
        yield from (rate for _ in range(steps))
        return
    peak, end = 0.3 * steps - 1, steps - 1
    for step in range(steps):
        if step <= peak or end <= 0:
            here, there, part = rate / 25, rate, step / peak if peak > 0 else 1.0
        else:
            begin = max(peak, 0.0)
            here, there, part = rate, rate / 25e4, (step - begin) / (end - begin)
        yield there + (here - there) / 2 * (1 + cos(pi * part))


def find_batchnorms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the BatchNorm layers that use batch statistics in train mode.

    A network may keep some in eval mode always, as a pretrained one does; these are not returned.
    """
    with restore_modes(model):
        model.train()
        return [
            module
            for module in model.modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
        ]


def recompute_batchnorm_statistics(
    model: nn.Module, norms: list[nn.modules.batchnorm._BatchNorm], inputs: Tensor | Samples
) -> None:
    """Recompute the statistics of `norms` from all of `inputs` with the current weights.

    Tangent kernels and predictions use running statistics. After training these are a moving
    average over weights that no longer exist; after 100 steps a tenth of their initial value
    remains. They are therefore recomputed for the final weights; all other modules are in eval
    mode.

    Mean and variance are exact if the set fits into one batch, and averages over equal batches
    otherwise. A single sample has no variance, and dividing by 0 would ruin all outputs: the
    statistics are unchanged then.
    """
    tracking = [norm for norm in norms if norm.running_mean is not None]
    if not tracking or len(inputs) < 2:
        return
    device, dtype = get_device_and_dtype(model, inputs)
    parts = min(-(-len(inputs) // choose_batch_rows(inputs)), len(inputs) // 2)
    momenta = [norm.momentum for norm in tracking]
    with eval_mode(model), torch.no_grad():
        for norm in tracking:
            norm.training = True
            norm.reset_running_stats()
            norm.momentum = None  # in PyTorch: the plain average over all batches
        try:
            for part in torch.arange(len(inputs)).tensor_split(max(1, parts)):
                some = inputs[int(part[0]) : int(part[-1]) + 1]
                run_forward(model, some.to(device=device, dtype=dtype))
        finally:
            for norm, momentum in zip(tracking, momenta, strict=True):
                norm.momentum = momentum
