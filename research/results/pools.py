"""Pools behind docs/results.md: fixed parts of known sets, and the same made hard on purpose.

    python -m research.results.pools --data ../shared/data --out runs/pools [NAME ...]

Each is an .npz with x_train, y_train (the pool), x_test, y_test. A pool depends on its name alone:
every campaign, whatever its seed, has the same items. The test part stays clean, as it comes.
"""

import argparse
import io
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from labelahead.data.public_datasets import read_idx
from labelahead.errors import InputError
from labelahead.files import replace_file
from research.results import rows, texts

Arrays = dict[str, np.ndarray]
Part = tuple[np.ndarray, np.ndarray]  # pixels (n, H, W) uint8, classes (n,) int64

CLASSES = 10
POOL, TEST = 1000, 200  # items of each class, of the sets that have thousands
DIGITS_TEST = 360  # of 1,797
# The digits' grey values are 0..16. Fifteen times that are 8-bit pixels, of which every one is
# exact and noise of 2 % is not lost in rounding; reading standardises, so the factor has no effect.
DIGITS_WHITE = 240
WHITE = 255
BACKGROUND = "BACKGROUND_Google"  # Caltech101's pictures of nothing in particular, no class of it
PETS = (3, 5)  # CIFAR-10's cats and dogs
DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")

OUTLIERS = 0.2  # share of the pool
RAREST = 0.1  # what is left of the last class
COPIES, COPY_NOISE = 4, 0.02  # for each original; s.d. as a share of the range
WRONG = 0.1  # share of the labels
ONE_CLASS, OTHERS = 0, 2  # the class that is left whole; items of each of the others


def make(name: str, data: Path, out: Path) -> Path:
    """<out>/NAME.npz, made from the files below `data` unless it is there."""
    if name not in NAMES:
        raise InputError(f"there is no pool {name!r}; expected one of {', '.join(NAMES)}")
    path = Path(out) / f"{name}.npz"
    if path.exists():
        return path
    base, _, hardship = name.partition("-")
    arrays, white = BASES[base](Path(data))
    if hardship:
        rng = np.random.default_rng(list(name.encode()))
        pool = HARDSHIPS[hardship](arrays["x_train"], arrays["y_train"], white, rng)
        arrays = {**arrays, "x_train": pool[0], "y_train": pool[1]}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda file: np.savez_compressed(file, **arrays))
    return path


def photos(name: str, data: Path, out: Path) -> Path:
    """<out>/NAME.zip: of Caltech101, a folder a class, its largest classes.

    `caltech8`: eight of them.
    """
    whole, count = data / "caltech101_128px.zip", name.removeprefix("caltech")
    if name == count or not count.isdigit() or not 2 <= int(count) <= 101:
        raise InputError(
            f"there are no photos {name!r}; expected caltech8, or another number of classes, 2 to "
            "101"
        )
    if not whole.is_file():
        raise InputError(f"Caltech101 was not found: expected {whole}")
    path = out / f"{name}.zip"
    if path.exists():
        return path
    out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(whole) as archive:
        members = sorted(
            m for m in archive.namelist() if not m.endswith("/") and BACKGROUND not in m
        )
        sizes = Counter(m.split("/")[-2] for m in members)
        kept = sorted(sizes, key=lambda c: (-sizes[c], c))[: int(count)]
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as part:
            for member in members:
                if member.split("/")[-2] in kept:
                    part.writestr("/".join(member.split("/")[-2:]), archive.read(member))
    replace_file(path, file.getvalue())
    return path


MADE = (
    "pool",
    "photos",
    "texts",
    "table",
)  # before a colon and a name, where a table names data made for it


def pool_file(name: str, data: Path, out: Path) -> Path | None:
    """The file that stands for `pool:NAME`, `photos:`, `texts:` or `table:NAME`, made below `out`.

    Else None.
    """
    kind, colon, inside = name.partition(":")
    if not colon or kind not in MADE:
        return None
    if kind == "pool":
        return make(inside, data, out / "pools")
    if kind == "photos":
        return photos(inside, data, out / "photos")
    if kind == "texts":
        return texts.make(inside, out / "texts", npz=True)
    return rows.make(inside, out / "tables")


# --- where they come from -------------------------------------------------------------------------


def _mnist(data: Path) -> tuple[Arrays, int]:
    hint = "get the four files of MNIST and put them there"
    return _official("MNIST", [data / "mnist"], hint), WHITE


def _mnist14(data: Path) -> tuple[Arrays, int]:
    """MNIST at half its side, means of 2×2 pixels.

    A quarter of the work for a convolutional network.
    """
    arrays, white = _mnist(data)
    half = {k: _halve(v) if k.startswith("x_") else v for k, v in arrays.items()}
    return half, white


def _halve(x: np.ndarray) -> np.ndarray:
    n, height, width = len(x), x.shape[1] // 2, x.shape[2] // 2
    blocks = x[:, : 2 * height, : 2 * width].reshape(n, height, 2, width, 2).astype(np.float64)
    return np.rint(blocks.mean((2, 4))).astype(np.uint8)


def _fashion(data: Path) -> tuple[Arrays, int]:
    hint = "on Debian: apt-get install dataset-fashion-mnist"
    return _official("Fashion-MNIST", [data / "fashion-mnist", DEBIAN_FASHION], hint), WHITE


def _official(title: str, folders: list[Path], hint: str) -> Arrays:
    """As many items of each class, drawn from the official training and test parts."""
    rng, parts = np.random.default_rng(0), {}
    for part, prefix, count in (("train", "train", POOL), ("test", "t10k", TEST)):
        x = read_idx(_file(title, folders, f"{prefix}-images-idx3-ubyte", hint), 3)
        y = read_idx(_file(title, folders, f"{prefix}-labels-idx1-ubyte", hint), 1)
        sizes = np.bincount(y, minlength=CLASSES)
        if len(x) != len(y) or len(sizes) != CLASSES or sizes.min() < count:
            raise InputError(
                f"{title}, {prefix}: {len(x)} images, items by class {sizes.tolist()}; expected "
                f"{CLASSES} classes of at least {count}: fetch the files again"
            )
        drawn = [rng.permutation(np.flatnonzero(y == c))[:count] for c in range(CLASSES)]
        at = np.sort(np.concatenate(drawn))
        parts |= {f"x_{part}": x[at], f"y_{part}": y[at].astype(np.int64)}
    return parts


def _file(title: str, folders: list[Path], name: str, hint: str) -> Path:
    for folder in folders:
        for path in (folder / f"{name}.gz", folder / name):
            if path.is_file():
                return path
    where = " or ".join(str(folder) for folder in folders)
    raise InputError(f"{title} was not found: expected {name}.gz in {where}; {hint}")


def _digits(data: Path) -> tuple[Arrays, int]:
    """Those that come with scikit-learn; no file is needed."""
    digits = load_digits()
    x = (digits.images * (DIGITS_WHITE // 16)).astype(np.uint8)
    y = digits.target.astype(np.int64)
    test = np.zeros(len(y), dtype=bool)
    test[_of_each(y, DIGITS_TEST, np.random.default_rng(0))] = True
    arrays = {"x_train": x[~test], "y_train": y[~test], "x_test": x[test], "y_test": y[test]}
    return arrays, DIGITS_WHITE


def _cifar10(data: Path) -> tuple[Arrays, int]:
    """The part of CIFAR-10 that is kept beside the others."""
    path = data / "cifar10_12k.npz"
    if not path.is_file():
        raise InputError(f"CIFAR-10 was not found: expected {path}")
    with np.load(path) as whole:
        return {
            f"{letter}_{part}": whole[f"{letter}_{part}"]
            for letter in "xy"
            for part in ("train", "test")
        }, WHITE


def _pets(data: Path) -> tuple[Arrays, int]:
    """Of it the cats and the dogs: two classes that look alike."""
    whole, white = _cifar10(data)
    arrays: Arrays = {}
    for part in ("train", "test"):
        at = np.isin(whole[f"y_{part}"], PETS)
        arrays |= {
            f"x_{part}": whole[f"x_{part}"][at],
            f"y_{part}": np.searchsorted(PETS, whole[f"y_{part}"][at]),
        }
    return arrays, white


def _of_each(y: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of `count` items at random, in order: the same share of each class, rounded."""
    exact = np.bincount(y) * (count / len(y))
    take = np.floor(exact).astype(int)
    take[np.argsort(take - exact, kind="stable")[: count - take.sum()]] += 1
    drawn = [rng.permutation(np.flatnonzero(y == c))[:k] for c, k in enumerate(take)]
    return np.sort(np.concatenate(drawn))


# --- what makes them hard -------------------------------------------------------------------------


def outliers(x: np.ndarray, y: np.ndarray, white: int, rng: np.random.Generator) -> Part:
    """A fifth are of no class: their pixels in an order of their own, their label at random."""
    at = _of_each(y, round(OUTLIERS * len(y)), rng)
    x, y = x.copy(), y.copy()
    x[at] = rng.permuted(x[at].reshape(len(at), -1), axis=1).reshape(x[at].shape)
    y[at] = rng.integers(CLASSES, size=len(at))
    return x, y


def imbalance(x: np.ndarray, y: np.ndarray, white: int, rng: np.random.Generator) -> Part:
    """Of class c a share is left that falls geometrically from 1 to a tenth."""
    shares = RAREST ** (np.arange(CLASSES) / (CLASSES - 1))
    kept = np.rint(np.bincount(y, minlength=CLASSES) * shares).astype(int)
    drawn = [rng.permutation(np.flatnonzero(y == c))[: kept[c]] for c in range(CLASSES)]
    at = np.sort(np.concatenate(drawn))
    return x[at], y[at]


def duplicates(x: np.ndarray, y: np.ndarray, white: int, rng: np.random.Generator) -> Part:
    """A fifth of the items, each with four near-copies: pixel noise, cut off at black and white."""
    at = _of_each(y, len(y) // (1 + COPIES), rng)
    noise = rng.normal(scale=COPY_NOISE * white, size=(COPIES, len(at), *x.shape[1:]))
    copies = np.rint(x[at] + noise).clip(0, white).astype(np.uint8)
    order = rng.permutation(len(at) * (1 + COPIES))  # originals and copies all over the pool
    everything = np.concatenate([x[at], copies.reshape(-1, *x.shape[1:])])
    return everything[order], np.tile(y[at], 1 + COPIES)[order]


def noise(x: np.ndarray, y: np.ndarray, white: int, rng: np.random.Generator) -> Part:
    """A tenth of the labels are replaced by another class at random."""
    at = _of_each(y, round(WRONG * len(y)), rng)
    y = y.copy()
    y[at] = (y[at] + rng.integers(1, CLASSES, size=len(at))) % CLASSES
    return x, y


def one_class(x: np.ndarray, y: np.ndarray, white: int, rng: np.random.Generator) -> Part:
    """All of one class and two items of each other: asking well can gain nothing."""
    drawn = [rng.permutation(np.flatnonzero(y == c)) for c in range(CLASSES)]
    kept = [d if c == ONE_CLASS else d[:OTHERS] for c, d in enumerate(drawn)]
    at = np.sort(np.concatenate(kept))
    return x[at], y[at]


Hardship = Callable[[np.ndarray, np.ndarray, int, np.random.Generator], Part]
HARDSHIPS: dict[str, Hardship] = {
    "outliers": outliers,
    "imbalance": imbalance,
    "duplicates": duplicates,
    "noise": noise,
    "one-class": one_class,
}
BASES: dict[str, Callable[[Path], tuple[Arrays, int]]] = {
    "mnist": _mnist,
    "mnist14": _mnist14,
    "fashion": _fashion,
    "digits": _digits,
    "pets": _pets,
    "cifar10": _cifar10,
}
# The digits as they are need no file: labelahead knows them by name.
NAMES = (
    "mnist",
    "mnist14",
    "fashion",
    "pets",
    *(f"{b}-{h}" for b in ("digits", "fashion", "cifar10") for h in HARDSHIPS),
)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"default: all ({', '.join(NAMES)})"
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("runs/pools"))
    given = parser.parse_args(words)
    try:
        for name in given.names or NAMES:
            path = make(name, given.data, given.out)
            with np.load(path) as arrays:
                sizes = np.bincount(arrays["y_train"], minlength=CLASSES).tolist()
                print(f"{path}: {sum(sizes)} + {len(arrays['y_test'])} items; pool {sizes}")
    except InputError as error:
        sys.exit(f"pools: {error}")


if __name__ == "__main__":
    main()
