"""The command line: thin commands over `campaign`, `compare`, `studies` and `web`."""

from labelahead.cli.shell import app  # first: says what to install when it is not there

from labelahead.cli import campaigns, compare, label, label_studio, models, study  # isort: skip  # they put their commands into app

__all__ = ["app", "campaigns", "compare", "label", "label_studio", "main", "models", "study"]


def main() -> None:
    """The entry point."""
    app()
