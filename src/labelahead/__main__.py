"""`python -m labelahead` is the command line."""

from labelahead.cli import main

if __name__ == "__main__":
    main()
