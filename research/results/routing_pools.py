"""The pools of `research.results.routing`: 2,000 items with features and labels, made once.

    python -m research.results.routing_pools --data ../shared/data

20 newsgroups and Reuters R8 are sentence embeddings (MiniLM) of texts drawn at random; CIFAR-10 is
features of a pretrained EfficientNet-Lite0. Each pool depends on its name alone.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from labelahead.data.loading import load
from labelahead.files import replace_file
from research.results.texts import parts

OUT = Path("runs/routing")
POOLS = ("newsgroups", "r8", "cifar10")
ITEMS = 2000
CIFAR = "cifar10_12k.npz"  # below --data; a part of the public set, as x_train and y_train


def make_pool(name: str, data: Path, out: Path = OUT) -> Path:
    """Write features x (n, d) and classes y (n,) of a pool, unless they are there."""
    path = out / f"{name}.npz"
    if path.exists():
        return path
    out.mkdir(parents=True, exist_ok=True)
    x, y = _embed_photos(data, out) if name == "cifar10" else _embed_texts(name, out)
    replace_file(path, lambda file: np.savez_compressed(file, x=x.numpy(), y=y))
    return path


def _embed_texts(name: str, out: Path) -> tuple[torch.Tensor, np.ndarray]:
    from labelahead.models.sentence_encoder import embed_texts

    rows = [row for part in parts(name, out) for row in part]
    at = np.sort(np.random.default_rng(0).permutation(len(rows))[:ITEMS])
    texts, labels = zip(*(rows[i] for i in at), strict=True)
    return embed_texts(texts, cache=out / "features"), np.unique(labels, return_inverse=True)[1]


def _embed_photos(data: Path, out: Path) -> tuple[torch.Tensor, np.ndarray]:
    from labelahead.models.image_encoder import embed_images

    loaded, answers = load(str(data / CIFAR), test_fraction=0.0)
    at = torch.from_numpy(np.random.default_rng(0).permutation(len(loaded))[:ITEMS]).sort().values
    assert loaded.images is not None
    assert answers is not None
    chosen = loaded.images.select(at)
    mark = f"{CIFAR} {ITEMS} of seed 0"
    features = embed_images(chosen, ITEMS, cache=out / "features", fingerprint=mark)
    return features, answers.take(at).numpy()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help=f"folder of {CIFAR}")
    for one in POOLS:
        print(make_pool(one, parser.parse_args().data))
