"""Parts that networks share."""

import pytest
import torch
from torch import nn

from labelahead.errors import InputError
from labelahead.models import build_model
from labelahead.models.layers import eval_mode, require_image_shape, require_whole_number


def test_he_weights_keep_signals_alive_through_eight_layers():
    x = torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model = build_model("convnet", (3, 16, 16), 4, width=64)
    with torch.no_grad():
        deep = model[:-3](x)
    assert 0.3 < float(deep.square().mean()) < 3  # E[relu(z)²] stays near that of the input


@pytest.mark.parametrize("value", [True, 0, 1.5, "3", None])
def test_require_whole_number_refuses_others(value):
    with pytest.raises(InputError, match=r"width is .*; expected a whole number of at least 1"):
        require_whole_number(value, "width")
    assert require_whole_number(64.0, "width") == 64


def test_require_image_shape_names_the_expected_shape():
    assert require_image_shape((3, 8, 9), "cnn") == (3, 8, 9)
    with pytest.raises(InputError, match=r"give it as \(1, 8, 9\)"):
        require_image_shape((8, 9), "cnn")
    with pytest.raises(InputError, match="at least 16x16 pixels"):
        require_image_shape((3, 8, 32), "cnn", side=16)


def test_eval_mode_restores_the_mode_of_every_module_after_an_error():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5)))
    model[1].eval()
    modes = []

    def fail():
        with eval_mode(model):
            modes.extend(module.training for module in model.modules())
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert not any(modes)
    assert [module.training for module in model] == [True, False]
