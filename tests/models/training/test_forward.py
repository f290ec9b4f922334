"""Embeddings and dropout of a network against explicit computations."""

import torch
from torch import nn

from labelahead.models.training.forward import compute_penultimate_features, predict_with_dropout
from labelahead.seeds import make_generator
from tests.support.campaigns import blobs, own


class Convolutional(nn.Module):
    """A network without linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


def test_embedding_is_input_of_last_linear_layer():
    x, _ = blobs(9)
    model = own().eval()
    want = torch.tanh(model.first(x.flatten(1))) * model.scale
    assert torch.allclose(compute_penultimate_features(model, x), want)
    assert not model.last._forward_pre_hooks
    conv = Convolutional().eval()
    assert torch.allclose(compute_penultimate_features(conv, x), conv(x))


def test_predict_with_dropout_drops_last_layer_inputs():
    x, _ = blobs(40)
    model = own().eval()
    h = torch.tanh(model.first(x.flatten(1))) * model.scale
    kept = torch.rand(h.shape, generator=make_generator(5)) >= 0.75
    with torch.no_grad():
        want = model.last(torch.where(kept, 4 * h, torch.zeros(())))
    assert torch.allclose(predict_with_dropout(model, x, 0.75, make_generator(5)), want, atol=1e-6)
    assert not model.last._forward_pre_hooks
    assert not torch.allclose(want, model(x))
    conv = Convolutional().eval()
    kept = torch.rand(40, 3, generator=make_generator(5)) >= 0.75
    assert torch.allclose(
        predict_with_dropout(conv, x, 0.75, make_generator(5)), 4 * kept * conv(x)
    )
