"""Photographs a second of processor time, one thread, by encoder and size.

    make bench-embed [ARGS="--photos 256"]

Photographs are noise: what they show costs nothing. Texts and encoders by name: `make bench-encoders`.
"""

import argparse
import time

import torch

from labelahead.models.image_encoder import BACKBONES, embed_images


class Noise:
    def batch(self, positions, size):
        rng = torch.Generator().manual_seed(0)
        return torch.randint(0, 256, (len(positions), 3, size, size), generator=rng).to(torch.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", type=int, default=256)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name, weights in BACKBONES.items():
        for size in (96, 128, 224):
            embed_images(Noise(), 4, cache=None, size=size, backbone=name)
            # Of one thread: what a core would need, however busy the machine is.
            start = time.process_time()
            embed_images(Noise(), given.photos, cache=None, size=size, backbone=name)
            seconds = time.process_time() - start
            print(f"{weights.title} at {size:3d} px   {given.photos / seconds:7.1f}")


if __name__ == "__main__":
    main()
