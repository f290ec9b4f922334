"""Settings of a simulated source of labels: its price, and how often it is wrong."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from labelahead.errors import InputError, did_you_mean

__all__ = [
    "PAIRS",
    "SOURCE_STRATEGIES",
    "SimulatedSource",
    "parse_source_text",
    "require_two_sources",
]

PAIRS, THRESHOLD, MAJORITY = "pairs", "threshold", "majority"
SOURCE_STRATEGIES: Mapping[str, str] = {
    PAIRS: "the pairs of item and source with the largest expected gain per price",
    THRESHOLD: "the cheap source for all items, the other one for its least confident items",
    MAJORITY: "the majority of three labels of the dearer source, for random items",
}
"""Strategies that choose sources, too. Any other one chooses items for the dearer source alone."""


@dataclass(frozen=True)
class SimulatedSource:
    """A person or a language model in a simulated campaign.

    Attributes:
        name: Its name.
        price: Of one label, in any unit.
        error: Share of wrong labels; or a file, a confusion matrix: the column `class` and one
            column per class with the numbers of labels that it gives, or shares. With `labels`, the
            share that is expected before any label.
        labels: Its real labels: a column of the data or a file, as for guesses, also with
            probabilities. "": they are simulated.
        errors: Of simulated labels. "hard": they lie where the classes overlap, and take the
            classes for which the items would be mistaken; "random": anywhere, any class.

    >>> from labelahead.learner.simulated_source import SimulatedSource
    >>> SimulatedSource("llm", price=0.001, error=0.25).expected_error
    0.25
    """

    name: str
    price: float = 1.0
    error: float | str = 0.0
    labels: str = ""
    errors: Literal["hard", "random"] = "hard"

    def __post_init__(self) -> None:
        if not self.name or set(self.name) & set(":,="):
            raise InputError(
                f"the name of a source is {self.name!r}; expected a name such as anna, without : , ="
            )
        if not (math.isfinite(self.price) and self.price >= 0):
            raise InputError(f"the price of {self.name} is {self.price}; expected a number >= 0")
        if isinstance(self.error, str):
            object.__setattr__(self, "error", _as_number(self.error))
        if not isinstance(self.error, str) and not 0 <= self.error < 1:
            raise InputError(
                f"the error of {self.name} is {self.error}; expected a share of wrong labels, 0 up to "
                "below 1, or a file with a confusion matrix"
            )
        if self.labels and isinstance(self.error, str):
            raise InputError(
                f"{self.name} has real labels ({self.labels}) and a confusion matrix ({self.error}); "
                "expected one of them"
            )

    @property
    def expected_error(self) -> float:
        """The error rate before any label; that of a confusion matrix is not known yet."""
        return 0.0 if isinstance(self.error, str) else self.error


def _as_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def parse_source_text(text: str) -> dict[str, Any]:
    """Parse a source such as anna:price=0.10,error=0.05 into the keys of `SimulatedSource`.

    >>> from labelahead.learner.simulated_source import parse_source_text
    >>> parse_source_text("llm:price=0.001,labels=gpt")
    {'name': 'llm', 'price': 0.001, 'labels': 'gpt'}
    """
    name, _, rest = text.partition(":")
    known = [f.name for f in fields(SimulatedSource) if f.name != "name"]
    given: dict[str, Any] = {"name": name.strip()}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in known:
            raise InputError(
                f"the source {text!r} has {part!r}; {did_you_mean(key, known)}expected NAME:KEY=VALUE,"
                f"... with {', '.join(known)}, such as anna:price=0.10,error=0.05"
            )
        if key in given:
            raise InputError(f"the source {text!r} has {key} twice; expected it once")
        given[key] = _as_number(value) if key in ("price", "error") else value
        if key == "price" and isinstance(given[key], str):
            raise InputError(f"the price of {name} is {value!r}; expected a number >= 0")
    return given


def require_two_sources(
    sources: tuple[SimulatedSource, ...],
) -> tuple[SimulatedSource, SimulatedSource]:
    """Return the dearer source (a person) and the cheaper one (a language model).

    Raises:
        InputError: There are not two with different names and prices.
    """
    names = [source.name for source in sources]
    if len(sources) != 2 or len(set(names)) < 2:
        raise InputError(
            f"the sources are {', '.join(names) or 'none'}; expected two with different names: one "
            "that is dear and careful, such as a person, and one that is cheap, such as a language "
            "model"
        )
    person, model = sorted(sources, key=lambda source: -source.price)
    if person.price == model.price:
        raise InputError(
            f"{person.name} and {model.name} both cost {person.price} per label; expected different "
            "prices: the dearer one is taken for the careful one"
        )
    return person, model
