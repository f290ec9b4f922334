"""A user's own network or strategy: `module:factory` or `path/to/file.py:factory`."""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from labelahead.batching import Batch, call_model, count_samples, describe_batch
from labelahead.errors import InputError, ModelError
from labelahead.models.layers import eval_mode
from labelahead.seeds import temporary_seed

__all__ = ["build_user_model", "import_object"]


def build_user_model(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    user_options: Mapping[str, Any],
    seed: int,
    example: Batch | None = None,
) -> nn.Module:
    """Call the factory that `name` points to with the arguments it takes, and check its network.

    Args:
        name: 'module:factory' or 'path/to/file.py:factory'.
        shape: the shape of one input.
        classes: the number of classes.
        user_options: width and options that the user gave; the factory must take them.
        seed: the seed of the weights.
        example: some inputs that are not a single tensor; `shape` is () then.

    Raises:
        InputError: if the factory cannot be imported or called.
        ModelError: if its network does not return (n, classes).
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise InputError(
            f"the model {name!r} is incomplete; expected 'module:factory' or "
            "'path/to/file.py:factory'"
        )
    with _importable_from(Path(place).parent if place.endswith(".py") else Path.cwd()):
        with temporary_seed(seed):  # seeded separately, since a module runs only the first time
            factory = _get_factory(_import_module(place), attribute, name)
        arguments = _match_arguments(factory, name, shape, classes, user_options)
        with temporary_seed(seed):
            try:
                model = factory(**arguments)
            except Exception as error:
                called = f"{attribute}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
                raise InputError(
                    f"the model {name!r} could not be built: {called} raised "
                    f"{_summarise_error(error)}"
                ) from error
            if not isinstance(model, nn.Module):
                raise ModelError(
                    f"the factory {name!r} returned a {type(model).__name__}; expected a "
                    "torch.nn.Module"
                )
            _check_outputs(model, name, shape, classes, example)  # gives lazy layers their weights
    return model


def import_object(name: str, what: str) -> Any:
    """Import the object that `module:name` or `path/to/file.py:name` points to.

    Args:
        name: the object.
        what: its purpose, for messages.

    Raises:
        InputError: if it cannot be imported.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise InputError(
            f"the {what} {name!r} is incomplete; expected 'module:name' or 'path/to/file.py:name'"
        )
    with _importable_from(Path(place).parent if place.endswith(".py") else Path.cwd()):
        return _get_attribute(_import_module(place), attribute, f"the {what} {name!r}")


@contextmanager
def _importable_from(folder: Path) -> Iterator[None]:
    """Let the user's file import its neighbours inside the block, as if it were run as a script."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _import_module(place: str) -> ModuleType:
    """Import a module or a file."""
    try:
        return _import_file(Path(place)) if place.endswith(".py") else _import_named_module(place)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"importing {place!r} failed with {_summarise_error(error)}") from error


def _import_named_module(place: str) -> ModuleType:
    """Import a module by name."""
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # the module exists, but something that it imports does not
        raise InputError(
            f"there is no module {place!r} here; expected one that Python can import, or a file: "
            "'path/to/file.py:name'"
        ) from error


class _UncachedSourceLoader(importlib.machinery.SourceFileLoader):
    """A loader that always compiles the source.

    Python reuses the compiled file if the modification second and the size are equal, and would
    miss an edit.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source without writing a cache file to the user's folder."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _import_file(path: Path) -> ModuleType:
    """Import a file as a module; it runs once, and again only after it has changed."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}; expected 'path/to/file.py:name'")
    digest = hashlib.sha256(str(path.resolve()).encode() + path.read_bytes()).hexdigest()[:16]
    name = f"labelahead_own_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, path, loader=_UncachedSourceLoader(name, str(path))
    )
    if spec is None or spec.loader is None:
        raise InputError(f"{str(path)!r} cannot be imported; expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look modules up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _get_attribute(module: ModuleType, attribute: str, what: str) -> Any:
    """Return an attribute of a module by its dotted name."""
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            public = [key for key in vars(module) if not key.startswith("_")]
            raise InputError(
                f"{what} names {part!r}, which does not exist; the module has "
                f"{', '.join(public) or 'nothing'}"
            )
        value = getattr(value, part)
    return value


def _get_factory(module: ModuleType, attribute: str, name: str) -> Callable[..., Any]:
    """Return the factory of a module."""
    factory = _get_attribute(module, attribute, f"the model {name!r}")
    if isinstance(factory, nn.Module):
        raise InputError(
            f"{name!r} is a network, not a function; expected a function or class that builds a "
            "new network, because each round starts from new weights: wrap it in a function"
        )
    if not callable(factory):
        raise InputError(
            f"{name!r} is a {type(factory).__name__}; expected a function or class that makes a "
            "torch.nn.Module"
        )
    return factory  # type: ignore[no-any-return]


def _match_arguments(
    factory: Callable[..., Any],
    name: str,
    shape: tuple[int, ...],
    classes: int,
    user_options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return our arguments that the factory's signature names, and all options of the user."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # implemented in C, without a signature
        parameters = {}  # type: ignore[assignment]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {key for key, p in parameters.items() if p.kind in kinds}
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    own_arguments: dict[str, Any] = {
        "shape": shape,
        "input_shape": shape,
        "classes": classes,
        "num_classes": classes,
    }
    refused = [key for key in user_options if key not in named and not open_ended]
    if refused:
        raise InputError(
            f"the factory {name!r} takes no {refused[0]!r}; it takes "
            f"{', '.join(sorted(named)) or 'nothing'}"
        )
    arguments = {key: value for key, value in own_arguments.items() if key in named} | dict(
        user_options
    )
    missing = [
        key
        for key, p in parameters.items()
        if p.default is p.empty
        and p.kind in (*kinds, inspect.Parameter.POSITIONAL_ONLY)
        and key not in arguments
    ]
    if missing:
        raise InputError(
            f"the factory {name!r} needs {', '.join(missing)}, which labelahead does not know; "
            "expected a factory that takes any of shape, classes, width, or nothing: give the "
            "others defaults"
        )
    return arguments


def _check_outputs(
    model: nn.Module, name: str, shape: tuple[int, ...], classes: int, example: Batch | None = None
) -> None:
    """Raise `ModelError` unless the network maps zeros, or example inputs, to (n, classes)."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    # Whole numbers: a network of tokens.
    zeros = (
        torch.zeros(2, *shape, dtype=dtype, device=like.device)
        for dtype in (like.dtype, torch.int64)
    )
    n = 2 if example is None else count_samples(example)
    what = f"{n} inputs of shape {shape if example is None else describe_batch(example)}"
    with eval_mode(model):
        out = _run_model(model, name, what, list(zeros) if example is None else [example])
    if not isinstance(out, Tensor):
        raise ModelError(
            f"the network of {name!r} returned a {type(out).__name__} for {what}; "
            f"expected a tensor (n, {classes}): return the class scores alone"
        )
    if tuple(out.shape) != (n, classes):
        raise ModelError(
            f"the network of {name!r} returned shape {tuple(out.shape)} for {what}; expected "
            f"({n}, {classes}), one "
            "output a class: let the factory take 'classes' and end in that many outputs"
        )


def _run_model(model: nn.Module, name: str, what: str, batches: list[Batch]) -> object:
    """Return the output for the first batch that the network accepts."""
    failure: Exception | None = None
    for batch in batches:
        try:
            with torch.no_grad():
                return call_model(model, batch)
        except Exception as error:
            failure = failure or error
    raise ModelError(
        f"the network of {name!r} failed on {what} with {_summarise_error(failure)}; expected it "
        "to take a batch of them"
    ) from failure


def _summarise_error(error: BaseException | None) -> str:
    """Return the type and the first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
