"""The pretended device itself: every violation that it is there to find raises."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from labelahead.ntk.layout import _sample_rows
from tests.support.devices import (
    DataLeftDeviceError,
    ForeignGeneratorError,
    MixedDevicesError,
    PretendedDevice,
    to_cpu,
)


@pytest.fixture
def device():
    with PretendedDevice() as pretended:
        yield pretended


def test_operations_have_the_numbers_of_the_cpu(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    x = torch.randn(5, 2, 4, 4)
    want = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    moved = copy.deepcopy(model).to(device.device)
    out = moved(x.to(device.device))
    assert out.device == device.device
    got = torch.autograd.grad(out.square().sum(), list(moved.parameters()))
    assert all(torch.equal(to_cpu(g), w) for g, w in zip(got, want, strict=True))
    assert device.operations["convolution"] == 1


def test_moving_a_module_keeps_tied_parameters(device):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model.to(device.device)
    assert model[1].weight is model[0].weight
    assert model[1].weight.device == device.device


def test_views_and_in_place_operations_change_the_base(device):
    x = torch.zeros(2, 3, device=device.device)
    x[1].add_(1)
    x.T[0, 0] = 5
    assert to_cpu(x).tolist() == [[5, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("other", ["cpu", "lazy:1"])
def test_mixed_devices_raise(device, other):
    x = torch.ones(3, device=device.device)
    with pytest.raises(MixedDevicesError, match="add"):
        x + torch.ones(3, device=other)
    with pytest.raises(MixedDevicesError, match="index"):
        torch.ones(3, device=other)[torch.zeros(2, dtype=torch.long, device=device.device)]
    assert to_cpu(x + torch.tensor(1.0)).tolist() == [2, 2, 2]  # torch allows a single number


def test_generator_of_the_cpu_raises(device):
    with pytest.raises(ForeignGeneratorError, match="rand"):
        torch.rand(3, generator=torch.Generator(), device=device.device)
    x = torch.zeros(3, device=device.device)
    with pytest.raises(ForeignGeneratorError, match="normal_"):
        x.normal_(generator=torch.Generator())


def test_seed_of_the_cpu_gives_other_numbers(device):
    torch.manual_seed(0)
    here = torch.rand(3)
    torch.manual_seed(0)
    assert not torch.equal(to_cpu(torch.rand(3, device=device.device)), here)


def test_numbers_that_leave_the_device_raise():
    t = torch.ones(4, 3)
    with (
        PretendedDevice(allowed_exits=()) as device,
        pytest.raises(DataLeftDeviceError, match=r"layout\.py:_sample_rows copies 12 numbers"),
    ):
        _sample_rows(t.to(device.device), 0, None)
    with PretendedDevice() as device:
        rows = _sample_rows(t.to(device.device), 0, None)
        assert device.exits == {"ntk/layout.py:_sample_rows": 12}
    assert np.array_equal(rows, t)


def test_numpy_needs_a_copy(device):
    x = torch.ones(3, device=device.device)
    with pytest.raises(TypeError, match=r"copy it with \.cpu"):
        x.numpy()
    with pytest.raises(TypeError, match=r"copy it with \.cpu"):
        np.asarray(x)
    assert x.cpu().numpy().tolist() == [1, 1, 1]


def test_without_float64_doubles_raise():
    with PretendedDevice(float64=False) as device:
        x = torch.ones(3, device=device.device)
        with pytest.raises(TypeError, match="float64"):
            x.double()
        with pytest.raises(TypeError, match="float64"):
            torch.zeros(2, dtype=torch.float64, device=device.device)
        with pytest.raises(TypeError, match="float64"):
            torch.zeros(2, dtype=torch.float64).to(device.device)
        assert x.cpu().double().dtype == torch.float64


def test_tensors_are_unusable_outside_of_the_block(device):
    x = torch.ones(3, device=device.device)
    device.__exit__(None, None, None)
    try:
        with pytest.raises(RuntimeError, match="outside"):
            x + 1
    finally:
        device.__enter__()
