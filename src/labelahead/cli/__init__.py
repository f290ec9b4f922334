"""The command line: thin commands over the learner, simulations, the server and out-of-core pools."""

# Importing these modules registers their commands with `app`.
from labelahead.cli import campaigns, compare, label, label_studio, models, pool
from labelahead.cli.shell import app  # prints an install hint if typer or rich is missing

__all__ = ["app", "campaigns", "compare", "label", "label_studio", "models", "pool"]
