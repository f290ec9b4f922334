"""Accounts for teams: a file of users with hashed passwords and roles.

Add a user, or change their password or role, with

    python -m labelahead.server.accounts users.json anna --role reviewer

Passwords are stored as scrypt hashes (RFC 7914) with a salt each.
"""

import argparse
import base64
import getpass
import hashlib
import hmac
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labelahead import files
from labelahead.data.classes import check_name
from labelahead.errors import InputError

__all__ = ["ROLES", "Account", "Accounts", "hash_password", "main", "save_account"]

ROLES = ("annotator", "reviewer", "admin")  # each may do what those before it may
MIN_PASSWORD_CHARACTERS = 8
MAX_PASSWORD_CHARACTERS = 200  # bounds the work for a request
# N = 2¹⁵, r = 8, p = 3: 32 MB, and about 0.2 s for each guess.
COST, BLOCK_SIZE, PARALLELISM = 1 << 15, 8, 3
MAX_MEMORY_BYTES = 64 << 20
SALT_BYTES = 16


@dataclass(frozen=True)
class Account:
    """A user: name, role, and the hash of the password."""

    name: str
    role: str
    password: str

    def may_act_as(self, role: str) -> bool:
        """Return whether the account has this role or a higher one."""
        return ROLES.index(self.role) >= ROLES.index(role)


def hash_password(password: str) -> str:
    """Return the salted hash of a password, with its parameters.

    Raises:
        InputError: The password is too short or too long.
    """
    if not MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
        raise InputError(
            f"the password has {len(password)} characters; expected {MIN_PASSWORD_CHARACTERS} to "
            f"{MAX_PASSWORD_CHARACTERS}"
        )
    salt = secrets.token_bytes(SALT_BYTES)
    digest = _scrypt(password, salt, COST, BLOCK_SIZE, PARALLELISM)
    encoded = (base64.b64encode(part).decode() for part in (salt, digest))
    return "$".join(["scrypt", str(COST), str(BLOCK_SIZE), str(PARALLELISM), *encoded])


def _scrypt(password: str, salt: bytes, cost: int, block_size: int, parallelism: int) -> bytes:
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=cost,
        r=block_size,
        p=parallelism,
        maxmem=MAX_MEMORY_BYTES,
        dklen=32,
    )


def _matches(password: str, stored: str) -> bool:
    """Compare a password with a hash, in constant time."""
    _, cost, block_size, parallelism, salt, digest = stored.split("$")
    made = _scrypt(password, base64.b64decode(salt), int(cost), int(block_size), int(parallelism))
    return hmac.compare_digest(made, base64.b64decode(digest))


class Accounts:
    """The users of a server."""

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        self._accounts = dict(accounts)
        # Compared with if the name is unknown, so that the time does not tell which names exist.
        self._other = hash_password(secrets.token_urlsafe(16))

    @classmethod
    def from_file(cls, path: str | Path) -> "Accounts":
        """Read a file of users.

        Raises:
            InputError: There is no such file, or it is not valid.
        """
        found = _read_file(Path(path))
        if not found:
            raise InputError(
                f"{path} has no users; add one with `python -m labelahead.server.accounts {path} "
                "NAME --role admin`"
            )
        return cls(found)

    def find(self, name: str) -> Account | None:
        """Return the account of a name, None if there is none."""
        return self._accounts.get(name)

    def check_password(self, name: str, password: str) -> Account | None:
        """Return the account if the password is right; an unknown name takes as long."""
        account = self._accounts.get(name)
        if len(password) > MAX_PASSWORD_CHARACTERS:
            return None
        is_right = _matches(password, self._other if account is None else account.password)
        return account if is_right else None


def _read_file(path: Path) -> dict[str, Account]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        users = {
            check_name(name, "the name of a user"): Account(name, row["role"], row["password"])
            for name, row in content.items()
        }
    except FileNotFoundError as error:
        raise InputError(
            f"{path} does not exist; add a user with `python -m labelahead.server.accounts {path} "
            "NAME --role admin`"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f'{path} is not a file of users ({error}); expected {{"anna": {{"role": "admin", '
            '"password": "scrypt$..."}}}'
        ) from error
    for user in users.values():
        is_hash = user.password.startswith("scrypt$") and user.password.count("$") == 5
        if user.role not in ROLES or not is_hash:
            raise InputError(
                f"{path}: {user.name!r} has the role {user.role!r}; expected one of "
                f"{', '.join(ROLES)}, and a password hashed by labelahead"
            )
    return users


def save_account(path: str | Path, name: str, role: str, password: str) -> None:
    """Add a user to a file, or replace one; only the owner may read the file."""
    path, name = Path(path), check_name(name, "the name of a user")
    if role not in ROLES:
        raise InputError(f"role is {role!r}; expected one of {', '.join(ROLES)}")
    users = _read_file(path) if path.exists() else {}
    users[name] = Account(name, role, hash_password(password))
    rows = {user.name: {"role": user.role, "password": user.password} for user in users.values()}
    files.replace_file(path, json.dumps(rows, indent=2) + "\n")
    path.chmod(0o600)


def main(arguments: Sequence[str] | None = None) -> int:
    """Add a user to a file; the password is asked for, or read from a pipe."""
    parser = argparse.ArgumentParser(prog="python -m labelahead.server.accounts")
    parser.add_argument("file", type=Path, help="file of users; created if it does not exist")
    parser.add_argument("name", help="name of the user")
    parser.add_argument("--role", choices=ROLES, default=ROLES[0])
    given = parser.parse_args(arguments)
    typed = getpass.getpass("password: ") if sys.stdin.isatty() else sys.stdin.readline()
    try:
        save_account(given.file, given.name, given.role, typed.rstrip("\r\n"))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{given.name} is now {given.role} in {given.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
