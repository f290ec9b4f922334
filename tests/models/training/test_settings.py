"""Settings of a training."""

import pytest

from labelahead.errors import InputError
from labelahead.models import MODELS
from labelahead.models.training import Training, get_default_training


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loss", "mse"),
        ("optimiser", "adamw"),
        ("schedule", "cosine"),
        ("start", "hot"),
        ("rate", 0.0),
        ("rate", -1.0),
        ("rate", float("nan")),
        ("rate", "1"),
        ("rate", True),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("weight_decay", -1e-4),
        ("steps", -1),
        ("steps", 1.5),
        ("steps", True),
        ("batch", 0),
        ("epochs", 0),
        ("epochs", 2.5),
        ("clip", 0.0),
        ("shrink", -0.1),
        ("perturb", float("inf")),
        ("stop_accuracy", 0.0),
        ("stop_accuracy", 1.1),
    ],
)
def test_training_refuses_invalid_settings(field, value):
    with pytest.raises(InputError, match=field):
        Training(**{field: value})


def test_get_default_training_knows_every_model():
    for name in MODELS:
        assert isinstance(get_default_training(name), Training)
        assert get_default_training(name) == Training(**MODELS[name].training)
    with pytest.raises(InputError, match="did you mean 'mlp'"):
        get_default_training("mpl")
