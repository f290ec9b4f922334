"""Running text: detect columns that hold it, and turn their words into features (TF-IDF, LSA).

Used where no sentence encoder is installed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labelahead.data.columns import TfidfColumn
from labelahead.data.dataset import Texts
from labelahead.errors import InputError

__all__ = ["build_word_inputs", "fit_word_columns", "is_running_text"]

MIN_TEXT_LENGTH = 40  # mean characters per entry; shorter columns are categories


def is_running_text(entries: Sequence[Any], length: int = MIN_TEXT_LENGTH) -> bool:
    """Return whether a column holds running text: long entries, mostly of several words.

    Args:
        entries: texts, None where a value is missing.
        length: the mean length in characters that entries must exceed.
    """
    texts = [e for e in entries if e is not None]
    if not texts or not all(isinstance(t, str) and not t.startswith("\0") for t in texts):
        return False
    several = sum(len(t.split()) > 2 for t in texts)
    return sum(map(len, texts)) / len(texts) > length and 2 * several > len(texts)


def build_word_inputs(texts: Texts, pool: Tensor, where: str) -> Tensor:
    """Return (n, d) float32: word features of every text column, then the other columns.

    Args:
        texts: the text columns and the features of the other columns.
        pool: (q,) positions on which the vocabulary is fitted.
        where: the data set, for messages.

    Raises:
        InputError: if no word occurs in two texts and there are no other columns.
    """
    columns = fit_word_columns(texts, pool)
    if not columns and not texts.other_features.shape[1]:
        raise InputError(
            f"{where}: no word occurs in two texts ({', '.join(texts.columns)}), so words carry "
            "no information; expected texts that share some, or the sentence encoder of the extra "
            "'texts': pip install 'labelahead[texts]'"
        )
    blocks = [torch.from_numpy(column.apply(texts.columns[column.name])) for column in columns]
    return torch.cat([*blocks, texts.other_features], 1)


def fit_word_columns(texts: Texts, pool: Tensor) -> tuple[TfidfColumn, ...]:
    """Fit word features on the pool; columns without a word that occurs in two texts are dropped."""
    fitted = (TfidfColumn.fit(name, column, pool.numpy()) for name, column in texts.columns.items())
    return tuple(column for column in fitted if column is not None)
