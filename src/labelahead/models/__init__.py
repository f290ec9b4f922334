"""Networks by name, a user's own networks, and features of a pretrained one.

    model = build("cnn", (1, 28, 28), 10, seed=0)
    model = build("mynets.py:make", (64,), 3)
    features = embed(photographs, n, cache=folder, fingerprint=text)     # extra `photos`

Each entry of `MODELS` is a function (shape, classes, width, **options) -> nn.Module, together with
how it is best trained. The last layer of each is a plain `nn.Linear`.
"""

from labelahead.models.backbone import embed, pixels, standardise
from labelahead.models.catalogue import EXACT, MODELS, OWN_TRAINING, build, default_model, spec

__all__ = ["EXACT", "MODELS", "OWN_TRAINING", "build", "default_model", "embed", "pixels", "spec", "standardise"]
