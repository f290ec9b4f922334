"""Importing is cheap, and every public name is where it is said to be."""

import subprocess
import sys

import pytest

import labelahead


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_neither_import_nor_help_needs_torch():
    said = run("import labelahead, sys; labelahead.__version__; print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert said.split() == ["False", "False"]
    code = """
import sys
from typer.testing import CliRunner
from labelahead.cli import app
for words in (["--help"], ["label", "--help"], ["run", "--help"], ["compare", "--help"]):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "Usage" in done.output, done.output
print("torch" in sys.modules)
"""
    assert run(code).strip() == "False"


def test_every_name_is_there_and_said_once():
    for name in labelahead.__all__:
        assert getattr(labelahead, name) is not None
    assert set(labelahead._NAMES) | {"__version__"} == set(labelahead.__all__)
    assert labelahead.models.build
    assert set(labelahead.__all__) <= set(dir(labelahead))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        labelahead.nothing  # noqa: B018
