"""Which code a stored configuration may run.

The folder of a run, a comparison or a labelling session names the user's own networks, embeddings
and strategies as `file.py:name` or `module:name`. A folder from somebody else could name any code.
A name from a folder is therefore trusted only if the caller passes the same name, declares the
folder trusted, or has used this code on this account before. Code inside a folder that labelahead
or the owner of the data wrote needs one of the first two in any case. SECURITY.md states the rule
for users.
"""

import importlib.machinery
import json
import logging
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from labelahead.data.joined_embeddings import split_joined_embedding, strip_embedding_weights
from labelahead.errors import InputError
from labelahead.models.encoder_names import is_encoder_prefix

__all__ = [
    "CODE_KEYS",
    "find_code_names",
    "get_used_code_file",
    "record_code",
    "refuse_code_in_folders",
    "require_trusted_code",
    "resolve_code_name",
]

log = logging.getLogger("labelahead")
# Keys of a configuration that may name code.
CODE_KEYS = ("data.embedding", "model.name", "asking.strategy")
LIST_KEY = "data.guesses"  # a list of sources, some of which may be code
# Prefix of the name of an object that was passed in Python; it cannot be imported.
PYTHON_OBJECT_PREFIX = "given:"
# Files that only labelahead writes. A folder with one of them belongs to a run, a session or a
# comparison.
LABELAHEAD_FILES = ("rounds.jsonl", "session.toml", "labels.db", "compare.toml")


def find_code_names(tables: Mapping[str, Any]) -> dict[str, str]:
    """Return the code that a configuration names, by dotted key.

    >>> find_code_names({"model": {"name": "net.py:make"}, "asking": {"strategy": "flip"}})
    {'model.name': 'net.py:make'}
    """
    found = {}
    for key in CODE_KEYS:
        table, _, inner = key.partition(".")
        values = tables.get(table)
        name = values.get(inner) if isinstance(values, Mapping) else None
        if not isinstance(name, str) or ":" not in name or name.startswith(PYTHON_OBJECT_PREFIX):
            continue
        # An encoder's code is never run, and code cannot be joined to an encoder. Whether a name
        # with + is one path depends on the files, which may appear later: both readings count.
        parts = [name]
        if key == "data.embedding":
            parts = [*strip_embedding_weights(name), *split_joined_embedding(name)]
        if key != "data.embedding" or any(":" in p and not is_encoder_prefix(p) for p in parts):
            found[key] = name
    data = tables.get("data")
    guesses = data.get("guesses") if isinstance(data, Mapping) else None
    listed = guesses.split(",") if isinstance(guesses, str) else guesses
    for i, name in enumerate(listed if isinstance(listed, list | tuple) else ()):
        if isinstance(name, str) and name.strip().rpartition(":")[0].endswith(".py"):
            found[f"{LIST_KEY}[{i}]"] = name.strip()
    return found


def resolve_code_name(name: str) -> str:
    """Return `file.py:name` with the absolute path; other names are returned unchanged."""
    place, colon, inside = name.rpartition(":")
    if colon and place.endswith(".py"):
        return f"{Path(place).expanduser().resolve()}:{inside}"
    return name


def require_trusted_code(
    names: Mapping[str, str],
    source: Path,
    folders: Iterable[str | Path],
    trust_code: bool | Collection[str],
) -> None:
    """Raise unless all code that a stored configuration names may run.

    Args:
        names: the code, by the key that names it.
        source: the file that it was read from, for the message.
        folders: folders with files that somebody else may have written: the opened one and that of
            the data.
        trust_code: whether all of it may run, or the names that the caller passes.

    Raises:
        InputError: naming the first code that must not run, and how to allow it.
    """
    if trust_code is True:
        return
    given = {resolve_code_name(name) for name in trust_code or ()}
    used = _read_used_code() if names else set()
    untrusted = [Path(folder).expanduser().resolve() for folder in folders]
    for key, name in names.items():
        if resolve_code_name(name) in given:
            continue
        file = _locate_code(name)
        inside = _find_containing_folder(file, untrusted)
        if inside is not None:
            raise _untrusted_code_error(source, key, name, f"which lies in the folder {inside}")
        if (resolve_code_name(name), file) not in used:
            raise _untrusted_code_error(
                source, key, name, "which you have not used on this account before"
            )


def refuse_code_in_folders(
    names: Mapping[str, str],
    source: str | Path,
    folders: Iterable[str | Path],
    trust_code: bool | Collection[str],
) -> None:
    """Raise if the user's configuration names code inside the data, a run or a session folder.

    The configuration file is the user's own, as the command line is, but files in those folders may
    come from somebody else.

    Args:
        names: the code, by the key that names it.
        source: the configuration file, for the message.
        folders: the folders of the data.
        trust_code: whether all of it may run, or the names that the caller passes.

    Raises:
        InputError: naming the first code that must not run, and how to allow it.
    """
    if trust_code is True:
        return
    given = {resolve_code_name(name) for name in trust_code or ()}
    for key, name in names.items():
        file = _locate_code(name)
        written = (
            [p for p in Path(file).parents if any((p / mark).exists() for mark in LABELAHEAD_FILES)]
            if file
            else []
        )
        inside = _find_containing_folder(
            file, [*(Path(folder).expanduser().resolve() for folder in folders), *written]
        )
        if inside is not None and resolve_code_name(name) not in given:
            raise _untrusted_code_error(source, key, name, f"which lies in the folder {inside}")


def _untrusted_code_error(source: str | Path, key: str, name: str, why: str) -> InputError:
    """Return the error for code that must not run."""
    option = {
        "model.name": "--model",
        "asking.strategy": "--strategy",
        "data.embedding": "--embedding",
        LIST_KEY: "--guesses",
    }.get(key.partition("[")[0])
    again = (
        f"name it yourself ({option} {name}, where the command has that option), or "
        if option
        else ""
    )
    return InputError(
        f"{source} names the code {name!r} ({key}), {why}; it was not run. If you trust its "
        f"author, {again}"
        "add --trust-code (in Python: trust_code=True)"
    )


def _find_containing_folder(file: str, folders: Iterable[Path]) -> Path | None:
    """Return the first folder that contains the file, or None."""
    return next((folder for folder in folders if file and Path(file).is_relative_to(folder)), None)


def _locate_code(name: str) -> str:
    """Return the file, or the folder of the package, that a name would import; nothing is run.

    Returns "" if there is none.
    """
    place = name.rpartition(":")[0]
    if place.endswith(".py"):
        return str(Path(place).expanduser().resolve())
    top = place.partition(".")[0]
    module = sys.modules.get(top)
    # As `models.imported` does it: modules of the current folder come first.
    spec = (
        module.__spec__
        if module
        else importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    )
    if spec is None:
        return ""
    where = (
        spec.origin
        if spec.has_location and spec.origin
        else next(iter(spec.submodule_search_locations or ()), "")
    )
    return str(Path(where).resolve()) if where else ""


# --- what this account has used
# -----------------------------------------------------------------------------


def get_used_code_file() -> Path | None:
    """Return the file that lists the code this account has used.

    It is ~/.local/state/labelahead/code.jsonl; $XDG_STATE_HOME replaces ~/.local/state. None for an
    account without a home folder.
    """
    state = os.environ.get("XDG_STATE_HOME")
    try:
        folder = (
            Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
        )
    except RuntimeError:
        return None
    return folder / "labelahead" / "code.jsonl"


def record_code(names: Iterable[str]) -> None:
    """Record that this account has used this code, so that its own folders can name it later.

    If it cannot be recorded, a warning is logged and the work continues.
    """
    rows = {(resolve_code_name(name), _locate_code(name)) for name in names}
    missing = sorted(rows - _read_used_code()) if rows else []
    path = get_used_code_file()
    if not missing or path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(
            handle, "ab", buffering=0
        ) as file:  # one write a line: processes may do so at the same time
            for name, code in missing:
                file.write(json.dumps({"name": name, "file": code}).encode() + b"\n")
    except OSError as error:
        log.warning(
            "%s cannot be written to (%s): opening a folder that names your own code will need "
            "--trust-code",
            path,
            error.strerror,
        )


def _read_used_code() -> set[tuple[str, str]]:
    """Return (name, file) of all code that this account has used.

    A file that other accounts could have written is ignored.
    """
    path = get_used_code_file()
    try:
        if path is None or not path.is_file():
            return set()
        about = path.stat()
        if hasattr(os, "geteuid") and (about.st_uid != os.geteuid() or about.st_mode & 0o022):
            log.warning("%s is ignored: another account owns it or can write to it", path)
            return set()
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        log.warning(
            "%s cannot be read (%s): your own code is treated as unknown", path, error.strerror
        )
        return set()
    used = set()
    for line in lines:
        try:
            row = json.loads(line)
            used.add((str(row["name"]), str(row["file"])))
        except (ValueError, KeyError, TypeError):  # a truncated line: that code is unknown again
            continue
    return used
