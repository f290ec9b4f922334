"""The command line: thin commands over the learner, simulations, the server and out-of-core pools."""

# They put their commands into app.
from labelahead.cli import campaigns, compare, label, label_studio, models, pool
from labelahead.cli.shell import app  # first: says what to install when it is not there

__all__ = ["app", "campaigns", "compare", "label", "label_studio", "models", "pool"]
