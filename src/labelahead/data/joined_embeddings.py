"""Names of several embeddings joined: "a+b", or with weights "0.75*a+0.25*b".

A weight is the share of an embedding in the kernel: joined features are a weighted sum of the
embeddings' linear kernels.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from labelahead.errors import InputError

__all__ = [
    "JOIN_SYMBOL",
    "join_embeddings",
    "map_joined_embedding",
    "split_embedding_weights",
    "split_joined_embedding",
    "strip_embedding_weights",
]

JOIN_SYMBOL = "+"
WEIGHT_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\*(.+)", re.DOTALL)


def split_joined_embedding(name: str) -> list[str]:
    """Return the embeddings that a name such as "a+b" joins, or the name alone.

    A path that exists is one name, whatever signs it contains.

    >>> split_joined_embedding("hf:facebook/dinov2-small+clip.npy")
    ['hf:facebook/dinov2-small', 'clip.npy']
    >>> split_joined_embedding("0.75*hf:facebook/dinov2-small+0.25*clip.npy")
    ['hf:facebook/dinov2-small', 'clip.npy']
    """
    return [part for _, part in _split(name)]


def split_embedding_weights(name: str) -> list[float]:
    """Return the weights of the embeddings that a name joins, with mean 1.

    >>> split_embedding_weights("0.75*a+0.25*b"), split_embedding_weights("a+b")
    ([1.5, 0.5], [1.0, 1.0])
    """
    weights = [1.0 if weight is None else float(weight) for weight, _ in _split(name)]
    if not min(weights) > 0:
        raise InputError(f"embedding is {name!r}; expected weights above 0, or the other one alone")
    return [weight * len(weights) / sum(weights) for weight in weights]


def join_embeddings(names: Sequence[str], weights: Sequence[float] | None = None) -> str:
    """Return the name of several embeddings joined.

    >>> join_embeddings(["a", "b"]), join_embeddings(["a", "b"], [0.75, 0.25])
    ('a+b', '0.75*a+0.25*b')
    """
    if weights is None:
        return JOIN_SYMBOL.join(names)
    return JOIN_SYMBOL.join(
        f"{weight:g}*{name}" for name, weight in zip(names, weights, strict=True)
    )


def map_joined_embedding(name: str, function: Callable[[str], str]) -> str:
    """Return the joined embeddings with another name each; weights stay as they are written.

    >>> map_joined_embedding("0.75*a+0.25*b", str.upper)
    '0.75*A+0.25*B'
    """
    parts = _split(name)
    return JOIN_SYMBOL.join(
        function(part) if weight is None else f"{weight}*{function(part)}" for weight, part in parts
    )


def strip_embedding_weights(name: str) -> list[str]:
    """Return the parts between the signs + without their weights, if none is empty.

    Unlike `split_joined_embedding`, the answer does not depend on which files exist.
    """
    parts = name.split(JOIN_SYMBOL)
    if len(parts) == 1 or not all(part.strip() for part in parts):
        return parts
    return [_split_weight(part)[1] for part in parts]


def _split(name: str) -> list[tuple[str | None, str]]:
    """Return the weight as it is written, None without one, and the name of every embedding."""
    without_prefix = name.partition(":")[2] or name
    without_pooling = without_prefix.partition("#")[0]
    paths = (name, without_prefix, without_pooling, without_pooling.rpartition("@")[0])
    parts = [part.strip() for part in name.split(JOIN_SYMBOL)]
    whole = any(JOIN_SYMBOL in path and Path(path).expanduser().exists() for path in paths)
    weighted = WEIGHT_PATTERN.match(name) is not None
    if len(parts) == 1 or not all(parts) or (whole and not weighted):
        return [(None, name)]
    return [_split_weight(part) for part in parts]


def _split_weight(part: str) -> tuple[str | None, str]:
    found = WEIGHT_PATTERN.fullmatch(part)
    return (None, part) if found is None else (found[1], found[2].strip())
