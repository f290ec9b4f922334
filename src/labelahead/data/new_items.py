"""Read items that were not in the pool (images, sounds, texts, arrays, tables) as the pool was read."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from labelahead.data.arrays import (
    crop_and_resize,
    find_npz_arrays,
    read_npz,
    read_npz_ids,
    to_input_tensor,
)
from labelahead.data.columns import GuessColumn, SentenceColumn, VectorColumn, parse_entry
from labelahead.data.excel import WORKBOOK_SUFFIXES, split_sheet
from labelahead.data.file_tree import (
    IMAGE_SUFFIXES,
    SOUND_SUFFIXES,
    TEXT_SUFFIXES,
    FileTree,
    find_files,
    printable_name,
)
from labelahead.data.folder import (
    decode_all,
    decode_picture,
    ignore_pillow_warnings,
    read_text_files,
)
from labelahead.data.guesses import read_guess_column
from labelahead.data.heif import require_heif_decoder
from labelahead.data.loading import TABLE_SUFFIXES
from labelahead.data.preprocessing import (
    COLUMN_INPUTS,
    ENCODED_PICTURES,
    ENCODED_SOUNDS,
    VECTORS,
    Preprocessor,
)
from labelahead.data.records import AUTO_ID, FILE_NAME, Records, choose_id_column
from labelahead.data.sounds import Wave, decode_wave, import_soundfile
from labelahead.data.split import expand_path
from labelahead.data.table import Table, read_table
from labelahead.data.vector_files import VECTOR_SUFFIXES, open_vector_file
from labelahead.errors import InputError, did_you_mean

__all__ = ["ItemEncoder", "NewItems", "encode_table_rows", "match_image_format", "read_new_items"]

log = logging.getLogger("labelahead")

BATCH_ITEMS = 256  # items per batch
DECODING_BATCH = 64  # whole images or sounds in memory
DECODING_THREADS = 8


class ItemEncoder(Protocol):
    """Applies encoders by their names; a later package has them."""

    def encode_texts(self, encoder: str, texts: list[str]) -> Tensor:
        """Return embeddings (n, d) of texts."""

    def encode_pictures(self, encoder: str, pictures: list[Any]) -> Tensor:
        """Return embeddings (n, d) of PIL images."""

    def encode_sounds(self, encoder: str, sounds: list[Wave]) -> Tensor:
        """Return embeddings (n, d) of sounds."""


class NewItems(NamedTuple):
    """A batch of new items.

    Attributes:
        ids: the id of each item.
        values: (n, *shape) as read, before standardisation.
        failed: the reason for each item that could not be read.
        records: the user's own columns.
    """

    ids: list[str]
    values: Tensor
    failed: dict[str, str]
    records: Records | None = None


def read_new_items(
    preprocessor: Preprocessor,
    source: str | Path,
    encoder: ItemEncoder | None = None,
    *,
    id: str = AUTO_ID,
    likely_id: str | None = None,
) -> Iterator[NewItems]:
    """Yield the items of a folder, a zip, a file, an .npz or a table in batches.

    Args:
        preprocessor: how the pool was read.
        source: a folder or zip of images, sounds or texts, one such file, an .npz or a table.
        encoder: applies the encoder whose embeddings the model was fitted on, if there is one.
        id: the column with the ids of a table, "none" for row numbers, "auto" for `likely_id` or a
            column called `id` if the table has it.
        likely_id: the id column of the pool.

    Raises:
        InputError: if the source does not exist or is of another kind than the pool.
    """
    path = expand_path(source)
    file, _ = split_sheet(path)
    suffix = file.suffix.lower()
    is_collection = path.is_dir() or suffix == ".zip"
    if not file.exists():
        raise InputError(
            f"{path} does not exist; expected items as the model was made from: {_describe_expected(preprocessor)}"
        )
    if preprocessor.kind == VECTORS:
        yield from _read_vectors(preprocessor, path)
    elif preprocessor.kind == COLUMN_INPUTS and (is_collection or suffix in TEXT_SUFFIXES):
        yield from _read_text_items(preprocessor, path, encoder)
    elif preprocessor.kind == COLUMN_INPUTS and suffix in (*TABLE_SUFFIXES, ".npz"):
        table = _read_table(path)
        column = choose_id_column(str(path), table.columns, id, likely=likely_id)
        ids, values = (
            list(table.ids(str(path), column)),
            encode_table_rows(preprocessor, table, str(path), encoder),
        )
        yield NewItems(ids, values, {}, replace(table.records(), id_column=column))
    elif preprocessor.kind == ENCODED_PICTURES and (is_collection or suffix in IMAGE_SUFFIXES):
        assert encoder is not None
        yield from _read_encoded_pictures(preprocessor, path, encoder)
    elif preprocessor.kind == ENCODED_SOUNDS and (is_collection or suffix in SOUND_SUFFIXES):
        assert encoder is not None
        yield from _read_encoded_sounds(preprocessor, path, encoder)
    elif (
        preprocessor.kind not in (COLUMN_INPUTS, ENCODED_PICTURES, ENCODED_SOUNDS)
        and suffix == ".npz"
    ):
        yield from _read_npz_items(preprocessor, path, id)
    elif len(preprocessor.shape) == 3 and (is_collection or suffix in IMAGE_SUFFIXES):
        yield from _read_image_items(preprocessor, path)
    else:
        raise InputError(f"{path} is of another kind; expected {_describe_expected(preprocessor)}")


def _describe_expected(preprocessor: Preprocessor) -> str:
    """Describe the sources that the model accepts, for messages."""
    if preprocessor.kind == COLUMN_INPUTS:
        columns = (
            f"a table ({', '.join(TABLE_SUFFIXES)}) with the columns "
            f"{', '.join(c.name for c in preprocessor.columns)}"
        )
        return (
            f"a folder of texts, a text, or {columns}"
            if _takes_single_text(preprocessor)
            else columns
        )
    if preprocessor.kind == VECTORS:
        return (
            f"a file ({', '.join(VECTOR_SUFFIXES)}) with {preprocessor.shape[0]} numbers per item"
        )
    if preprocessor.kind == ENCODED_PICTURES:
        return "a folder of pictures, or a picture"
    if preprocessor.kind == ENCODED_SOUNDS:
        return "a folder of sounds, or a sound"
    array = f"an .npz whose x has shape (n, {', '.join(map(str, preprocessor.shape))})"
    return f"a folder of pictures, a picture, or {array}" if len(preprocessor.shape) == 3 else array


def _takes_single_text(preprocessor: Preprocessor) -> bool:
    """Return whether a text alone is an item."""
    columns = [c for c in preprocessor.columns if not isinstance(c, GuessColumn)]
    kinds = {c.kind for c in columns}
    # Several encoders may read the one column.
    return kinds in ({"sentences"}, {"words"}) and len({c.name for c in columns}) == 1


def _read_table(path: Path) -> Table:
    """Read a table, or the arrays of an .npz as columns."""
    if path.suffix.lower() == ".npz":
        arrays: dict[str, Any] = dict(read_npz(path))
        return Table(
            arrays, range(max(len(v) if v.ndim else 0 for v in arrays.values())), unit="row"
        )
    table = read_table(path)
    for note in table.notes if split_sheet(path)[0].suffix.lower() in WORKBOOK_SUFFIXES else ():
        log.warning("%s: %s", path, note)
    return table


def encode_table_rows(
    preprocessor: Preprocessor,
    table: Table,
    where: str,
    encoder: ItemEncoder | None = None,
    entry: Callable[[Any], Any] = parse_entry,
) -> Tensor:
    """Return (n, d) float32: the features of the columns that the model was fitted on.

    Args:
        preprocessor: the fitted columns.
        table: the rows.
        where: the table, for messages.
        encoder: applies the encoder of texts, if the model needs one.
        entry: converts a field to an entry.

    Raises:
        InputError: if a column is missing, or an entry does not fit.
    """
    needed = [c.name for c in preprocessor.columns if not isinstance(c, GuessColumn)]
    missing = [name for name in needed if name not in table.columns]
    if missing:
        hint = did_you_mean(missing[0], table.columns)
        raise InputError(
            f"{where} has no column {missing[0]!r}, which the model was fitted on; {hint}expected "
            f"all of {', '.join(needed)}"
        )
    blocks = []
    for column in preprocessor.columns:
        if isinstance(column, GuessColumn):
            blocks.append(read_guess_column(table, column, where))
            continue
        values = table.columns[column.name]
        if isinstance(column, VectorColumn):
            blocks.append(column.apply(values, table.locate_row, where))
            continue
        entries = [entry(v) for v in values]
        if isinstance(column, SentenceColumn):
            assert encoder is not None
            texts = ["" if e is None else str(e) for e in entries]
            blocks.append(encoder.encode_texts(column.encoder, texts).numpy())
        else:
            blocks.append(column.apply(entries, table.locate_row, where))
    return torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32))


def _read_text_items(
    preprocessor: Preprocessor, path: Path, encoder: ItemEncoder | None
) -> Iterator[NewItems]:
    """Yield text files in batches."""
    if not _takes_single_text(preprocessor):
        raise InputError(f"{path} holds texts alone; expected {_describe_expected(preprocessor)}")
    is_collection = path.is_dir() or path.suffix.lower() == ".zip"
    files = find_files(path if is_collection else path.parent)
    names = files.list_text_files() if is_collection else [path.name]
    if not names:
        raise InputError(f"{path} holds no texts; expected files that end in .txt")
    for start in range(0, len(names), BATCH_ITEMS):
        some = names[start : start + BATCH_ITEMS]
        texts, failed, _ = read_text_files(files, some)
        readable = [name for name in some if name in texts]
        column = [texts[name] for name in readable]
        ids = [printable_name(name) for name in readable]
        table = Table({preprocessor.columns[0].name: column}, range(len(readable)), unit="text")
        values = (
            encode_table_rows(preprocessor, table, str(path), encoder, str)
            if readable
            else torch.zeros((0, *preprocessor.shape))
        )
        records = Records({FILE_NAME: ids, "text": column})
        yield NewItems(ids, values, {printable_name(n): why for n, why in failed.items()}, records)


def _read_npz_items(preprocessor: Preprocessor, path: Path, id: str) -> Iterator[NewItems]:
    """Yield the inputs of an .npz in batches."""
    arrays = read_npz(path)
    values, _ = to_input_tensor(find_npz_arrays(path, arrays)[0], str(path))
    ids = read_npz_ids(path, arrays, len(values), id) or tuple(map(str, range(len(values))))
    if len(preprocessor.shape) == 3 and values.ndim == 4 and values.dtype == torch.uint8:
        values = (
            match_image_format(preprocessor, values.float())
            if values.shape[1:] != preprocessor.shape
            else values
        )
    if values.shape[1:] != preprocessor.shape:
        raise InputError(
            f"{path} has items of shape {tuple(values.shape[1:])}; expected {_describe_expected(preprocessor)}"
        )
    for start in range(0, len(values), BATCH_ITEMS):
        part = values[start : start + BATCH_ITEMS]
        yield NewItems(list(ids[start : start + BATCH_ITEMS]), part, {})


def _read_vectors(preprocessor: Preprocessor, path: Path) -> Iterator[NewItems]:
    """Yield the user's own vectors in batches."""
    if path.suffix.lower() not in VECTOR_SUFFIXES or path.is_dir():
        raise InputError(
            f"{path} holds no vectors; expected {_describe_expected(preprocessor)}: the model was "
            "fitted on vectors that you computed, so new items need vectors of the same encoder"
        )
    file = open_vector_file(path)
    if file.values.shape[1:] != preprocessor.shape:
        raise InputError(
            f"{path} has vectors of {file.values.shape[1]} numbers; expected "
            f"{preprocessor.shape[0]}, by the encoder of {preprocessor.features}"
        )
    ids = file.ids or [str(i) for i in range(len(file.values))]
    for start in range(0, len(ids), BATCH_ITEMS):
        part = file.values[start : start + BATCH_ITEMS].float()
        yield NewItems(ids[start : start + BATCH_ITEMS], part, {})


def _read_image_items(preprocessor: Preprocessor, path: Path) -> Iterator[NewItems]:
    """Yield images in batches."""
    _, height, width = preprocessor.shape
    if height != width:
        raise InputError(
            f"{path} is read as squares, but the model takes {width} x {height} pixels; expected "
            "an .npz"
        )
    files, names = _find_pictures(path)
    for start in range(0, len(names), BATCH_ITEMS):
        some = names[start : start + BATCH_ITEMS]
        pixels, failed = decode_all(files, some, height)
        read = [name for name in some if name in pixels]
        stacked: Any = (
            np.stack([pixels[n] for n in read])
            if read
            else np.zeros((0, 3, height, width), np.uint8)
        )
        values = match_image_format(preprocessor, torch.from_numpy(stacked).float())
        ids = [printable_name(n) for n in read]
        yield NewItems(
            ids,
            values,
            {printable_name(n): why for n, why in failed.items()},
            Records({FILE_NAME: ids}),
        )


def _find_pictures(path: Path) -> tuple[FileTree, Sequence[str]]:
    """Return the images of a folder or zip, or one image."""
    files: FileTree = find_files(
        path if path.is_dir() or path.suffix.lower() == ".zip" else path.parent
    )
    names: Sequence[str] = files.names if path.is_dir() or files.is_zip else [path.name]
    if not names:
        raise InputError(f"{path} holds no pictures; expected files such as .jpg or .png")
    require_heif_decoder([printable_name(n) for n in names], str(path))
    return files, names


def _read_encoded_pictures(
    preprocessor: Preprocessor, path: Path, encoder: ItemEncoder
) -> Iterator[NewItems]:
    """Yield the embeddings of images in batches."""
    files, names = _find_pictures(path)
    with ignore_pillow_warnings():
        yield from _read_encoded_files(
            preprocessor, names, partial(decode_picture, files), encoder.encode_pictures
        )


def _read_encoded_sounds(
    preprocessor: Preprocessor, path: Path, encoder: ItemEncoder
) -> Iterator[NewItems]:
    """Yield the embeddings of sounds in batches."""
    import_soundfile()
    is_collection = path.is_dir() or path.suffix.lower() == ".zip"
    files = find_files(path if is_collection else path.parent)
    names = files.list_sound_files() if is_collection else [path.name]
    if not names:
        raise InputError(f"{path} holds no sounds; expected files such as .wav or .mp3")
    yield from _read_encoded_files(
        preprocessor, names, partial(decode_wave, files), encoder.encode_sounds
    )


def _read_encoded_files(
    preprocessor: Preprocessor,
    names: Sequence[str],
    decode: Callable[[str], Any],
    encode: Callable[[str, list[Any]], Tensor],
) -> Iterator[NewItems]:
    """Yield the embeddings of files in batches.

    Args:
        preprocessor: names the encoder.
        names: the files.
        decode: returns the content of a file.
        encode: returns the embeddings (n, d) of n contents, by the name of the encoder.
    """

    def decode_or_reason(name: str) -> Any:
        try:
            return decode(name)
        except Exception as error:  # a broken file raises almost any error
            return str(error) or type(error).__name__

    for start in range(0, len(names), DECODING_BATCH):
        some = names[start : start + DECODING_BATCH]
        with ThreadPoolExecutor(DECODING_THREADS) as threads:
            decoded = dict(zip(some, threads.map(decode_or_reason, some), strict=True))
        failed = {printable_name(n): why for n, why in decoded.items() if isinstance(why, str)}
        readable = {n: content for n, content in decoded.items() if not isinstance(content, str)}
        values = torch.zeros((0, *preprocessor.shape))
        if readable:
            assert preprocessor.features is not None
            values = encode(preprocessor.features, list(readable.values()))
        ids = [printable_name(n) for n in readable]
        yield NewItems(ids, values, failed, Records({FILE_NAME: ids}))


def match_image_format(preprocessor: Preprocessor, pictures: Tensor) -> Tensor:
    """Convert images (n, C, H, W) from 0 to 255 to the size, channels and white level of the model."""
    channels, size, _ = preprocessor.shape
    if pictures.shape[-2:] != preprocessor.shape[-2:]:
        pictures = crop_and_resize(pictures, size)
    if channels == 1 and pictures.shape[1] == 3:
        pictures = (pictures * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(
            1, keepdim=True
        )  # as Pillow
    pictures = pictures.expand(-1, channels, -1, -1) if pictures.shape[1] == 1 else pictures
    return (
        (pictures * (preprocessor.white / 255)).round().clamp(0, preprocessor.white).to(torch.uint8)
    )
