"""Naive twin of the exact learner: loops over items and one `numpy.linalg.solve`, in float64."""

import numpy as np


def kernel_of(c: float, weights) -> float:
    """w₀ c + w₁ κ₁(c) + w₃ κ₃(c), layer by layer from the angle."""
    c = min(1.0, max(-1.0, c))
    sigma = theta = c
    kernels = {0: c}
    for depth in range(1, 4):
        angle = np.arccos(min(1.0, max(-1.0, sigma)))
        slope = (np.pi - angle) / np.pi
        sigma = (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi
        theta = theta * slope + sigma
        kernels[depth] = theta / (depth + 1)
    return weights[0] * c + weights[1] * kernels[1] + weights[2] * kernels[3]


def unit_rows(x, centre):
    rows = np.asarray(x, np.float64).reshape(len(x), -1) - np.asarray(centre, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def gram(a, b, weights):
    return np.array([[kernel_of(float(u @ v), weights) for v in b] for u in a])


def by_hand(labelled, labels, new, centre, mixture, classes):
    """(outputs (m, C), posterior variances (m,)) at new items, and leave-one-out variances (L,) of
    the labelled.
    """
    *weights, noise = mixture
    a, b = unit_rows(labelled, centre), unit_rows(new, centre)
    K = gram(a, a, weights)
    np.fill_diagonal(K, 1.0)
    system, across = K + noise * np.eye(len(a)), gram(b, a, weights)
    targets = np.eye(classes)[np.asarray(labels)] - 1 / classes
    outputs = 1 / classes + across @ np.linalg.solve(system, targets)
    variances = np.array([1.0 - row @ np.linalg.solve(system, row) for row in across])
    alone = []
    for i in range(len(a)):
        rest = [j for j in range(len(a)) if j != i]
        row = K[i, rest]
        alone.append(1.0 - row @ np.linalg.solve(system[np.ix_(rest, rest)], row) if rest else 1.0)
    return outputs, variances, np.array(alone)


def simplex(rows):
    """The nearest probabilities to each row, by halving the threshold."""
    out = []
    for row in rows:
        low, high = row.min() - 1, row.max()
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if np.maximum(row - middle, 0).sum() > 1 else (low, middle)
        out.append(np.maximum(row - high, 0))
    return np.array(out) / np.sum(out, axis=1, keepdims=True)
