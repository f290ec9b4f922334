"""Folders and zips of image, sound or text files, with one subfolder per class or without labels."""

import os
import warnings
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from labelahead.data.arrays import (
    ClassLabels,
    Content,
    InMemoryInputs,
    NumericInputs,
    PixelInputs,
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
    as_positions,
    check_image_size,
    hash_tensor,
    refuse_inputs,
)
from labelahead.data.file_tree import (
    FileSource,
    FileTree,
    ItemFiles,
    UnreadableItemsError,
    find_files,
    printable_name,
)
from labelahead.data.heif import has_heif_header, register_heif_decoder, require_heif_decoder
from labelahead.data.label_values import LabelNormaliser, normalise_name
from labelahead.data.preprocessing import COLUMN_INPUTS, Preprocessor
from labelahead.data.records import FILE_NAME, Records
from labelahead.data.sounds import SoundFiles, find_unreadable_sounds, import_soundfile
from labelahead.data.split import LoadOptions, Split, name_from_path, split_items
from labelahead.data.text import decode_text
from labelahead.data.words import build_word_inputs
from labelahead.errors import InputError, count_noun, did_you_mean, import_extra

__all__ = ["ImageFiles", "arrange_by_ids", "infer_folder_labels", "load_folder"]

MAX_TEXT_BYTES = 2**20  # longer text files are truncated
DEFAULT_IMAGE_SIDE = 64
ENCODER_PIXELS = 256  # encoders by name get images of at least twice as many pixels a side
UNLABELLED_FOLDERS = {"unlabelled", "unlabeled"}
TRAIN_FOLDERS = {"train", "training"}
TEST_FOLDERS = {"test", "testing"}
VALIDATION_FOLDERS = {"val", "valid", "validation"}
MAX_LISTED_NAMES = 5  # names listed in a note
MAX_PIXELS = 178_000_000  # Pillow refuses slightly larger images itself
Array = np.ndarray[Any, Any]


# --- Image files


@dataclass(frozen=True, eq=False)
class FolderLabels:
    """The labels that follow from the folder names.

    Attributes:
        labels: (n,) class numbers, -1 where unknown.
        classes: the class names.
        official: (n,) mask of the test set, if the folders define one.
        notes: decisions, for the user.
    """

    labels: Tensor
    classes: tuple[str, ...]
    official: Tensor | None
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ImageFiles(ItemFiles, Images):
    """Image files that are decoded at any requested size.

    Attributes:
        size: the side of the images as inputs, in pixels.
        decoded: (n, 3, size, size) uint8 if the images are decoded already.
    """

    size: int
    decoded: Tensor | None = None

    @cached_property
    def pixels(self) -> Tensor:
        """All images, (n, 3, size, size) uint8."""
        return (
            self.batch(torch.arange(len(self.names)), self.size)
            if self.decoded is None
            else self.decoded
        )

    def batch(self, positions: Tensor, size: int) -> Tensor:
        """Decode images as uint8 (q, 3, size, size).

        Raises:
            UnreadableItemsError: if a file cannot be read.
        """
        at = as_positions(positions, len(self.names), "positions")
        check_image_size(size)
        wanted = [self.names[int(i)] for i in at]
        pixels, failed = decode_all(self.files, wanted, size)
        for name, reason in failed.items():
            raise UnreadableItemsError(
                self._unreadable_message(name, reason),
                {int(i): failed[n] for i, n in zip(at, wanted, strict=True) if n in failed},
            )
        if not wanted:
            return torch.empty((0, 3, size, size), dtype=torch.uint8)
        return torch.from_numpy(np.stack([pixels[name] for name in wanted]))

    def render_picture(self, position: int, size: int) -> Array:
        """Decode one whole image, uint8 (H, W, 3).

        Raises:
            UnreadableItemsError: if the file cannot be read.
        """
        name = self.names[int(as_positions([position], len(self.names), "position")[0])]
        check_image_size(size)
        try:
            with ignore_pillow_warnings(), self.files.open(name) as stream:
                return decode_whole(stream, size)
        except Exception as error:  # as in decode_all: Pillow raises almost any error
            raise UnreadableItemsError(
                self._unreadable_message(name, error), {position: str(error)}
            ) from error

    def open_picture(self, position: int) -> Any:
        """Decode one whole image for an encoder, a PIL image in RGB.

        Raises:
            UnreadableItemsError: if the file cannot be read.
        """
        name = self.names[int(as_positions([position], len(self.names), "position")[0])]
        try:
            return decode_picture(self.files, name)
        except Exception as error:  # as in decode_all: Pillow raises almost any error
            raise UnreadableItemsError(
                self._unreadable_message(name, error), {position: str(error)}
            ) from error

    def _unreadable_message(self, name: str, reason: object) -> str:
        """Return the message for a file that cannot be read."""
        if self.decoded is None:
            return (
                f"{printable_name(name)} cannot be read ({reason}); expected a whole picture: "
                "repair or remove it"
            )
        return (
            f"{printable_name(name)} could be read before and cannot now ({reason}); put it back "
            "or load the folder again"
        )

    def content_hash(self) -> str:
        """Return a hash of the decoded images; it does not change when the folder moves."""
        return hash_tensor(self.pixels)

    def select(self, at: Tensor) -> "ImageFiles":
        """Return the images at (q,) positions."""
        decoded = None if self.decoded is None else self.decoded[at]
        return replace(self, names=tuple(self.names[int(i)] for i in at), decoded=decoded)

    def as_inputs(self, pool: Tensor) -> "LazyPixelInputs":
        """Return the images as inputs, standardised on (p,) positions; nothing is decoded yet."""
        return LazyPixelInputs(self, pool)


@dataclass(frozen=True, eq=False)
class LazyPixelInputs(InMemoryInputs):
    """Images that are decoded when their pixels are needed as inputs."""

    photos: ImageFiles
    pool: Tensor

    @property
    def size(self) -> int:  # type: ignore[override]
        """The side of the images, in pixels."""
        return self.photos.size

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, known without decoding."""
        return (3, self.size, self.size)

    @cached_property
    def _pixels(self) -> PixelInputs:
        values = self.photos.pixels
        return PixelInputs(values, *compute_mean_std(values, self.pool), self.size)

    def inputs(self) -> Tensor:
        """Return all images, standardised, float32."""
        return self._pixels.inputs()

    def make_preprocessor(self) -> Preprocessor:
        """Return a preprocessor with the same mean and deviation of each channel."""
        return self._pixels.make_preprocessor()

    def to_display_range(self, at: Tensor, size: int | None = None) -> Tensor:
        """Return images (q, 3, H, W) with values from 0 (black) to 255."""
        return self._pixels.to_display_range(at, size)


def arrange_by_ids(loaded: Loaded, ids: Sequence[str]) -> Loaded:
    """Arrange files in the order of stored ids, for example of a labelling session.

    The stored ids come first, including files that do not exist any more; new files follow. Other
    data are returned unchanged.
    """
    data, answers = loaded
    items = data.images if data.sounds is None else data.sounds
    has_text_files = data.rows is not None and data.rows.files
    position_of = {name: i for i, name in enumerate(data.ids)}
    # If a text file was deleted, the caller refuses the data; other deleted files stay items.
    can_arrange = isinstance(items, ItemFiles) or (
        has_text_files and position_of.keys() >= set(ids)
    )
    if not can_arrange or tuple(ids) == tuple(data.ids):
        return loaded
    new = dict.fromkeys(data.ids)
    for name in ids:
        new.pop(name, None)
    order = [*ids, *new]
    at = torch.tensor([position_of.get(name, UNKNOWN) for name in order])
    labels = torch.full((len(order),), UNKNOWN)
    if answers is not None:
        has_label = at >= 0
        has_label[has_label.clone()] = answers.has_label[at[has_label]]
        labels[has_label] = answers.take(at[has_label])
    if not isinstance(items, ItemFiles):
        return data.select(at), None if answers is None else Answers(labels, tuple(order))
    file_names = (items.names[position_of[n]] if n in position_of else n for n in order)
    test = torch.isin(at, data.test).nonzero().flatten()
    split = Split(torch.arange(len(order)), test, ())
    items = replace(items, names=tuple(file_names))
    arranged, answers = _build_file_dataset(
        data.name, items, split, labels, data.classes, data.notes
    )
    vectors = {name: _arrange_rows(values, at) for name, values in data.vectors.items()}
    guesses = {
        name: replace(guess, probabilities=_arrange_rows(guess.probabilities, at))
        for name, guess in data.guesses.items()
    }
    arranged = replace(arranged, task=data.task, former_classes=data.former_classes)
    return replace(arranged, vectors=vectors, guesses=guesses), answers


def _arrange_rows(values: Tensor, at: Tensor) -> Tensor:
    """Return the rows (n, d) at positions; zeros for files that do not exist any more."""
    rows = values.new_zeros(len(at), values.shape[1])
    rows[at >= 0] = values[at[at >= 0]]
    return rows


def _build_file_dataset(
    name: str,
    items: ItemFiles,
    split: Split,
    labels: Tensor,
    classes: tuple[str, ...],
    notes: tuple[str, ...],
) -> Loaded:
    """Make data and answers of image or sound files; see `build_dataset`."""
    ids = tuple(printable_name(n) for n in items.names)
    records = Records({FILE_NAME: list(ids)})
    if isinstance(items, ImageFiles):
        inputs = items.as_inputs(split.pool)
        content = Content(ids=ids, images=items, records=records)
        return build_dataset(name, inputs, ClassLabels(labels, classes), split, notes, content)
    assert isinstance(items, SoundFiles)
    message = f"{name} holds sounds, which are no numbers; expected an embedding"
    data, answers = build_dataset(
        name,
        NumericInputs(torch.zeros(len(ids), 0), torch.zeros(()), torch.ones(())),
        ClassLabels(labels, classes),
        split,
        notes,
        Content(ids=ids, build=partial(refuse_inputs, message), records=records),
    )
    return replace(data, sounds=items), answers


# --- Load a folder


def load_folder(
    path: Path, options: LoadOptions, *, name: str | None = None, leave_out: Sequence[str] = ()
) -> Loaded:
    """Load all images or sounds below a folder or in a zip; broken ones are skipped and noted.

    A folder with neither is loaded as text files.

    Args:
        path: the folder or the zip.
        options: the options of `load`.
        name: the name of the data set; default: that of the path.
        leave_out: names of subfolders to skip.

    Raises:
        InputError: if there are no readable images, sounds or texts, or both images and sounds.
    """
    options.refuse_target(str(path))
    options.refuse_id(str(path), "file names")
    files = find_files(path, links=options.links)
    sounds = files.list_sound_files()
    if sounds and files.names:
        raise InputError(
            f"{path} holds {count_noun(len(files.names), 'picture')} ({_list_first(files.names)}) and "
            f"{count_noun(len(sounds), 'sound')} ({_list_first(sounds)}); expected files of one kind: move the "
            "others to another folder"
        )
    if sounds:
        return _load_sound_files(path, files.keep_only(sounds), options, name)
    if not files.names and files.list_text_files():
        return _load_text_files(path, files, options, name)
    dropped = tuple(n for n in files.names if set(n.split("/")[:-1]) & set(leave_out))
    names = [n for n in files.names if not set(n.split("/")[:-1]) & set(leave_out)]
    if not names:
        found = (
            ", ".join(printable_name(n) for n in files.others[:MAX_LISTED_NAMES])
            or "no other files either"
        )
        raise InputError(
            f"{path} holds no pictures ({found}); expected files such as .jpg or .png, or else "
            ".wav, .mp3 or .txt, in one subfolder for each class, or directly in it if they have "
            "no labels"
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
    labels, classes, class_notes = _drop_unreadable_classes(layout, split.keep, failed, names)
    values = torch.from_numpy(np.stack([pixels[n] for n in kept])) if options.checked else None
    pixels.clear()
    images = ImageFiles(files, kept, size, values)
    notes = (
        *layout.notes,
        *_describe_skipped_files(files, dropped, failed),
        *class_notes,
        *split.notes,
    )
    return _build_file_dataset(name or name_from_path(path), images, split, labels, classes, notes)


def _order_and_label(
    names: list[str], folders: Sequence[str], classes: Sequence[str]
) -> FolderLabels:
    """Infer labels from the paths, after sorting the names so that training files come first."""
    layout = infer_folder_labels(names, folders, classes)
    if layout.official is None:
        return layout
    for_test = dict(zip(names, layout.official.tolist(), strict=True))
    names.sort(key=lambda n: for_test[n])
    return infer_folder_labels(names, folders, classes)


def _load_sound_files(
    path: Path, files: FileTree, options: LoadOptions, name: str | None
) -> Loaded:
    """Load all sounds below a folder or in a zip that holds no images."""
    options.refuse_size(str(path))
    import_soundfile()  # a missing library is reported before every file is called unreadable
    names = list(files.names)
    layout = _order_and_label(names, files.folders, options.classes)
    failed: dict[str, str] = {}
    if options.checked:
        failed = find_unreadable_sounds(files, names)
        if len(failed) == len(names):
            raise InputError(
                f"none of the {len(names)} sounds of {path} can be read "
                f"({printable_name(names[0])}: {failed[names[0]]}); expected at least one"
            )
    usable = torch.tensor([n not in failed for n in names])
    split = split_items(layout.labels, options, layout.official, usable)
    labels, classes, emptied = _drop_unreadable_classes(layout, split.keep, failed, names)
    notes = (*layout.notes, *_describe_skipped_files(files, (), failed), *emptied, *split.notes)
    kept = tuple(names[int(i)] for i in split.keep)
    return _build_file_dataset(
        name or name_from_path(path),
        SoundFiles(files, kept),
        split,
        labels,
        classes,
        tuple(note.replace("picture", "sound") for note in notes),
    )


def _load_text_files(path: Path, files: FileTree, options: LoadOptions, name: str | None) -> Loaded:
    """Load all .txt files below a folder or in a zip that holds no images; each file is one text."""
    options.refuse_size(str(path))
    names = files.list_text_files()
    files = files.keep_only(names)
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
        ClassLabels(labels, classes),
        split,
        tuple(
            note.replace("picture", "text")
            for note in (
                *layout.notes,
                *_describe_skipped_files(files, (), failed),
                *notes,
                *emptied,
                *split.notes,
            )
        ),
        Content(
            ids=ids,
            rows=Rows(column, "text", files=True),
            texts=words,
            build=partial(build_word_inputs, words, split.pool, str(path)),
            preprocessor=Preprocessor(COLUMN_INPUTS, (0,)),
            records=Records({FILE_NAME: list(ids), **column}),
        ),
    )


def read_text_files(
    files: FileTree, names: Sequence[str]
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Read text files.

    Returns:
        Texts by name, reasons by name for files that cannot be read, and notes for the user.
    """
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
            f"{count_noun(len(cut), 'text is', 'texts are')} longer than {MAX_TEXT_BYTES >> 20} MB: "
            f"{_list_first(cut)}: only that is read"
        ]
        if cut
        else []
    )
    if foreign:
        many = count_noun(len(foreign), "text is", "texts are")
        notes.append(f"{many} no UTF-8: {_list_first(foreign)}: read as Latin-1")
    empty = [name for name, text in texts.items() if not text.strip()]
    if empty:
        many = count_noun(len(empty), "text is", "texts are")
        notes.append(f"{many} empty: {_list_first(empty)}")
    return texts, failed, notes


def _split_and_decode(
    files: FileTree, names: Sequence[str], layout: FolderLabels, options: LoadOptions, size: int
) -> tuple[Split, dict[str, Array], dict[str, str]]:
    """Split the items and decode those kept; repeat the split if files turn out to be broken."""
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
    """Return labels and classes without the classes that have no readable file."""
    fine = torch.tensor([n not in failed for n in names]) & (layout.labels >= 0)
    present = torch.from_numpy(np.unique(layout.labels[fine].numpy()))
    present_classes = set(present.tolist())
    absent_classes = [c for i, c in enumerate(layout.classes) if i not in present_classes]
    notes = (
        [f"no readable picture in the classes {_list_first(absent_classes)}: left out"]
        if absent_classes
        else []
    )
    labels = layout.labels[keep]
    renumbered = torch.where(labels >= 0, torch.searchsorted(present, labels), UNKNOWN)
    return renumbered, tuple(layout.classes[int(i)] for i in present), notes


def _describe_skipped_files(
    files: FileTree, dropped: Sequence[str], failed: dict[str, str]
) -> list[str]:
    """Return notes about all files that were skipped, and why."""
    notes = []
    if files.outside:
        notes.append(
            f"{count_noun(len(files.outside), 'link leads', 'links lead')} out of the folder: "
            f"{_list_first(files.outside)}: left out"
        )
    if dropped:
        many = count_noun(len(dropped), "picture")
        notes.append(f"{many} of {dropped[0].rsplit('/', 2)[-2]} left out")
    if failed:
        reasons = [f"{printable_name(n)} ({failed[n]})" for n in sorted(failed)[:MAX_LISTED_NAMES]]
        more = (
            f" and {len(failed) - MAX_LISTED_NAMES} more" if len(failed) > MAX_LISTED_NAMES else ""
        )
        many = count_noun(len(failed), "file")
        notes.append(f"{many} cannot be read: {'; '.join(reasons)}{more}: skipped")
    if files.others:
        many = count_noun(len(files.others), "file is no picture", "files are no pictures")
        notes.append(f"{many}: {_list_first(files.others)}")
    return notes


def _list_first(names: Sequence[str]) -> str:
    """Return the first names and the number of the others."""
    more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(printable_name(n) for n in names[:MAX_LISTED_NAMES]) + more


# --- Labels from folder names


def infer_folder_labels(
    names: Sequence[str], folders: Sequence[str] = (), classes: Sequence[str] = ()
) -> FolderLabels:
    """Infer classes from the paths.

    a/1.jpg has the class `a`; 1.jpg and unlabelled/1.jpg have no label.

    Args:
        names: the relative paths of the files.
        folders: all subfolders, to report empty ones.
        classes: if given, folders with other names are not classes, and their files have no label.
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
    class_of_item = [
        None if f is None or f in others else reader.read(f, literal=True) for f in inside
    ]
    notes += reader.notes()
    found = sort_names({c for c in class_of_item if c is not None})
    number = {c: i for i, c in enumerate(found)}
    labels = torch.tensor([UNKNOWN if c is None else number[c] for c in class_of_item])
    if official is not None:
        official &= labels >= 0
    notes += _describe_class_folders(found, classes, others, int((labels < 0).sum()))
    used = {"/".join(p[:i]) for p in parts for i in range(1, len(p))}
    empty = [f for f in folders if f not in used and len(f.split("/")) == depth + 1]
    if empty:
        notes.append(f"no pictures in the folders {_list_first(empty)}")
    return FolderLabels(labels, found, official, tuple(notes))


def _describe_class_folders(
    found: Sequence[str], classes: Sequence[str], others: Collection[str], unlabelled: int
) -> list[str]:
    """Return notes about the class folders, for the user.

    Args:
        found: the classes that have a folder.
        classes: the classes that the caller listed.
        others: folders that are none of the listed classes.
        unlabelled: the number of items without a label.
    """
    notes = []
    if others:
        hint = next(filter(None, (did_you_mean(folder, classes) for folder in sorted(others))), "")
        notes.append(
            f"folders that are none of the classes {_list_first(classes)}: "
            f"{_list_first(sorted(others))}: their pictures have no label"
            f"{'; ' + hint.strip() if hint else ''}"
        )
    elif not found:
        notes.append("no class folders: the pictures have no labels")
    elif len(found) == 1:
        notes.append(
            f"only one class folder, {found[0]}: every picture in it has the same label "
            "(pictures without labels belong directly in the folder, or in `unlabelled`)"
        )
    if found and unlabelled:
        many = count_noun(unlabelled, "picture is", "pictures are")
        notes.append(f"{many} in no class folder: without labels")
    return notes


def _find_test_folder(parts: list[list[str]], depth: int) -> tuple[Tensor | None, list[str]]:
    """Return the mask of the test set if the folders are train/<class>/ and test/<class>/.

    Returns:
        The mask (n,), or None, and notes for the user.
    """
    tops = {p[depth].casefold() for p in parts if len(p) > depth + 2}
    if any(len(p) == depth + 2 for p in parts if p[depth].casefold() not in UNLABELLED_FOLDERS):
        return None, []  # a folder that contains images directly is a class
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


# --- Decode images


def decode_all(
    files: FileSource, names: Sequence[str], size: int
) -> tuple[dict[str, Array], dict[str, str]]:
    """Decode files in parallel.

    Returns:
        Pixels uint8 (3, size, size) by name, and reasons by name for files that cannot be read.
    """
    pixels: dict[str, Array] = {}
    failed: dict[str, str] = {}

    def one(name: str) -> None:
        try:
            with files.open(name) as stream:
                if not stream.read(1):
                    raise InputError("is empty")
                stream.seek(0)
                pixels[name] = decode_square(stream, size)
        # Pillow raises almost any error on a broken file; the reason is reported.
        except Exception as error:
            failed[name] = str(error) or type(error).__name__

    with ignore_pillow_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        list(threads.map(one, dict.fromkeys(names)))
    return pixels, failed


@contextmanager
def ignore_pillow_warnings() -> Iterator[None]:
    """Suppress Pillow's warnings about images above 89 megapixels and about odd metadata.

    Images are accepted up to 178 megapixels.
    """
    warning = import_extra("PIL.Image", "app", "reading pictures").DecompressionBombWarning
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", warning)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        yield


def decode_square(stream: BinaryIO, size: int) -> Array:
    """Decode an image: shorter side resized, centre cropped, uint8 (3, size, size)."""
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
    """Decode the whole image, longer side at most `size`, uint8 (H, W, 3)."""
    pil = import_extra("PIL.Image", "app", "reading pictures")
    upright = _open_upright(stream, size, pil)
    upright.thumbnail((size, size), pil.Resampling.BICUBIC, reducing_gap=3.0)
    return np.ascontiguousarray(np.asarray(upright, dtype=np.uint8))


def decode_picture(files: FileSource, name: str) -> Any:
    """Decode one file for an encoder that has its own processor: RGB, with the original proportions.

    JPEG is decoded at a reduced scale, at least 512 pixels a side, and other images of 2048 pixels
    and more a side are reduced by a whole factor: encoders take 224 to 518. Threads call this, so
    the caller suppresses Pillow's warnings (`ignore_pillow_warnings`).
    """
    pil = import_extra("PIL.Image", "app", "reading pictures")
    with files.open(name) as stream:
        if not stream.read(1):
            raise InputError("is empty")
        stream.seek(0)
        upright = _open_upright(stream, ENCODER_PIXELS, pil)
    factor = min(upright.size) // (4 * ENCODER_PIXELS)
    return upright.reduce(factor) if factor > 1 else upright


def _open_upright(stream: BinaryIO, size: int, pil: Any) -> Any:
    """Return the image as RGB in its EXIF orientation, not much larger than needed.

    Raises:
        InputError: if it is no image, or has too many pixels.
    """
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
        ops.exif_transpose(image, in_place=True)  # otherwise upright pictures are copied
        return _to_rgb(image, pil)


def _to_rgb(image: Any, pil: Any) -> Any:
    """Convert any mode to RGB: transparency on white, deep grey scaled to 8 bits."""
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
    """Scale grey values of 16 or 32 bits to 8 bits; Pillow's own conversion would clip them."""
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
