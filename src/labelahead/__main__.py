"""`labelahead` and `python -m labelahead`: the command line."""

from labelahead.processes import exit_on_sigint


def main() -> None:
    """The entry point."""
    exit_on_sigint()  # before anything large is imported
    from labelahead.cli import app

    app()


if __name__ == "__main__":
    main()
