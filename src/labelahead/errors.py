"""Every error labelahead raises on purpose.

A message says three things: what was given, what was expected, and what to do about it.
Catch `LabelaheadError` to catch them all; the leaves also derive from the built-in error that
a Python reader would expect (`ValueError`, `TypeError`, ...), so plain handlers work too.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

__all__ = [
    "ClusterError",
    "DeviceError",
    "InputError",
    "LabelaheadError",
    "MissingExtra",
    "ModelError",
    "NumericalError",
    "StorageError",
    "VerificationError",
    "did_you_mean",
]


class LabelaheadError(Exception):
    """Root of the tree.

    >>> import labelahead as la
    >>> try:
    ...     la.run({"asking": {"strategy": "flipp"}})
    ... except la.LabelaheadError as error:
    ...     print(str(error)[:46])
    strategy is 'flipp'; did you mean 'flip'? expe
    """


class InputError(LabelaheadError, ValueError):
    """Data handed in has the wrong shape, type, range or content.

    >>> import labelahead as la
    >>> la.Pool(-1)
    Traceback (most recent call last):
    labelahead.errors.InputError: size is -1; expected how many items there are
    """


class DeviceError(InputError):
    """Model and data live on different devices.

    >>> from labelahead.errors import DeviceError, InputError
    >>> issubclass(DeviceError, InputError)
    True
    """


class ModelError(LabelaheadError, TypeError):
    """The network breaks a premise: it mixes samples, is random, has nothing to train, ...

    >>> import torch
    >>> import labelahead as la
    >>> la.kernel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout()), torch.ones(3, 2))
    Traceback (most recent call last):
    labelahead.errors.ModelError: ...
    """


class NumericalError(LabelaheadError, ArithmeticError):
    """A computation cannot be carried out reliably: singular kernel, overflow, NaN.

    >>> from labelahead.errors import NumericalError
    >>> issubclass(NumericalError, ArithmeticError)
    True
    """


class StorageError(LabelaheadError, OSError):
    """A file or folder cannot be used now, whatever was asked for: held by another process, not
    writable, full.

    full: there is no room. What was accepted before is safe, and the same may be tried again.

    >>> from labelahead.errors import StorageError
    >>> error = StorageError("no room on the disk", full=True)
    >>> error.full, isinstance(error, OSError)
    (True, True)
    """

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class ClusterError(LabelaheadError, ConnectionError):
    """Whoever should do the work cannot: no scheduler, no workers, another version there, processes
    that died.

    >>> from labelahead.errors import ClusterError
    >>> isinstance(ClusterError("no worker is there"), ConnectionError)
    True
    """


class MissingExtra(LabelaheadError, ImportError):  # noqa: N818 (says what it is)
    """An optional library is not installed; the message names the extra that brings it.

    >>> from labelahead.errors import MissingExtra
    >>> isinstance(MissingExtra("pip install 'labelahead[web]'"), ImportError)
    True
    """


class VerificationError(LabelaheadError, AssertionError):
    """The self-check found gradients that differ from autograd's: a defect in labelahead.

    >>> from labelahead.errors import LabelaheadError, VerificationError
    >>> issubclass(VerificationError, LabelaheadError)
    True
    """


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """ "did you mean 'flip'? " for a message about an unknown name, or nothing; capital letters
    aside.

    >>> from labelahead.errors import did_you_mean
    >>> did_you_mean("Flipp", ["flip", "margin"])
    "did you mean 'flip'? "
    """
    by_fold = {other.casefold(): other for other in known}
    near = get_close_matches(str(name).casefold(), list(by_fold), 1)
    return f"did you mean {by_fold[near[0]]!r}? " if near else ""


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import an optional library, or raise an error that names the extra which installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{purpose} needs {module.split('.')[0]}, which cannot be imported here ({error}); "
            f"install it with: pip install 'labelahead[{extra}]'"
        ) from error
