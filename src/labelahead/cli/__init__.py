"""The command line: thin commands over `campaign`, `query` and `study`."""

from labelahead.cli.shell import app  # first: says what to install when it is not there

from labelahead.cli import campaigns, study  # isort: skip  # they put their commands into app

__all__ = ["app", "campaigns", "main", "study"]


def main() -> None:
    """The entry point."""
    app()
