"""The exceptions: one base class, the fitting built-in beside it, and messages that help."""

import pytest

from labelahead import errors
from labelahead.errors import (
    LabelaheadError,
    MissingExtra,
    StorageError,
    did_you_mean,
    import_extra,
)

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LabelaheadError) and kind is not LabelaheadError
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_also_a_builtin_one(kind):
    builtin = [base for base in kind.__mro__ if base.__module__ == "builtins"]
    assert builtin[0] not in (Exception, BaseException, object)


def test_every_error_is_exported():
    assert {kind.__name__ for kind in KINDS} <= set(errors.__all__)


def test_storage_error_tells_whether_the_disk_is_full():
    assert StorageError("x", full=True).full
    assert not StorageError("x").full


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Flipp", "did you mean 'Flip'? "), ("FLIP", "did you mean 'Flip'? "), ("zzz", ""), (3, "")],
)
def test_did_you_mean_ignores_case_and_keeps_the_spelling(name, expected):
    assert did_you_mean(name, ["Flip", "margin"]) == expected


def test_import_extra_names_package_purpose_and_extra():
    assert import_extra("json", "web", "a test").loads("[1]") == [1]
    with pytest.raises(MissingExtra, match=r"a test needs no_such, .*labelahead\[web\]"):
        import_extra("no_such.part", "web", "a test")
