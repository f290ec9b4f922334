"""Every public name has an example in its docstring, and the example runs.

A package's docstring may contain the set-up for the examples of its names. Names other than
functions and classes (dictionaries, types) have their examples there.
"""

import doctest
import importlib
import inspect
from types import ModuleType

import pytest
import torch

import labelahead
from tests.support import browser_pages
from tests.support.public import PUBLIC

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
ADDRESS = "http://127.0.0.1:8765/"


def package_of(module: str) -> str:
    """Return `labelahead.ntk` for `labelahead.ntk.kernels`."""
    return (
        module
        if hasattr(importlib.import_module(module), "__path__")
        else module.rpartition(".")[0]
    )


def has_docstring(value: object) -> bool:
    """Return whether a value has its own docstring: a function or a class."""
    return inspect.isfunction(value) or inspect.isclass(value)


def list_names() -> dict[str, list[tuple[str, object]]]:
    """Return package -> public names with docstrings, each in the package that defines it."""
    homes: dict[str, dict[str, object]] = {}
    for public in PUBLIC:
        module = importlib.import_module(public)
        for name in module.__all__:
            value = getattr(module, name)
            if has_docstring(value):
                homes.setdefault(package_of(value.__module__), {})[name] = value
    return {package: sorted(found.items()) for package, found in homes.items()}


NAMES = list_names()


def parse_examples(text: str | None, name: str) -> doctest.DocTest:
    return doctest.DocTestParser().get_doctest(text or "", {}, name, None, 0)


def run_examples(test: doctest.DocTest, namespace: dict[str, object]) -> str:
    """Run examples in `namespace` and return the text of their failures."""
    failures: list[str] = []
    test.globs = namespace
    doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(
        test, out=failures.append, clear_globs=False
    )
    return "".join(failures)


def run_package_examples(package: ModuleType) -> dict[str, object]:
    """Run a package's own examples and return their namespace."""
    namespace: dict[str, object] = {}
    assert run_examples(parse_examples(package.__doc__, package.__name__), namespace) == ""
    return namespace


def is_shown(name: str, value: object, test: doctest.DocTest, namespace: dict[str, object]) -> bool:
    """Return whether an example contains the name, or makes an instance of it."""
    is_instance = isinstance(value, type) and any(type(v) is value for v in namespace.values())
    return is_instance or any(name in e.source + (e.exc_msg or "") for e in test.examples)


@pytest.mark.parametrize("package", sorted(NAMES))
def test_examples_of_every_public_name_run(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    address, failures = ADDRESS, []
    if package == "labelahead.server":
        data = browser_pages.write_digits(tmp_path / "digits", 60)
        server = browser_pages.Server(
            data, tmp_path / "labels", "--classes", ",".join("0123456789")
        )
        address = server.url
    try:
        initial = run_package_examples(importlib.import_module(package))
        for name, value in NAMES[package]:
            test = parse_examples(
                inspect.getdoc(value).replace(ADDRESS, address), f"{package}.{name}"
            )
            assert test.examples, f"{name} has no example"
            namespace = dict(initial)
            failures.append(run_examples(test, namespace))
            assert is_shown(name, value, test, namespace), f"{name} is not in its example"
        assert "".join(failures) == ""
    finally:
        torch.set_num_threads(threads)
        if package == "labelahead.server":
            server.kill()


@pytest.mark.parametrize("public", PUBLIC)
def test_names_without_a_docstring_are_in_their_packages_examples(public):
    module = importlib.import_module(public)
    for name in module.__all__:
        value = getattr(module, name)
        if has_docstring(value) or name == "__version__":
            continue
        homes = [
            importlib.import_module(f"labelahead.{package_name}")
            for package_name in ("acquisition", "strategies")
        ]
        sources = [
            e.source
            for home in (module, *homes)
            for e in parse_examples(home.__doc__, name).examples
        ]
        assert any(name in source for source in sources), f"{public}.{name} is in no example"


def test_version_equals_the_installed_metadata():
    from importlib.metadata import version

    assert labelahead.__version__ == version("labelahead")
