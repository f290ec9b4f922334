"""Networks by name: options, seeds, and the default model."""

import pytest
import torch
from torch import nn

from labelahead.errors import InputError
from labelahead.models import EXACT, MODELS, build_model, choose_default_model
from labelahead.models.catalogue import ModelSpec
from labelahead.models.training import get_default_training
from labelahead.seeds import temporary_seed
from tests.models.test_networks import NARROW, PLAIN, build_narrow


def test_catalogue_is_complete_and_read_only():
    assert set(PLAIN) == set(NARROW)
    for name, entry in MODELS.items():
        assert isinstance(entry, ModelSpec)
        assert entry.name == name
        assert entry.inputs in ("image", "any")
        assert entry.summary
        assert "\n" not in entry.summary
        get_default_training(name)  # the default training is valid
    with pytest.raises(TypeError):
        MODELS["new"] = MODELS["mlp"]


@pytest.mark.parametrize("name", PLAIN)
def test_seed_determines_weights_and_leaves_the_generator(name):
    shape = (1, 16, 16)
    state = torch.random.get_rng_state()
    one, two, other = (build_narrow(name, shape, seed=s) for s in (5, 5, 6))
    assert torch.equal(torch.random.get_rng_state(), state)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(
        not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )


def test_generator_is_restored_after_an_error():
    state = torch.random.get_rng_state()
    with pytest.raises(RuntimeError), temporary_seed(3):
        torch.rand(2) @ torch.rand(3)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_build_model_options_change_the_network():
    deep = build_model("mlp", (4,), 2, width=5, depth=4, activation="tanh", dropout=0.5)
    assert [type(m).__name__ for m in deep].count("Tanh") == 4
    assert [m.p for m in deep if isinstance(m, nn.Dropout)] == [0.5] * 4
    assert len(build_model("mlp", (4,), 2, depth=0)) == 2  # flatten, linear
    assert len(build_model("wrn2", (1, 8, 8), 2, width=8, blocks=3).blocks) == 6
    assert build_model("mlp", (4,), 2, width=8.0)[1].out_features == 8


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet", {}, "did you mean 'resnet18'.*there are mlp"),
        ("ResNet-18", {}, "did you mean 'resnet18'"),
        ("zzz", {}, "there are mlp, fcn, cnn"),
        (None, {}, "there is no model None"),
        ("mlp", {"dept": 3}, "did you mean 'depth'"),
        ("resnet18", {"depth": 3}, "no option 'depth'"),
        ("mlp", {"width": 0}, "width is 0"),
        ("mlp", {"width": -3}, "width is -3"),
        ("mlp", {"width": 3.5}, "width is 3.5; expected a whole number"),
        ("mlp", {"width": True}, "width is True"),
        ("mlp", {"width": "64"}, "width is '64'"),
        ("mlp", {"depth": -1}, "depth is -1"),
        ("mlp", {"dropout": 1.0}, "dropout is 1.0"),
        ("mlp", {"activation": "rleu"}, "did you mean 'relu'"),
        ("mlp", {"seed": -1}, "seed is -1"),
        ("mlp", {"seed": 2**63}, "below 2\\*\\*63"),
        ("mlp", {"classes": 0}, "classes is 0"),
        ("mlp", {"shape": ()}, "shape is \\(\\)"),
        ("mlp", {"shape": (3, 0)}, "every entry of shape is 0"),
        ("mlp", {"shape": 64}, "shape is 64"),
        ("wrn16", {"width": 0.01, "shape": (1, 8, 8)}, "widening factor"),
        ("wrn16", {"groups": 9, "shape": (1, 8, 8)}, "expected 1 to 4"),
        ("wrn2", {"width": 1, "shape": (1, 8, 8)}, "at least 2"),
        ("convnet", {"depth": 1, "shape": (1, 8, 8)}, "at least 2"),
    ],
)
def test_build_model_refuses_invalid_arguments(name, arguments, message):
    given = {"shape": (1, 8, 8) if name == "resnet18" else (4,), "classes": 2} | arguments
    with pytest.raises(InputError, match=message):
        build_model(name, given.pop("shape"), given.pop("classes"), **given)


def test_build_model_accepts_numpy_and_torch_numbers():
    import numpy as np

    model = build_model(
        "mlp", tuple(np.zeros((3, 4)).shape[1:]), np.int64(3), width=torch.tensor(5)
    )
    assert model(torch.zeros(1, 4)).shape == (1, 3)


def test_choose_default_model_depends_on_kind_and_size():
    assert choose_default_model("vector", (30,), 500)[0] == EXACT
    assert choose_default_model("vector", (), 500)[0] == EXACT
    assert choose_default_model("image", (1, 8, 8), 500)[0] == EXACT
    for shape in ((1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 300, 200)):
        name, why = choose_default_model("image", shape, 1000)
        assert name == "cnn"
        assert f"{shape[2]}x{shape[1]}" in why
    build_model(choose_default_model("image", (3, 32, 32), 10)[0], (3, 32, 32), 2)
    with pytest.raises(InputError, match="kind is 'text'"):
        choose_default_model("text", (30,), 10)


def test_choose_default_model_for_photographs_names_the_extra(monkeypatch):
    from labelahead.models import catalogue

    monkeypatch.setattr(catalogue, "is_image_encoder_available", lambda: True)
    assert choose_default_model("image", (3, 200, 300), 50, photos=True)[0] == EXACT
    monkeypatch.setattr(catalogue, "is_image_encoder_available", lambda: False)
    name, why = choose_default_model("image", (3, 200, 300), 50, photos=True)
    assert name == "cnn"
    assert "labelahead[photos]" in why
