"""`labelahead` and `python -m labelahead`: the command line."""

from labelahead.processes import listen


def main() -> None:
    """The entry point."""
    listen()  # before anything large is imported
    from labelahead.cli import app

    app()


if __name__ == "__main__":
    main()
