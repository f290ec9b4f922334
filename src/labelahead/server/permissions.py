"""Make a session's folder and database readable by their owner only.

They hold the names or e-mail addresses of annotators.
"""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labelahead.files import as_storage_error, make_folder

__all__ = ["create_private", "make_private_folder", "owner_only"]

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
PERMISSIONS_OF_OTHERS = 0o077  # permissions of the group and of others
SESSION_FILES = ("labels.db", "label-studio.json")  # either marks a folder as that of a session
COMPANIONS = ("", "-wal", "-shm", "-journal")  # of an SQLite database
log = logging.getLogger("labelahead")


def make_private_folder(folder: Path) -> None:
    """Make a session's folder, accessible to its owner only.

    The permissions of a folder that exists are restricted if it is empty or holds a session. One
    that holds other files is left as it is, since it may be anybody's, such as a home or /tmp: the
    database in it is private all the same.
    """
    try:
        make_folder(folder.parent)
        folder.mkdir(mode=PRIVATE_FOLDER)
    except FileExistsError:
        if _is_session(folder):
            _restrict(folder, PRIVATE_FOLDER)
    except OSError as error:
        raise as_storage_error(folder, error) from error


def create_private(database: Path) -> None:
    """Create an SQLite database as an empty file that its owner alone can read.

    SQLite gives its companion files (-wal, -shm) the permissions of the database. Where the files
    exist, their permissions are restricted.
    """
    try:
        os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
    except FileExistsError:
        for ending in COMPANIONS:
            path = database.with_name(database.name + ending)
            if path.is_file():
                _restrict(path, PRIVATE_FILE)
    except OSError as error:
        raise as_storage_error(database, error) from error


@contextmanager
def owner_only() -> Iterator[None]:
    """Create files that only their owner can access, in all threads of this process."""
    before = os.umask(PERMISSIONS_OF_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def _is_session(folder: Path) -> bool:
    """Whether a folder is empty, or holds the files of a session."""
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise as_storage_error(folder, error) from error
    return not names or not names.isdisjoint(SESSION_FILES)


def _restrict(path: Path, mode: int) -> None:
    if os.name != "posix" or not path.stat().st_mode & PERMISSIONS_OF_OTHERS:
        return
    try:
        path.chmod(mode)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EROFS):
            raise as_storage_error(path, error) from error
        # It belongs to another user, or the file system has no permissions; the administrator must
        # decide.
        log.warning(
            "%s can be read by other users of this machine, and cannot be restricted (%s); it "
            "holds the names of "
            "annotators: choose another folder with --out, or ask its owner to restrict it",
            path,
            error.strerror,
        )
