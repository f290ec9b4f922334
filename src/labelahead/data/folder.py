"""Folders (or zips) of picture files: one subfolder for each class, or no labels at all."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data.classes import in_order
from labelahead.data.dataset import UNKNOWN, Answers, Data, Images, as_positions, check_size, hashed
from labelahead.data.files import Files, find_files, shown
from labelahead.data.options import Options
from labelahead.data.photo import decode, decode_whole, without_warnings
from labelahead.data.pixels import Pixels, spread
from labelahead.data.split import Split, choose
from labelahead.errors import InputError

__all__ = ["Photos", "load_folder", "sort_out"]

SIZE = 64
WITHOUT = {"unlabelled", "unlabeled"}
TRAIN, TEST, VALIDATION = {"train", "training"}, {"test", "testing"}, {"val", "valid", "validation"}
NAMED = 5  # how many names a note lists

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Layout:
    """What the folders say: the class of each file, and which files are for testing."""

    labels: Tensor
    classes: tuple[str, ...]
    official: Tensor | None
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Photos(Images):
    """Picture files, decoded at whatever size is asked for."""

    files: Files
    names: tuple[str, ...]
    pixels: Tensor  # (n, 3, size, size) uint8, as decoded when the folder was loaded

    def batch(self, positions: Tensor, size: int) -> Tensor:
        """The pictures as uint8 (q, 3, size, size), decoded from their files."""
        at = as_positions(positions, len(self.names), "positions")
        check_size(size)
        wanted = [self.names[int(i)] for i in at]
        found, failed = decode_all(self.files, wanted, size)
        for name, reason in failed.items():
            raise InputError(
                f"{shown(name)} could be read before and cannot now ({reason}); put it back or "
                "load the folder again"
            )
        if not wanted:
            return torch.empty((0, 3, size, size), dtype=torch.uint8)
        return torch.from_numpy(np.stack([found[name] for name in wanted]))

    def picture(self, position: int, size: int) -> Array:
        """The whole picture, decoded from its file, uint8 (H, W, 3)."""
        name = self.names[int(as_positions([position], len(self.names), "position")[0])]
        check_size(size)
        try:
            with without_warnings(), self.files.open(name) as stream:
                return decode_whole(stream, size)
        except Exception as error:  # as in decode_all: Pillow raises nearly anything
            raise InputError(
                f"{shown(name)} could be read before and cannot now ({error}); put it back"
            ) from error

    def fingerprint(self) -> str:
        """A hash of all paths, sizes and dates: reading every file again would take minutes."""
        return self.files.fingerprint(self.names)

    def content(self) -> str:
        """A hash of the pictures as they were decoded; it stays when the folder moves."""
        return hashed(self.pixels)

    def found(self) -> Sequence[str]:
        """The names of all picture files, also of broken ones."""
        return [shown(name) for name in self.files.names]


def load_folder(
    path: Path, options: Options, *, name: str | None = None, leave_out: Sequence[str] = ()
) -> tuple[Data, Answers | None]:
    """All pictures below a folder or in a zip; broken ones are skipped and said."""
    options.refuse_target(str(path))
    files = find_files(path, links=options.links)
    dropped = tuple(n for n in files.names if set(n.split("/")[:-1]) & set(leave_out))
    names = [n for n in files.names if not set(n.split("/")[:-1]) & set(leave_out)]
    if not names:
        seen = ", ".join(shown(n) for n in files.others[:NAMED]) or "no other files either"
        raise InputError(
            f"{path} holds no pictures ({seen}); expected files such as .jpg or .png, in one "
            "subfolder for each class, or directly in it if they have no labels"
        )
    folders = [f for f in files.folders if not set(f.split("/")) & set(leave_out)]
    layout = sort_out(names, folders)
    if layout.official is not None:  # training pictures come first, whatever the folders' names
        for_test = dict(zip(names, layout.official.tolist(), strict=True))
        names.sort(key=lambda n: for_test[n])
        layout = sort_out(names, folders)
    size = options.size or SIZE
    split, pixels, failed = _read_chosen(files, names, layout, options, size)
    kept = tuple(names[int(i)] for i in split.keep)
    labels, classes, emptied = _present(layout, split.keep, failed, names)
    pool = torch.ones(len(kept), dtype=torch.bool)
    pool[split.test] = False
    values = torch.from_numpy(np.stack([pixels[n] for n in kept]))
    pixels.clear()
    held = Pixels(values, *spread(values, pool.nonzero().flatten()), size)
    ids = tuple(shown(n) for n in kept)
    notes = (*layout.notes, *_remarks(files, dropped, failed), *emptied, *split.notes)
    data = Data(
        name=name or (path.stem if files.is_zip else path.resolve().name) or str(path),
        classes=classes,
        test=split.test,
        ids=ids,
        kind="image",
        notes=notes,
        images=Photos(files, kept, values),
        shape=held.shape,
        build=held.inputs,
    )
    return data, Answers(labels, ids) if bool((labels >= 0).any()) else None


def sort_out(names: Sequence[str], folders: Sequence[str] = ()) -> Layout:
    """Classes from the paths alone: a/1.jpg is an `a`; 1.jpg and unlabelled/1.jpg are unknown."""
    parts = [name.split("/") for name in names]
    notes = []
    depth = 0
    while len(tops := {p[depth] for p in parts}) == 1 and all(len(p) > depth + 2 for p in parts):
        if tops <= WITHOUT | TRAIN:
            break
        notes.append(f"looking inside the only folder, {shown(next(iter(tops)))}")
        depth += 1
    official, more = _official(parts, depth)
    notes += more
    if official is not None:
        depth += 1
    of_item = [
        None if len(p) <= depth + 1 or p[depth].casefold() in WITHOUT else p[depth] for p in parts
    ]
    raw = in_order({c for c in of_item if c is not None})
    number = {c: i for i, c in enumerate(raw)}
    labels = torch.tensor([UNKNOWN if c is None else number[c] for c in of_item])
    if official is not None:
        official &= labels >= 0
    if not raw:
        notes.append("no class folders: the pictures have no labels")
    elif len(raw) == 1:
        notes.append(
            f"only one class folder, {shown(raw[0])}: every picture in it has the same label "
            "(pictures without labels belong directly in the folder, or in `unlabelled`)"
        )
    unknown = int((labels < 0).sum())
    if raw and unknown:
        notes.append(f"{unknown} pictures are in no class folder: without labels")
    used = {"/".join(p[:i]) for p in parts for i in range(1, len(p))}
    empty = [f for f in folders if f not in used and len(f.split("/")) == depth + 1]
    if empty:
        notes.append(f"no pictures in the folders {_some(empty)}")
    return Layout(labels, tuple(shown(c) for c in raw), official, tuple(notes))


def decode_all(
    files: Files, names: Sequence[str], size: int
) -> tuple[dict[str, Array], dict[str, str]]:
    """Pixels by name, and reasons by name of the files that cannot be read."""
    found: dict[str, Array] = {}
    failed: dict[str, str] = {}

    def one(name: str) -> None:
        try:
            with files.open(name) as stream:
                if not stream.read(1):
                    raise InputError("is empty")
                stream.seek(0)
                found[name] = decode(stream, size)
        # Pillow's parsers raise nearly anything on a broken file; the reason is passed on.
        except Exception as error:
            failed[name] = str(error) or type(error).__name__

    with without_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        list(threads.map(one, dict.fromkeys(names)))
    return found, failed


def _official(parts: list[list[str]], depth: int) -> tuple[Tensor | None, list[str]]:
    """The test part, where the folders are train/<class>/ and test/<class>/."""
    tops = {p[depth].casefold() for p in parts if len(p) > depth + 2}
    if any(len(p) == depth + 2 for p in parts if p[depth].casefold() not in WITHOUT):
        return None, []  # pictures directly in a folder: it is a class
    if not tops or not tops & TRAIN or tops - TRAIN - TEST - VALIDATION - WITHOUT:
        return None, []
    testing = TEST if tops & TEST else VALIDATION
    notes = []
    if tops & TEST and tops & VALIDATION:
        notes.append("the validation folder joins the pool, the test folder is for testing")
    official = torch.tensor([p[depth].casefold() in testing for p in parts])
    notes.append(f"test part as in the folders: {int(official.sum())} pictures")
    return official, notes


def _read_chosen(
    files: Files, names: Sequence[str], layout: Layout, options: Options, size: int
) -> tuple[Split, dict[str, Array], dict[str, str]]:
    """Choose, decode what was chosen, and choose again where files turn out broken."""
    pixels: dict[str, Array] = {}
    failed: dict[str, str] = {}
    while True:
        usable = torch.tensor([n not in failed for n in names])
        if not bool(usable.any()):
            first = names[0]
            raise InputError(
                f"none of the {len(names)} pictures of {files.root} can be read "
                f"({shown(first)}: {failed[first]}); expected at least one whole picture"
            )
        split = choose(layout.labels, options, layout.official, usable)
        todo = [names[int(i)] for i in split.keep if names[int(i)] not in pixels]
        found, broken = decode_all(files, todo, size)
        pixels |= found
        failed |= broken
        if not broken:
            return split, pixels, failed


def _present(
    layout: Layout, keep: Tensor, failed: dict[str, str], names: Sequence[str]
) -> tuple[Tensor, tuple[str, ...], list[str]]:
    """Labels and classes without the classes of which no file can be read."""
    fine = torch.tensor([n not in failed for n in names]) & (layout.labels >= 0)
    present = torch.from_numpy(np.unique(layout.labels[fine].numpy()))
    there = set(present.tolist())
    gone = [c for i, c in enumerate(layout.classes) if i not in there]
    notes = [f"no readable picture in the classes {_some(gone)}: left out"] if gone else []
    labels = layout.labels[keep]
    renumbered = torch.where(labels >= 0, torch.searchsorted(present, labels), UNKNOWN)
    return renumbered, tuple(layout.classes[int(i)] for i in present), notes


def _remarks(files: Files, dropped: Sequence[str], failed: dict[str, str]) -> list[str]:
    """What was left out, and why."""
    notes = []
    if files.outside:
        notes.append(
            f"{len(files.outside)} links lead out of the folder: {_some(files.outside)}: left out"
        )
    if dropped:
        notes.append(f"{len(dropped)} pictures of {dropped[0].rsplit('/', 2)[-2]} left out")
    if failed:
        reasons = [f"{shown(n)} ({failed[n]})" for n in sorted(failed)[:NAMED]]
        more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        notes.append(f"{len(failed)} files cannot be read: {'; '.join(reasons)}{more}: skipped")
    if files.others:
        notes.append(f"{len(files.others)} files are no pictures: {_some(files.others)}")
    return notes


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many more."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(shown(n) for n in names[:NAMED]) + more
