"""The command line: thin commands over `campaign`, `query`, `web`, `study` and `laboratory`."""

from labelahead.cli.shell import app  # first: says what to install when it is not there

from labelahead.cli import campaigns, label, laboratory, study  # isort: skip  # they put their commands into app

__all__ = ["app", "campaigns", "label", "laboratory", "main", "study"]


def main() -> None:
    """The entry point."""
    app()
