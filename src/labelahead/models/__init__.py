"""Networks by name, a user's own networks, and features of a pretrained one.

    model = build("cnn", (1, 28, 28), 10, seed=0)
    model = build("mynets.py:make", (64,), 3)
    features = embed(photographs, n, cache=folder, fingerprint=text)     # extra `photos`

Each entry of `MODELS` is a function (shape, classes, width, **options) -> nn.Module, together with
how it is best trained. The last layer of each is a plain `nn.Linear`.

    >>> import torch
    >>> from labelahead.models import EXACT, MODELS, USER_MODEL_TRAINING
    >>> MODELS["mlp"].summary
    'two hidden layers of 128; vectors and tiny images, trains in a blink'
    >>> EXACT, USER_MODEL_TRAINING["optimiser"]  # the name of the learner that is never trained; how your own network is
    ('exact', 'adam')
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
