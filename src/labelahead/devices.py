"""Devices: which one to use, what it can do, and how much memory it has left."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from labelahead.errors import InputError

__all__ = [
    "describe_device",
    "exact_float32",
    "free_memory",
    "has_float64",
    "list_devices",
    "resolve_device",
    "to_float64",
]

DEVICE_NAMES = "auto, cpu, cuda, cuda:N or mps"
ALLOW_TF32_VARIABLE = "LABELAHEAD_TF32"


def list_devices() -> list[str]:
    """List the devices of this machine that torch can use: "cpu", "cuda:0", ..., "mps"."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def resolve_device(name: str) -> str:
    """Return the device of that name; "auto" is the first GPU, or else the CPU.

    Apple's MPS is used only on request: it has no float64, and small networks are faster on
    the CPU.

    Raises:
        InputError: If there is no such device.

    >>> from labelahead.devices import resolve_device
    >>> resolve_device("cpu")
    'cpu'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        float(torch.zeros(1, device=name))  # a device without numbers, such as meta, is of no use
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"device is {name!r}, which torch {torch.__version__} cannot use here; expected "
            f"{DEVICE_NAMES}: this machine has {', '.join(list_devices())}"
        ) from error
    return name


def describe_device(name: str) -> str:
    """Describe a device in a few words, with its memory if it is a GPU."""
    device = torch.device(name)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{name} ({properties.name}, {properties.total_memory / 2**30:.1f} GiB)"
    return name


def has_float64(device: torch.device) -> bool:
    """Whether the device has double precision; Apple's MPS has not."""
    if device.type in ("cpu", "cuda"):
        return True
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return False
    return True


def to_float64(t: Tensor) -> Tensor:
    """Convert to float64, on the CPU if the tensor's device has none."""
    return t.to(torch.float64) if has_float64(t.device) else t.cpu().to(torch.float64)


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that are free on a GPU, with those that torch caches; None if unknown."""
    if device.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Compute float32 products on a GPU without TF32, unless LABELAHEAD_TF32=1 is set.

    TF32 rounds the factors to 10 bits, and torch uses it for convolutions by default.
    """
    allowed = os.environ.get(ALLOW_TF32_VARIABLE, "") not in ("", "0")
    if device.type != "cuda" or allowed:
        yield
        return
    settings, attribute, exact = _precision_settings()
    before = [getattr(setting, attribute) for setting in settings]
    try:
        for setting in settings:
            setattr(setting, attribute, exact)
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            setattr(setting, attribute, value)


def _precision_settings() -> tuple[list[Any], str, str | bool]:
    """Return torch's settings of TF32, the attribute to set, and its value without TF32.

    Torch refuses to mix its two interfaces: reading the older one raises if the user has set the
    newer one, with a setting per operation.
    """
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    try:
        _ = matmul.allow_tf32, cudnn.allow_tf32
    except RuntimeError:
        return [matmul, cudnn.conv, cudnn.rnn], "fp32_precision", "ieee"
    return [matmul, cudnn], "allow_tf32", False
