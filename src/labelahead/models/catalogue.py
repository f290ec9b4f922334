"""The networks by name with their training settings, and the choice of a default."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from labelahead.batching import Batch
from labelahead.errors import InputError, did_you_mean
from labelahead.models.image_encoder import (
    efficientnet_lite0,
    is_image_encoder_available,
    mlp_on_features,
)
from labelahead.models.layers import require_input_shape, require_whole_number
from labelahead.models.networks import (
    cnn,
    convnet,
    fcn,
    mlp,
    resnet18,
    resnet18_strided,
    tutorial_cnn,
    vgg11,
    vgg11_plain,
    wrn1,
    wrn2,
    wrn16,
)
from labelahead.models.user_code import build_user_model
from labelahead.seeds import temporary_seed

__all__ = [
    "EXACT",
    "MODELS",
    "USER_MODEL_TRAINING",
    "ModelSpec",
    "build_model",
    "choose_default_model",
    "get_model_spec",
]

EXACT = "exact"  # the name of the exact learner (`inference/exact.py`), which needs no training
MAX_TINY_SIDE = 12  # pixels; up to this side flat pixels are as informative as images
MAX_SMALL_SIDE = 64  # pixels; up to this side a network trains on pixels in seconds

# Arguments of `labelahead.models.training.Training`; the others keep their defaults.
TrainingArguments = Mapping[str, Any]


def _adam(rate: float, steps: int) -> TrainingArguments:
    """Return training settings with Adam."""
    return MappingProxyType({"optimiser": "adam", "rate": rate, "steps": steps, "batch": 32})


def _sgd(rate: float, steps: int, clip: float, batch: int, decay: float) -> TrainingArguments:
    """Return training settings with SGD."""
    return MappingProxyType(
        {
            "optimiser": "sgd",
            "rate": rate,
            "steps": steps,
            "clip": clip,
            "batch": batch,
            "weight_decay": decay,
        }
    )


# Chosen on held-out parts of the training sets of digits, MNIST, CIFAR-10 and SVHN.
_DEEP_TRAINING = _sgd(0.05, 150, 5.0, 32, 5e-4)
_WIDE_TRAINING = _adam(1e-2, 150)
_DENSE_TRAINING = _adam(2e-3, 200)
USER_MODEL_TRAINING: TrainingArguments = MappingProxyType({**_adam(2e-3, 150), "clip": 5.0})
"""Default training of a user's own network: Adam works with most architectures."""

MAX_UNCHECKED_WIDTH = 4096  # the parameters of wider networks are counted first
MAX_WIDTH = 10**6
MAX_PARAMETERS = 2 * 10**9  # 8 GB in float32


@dataclass(frozen=True)
class ModelSpec:
    """A network that can be requested by name.

    Attributes:
        name: the name.
        summary: what it is, and when to use it.
        inputs: "image" or "any".
        make: a function (shape, classes, width=, **options) -> nn.Module.
        training: arguments of `Training`; the others keep their defaults.
    """

    name: str
    summary: str
    inputs: str
    make: Callable[..., nn.Module]
    training: TrainingArguments


_SPECS = (
    ModelSpec(
        "mlp",
        "two hidden layers of 128; vectors and tiny images, trains in a blink",
        "any",
        mlp,
        _DENSE_TRAINING,
    ),
    ModelSpec(
        "fcn",
        "three hidden layers of 256 with He's weights; the kernel-quality paper's FCN",
        "any",
        fcn,
        _adam(5e-3, 120),
    ),
    ModelSpec(
        "cnn",
        "three convolutions with BatchNorm; small images, trains in seconds",
        "image",
        cnn,
        _WIDE_TRAINING,
    ),
    ModelSpec(
        "convnet",
        "eight layers of plain convolutions; the kernel-quality paper's ConvNet",
        "image",
        convnet,
        _adam(5e-3, 200),
    ),
    ModelSpec(
        "tutorial-cnn",
        "two convolutions and three linear layers; dynamicAL's CNN, 16 px and up",
        "image",
        tutorial_cnn,
        _adam(2e-3, 150),
    ),
    ModelSpec(
        "vgg11",
        "VGG11 with BatchNorm; dynamicAL on SVHN, width=16 for a machine without a GPU",
        "image",
        vgg11,
        _DEEP_TRAINING,
    ),
    ModelSpec(
        "vgg11-plain",
        "VGG11 without BatchNorm, as in torchvision; for studies",
        "image",
        vgg11_plain,
        _DEEP_TRAINING,
    ),
    ModelSpec(
        "wrn1",
        "WideResNet with one group of blocks; the look-ahead paper's network for MNIST",
        "image",
        wrn1,
        _WIDE_TRAINING,
    ),
    ModelSpec(
        "wrn2",
        "WideResNet with two groups of blocks; the look-ahead paper's for CIFAR-10",
        "image",
        wrn2,
        _WIDE_TRAINING,
    ),
    ModelSpec(
        "wrn16",
        "WideResNet-16-k, width is k; the kernel-quality paper with groups=2, stem=16*k",
        "image",
        wrn16,
        _WIDE_TRAINING,
    ),
    ModelSpec(
        "resnet18",
        "ResNet18; colour images, width=16 for a machine without a GPU",
        "image",
        resnet18,
        _DEEP_TRAINING,
    ),
    ModelSpec(
        "resnet18-strided",
        "ResNet18 with torchvision's 7x7 stem and pool at any size; for studies",
        "image",
        resnet18_strided,
        _DEEP_TRAINING,
    ),
    ModelSpec(
        "backbone",
        "an mlp on features of a pretrained network; photographs (extra 'photos')",
        "any",
        mlp_on_features,
        _DENSE_TRAINING,
    ),
    ModelSpec(
        "efficientnet-lite0",
        "pretrained EfficientNet-Lite0, all of it trained (extra 'photos')",
        "image",
        efficientnet_lite0,
        _sgd(0.01, 100, 1.0, 16, 0.0),
    ),
)

MODELS: Mapping[str, ModelSpec] = MappingProxyType({s.name: s for s in _SPECS})


def get_model_spec(name: str) -> ModelSpec:
    """Return the entry of a network.

    Raises:
        InputError: if there is none; the message lists all of them.

    >>> from labelahead.models import get_model_spec
    >>> get_model_spec("cnn").inputs
    'image'
    """
    if not isinstance(name, str) or name not in MODELS:
        raise InputError(
            f"there is no model {name!r}: {did_you_mean(name, MODELS)}there are "
            f"{', '.join(MODELS)}, or your own as "
            "'module:factory' or 'path/to/file.py:factory'"
        )
    return MODELS[name]


def build_model(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    width: int | float | None = None,
    seed: int = 0,
    example: Batch | None = None,
    **options: Any,
) -> nn.Module:
    """Build a network with weights drawn from `seed`.

    Args:
        name: one of `MODELS`, or your own factory, 'module:factory' or 'file.py:factory'. A factory
            is called with those of shape (or input_shape), classes (or num_classes) and width that
            it names.
        shape: the shape of one input.
        classes: the number of classes.
        width: units or channels of the first layer (of the last group in wrn1 and wrn2, the factor
            k in wrn16); None for the default of the network.
        seed: the seed of the weights.
        example: some inputs that are not a single tensor, on which your own network is checked;
            `shape` is () then.
        options: further arguments of the network, such as depth.

    Raises:
        InputError: if the name, an option or the width is invalid.
        ModelError: if your own network does not return (n, classes).

    >>> from labelahead.models import build_model
    >>> build_model("mlp", (64,), 10, seed=0)(torch.zeros(2, 64)).shape
    torch.Size([2, 10])
    """
    shape = () if example is not None else require_input_shape(shape)
    classes = require_whole_number(classes, "classes")
    user_options = options | ({} if width is None else {"width": width})
    if isinstance(name, str) and ":" in name:
        return build_user_model(name, shape, classes, user_options, seed, example)
    entry = get_model_spec(name)
    known = list(inspect.signature(entry.make).parameters)[2:]
    for key in user_options:
        if key not in known:
            listed = f"there are {', '.join(known)}" if known else "it has none"
            raise InputError(f"{name} has no option {key!r}: {did_you_mean(key, known)}{listed}")
    _refuse_oversized(entry, shape, classes, user_options)
    with temporary_seed(seed):
        return entry.make(shape, classes, **user_options)


def _refuse_oversized(
    entry: ModelSpec, shape: tuple[int, ...], classes: int, user_options: dict[str, Any]
) -> None:
    """Raise before a network is built that does not fit into memory; small widths are not checked."""
    width = user_options.get("width")
    if (
        not isinstance(width, int | float)
        or isinstance(width, bool)
        or width <= MAX_UNCHECKED_WIDTH
    ):
        return
    if width <= MAX_WIDTH:
        with torch.device("meta"):
            size = sum(p.numel() for p in entry.make(shape, classes, **user_options).parameters())
        if size <= MAX_PARAMETERS:
            return
        grown = f"would have {size:,} parameters; expected at most {MAX_PARAMETERS:,}"
    else:
        grown = f"is wider than {MAX_WIDTH:,}"
    raise InputError(f"{entry.name} with width={width:g} {grown}: make it narrower")


def choose_default_model(
    kind: str, shape: tuple[int, ...], n: int, *, photos: bool = False
) -> tuple[str, str]:
    """Return the default model for n inputs of a shape, and the reason.

    The exact learner is the default where docs/results-exact.md shows it ahead: on embeddings, on
    columns and on tiny images. On larger images without a pretrained encoder a convolutional network learns
    features that no kernel on pixels has.

    Args:
        kind: "vector" or "image".
        shape: the shape of one input; () for an embedding.
        n: the number of inputs.
        photos: whether the images are photographs.

    >>> from labelahead.models import choose_default_model
    >>> choose_default_model("image", (3, 32, 32), 1000)[0], choose_default_model("vector", (20,), 1000)[0]
    ('cnn', 'exact')
    """
    n = require_whole_number(n, "n")
    if kind not in ("vector", "image"):
        raise InputError(f"kind is {kind!r}; expected 'vector' or 'image'")
    if not shape:
        return EXACT, f"{n} items by an embedding: nothing to train, every label counts at once"
    shape = require_input_shape(shape)
    if kind == "vector" or len(shape) != 3:
        return (
            EXACT,
            f"{n} rows of {shape[0]} numbers: nothing to train, every label counts at once",
        )
    side = max(shape[1:])
    size = f"{shape[2]}x{shape[1]} pixels"
    if photos and is_image_encoder_available():
        return EXACT, (
            f"{n} photographs, by features of a network that has seen a million: they need far "
            "fewer labels than "
            "pixels, and there is nothing to train"
        )
    if photos:
        return "cnn", (
            "photographs are best served by pretrained features, but these are not installed "
            "(pip install 'labelahead[photos]'): a cnn from scratch on pixels instead"
        )
    if side <= MAX_TINY_SIDE:
        return (
            EXACT,
            f"{n} images of {size} are tiny: the exact learner uses their pixels; nothing is "
            "trained",
        )
    if side <= MAX_SMALL_SIDE:
        return "cnn", f"{n} images of {size} are small: a cnn is trained in seconds"
    return (
        "cnn",
        f"{n} images of {size}: a cnn is trained on them, slowly; smaller images train faster",
    )
