"""The command line: thin commands over the learner, simulations, the server and out-of-core pools."""

from labelahead.cli.shell import app  # first: prints an install hint if typer or rich is missing

# Importing these modules registers their commands with `app`.
from labelahead.cli import audit, campaigns, compare, doctor, encoders, guess, label, label_studio  # isort: skip
from labelahead.cli import models, pool, route, sources  # isort: skip

__all__ = [
    "app",
    "audit",
    "campaigns",
    "compare",
    "doctor",
    "encoders",
    "guess",
    "label",
    "label_studio",
    "models",
    "pool",
    "route",
    "sources",
]
