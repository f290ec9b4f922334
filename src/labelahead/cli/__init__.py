"""The command line: thin commands over `campaign`, `query`, `study` and `laboratory`."""

from labelahead.cli.shell import app  # first: says what to install when it is not there

from labelahead.cli import campaigns, laboratory, study  # isort: skip  # they put their commands into app

__all__ = ["app", "campaigns", "laboratory", "main", "study"]


def main() -> None:
    """The entry point."""
    app()
