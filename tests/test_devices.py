import pytest
import torch

from labelahead import devices
from labelahead.errors import InputError
from tests.support.devices import PretendedDevice

TF32 = (torch.backends.cuda.matmul, torch.backends.cudnn)


def test_resolve_device_takes_what_there_is():
    assert devices.resolve_device("cpu") == "cpu"
    assert devices.resolve_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")
    assert "cpu" in devices.list_devices()
    assert devices.describe_device("cpu") == "cpu"


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "mps:7", "", "meta", "cpu,cuda"])
def test_unknown_device_says_what_is_available(name):
    with pytest.raises(InputError, match=r"expected auto, cpu, cuda.*this machine has cpu"):
        devices.resolve_device(name)


def test_float64_is_found_by_trying():
    assert devices.has_float64(torch.device("cpu"))
    x = torch.ones(2)
    with PretendedDevice(float64=True) as device:
        assert devices.has_float64(device.device)
        assert devices.to_float64(x.to(device.device)).device == device.device
    with PretendedDevice(float64=False, allowed_exits={"devices.py:to_float64"}) as device:
        assert not devices.has_float64(device.device)
        there = devices.to_float64(x.to(device.device))
        assert (there.device.type, there.dtype) == ("cpu", torch.float64)


def test_free_memory_is_unknown_without_a_gpu():
    assert devices.free_memory(torch.device("cpu")) is None


@pytest.mark.parametrize("asked", [False, True])
def test_tf32_is_off_unless_asked(asked, monkeypatch):
    monkeypatch.setenv("LABELAHEAD_TF32", "1" if asked else "0")
    before = [flag.allow_tf32 for flag in TF32]
    try:
        for flag in TF32:
            flag.allow_tf32 = True
        with devices.exact_float32(torch.device("cuda")):
            assert [flag.allow_tf32 for flag in TF32] == [asked, asked]
        assert [flag.allow_tf32 for flag in TF32] == [True, True]
        with devices.exact_float32(torch.device("cpu")):
            assert [flag.allow_tf32 for flag in TF32] == [True, True]
    finally:
        for flag, value in zip(TF32, before, strict=True):
            flag.allow_tf32 = value


def test_precision_set_per_operation_is_restored():
    if not hasattr(torch.backends.cudnn, "conv"):
        pytest.skip("this torch has no settings per operation")
    settings = [torch.backends.cudnn.conv, torch.backends.cudnn.rnn]
    before = [setting.fp32_precision for setting in settings]
    try:
        settings[0].fp32_precision, settings[1].fp32_precision = "ieee", "tf32"
        with devices.exact_float32(torch.device("cuda")):
            assert [setting.fp32_precision for setting in settings] == ["ieee", "ieee"]
        assert [setting.fp32_precision for setting in settings] == ["ieee", "tf32"]
    finally:
        for setting, value in zip(settings, before, strict=True):
            setting.fp32_precision = value
