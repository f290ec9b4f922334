"""What a network sees of the items: as they are, or what a pretrained one makes of pictures and texts."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from labelahead.campaign.loop import Progress
from labelahead.data import Data
from labelahead.data.split import default_root
from labelahead.errors import InputError, did_you_mean
from labelahead.learners.exact import EXACT
from labelahead.models import embed, pixels, standardise
from labelahead.models.backbone import available
from labelahead.models.sentences import ENCODER, LONGEST, embed_texts, sentences_available

__all__ = ["EMBEDDINGS", "Seen", "seen_by"]

log = logging.getLogger("labelahead")
AS_THEY_ARE, WORDS, SENTENCES, PICTURES = "raw", "words", "minilm", "lite0"
EMBEDDINGS = {
    SENTENCES: f"texts, read by {ENCODER}: 384 numbers (extra 'texts')",
    WORDS: "texts, their words and pairs of words: up to 128 numbers",
    PICTURES: "pictures, seen by EfficientNet-Lite0: 1,280 numbers (extra 'photos')",
    AS_THEY_ARE: "pixels and columns as they are",
}


@dataclass(frozen=True, eq=False)
class Seen:
    """Inputs (n, ...) of a whole data set, by which embedding they came about, and what to say of it."""

    inputs: Tensor
    embedding: str
    notes: tuple[str, ...]


def seen_by(model: str, data: Data, embedding: str | None, size: int | None, progress: Progress | None = None) -> Seen:
    """What the network `model` sees. embedding: one of EMBEDDINGS; None: the best there is for these data."""
    if model == "efficientnet-lite0":
        if data.images is None:
            raise InputError(f"model is {model}, which sees pictures, but {data.name} has none")
        return Seen(pixels(data.images.batch(torch.arange(len(data)), size or 128)), AS_THEY_ARE, ())
    chosen, notes = (embedding, ()) if embedding is not None else _best(model, data)
    if chosen not in EMBEDDINGS:
        raise InputError(
            f"embedding is {chosen!r}; {did_you_mean(chosen, EMBEDDINGS)}expected one of {', '.join(EMBEDDINGS)}"
        )
    tell = None if progress is None else lambda done, n: progress("features", done, n)
    if chosen == PICTURES:
        return Seen(_pictures(model, data, size, tell), chosen, notes)
    if chosen == SENTENCES:
        return Seen(_sentences(model, data, tell), chosen, notes)
    if chosen == WORDS and data.texts is None:
        raise InputError(f"embedding is {chosen}, which reads texts, but {data.name} has none; expected another")
    return Seen(data.inputs, chosen, notes)


def _best(model: str, data: Data) -> tuple[str, tuple[str, ...]]:
    """The best that is installed, and what would be better."""
    if data.texts is not None:
        columns = ", ".join(data.texts.columns)
        if sentences_available():
            return SENTENCES, (
                f"{columns}: read by {ENCODER}, the first {LONGEST} tokens (some 200 words) of each text",
            )
        return WORDS, (
            f"{columns}: learnt from by its words; sentence embeddings would need far fewer labels, but are not "
            "installed (pip install 'labelahead[texts]')",
        )
    if model == "backbone":
        return PICTURES, ()
    if model == EXACT and _in_colour(data):
        if available():
            return PICTURES, ()
        return AS_THEY_ARE, (
            "pictures are best served by pretrained features, but these are not installed "
            "(pip install 'labelahead[photos]'): pixels instead",
        )
    return AS_THEY_ARE, ()


def _pictures(model: str, data: Data, size: int | None, tell: Callable[[int, int], None] | None) -> Tensor:
    if data.images is None:
        raise InputError(f"model is {model}, which sees pictures, but {data.name} has none")
    features = embed(
        data.images,
        len(data),
        cache=_cache(),
        size=size or 128,
        fingerprint=data.images.fingerprint(),
        standardised=False,
        progress=tell,
    )
    return features if model == EXACT else standardise(features, features[_pool(data)])


def _sentences(model: str, data: Data, tell: Callable[[int, int], None] | None) -> Tensor:
    """What every column of text says, beside the other columns."""
    if data.texts is None:
        raise InputError(f"embedding is {SENTENCES}, which reads texts, but {data.name} has none; expected another")
    blocks = []
    for column, texts in data.texts.columns.items():
        said = embed_texts(texts, cache=_cache(), fingerprint=data.texts.fingerprint(column), progress=tell)
        # The exact learner centres and scales by itself, item by item.
        blocks.append(said if model == EXACT else standardise(said, said[_pool(data)]))
    return torch.cat([*blocks, data.texts.rest], 1)


def _pool(data: Data) -> Tensor:
    return torch.ones(len(data), dtype=torch.bool).index_fill_(0, data.test, False)


def _in_colour(data: Data) -> bool:
    """Whether the items are pictures that a network for photographs can see something in."""
    return data.images is not None and len(data.shape) == 3 and data.shape[0] == 3


def _cache() -> Path | None:
    """Where features are kept; None, with a warning, if that place cannot be written to."""
    folder = default_root() / "features"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning(
            "%s cannot be written to (%s), so features are not kept: set LABELAHEAD_DATA to a folder that can",
            folder,
            error.strerror,
        )
        return None
    return folder
