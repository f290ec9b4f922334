"""All networks by name: shapes, widths, seeds, kernels; and the default model."""

import logging
from itertools import pairwise
from math import prod

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.errors import InputError
from labelahead.models import MODELS, build_model
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


def build_narrow(name, shape, classes=3, **options):
    return build_model(name, shape, classes, width=NARROW[name], **options)


def warm_up_batchnorm(model, shape, seed=0):
    """Run training passes: BatchNorm of a new network is the identity and would hide mistakes."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=rng))
        for _ in range(3):
            model.train()(torch.randn(4, *shape, generator=rng))
    return model.eval()


def count_parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", PLAIN)
def test_networks_return_one_score_per_class(name, shape):
    if name == "tutorial-cnn" and min(shape[1:]) < 16:
        with pytest.raises(InputError, match="at least 16x16"):
            build_narrow(name, shape)
        return
    model = build_narrow(name, shape, classes=7).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, *shape)).shape == (2, 7)
    # the input of the last layer is the embedding
    assert isinstance(list(model.modules())[-1], nn.Linear)
    assert not [m for m in model.modules() if isinstance(m, nn.Dropout)]  # no dropout by default


@pytest.mark.parametrize("name", ["mlp", "fcn"])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 2, 3, 4)])
def test_dense_networks_flatten_anything(name, shape):
    model = build_model(name, shape, 2, width=6, depth=1)
    assert model(torch.zeros(3, *shape)).shape == (3, 2)
    assert count_parameters(model) == prod(shape) * 6 + 6 + 6 * 2 + 2


@pytest.mark.parametrize("name", IMAGES)
def test_convolutional_networks_refuse_vectors(name):
    with pytest.raises(InputError, match="use 'mlp'"):
        build_model(name, (64,), 3)
    with pytest.raises(InputError, match=r"\(1, 28, 28\)"):
        build_model(name, (28, 28), 3)


@pytest.mark.parametrize("name", PLAIN)
def test_parameter_count_grows_with_the_square_of_the_width(name):
    shape, w = (1, 16, 16), NARROW[name]
    sizes = [count_parameters(build_model(name, shape, 3, width=k * w)) for k in (1, 2, 4, 8)]
    steps = [b / a for a, b in pairwise(sizes)]
    assert all(1.4 < r < 4.2 for r in steps), steps
    assert steps[-1] > steps[0] or steps[-1] > 3.5


def test_parameter_counts_equal_published_ones():
    """Compare with parameter counts of the literature or of manual addition."""
    assert (
        count_parameters(build_model("mlp", (64,), 10))
        == 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10
    )
    assert count_parameters(build_model("tutorial-cnn", (3, 32, 32), 10)) == 62_006
    assert count_parameters(build_model("resnet18", (3, 32, 32), 10)) == 11_173_962
    assert count_parameters(build_model("vgg11", (3, 32, 32), 10)) == 9_228_362
    # torchvision's vgg11 has 9,220,480 in its convolutions; ours has one linear layer after them
    assert (
        count_parameters(build_model("vgg11-plain", (3, 32, 32), 10)) == 9_220_480 + 512 * 10 + 10
    )
    # torchvision's resnet18 has 11,689,512 with 1,000 classes
    assert count_parameters(build_model("resnet18-strided", (3, 32, 32), 1000)) == 11_689_512
    layers = [m for m in build_model("convnet", (3, 32, 32), 10).modules() if hasattr(m, "weight")]
    assert len(layers) == 8
    assert len([m for m in build_model("fcn", (9,), 2).modules() if isinstance(m, nn.Linear)]) == 4
    wide = build_model("wrn16", (3, 32, 32), 10, width=4)
    assert (
        len([m for m in wide.modules() if isinstance(m, nn.Conv2d) and m.kernel_size[0] == 3]) == 13
    )
    assert count_parameters(wide) == 2_748_890  # WRN-16-4 of Zagoruyko & Komodakis: 2.7 M
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
    model = warm_up_batchnorm(build_narrow(name, shape), shape)
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
    model = warm_up_batchnorm(build_narrow(name, shape), shape)
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        together, alone = model(x), torch.cat([model(x[i : i + 1]) for i in range(5)])
        assert relative(together, alone) < 1e-12
        assert torch.equal(model(x), together)
    assert (together[0] - together[1]).abs().max() > 1e-6  # the samples differ


def test_backbone_refuses_other_inputs_than_features():
    assert build_model("backbone", (1280,), 4, width=8)(torch.zeros(2, 1280)).shape == (2, 4)
    with pytest.raises(InputError, match="embed first"):
        build_model("backbone", (3, 64, 64), 4)
