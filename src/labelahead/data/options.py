"""What a caller may ask of `load`, checked once."""

import os
import tempfile
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path

from labelahead.data.dataset import LARGEST_SIDE
from labelahead.errors import InputError

__all__ = ["Options", "default_root", "expanded"]


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `load`."""

    root: Path
    size: int | None = None
    target: str | None = None
    limit: int | None = None
    test_fraction: float = 0.2
    seed: int = 0
    download: bool = True
    links: bool = True

    def __post_init__(self) -> None:
        for name, low, high in (("size", 1, LARGEST_SIDE), ("limit", 1, None)):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < low:
                raise InputError(f"{name} is {value!r}; expected a whole number of at least {low}")
            if high is not None and int(value) > high:
                raise InputError(f"{name} is {value}; expected at most {high} pixels a side")
            object.__setattr__(self, name, int(value))  # a number of numpy is as good
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral):
            raise InputError(f"seed is {self.seed!r}; expected a whole number")
        if not -(2**63) <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}; expected a number that fits in 64 bits")
        object.__setattr__(self, "seed", int(self.seed))
        fraction = self.test_fraction
        if not isinstance(fraction, Real) or not 0 <= fraction < 1:
            raise InputError(
                f"test_fraction is {fraction!r}; expected a share of at least 0 and below 1, "
                "such as 0.2"
            )

    def refuse_target(self, what: str) -> None:
        """A target names a column, so it means nothing for what has no columns."""
        if self.target is not None:
            raise InputError(
                f"target is {self.target!r}, but {what} has no columns; leave target out "
                "(it is for .csv, .tsv and .parquet tables)"
            )

    def refuse_size(self, what: str) -> None:
        """A size is for images only."""
        if self.size is not None:
            raise InputError(f"size is {self.size}, but {what} holds no images; leave size out")


def default_root() -> Path:
    """The folder of the known data sets: $LABELAHEAD_DATA, or ~/.cache/labelahead."""
    named = os.environ.get("LABELAHEAD_DATA")
    if named:
        return expanded(named)
    try:
        return Path.home() / ".cache" / "labelahead"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / "labelahead"


def expanded(path: str | Path) -> Path:
    """A path whose ~ is resolved."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{str(path)!r}: {error}; expected a path without ~") from error
