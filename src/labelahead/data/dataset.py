"""The data set: inputs without labels (`Data`), and the labels apart from them (`Answers`)."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from labelahead.batching import Samples
from labelahead.data.file_tree import UnreadableItemsError
from labelahead.data.preprocessing import Preprocessor
from labelahead.data.records import Records
from labelahead.data.sounds import SoundFiles
from labelahead.errors import InputError, import_extra
from labelahead.tasks import Task

__all__ = [
    "MAX_IMAGE_SIDE",
    "NONE_OF_THESE",
    "NONE_OF_THESE_NAME",
    "UNKNOWN",
    "Answers",
    "Data",
    "Guesses",
    "Images",
    "Loaded",
    "Rows",
    "Texts",
    "as_positions",
    "check_image_size",
    "find_first_nonfinite",
    "hash_tensor",
    "refuse_inputs",
]

DATA_KINDS = ("image", "vector", "samples")
MAX_IMAGE_SIDE = 4096
UNKNOWN = -1  # the class number of an item without a label
NONE_OF_THESE = -2  # the answer that an item belongs to none of the classes
NONE_OF_THESE_NAME = "none of these"  # how files and pages write it


class Images(ABC):
    """Access to the items as RGB images, for image encoders and the labelling page."""

    @abstractmethod
    def batch(self, positions: Tensor, size: int) -> Tensor:
        """Return the images at (q,) positions as uint8 (q, 3, size, size), RGB."""

    def render_picture(self, position: int, size: int) -> np.ndarray[Any, Any]:
        """Return one whole image for display, uint8 (H, W, 3), its longer side at most `size`."""
        return self.batch(torch.tensor([position]), size)[0].permute(1, 2, 0).numpy()

    def open_picture(self, position: int) -> Any:
        """Return one whole image in its own proportions for an encoder, a PIL image in RGB."""
        pil = import_extra("PIL.Image", "app", "reading pictures")
        return pil.fromarray(self.render_picture(position, MAX_IMAGE_SIDE))

    @abstractmethod
    def content_hash(self) -> str:
        """Return a hash of the pixels, independent of where the files are."""

    def compute_fingerprint(self) -> str:
        """Return a text that changes when any image changes; it is a key of computed features."""
        return self.content_hash()

    def compute_item_fingerprints(self, n: int) -> list[str]:
        """Return a text for each of the n images that changes when this image changes.

        The texts are the keys of computed features.
        """
        whole = self.compute_fingerprint()
        return [f"{whole}|{i}" for i in range(n)]

    def file_names(self) -> Sequence[str]:
        """Return the names of all files, including those that were excluded."""
        return ()

    def select(self, at: Tensor) -> "Images":
        """Return the images at (q,) positions."""
        return ImageSubset(self, at)

    def as_inputs(self, pool: Tensor) -> "StandardisedImages | None":
        """Return the images as inputs, standardised on (p,) positions.

        Returns None if another object holds the inputs.
        """
        return None


class StandardisedImages(Protocol):
    """Images that are decoded and standardised when the inputs are requested."""

    def inputs(self) -> Tensor:
        """Return all inputs, (n, ...) float32."""

    def make_preprocessor(self) -> Preprocessor:
        """Return the preprocessor that turns another item into such an input."""


@dataclass(frozen=True, eq=False)
class ImageSubset(Images):
    """The images at (n,) positions of a larger set."""

    images: Images
    positions: Tensor

    def batch(self, positions: Tensor, size: int) -> Tensor:
        """Return the images at (q,) positions as uint8 (q, 3, size, size), RGB."""
        at = as_positions(positions, len(self.positions), "positions")
        try:
            return self.images.batch(self.positions[at], size)
        except UnreadableItemsError as error:
            failed = {
                int(i): error.failed[int(self.positions[i])]
                for i in at
                if int(self.positions[i]) in error.failed
            }
            raise UnreadableItemsError(str(error), failed) from error

    def render_picture(self, position: int, size: int) -> np.ndarray[Any, Any]:
        """Return one whole image for display, uint8 (H, W, 3)."""
        return self.images.render_picture(int(self.positions[position]), size)

    def open_picture(self, position: int) -> Any:
        """Return one whole image for an encoder."""
        return self.images.open_picture(int(self.positions[position]))

    def content_hash(self) -> str:
        """Return a hash of the larger set and the positions."""
        content = f"{self.images.content_hash()} {self.positions.tolist()}"
        return hashlib.sha256(content.encode()).hexdigest()

    def compute_item_fingerprints(self, n: int) -> list[str]:
        """Return a text for each image that changes when this image changes."""
        count = int(self.positions.max()) + 1 if n else 0
        fingerprints = self.images.compute_item_fingerprints(count)
        return [fingerprints[i] for i in self.positions.tolist()]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table as they are in the file, without the labels, for display.

    Attributes:
        columns: the entries by column name.
        text: the column that holds running text, if there is one.
        files: whether each text is a file.
    """

    columns: dict[str, list[Any]] = field(repr=False)
    text: str | None = None
    files: bool = False

    def get_row(self, position: int) -> list[tuple[str, Any]]:
        """Return (name, value) of every column for one item."""
        return [(name, values[position]) for name, values in self.columns.items()]

    def content_hash(self) -> str:
        """Return a hash of all entries."""
        return hashlib.sha256(repr(self.columns).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, eq=False)
class Texts:
    """Running text by column, and the features of the other columns.

    Words or a sentence encoder turn the texts into features later.

    Attributes:
        columns: the texts by column name.
        other_features: (n, d) float32 from the other columns; d may be 0.
    """

    columns: dict[str, list[str]] = field(repr=False)
    other_features: Tensor = field(
        repr=False
    )  # (n, d) float32: what the other columns became; d may be 0


@dataclass(frozen=True, eq=False)
class Guesses:
    """Guesses of one guesser about all items.

    Attributes:
        classes: the classes that the guesser knows.
        probabilities: (n, C); a row of zeros is no guess.
    """

    classes: tuple[str, ...]
    probabilities: Tensor = field(repr=False)


@dataclass(frozen=True, eq=False)
class Data:
    """A data set without its labels; positions 0..n-1 identify its items everywhere.

    Strategies can access this object, so it holds no label by design; `Answers` holds them.

    Attributes:
        name: the name of the data set.
        classes: the class names.
        test: (t,) positions held out for testing.
        ids: the id of each item in files and exports.
        kind: "image", "vector" or "samples".
        notes: decisions taken while loading, for the user.
        images: access to the items as images, if they are images.
        shape: the shape of one input; () if an embedding determines it (running text, sounds, or
            only vectors that came with the data).
        build: returns the inputs, (n, *shape) float32.
        rows: the rows of a table, for display.
        texts: the running text of a table or of text files.
        vectors: (n, d) embeddings that came with the data, by name.
        further_items: the preprocessor of further items, or what returns it; None if there is none.
        samples: the inputs of kind "samples", which have no tensor `inputs`.
        records: the user's own columns, for exports.
        sounds: access to the items as sounds, if they are sounds.
        depends_on_seed: whether another seed would load other items or another test set.
        guesses: what somebody already says about the items, by the name of the guesser.
        former_classes: normalised name that a class had before it was renamed or merged -> its
            present name; None: it was removed. Guesses may use these names.
        task: what a label is; None: one class. The classes are then the written answers so far.

    >>> from labelahead.data import from_arrays
    >>> data, answers = from_arrays([[0.1, 2.0], [0.3, 1.0], [0.2, 5.0]], ["cat", "dog", "cat"])
    >>> len(data), data.classes, data.shape
    (3, ('cat', 'dog'), (2,))
    """

    name: str
    classes: tuple[str, ...]
    test: Tensor
    ids: Sequence[str]
    kind: str
    notes: tuple[str, ...]
    images: Images | None = field(repr=False)
    shape: tuple[int, ...]
    build: Callable[[], Tensor] = field(repr=False)
    rows: Rows | None = field(default=None, repr=False)
    texts: Texts | None = field(default=None, repr=False)
    vectors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    further_items: Preprocessor | Callable[[], Preprocessor] | None = field(
        default=None, repr=False
    )
    samples: Samples | None = field(default=None, repr=False)
    records: Records | None = field(default=None, repr=False)
    sounds: SoundFiles | None = field(default=None, repr=False)
    depends_on_seed: bool = False
    guesses: Mapping[str, Guesses] = field(default_factory=dict, repr=False)
    former_classes: Mapping[str, str | None] = field(default_factory=dict)
    task: Task | None = None

    def __post_init__(self) -> None:
        if self.kind not in DATA_KINDS:
            raise InputError(f"kind is {self.kind!r}; expected one of {', '.join(DATA_KINDS)}")
        if not len(self.ids):
            raise InputError(f"{self.name} has no items; expected at least one")
        as_positions(self.test, len(self.ids), "test")
        if len(set(self.test.tolist())) != len(self.test):
            raise InputError("test names a position twice; expected every position once")

    def __len__(self) -> int:
        return len(self.ids)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: another process builds the inputs when it needs them."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def preprocessor(self) -> Preprocessor | None:
        """The preprocessor that turns further items into inputs, if there is one."""
        given = self.further_items
        return given if given is None or isinstance(given, Preprocessor) else given()

    @property
    def file_names(self) -> Sequence[str]:
        """The names of all files, including those that were excluded; empty if there are none."""
        files = self.images if self.sounds is None else self.sounds
        return () if files is None else files.file_names()

    def select(self, at: Tensor) -> "Data":
        """Return the items at (q,) positions, in that order."""
        at = as_positions(at, len(self), "at")
        positions = at.tolist()
        test = torch.isin(at, self.test)
        images = None if self.images is None else self.images.select(at)
        decoded = None if images is None else images.as_inputs((~test).nonzero().flatten())

        def select_rows(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
            return {name: [values[i] for i in positions] for name, values in columns.items()}

        return replace(
            self,
            ids=tuple(self.ids[i] for i in positions),
            test=test.nonzero().flatten(),
            images=images,
            rows=None
            if self.rows is None
            else replace(self.rows, columns=select_rows(self.rows.columns)),
            texts=None
            if self.texts is None
            else Texts(select_rows(self.texts.columns), self.texts.other_features[at]),
            vectors={name: values[at] for name, values in self.vectors.items()},
            guesses={
                name: replace(guess, probabilities=guess.probabilities[at])
                for name, guess in self.guesses.items()
            },
            build=partial(_take_inputs, self, at) if decoded is None else decoded.inputs,
            further_items=self.further_items if decoded is None else decoded.make_preprocessor,
            samples=None if self.samples is None else self.samples[at],
            records=None if self.records is None else self.records.take(positions),
            sounds=None if self.sounds is None else self.sounds.select(at),
        )

    @cached_property
    def inputs(self) -> Tensor:
        """All inputs, (n, *shape) float32 and finite; built on first access and cached.

        For text these are word features.
        """
        inputs = self.build()
        expected = (len(self), *(self.shape or inputs.shape[1:]))
        if tuple(inputs.shape) != expected or inputs.dtype != torch.float32:
            raise InputError(
                f"the inputs of {self.name} are {inputs.dtype} {tuple(inputs.shape)}; "
                f"expected torch.float32 {expected}, so `build` or `shape` must change"
            )
        bad = find_first_nonfinite(inputs)
        if bad is not None:
            raise InputError(
                f"item {bad} ({self.ids[bad]}) of {self.name} holds NaN or infinity; expected "
                "finite numbers, so repair or remove it"
            )
        return inputs


def _take_inputs(data: Data, at: Tensor) -> Tensor:
    """Return the inputs at (q,) positions; a function of its own, so that `Data` can be pickled."""
    return data.inputs[at]


def refuse_inputs(message: str) -> Tensor:
    """Raise the error of data that are no tensor; bound to a message, a `build` of `Data`."""
    raise InputError(message)


class Answers:
    """The labels of a data set by position; the oracle of a simulation.

    >>> from labelahead.data import load
    >>> data, answers = load("digits")
    >>> data.classes[answers(0)]  # the label of item 0
    '0'
    """

    def __init__(
        self, labels: Tensor, ids: Sequence[str], column: tuple[str, Any] | None = None
    ) -> None:
        """Check and copy the labels.

        Args:
            labels: (n,) int64 class numbers, -1 where unknown.
            ids: the id of each item, for messages.
            column: the name and the entries of the label column, as in the user's file.
        """
        if labels.shape != (len(ids),) or labels.dtype != torch.int64:
            raise InputError(
                f"labels are {labels.dtype} {tuple(labels.shape)}; expected torch.int64 "
                f"({len(ids)},), one class number for each item, {UNKNOWN} where unknown"
            )
        if bool((labels < UNKNOWN).any()):
            raise InputError(
                f"labels go down to {int(labels.min())}; expected class numbers from 0, or "
                f"{UNKNOWN} where unknown"
            )
        self._labels = labels.clone()
        self._ids = ids
        self.column = column

    def __len__(self) -> int:
        return len(self._labels)

    def __repr__(self) -> str:
        return f"Answers({int(self.has_label.sum())} known of {len(self)})"

    @property
    def has_label(self) -> Tensor:
        """(n,) bool: which items have a label."""
        return self._labels >= 0

    def __call__(self, position: int) -> int:
        """Return the class number of one item."""
        return int(self.take(torch.tensor([position]))[0])

    def take(self, positions: Tensor) -> Tensor:
        """Return the class numbers (q,) int64 at (q,) positions.

        Raises:
            InputError: if an item has no label.
        """
        at = as_positions(positions, len(self), "positions")
        labels = self._labels[at]
        if bool((labels < 0).any()):
            missing = at[labels < 0]
            first = int(missing[0])
            raise InputError(
                f"item {first} ({self._ids[first]}) has no label, nor have "
                f"{len(missing) - 1} other requested items; request only items where `has_label` "
                "is true, or have a person label it"
            )
        return labels


Loaded = tuple[Data, Answers | None]  # the answers are None if no item has a label


def hash_tensor(values: Tensor) -> str:
    """Return a hash of the dtype, shape and values of a tensor."""
    digest = hashlib.sha256(f"{values.dtype} {tuple(values.shape)}".encode())
    digest.update(values.contiguous().numpy().data)
    return digest.hexdigest()


def as_positions(positions: Tensor | Sequence[int], n: int, name: str) -> Tensor:
    """Convert positions to (q,) int64 and check that they are between 0 and n - 1.

    Args:
        positions: whole numbers.
        n: the size of the data set.
        name: the name of the argument, for messages.
    """
    at = torch.as_tensor(positions)
    if at.numel() == 0 and at.ndim == 1:
        return at.to(torch.int64)
    if at.ndim != 1 or at.dtype.is_floating_point or at.dtype.is_complex or at.dtype == torch.bool:
        raise InputError(
            f"{name} is {at.dtype} {tuple(at.shape)}; expected whole numbers of shape (q,), "
            "positions in the data set"
        )
    low, high = int(at.min()), int(at.max())
    if low < 0 or high >= n:
        raise InputError(
            f"{name} holds {low if low < 0 else high}; expected positions from 0 to {n - 1}"
        )
    return at.to(torch.int64)


def check_image_size(size: int) -> None:
    """Raise unless `size` is a valid side of an image, in pixels."""
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_IMAGE_SIDE:
        raise InputError(f"size is {size!r}; expected a whole number from 1 to {MAX_IMAGE_SIDE}")


def find_first_nonfinite(values: Tensor) -> int | None:
    """Return the first row that holds NaN or infinity, or None; works in chunks to save memory."""
    step = max(1, 2**24 // max(1, values[0].numel()))
    for start in range(0, len(values), step):
        fine = torch.isfinite(values[start : start + step]).flatten(1).all(1)
        if not bool(fine.all()):
            return start + int((~fine).nonzero()[0])
    return None
