"""Folders (or zips) of picture or text files: one subfolder for each class, or no labels at all."""

import hashlib
import os
import stat
import warnings
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from labelahead.data.arrays import (
    InMemoryInputs,
    PixelInputs,
    NumericInputs,
    build_dataset,
    compute_mean_std,
)
from labelahead.data.classes import sort_names
from labelahead.data.dataset import (
    UNKNOWN,
    Answers,
    Images,
    Loaded,
    Rows,
    Texts,
    UnreadableImagesError,
    as_positions,
    check_image_size,
    hash_tensor,
)
from labelahead.data.heif import (
    HEIF_SUFFIXES,
    has_heif_header,
    register_heif_decoder,
    require_heif_decoder,
)
from labelahead.data.label_values import LabelNormaliser, normalise_name
from labelahead.data.preprocessing import COLUMNS, Preprocessor
from labelahead.data.records import FILE_NAME, Records
from labelahead.data.split import LoadOptions, Split, split_items, name_from_path
from labelahead.data.text import decode_text
from labelahead.data.words import build_word_inputs
from labelahead.errors import InputError, did_you_mean, import_extra

__all__ = ["ImageFiles", "arrange_by_ids", "load_folder", "infer_folder_labels"]

NETPBM_SUFFIXES = (".ppm", ".pgm", ".pbm", ".pnm")
JPEG_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif")
IMAGE_SUFFIXES = {
    *JPEG_SUFFIXES,
    ".png",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".webp",
    ".avif",
    *NETPBM_SUFFIXES,
    *HEIF_SUFFIXES,
}
TEXT_SUFFIXES = (".txt", ".text")
IGNORED_TEXT_STEMS = {"readme", "license", "licence"}
MAX_TEXT_BYTES = 2**20  # bytes of a text that are read
DEFAULT_IMAGE_SIDE = 64
UNLABELLED_FOLDERS = {"unlabelled", "unlabeled"}
TRAIN_FOLDERS, TEST_FOLDERS, VALIDATION_FOLDERS = (
    {"train", "training"},
    {"test", "testing"},
    {"val", "valid", "validation"},
)
MAX_LISTED_NAMES = 5  # how many names a note lists
MAX_MEMBER_BYTES = 2**29  # bytes unpacked; a zip may announce far more than it holds
MAX_PIXELS = 178_000_000  # Pillow itself refuses what is a little larger
Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class FileTree:
    """Picture files below a folder or within a zip, by relative name, sorted."""

    root: Path
    names: tuple[str, ...]
    folders: tuple[str, ...]
    others: tuple[str, ...]
    is_zip: bool
    links: bool = True  # whether links may lead out of the folder
    outside: tuple[str, ...] = ()  # those that do, if they may not
    _open: dict[int, zipfile.ZipFile] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=Lock, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def open(self, name: str) -> BinaryIO:
        """The content of one file."""
        if not self.is_zip:
            path = self.root / name
            if not path.is_file():  # a pipe under that name would be waited for without end
                raise InputError("is no regular file")
            if not self.links and not _is_inside(path, self.root.resolve()):
                raise InputError("leads out of the folder")  # it did not when it was found
            return path.open("rb")
        # One handle for each process: after a fork two would move the same file position.
        with self._lock:
            if os.getpid() not in self._open:
                self._open = {os.getpid(): zipfile.ZipFile(self.root)}
            archive = self._open[os.getpid()]
        if archive.getinfo(name).file_size > MAX_MEMBER_BYTES:
            raise InputError(f"is larger than {MAX_MEMBER_BYTES // 2**20} MB unpacked")
        return BytesIO(archive.read(name))

    def list_text_files(self) -> list[str]:
        """The texts among the others, without those that speak of the folder itself."""
        paths = {name: PurePosixPath(name.lower()) for name in self.others}
        return [
            name
            for name, path in paths.items()
            if path.suffix in TEXT_SUFFIXES and path.stem not in IGNORED_TEXT_STEMS
        ]


@dataclass(frozen=True, eq=False)
class FolderLabels:
    """What the folders say: the class of each file, and which files are for testing."""

    labels: Tensor
    classes: tuple[str, ...]
    official: Tensor | None
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ImageFiles(Images):
    """Picture files, decoded at whatever size is asked for."""

    files: FileTree
    names: tuple[str, ...]
    size: int  # of the pictures as inputs
    decoded: Tensor | None = None  # (n, 3, size, size) uint8, if that has been done

    @cached_property
    def pixels(self) -> Tensor:
        """(n, 3, size, size) uint8, all of them."""
        return (
            self.batch(torch.arange(len(self.names)), self.size)
            if self.decoded is None
            else self.decoded
        )

    def batch(self, positions: Tensor, size: int) -> Tensor:
        """The pictures as uint8 (q, 3, size, size), decoded from their files."""
        at = as_positions(positions, len(self.names), "positions")
        check_image_size(size)
        wanted = [self.names[int(i)] for i in at]
        pixels, failed = decode_all(self.files, wanted, size)
        for name, reason in failed.items():
            raise UnreadableImagesError(
                self._gone(name, reason),
                {int(i): failed[n] for i, n in zip(at, wanted, strict=True) if n in failed},
            )
        if not wanted:
            return torch.empty((0, 3, size, size), dtype=torch.uint8)
        return torch.from_numpy(np.stack([pixels[name] for name in wanted]))

    def render_picture(self, position: int, size: int) -> Array:
        """The whole picture, decoded from its file, uint8 (H, W, 3)."""
        name = self.names[int(as_positions([position], len(self.names), "position")[0])]
        check_image_size(size)
        try:
            with ignore_pillow_warnings(), self.files.open(name) as stream:
                return decode_whole(stream, size)
        except Exception as error:  # as in decode_all: Pillow raises nearly anything
            raise UnreadableImagesError(self._gone(name, error), {position: str(error)}) from error

    def _gone(self, name: str, reason: object) -> str:
        if self.decoded is None:
            return (
                f"{printable_name(name)} cannot be read ({reason}); expected a whole picture: repair or "
                "remove it"
            )
        return (
            f"{printable_name(name)} could be read before and cannot now ({reason}); put it back or "
            "load the folder again"
        )

    def compute_fingerprint(self) -> str:
        """A hash of all paths, sizes and dates: reading every file again would take minutes."""
        return hashlib.sha256(
            "\0".join(self.compute_item_fingerprints(len(self.names))).encode(
                "utf-8", "surrogateescape"
            )
        ).hexdigest()

    def compute_item_fingerprints(self, n: int) -> list[str]:
        """Path, size and date of each."""
        root = printable_name(str(self.files.root.resolve()))
        return [
            f"{root}\0{printable_name(name)}\0{about}"
            for name, about in zip(self.names, self._stats(n), strict=False)
        ]

    def _stats(self, n: int) -> Iterator[str]:
        whole = self.files.root.stat() if self.files.is_zip else None
        for name in self.names[:n]:
            about = whole or _stat_or_none(f"{self.files.root}/{name}")
            yield "gone" if about is None else f"{about.st_size}\0{about.st_mtime_ns}"

    def get_file_sizes(self) -> list[int | None]:
        """Bytes of each file, wherever the folder is; None: it is gone."""
        if self.files.is_zip:
            with zipfile.ZipFile(self.files.root) as archive:
                held = {info.filename: info.file_size for info in archive.infolist()}
            return [held.get(name) for name in self.names]
        stats = (_stat_or_none(f"{self.files.root}/{name}") for name in self.names)
        return [None if about is None else about.st_size for about in stats]

    def content_hash(self) -> str:
        """A hash of the pictures as they were decoded; it stays when the folder moves."""
        return hash_tensor(self.pixels)

    def file_names(self) -> Sequence[str]:
        """The names of all picture files, also of broken ones."""
        return [printable_name(name) for name in self.files.names]

    def select(self, at: Tensor) -> "ImageFiles":
        """Those at (q,) positions alone."""
        decoded = None if self.decoded is None else self.decoded[at]
        return replace(self, names=tuple(self.names[int(i)] for i in at), decoded=decoded)

    def as_inputs(self, pool: Tensor) -> "LazyPixelInputs":
        """Standardised by the pictures at (p,) positions, once somebody wants them."""
        return LazyPixelInputs(self, pool)


def _stat_or_none(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


@dataclass(frozen=True, eq=False)
class LazyPixelInputs(InMemoryInputs):
    """Pictures that are decoded when somebody learns from their pixels."""

    photos: ImageFiles
    pool: Tensor

    @property
    def size(self) -> int:  # type: ignore[override]
        """Of a side."""
        return self.photos.size

    @property
    def shape(self) -> tuple[int, ...]:
        """Known before."""
        return (3, self.size, self.size)

    @cached_property
    def _pixels(self) -> PixelInputs:
        values = self.photos.pixels
        return PixelInputs(values, *compute_mean_std(values, self.pool), self.size)

    def inputs(self) -> Tensor:
        """All pictures, standardised, float32."""
        return self._pixels.inputs()

    def make_preprocessor(self) -> Preprocessor:
        """The same mean and deviation of each channel."""
        return self._pixels.make_preprocessor()

    def to_display_range(self, at: Tensor, size: int | None = None) -> Tensor:
        """As pixels are."""
        return self._pixels.to_display_range(at, size)


def arrange_by_ids(loaded: Loaded, ids: Sequence[str]) -> Loaded:
    """Files in the order of a record that has these.

    They come first, also pictures that are gone, then new ones.
    """
    data, answers = loaded
    photos, texts = data.images, data.rows is not None and data.rows.files
    here = {name: i for i, name in enumerate(data.ids)}
    of_files = isinstance(photos, ImageFiles) or (
        texts and here.keys() >= set(ids)
    )  # a text that is gone is a refusal
    if not of_files or tuple(ids) == tuple(data.ids):
        return loaded
    new = dict.fromkeys(data.ids)
    for name in ids:
        new.pop(name, None)
    order = [*ids, *new]
    at = torch.tensor([here.get(name, UNKNOWN) for name in order])
    labels = torch.full((len(order),), UNKNOWN)
    if answers is not None:
        known = at >= 0
        known[known.clone()] = answers.has_label[at[known]]
        labels[known] = answers.take(at[known])
    if not isinstance(photos, ImageFiles):
        return data.select(at), None if answers is None else Answers(labels, tuple(order))
    photos = replace(photos, names=tuple(photos.names[here[n]] if n in here else n for n in order))
    test = torch.isin(at, data.test).nonzero().flatten()
    held = photos.as_inputs(
        torch.ones(len(order), dtype=torch.bool).index_fill_(0, test, False).nonzero().flatten()
    )
    split = Split(torch.arange(len(order)), test, ())
    records = Records({FILE_NAME: order})
    return build_dataset(
        data.name,
        held,
        photos,
        split,
        labels,
        data.classes,
        ids=tuple(order),
        notes=data.notes,
        records=records,
    )


def load_folder(
    path: Path, options: LoadOptions, *, name: str | None = None, leave_out: Sequence[str] = ()
) -> Loaded:
    """All pictures below a folder or in a zip; broken ones are skipped and said."""
    options.refuse_target(str(path))
    options.refuse_id(str(path), "file names")
    files = find_files(path, links=options.links)
    if not files.names and files.list_text_files():
        return _load_text_files(path, files, options, name)
    dropped = tuple(n for n in files.names if set(n.split("/")[:-1]) & set(leave_out))
    names = [n for n in files.names if not set(n.split("/")[:-1]) & set(leave_out)]
    if not names:
        seen = (
            ", ".join(printable_name(n) for n in files.others[:MAX_LISTED_NAMES])
            or "no other files either"
        )
        raise InputError(
            f"{path} holds no pictures ({seen}); expected files such as .jpg or .png, or else "
            ".txt, in one "
            "subfolder for each class, or directly in it if they have no labels"
        )
    require_heif_decoder([printable_name(n) for n in names], str(path))
    folders = [f for f in files.folders if not set(f.split("/")) & set(leave_out)]
    layout = _order_and_label(names, folders, options.classes)
    size = options.size or DEFAULT_IMAGE_SIDE
    pixels: dict[str, Array] = {}
    failed: dict[str, str] = {}
    if options.checked:
        split, pixels, failed = _split_and_decode(files, names, layout, options, size)
    else:
        split = split_items(layout.labels, options, layout.official)
    kept = tuple(names[int(i)] for i in split.keep)
    labels, classes, emptied = _drop_unreadable_classes(layout, split.keep, failed, names)
    values = torch.from_numpy(np.stack([pixels[n] for n in kept])) if options.checked else None
    pixels.clear()
    photos = ImageFiles(files, kept, size, values)
    held = photos.as_inputs(split.pool)
    ids = tuple(printable_name(n) for n in kept)
    notes = (
        *layout.notes,
        *_describe_skipped_files(files, dropped, failed),
        *emptied,
        *split.notes,
    )
    records = Records({FILE_NAME: list(ids)})
    shown_as = name or name_from_path(path)
    return build_dataset(
        shown_as, held, photos, split, labels, classes, ids=ids, notes=notes, records=records
    )


def _order_and_label(
    names: list[str], folders: Sequence[str], classes: Sequence[str]
) -> FolderLabels:
    """What the folders say.

    The names are put in order, training first, whatever its folder is called.
    """
    layout = infer_folder_labels(names, folders, classes)
    if layout.official is None:
        return layout
    for_test = dict(zip(names, layout.official.tolist(), strict=True))
    names.sort(key=lambda n: for_test[n])
    return infer_folder_labels(names, folders, classes)


def _load_text_files(path: Path, files: FileTree, options: LoadOptions, name: str | None) -> Loaded:
    """All .txt files below a folder or in a zip that holds no pictures; each is one text."""
    options.refuse_size(str(path))
    names = files.list_text_files()
    files = replace(
        files, names=tuple(names), others=tuple(n for n in files.others if n not in set(names))
    )
    layout = _order_and_label(names, files.folders, options.classes)
    texts, failed, notes = read_text_files(files, names)
    if not texts:
        raise InputError(
            f"none of the {len(names)} texts of {path} can be read ({failed[names[0]]}); expected "
            "some"
        )
    split = split_items(
        layout.labels, options, layout.official, torch.tensor([n in texts for n in names])
    )
    kept = [names[int(i)] for i in split.keep]
    labels, classes, emptied = _drop_unreadable_classes(layout, split.keep, failed, names)
    column = {"text": [texts[n] for n in kept]}
    words = Texts(column, torch.zeros(len(kept), 0))
    ids = tuple(printable_name(n) for n in kept)
    return build_dataset(
        name or name_from_path(path),
        NumericInputs(words.other_features, torch.zeros(()), torch.ones(())),
        None,
        split,
        labels,
        classes,
        ids=ids,
        notes=tuple(
            note.replace("picture", "text")
            for note in (
                *layout.notes,
                *_describe_skipped_files(files, (), failed),
                *notes,
                *emptied,
                *split.notes,
            )
        ),
        rows=Rows(column, "text", files=True),
        texts=words,
        build=partial(build_word_inputs, words, split.pool, str(path)),
        preprocessor=Preprocessor(COLUMNS, (0,)),
        records=Records({FILE_NAME: list(ids), **column}),
    )


def read_text_files(
    files: FileTree, names: Sequence[str]
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Texts by name, reasons by name of the files that cannot be read, and what to say."""
    texts: dict[str, str] = {}
    failed: dict[str, str] = {}
    cut, foreign = [], []
    for name in names:
        try:
            with files.open(name) as stream:
                content = stream.read(MAX_TEXT_BYTES + 1)
        except (OSError, InputError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            failed[name] = str(error) or type(error).__name__
            continue
        if len(content) > MAX_TEXT_BYTES:
            cut.append(name)
            content = content[:MAX_TEXT_BYTES]
        texts[name], as_said = decode_text(content)
        if not as_said:
            foreign.append(name)
    notes = (
        [
            f"{len(cut)} texts are longer than {MAX_TEXT_BYTES >> 20} MB: {_list_first(cut)}: only that "
            "is read"
        ]
        if cut
        else []
    )
    if foreign:
        notes.append(f"{len(foreign)} texts are no UTF-8: {_list_first(foreign)}: read as Latin-1")
    empty = [name for name, text in texts.items() if not text.strip()]
    if empty:
        notes.append(f"{len(empty)} texts are empty: {_list_first(empty)}")
    return texts, failed, notes


def _split_and_decode(
    files: FileTree, names: Sequence[str], layout: FolderLabels, options: LoadOptions, size: int
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
                f"({printable_name(first)}: {failed[first]}); expected at least one whole picture"
            )
        split = split_items(layout.labels, options, layout.official, usable)
        todo = [names[int(i)] for i in split.keep if names[int(i)] not in pixels]
        decoded, broken = decode_all(files, todo, size)
        pixels |= decoded
        failed |= broken
        if not broken:
            return split, pixels, failed


def _drop_unreadable_classes(
    layout: FolderLabels, keep: Tensor, failed: dict[str, str], names: Sequence[str]
) -> tuple[Tensor, tuple[str, ...], list[str]]:
    """Labels and classes without the classes of which no file can be read."""
    fine = torch.tensor([n not in failed for n in names]) & (layout.labels >= 0)
    present = torch.from_numpy(np.unique(layout.labels[fine].numpy()))
    there = set(present.tolist())
    gone = [c for i, c in enumerate(layout.classes) if i not in there]
    notes = [f"no readable picture in the classes {_list_first(gone)}: left out"] if gone else []
    labels = layout.labels[keep]
    renumbered = torch.where(labels >= 0, torch.searchsorted(present, labels), UNKNOWN)
    return renumbered, tuple(layout.classes[int(i)] for i in present), notes


def _describe_skipped_files(
    files: FileTree, dropped: Sequence[str], failed: dict[str, str]
) -> list[str]:
    """What was left out, and why."""
    notes = []
    if files.outside:
        notes.append(
            f"{len(files.outside)} links lead out of the folder: {_list_first(files.outside)}: left out"
        )
    if dropped:
        notes.append(f"{len(dropped)} pictures of {dropped[0].rsplit('/', 2)[-2]} left out")
    if failed:
        reasons = [f"{printable_name(n)} ({failed[n]})" for n in sorted(failed)[:MAX_LISTED_NAMES]]
        more = (
            f" and {len(failed) - MAX_LISTED_NAMES} more" if len(failed) > MAX_LISTED_NAMES else ""
        )
        notes.append(f"{len(failed)} files cannot be read: {'; '.join(reasons)}{more}: skipped")
    if files.others:
        notes.append(f"{len(files.others)} files are no pictures: {_list_first(files.others)}")
    return notes


def _list_first(names: Sequence[str]) -> str:
    """The first few names, and how many more."""
    more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(printable_name(n) for n in names[:MAX_LISTED_NAMES]) + more


def printable_name(name: str) -> str:
    """A file name that can be printed and stored, even where it is no UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def infer_folder_labels(
    names: Sequence[str], folders: Sequence[str] = (), classes: Sequence[str] = ()
) -> FolderLabels:
    """Classes from the paths alone: a/1.jpg is an `a`; 1.jpg and unlabelled/1.jpg are unknown.

    classes: if given, folders of other names are no classes, and what is in them is unknown too.
    """
    known = {normalise_name(name) for name in classes}
    parts = [name.split("/") for name in names]
    notes = []
    depth = 0
    while len(tops := {p[depth] for p in parts}) == 1 and all(len(p) > depth + 2 for p in parts):
        if (
            tops <= UNLABELLED_FOLDERS | TRAIN_FOLDERS
            or {normalise_name(printable_name(top)) for top in tops} & known
        ):
            break
        notes.append(f"looking inside the only folder, {printable_name(next(iter(tops)))}")
        depth += 1
    official, more = _find_test_folder(parts, depth)
    notes += more
    if official is not None:
        depth += 1
    inside = [
        None
        if len(p) <= depth + 1 or p[depth].casefold() in UNLABELLED_FOLDERS
        else printable_name(p[depth])
        for p in parts
    ]
    others = {f for f in inside if f is not None and known and normalise_name(f) not in known}
    reader = LabelNormaliser(classes)
    of_item = [None if f is None or f in others else reader.read(f, literal=True) for f in inside]
    notes += reader.notes()
    raw = sort_names({c for c in of_item if c is not None})
    number = {c: i for i, c in enumerate(raw)}
    labels = torch.tensor([UNKNOWN if c is None else number[c] for c in of_item])
    if official is not None:
        official &= labels >= 0
    if others:
        hint = next(filter(None, (did_you_mean(folder, classes) for folder in sorted(others))), "")
        notes.append(
            f"folders that are none of the classes {_list_first(classes)}: {_list_first(sorted(others))}: "
            "their pictures have no "
            f"label{'; ' + hint.strip() if hint else ''}"
        )
    elif not raw:
        notes.append("no class folders: the pictures have no labels")
    elif len(raw) == 1:
        notes.append(
            f"only one class folder, {raw[0]}: every picture in it has the same label "
            "(pictures without labels belong directly in the folder, or in `unlabelled`)"
        )
    unknown = int((labels < 0).sum())
    if raw and unknown:
        notes.append(f"{unknown} pictures are in no class folder: without labels")
    used = {"/".join(p[:i]) for p in parts for i in range(1, len(p))}
    empty = [f for f in folders if f not in used and len(f.split("/")) == depth + 1]
    if empty:
        notes.append(f"no pictures in the folders {_list_first(empty)}")
    return FolderLabels(labels, raw, official, tuple(notes))


def _find_test_folder(parts: list[list[str]], depth: int) -> tuple[Tensor | None, list[str]]:
    """The test part, where the folders are train/<class>/ and test/<class>/."""
    tops = {p[depth].casefold() for p in parts if len(p) > depth + 2}
    if any(len(p) == depth + 2 for p in parts if p[depth].casefold() not in UNLABELLED_FOLDERS):
        return None, []  # pictures directly in a folder: it is a class
    if (
        not tops
        or not tops & TRAIN_FOLDERS
        or tops - TRAIN_FOLDERS - TEST_FOLDERS - VALIDATION_FOLDERS - UNLABELLED_FOLDERS
    ):
        return None, []
    testing = TEST_FOLDERS if tops & TEST_FOLDERS else VALIDATION_FOLDERS
    notes = []
    if tops & TEST_FOLDERS and tops & VALIDATION_FOLDERS:
        notes.append("the validation folder joins the pool, the test folder is for testing")
    official = torch.tensor([p[depth].casefold() in testing for p in parts])
    notes.append(f"test part as in the folders: {int(official.sum())} pictures")
    return official, notes


def find_files(root: Path, *, links: bool = True) -> FileTree:
    """All picture files, at any depth; hidden ones are left out.

    links: whether to follow links that lead out of the folder.
    """
    outside: list[str] = []
    try:
        if root.is_dir():
            names, folders = _walk_folder(root, None if links else outside)
        else:
            names, folders = _list_zip_members(root)
    except (zipfile.BadZipFile, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{root} cannot be read ({error}); expected a folder or a zip archive of pictures"
        ) from error
    pictures = {
        n for n in names if os.path.splitext(n)[1].lower() in IMAGE_SUFFIXES
    }  # Path takes ten times as long
    kept, others = sorted(pictures), sorted(set(names) - pictures)
    return FileTree(
        root,
        tuple(kept),
        tuple(sorted(folders)),
        tuple(others),
        not root.is_dir(),
        links,
        tuple(sorted(outside)),
    )


def _walk_folder(root: Path, outside: list[str] | None = None) -> tuple[list[str], list[str]]:
    """Files and folders below a folder: real folders first, linked ones once, so no loop.

    outside: collects links that lead out of the folder, which are not followed then.
    """
    resolved = root.resolve()
    names: list[str] = []
    folders: list[str] = []
    seen = set()
    todo, linked = deque([""]), deque[str]()
    while todo or linked:
        here = todo.popleft() if todo else linked.popleft()
        status = os.stat(root / here)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(root / here) as listing:
            entries = list(listing)
        if here and {"config.toml", "labels.jsonl"} <= {e.name for e in entries}:
            continue  # results of a campaign that were put inside the data
        if here:
            folders.append(here)
        for entry in entries:
            name = f"{here}/{entry.name}" if here else entry.name
            if _is_hidden(entry.name):
                continue
            if outside is not None and entry.is_symlink() and not _is_inside(root / name, resolved):
                outside.append(name)
                continue
            if _is_folder(entry):
                (linked if entry.is_symlink() else todo).append(name)
            else:
                names.append(name)
    return names, folders


def _list_zip_members(path: Path) -> tuple[list[str], list[str]]:
    """Files and folders of a zip archive."""
    names, folders = [], set()
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename
            if not name or _is_hidden(name) or ".." in PurePosixPath(name).parts:
                continue
            if info.is_dir() or stat.S_ISDIR(info.external_attr >> 16):
                folders.add(name.rstrip("/"))
            else:
                names.append(name)
                folders.update(str(p) for p in PurePosixPath(name).parents if str(p) != ".")
    return names, list(folders)


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _is_inside(path: Path, root: Path) -> bool:
    """Whether a path, all links followed, stays below a resolved folder."""
    try:
        return path.resolve(strict=True).is_relative_to(root)
    except (
        OSError,
        RuntimeError,
    ):  # a link to itself, or to nothing: opening it fails, and says so
        return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: kept as a file, whose opening fails and is reported
        return False


def decode_all(
    files: FileTree, names: Sequence[str], size: int
) -> tuple[dict[str, Array], dict[str, str]]:
    """Pixels by name, and reasons by name of the files that cannot be read."""
    pixels: dict[str, Array] = {}
    failed: dict[str, str] = {}

    def one(name: str) -> None:
        try:
            with files.open(name) as stream:
                if not stream.read(1):
                    raise InputError("is empty")
                stream.seek(0)
                pixels[name] = decode_square(stream, size)
        # Pillow's parsers raise nearly anything on a broken file; the reason is passed on.
        except Exception as error:
            failed[name] = str(error) or type(error).__name__

    with ignore_pillow_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        list(threads.map(one, dict.fromkeys(names)))
    return pixels, failed


@contextmanager
def ignore_pillow_warnings() -> Iterator[None]:
    """Pillow warns from 89 megapixels on, where all is well up to 178, and of odd metadata."""
    warning = import_extra("PIL.Image", "app", "reading pictures").DecompressionBombWarning
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", warning)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        yield


def decode_square(stream: BinaryIO, size: int) -> Array:
    """The picture, shorter side resized and centre cropped, as uint8 (3, size, size)."""
    pil = import_extra("PIL.Image", "app", "reading pictures")
    upright = _open_upright(stream, size, pil)
    width, height = upright.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    square = upright.resize(
        (size, size),
        pil.Resampling.BILINEAR,
        box=(left, top, left + side, top + side),
        reducing_gap=3.0,
    )
    return np.ascontiguousarray(np.asarray(square, dtype=np.uint8).transpose(2, 0, 1))


def decode_whole(stream: BinaryIO, size: int) -> Array:
    """The whole picture, longer side at most `size`, as uint8 (H, W, 3)."""
    pil = import_extra("PIL.Image", "app", "reading pictures")
    upright = _open_upright(stream, size, pil)
    upright.thumbnail((size, size), pil.Resampling.BICUBIC, reducing_gap=3.0)
    return np.ascontiguousarray(np.asarray(upright, dtype=np.uint8))


def _open_upright(stream: BinaryIO, size: int, pil: Any) -> Any:
    """RGB and the right way up, not much larger than needed."""
    ops = import_extra("PIL.ImageOps", "app", "reading pictures")
    most = f"expected at most {MAX_PIXELS // 10**6} million: make it smaller"
    if has_heif_header(
        stream
    ):  # whatever the file is called; worker processes have not seen the folder's names
        register_heif_decoder()
    try:
        opened = pil.open(stream)
    except pil.DecompressionBombError as error:
        raise InputError(
            f"too many pixels ({str(error).partition(' exceeds')[0]}); {most}"
        ) from error
    except pil.UnidentifiedImageError as error:  # Pillow's own words name an object of ours
        raise InputError("it is no picture of a kind that can be read") from error
    with opened as image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise InputError(f"{width} x {height} pixels; {most}")
        image.draft(None, (2 * size, 2 * size))  # JPEG is decoded smaller right away: quicker
        image.load()
        return _to_rgb(ops.exif_transpose(image), pil)


def _to_rgb(image: Any, pil: Any) -> Any:
    """Any mode as RGB: transparency on white, deep grey scaled to 8 bits."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        return pil.fromarray(_to_eight_bit(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        over = image.convert("RGBA")
        white = pil.new("RGBA", over.size, (255, 255, 255, 255))
        return pil.alpha_composite(white, over).convert("RGB")
    return image.convert("RGB")


def _to_eight_bit(deep: Array) -> Array:
    """Grey values of 16 or 32 bits as 8 bits; Pillow's own conversion would clip them."""
    values = deep.astype(np.float64)
    if not np.isfinite(values).all():
        raise InputError("holds NaN or infinity; expected finite grey values")
    low, high = values.min(), values.max()
    if deep.dtype.kind == "f" and low >= 0 and high <= 1:
        values = values * 255
    elif low >= 0 and high <= 65535 and (high > 255 or deep.dtype.itemsize == 2):
        values = values / 257
    elif low < 0 or high > 255:
        values = (values - low) * (255 / (high - low))
    return values.round().astype(np.uint8)
