"""Exceptions that labelahead raises on purpose.

Every message states what was given, what was expected and what to do. Catch `LabelaheadError` to
catch all of them. Each subclass also derives from the built-in exception that fits (`ValueError`,
`TypeError`, ...), so that ordinary handlers work too.
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
    "count_noun",
    "did_you_mean",
]


class LabelaheadError(Exception):
    """Base class of all exceptions that labelahead raises on purpose.

    >>> import labelahead as la
    >>> try:
    ...     la.run({"asking": {"strategy": "flipp"}})
    ... except la.LabelaheadError as error:
    ...     print(str(error)[:46])
    strategy is 'flipp'; did you mean 'flip'? expe
    """


class InputError(LabelaheadError, ValueError):
    """An argument or a file has the wrong shape, type, range or content.

    >>> import labelahead as la
    >>> la.Pool(-1)
    Traceback (most recent call last):
    labelahead.errors.InputError: size is -1; expected the number of items, 0 or larger
    """


class DeviceError(InputError):
    """Model and data are on different devices.

    >>> from labelahead.errors import DeviceError, InputError
    >>> issubclass(DeviceError, InputError)
    True
    """


class ModelError(LabelaheadError, TypeError):
    """The network violates an assumption: it mixes samples, is random, has no trainable parameters.

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
    """A file or folder cannot be used: it is locked, not writable, or the disk is full.

    Attributes:
        full: whether the disk is full. Data accepted before are safe, and the call can be retried.

    >>> from labelahead.errors import StorageError
    >>> error = StorageError("no room on the disk", full=True)
    >>> error.full, isinstance(error, OSError)
    (True, True)
    """

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class ClusterError(LabelaheadError, ConnectionError):
    """The workers are not available: no scheduler, no workers, another version, or dead processes.

    >>> from labelahead.errors import ClusterError
    >>> isinstance(ClusterError("no worker is there"), ConnectionError)
    True
    """


class MissingExtra(LabelaheadError, ImportError):  # noqa: N818 (public name since 0.1)
    """An optional library is not installed; the message names the extra that installs it.

    >>> from labelahead.errors import MissingExtra
    >>> isinstance(MissingExtra("pip install 'labelahead[web]'"), ImportError)
    True
    """


class VerificationError(LabelaheadError, AssertionError):
    """The self-check found gradients that differ from those of autograd: a bug in labelahead.

    >>> from labelahead.errors import LabelaheadError, VerificationError
    >>> issubclass(VerificationError, LabelaheadError)
    True
    """


def count_noun(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in the right form.

    Args:
        count: the number.
        noun: its singular.
        plural: its plural; "": with s, or es after s.

    >>> from labelahead.errors import count_noun
    >>> count_noun(1, "class"), count_noun(0, "class"), count_noun(2, "label")
    ('1 class', '0 classes', '2 labels')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {plural or noun + ('es' if noun.endswith('s') else 's')}"


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """Return "did you mean 'flip'? " if a known name is close to `name`, else an empty string.

    Capital letters are ignored.

    >>> from labelahead.errors import did_you_mean
    >>> did_you_mean("Flipp", ["flip", "margin"])
    "did you mean 'flip'? "
    """
    by_casefold = {choice.casefold(): choice for choice in choices}
    matches = get_close_matches(str(name).casefold(), list(by_casefold), 1)
    return f"did you mean {by_casefold[matches[0]]!r}? " if matches else ""


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import an optional library.

    Args:
        module: the module to import.
        extra: the extra of labelahead that installs it.
        purpose: what needs it, for the message.

    Raises:
        MissingExtra: if it cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{purpose} needs {module.split('.')[0]}, which cannot be imported here ({error}); "
            f"install it with: pip install 'labelahead[{extra}]'"
        ) from error
