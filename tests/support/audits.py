"""Pools with known truth for audits."""

import csv

import numpy as np

from labelahead.audit.predictions import Predictions


def make_pool(items, classes, seed, sharpness=0.4):
    """Return calibrated predictions and the true class of each item."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([sharpness] * classes, items)
    truth = np.array([rng.choice(classes, p=row) for row in p])
    names = tuple(f"class {c}" for c in range(classes))
    best = p.argmax(1)
    ids = tuple(f"item-{i}" for i in range(items))
    return Predictions(ids, names, best, p.max(1), p), truth


def write_pool(folder, items=400, classes=3, seed=0):
    """Write predictions.csv and return the true class name by id."""
    predictions, truth = make_pool(items, classes, seed)
    (folder / "predictions.csv").write_text(predictions.to_csv())
    return {name: predictions.classes[truth[i]] for i, name in enumerate(predictions.ids)}


def fill_labels(path, truth):
    """Fill in the labels of a file of next items, as a person does, and return their number."""
    with path.open(newline="") as file:
        names = [row["id"] for row in csv.DictReader(file)]
    lines = [f"{name},{truth[name]}" for name in names]
    path.write_text("\n".join(["id,label", *lines]) + "\n")
    return len(names)
