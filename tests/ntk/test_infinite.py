"""Infinite-width kernels against quadrature, a naive twin, neural-tangents and wide networks."""

import json
from math import erf, pi, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import nn

from labelahead import InputError, infinite_kernel, kernel
from labelahead.errors import NumericalError
from labelahead.models.networks import convnet, fcn, mlp
from labelahead.ntk.infinite import DUALS
from labelahead.seeds import temporary_seed

REFERENCE = json.loads((Path(__file__).parent / "infinite_reference.json").read_text())
TRIPLES = [(0.3, 0.8, 1.1), (-0.7, 1.3, 0.5), (0.0, 0.4, 2.0), (0.9, 1.0, 0.9), (1.2, 1.2, 1.2)]
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
SMOOTH = {  # activation -> (φ, φ')
    "erf": (np.vectorize(erf), lambda x: 2 / sqrt(pi) * np.exp(-(x**2))),
    "gelu": (lambda x: x * norm.cdf(x), lambda x: norm.cdf(x) + x * norm.pdf(x)),
}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_quadrature(activation, k, v1, v2):
    """(E φφ, E φ'φ'): Gauss-Hermite where φ is smooth, else one integral over the half line."""
    rest = sqrt(max(v2 - k * k / v1, 0.0))
    if activation in SMOOTH:
        u = sqrt(v1) * NODES[:, None]
        v = k / v1 * u + rest * NODES
        return tuple(WEIGHTS @ (f(u) * f(v)) @ WEIGHTS for f in SMOOTH[activation])
    if rest < 1e-7:
        return k / 2, 0.5  # u = v

    def value(t):  # E φ(v) for given u, times φ(u) and u's density
        z = k / sqrt(v1) * t / rest
        return sqrt(v1) * t * rest * (z * norm.cdf(z) + norm.pdf(z)) * norm.pdf(t)

    def slope(t):
        return norm.cdf(k / sqrt(v1) * t / rest) * norm.pdf(t)

    return tuple(quad(f, 0, 12, epsabs=1e-12, epsrel=1e-12)[0] for f in (value, slope))


@pytest.mark.parametrize("activation", DUALS)
@pytest.mark.parametrize("triple", TRIPLES)
def test_duals_equal_expectations(activation, triple):
    found = DUALS[activation](*(torch.tensor(t, dtype=torch.float64) for t in triple), True)
    for ours, true in zip(found, by_quadrature(activation, *triple), strict=True):
        assert float(ours) == pytest.approx(true, abs=1e-9)


@pytest.mark.parametrize("activation", DUALS)
def test_second_dual_is_derivative_of_first(activation):
    k, v1, v2 = (torch.tensor(t, dtype=torch.float64) for t in (0.4, 0.9, 1.3))
    up, down = (DUALS[activation](k + h, v1, v2, False)[0] for h in (1e-5, -1e-5))
    assert float(DUALS[activation](k, v1, v2, True)[1]) == pytest.approx(
        float(up - down) / 2e-5, rel=1e-8
    )


def test_relu_of_depth_one_equals_closed_form():
    x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [-2.0, 0.0]], dtype=torch.float64)
    K = infinite_kernel(x, depth=1, bias_std=None, kind="nngp")
    T = infinite_kernel(x, depth=1, bias_std=None)
    # Angles 45° and 180°; weights of variance 2/d keep ‖x‖²/d·2 = 1 and 2.
    length, angle = sqrt(2), pi / 4
    kappa1 = (np.sin(angle) + (pi - angle) * np.cos(angle)) / pi
    kappa0 = (pi - angle) / pi
    assert float(K[0, 1]) == pytest.approx(length * kappa1, rel=1e-14)
    assert float(T[0, 1]) == pytest.approx(
        length * kappa1 + length * np.cos(angle) * kappa0, rel=1e-14
    )
    assert float(K[0, 0]) == pytest.approx(1, rel=1e-15)
    assert float(T[0, 0]) == pytest.approx(2, rel=1e-15)
    assert float(K[0, 2]) == pytest.approx(0, abs=1e-15)
    assert float(T[0, 2]) == pytest.approx(0, abs=1e-15)


def naive_dual(activation, K):
    """T and Ṫ of a joint covariance, one pair after the other, from the textbooks."""
    T, slope = np.zeros_like(K), np.zeros_like(K)
    for i in range(len(K)):
        for j in range(len(K)):
            k, v1, v2 = K[i, j], K[i, i], K[j, j]
            if activation == "relu":
                angle = np.arccos(np.clip(k / sqrt(v1 * v2), -1, 1)) if i != j else 0.0
                T[i, j] = sqrt(v1 * v2) * (np.sin(angle) + (pi - angle) * np.cos(angle)) / (2 * pi)
                slope[i, j] = (pi - angle) / (2 * pi)
            elif activation == "erf":
                T[i, j] = 2 / pi * np.arcsin(2 * k / sqrt((1 + 2 * v1) * (1 + 2 * v2)))
                slope[i, j] = 4 / pi / sqrt((1 + 2 * v1) * (1 + 2 * v2) - 4 * k * k)
            else:
                T[i, j], slope[i, j] = by_quadrature("gelu", k, v1, v2)
    return T, slope


def naive_fc(x, depth, activation, w, b):
    K = w * w * x @ x.T / x.shape[1] + b * b
    theta = K
    for _ in range(depth):
        T, slope = naive_dual(activation, K)
        K = w * w * T + b * b
        theta = K + w * w * theta * slope
    return K, theta


@pytest.mark.parametrize("activation", DUALS)
def test_fc_equals_loop_over_pairs(activation):
    x = normal(5, 7)
    nngp, ntk = naive_fc(x.numpy(), 3, activation, 1.3, 0.2)
    options = {"activation": activation, "weight_std": 1.3, "bias_std": 0.2}
    np.testing.assert_allclose(infinite_kernel(x, kind="nngp", **options), nngp, atol=1e-8)
    np.testing.assert_allclose(infinite_kernel(x, **options), ntk, atol=1e-8)


def shifts(H, W):
    """Nine matrices: what a pixel of the filter sees of the image, zero outside."""
    found = []
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            S = np.zeros((H, W, H, W))
            for y in range(H):
                for x in range(W):
                    if 0 <= y + dy < H and 0 <= x + dx < W:
                        S[y, x, y + dy, x + dx] = 1
            found.append(S.reshape(H * W, H * W))
    return found


def pooling(H, W):
    A = np.zeros((H // 2, W // 2, H, W))
    for y in range(H // 2):
        for x in range(W // 2):
            A[y, x, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2] = 1 / 4
    return A.reshape((H // 2) * (W // 2), H * W)


def naive_conv(x, depth, activation, w, b, pools, skips=()):
    """The joint covariance of all pixels of all images, as one matrix; layers as matrices."""
    n, channels, H, W = x.shape
    every = np.eye(n)
    flat = x.transpose(0, 2, 3, 1).reshape(n * H * W, channels)
    K, theta = flat @ flat.T / channels, None
    entered = {}
    for number in range(1, depth + 1):
        if number in skips:
            entered[number + 1] = K, 0 if theta is None else theta
        S = [np.kron(every, s) for s in shifts(H, W)]
        K = w * w / 9 * sum(s @ K @ s.T for s in S) + b * b
        theta = K if theta is None else K + w * w / 9 * sum(s @ theta @ s.T for s in S)
        if number in entered:
            into, before = entered[number]
            K, theta = K + w * w * into, theta + w * w * into + w * w * before
        K, slope = naive_dual(activation, K)
        theta = theta * slope
        if number in pools:
            A = np.kron(every, pooling(H, W))
            K, theta, H, W = A @ K @ A.T, A @ theta @ A.T, H // 2, W // 2
    mean = np.kron(every, np.full((1, H * W), 1 / (H * W)))
    K, theta = mean @ K @ mean.T, mean @ theta @ mean.T
    return w * w * K + b * b, w * w * K + b * b + w * w * theta


@pytest.mark.parametrize(("activation", "pools"), [("relu", (1,)), ("relu", ()), ("erf", (1, 2))])
def test_conv_equals_matrices_of_all_pixels(activation, pools):
    x = normal(3, 2, 5, 4)
    nngp, ntk = naive_conv(x.numpy(), 2, activation, 1.3, 0.2, pools)
    options = {"network": "conv", "depth": 2, "weight_std": 1.3, "bias_std": 0.2, "pools": pools}
    options["activation"] = activation
    np.testing.assert_allclose(infinite_kernel(x, kind="nngp", **options), nngp, rtol=1e-9)
    np.testing.assert_allclose(infinite_kernel(x, **options), ntk, rtol=1e-8)


@pytest.mark.parametrize(
    ("depth", "skips", "pools"), [(3, (2,), ()), (2, (1,), (2,)), (5, (2, 4), (3,))]
)
def test_residual_blocks_equal_matrices_of_all_pixels(depth, skips, pools):
    x = normal(3, 2, 4, 5)
    nngp, ntk = naive_conv(x.numpy(), depth, "relu", 1.3, 0.2, pools, skips)
    options = {
        "network": "conv",
        "depth": depth,
        "weight_std": 1.3,
        "bias_std": 0.2,
        "pools": pools,
        "skips": skips,
    }
    np.testing.assert_allclose(infinite_kernel(x, kind="nngp", **options), nngp, rtol=1e-9)
    np.testing.assert_allclose(infinite_kernel(x, **options), ntk, rtol=1e-8)
    np.testing.assert_allclose(infinite_kernel(x[:1], x, **options), ntk[:1], rtol=1e-8)


class Residual(nn.Module):
    """A stem and one block, as in `wrn1` without BatchNorm, in the NTK parametrisation without
    biases.
    """

    def __init__(self, channels, width):
        super().__init__()
        sizes = {"stem": (channels, 3), "one": (width, 3), "two": (width, 3), "past": (width, 1)}
        for name, (into, side) in sizes.items():
            layer = nn.Conv2d(into, width, side, padding=side // 2, bias=False)
            nn.init.normal_(layer.weight)
            layer.scale = 1.3 / (into * side * side) ** 0.5
            setattr(self, name, layer)
        self.head = nn.Linear(width, 1, bias=False)
        nn.init.normal_(self.head.weight)
        self.out = 1.3 / width**0.5

    def forward(self, x):
        h = torch.relu(self.stem(x) * self.stem.scale)
        inner = torch.relu(self.one(h) * self.one.scale)
        h = self.two(inner) * self.two.scale + self.past(h) * self.past.scale
        return self.head(torch.relu(h).mean((2, 3))) * self.out


def test_wide_residual_networks_converge_to_limit():
    x = normal(4, 1, 4, 4)
    want = infinite_kernel(x, network="conv", depth=3, skips=(2,), weight_std=1.3, bias_std=None)
    found = []
    for seed in range(24):
        with temporary_seed(seed):
            found.append(kernel(Residual(1, 96).double().eval(), x))
    apart = torch.stack(found).mean(0) - want
    assert float(apart.norm() / want.norm()) < 0.06


def case_name(case):
    return "-".join(str(case[k]) for k in ("network", "depth", "activation", "kind", "bias_std"))


@pytest.mark.parametrize("case", REFERENCE["cases"], ids=case_name)
def test_infinite_kernel_equals_neural_tangents(case):
    options = {k: v for k, v in case.items() if k not in ("inputs", "values")}
    x = torch.tensor(REFERENCE["inputs"][case["inputs"]], dtype=torch.float64)
    found = infinite_kernel(x, **options)
    half = found[tuple(torch.triu_indices(len(x), len(x)))]
    # Its ReLU kernels of a point with itself are off by some 1e-8: the slope's rounding.
    scale = float(found.diagonal().max())
    assert float((half - half.new_tensor(case["values"])).abs().max()) < 1e-7 * scale


@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize("activation", DUALS)
@pytest.mark.parametrize("network", ["fc", "conv"])
def test_self_and_cross_kernels_agree_for_any_block_size(network, activation, kind):
    x = normal(12, 2, 4, 4)
    options = {"network": network, "activation": activation, "kind": kind, "depth": 2}
    K = infinite_kernel(x, **options)
    assert torch.equal(K, K.T)
    assert float(torch.linalg.eigvalsh(K)[0]) > 0
    for cross, block in (
        (infinite_kernel(x, x, **options), K),  # the same points, not known to be
        (infinite_kernel(x[:5], x[3:], **options), K[:5, 3:]),
        (infinite_kernel(x[:1], x, **options), K[:1]),
        (infinite_kernel(x, memory=1, **options), K),
        (infinite_kernel(x.flip(0), **options), K.flip(0, 1)),
    ):
        torch.testing.assert_close(cross, block, rtol=1e-12, atol=1e-12)


def test_invariances():
    x = normal(6, 2, 4, 4)
    turn = torch.linalg.qr(normal(32, 32, seed=1)).Q
    for activation in DUALS:
        K = infinite_kernel(x, activation=activation)
        turned = infinite_kernel(x.flatten(1) @ turn, activation=activation)
        torch.testing.assert_close(turned, K, rtol=1e-9, atol=1e-9)
        C = infinite_kernel(x, network="conv", activation=activation, pools=[1])
        for same in (x.transpose(2, 3), x.flip(3), x.flip(1)):
            again = infinite_kernel(same, network="conv", activation=activation, pools=[1])
            torch.testing.assert_close(again, C, rtol=1e-10, atol=1e-10)
    for network in ("fc", "conv"):  # ReLU without biases is homogeneous, of degree two in the pair
        one, three = (
            infinite_kernel(s * x, network=network, depth=2, bias_std=None) for s in (1, 3)
        )
        torch.testing.assert_close(three, 9 * one, rtol=1e-10, atol=1e-10)


def test_equal_opposite_and_zero_points_are_exact():
    x = normal(4, 10)
    x[1], x[2], x[3] = x[0] + 1e-9, -x[0], 0
    for activation in DUALS:
        for bias in (None, 0.0, 0.3):
            for width in (None, 50):
                options = {"activation": activation, "bias_std": bias, "width": width, "depth": 5}
                K = infinite_kernel(x, **options)
                assert torch.isfinite(K).all()
                assert float(torch.linalg.eigvalsh(K)[0]) > -1e-7 * float(K.diagonal().max())
                torch.testing.assert_close(K[0, 1], K[0, 0], rtol=1e-7, atol=0)
                torch.testing.assert_close(infinite_kernel(x, x, **options), K, rtol=1e-9, atol=0)
    # A point with itself: the angle is zero in every layer, Θ = (depth + 1)·K for He's weights.
    K = infinite_kernel(x[:1], bias_std=None, depth=9)
    assert float(K) == pytest.approx(10 * 2 * float((x[0] ** 2).mean()), rel=1e-14)


class Scaled(nn.Module):
    """The NTK parametrisation: z = 1.3·W a/√inputs + 0.4·b, the bias as one more column of W."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.scale = 1.3 / sqrt(inputs)
        self.linear = nn.Linear(inputs + 1, outputs, bias=False)
        nn.init.normal_(self.linear.weight)

    def forward(self, a):
        return self.linear(torch.cat([self.scale * a, torch.full_like(a[:, :1], 0.4)], 1))


def strays_of_scaled_networks(width, seeds):
    x = normal(6, 10)
    limit = infinite_kernel(x, depth=2, weight_std=1.3, bias_std=0.4)
    found = []
    for seed in range(seeds):
        with temporary_seed(seed):
            layers = [Scaled(10, width), nn.ReLU(), Scaled(width, width), nn.ReLU()]
            net = nn.Sequential(*layers, Scaled(width, 1)).eval()
        difference = kernel(net, x.float(), kind="single").double() - limit
        found.append(float(difference.norm() / limit.norm()))
    return found


def test_wide_networks_in_ntk_parametrisation_converge_to_limit():
    narrow, wide = strays_of_scaled_networks(32, 8), strays_of_scaled_networks(1024, 3)
    assert np.mean(wide) < 0.16  # φ² of 1,024 units alone has a mean that strays by √(5/1024)
    assert np.mean(wide) < np.mean(narrow) / 3  # as 1/√width, 1/5.7 is expected


FINITE_NETWORKS = {  # name -> network of a width, its weights, its biases, the kernel's name, two widths
    "fcn": (
        lambda w: fcn((1, 8, 8), 2, w, depth=2),
        [sqrt(2), sqrt(2), 1.0],
        lambda w: 0.0,
        "fc",
        (32, 1024),
    ),
    "mlp": (
        lambda w: mlp((1, 8, 8), 2, w),
        1 / sqrt(3),
        lambda w: [1 / sqrt(3 * 64), 1 / sqrt(3 * w), 1 / sqrt(3 * w)],
        "fc",
        (32, 1024),
    ),
    "convnet": (
        lambda w: convnet((1, 8, 8), 2, w, depth=3),
        [sqrt(2), sqrt(2), 1.0],
        lambda w: 0.0,
        "conv",
        (8, 128),
    ),
}


@pytest.mark.parametrize(
    ("name", "kind"), [("fcn", "single"), ("mlp", "pseudo"), ("convnet", "trace")]
)
def test_built_in_networks_converge_to_limit(name, kind):
    """One network strays by 3/√width; the mean of eight must be near, and the strays shrink."""
    make, weight, bias, network, widths = FINITE_NETWORKS[name]
    x = normal(5, 1, 8, 8)
    x[:, :, :3] = 0  # as the margins of digits: there ReLU's slope at zero counts
    strays = []
    for width in widths:
        options = {"weight_std": weight, "bias_std": bias(width), "width": width, "depth": 2}
        limit = infinite_kernel(x, network=network, **options)
        found = []
        for seed in range(8):
            with temporary_seed(seed):
                net = make(width).eval()
            found.append(kernel(net, x.float(), kind=kind).double() / limit.norm())
        strays.append(np.mean([float((K - limit / limit.norm()).norm()) for K in found]))
        mean = sum(found) / len(found) - limit / limit.norm()
    assert float(mean.norm()) < 0.06
    assert strays[1] < strays[0] / 2


def test_zero_patches_have_slope_as_in_pytorch():
    """Without it the kernel of `convnet` on an image with margins would be another one."""
    x = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    # Zero biases: every unit is zero, and of all weights and biases only the last bias matters.
    found = infinite_kernel(x, network="conv", bias_std=0.0, width=64)
    assert float(found) == 1
    with temporary_seed(0):
        net = convnet((1, 8, 8), 1, 64, depth=4).eval()
    assert float(kernel(net, x.float(), kind="single")) == 1


def test_dtypes_progress_and_no_graph():
    x = normal(4, 1, 4, 4).requires_grad_()
    seen = []
    K = infinite_kernel(x, network="conv", memory=1, progress=lambda d, t: seen.append((d, t)))
    assert seen == [(i, 10) for i in range(1, 11)]
    assert not K.requires_grad
    assert K.dtype == torch.float64
    seen.clear()
    infinite_kernel(x, x[:3], memory=1, progress=lambda d, t: seen.append((d, t)))
    assert seen[-1] == (4, 4)
    single = infinite_kernel(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), infinite_kernel(x), rtol=1e-5, atol=1e-5)
    assert infinite_kernel(torch.arange(6).reshape(2, 3)).dtype == torch.float64
    linear = infinite_kernel(x, depth=0, weight_std=1.0, bias_std=None)
    torch.testing.assert_close(linear, (x.flatten(1) @ x.flatten(1).T / 16).detach())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": "convnet"}, "did you mean 'conv'"),
        ({"activation": "tanh"}, "there are relu, erf, gelu"),
        ({"kind": "full"}, "there are ntk, nngp"),
        ({"depth": -1}, "depth is -1"),
        ({"depth": 0, "network": "conv"}, "at least 1"),
        ({"depth": 2, "weight_std": [1.0, 1.0]}, "or 3 of them"),
        ({"bias_std": -0.1}, "bias_std is -0.1"),
        ({"width": 0}, "width is 0"),
        ({"pools": [1]}, "network='conv'"),
        ({"pools": [4], "network": "conv"}, "depth 3"),
        ({"pools": [1, 2, 3], "network": "conv"}, "are too many"),
        ({"skips": [2]}, "network='conv'"),
        ({"skips": [3], "network": "conv"}, "from 1 to 2"),
        ({"skips": [1, 2], "network": "conv"}, "two apart"),
        ({"skips": [1], "network": "conv", "pools": [1]}, "without a pool"),
        ({"memory": 0}, "memory is 0"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(InputError, match=message):
        infinite_kernel(normal(3, 1, 4, 4), **options)


def test_invalid_inputs_raise():
    x = normal(3, 4)
    for bad in (x[0], x[:0], [[1.0]], x.to(torch.complex64)):
        with pytest.raises(InputError):
            infinite_kernel(bad)
    with pytest.raises(InputError, match="channels"):
        infinite_kernel(x, network="conv")
    with pytest.raises(InputError, match="same shape"):
        infinite_kernel(x, x[:, :2])
    with pytest.raises(NumericalError, match="x2 holds NaN"):
        infinite_kernel(x, x / 0)
