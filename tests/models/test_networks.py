"""All networks by name: shapes, widths, seeds, kernels; and the default model."""

import logging
from itertools import pairwise
from math import prod

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.errors import InputError
from labelahead.models import EXACT, MODELS, build_model, choose_default_model
from labelahead.models.catalogue import ModelSpec
from labelahead.models.training import get_default_training
from labelahead.seeds import temporary_seed
from tests.support.reference_tangent import jacobian, kernels, relative

PLAIN = [name for name in MODELS if name not in ("backbone", "efficientnet-lite0")]
IMAGES = [name for name in PLAIN if MODELS[name].inputs == "image"]
NARROW = {
    "mlp": 8,
    "fcn": 8,
    "cnn": 4,
    "convnet": 4,
    "tutorial-cnn": 6,
    "vgg11": 4,
    "vgg11-plain": 4,
    "wrn1": 8,
    "wrn2": 8,
    "wrn16": 0.25,
    "resnet18": 4,
    "resnet18-strided": 4,
}
SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 20, 33)]


def narrow(name, shape, classes=3, **options):
    return build_model(name, shape, classes, width=NARROW[name], **options)


def warmed(model, shape, seed=0):
    """A BatchNorm with a past: a fresh one is the identity and would hide mistakes."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=rng))
        for _ in range(3):
            model.train()(torch.randn(4, *shape, generator=rng))
    return model.eval()


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_catalogue_is_complete_and_read_only():
    assert set(PLAIN) == set(NARROW)
    for name, entry in MODELS.items():
        assert isinstance(entry, ModelSpec)
        assert entry.name == name
        assert entry.inputs in ("image", "any")
        assert entry.summary
        assert "\n" not in entry.summary
        get_default_training(name)  # its training is valid
    with pytest.raises(TypeError):
        MODELS["new"] = MODELS["mlp"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", PLAIN)
def test_networks_return_one_score_per_class(name, shape):
    if name == "tutorial-cnn" and min(shape[1:]) < 16:
        with pytest.raises(InputError, match="at least 16x16"):
            narrow(name, shape)
        return
    model = narrow(name, shape, classes=7).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, *shape)).shape == (2, 7)
    assert isinstance(list(model.modules())[-1], nn.Linear)  # its input is the embedding
    assert not [m for m in model.modules() if isinstance(m, nn.Dropout)]  # none unless asked


@pytest.mark.parametrize("name", ["mlp", "fcn"])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 2, 3, 4)])
def test_dense_networks_flatten_anything(name, shape):
    model = build_model(name, shape, 2, width=6, depth=1)
    assert model(torch.zeros(3, *shape)).shape == (3, 2)
    assert count(model) == prod(shape) * 6 + 6 + 6 * 2 + 2


@pytest.mark.parametrize("name", IMAGES)
def test_convolutional_networks_refuse_vectors(name):
    with pytest.raises(InputError, match="use 'mlp'"):
        build_model(name, (64,), 3)
    with pytest.raises(InputError, match=r"\(1, 28, 28\)"):
        build_model(name, (28, 28), 3)


@pytest.mark.parametrize("name", PLAIN)
def test_parameter_count_grows_with_the_square_of_the_width(name):
    shape, w = (1, 16, 16), NARROW[name]
    sizes = [count(build_model(name, shape, 3, width=k * w)) for k in (1, 2, 4, 8)]
    steps = [b / a for a, b in pairwise(sizes)]
    assert all(1.4 < r < 4.2 for r in steps), steps
    assert steps[-1] > steps[0] or steps[-1] > 3.5


def test_parameter_counts_equal_published_ones():
    """Parameter counts that the literature gives, or that a hand can add up."""
    assert count(build_model("mlp", (64,), 10)) == 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10
    assert count(build_model("tutorial-cnn", (3, 32, 32), 10)) == 62_006
    assert count(build_model("resnet18", (3, 32, 32), 10)) == 11_173_962
    assert count(build_model("vgg11", (3, 32, 32), 10)) == 9_228_362
    # torchvision's vgg11 has 9,220,480 in its convolutions; ours has one linear layer after them
    assert count(build_model("vgg11-plain", (3, 32, 32), 10)) == 9_220_480 + 512 * 10 + 10
    # torchvision's resnet18 has 11,689,512 with 1,000 classes
    assert count(build_model("resnet18-strided", (3, 32, 32), 1000)) == 11_689_512
    layers = [m for m in build_model("convnet", (3, 32, 32), 10).modules() if hasattr(m, "weight")]
    assert len(layers) == 8
    assert len([m for m in build_model("fcn", (9,), 2).modules() if isinstance(m, nn.Linear)]) == 4
    wide = build_model("wrn16", (3, 32, 32), 10, width=4)
    assert (
        len([m for m in wide.modules() if isinstance(m, nn.Conv2d) and m.kernel_size[0] == 3]) == 13
    )
    assert count(wide) == 2_748_890  # WRN-16-4 of Zagoruyko & Komodakis: 2.7 M
    paper = build_model("wrn16", (3, 32, 32), 10, width=2, groups=2, stem=32)
    assert paper.head.in_features == 64
    assert paper.stem.out_channels == 32


def test_resnet18_has_a_strided_stem_for_large_images():
    assert build_model("resnet18", (3, 64, 64), 2, width=4).stem[0].stride == (1, 1)
    large = build_model("resnet18", (3, 65, 65), 2, width=4).eval()
    assert large.stem[0].kernel_size == (7, 7)
    assert large(torch.zeros(1, 3, 65, 65)).shape == (1, 2)
    small = build_model("resnet18-strided", (3, 32, 32), 2, width=4).eval()
    assert small.stem[0].kernel_size == (7, 7)
    assert small.stem(torch.zeros(1, 3, 32, 32)).shape == (1, 4, 8, 8)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", PLAIN)
def test_tangent_kernel_is_exact_without_fallback(name, caplog):
    shape = (16,) if MODELS[name].inputs == "any" else (2, 16, 16)
    model = warmed(narrow(name, shape), shape)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    with caplog.at_level(logging.DEBUG, logger="labelahead"):
        K = la.kernel(model, x, verify=True)
    assert "torch.func" not in caplog.text
    J = jacobian(model, x)
    assert relative(K, kernels(J, J)["pseudo"]) < 1e-9


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", PLAIN)
def test_samples_are_independent_and_repeatable_in_eval_mode(name):
    shape = (2, 16, 16)
    model = warmed(narrow(name, shape), shape)
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        together, alone = model(x), torch.cat([model(x[i : i + 1]) for i in range(5)])
        assert relative(together, alone) < 1e-12
        assert torch.equal(model(x), together)
    assert (together[0] - together[1]).abs().max() > 1e-6  # and they do differ


@pytest.mark.parametrize("name", PLAIN)
def test_seed_determines_weights_and_leaves_the_generator(name):
    shape = (1, 16, 16)
    state = torch.random.get_rng_state()
    one, two, other = (narrow(name, shape, seed=s) for s in (5, 5, 6))
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


def test_he_weights_keep_signals_alive_through_eight_layers():
    x = torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model = build_model("convnet", (3, 16, 16), 4, width=64)
    with torch.no_grad():
        deep = model[:-3](x)
    assert 0.3 < float(deep.square().mean()) < 3  # E[relu(z)²] stays near that of the input


def test_options_change_the_network():
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


def test_backbone_refuses_other_inputs_than_features():
    assert build_model("backbone", (1280,), 4, width=8)(torch.zeros(2, 1280)).shape == (2, 4)
    with pytest.raises(InputError, match="embed first"):
        build_model("backbone", (3, 64, 64), 4)
