"""Every error labelahead raises on purpose.

A message says three things: what was given, what was expected, and what to do about it.
Catch `LabelaheadError` to catch them all; the leaves also derive from the built-in error that
a Python reader would expect (`ValueError`, `TypeError`, ...), so plain handlers work too.
"""

from collections.abc import Iterable
from difflib import get_close_matches

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
    """Root of the tree."""


class InputError(LabelaheadError, ValueError):
    """Data handed in has the wrong shape, type, range or content."""


class DeviceError(InputError):
    """Model and data live on different devices."""


class ModelError(LabelaheadError, TypeError):
    """The network breaks a premise: it mixes samples, is random, has nothing to train, ..."""


class NumericalError(LabelaheadError, ArithmeticError):
    """A computation cannot be carried out reliably: singular kernel, overflow, NaN."""


class StorageError(LabelaheadError, OSError):
    """A file or folder cannot be used now, whatever was asked for: held by another process, not writable, full.

    full: there is no room. What was accepted before is safe, and the same may be tried again.
    """

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class ClusterError(LabelaheadError, ConnectionError):
    """Whoever should do the work cannot: no scheduler, no workers, another version there, processes that died."""


class MissingExtra(LabelaheadError, ImportError):  # noqa: N818 (says what it is)
    """An optional library is not installed; the message names the extra that brings it."""


class VerificationError(LabelaheadError, AssertionError):
    """The self-check found gradients that differ from autograd's: a defect in labelahead."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """ "did you mean 'flip'? " for a message about an unknown name, or nothing; capital letters aside."""
    by_fold = {other.casefold(): other for other in known}
    near = get_close_matches(str(name).casefold(), list(by_fold), 1)
    return f"did you mean {by_fold[near[0]]!r}? " if near else ""
