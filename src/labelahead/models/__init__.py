"""Networks by name, a user's own networks, and features of pretrained encoders.

    model = build_model("cnn", (1, 28, 28), 10, seed=0)
    model = build_model("mynets.py:make", (64,), 3)
    features = embed_images(images, n, cache=folder, fingerprint=text)  # extra `photos`

Each entry of `MODELS` holds a function (shape, classes, width, **options) -> nn.Module and the
training settings that suit it. The last layer of each network is an `nn.Linear`.

    >>> import torch
    >>> from labelahead.models import EXACT, MODELS, USER_MODEL_TRAINING
    >>> MODELS["mlp"].summary
    'two hidden layers of 128; vectors and tiny images, trains in a blink'
    >>> EXACT  # the name of the model that needs no training
    'exact'
    >>> USER_MODEL_TRAINING["optimiser"]
    'adam'
"""

from labelahead.models.catalogue import (
    EXACT,
    MODELS,
    USER_MODEL_TRAINING,
    build_model,
    choose_default_model,
    get_model_spec,
)
from labelahead.models.image_encoder import embed_images, scale_pixels, standardise_features

__all__ = [
    "EXACT",
    "MODELS",
    "USER_MODEL_TRAINING",
    "build_model",
    "choose_default_model",
    "embed_images",
    "get_model_spec",
    "scale_pixels",
    "standardise_features",
]
