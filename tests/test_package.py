"""Importing is cheap, and the package metadata is consistent."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import labelahead
from labelahead.cli.catalogue import CATALOGUE_KINDS, FILE, build_entries


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_import_help_and_list_do_not_import_torch():
    output = run_python(
        "import labelahead, sys; labelahead.__version__; print('torch' in sys.modules, 'numpy' in "
        "sys.modules)"
    )
    assert output.split() == ["False", "False"]
    code = """
import sys
from typer.testing import CliRunner
from labelahead.cli import app
import typer
commands = typer.main.get_command(app).commands
assert len(commands) > 10
for words in ([], *([name] for name in commands), *(["pool", name] for name in commands["pool"].commands)):
    done = CliRunner().invoke(app, [*words, "--help"])
    assert done.exit_code == 0 and "Usage" in done.output, done.output
for words in ([], ["strategies"], ["models"], ["embeddings"], ["data"]):
    done = CliRunner().invoke(app, ["list", *words])
    assert done.exit_code == 0 and ("flip" in done.output) == (words in ([], ["strategies"])), done.output
print("torch" in sys.modules, "numpy" in sys.modules)
"""
    assert run_python(code).split() == ["False", "False"]


def test_import_of_modules_imports_no_optional_or_slow_library():
    code = """
import sys
import labelahead.data
optional = {"sklearn", "PIL", "pooch", "pyarrow", "requests", "pandas"}
print(sorted(optional & set(sys.modules)))
import labelahead.learner.encoder_comparison, labelahead.simulation.comparison
slow = {"transformers", "timm", "sklearn", "scipy.signal", "scipy.stats", "matplotlib.pyplot"}
print(sorted(slow & set(sys.modules)))
"""
    assert run_python(code).splitlines() == ["[]", "[]"]


def test_catalogue_file_equals_the_registries():
    written = json.loads(FILE.read_text(encoding="utf-8"))
    assert written == build_entries(), "run: python -m labelahead.cli.catalogue"
    assert tuple(written) == CATALOGUE_KINDS


def test_every_public_name_exists_and_is_listed_once():
    for name in labelahead.__all__:
        assert getattr(labelahead, name) is not None
    assert set(labelahead._MODULE_BY_NAME) | {"__version__"} == set(labelahead.__all__)
    assert labelahead.models.build_model
    assert set(labelahead.__all__) <= set(dir(labelahead))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        labelahead.nothing  # noqa: B018


def test_version_equals_citation_and_changelog():

    root = Path(__file__).parents[1]
    assert f"\nversion: {labelahead.__version__}\n" in (root / "CITATION.cff").read_text()
    newest = re.search(r"^## (\d\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert newest == labelahead.__version__


def test_container_files_use_existing_options_and_files():
    yaml = pytest.importorskip("yaml")
    import typer

    from labelahead.cli import app

    root = Path(__file__).parents[1]
    dockerfile = (root / "Dockerfile").read_text()
    page = yaml.safe_load((root / "compose.yaml").read_text())["services"]["page"]
    parameters = typer.main.get_command(app).commands["label"].params
    known_options = {option for p in parameters for option in (*p.opts, *p.secondary_opts)}
    for words in (
        page["command"],
        json.loads(re.search(r"^CMD (\[.*\])$", dockerfile, re.MULTILINE)[1]),
    ):
        assert words[0] == "label"
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert {"--out", "--host", "--no-browser"} <= options <= known_options
    assert page["ports"] == ["127.0.0.1:8765:8765"]
    assert "\nEXPOSE 8765\n" in dockerfile
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE):
        assert all((root / name).exists() for name in copied.split()), copied


def test_extra_all_includes_every_other_user_extra():
    """Except clusters, experiment trackers, operator libraries and encoders that need torchvision."""
    import tomllib

    extras = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    included = set(re.fullmatch(r"labelahead\[(.*)\]", extras["all"][0])[1].split(","))
    development = {"bench", "check", "demo", "docs", "release", "test"}
    apart = {"all", "dask", "mlflow", "open-clip", "operators", "ray", "tensorboard", "timm"}
    assert set(extras) - included - development == apart
    pinned = {
        line.split("==")[0].lower()
        for line in (Path(__file__).parents[1] / "constraints.txt").read_text().split()
    }
    assert {re.split("[><=]", need)[0] for need in extras["onnx"]} <= pinned
