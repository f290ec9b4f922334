"""Every public name has an example in its docstring, and the example runs.

A package's docstring may hold what the examples of its names begin with. What is no function or
class (a dictionary, a type) has its example there.
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
    """`labelahead.ntk` of `labelahead.ntk.kernels`."""
    return (
        module
        if hasattr(importlib.import_module(module), "__path__")
        else module.rpartition(".")[0]
    )


def documented(value: object) -> bool:
    """Whether it has a docstring of its own: a function or a class."""
    return inspect.isfunction(value) or inspect.isclass(value)


def names() -> dict[str, list[tuple[str, object]]]:
    """Package -> its public names that have docstrings, each once, where they are at home."""
    homes: dict[str, dict[str, object]] = {}
    for public in PUBLIC:
        module = importlib.import_module(public)
        for name in module.__all__:
            value = getattr(module, name)
            if documented(value):
                homes.setdefault(package_of(value.__module__), {})[name] = value
    return {package: sorted(found.items()) for package, found in homes.items()}


NAMES = names()


def examples(text: str | None, name: str) -> doctest.DocTest:
    return doctest.DocTestParser().get_doctest(text or "", {}, name, None, 0)


def run(test: doctest.DocTest, known: dict[str, object]) -> str:
    """What went wrong, or nothing; `known` has the names that the examples made, too."""
    said: list[str] = []
    test.globs = known
    doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(
        test, out=said.append, clear_globs=False
    )
    return "".join(said)


def begun(package: ModuleType) -> dict[str, object]:
    """What the names of a package's own examples stand for."""
    known: dict[str, object] = {}
    assert run(examples(package.__doc__, package.__name__), known) == ""
    return known


def shown(name: str, value: object, test: doctest.DocTest, known: dict[str, object]) -> bool:
    """Whether an example names it, or has one in its hands."""
    held = isinstance(value, type) and any(type(v) is value for v in known.values())
    return held or any(name in e.source + (e.exc_msg or "") for e in test.examples)


@pytest.mark.parametrize("package", sorted(NAMES))
def test_examples_run(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    address, wrong = ADDRESS, []
    if package == "labelahead.server":
        data = browser_pages.write_digits(tmp_path / "digits", 60)
        server = browser_pages.Server(
            data, tmp_path / "labels", "--classes", ",".join("0123456789")
        )
        address = server.url
    try:
        first = begun(importlib.import_module(package))
        for name, value in NAMES[package]:
            test = examples(inspect.getdoc(value).replace(ADDRESS, address), f"{package}.{name}")
            assert test.examples, f"{name} has no example"
            known = dict(first)
            wrong.append(run(test, known))
            assert shown(name, value, test, known), f"{name} is not in its example"
        assert "".join(wrong) == ""
    finally:
        torch.set_num_threads(threads)
        if package == "labelahead.server":
            server.kill()


@pytest.mark.parametrize("public", PUBLIC)
def test_what_has_no_docstring_is_in_its_packages_examples(public):
    module = importlib.import_module(public)
    for name in module.__all__:
        value = getattr(module, name)
        if documented(value) or name == "__version__":
            continue
        homes = [
            importlib.import_module(f"labelahead.{place}")
            for place in ("acquisition", "strategies")
        ]
        sources = [
            e.source for home in (module, *homes) for e in examples(home.__doc__, name).examples
        ]
        assert any(name in source for source in sources), f"{public}.{name} is in no example"


def test_the_version_is_the_packages():
    from importlib.metadata import version

    assert labelahead.__version__ == version("labelahead")
