"""Accuracy of joined embeddings, and of the choice that `--embedding auto:a,b` makes.

    make bench-joined [ARGS="--data ../shared/data --items 1000 --seeds 10"]

Pictures of CIFAR-10 and Caltech101, seen by EfficientNet-Lite0, EfficientNet-Lite2 and their pixels
at 8 x 8. Random labels train the exact learner on each embedding alone, on pairs with equal weights
and with weights 0.8 and 0.2, and on what leave-one-out chooses; accuracy on the items without label.
"""

import argparse
import csv
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import labelahead as la
from labelahead.data import load
from labelahead.data.joined_embeddings import join_embeddings
from labelahead.learner.config import parse_campaign
from labelahead.learner.encoder_comparison import PAIR_WEIGHTS, resolve_auto_embedding
from labelahead.learner.preparation import prepare_campaign

LABELS = (20, 50, 100, 200)
PAIRS = (("lite0", "lite2"), ("lite0", "pixels"))
RESULTS = Path(__file__).parent / "results" / "joined.json"


def write_vectors(name, items, root, place):
    """Write one file of vectors per encoder and a table of ids; return the labels (n,)."""
    data, answers = load(name, root=root, test_fraction=0.0)
    at = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:items]
    some = data.select(at)
    for encoder in ("lite0", "lite2"):
        campaign = parse_campaign(
            {"data": {"name": name, "embedding": encoder}, "model": {"name": "exact"}}
        )
        ready = prepare_campaign(campaign, (some, None))
        np.save(place / f"{encoder}.npy", ready.rows.numpy())
    pixels = some.images.batch(torch.arange(len(some)), 32).float()
    small = F.interpolate(pixels, size=(8, 8), mode="area").flatten(1)
    np.save(place / "pixels.npy", small.numpy())
    with (place / "items.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["id", "text"], *([f"i{k}", f"item {k}"] for k in range(len(some)))]
        )
    return torch.tensor([answers(int(k)) for k in at])


def accuracy(place, embedding, labels, known):
    """Return the accuracy on the items without label."""
    data = {"name": str(place / "items.csv"), "embedding": embedding}
    ready = prepare_campaign(parse_campaign({"data": data, "model": {"name": "exact"}}))
    classes = int(labels.max()) + 1
    learner = la.Learner(la.exact(ready.rows, classes), ready.rows, "resolve")
    learner.teach(known.tolist(), labels[known].tolist())
    rest = (
        torch.ones(len(labels), dtype=torch.bool).index_fill_(0, known, False).nonzero().flatten()
    )
    return float((learner.predict(rest.tolist()).argmax(1) == labels[rest]).double().mean())


def measure(place, names, labels, seeds):
    """Return label count -> embedding -> mean accuracy; `chosen` is that of leave-one-out."""
    first, second = (str(place / f"{name}.npy") for name in names)
    candidates = {
        names[0]: first,
        names[1]: second,
        "+".join(names): join_embeddings([first, second]),
    }
    for weights in PAIR_WEIGHTS:
        candidates[join_embeddings(names, weights)] = join_embeddings([first, second], weights)
    table = {}
    for count in LABELS:
        found = {name: [] for name in [*candidates, "chosen"]}
        for seed in range(seeds):
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
            known = order[:count]
            for name, embedding in candidates.items():
                found[name].append(accuracy(place, embedding, labels, known))
            lines = [f"i{int(k)},c{int(labels[k])}" for k in known]
            (place / "labels.csv").write_text("\n".join(["id,label", *lines]) + "\n")
            data = {"name": str(place / "items.csv"), "embedding": f"auto:{first},{second}"}
            campaign, _ = resolve_auto_embedding(
                parse_campaign({"data": data, "seed": seed}), place / "labels.csv"
            )
            found["chosen"].append(accuracy(place, campaign.data.embedding, labels, known))
        table[count] = {name: 100 * float(np.mean(values)) for name, values in found.items()}
        print(
            count,
            "  ".join(f"{name} {value:.1f}" for name, value in table[count].items()),
            flush=True,
        )
    return table


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for name in ("cifar10", "caltech101"):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            labels = write_vectors(name, given.items, given.data, place)
            for pair in PAIRS:
                print(f"{name}, {len(labels)} items, {' and '.join(pair)}", flush=True)
                results[f"{name} {'+'.join(pair)}"] = measure(place, pair, labels, given.seeds)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
