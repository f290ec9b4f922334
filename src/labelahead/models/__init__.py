"""Networks by name, a user's own networks, and features of a pretrained one.

    model = build("cnn", (1, 28, 28), 10, seed=0)
    model = build("mynets.py:make", (64,), 3)
    features = embed(photographs, n, cache=folder, fingerprint=text)     # extra `photos`

Each entry of `MODELS` is a function (shape, classes, width, **options) -> nn.Module, together with
how it is best trained. The last layer of each is a plain `nn.Linear`.

    >>> import torch
    >>> from labelahead.models import EXACT, MODELS, OWN_TRAINING
    >>> MODELS["mlp"].summary
    'two hidden layers of 128; vectors and tiny images, trains in a blink'
    >>> EXACT, OWN_TRAINING["optimiser"]  # the name of the learner that is never trained; how your own network is
    ('exact', 'adam')
"""

from labelahead.models.catalogue import EXACT, MODELS, OWN_TRAINING, build, default_model, spec
from labelahead.models.image_encoder import embed, pixels, standardise

__all__ = [
    "EXACT",
    "MODELS",
    "OWN_TRAINING",
    "build",
    "default_model",
    "embed",
    "pixels",
    "spec",
    "standardise",
]
