"""Display of items: pictures and sounds by position, rows and texts as JSON values.

No function takes a path. A picture or sound is decoded from the data set's own files and encoded
again, so that only pixels or samples leave the server, whatever else a file contains.
"""

import hashlib
import io
import math
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, BinaryIO

from labelahead.data import Data
from labelahead.data.classes import normalise_name
from labelahead.data.dataset import Images, hash_tensor
from labelahead.data.file_tree import FileTree, ItemFiles, UnreadableItemsError
from labelahead.data.sounds import SoundFiles
from labelahead.errors import InputError, import_extra
from labelahead.server.export_content import ExportItems

__all__ = ["IMAGE", "SOUND", "Items", "StoredImages"]

IMAGE, SOUND = "image", "sound"  # kinds of items that have a picture

FULL_PIXELS, DISPLAY_PIXELS, THUMBNAIL_PIXELS = 4096, 1024, 256  # pixels of the longer side
MAX_CACHE_BYTES = 64 << 20  # bytes of encoded pictures
MAX_LOSSLESS_PIXELS = THUMBNAIL_PIXELS * THUMBNAIL_PIXELS  # larger pictures are compressed as JPEG
MAX_PEAKS, MAX_THUMBNAIL_PEAKS = 1000, 96  # of a waveform
WAVEFORM_HEIGHT = 100
WAVEFORM_COLOUR = "#4477aa"  # visible on the light and on the dark page
MAX_COLUMNS_SHOWN = 60
MAX_CHARACTERS_SHOWN = 20_000


class StoredImages(Images):
    """Pictures in a storage, one file each."""

    @abstractmethod
    def file(self, position: int) -> bytes:
        """Return the unmodified content of the picture's file."""


class Items:
    """The items of a data set, for display. Threads may share it."""

    def __init__(
        self, data: Data, fingerprint: str | None = None, labels: tuple[str, Any] | None = None
    ) -> None:
        """Store the data. labels: name and entries of the data's own label column, for exports."""
        self.data = data
        self.labels = labels
        self.kind = _find_kind(data)
        self.fingerprint = fingerprint or _compute_fingerprint(data, self.sizes)
        self._cache: OrderedDict[tuple[int, int], tuple[bytes, str]] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.data)

    @property
    def ids(self) -> Sequence[str]:
        """Return the name of every item, by position."""
        return self.data.ids

    @cached_property
    def sizes(self) -> list[int | None] | None:
        """Return the file size of each item, None for a missing file; None if items are no files."""
        files, rows = self._media, self.data.rows
        if rows is not None and rows.files and rows.text is not None:
            return [len(text.encode("utf-8", "surrogatepass")) for text in rows.columns[rows.text]]
        # Sounds of an out-of-core pool are no tree of local files.
        if not isinstance(files, ItemFiles) or not isinstance(files.files, FileTree):
            return None
        return files.get_file_sizes()

    @property
    def _media(self) -> Images | SoundFiles | None:
        return self.data.images if self.data.sounds is None else self.data.sounds

    @property
    def version(self) -> str:
        """Return a version of the data, part of every picture URL, so that browsers may cache."""
        return self.fingerprint[:12]

    def describe_item(self, position: int) -> dict[str, Any]:
        """Return what the page needs to show an item."""
        self._check_position(position)
        name = self.data.ids[position]
        shown: dict[str, Any] = {
            "position": position,
            "id": name,
            "item": name,
            "shown": self._hide_class_folders(name),
        }
        shown |= {"url": None, "text": None, "row": None}
        if self.kind in (IMAGE, SOUND):
            shown["url"] = f"/items/{position}?v={self.version}"
            if self.kind == SOUND:
                shown["sound"] = f"/items/{position}/sound?v={self.version}"
        elif self.data.rows is not None:
            rows = self.data.rows
            pairs = [(n, v) for n, v in rows.get_row(position) if n != rows.text][
                :MAX_COLUMNS_SHOWN
            ]
            shown["row"] = [{"name": name, "value": _to_json_value(value)} for name, value in pairs]
            if rows.text is not None:
                shown["text"] = str(_to_json_value(rows.columns[rows.text][position]) or "")
        else:
            values = self.data.inputs[position].flatten()[:MAX_COLUMNS_SHOWN].tolist()
            shown["row"] = [{"name": str(i), "value": round(v, 4)} for i, v in enumerate(values)]
        return shown

    def _hide_class_folders(self, name: str) -> str:
        """Replace folders that name a class, so that annotators judge the item and not its path."""
        *folders, last = name.split("/")
        return "/".join(
            ["…" if normalise_name(folder) in self._class_names else folder for folder in folders]
            + [last]
        )

    @cached_property
    def _class_names(self) -> set[str]:
        return {normalise_name(c) for c in self.data.classes}

    def encode_image(self, position: int, size: int = DISPLAY_PIXELS) -> tuple[bytes, str]:
        """Return an item's encoded picture and its media type; of a sound, its waveform.

        Args:
            position: the item.
            size: pixels of the longer side.
        """
        self._check_position(position)
        if self._media is None:
            raise InputError(f"item {position} is not a picture; expected an item of kind image")
        key = (position, size)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        encoded = self._draw_picture(position, size)
        with self._lock:
            if key not in self._cache:
                self._cache[key] = encoded
                self._cached_bytes += len(encoded[0])
            while self._cached_bytes > MAX_CACHE_BYTES and len(self._cache) > 1:
                _, (old, _) = self._cache.popitem(last=False)
                self._cached_bytes -= len(old)
        return encoded

    def _draw_picture(self, position: int, size: int) -> tuple[bytes, str]:
        if self.data.sounds is not None:
            count = MAX_THUMBNAIL_PEAKS if size <= THUMBNAIL_PIXELS else MAX_PEAKS
            peaks = self.data.sounds.read_peaks(position, count)
            return _draw_waveform(peaks.tolist()).encode(), "image/svg+xml"
        assert self.data.images is not None
        pil = import_extra("PIL.Image", "app", "showing pictures")
        image = pil.fromarray(self.data.images.render_picture(position, size))
        crisp = image.width * image.height <= MAX_LOSSLESS_PIXELS
        form, more = ("PNG", {}) if crisp else ("JPEG", {"quality": 88})
        stream = io.BytesIO()
        image.save(stream, form, **more)
        return stream.getvalue(), f"image/{form.lower()}"

    def get_sound_size(self, position: int) -> int:
        """Return the size of an item's sound as the page plays it, in bytes."""
        return self._require_sounds(position).get_wav_size(position)

    def iter_sound(self, position: int, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes start..stop - 1 of an item's sound, a .wav file of 16 bits."""
        return self._require_sounds(position).iter_wav(position, start, stop)

    def _require_sounds(self, position: int) -> SoundFiles:
        self._check_position(position)
        if self.data.sounds is None:
            raise InputError(f"item {position} is not a sound; expected an item of kind {SOUND}")
        return self.data.sounds

    def find_problem(self, position: int) -> str | None:
        """Return why an item cannot be shown, or None; the encoded picture is cached."""
        if self.kind not in (IMAGE, SOUND):
            return None
        try:
            self.encode_image(position)
        except UnreadableItemsError as error:
            return str(error)
        return None

    def describe_for_export(self) -> ExportItems:
        """Return the content of the items for an export: ids, columns, files, media."""
        data = self.data
        records = data.records
        if records is not None and self.labels is not None:
            records = records.with_column(*self.labels)
        text = None if data.rows is None else data.rows.text
        picture = None if data.images is None else self.encode_image
        return ExportItems(data.ids, records, text, self.make_opener(), picture, self.kind == SOUND)

    def make_opener(self) -> Callable[[int], BinaryIO] | None:
        """Return a function that opens an item's file by position; None if items are no files."""
        media, rows = self._media, self.data.rows
        if isinstance(media, ItemFiles):
            return lambda at: media.files.open(media.names[at])
        if isinstance(media, StoredImages):
            return lambda at: io.BytesIO(media.file(at))
        if rows is not None and rows.files and rows.text is not None:
            texts = rows.columns[rows.text]
            return lambda at: io.BytesIO(texts[at].encode("utf-8", "surrogatepass"))
        return None

    def _check_position(self, position: int) -> None:
        if not 0 <= position < len(self):
            raise InputError(
                f"there is no item {position}; expected a position from 0 to {len(self) - 1}"
            )


def _find_kind(data: Data) -> str:
    if data.images is not None:
        return IMAGE
    if data.sounds is not None:
        return SOUND
    if data.rows is None:
        return "vector"
    return "text" if data.rows.text is not None else "row"


def _compute_fingerprint(data: Data, sizes: Sequence[int | None] | None) -> str:
    """Return a hash of the items, independent of the test split."""
    if sizes is not None:  # reading every file would take minutes
        content = repr(list(zip(data.ids, sizes, strict=True)))
    elif data.images is not None:
        content = data.images.content_hash()
    else:
        content = hash_tensor(data.inputs) if data.rows is None else data.rows.content_hash()
    return hashlib.sha256(f"{len(data)} {content}".encode()).hexdigest()


def _draw_waveform(peaks: Sequence[tuple[float, float]]) -> str:
    """Return an SVG of the lowest and the highest sample of each part, scaled to the loudest."""
    loudest = max((max(-low, high) for low, high in peaks), default=0.0) or 1.0
    middle = WAVEFORM_HEIGHT / 2

    def format_height(value: float, least: float) -> str:
        return f"{middle - middle * value / loudest + least:.1f}"

    # Half a unit more on either side, so that silence is a line.
    upper = [f"{i} {format_height(high, -0.5)}" for i, (_, high) in enumerate(peaks)]
    lower = [f"{i} {format_height(low, 0.5)}" for i, (low, _) in enumerate(peaks)]
    outline = " L".join([*upper, *reversed(lower)])
    width = max(1, len(peaks) - 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{WAVEFORM_HEIGHT}" '
        f'viewBox="0 0 {width} {WAVEFORM_HEIGHT}" preserveAspectRatio="none">'
        f'<path fill="{WAVEFORM_COLOUR}" d="M{outline} Z"/></svg>'
    )


def _to_json_value(value: Any) -> str | float | int | bool | None:
    """Convert a cell to a JSON value."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    return str(value)[:MAX_CHARACTERS_SHOWN]
