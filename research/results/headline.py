"""The headline table: labels that random sampling and `flip` need for the same accuracy."""

from collections.abc import Mapping

from research.results.numbers import DEFAULT, RANDOM
from research.results.text import ByVariant, grid

HEADLINE = {  # row of the table -> file in research/data/tables
    "texts: Reuters, 8 topics": "r8-exact",
    "texts: 20 newsgroups": "news-exact",
    "photographs: Caltech101, 101 classes": "caltech-exact",
    "small photographs: CIFAR-10": "cifar10-exact",
    "a table: image segments": "segment-exact",
    "a network trained from scratch: handwritten digits": "digits-mlp",
    "a network trained from scratch: MNIST": "mnist-mlp",
}


def headline_block(measured: Mapping[str, ByVariant]) -> str:
    """Format the headline table; a row whose table is not measured yet is left out.

    Args:
        measured: Name of a table -> its numbers.
    """
    rows = []
    for title, name in HEADLINE.items():
        numbers = (measured.get(name) or {}).get("")
        random, default = (
            (None, None) if numbers is None else (numbers.row(RANDOM), numbers.row(DEFAULT))
        )
        if random is None or default is None or default.saving is None:
            continue
        rows.append(
            [
                title,
                f"{100 * random.final.mean:.1f} %",
                f"{default.saving.reference:.0f}",
                f"**{default.saving.other:.0f}**",
            ]
        )
    if not rows:
        return "Not measured yet: `make results`."
    return grid(["data", "accuracy", "random labels", "labelahead"], rows)
