"""HEIC and HEIF photographs.

Which files they are, and the optional decoder that Pillow needs for them.
"""

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
    """Tell whether a stream holds a HEIF picture, by its first 12 bytes.

    The position is reset to the start.
    """
    stream.seek(0)
    header = stream.read(12)
    stream.seek(0)
    return header[4:8] == b"ftyp" and header[8:12] in HEIF_BRANDS


def register_heif_decoder() -> None:
    """Teach Pillow to open HEIF pictures; calling it again does nothing new.

    Raises:
        MissingExtra: if pillow-heif is not installed.
    """
    import_extra("pillow_heif", "photos", "reading HEIC photographs").register_heif_opener()


def require_heif_decoder(names: Sequence[str], where: str) -> None:
    """Refuse HEIC files up front where they cannot be decoded, since skipping them would lose a
    whole phone's pictures.

    Args:
        names: file names; all that end in neither .heic nor .heif are ignored.
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
            f"{where} holds {len(photographs)} HEIC photographs ({to_display_range}): {error}"
        ) from error
