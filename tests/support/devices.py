"""A pretended device: CPU numbers in tensors that say they are elsewhere, and a device's rules.

No GPU and no compiler are needed. A tensor on the pretended device is a wrapper around a CPU tensor;
its device is torch's unused "lazy" type, on which autograd runs in the calling thread. Inside
`PretendedDevice` every operation is checked as a GPU checks it, or more strictly:

- tensors of different devices in one operation raise (`MixedDevicesError`), except single numbers
  on the CPU, which torch allows, and explicit copies;
- a CPU generator raises (`ForeignGeneratorError`), and draws without a generator come from a stream
  of the device's own: the CPU's seed does not give the same numbers;
- more than one number that leaves the device raises (`DataLeftDeviceError`) unless the function
  of labelahead that copies it is on the allowed list;
- without float64, as on Apple's MPS, such a tensor on the device raises TypeError.
"""

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import labelahead
from labelahead.devices import has_float64

aten = torch.ops.aten
PACKAGE = f"{Path(labelahead.__file__).parent}/"
COPIES = (aten._to_copy.default, aten.copy_.default, aten._copy_from_and_resize.default)
DOUBLE = (torch.float64, torch.complex128)
# Values are compared on the CPU when a network is probed, a few numbers per layer, and items of a
# data set are read by their positions.
ALLOWED_EXITS = frozenset({"ntk/layout.py:_sample_rows", "batching.py:Samples.__getitem__"})


class MixedDevicesError(RuntimeError):
    """One operation has tensors of several devices."""


class ForeignGeneratorError(RuntimeError):
    """A generator of the CPU draws on the device."""


class DataLeftDeviceError(RuntimeError):
    """Data were copied from the device by a function that is not allowed to."""


class PretendedTensor(Tensor):
    """A CPU tensor that says it is on another device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> "PretendedTensor":
        self = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=device,
        )
        self.inner = inner
        return self

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"can't convert a tensor on {self.device} to numpy: copy it with .cpu()")

    __array__ = numpy

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Pretended({self.inner}, device={self.device})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} on a pretended device outside of its PretendedDevice block")


class PretendedDevice(TorchDispatchMode):
    """Makes "lazy:0", "lazy:1", ... usable as devices inside a with block.

    Args:
        float64: Whether the device has double precision.
        allowed_exits: Functions of labelahead, as "ntk/layout.py:_sample_rows", or packages, as
            "strategies/", that may copy more than one number to the CPU. Code outside of labelahead
            may.
        max_tensor_bytes: A larger tensor raises torch.OutOfMemoryError.
    """

    def __init__(
        self,
        *,
        float64: bool = True,
        allowed_exits: Collection[str] = ALLOWED_EXITS,
        max_tensor_bytes: float = math.inf,
    ) -> None:
        super().__init__()
        self.max_tensor_bytes = max_tensor_bytes
        self.float64 = float64
        self.allowed_exits = tuple(allowed_exits)
        self.device = torch.device("lazy", 0)
        self.second = torch.device("lazy", 1)
        self.operations: Counter[str] = Counter()  # by name
        self.exits: Counter[str] = Counter()  # numbers copied to the CPU, by function
        self.uploads: Counter[str] = Counter()  # copies to the device, by function
        self._random_state = torch.Generator().manual_seed(2**31 - 1).get_state()

    def __enter__(self) -> "PretendedDevice":
        self._before = (
            torch._C._only_lift_cpu_tensors(),
            torch.__future__.get_swap_module_params_on_conversion(),
        )
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=) copies visibly
        # Moving a module keeps its parameter objects, as it does on a real device.
        torch.__future__.set_swap_module_params_on_conversion(True)
        # torch makes no views of wrapped tensors in inference mode; without gradients the numbers
        # are the same.
        self._inference_mode = torch.inference_mode
        # `inference_mode(False)`, which leaves the mode, has nothing to leave.
        torch.inference_mode = lambda mode=True: torch.no_grad() if mode else nullcontext()
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        torch.inference_mode = self._inference_mode
        torch._C._set_only_lift_cpu_tensors(self._before[0])
        torch.__future__.set_swap_module_params_on_conversion(self._before[1])

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        flat, form = tree_flatten((args, kwargs))
        tensors = [t for t in flat if isinstance(t, Tensor)]
        devices = {t.device for t in tensors if isinstance(t, PretendedTensor)}
        wanted = kwargs.get("device")
        wanted = None if wanted is None else self._with_index(torch.device(wanted))
        if not devices and (wanted is None or wanted.type != "lazy"):
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        self.operations[name] += 1
        target = self._check_devices(func, name, tensors, devices, wanted)
        inner = [t.inner if isinstance(t, PretendedTensor) else t for t in flat]
        plain_args, plain_kwargs = tree_unflatten(inner, form)
        if wanted is not None and wanted.type == "lazy":
            plain_kwargs["device"] = torch.device("cpu")
        # Autograd has recorded the operation on the pretended tensors.
        with torch.no_grad(), self._use_own_stream(func, name, plain_kwargs):
            out = REPLACEMENTS.get(func, func)(*plain_args, **plain_kwargs)
        if func is aten.copy_.default and not isinstance(args[0], PretendedTensor):
            return args[0]
        if target.type != "lazy":
            return out
        wrapped = tree_map(lambda t: self._wrap(t, target), out)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)

    def _with_index(self, device: torch.device) -> torch.device:
        return torch.device("lazy", device.index or 0) if device.type == "lazy" else device

    def _check_devices(
        self,
        func: Any,
        name: str,
        tensors: list[Tensor],
        devices: set[torch.device],
        wanted: torch.device | None,
    ) -> torch.device:
        """Raise if devices mix or data leave; return the device of the result."""
        host = [t for t in tensors if not isinstance(t, PretendedTensor)]
        if func in COPIES:
            to, source = (
                (tensors[0].device, tensors[-1]) if wanted is None else (wanted, tensors[0])
            )
            if func is aten._to_copy.default and wanted is None:
                to = source.device
            if isinstance(source, PretendedTensor) and to.type == "cpu":
                self._note_exit(source.numel())
            if not isinstance(source, PretendedTensor):
                self.uploads[_find_caller()] += 1
            return to
        if name in ("_local_scalar_dense", "equal", "is_same_size", "item"):
            self.exits[_find_caller()] += 1
        mixed = [t for t in host if t.dim() > 0]
        if len(devices) > 1 or (mixed and devices):
            given = ", ".join(f"{tuple(t.shape)} on {t.device}" for t in tensors)
            raise MixedDevicesError(f"{name} has tensors of several devices: {given}")
        if wanted is not None:
            return wanted
        return next(iter(devices))

    def _note_exit(self, numbers: int) -> None:
        caller = _find_caller()
        self.exits[caller] += numbers
        if numbers > 1 and caller and not caller.startswith(self.allowed_exits):
            raise DataLeftDeviceError(
                f"{caller} copies {numbers} numbers from the device; compute there, or allow it"
            )

    @contextmanager
    def _use_own_stream(self, func: Any, name: str, kwargs: dict[str, Any]) -> Iterator[None]:
        """Draw from the device's own stream, and leave the CPU's generator as it was."""
        if kwargs.get("generator") is not None:
            raise ForeignGeneratorError(f"{name} on the device draws from a generator of the CPU")
        if torch.Tag.nondeterministic_seeded not in func.tags:
            yield
            return
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(self._random_state)
        try:
            yield
        finally:
            self._random_state = torch.default_generator.get_state()
            torch.default_generator.set_state(before)

    def _wrap(self, t: Any, device: torch.device) -> Any:
        if not isinstance(t, Tensor):
            return t
        if not self.float64 and t.dtype in DOUBLE:
            raise TypeError(f"the device {device} has no {t.dtype}: use float32 instead")
        if t.numel() * t.element_size() > self.max_tensor_bytes:
            raise torch.OutOfMemoryError(f"the device {device} has no room for {t.shape}")
        return PretendedTensor(t, device)


def _find_caller() -> str:
    """The innermost function of labelahead on the stack, as "ntk/layout.py:_sample_rows"."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        # A mode of labelahead only passes calls on.
        if path.startswith(PACKAGE) and frame.f_code.co_name != "__torch_function__":
            name = frame.f_code.co_qualname.partition(".<locals>.<")[0]  # not its comprehensions
            return f"{path.removeprefix(PACKAGE)}:{name}"
        frame = frame.f_back
    return ""


def _gpu_batch_norm(x, weight, bias, mean, var, training, momentum, eps):
    out = aten.native_batch_norm.default(x, weight, bias, mean, var, training, momentum, eps)
    return (*out, torch.empty(0, dtype=torch.uint8))


def _miopen_batch_norm(*args):
    return _gpu_batch_norm(*args)[:3]


REPLACEMENTS: dict[Any, Any] = {
    aten.cudnn_batch_norm.default: _gpu_batch_norm,
    aten.miopen_batch_norm.default: _miopen_batch_norm,
}
"""Operations that only a GPU has -> the same on the CPU. Autograd makes the GPU's node for them."""


class GPULayers(TorchFunctionMode):
    """Calls the functions on the pretended device that torch calls on a GPU.

    BatchNorm is cuDNN's or MIOpen's (`batch_norm`, an operation of REPLACEMENTS). A recurrent step
    that a GPU would fuse raises: its node cannot be made here.
    """

    def __init__(self, batch_norm: Any = torch.cudnn_batch_norm) -> None:
        super().__init__()
        self.batch_norm = batch_norm
        self.calls: Counter[str] = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        on_device = bool(args) and isinstance(args[0], PretendedTensor)
        if name in ("gru", "gru_cell", "lstm_cell") and on_device:
            raise AssertionError(f"{name} reached torch, which fuses it on a GPU")
        if func is nn.functional.batch_norm and on_device:
            self.calls[name] += 1
            return self._run_batch_norm(*args, **kwargs)
        return func(*args, **kwargs)

    def _run_batch_norm(
        self, x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
    ):
        return unpack(self.batch_norm(x, weight, bias, mean, var, training, momentum, eps))


def unpack(result: Any) -> Tensor:
    """The output of an operation that also returns what its backward needs."""
    return result[0] if isinstance(result, tuple) else result


class RealDevice:
    """A device of this machine, in the place of `PretendedDevice`; nothing is checked.

    Tests for a device with or without float64 are skipped if this one differs.
    """

    def __init__(self, name: str, *, float64: bool | None = None, **_: Any) -> None:
        self.device = torch.empty(0, device=name).device  # with its index
        if float64 not in (None, has_float64(self.device)):
            pytest.skip(f"{name} has {'no ' if float64 else ''}float64")

    @property
    def second(self) -> torch.device:
        """Another device of the same type."""
        if self.device.type != "cuda" or torch.cuda.device_count() < 2:
            pytest.skip("there is one device only")
        return torch.device("cuda", 1 - (self.device.index or 0))

    def __enter__(self) -> "RealDevice":
        return self

    def __exit__(self, *exc: Any) -> None:
        pass


def to_cpu(t: Tensor) -> Tensor:
    """The numbers of a tensor, without a check."""
    t = t.detach()
    return t.inner if isinstance(t, PretendedTensor) else t.cpu()
