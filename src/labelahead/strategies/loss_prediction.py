"""LL4AL: a module trained together with the network predicts the network's loss.

Yoo & Kweon 2019: the features of some intermediate layers are averaged over positions; each passes
one hidden layer, and the concatenation gives one number. The module learns to rank pairs of samples
by their losses, with a margin. Its gradient also flows into the network, until 60 % of the training
(120 of 200 epochs in the paper).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelahead.batching import Inputs, Samples, as_inputs
from labelahead.errors import InputError, ModelError
from labelahead.models.training.forward import (
    choose_batch_rows,
    eval_mode,
    get_device_and_dtype,
    run_forward,
)
from labelahead.models.training.objective import AuxiliaryObjective
from labelahead.seeds import derive_training_seed, temporary_seed
from labelahead.strategies.base import Strategy
from labelahead.strategies.context import QueryContext, make_scoring_strategy

__all__ = ["LL4AL", "LossModule", "ranking_loss"]

TAPPED_LAYERS = 4
HIDDEN_UNITS = 128
MARGIN = 1.0
OBJECTIVE_WEIGHT = 1.0  # of the ranking loss, relative to the network's loss
JOINT_SHARE = 0.6  # of training; afterwards its gradient no longer reaches the network
CHANNELS_SECOND = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.PReLU,
)  # layers whose outputs are (n, channels, positions ...); those of all others end in channels


class LossModule(AuxiliaryObjective):
    """Predicts the loss of each sample from intermediate features of a network; trained by ranking
    pairs.

    Args:
        model: The network. Layers are identified by their names, so the module also serves copies
            of it.
        example: A few samples, to find out which layers are called and how wide they are.
        seed: Of the initial weights.
    """

    def __init__(self, model: nn.Module, example: Inputs, seed: int) -> None:
        super().__init__()
        self._features: dict[str, Tensor] = {}
        example_inputs = as_inputs(example)
        device, dtype = get_device_and_dtype(model, example_inputs)
        example_inputs = example_inputs[:2].to(device=device, dtype=dtype)
        self.tapped = _choose_layers(model, example_inputs)
        with self.record_features(model), eval_mode(model), torch.no_grad():
            run_forward(model, example_inputs)
            like = [self._features[name] for name in self.tapped]
            sizes = [feature.shape[1] for feature in like]
        with temporary_seed(derive_training_seed(seed, 0, "loss module")):
            self.layers = nn.ModuleList(nn.Linear(size, HIDDEN_UNITS) for size in sizes)
            self.last = nn.Linear(HIDDEN_UNITS * len(sizes), 1)
        self.to(like[0])

    @contextmanager
    def record_features(self, model: nn.Module) -> Iterator[None]:
        """Record the features (n, channels) of the last forward pass of `model` inside the context."""
        layers = dict(model.named_modules())
        hooks = [layers[name].register_forward_hook(self._make_hook(name)) for name in self.tapped]
        try:
            yield
        finally:
            self._features.clear()
            for hook in hooks:
                hook.remove()

    def _make_hook(self, name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(layer: nn.Module, given: object, out: Tensor) -> None:
            self._features[name] = _average_positions(layer, out)

        return hook

    def predict_recorded(self, *, detached: bool) -> Tensor:
        """Return the predicted loss (n,) for the samples of the last recorded forward pass.

        Args:
            detached: Whether gradients stop at the features.
        """
        features = [self._features[name] for name in self.tapped]
        if detached:
            features = [feature.detach() for feature in features]
        hidden = [
            F.relu(layer(feature)) for layer, feature in zip(self.layers, features, strict=True)
        ]
        out: Tensor = self.last(torch.cat(hidden, 1))[:, 0]
        return out

    def forward(self, losses: Tensor, progress: float) -> Tensor:
        """Return the ranking loss of the last forward pass.

        Late in training its gradient no longer reaches the network.
        """
        return OBJECTIVE_WEIGHT * ranking_loss(
            self.predict_recorded(detached=progress >= JOINT_SHARE), losses
        )

    def predict_losses(self, model: nn.Module, inputs: Tensor | Samples) -> Tensor:
        """Return the predicted loss (n,) of inputs (n, ...), in eval mode and without gradients."""
        rows = choose_batch_rows(inputs)
        parts = []
        with self.record_features(model), eval_mode(model), torch.no_grad():
            for start in range(0, len(inputs), rows):
                run_forward(model, inputs[start : start + rows])
                parts.append(self.predict_recorded(detached=True))
        return torch.cat(parts)


def ranking_loss(predicted: Tensor, true: Tensor, margin: float = MARGIN) -> Tensor:
    """Return the margin loss of pairs (i, n/2 + i), which are to be ranked by their true losses."""
    half = len(true) // 2
    if half == 0:
        return predicted.sum() * 0.0
    guess = predicted[:half] - predicted[half : 2 * half]
    sign = torch.sign(true[:half] - true[half : 2 * half]).detach()
    return F.relu(margin - sign * guess).mean()


def _average_positions(layer: nn.Module, out: Tensor) -> Tensor:
    """Return a layer's output averaged over its positions, (n, channels)."""
    if out.dim() == 2:
        return out
    return (
        out.flatten(2).mean(2) if isinstance(layer, CHANNELS_SECOND) else out.flatten(1, -2).mean(1)
    )


def _choose_layers(model: nn.Module, example_inputs: Tensor | Samples) -> list[str]:
    """Return the names of at most `TAPPED_LAYERS` layers with parameters, evenly spaced in call order."""
    called: list[str] = []

    def make_hook(name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(layer: nn.Module, given: object, out: object) -> None:
            # Only outputs with one row per sample describe the samples.
            if isinstance(out, Tensor) and out.dim() >= 2 and len(out) == len(example_inputs):
                called.append(name)

        return hook

    layers = {
        n: m
        for n, m in model.named_modules()
        if not list(m.children()) and list(m.parameters(False))
    }
    hooks = [layer.register_forward_hook(make_hook(name)) for name, layer in layers.items()]
    try:
        with eval_mode(model), torch.no_grad():
            run_forward(model, example_inputs)
    finally:
        for hook in hooks:
            hook.remove()
    every = list(dict.fromkeys(called))
    every = every[:-1] or every  # the last one is the read-out: outputs, not features
    if not every:
        raise ModelError(
            "ll4al needs the outputs of intermediate layers, but this network calls no module "
            "with parameters; "
            "expected modules such as nn.Linear or nn.Conv2d: choose another strategy"
        )
    count = min(TAPPED_LAYERS, len(every))
    return [every[round((i + 1) * len(every) / count) - 1] for i in range(count)]


def _predicted_losses(context: QueryContext, rng: torch.Generator) -> Tensor:
    """Return the predicted loss (m,) of each candidate."""
    module = context.objective
    if not isinstance(module, LossModule):
        raise InputError(
            "ll4al ranks items by a loss module that is trained together with the network, and "
            "none was given; "
            "expected `objective`, as labelahead.models.training.train leaves it: or run a "
            "campaign, or use a Learner, which "
            "train both"
        )
    return module.predict_losses(context.model, context.fitted.load_inputs(context.candidates))


LL4AL = Strategy(
    "ll4al",
    "many labels already: a module trained along with the network predicts its loss",
    "Yoo & Kweon 2019, Learning Loss for Active Learning",
    make_scoring_strategy(_predicted_losses),
    needs_network=True,
    objective=LossModule,
)
