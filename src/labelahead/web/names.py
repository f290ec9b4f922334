"""Names of classes and people: what is taken for one, and when two are the same."""

import unicodedata

from labelahead.errors import InputError

__all__ = ["alike", "check_text", "checked_name"]

LONGEST = 200  # characters of a name


def alike(name: str) -> str:
    """What two spellings of one class have in common: capital letters and encoding aside."""
    return unicodedata.normalize("NFC", name.casefold())


def checked_name(name: object, what: str) -> str:
    """A name of a class or a person: trimmed; anything but empty, overlong or not storable."""
    if not isinstance(name, str):
        raise InputError(f"{what} is {name!r}; expected text")
    name = name.strip()
    if not name:
        raise InputError(f"{what} is empty; expected at least one character")
    if len(name) > LONGEST:
        raise InputError(f"{what} has {len(name)} characters; expected at most {LONGEST}")
    check_text(name, what)
    return name


def check_text(text: str, what: str) -> None:
    """Anything that UTF-8 can hold, and C programs too."""
    try:
        text.encode()
        sound = "\0" not in text
    except UnicodeEncodeError:
        sound = False
    if not sound:
        raise InputError(f"{what} is {text!r}, which is no text; remove NUL or half characters")
