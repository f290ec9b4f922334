"""Accounts: files of users with hashed passwords."""

import io
import json
import stat

import pytest

from labelahead.errors import InputError
from labelahead.server import accounts as module
from labelahead.server.accounts import Account, Accounts, hash_password, main, save_account

PASSWORD = "correct horse"


def test_password_is_checked_against_its_salted_hash(tmp_path):
    path = tmp_path / "users.json"
    save_account(path, "anna", "reviewer", PASSWORD)
    save_account(path, "ben", "annotator", PASSWORD)
    content = json.loads(path.read_text())
    assert PASSWORD not in path.read_text()
    assert content["anna"]["password"] != content["ben"]["password"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    users = Accounts.from_file(path)
    assert users.check_password("anna", PASSWORD) == users.find("anna")
    assert users.check_password("anna", PASSWORD + "x") is None
    assert users.check_password("nobody", PASSWORD) is None
    assert users.check_password("anna", "x" * 10_000) is None


def test_hash_is_scrypt_with_the_stored_parameters():
    import base64
    import hashlib

    name, n, r, p, salt, digest = hash_password(PASSWORD).split("$")
    made = hashlib.scrypt(
        PASSWORD.encode(),
        salt=base64.b64decode(salt),
        n=int(n),
        r=int(r),
        p=int(p),
        maxmem=1 << 27,
        dklen=32,
    )
    assert (name, made) == ("scrypt", base64.b64decode(digest))


def test_roles_include_the_lower_ones():
    reviewer = Account("anna", "reviewer", "")
    assert [reviewer.may_act_as(role) for role in module.ROLES] == [True, True, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist; add a user"),
        ("{}", "has no users"),
        ("[]", "not a file of users"),
        ('{"anna": {"role": "boss", "password": "scrypt$1$1$1$a$b"}}', "role 'boss'"),
        ('{"anna": {"role": "admin", "password": "secret"}}', "hashed by labelahead"),
    ],
)
def test_invalid_files_are_refused_with_what_to_do(tmp_path, content, message):
    path = tmp_path / "users.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        Accounts.from_file(path)


def test_command_adds_a_user_and_refuses_short_passwords(tmp_path, monkeypatch, capsys):
    path = tmp_path / "users.json"
    monkeypatch.setattr("sys.stdin", io.StringIO("short\n"))
    assert main([str(path), "anna", "--role", "admin"]) == 2
    assert "8 to 200" in capsys.readouterr().err
    assert not path.exists()
    monkeypatch.setattr("sys.stdin", io.StringIO(PASSWORD + "\n"))
    assert main([str(path), "anna", "--role", "admin"]) == 0
    assert Accounts.from_file(path).check_password("anna", PASSWORD).role == "admin"
