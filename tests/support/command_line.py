"""Run commands of the command line in this process and in others."""

import os

from typer.testing import CliRunner

from labelahead.cli import app
from tests.support.warm_processes import start_python

runner = CliRunner()


def invoke(*arguments):
    return runner.invoke(app, [str(a) for a in arguments])


def check_no_traceback(result) -> None:
    """Check for a known exit code, no traceback, and an error message on failure."""
    assert result.exit_code in (0, 1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert "--debug" not in result.output, result.output
    if result.exit_code:
        assert "error" in result.output.lower()


def start_command(*arguments, cwd):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return start_python(["-m", "labelahead", *arguments], cwd=cwd, env=environment)
