"""Files of the known data sets: looked for, then fetched, or asked for by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelahead.data.extras import need
from labelahead.data.options import Options
from labelahead.errors import InputError

__all__ = ["Form", "Remote", "find_or_fetch"]

TIMEOUT = (4, 30)  # seconds to connect, seconds without a byte
UNREACHED = ("ConnectionError", "ConnectTimeout", "ProxyError", "ReadTimeout", "SSLError")


@dataclass(frozen=True)
class Form:
    """One way a data set lies on disk: files of one folder (each under one of its names)."""

    files: tuple[tuple[str, ...], ...]
    read: Callable[[Sequence[Path]], Any]


@dataclass(frozen=True)
class Remote:
    """A file at its official address."""

    file: str
    url: str
    md5: str


def find_or_fetch(
    name: str,
    forms: Sequence[Form],
    below: Sequence[str],
    remote: Sequence[Remote],
    options: Options,
) -> tuple[Form, list[Path]]:
    """The first form whose files are all in one of the folders; else the files downloaded."""
    root = options.root
    folders = [root, root / name, *(root / b for b in below)]
    partly = []
    for form in forms:
        for folder in folders:
            found = [_first(folder, names) for names in form.files]
            if all(found):
                return form, [path for path in found if path is not None]
            missing = [names[0] for names, path in zip(form.files, found, strict=True) if not path]
            if len(missing) < len(form.files):
                partly.append(f"{folder} lacks {', '.join(missing)}")
    reason = "downloading was not allowed (download=False)"
    if options.download and remote:
        reason = _fetch(remote, root / name)
        if not reason:
            return find_or_fetch(name, forms, below, (), options)
    elif options.download:
        reason = "there is no address to download it from"
    either = " or ".join(f"[{', '.join(names[0] for names in form.files)}]" for form in forms)
    raise InputError(
        f"{name} was not found: {reason}. Expected {either}; looked in "
        f"{', '.join(str(f) for f in folders)}"
        f"{'; ' + '; '.join(partly) if partly else ''}. Put the files into {root / name}, or "
        "name their folder with root or $LABELAHEAD_DATA"
    )


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    """The first of the names that is there, as a file (as a folder if it ends with a slash)."""
    for name in names:
        path = folder / name
        if path.is_dir() if name.endswith("/") else path.is_file():
            return path
    return None


def _fetch(remote: Sequence[Remote], folder: Path) -> str:
    """Download every file, checked against its checksum; the reason if that fails."""
    try:
        pooch = need("pooch", "app", "downloading data sets")
    except InputError as error:
        return str(error)
    for item in remote:
        try:
            # pooch writes under another name and moves the file only when its checksum is right.
            pooch.retrieve(
                item.url + item.file,
                known_hash=f"md5:{item.md5}",
                fname=item.file,
                path=folder,
                downloader=pooch.HTTPDownloader(timeout=TIMEOUT),
            )
        except (OSError, ValueError) as error:  # no network, no space, wrong checksum
            return f"downloading {item.url}{item.file} failed ({_short(error)})"
    return ""


def _short(error: Exception) -> str:
    """What went wrong, without the inner workings of the network library."""
    kind = type(error).__name__
    if kind in UNREACHED:
        return f"{kind}: is there a network?"
    return f"{kind}: {(str(error).splitlines() or [''])[0][:300]}"
