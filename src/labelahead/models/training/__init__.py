"""Training on the labelled set: settings (`Training`), `train`, and the result.

model = initialise_model(make, None, get_default_training("cnn"), seed=0)  # make: seed -> network
trained = train(model, x, y, classes, get_default_training("cnn"), seed=0)
outputs = predict(model, pool)

The examples here begin with

    >>> import torch
    >>> from labelahead.models import build_model
    >>> generator = torch.manual_seed(0)
    >>> x = torch.randn(40, 4)
    >>> y = (x[:, 0] > 0).long()
"""

from labelahead.models.training.fit import initialise_model, train
from labelahead.models.training.forward import predict
from labelahead.models.training.objective import AuxiliaryObjective
from labelahead.models.training.settings import Training, TrainingResult, get_default_training

__all__ = [
    "AuxiliaryObjective",
    "Training",
    "TrainingResult",
    "get_default_training",
    "initialise_model",
    "predict",
    "train",
]
