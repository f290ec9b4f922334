"""Running text -> numbers: which words a text uses, weighted, in few dimensions."""

from typing import Any

import numpy as np

from labelahead.data.extras import need

__all__ = ["is_text", "text_block"]

LONG = 40  # characters on average: more is running text, less is a category
WORDS = 20_000  # the commonest words and pairs of the pool that count
DIMENSIONS = 128

Array = np.ndarray[Any, Any]


def is_text(entries: list[Any]) -> bool:
    """Whether a column holds running text: long, and mostly of several words."""
    texts = [e for e in entries if e is not None]
    if not texts or not all(isinstance(t, str) for t in texts):
        return False
    length = sum(map(len, texts)) / len(texts)
    several = sum(len(t.split()) > 2 for t in texts)
    return length > LONG and 2 * several > len(texts)


def text_block(entries: list[Any], pool: Array) -> Array | None:
    """(n, d) float32: tf-idf of words and pairs, then its leading directions (LSA), by the pool.

    One scale for all directions, so that an entry is 1 in the root mean square over the pool and
    texts keep their angles. None: no word is in two texts.
    """
    text = need("sklearn.feature_extraction.text", "app", "learning from text")
    linear = need("sklearn.utils.extmath", "app", "learning from text")
    texts = np.array(["" if e is None else e for e in entries], dtype=object)
    weigh = text.TfidfVectorizer(
        ngram_range=(1, 2), min_df=2, max_features=WORDS, sublinear_tf=True, dtype=np.float64
    )
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
