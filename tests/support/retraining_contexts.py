"""Small trained networks and their query contexts."""

import torch
from torch import nn

from labelahead.models import build_model
from labelahead.models.training import Training, train
from labelahead.strategies import STRATEGIES
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.context import QueryContext
from tests.support.campaigns import CLASSES, blobs, labelled_pool

LABELLED, ITEMS = 9, 40
PLAIN = Training()


def train_on_labelled(model: nn.Module, how: Training, seed: int = 0) -> nn.Module:
    x, y = blobs(ITEMS)
    train(model, x[:LABELLED], y[:LABELLED], CLASSES, how, seed=seed)
    return model.double()


def make_context(model: nn.Module, how: Training = PLAIN, **more) -> QueryContext:
    """Return the float64 query context after training on the first items."""
    x, y = blobs(ITEMS)
    query_config = QueryConfig(**{"strategy": "naive", "evaluation": 12} | more)
    pool = labelled_pool(y, LABELLED)
    context = QueryContext.from_pool(
        model.eval(), x.double(), pool, query_config, loss=how.loss, seed=1
    )
    context.training = how
    return context


def select_batch(s: QueryContext, name: str, q: int = 5, mode: str = "top"):
    rng = torch.Generator().manual_seed(2)
    return STRATEGIES[name].select_batch(s, q, rng, mode, None)


def make_trained_mlp(loss: str = "squared", **more) -> nn.Module:
    how = Training(loss=loss, steps=40)
    return train_on_labelled(build_model("mlp", (1, 8, 8), CLASSES, width=12, seed=3, **more), how)
