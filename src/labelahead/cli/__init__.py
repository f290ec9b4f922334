"""The command line: thin commands over `campaign`, `compare`, `scale`, `studies` and `web`."""

from labelahead.cli.shell import app  # first: says what to install when it is not there

# They put their commands into app.
from labelahead.cli import campaigns, compare, label, label_studio, models, pool, study  # isort: skip

__all__ = ["app", "campaigns", "compare", "label", "label_studio", "models", "pool", "study"]
