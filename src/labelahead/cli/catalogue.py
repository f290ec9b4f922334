"""`labelahead list`: strategies, models, embeddings and data sets, read from catalogue.json.

Reading a file avoids importing torch. `python -m labelahead.cli.catalogue` regenerates the file; a
test checks that it is up to date.
"""

import json
from pathlib import Path

from rich.table import Table

__all__ = ["CATALOGUE_KINDS", "FILE", "build_entries", "build_overview", "build_table"]

CATALOGUE_KINDS = ("strategies", "models", "embeddings", "data")
FILE = Path(__file__).with_name("catalogue.json")

Entries = dict[
    str, list[list[str]]
]  # by kind: name, what it is, and of a strategy its modes and paper


def build_overview() -> Table:
    """Build a table of all names, by kind."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("labelahead list", "names"):
        table.add_column(name, overflow="fold")
    for what, rows in _read_entries().items():
        table.add_row(what, ", ".join(row[0] for row in rows))
    return table


def build_table(what: str) -> Table:
    """Build a table of one kind, with a line on when to use each entry."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("name", "description, when to use it"):
        table.add_column(name, overflow="fold")
    if what == "strategies":
        table.add_column("modes")
        table.add_column("paper", overflow="fold", style="dim")
    for row in _read_entries()[what]:
        table.add_row(*row)
    return table


def _read_entries() -> Entries:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def build_entries() -> Entries:
    """Return the current content of the catalogue."""
    from labelahead.data import DATASETS
    from labelahead.inference.exact_model import EXACT_DESCRIPTION
    from labelahead.learner.encoding import EMBEDDINGS
    from labelahead.models import EXACT, MODELS
    from labelahead.strategies import STRATEGIES

    vectors = (
        "vectors in the data: lists in a Parquet or JSON lines column, an array in an .npz file"
    )
    own = "your own function: a list of texts, sounds or rows, or images (n, 3, h, w) -> (n, d)"
    encoders = {
        "ORGANISATION/NAME": "a pretrained encoder of Hugging Face, or its folder (extra 'encoders')",
        "timm:NAME": "an image encoder of timm (extra 'timm')",
        "open_clip:MODEL/WEIGHTS": "an image or text encoder of OpenCLIP (extra 'open-clip')",
        "vectors.npy": "your own vectors for any data: .npy, .npz, .parquet or .safetensors",
    }
    return {
        "strategies": [[s.name, s.when, "\n".join(s.modes), s.paper] for s in STRATEGIES.values()],
        "models": [*([m.name, m.summary] for m in MODELS.values()), [EXACT, EXACT_DESCRIPTION]],
        "embeddings": [
            [*pair]
            for pair in (
                *EMBEDDINGS.items(),
                *encoders.items(),
                ("COLUMN", vectors),
                ("file.py:function", own),
            )
        ],
        "data": [[d.name, d.summary] for d in DATASETS.values()],
    }


if __name__ == "__main__":
    FILE.write_text(
        json.dumps(build_entries(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
