"""Read Parquet files whose decoded size is bounded in advance.

A Parquet file of some kilobytes can decode to gigabytes: pages are compressed, equal values are
stored once, and the sizes in the footer are claims of the writer. The headers of all pages are
therefore read first, since Arrow allocates memory by them. Repeated texts are kept as indices into
the distinct ones.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from labelahead.data.size_limits import format_bytes
from labelahead.errors import InputError, import_extra

__all__ = [
    "column_to_python",
    "estimate_decoded_size",
    "name_class_numbers",
    "read_bounded",
    "read_class_names",
]

# Bytes of a value as Arrow holds it, by its type in the file; a text is an index into the distinct
# ones.
VALUE_BYTES = {
    "BOOLEAN": 1,
    "INT32": 4,
    "INT64": 8,
    "INT96": 8,
    "FLOAT": 4,
    "DOUBLE": 8,
    "BYTE_ARRAY": 8,
}
LEVEL_BYTES = 4  # repetition and definition levels of a value
OBJECT_BYTES = 64  # a value as a Python object in a list
PAGE_HEADER_BYTES = 1 << 12  # read first; enough for most page headers
MAX_PAGE_HEADER_BYTES = 1 << 24  # with long texts among the statistics
# Fields of a page header (parquet.thrift), and of the headers of data pages inside it.
UNCOMPRESSED, COMPRESSED, DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2, NUM_VALUES = 2, 3, 5, 7, 8, 1


def read_bounded(
    path: Path, columns: Sequence[str] | None, max_bytes: int, *, count_repeats: bool = False
) -> Any:
    """Read columns of a Parquet file as an Arrow table; repeated texts are dictionary-encoded.

    Args:
        path: the file.
        columns: the names of the columns; None reads all of them.
        max_bytes: the memory that the content may take.
        count_repeats: whether every value counts as a separate object even if it repeats, for
            callers that work on each row.

    Raises:
        InputError: if the content could take more memory, or a page cannot be parsed.
    """
    parquet = import_extra("pyarrow.parquet", "tables", "reading Parquet")
    with path.open("rb") as stream:
        opened = parquet.ParquetFile(stream)
        leaves = _find_leaf_columns(opened, columns)
        try:
            size = estimate_decoded_size(stream, opened.metadata, leaves)
        except InputError as error:
            raise InputError(
                f"{path} cannot be read as Parquet ({error}); copy it again"
            ) from error
        require_size(size, max_bytes, path)
        flat = [opened.schema.column(i) for i in leaves if _is_indexed(opened.schema.column(i))]
        stream.seek(0)
        indexed = parquet.ParquetFile(stream, read_dictionary=[column.path for column in flat])
        table = indexed.read(None if columns is None else list(columns))
    require_size(
        sum(_estimate_object_size(column, count_repeats) for column in table.columns),
        max_bytes,
        path,
    )
    return table


def require_size(size: int, max_bytes: int, where: Path) -> None:
    """Raise if a decoded size exceeds the limit."""
    if size > max_bytes:
        raise InputError(
            f"{where} could take {format_bytes(size)} of memory unpacked; expected at most "
            f"{format_bytes(max_bytes)}: "
            "split it, or leave out columns that are not needed"
        )


def column_to_python(column: Any) -> list[Any]:
    """Return a column as Python values; repeated texts are one object."""
    types = import_extra("pyarrow.types", "tables", "reading Parquet")
    if not types.is_dictionary(column.type):
        values: list[Any] = column.to_pylist()
        return values
    found: list[Any] = []
    for chunk in column.chunks:
        distinct = chunk.dictionary.to_pylist()
        found += [None if i is None else distinct[i] for i in chunk.indices.to_pylist()]
    return found


def read_class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """Return the class names by column, from the metadata that Hugging Face writes.

    A column of classes, and one of lists of classes, holds their numbers.
    """
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        inner = {n: f.get("feature", f) if isinstance(f, dict) else f for n, f in features.items()}
        inner |= {n: f[0] for n, f in features.items() if isinstance(f, list) and len(f) == 1}
        return {n: list(f["names"]) for n, f in inner.items() if "names" in f}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def name_class_numbers(value: Any, names: Sequence[str]) -> Any:
    """Return a class number, or a list of them, as names; other values unchanged.

    >>> from labelahead.data.parquet import name_class_numbers
    >>> [name_class_numbers(value, ["cat", "dog"]) for value in ([0, 1], 1, -1, None)]
    [['cat', 'dog'], 'dog', None, None]
    """
    if isinstance(value, list | tuple):
        return [name_class_numbers(part, names) for part in value]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return names[value] if 0 <= value < len(names) else None  # -1 is Hugging Face's "no label"


def _find_leaf_columns(opened: Any, columns: Sequence[str] | None) -> list[int]:
    """Return the numbers of the physical columns that belong to the named ones."""
    schema = opened.schema
    paths = [schema.column(i).path for i in range(len(schema))]
    wanted = None if columns is None else set(columns)
    # A name may contain dots: "a.b" is a column of that name, or the field b of a.
    return [
        i
        for i, path in enumerate(paths)
        if wanted is None or any(path == name or path.startswith(f"{name}.") for name in wanted)
    ]


def _is_indexed(column: Any) -> bool:
    """Return whether a column is read as indices into distinct texts.

    Arrow cannot do so inside lists and structs.
    """
    return bool(
        column.physical_type == "BYTE_ARRAY"
        and column.max_repetition_level == 0
        and "." not in column.path
    )


def estimate_decoded_size(stream: BinaryIO, metadata: Any, leaves: Sequence[int]) -> int:
    """Return an upper bound of the decoded size of the columns in bytes, from their page headers.

    Args:
        stream: the open file.
        metadata: Arrow's metadata of the file.
        leaves: the numbers of the physical columns.
    """
    total = 0
    for group in range(metadata.num_row_groups):
        for leaf in leaves:
            column, chunk = metadata.schema.column(leaf), metadata.row_group(group).column(leaf)
            width = VALUE_BYTES.get(column.physical_type) or column.length
            for page in _iter_pages(stream, chunk):
                if (
                    page.dictionary
                    and column.physical_type == "BYTE_ARRAY"
                    and not _is_indexed(column)
                ):
                    width += _measure_longest_text(
                        stream, chunk, page
                    )  # every value of the pages that follow may be that
                total += max(page.size, page.values * width) + page.values * LEVEL_BYTES
    return total


def _measure_longest_text(stream: BinaryIO, chunk: Any, page: "_Page") -> int:
    """Return the length in bytes of the longest text in a dictionary page.

    If the page cannot be decompressed on its own, return its whole size.
    """
    arrow = import_extra("pyarrow", "tables", "reading Parquet")
    stream.seek(page.start)
    content = stream.read(page.packed)
    codec = str(chunk.compression).lower()
    if codec != "uncompressed":
        try:
            content = arrow.decompress(content, page.size, codec=codec, asbytes=True)
        except (ValueError, OSError, NotImplementedError):
            return page.size
    longest = at = 0
    while at + 4 <= len(content):
        length = int.from_bytes(content[at : at + 4], "little")
        longest, at = max(longest, length), at + 4 + length
    return min(longest, page.size)


class _Page(NamedTuple):
    """A page of a column chunk.

    Attributes:
        start: the offset of its content in the file.
        packed: its size in the file, in bytes.
        size: its decompressed size, in bytes.
        values: the number of values.
        dictionary: whether it is a dictionary page.
    """

    start: int
    packed: int
    size: int
    values: int
    dictionary: bool


def _iter_pages(stream: BinaryIO, chunk: Any) -> Iterator[_Page]:
    """Yield every page of a column chunk.

    Raises:
        InputError: if a header cannot be parsed.
    """
    if not chunk.num_values:  # Arrow reads no page then, and some writers write none
        return
    start, first = chunk.data_page_offset, chunk.dictionary_page_offset
    if first is not None and 0 < first < start:
        start = first
    end = start + chunk.total_compressed_size
    while start < end:
        try:
            header, used = _read_page_header(stream, start)
            size, packed = int(header[UNCOMPRESSED]), int(header[COMPRESSED])
            inner = (
                header.get(DATA_PAGE)
                or header.get(DATA_PAGE_V2)
                or header.get(DICTIONARY_PAGE)
                or {}
            )
            values = int(inner.get(NUM_VALUES, 0))
        except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"a page of column {chunk.path_in_schema!r} has no readable header"
            ) from error
        if size < 0 or packed < 0 or values < 0:
            raise InputError(f"a page of column {chunk.path_in_schema!r} announces a negative size")
        yield _Page(start + used, packed, size, values, DICTIONARY_PAGE in header)
        start += used + packed


def _read_page_header(stream: BinaryIO, start: int) -> tuple[dict[int, Any], int]:
    """Return the fields of the page header at an offset, and its size in bytes."""
    stream.seek(start)
    content = stream.read(PAGE_HEADER_BYTES)
    try:
        return read_struct(content, 0)
    except IndexError:
        more = stream.read(MAX_PAGE_HEADER_BYTES - PAGE_HEADER_BYTES)
        return read_struct(content + more, 0)


def _estimate_object_size(column: Any, count_repeats: bool) -> int:
    """Return the size of a column as Python objects, in bytes."""
    types = import_extra("pyarrow.types", "tables", "reading Parquet")
    if types.is_dictionary(column.type) and not count_repeats:
        return 8 * len(column) + sum(int(chunk.dictionary.nbytes) for chunk in column.chunks)
    return sum(_estimate_array_size(chunk, count_repeats) for chunk in column.chunks)


def _estimate_array_size(array: Any, count_repeats: bool) -> int:
    """Return the size of an Arrow array as Python objects, in bytes."""
    compute, types = (
        import_extra("pyarrow.compute", "tables", "reading Parquet"),
        import_extra("pyarrow.types", "tables", "reading"),
    )
    kind, own = array.type, OBJECT_BYTES * len(array)
    if types.is_dictionary(kind):  # inside a list: every text becomes an object of its own
        texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
        if not any(is_text(kind.value_type) for is_text in texts):
            return own
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return own + int(compute.sum(lengths).as_py() or 0)
    if types.is_struct(kind):
        return own + sum(
            _estimate_array_size(array.field(i), count_repeats) for i in range(kind.num_fields)
        )
    if (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_map(kind)
    ):
        value = kind.item_type if types.is_map(kind) else kind.value_type
        if (types.is_floating(value) or types.is_integer(value)) and not count_repeats:
            return own + int(array.nbytes)  # vectors of a table become one array
        return own + _estimate_array_size(
            array.items if types.is_map(kind) else array.flatten(), count_repeats
        )
    return own + int(array.nbytes)


# --- Thrift's compact protocol, in which page headers are written
# ----------------------------------------------

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
MAX_DEPTH = 8  # nested structs; page headers have four


def read_struct(content: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Parse a Thrift struct and return its fields by number, and the offset where it ends.

    Raises:
        IndexError: if it does not end within the content.
        ValueError: if it is no valid struct.
    """
    if depth > MAX_DEPTH:
        raise ValueError("structures are nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while content[at] != 0:
        kind, step = content[at] & 15, content[at] >> 4
        at += 1
        if step:
            number += step
        else:
            number, at = _read_zigzag(content, at)
        fields[number], at = _read_value(content, at, kind, depth)
    return fields, at + 1


def _read_value(
    content: bytes, at: int, kind: int, depth: int, *, listed: bool = False
) -> tuple[Any, int]:
    """Parse a value of a Thrift type and return it with the offset where it ends."""
    if kind in (TRUE, FALSE):  # in a struct the type is the value; in a list it is a byte
        return kind == TRUE, at + listed
    if kind == BYTE:
        return content[at], at + 1
    if kind in (I16, I32, I64):
        return _read_zigzag(content, at)
    if kind == DOUBLE:
        return content[at : at + 8], at + 8
    if kind == BINARY:
        size, at = _read_varint(content, at)
        return content[at : at + size], at + size
    if kind in (LIST, SET):
        size, inner = content[at] >> 4, content[at] & 15
        at += 1
        if size == 15:
            size, at = _read_varint(content, at)
        found = []
        for _ in range(min(size, len(content))):
            one, at = _read_value(content, at, inner, depth, listed=True)
            found.append(one)
        return found, at
    if kind == STRUCT:
        return read_struct(content, at, depth + 1)
    raise ValueError(f"fields of kind {kind} are not in page headers")


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Parse an unsigned variable-length integer."""
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def _read_zigzag(content: bytes, at: int) -> tuple[int, int]:
    """Parse a signed integer in zigzag encoding."""
    value, at = _read_varint(content, at)
    return (value >> 1) ^ -(value & 1), at
