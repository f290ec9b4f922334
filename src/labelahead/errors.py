"""Every error labelahead raises on purpose.

A message says three things: what was given, what was expected, and what to do about it.
Catch `LabelaheadError` to catch them all; the leaves also derive from the built-in error that
a Python reader would expect (`ValueError`, `TypeError`, ...), so plain handlers work too.
"""

__all__ = [
    "DeviceError",
    "InputError",
    "LabelaheadError",
    "ModelError",
    "NumericalError",
    "VerificationError",
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


class VerificationError(LabelaheadError, AssertionError):
    """The self-check found gradients that differ from autograd's: a defect in labelahead."""
