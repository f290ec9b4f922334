"""Excel workbooks: choose a sheet and convert its cells to Python values."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelahead.errors import InputError, did_you_mean, import_extra

__all__ = ["WORKBOOK_SUFFIXES", "Sheet", "read_sheet", "resolve_source", "split_sheet"]

WORKBOOK_SUFFIXES = (".xlsx", ".xlsm")
SHEET_PATTERN = re.compile(r"(?P<file>.+\.xls[xm])#(?P<sheet>.+)", re.IGNORECASE)


@dataclass(frozen=True)
class Sheet:
    """The rows of a sheet that are not empty, with their row numbers in Excel.

    The first row is the header.

    Attributes:
        rows: (row number, cells) of each row.
        notes: which sheet was read, if the caller did not name one.
    """

    rows: list[tuple[int, list[Any]]]
    notes: tuple[str, ...] = ()


def split_sheet(path: str | Path) -> tuple[Path, str | None]:
    """Split `book.xlsx#Sheet2` into the file and the name of the sheet.

    The sheet is None for any other path.

    >>> from labelahead.data.excel import split_sheet
    >>> split_sheet("book.xlsx#Sheet2")[1], split_sheet("table.csv")[1]
    ('Sheet2', None)
    """
    path = Path(path)
    found = SHEET_PATTERN.fullmatch(path.name)
    if found is None or path.exists():  # a file may have # in its name
        return path, None
    return path.with_name(found["file"]), found["sheet"]


def resolve_source(name: str) -> str:
    """Return the absolute path of an existing file or folder, with its sheet.

    Any other name is returned unchanged.
    """
    file, sheet = split_sheet(Path(name).expanduser())
    if not file.exists():
        return name
    return str(file.resolve()) + ("" if sheet is None else f"#{sheet}")


def read_sheet(path: Path) -> Sheet:
    """Read one sheet of a workbook: the one named after `#`, or else the first visible one.

    Empty cells and cells with an error become None, whole numbers become int, texts are stripped.

    Raises:
        InputError: if the file is no workbook, or has no such sheet.
        MissingExtra: if python-calamine is not installed.
    """
    calamine = import_extra("python_calamine", "excel", "reading Excel workbooks")
    file, wanted = split_sheet(path)
    try:
        book = calamine.CalamineWorkbook.from_path(str(file))
        tables = [s for s in book.sheets_metadata if s.typ == calamine.SheetTypeEnum.WorkSheet]
        visible = [s.name for s in tables if s.visible == calamine.SheetVisibleEnum.Visible]
        name = _choose_sheet(file, wanted, [s.name for s in tables], visible)
        sheet = book.get_sheet_by_name(name)
        first = 1 + (sheet.start[0] if sheet.start else 0)
        cells = sheet.to_python(skip_empty_area=True)
    except calamine.PasswordError as error:
        raise InputError(
            f"{file} is protected by a password; expected a workbook without one: save a copy"
        ) from error
    except (calamine.CalamineError, OSError) as error:
        raise InputError(
            f"{file} cannot be read as an Excel workbook ({error}); expected a whole .xlsx file"
        ) from error
    rows = [(first + i, [_convert_cell(value) for value in row]) for i, row in enumerate(cells)]
    notes: tuple[str, ...] = ()
    if wanted is None and len(visible) > 1:
        notes = (
            f"the sheet {name!r} is read, of {', '.join(visible)}; {file.name}#NAME reads another",
        )
    return Sheet(
        [(number, row) for number, row in rows if any(value is not None for value in row)], notes
    )


def _choose_sheet(file: Path, wanted: str | None, sheets: list[str], visible: list[str]) -> str:
    """Return the name of the sheet to read."""
    if not sheets:
        raise InputError(f"{file} has no sheet with cells; expected a workbook with a table")
    if wanted is None:
        return (visible or sheets)[0]
    if wanted not in sheets:
        raise InputError(
            f"{file} has no sheet {wanted!r}; {did_you_mean(wanted, sheets)}expected one of: "
            f"{', '.join(sheets)}"
        )
    return wanted


def _convert_cell(value: Any) -> Any:
    """Convert a cell to the values of other table formats; Excel stores whole numbers as floats."""
    if isinstance(value, str):
        return value.strip() or None
    return int(value) if isinstance(value, float) and value.is_integer() else value
