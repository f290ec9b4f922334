"""Running text: which columns hold it, and what its words become where no sentence encoder reads it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelahead.data.dataset import Texts
from labelahead.errors import InputError
from labelahead.extras import need

__all__ = ["is_text", "word_inputs"]

LONG = 40  # characters on average: more is running text, less is a category
WORDS = 20_000  # the commonest words and pairs of the pool that count
DIMENSIONS = 128  # numbers that a text becomes, at most
Array = np.ndarray[Any, Any]


def is_text(entries: Sequence[Any], length: int = LONG) -> bool:
    """Whether a column holds running text: long, and mostly of several words."""
    texts = [e for e in entries if e is not None]
    if not texts or not all(isinstance(t, str) and not t.startswith("\0") for t in texts):
        return False
    several = sum(len(t.split()) > 2 for t in texts)
    return sum(map(len, texts)) / len(texts) > length and 2 * several > len(texts)


def word_inputs(texts: Texts, pool: Tensor, where: str) -> Tensor:
    """(n, d) float32: the words of every column of text beside what the other columns became; pool: (q,) positions."""
    blocks = [block for column in texts.columns.values() if (block := word_block(column, pool.numpy())) is not None]
    if not blocks and not texts.rest.shape[1]:
        raise InputError(
            f"{where}: no word stands in two texts ({', '.join(texts.columns)}), so words say nothing; expected texts "
            "that share some, or the extra 'texts', which reads their meaning: pip install 'labelahead[texts]'"
        )
    return torch.cat([*map(torch.from_numpy, blocks), texts.rest], 1)


def word_block(column: Sequence[str], pool: Array) -> Array | None:
    """(n, d) float32: tf-idf of words and pairs, then its leading directions (LSA), by the pool.

    One scale for all directions, so that an entry is 1 in the root mean square over the pool and
    texts keep their angles. None: no word is in two texts.
    """
    text = need("sklearn.feature_extraction.text", "app", "learning from text")
    linear = need("sklearn.utils.extmath", "app", "learning from text")
    texts = np.array(column, dtype=object)
    weigh = text.TfidfVectorizer(ngram_range=(1, 2), min_df=2, max_features=WORDS, sublinear_tf=True, dtype=np.float64)
    try:
        known = weigh.fit_transform(texts[pool])
    except ValueError:  # an empty vocabulary
        return None
    rank = min(DIMENSIONS, *known.shape)
    _, size, directions = linear.randomized_svd(known, rank, random_state=0)
    directions = directions[size > 1e-9 * size[0]]
    block = np.asarray(weigh.transform(texts) @ directions.T)
    scale = np.sqrt(np.square(block[pool]).mean())
    return None if scale == 0 else (block / scale).astype(np.float32)
