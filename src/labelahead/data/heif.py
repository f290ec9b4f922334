"""HEIC and HEIF photographs: how to recognise them, and the optional decoder for Pillow."""

from collections.abc import Sequence
from typing import BinaryIO

from labelahead.errors import MissingExtra, import_extra

__all__ = ["HEIF_SUFFIXES", "has_heif_header", "register_heif_decoder", "require_heif_decoder"]

HEIF_SUFFIXES = (".heic", ".heif")
HEIF_BRANDS = frozenset(
    {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}
)  # ISO/IEC 23008-12
MAX_NAMED_FILES = 5


def has_heif_header(stream: BinaryIO) -> bool:
    """Return whether a stream holds a HEIF image, by its first 12 bytes.

    The position is reset to the start.
    """
    stream.seek(0)
    header = stream.read(12)
    stream.seek(0)
    return header[4:8] == b"ftyp" and header[8:12] in HEIF_BRANDS


def register_heif_decoder() -> None:
    """Register pillow-heif with Pillow; calling it again has no effect.

    Raises:
        MissingExtra: if pillow-heif is not installed.
    """
    import_extra("pillow_heif", "photos", "reading HEIC photographs").register_heif_opener()


def require_heif_decoder(names: Sequence[str], where: str) -> None:
    """Raise before reading if there are HEIC files that cannot be decoded.

    Skipping them would silently lose all photographs of a phone.

    Args:
        names: file names; those that end in neither .heic nor .heif are ignored.
        where: the folder or archive, for the message.

    Raises:
        MissingExtra: if there are such files and pillow-heif is not installed.
    """
    photographs = [name for name in names if name.lower().endswith(HEIF_SUFFIXES)]
    if not photographs:
        return
    try:
        register_heif_decoder()
    except MissingExtra as error:
        more = (
            f" and {len(photographs) - MAX_NAMED_FILES} more"
            if len(photographs) > MAX_NAMED_FILES
            else ""
        )
        shown = ", ".join(photographs[:MAX_NAMED_FILES]) + more
        raise MissingExtra(
            f"{where} holds {len(photographs)} HEIC photographs ({shown}): {error}"
        ) from error
