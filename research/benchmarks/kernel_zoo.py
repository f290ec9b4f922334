"""The pseudo-NTK of networks that people use, against a loop of backward passes and vmap(grad) with
its best chunk.

    python research/benchmarks/kernel_zoo.py [--sizes 32 128] [--rounds 3] [--networks ...]
    [--floor]

`--floor`: no race, but the products that one kernel takes, and how long they would take at the rate
of a large one.

Needs the zoo's environment (`make bench-kernel-zoo`). Contenders take turns; CPU seconds of one
thread, medians.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import math
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import labelahead as la
from research.competitors import zoo

RESULTS = Path(__file__).resolve().parent / "results" / "kernel-zoo.json"
WIDE = {
    "vocab_size": 500,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 512,
    "num_labels": 5,
}
WIDE |= {
    "max_position_embeddings": 512,
    "n_positions": 512,
    "head_dim": 32,
    "d_kv": 32,
    "d_ff": 512,
    "hidden_dim": 512,
}
WIDE |= dict.fromkeys(("n_embd", "dim", "d_model", "embedding_size"), 128)
WIDE |= dict.fromkeys(("n_layer", "n_layers", "num_layers"), 4)
EYES = {"image_size": 32, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 256}
SMALL_VIT = {"img_size": 32, "embed_dim": 64, "depth": 4, "num_heads": 4}
SWIN = {
    "img_size": 32,
    "patch_size": 2,
    "embed_dim": 32,
    "depths": (2, 2),
    "num_heads": (2, 4),
    "window_size": 4,
}


def recurrent(cell: type[nn.RNNBase]) -> Callable[[], zoo.Made]:
    """Two layers of 128, over 128 steps."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = cell(64, 128, 2, batch_first=True), nn.Linear(128, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x)[0][:, -1])

    return lambda: (Last(), torch.randn(2, 128, 64))


def torch_encoder() -> zoo.Made:
    """nn.TransformerEncoder, 64 tokens."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
            self.embed, self.head = nn.Linear(32, 64), nn.Linear(64, 5)
            self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.encoder(self.embed(x)).mean(1))

    return Mean(), torch.randn(2, 64, 32)


NETWORKS: dict[str, Callable[[], zoo.Made]] = {
    **{
        f"{name}, 128 tokens": zoo.text(name, tokens=128, **WIDE)
        for name in (
            "bert",
            "distilbert",
            "roberta",
            "electra",
            "albert",
            "gpt2",
            "llama",
            "opt",
            "modernbert",
        )
    },
    "t5 encoder, 128 tokens": zoo.encoder("t5", tokens=128, **(WIDE | {"num_heads": 4}), width=128),
    "LSTM, 128 steps": recurrent(nn.LSTM),
    "GRU, 128 steps": recurrent(nn.GRU),
    "nn.TransformerEncoder, 64 tokens": torch_encoder,
    "hf vit, 64 tokens": zoo.image("vit", **EYES, patch_size=4),
    "hf dinov2, 64 tokens": zoo.image("dinov2", **EYES, patch_size=4),
    "hf convnext": zoo.image(
        "convnext", patch_size=2, depths=[1, 1, 2, 1], hidden_sizes=[16, 32, 64, 128]
    ),
    **{
        f"timm vit, {(32 // side) ** 2} tokens": zoo.timm(
            "deit_tiny_patch16_224", 32, patch_size=side, **SMALL_VIT
        )
        for side in (8, 4, 2)
    },
    "timm beit, 64 tokens": zoo.timm("beit_base_patch16_224", 32, patch_size=4, **SMALL_VIT),
    "timm xcit, 64 tokens": zoo.timm("xcit_nano_12_p16_224", 32, **(SMALL_VIT | {"patch_size": 8})),
    "timm swin": zoo.timm("swin_tiny_patch4_window7_224", 32, **SWIN),
    "timm mixer": zoo.mixer("MixerBlock"),
    "timm efficientnet-lite0": zoo.timm("tf_efficientnet_lite0", 64),
    "timm resnet": zoo.timm("test_resnet", 32),
    "timm convnext": zoo.timm("test_convnext", 64),
    "timm mobilenetv3": zoo.timm("mobilenetv3_small_050", 64),
    "timm regnety": zoo.timm("regnety_002", 64),
    "timm mobilevit": zoo.timm("mobilevit_xxs", 64),
    "open_clip vit": zoo.clip("vit"),
}


def loop(model: nn.Module, x: Tensor) -> Tensor:
    """One backward pass a sample."""
    params = list(model.parameters())
    rows = [torch.zeros(len(x), p.numel()) for p in params]
    for i in range(len(x)):
        out = _logits(model(x[i : i + 1]))
        found = torch.autograd.grad(out.sum() / out.shape[1] ** 0.5, params, allow_unused=True)
        for row, g in zip(rows, found, strict=True):
            if g is not None:
                row[i] = g.flatten()
    return _gram(rows, len(x))


def compute_by_vmap(model: nn.Module, x: Tensor, chunk: int) -> Tensor:
    """vmap(grad), `chunk` samples at a time."""
    params = {k: p.detach() for k, p in model.named_parameters()}

    def scalar(p: dict[str, Tensor], sample: Tensor) -> Tensor:
        out = _logits(functional_call(model, p, (sample[None],)))
        return out.sum() / out.shape[1] ** 0.5

    each = vmap(grad(scalar), in_dims=(None, 0))
    rows = {k: torch.empty(len(x), p.numel()) for k, p in params.items()}
    for i in range(0, len(x), chunk):
        for k, v in each(params, x[i : i + chunk]).items():
            rows[k][i : i + chunk] = v.flatten(1)
    return _gram(list(rows.values()), len(x))


def _logits(out: Any) -> Tensor:
    return getattr(out, "logits", out)


def _gram(rows: list[Tensor], n: int) -> Tensor:
    kernel = torch.zeros(n, n)
    for row in rows:
        kernel.addmm_(row, row.T)
    return kernel


def prepare_network(name: str, n: int) -> tuple[nn.Module, Tensor]:
    """The network, with random weights, and n samples."""
    torch.manual_seed(0)
    zoo.with_torchvision_names()
    model, x = NETWORKS[name]()
    model = model.eval()
    for p in model.parameters():
        if (
            p.ndim > 1 and not p.any()
        ):  # a head of zeros (timm's mixer): nothing would come back through it
            nn.init.normal_(p, std=0.02)
    return model, torch.randint(
        3, 500, (n, x.shape[1])
    ) if not x.is_floating_point() else torch.randn(n, *x.shape[1:])


def _attention(times: int, at: int) -> Callable[..., int]:
    """Operations of attention with the shapes of q and k at these places.

    `times` per pair of tokens and entry.
    """
    return lambda *shapes, **_: times * math.prod(shapes[at]) * shapes[at + 1][-2]


UNCOUNTED = {  # by torch's own counter
    torch.ops.aten.addmm_: lambda _, a, b, *rest, **words: 2 * a[0] * a[1] * b[1],
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention(4, 0),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention(10, 1),
}


def floor(name: str, n: int) -> tuple[float, float]:
    """GFLOP of all matrix products and convolutions in one kernel of ours, and GFLOP/s of a large
    product now.
    """
    model, x = prepare_network(name, n)
    la.kernel(model, x)
    with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counted:
        la.kernel(model, x)
    a, b = torch.randn(4096, 512), torch.randn(512, 512)
    seconds = []
    for _ in range(20):
        start = time.process_time()
        a @ b
        seconds.append(time.process_time() - start)
    return counted.get_total_flops() / 1e9, 2 * 4096 * 512 * 512 / 1e9 / min(seconds)


def measure(name: str, n: int, rounds: int) -> dict[str, Any]:
    """Medians of CPU seconds, contenders in turn; vmap with the best of three chunks."""
    model, x = prepare_network(name, n)
    contenders: dict[str, Callable[[nn.Module], Tensor]] = {
        "ours": lambda net: la.kernel(net, x),
        "first": lambda net: la.kernel(net, x),  # of a network that was never asked before
        "loop": lambda net: loop(net, x),
        **{
            f"vmap {c}": lambda net, c=c: compute_by_vmap(net, x, c) for c in (8, 32, 128) if c <= n
        },
    }
    seconds: dict[str, list[float]] = {}
    kernels: dict[str, Tensor] = {}
    for turn in range(rounds + 1):
        names = list(contenders)
        random.Random(turn).shuffle(
            names
        )  # whoever comes after a large contender finds its memory given back
        for who in names:
            run = contenders[who]
            network = copy.deepcopy(model) if who == "first" else model
            start = time.process_time()
            try:
                kernels[who] = run(network)
            except Exception as failure:
                print(f"    {who}: {str(failure).splitlines()[0][:90]}", file=sys.stderr)
                del contenders[who]
                continue
            if turn:  # the first run warms up
                seconds.setdefault(who, []).append(time.process_time() - start)
    medians = {who: statistics.median(s) for who, s in seconds.items()}
    chunks = [s for who, s in medians.items() if who.startswith("vmap")]
    return {
        "network": name,
        "n": n,
        "ours": medians["ours"],
        "first": medians["first"],
        "loop": medians["loop"] / medians["ours"],
        "vmap": min(chunks) / medians["ours"] if chunks else None,
        "disagreement": float((kernels["ours"] - kernels["loop"]).norm() / kernels["loop"].norm()),
        "seconds": seconds,
    }


def main() -> None:
    """Measure and print a table; raw numbers go to the results file as they come."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--floor", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if given.floor:
        print(
            "| network | n | GFLOP | s at the rate of a GEMM | GFLOP/s |\n| --- | --- | --- | --- "
            "| --- |"
        )
        for name in given.networks:
            for n in given.sizes:
                work, rate = floor(name, n)
                print(f"| {name} | {n} | {work:.2f} | {work / rate:.3f} | {rate:.0f} |", flush=True)
        return
    rows = []
    print(
        "| network | n | ours s | first call s | loop | vmap | differ |\n| --- | --- | --- | --- "
        "| --- | --- | --- |"
    )
    for name in given.networks:
        for n in given.sizes:
            row = measure(name, n, given.rounds)
            rows.append(row)
            theirs = f"{row['vmap']:.2f}" if row["vmap"] else "cannot"
            figures = (
                f"{row['ours']:.3f} | {row['first']:.3f} | {row['loop']:.2f} | {theirs} | "
                f"{row['disagreement']:.0e}"
            )
            print(f"| {name} | {n} | {figures} |", flush=True)
            given.results.write_text(
                json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
