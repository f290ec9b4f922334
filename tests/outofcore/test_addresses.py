"""Files by address: local ones and those of fsspec behave alike."""

import pytest

from labelahead.errors import InputError, MissingExtra
from labelahead.outofcore.addresses import (
    absolute_address,
    exists,
    is_local,
    list_files,
    open_file,
    remove_file,
    write_file,
)


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path):
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def test_written_file_is_listed_read_and_removed(root):
    address = f"{root}/a/b.txt"
    assert not exists(address)
    write_file(address, lambda file: file.write(b"content"))
    assert exists(address)
    assert list(list_files(root)) == ["a/b.txt"]
    with open_file(address) as file:
        assert file.read() == b"content"
    remove_file(address)
    assert not exists(address)


def test_absolute_address_does_not_depend_on_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_address("x") == f"file://{tmp_path}/x"
    assert absolute_address("memory://x/") == "memory:///x"
    assert is_local(str(tmp_path))
    assert not is_local("memory://x")


def test_missing_and_foreign_addresses_raise(root):
    with pytest.raises(InputError, match="there is nothing at"):
        list_files(f"{root}/none")
    with pytest.raises((InputError, MissingExtra), match="nosuch"):
        list_files("nosuch://x")
