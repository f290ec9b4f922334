"""The sets behind the table of guesses: features, classes, and what every guesser says.

    python -m research.results.guess_sets --data ../shared/data [NAME ...]

Each is runs/guesses/NAME.npz, at most 2,000 items: x (n, d) features, y (n,), and (n, C)
probabilities for every guesser. Features are computed once: texts by MiniLM, pictures by
EfficientNet-Lite0, tables standardised.

Guessers: the class names (texts), a ridge classifier of few other items (pictures and tables: "old
model"), and simulated language models that name a class: right in so many per cent of the items
with errors at random; always mistaken for every second class ("by class"); right but for the 40 %
of the items on one side of the embedding ("by region"); mistaken for the largest class alone, or
never right. "spread 75" says what "right 75" says, with probabilities near 1/C.
"""

import argparse
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from labelahead.data.class_names import ClassNameGuesser
from labelahead.data.guesses import CLASS_GUESS_PROBABILITY
from labelahead.learner.guessers import TEXT_PROMPT, spell_out_class
from labelahead.models.feature_cache import make_numbered_keys
from labelahead.models.image_encoder import embed_images
from labelahead.models.sentence_encoder import embed_texts
from research.results import rows, texts

OUT = Path("runs/guesses")
ITEMS = 2000
SETS = ("newsgroups", "r8", "r52", "cifar10", "caltech101", "segment", "vowel")
NAMED, LEARNT = ("newsgroups", "r8", "r52"), ("cifar10", "caltech101", "segment", "vowel")
OLD_LABELS = {"cifar10": 100, "caltech101": 500, "segment": 35, "vowel": 110}
SHARES = {"right 30": 0.3, "right 60": 0.6, "right 75": 0.75, "right 90": 0.9, "never": 0.0}
SPREAD = 0.15  # what is left of the deviations from 1/C
REGION = 0.6  # share of the items on the side where the guesser by region is right
PHOTO_SIDE = 128


@dataclass(frozen=True, eq=False)
class GuessSet:
    """Features (n, d), classes (n,), and what every guesser says, (n, C) probabilities each."""

    x: torch.Tensor
    y: torch.Tensor
    classes: int
    guesses: dict[str, torch.Tensor]


class Photos:
    """Pictures (n, H, W, 3) in memory, as the encoder reads them."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def batch(self, positions: torch.Tensor, size: int) -> torch.Tensor:
        images = torch.from_numpy(self.pixels[positions.numpy()]).permute(0, 3, 1, 2).float()
        return F.interpolate(images, size=size, mode="bilinear", antialias=True).byte()


def load(name: str, data: Path = Path("../shared/data")) -> GuessSet:
    """Return the set, made unless it is there."""
    path = OUT / f"{name}.npz"
    if not path.exists():
        make(name, data)
    with np.load(path) as arrays:
        said = {k: torch.from_numpy(arrays[k]) for k in arrays.files if k not in ("x", "y")}
        classes = next(iter(said.values())).shape[1]
        return GuessSet(torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]), classes, said)


def make(name: str, data: Path) -> None:
    """Write runs/guesses/NAME.npz."""
    OUT.mkdir(parents=True, exist_ok=True)
    x, y, said = (_read_texts if name in NAMED else _read_numbers)(name, data)
    rng = np.random.default_rng(list(name.encode()))
    said |= simulate(x, y, rng)
    arrays = {k: v.astype(np.float32) for k, v in said.items()}
    np.savez_compressed(OUT / f"{name}.npz", x=x.astype(np.float32), y=y, **arrays)
    accuracy = {k: f"{(v.argmax(1) == y).mean():.2f}" for k, v in said.items()}
    print(name, x.shape, len(np.unique(y)), accuracy, flush=True)


def simulate(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return what the simulated guessers say about items (n, d) of classes (n,)."""
    n, classes = len(y), int(y.max()) + 1
    other = (y + rng.integers(1, classes, n)) % classes
    mistaken = (np.arange(classes) + rng.integers(1, classes, classes)) % classes
    size = np.bincount(y, minlength=classes)
    largest, second = np.argsort(-size, kind="stable")[:2]
    side = (x - x.mean(0)) @ rng.standard_normal(x.shape[1])
    said = {k: np.where(rng.random(n) < p, y, other) for k, p in SHARES.items()}
    said["by class"] = np.where(y % 2 == 0, mistaken[y], y)
    said["by region"] = np.where(side <= np.quantile(side, REGION), y, other)
    said["largest"] = np.where(y == largest, second, y)
    rest = (1 - CLASS_GUESS_PROBABILITY) / (classes - 1)
    hit = CLASS_GUESS_PROBABILITY - rest
    p = {k: rest + hit * np.eye(classes)[v] for k, v in said.items()}
    p["spread 75"] = 1 / classes + SPREAD * (p["right 75"] - 1 / classes)
    return p


def _read_texts(name: str, data: Path) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    pairs = [row for part in texts.draw_texts(name, Path("runs/texts")) for row in part]
    at = np.random.default_rng(0).permutation(len(pairs))[:ITEMS]
    names = sorted({label for _, label in pairs})
    y = np.array([names.index(pairs[i][1]) for i in at])
    x = embed_texts([pairs[i][0] for i in at], cache=OUT / "features")
    prompts = [TEXT_PROMPT.format(spell_out_class(c)) for c in names]
    guesser = ClassNameGuesser.fit(embed_texts(prompts, cache=None), x)
    return x.numpy(), y, {"class names": guesser.guess(x).numpy()}


def _read_numbers(name: str, data: Path) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    readers: dict[str, Callable[[Path, int], tuple[np.ndarray, np.ndarray]]] = {
        "cifar10": _read_cifar,
        "caltech101": _read_caltech,
    }
    count = ITEMS + OLD_LABELS[name]
    x, y = readers[name](data, count) if name in readers else _read_table(name, count)
    old = slice(0, OLD_LABELS[name])
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-9)
    weights = np.linalg.solve(
        x[old].T @ x[old] + len(x[old]) * np.eye(x.shape[1]),
        x[old].T @ (np.eye(y.max() + 1)[y[old]] - 1 / (y.max() + 1)),
    )
    rest = slice(OLD_LABELS[name], None)
    score = 4 * x[rest] @ weights
    p = np.exp(score - score.max(1, keepdims=True))
    return x[rest], y[rest], {"old model": p / p.sum(1, keepdims=True)}


def _read_cifar(data: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    with np.load(data / "cifar10_12k.npz") as arrays:
        at = np.random.default_rng(0).permutation(len(arrays["y_train"]))[:count]
        pixels, y = arrays["x_train"][at], arrays["y_train"][at]
    return _embed(pixels, "cifar10"), y


def _read_caltech(data: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    with zipfile.ZipFile(data / "caltech101_128px.zip") as archive:
        files = sorted(
            m for m in archive.namelist() if m.endswith(".jpg") and "BACKGROUND" not in m
        )
        classes = sorted({m.split("/")[-2] for m in files})
        at = np.random.default_rng(0).permutation(len(files))[:count]
        size = (PHOTO_SIDE, PHOTO_SIDE)
        pixels = np.stack(
            [
                np.asarray(Image.open(BytesIO(archive.read(files[i]))).convert("RGB").resize(size))
                for i in at
            ]
        )
    return _embed(pixels, "caltech101"), np.array(
        [classes.index(files[i].split("/")[-2]) for i in at]
    )


def _embed(pixels: np.ndarray, name: str) -> np.ndarray:
    keys = make_numbered_keys(name, len(pixels))
    features = embed_images(
        Photos(pixels), len(pixels), keys=keys, cache=OUT / "features", size=PHOTO_SIDE
    )
    return features.numpy()


def _read_table(name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    lines = rows.make(name, Path("runs/tables")).read_text().splitlines()[1:]
    cells = [line.split(",") for line in lines]
    names = sorted({row[-1] for row in cells})
    at = np.random.default_rng(0).permutation(len(cells))[:count]
    x = np.array([[float(v) for v in cells[i][:-1]] for i in at])
    return x, np.array([names.index(cells[i][-1]) for i in at])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(SETS), metavar="NAME")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    given = parser.parse_args()
    for one in given.names or SETS:
        make(one, given.data)
