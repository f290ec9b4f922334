"""The command line: thin commands over `campaign`, `compare`, `scale`, `studies` and `web`."""

from labelahead.cli.shell import app  # first: says what to install when it is not there

from labelahead.cli import campaigns, compare, label, models, pool, study  # isort: skip  # they put their commands into app

__all__ = ["app", "campaigns", "compare", "label", "main", "models", "pool", "study"]


def main() -> None:
    """The entry point."""
    app()
