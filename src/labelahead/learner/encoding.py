"""The inputs of a model: the items themselves, or embeddings of images, texts and sounds."""

import hashlib
import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelahead.batching import Samples
from labelahead.data import Data
from labelahead.data.columns import Column, SentenceColumn, VectorColumn
from labelahead.data.folder import ignore_pillow_warnings
from labelahead.data.joined_embeddings import (
    JOIN_SYMBOL,
    map_joined_embedding,
    split_embedding_weights,
    split_joined_embedding,
)
from labelahead.data.preprocessing import (
    COLUMN_INPUTS,
    ENCODED_PICTURES,
    ENCODED_SOUNDS,
    PICTURE_INPUTS,
    VECTORS,
    Preprocessor,
)
from labelahead.data.sounds import ENCODER_SECONDS
from labelahead.data.split import get_default_root
from labelahead.data.vector_files import is_vector_file, resolve_vector_file, vector_column_name
from labelahead.data.words import fit_word_columns
from labelahead.errors import InputError, did_you_mean
from labelahead.learner.config import Progress
from labelahead.learner.model_kind import get_model_kind
from labelahead.models import EXACT, embed_images, scale_pixels, standardise_features
from labelahead.models.encoder_names import (
    AUDIO,
    IMAGE,
    TEXT,
    is_encoder_prefix,
    looks_like_encoder,
    resolve_encoder,
)
from labelahead.models.encoders import Encoder, load_encoder
from labelahead.models.feature_cache import (
    collect_features,
    compute_features,
    make_key,
    read_cached_width,
)
from labelahead.models.image_encoder import BACKBONES, compute_scales, is_image_encoder_available
from labelahead.models.mel import MEL, MEL_WIDTH, compute_mel_statistics
from labelahead.models.sentence_encoder import (
    ENCODER,
    MAX_TOKENS,
    embed_texts,
    is_sentence_encoder_available,
)
from labelahead.models.trusted_code import resolve_code_name
from labelahead.models.user_code import import_object

__all__ = [
    "EMBEDDINGS",
    "EncodedInputs",
    "EncoderOptions",
    "best_embedding",
    "can_be_joined",
    "describe_embedding",
    "encode_inputs",
    "is_encoder",
    "is_slow_embedding",
    "join_columns",
    "pin_embedding",
    "require_embedding",
]

log = logging.getLogger("labelahead")
RAW, WORDS, SENTENCES, LITE0 = "raw", "words", "minilm", "lite0"
EMBEDDINGS = {
    SENTENCES: f"texts as {ENCODER} reads them, 384 numbers (extra 'texts')",
    WORDS: "texts by their words and pairs of words, up to 128 numbers",
    **{
        name: f"pictures as {b.title} sees them, 1,280 numbers (extra 'photos')"
        for name, b in BACKBONES.items()
    },
    MEL: f"sounds by mean and deviation of 40 log-mel bands, {MEL_WIDTH} numbers (extra 'audio')",
    RAW: "pixels and columns, unchanged",
}
# What the other columns of a table weigh beside an embedding. On Reuters texts with made-up columns
# a quarter loses a point to columns of noise, where equal weights lose three, and keeps most of
# what useful ones bring (docs/campaigns).
OTHER_COLUMNS_WEIGHT = 0.25
MAX_ENCODER_BATCH = 64  # items that a function of the user's own is called with, at most
# pixels a side at which a function of the user's own is given pictures, unless they say
CUSTOM_ENCODER_PIXELS = 224
OnItems = Callable[[int, int], None]
STRONGER_IMAGES = (
    "stronger image encoders exist: --embedding facebook/dinov2-small (docs/encoders.md)"
)
STRONGER_SOUNDS = (
    "a pretrained audio encoder usually separates classes better: --embedding "
    "MIT/ast-finetuned-audioset-10-10-0.4593 for sounds, facebook/wav2vec2-base for speech "
    "(docs/audio.md)"
)
STRONGER_TEXTS = (
    "stronger text encoders exist: --embedding BAAI/bge-small-en-v1.5 (docs/encoders.md)"
)


@dataclass(frozen=True)
class EncoderOptions:
    """How a pretrained encoder by name runs; none of it changes the features.

    Attributes:
        batch_size: Items at once; None: from the free memory.
        workers: Threads that read and prepare items; None: one per core.
        device: Where the encoder runs.
    """

    batch_size: int | None = None
    workers: int | None = None
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class EncodedInputs:
    """The inputs (n, ...) of a whole data set.

    Attributes:
        inputs: (n, ...).
        embedding: Name of the embedding they came from.
        notes: What the user should know.
        make_preprocessor: Returns how other items become such inputs; None if that is unknown.
        embeddings: (n, d) by the encoder alone, without standardisation and other columns.
    """

    inputs: Tensor | Samples
    embedding: str
    notes: tuple[str, ...] = ()
    make_preprocessor: Callable[[], Preprocessor | None] = lambda: (
        None
    )  # how other items become such inputs; None: nobody can tell
    embeddings: Tensor | None = None  # (n, d) by the encoder alone


def encode_inputs(
    model: str,
    data: Data,
    name: str,
    size: int | None,
    progress: Progress | None = None,
    how: EncoderOptions | None = None,
) -> EncodedInputs:
    """Compute the inputs of the network `model` by the embedding `name`.

    Args:
        model: Name of the network.
        data: The data set.
        name: One of `EMBEDDINGS`, the name or the file of vectors in the data, an encoder
            (`labelahead.models.encoder_names`), your own as file.py:function, or several joined by "+".
        size: Pixels a side of images.
        progress: Called with the stage, the items done and their total.
        how: How an encoder by name runs.
    """
    if model == "efficientnet-lite0":
        if data.images is None:
            raise InputError(f"model is {model}, which needs images, but {data.name} has none")
        shape, half = (3, size or 128, size or 128), torch.tensor(127.5)
        pixels = scale_pixels(data.images.batch(torch.arange(len(data)), shape[1]))
        return EncodedInputs(
            pixels, RAW, make_preprocessor=lambda: Preprocessor(PICTURE_INPUTS, shape, half, half)
        )
    if data.samples is not None:
        return EncodedInputs(data.samples, RAW)
    require_embedding(name, data)
    report_features = None if progress is None else lambda done, n: progress("features", done, n)
    if name not in data.vectors and name in (RAW, WORDS):
        return EncodedInputs(data.inputs, name, make_preprocessor=lambda: _raw_preprocessor(data))
    pool = torch.ones(len(data), dtype=torch.bool).index_fill_(0, data.test, False)
    name = pin_embedding(name, data)
    parts = _split_joined(name, data)
    blocks = [
        _encode_block(part, data, size, how or EncoderOptions(), report_features) for part in parts
    ]
    made, joining = blocks[0], None
    if len(parts) > 1:
        made, joining = _join_blocks(blocks, pool, split_embedding_weights(name))
    features, scale = made, None
    if get_model_kind(model).standardises_features:
        features, scale = standardise_features(made, made[pool]), compute_scales(made[pool])
    rest = _other_columns(data)
    if joining is not None:  # both steps as one mean and deviation
        mean, std = scale or (torch.zeros(()).double(), torch.ones(()).double())
        scale = joining[0] + mean * joining[1], std * joining[1]
    preprocessor = _build_preprocessor(data, name, size or 128, features, scale, rest, pool)
    if rest is None:
        return EncodedInputs(
            features, name, make_preprocessor=lambda: preprocessor, embeddings=made
        )
    weighed = (
        f"the other columns, {rest.shape[1]} numbers, weigh a quarter of the embedding's "
        f"{features.shape[1]}"
    )
    return EncodedInputs(
        join_columns(features, rest, pool), name, (weighed,), lambda: preprocessor, embeddings=made
    )


def _encode_block(
    name: str, data: Data, size: int | None, how: EncoderOptions, tell: OnItems | None
) -> Tensor:
    """Return the features (n, d) of one embedding."""
    if name in data.vectors:
        return data.vectors[name].float()
    if name in BACKBONES:
        return _encode_images(name, data, size, tell)
    if name == MEL:
        return _encode_mel(data, tell)
    if name == SENTENCES:
        return _encode_sentences(data, tell)
    if is_encoder(name, data):
        return _encode_by_name(name, data, how, tell)
    return _encode_with_function(name, data, size, tell)


def _join_blocks(
    blocks: list[Tensor], pool: Tensor, weights: list[float]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Join features (n, d) of several embeddings; a block's total variance is its weight.

    The linear kernel of the joined features is the sum of the blocks' linear kernels, each centred
    and scaled to mean diagonal 1 over the pool, times their weights.

    Returns:
        (n, d) with the weights as mean squared norms per block over the pool, and what was
        subtracted from and divided through the features, (d,) each.
    """
    scalings = [
        _variance_scaling(block, pool, weight)
        for block, weight in zip(blocks, weights, strict=True)
    ]
    means = torch.cat([mean for mean, _ in scalings])
    deviations = torch.cat([torch.full_like(mean, 1 / factor) for mean, factor in scalings])
    joined = (torch.cat(blocks, 1).double() - means) / deviations
    return joined.float(), (means, deviations)


def _split_joined(name: str, data: Data) -> list[str]:
    """Return the embeddings that a name joins; a column of vectors may contain the sign."""
    return [name] if name in data.vectors else split_joined_embedding(name)


def can_be_joined(name: str, data: Data) -> bool:
    """Return whether an embedding can be part of a joined one, for new items, too.

    Of pictures these are encoders by name, which read whole pictures; otherwise also MiniLM and
    vectors.
    """
    if data.images is not None:
        return is_encoder(name, data)
    return is_encoder(name, data) or name == SENTENCES or name in data.vectors


def require_embedding(name: str, data: Data) -> None:
    """Raise unless the embedding exists and applies to these data."""
    if name in data.vectors:
        return
    parts = _split_joined(name, data)
    if len(parts) > 1:
        unfit = [part for part in parts if not can_be_joined(part, data)]
        if unfit:
            kinds = (
                "encoders by name"
                if data.images is not None
                else (f"encoders by name, {SENTENCES} and vectors")
            )
            raise InputError(
                f"embedding is {name!r}, but {unfit[0]} cannot be joined to another one; expected "
                f"{kinds} on both sides of {JOIN_SYMBOL}"
            )
        for part in parts:
            require_embedding(part, data)
        return
    if is_encoder(name, data):
        resolve_encoder(name)
        _find_modality(name, data)
        return
    if ":" in name:
        _load_function(name)
    elif name not in EMBEDDINGS:
        known = [*EMBEDDINGS, *data.vectors]
        raise InputError(
            f"embedding is {name!r}, but {data.name} has no vectors of that name; "
            f"{did_you_mean(name, known)}expected "
            f"one of {', '.join(known)}, an encoder such as facebook/dinov2-small, or your own as "
            "file.py:function"
        )
    if data.sounds is not None and name in EMBEDDINGS and name != MEL:
        raise InputError(
            f"embedding is {name}, but {data.name} holds sounds; expected {MEL}, a pretrained "
            "audio encoder such as facebook/wav2vec2-base, or your own as file.py:function"
        )
    if name == MEL and data.sounds is None:
        raise InputError(
            f"embedding is {name}, which is for sounds, but {data.name} has none; expected another"
        )
    if name in (WORDS, SENTENCES) and data.texts is None:
        raise InputError(
            f"embedding is {name}, which is for texts, but {data.name} has none; expected another"
        )
    if name in BACKBONES and data.images is None:
        raise InputError(
            f"embedding is {name}, which needs images, but {data.name} has none; expected another"
        )


def is_slow_embedding(name: str, data: Data) -> bool:
    """Return whether every item must be decoded or processed by a network for this embedding."""
    return any(
        part not in data.vectors
        and (part in BACKBONES or part in (SENTENCES, MEL) or ":" in part or is_encoder(part, data))
        for part in _split_joined(name, data)
    )


def is_encoder(name: str, data: Data) -> bool:
    """Return whether a name means a pretrained encoder, and not vectors or an embedding of ours."""
    known = name in data.vectors or name in EMBEDDINGS or is_vector_file(name)
    return not known and looks_like_encoder(name)


def pin_embedding(name: str, data: Data) -> str:
    """Return a name that means the same everywhere: with full paths and an encoder's revision."""
    if len(_split_joined(name, data)) > 1:
        return map_joined_embedding(name, lambda part: pin_embedding(part, data))
    if is_encoder(name, data):
        return str(resolve_encoder(name))
    if name in data.vectors or name in EMBEDDINGS:
        return name
    return resolve_vector_file(name) if is_vector_file(name) else resolve_code_name(name)


def describe_embedding(name: str) -> str:
    """Return one line on an embedding, for the page."""
    if len(split_joined_embedding(name)) > 1:
        return map_joined_embedding(name, describe_embedding).replace(
            JOIN_SYMBOL, f" {JOIN_SYMBOL} "
        )
    if is_encoder_prefix(name):
        return name.partition("@")[0]
    if is_vector_file(name):
        return Path(name).name
    return EMBEDDINGS.get(name, name).partition(" (extra")[0]


def _find_modality(name: str, data: Data) -> str:
    """Return what the items are to an encoder."""
    if data.images is not None:
        return IMAGE
    if data.texts is not None:
        return TEXT
    if data.sounds is not None:
        return AUDIO
    raise InputError(
        f"embedding is {name!r}, an encoder of images, texts or sounds, but {data.name} has none "
        "of them; expected another, or none"
    )


def _load_function(name: str) -> Callable[[Any], Any]:
    function = import_object(name, "embedding")
    if not callable(function):
        raise InputError(
            f"the embedding {name!r} is a {type(function).__name__}; expected a function"
        )
    return function  # type: ignore[no-any-return]


def join_columns(features: Tensor, rest: Tensor, pool: Tensor) -> Tensor:
    """Join embeddings and other columns (n, d), centred, with weights.

    The other columns get `OTHER_COLUMNS_WEIGHT` times the total variance of the embedding over the
    pool; entries are about 1. Variance is weight to a kernel: a few raw columns would have no
    effect beside hundreds of embedding dimensions.
    """
    blocks = []
    for block, share in ((features, 1.0), (rest, OTHER_COLUMNS_WEIGHT)):
        mean, factor = _variance_scaling(block, pool, share)
        blocks.append((block.double() - mean) * factor)
    both = torch.cat(blocks, 1)
    return both.mul_((both.shape[1] / (1 + OTHER_COLUMNS_WEIGHT)) ** 0.5).float()


def _variance_scaling(block: Tensor, pool: Tensor, share: float) -> tuple[Tensor, float]:
    """Return the mean over the pool (d,) and the factor that makes the total variance `share`.

    The factor is 1 if the variance is zero.
    """
    mean = block[pool].double().mean(0)
    total = float((block[pool].double() - mean).square().sum(1).mean())
    return mean, (share / total) ** 0.5 if total > 0 else 1.0


def _raw_preprocessor(data: Data) -> Preprocessor | None:
    """Return the preprocessor of pixels, numbers and columns, with word columns of texts first."""
    if data.texts is None or data.preprocessor is None:
        return data.preprocessor
    pool = torch.ones(len(data), dtype=torch.bool).index_fill_(0, data.test, False)
    columns = (*fit_word_columns(data.texts, pool.nonzero().flatten()), *data.preprocessor.columns)
    return Preprocessor(COLUMN_INPUTS, tuple(data.inputs.shape[1:]), columns=columns)


def _build_preprocessor(
    data: Data,
    name: str,
    size: int,
    features: Tensor,
    scale: tuple[Tensor, Tensor] | None,
    rest: Tensor | None,
    pool: Tensor,
) -> Preprocessor | None:
    """Return how other items become such inputs; None if that is unknown.

    Standardisation and weighting are combined into one mean and deviation.
    """
    mean, std = scale or (torch.zeros(()).double(), torch.ones(()).double())
    if name in BACKBONES and name not in data.vectors:
        return Preprocessor(PICTURE_INPUTS, (3, size, size), mean, std, features=name)
    columns: tuple[Column, ...]
    width, parts = features.shape[1], _split_joined(name, data)
    if len(parts) == 1 and is_vector_file(name) and rest is None:
        return Preprocessor(VECTORS, (width,), mean, std, features=Path(name).name)
    if data.images is not None and all(is_encoder(part, data) for part in parts):
        return Preprocessor(ENCODED_PICTURES, (width,), mean, std, features=name)
    if data.sounds is not None and all(p == MEL or is_encoder(p, data) for p in parts):
        return Preprocessor(ENCODED_SOUNDS, (width,), mean, std, features=name)
    columns = tuple(column for part in parts for column in _encoded_columns(part, data))
    if not columns:  # a function of the user's own: code does not travel
        return None
    if rest is not None and data.preprocessor is not None:
        columns += data.preprocessor.columns
        (first, factor), (second, other) = (
            _variance_scaling(features, pool, 1.0),
            _variance_scaling(rest, pool, OTHER_COLUMNS_WEIGHT),
        )
        unit = ((width + rest.shape[1]) / (1 + OTHER_COLUMNS_WEIGHT)) ** 0.5
        mean = torch.cat([mean + std * first, second])
        std = torch.cat(
            [(std / (factor * unit)).expand(width), torch.full_like(second, 1 / (other * unit))]
        )
        width += rest.shape[1]
    return Preprocessor(COLUMN_INPUTS, (width,), mean, std, columns=columns)


def _encoded_columns(name: str, data: Data) -> list[Column]:
    """Return the columns of a table that one embedding reads."""
    if name in data.vectors:
        return [VectorColumn(vector_column_name(name), data.vectors[name].shape[1])]
    if data.texts is not None and (name == SENTENCES or is_encoder(name, data)):
        return [SentenceColumn(column, name) for column in data.texts.columns]
    return []


def _other_columns(data: Data) -> Tensor | None:
    """Return the numeric and categorical columns of a table as numbers."""
    rest = (
        data.texts.other_features
        if data.texts is not None
        else data.inputs
        if data.rows is not None and data.shape
        else None
    )
    return rest if rest is not None and rest.shape[1] else None


def best_embedding(model: str, data: Data) -> tuple[str, tuple[str, ...]]:
    """Return the best installed embedding, and notes on what would be better."""
    if data.texts is not None:
        columns = ", ".join(data.texts.columns)
        if is_sentence_encoder_available():
            return SENTENCES, (
                f"{columns}: read by {ENCODER}, up to {MAX_TOKENS} tokens (some 200 words) of each "
                "text",
                STRONGER_TEXTS,
            )
        return WORDS, (
            f"{columns}: represented by words; sentence embeddings would need far fewer "
            "labels, but are not "
            "installed (pip install 'labelahead[texts]')",
        )
    if data.sounds is not None and not data.vectors:
        return MEL, (
            f"sounds: mean and deviation of 40 log-mel bands over the first {ENCODER_SECONDS} "
            "seconds, a weak embedding",
            STRONGER_SOUNDS,
        )
    if data.vectors and not data.shape:
        name = next(iter(data.vectors))
        return name, (f"uses the vectors in {name}",)
    if model == "backbone" or (
        model == EXACT and _has_colour_images(data) and is_image_encoder_available()
    ):
        return LITE0, (
            f"images: embedded by {BACKBONES[LITE0].title}, pretrained on a million photographs",
            STRONGER_IMAGES,
        )
    if model == EXACT and _has_colour_images(data):
        return RAW, (
            "images work best with pretrained features, but these are not installed "
            "(pip install 'labelahead[photos]'): pixels instead",
        )
    return RAW, ()


def _has_colour_images(data: Data) -> bool:
    """Return whether the items are colour images, which a pretrained backbone can use."""
    return data.images is not None and len(data.shape) == 3 and data.shape[0] == 3


def _encode_images(name: str, data: Data, size: int | None, tell: OnItems | None) -> Tensor:
    assert data.images is not None
    return embed_images(
        data.images,
        len(data),
        cache=_feature_folder(),
        size=size or 128,
        keys=[make_key(mark) for mark in data.images.compute_item_fingerprints(len(data))],
        standardised=False,
        progress=tell,
        backbone=name,
    )


def _encode_sentences(data: Data, tell: OnItems | None) -> Tensor:
    """Embed every text column."""
    assert data.texts is not None
    columns = data.texts.columns.values()
    return torch.cat(
        [embed_texts(texts, cache=_feature_folder(), progress=tell) for texts in columns], 1
    )


def _encode_mel(data: Data, tell: OnItems | None) -> Tensor:
    """Compute the statistics of log-mel bands of every sound, one sound at a time."""
    sounds = data.sounds
    assert sounds is not None

    def fill(at: list[int], rows: Tensor) -> Iterator[int]:
        for done, position in enumerate(at):
            rows[done] = compute_mel_statistics(*sounds.read_wave(position))
            yield done + 1

    keys = [make_key(mark) for mark in sounds.compute_item_fingerprints(len(data))]
    return compute_features(
        len(data),
        MEL_WIDTH,
        fill,
        method="1|mel",
        keys=keys,
        cache=_feature_folder(),
        progress=tell,
    )


def _encode_by_name(name: str, data: Data, how: EncoderOptions, tell: OnItems | None) -> Tensor:
    """Embed images, sounds, or every text column, with a pretrained encoder.

    The encoder is loaded only if an item is not cached.
    """
    modality, cache = _find_modality(name, data), _feature_folder()
    where = "" if how.device == "cpu" else f"|{how.device.partition(':')[0]}"
    method = f"1|{resolve_encoder(name).cache_key}|{modality}{where}"
    encoders: list[Encoder] = []

    def load() -> Encoder:
        encoders[:] = encoders or [load_encoder(name, modality, device=how.device)]
        return encoders[0]

    def embed(read: Callable[[int], Any], marks: list[str]) -> Tensor:
        def produce(missing: list[int]) -> Iterator[tuple[list[int], Tensor]]:
            return load().stream(read, missing, batch_size=how.batch_size, workers=how.workers)

        return collect_features(
            len(data),
            read_cached_width(cache, method) or load().width,
            produce,
            method=method,
            keys=None if cache is None else [make_key(mark) for mark in marks],
            cache=cache,
            progress=tell,
        )

    if data.images is not None:
        with ignore_pillow_warnings():
            return embed(data.images.open_picture, data.images.compute_item_fingerprints(len(data)))
    if data.sounds is not None:
        return embed(data.sounds.read_wave, data.sounds.compute_item_fingerprints(len(data)))
    assert data.texts is not None
    columns = data.texts.columns.values()
    return torch.cat([embed(texts.__getitem__, texts) for texts in columns], 1)


def _encode_with_function(name: str, data: Data, size: int | None, tell: OnItems | None) -> Tensor:
    """Embed texts, images, sounds or rows with the user's function, block by block."""
    function = _load_function(name)
    items, marks = read_items_for_code(data, size or CUSTOM_ENCODER_PIXELS)
    source = (
        inspect.getsourcefile(inspect.unwrap(function)) if inspect.isroutine(function) else None
    )
    written = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else None
    cache = (
        _feature_folder() if written else None
    )  # of what cannot be read nobody can say whether it has changed
    about = f"2|{name.rpartition(':')[2]}|{written}"
    columns = read_cached_width(cache, about)
    first: dict[int, Tensor] = {}
    if columns is None:
        some = list(range(min(len(data), MAX_ENCODER_BATCH)))
        rows = _call_encoder(function, name, items(some), len(some), None)
        columns, first = rows.shape[1], dict(enumerate(rows))

    def fill(at: list[int], rows: Tensor) -> Iterator[int]:
        for begin in range(0, len(at), MAX_ENCODER_BATCH):
            some = at[begin : begin + MAX_ENCODER_BATCH]
            if all(i in first for i in some):
                rows[begin : begin + len(some)] = torch.stack([first[i] for i in some])
            else:
                rows[begin : begin + len(some)] = _call_encoder(
                    function, name, items(some), len(some), columns
                )
            yield begin + len(some)

    keys = None if cache is None else [make_key(mark) for mark in marks()]
    return compute_features(
        len(data), columns, fill, method=about, keys=keys, cache=cache, progress=tell
    )


def read_items_for_code(
    data: Data, size: int
) -> tuple[Callable[[list[int]], Any], Callable[[], list[str | bytes]]]:
    """Return how a function of the user's own is given items, and a function for their cache keys.

    The first returns the items at some positions: a list of texts, of rows as dictionaries or of
    sounds, or pictures (q, 3, size, size).
    """
    images, texts, rows, sounds = data.images, data.texts, data.rows, data.sounds
    every = range(len(data))
    if sounds is not None:
        return lambda at: [sounds.read_wave(i) for i in at], lambda: list(
            sounds.compute_item_fingerprints(len(data))
        )
    if images is not None:
        return lambda at: images.batch(torch.tensor(at), size), lambda: [
            f"{size}|{m}" for m in images.compute_item_fingerprints(len(data))
        ]
    if texts is not None:
        whole = ["\n".join(parts) for parts in zip(*texts.columns.values(), strict=True)]
        return lambda at: [whole[i] for i in at], lambda: list(whole)
    if rows is not None:
        return lambda at: [dict(rows.get_row(i)) for i in at], lambda: [
            repr(rows.get_row(i)) for i in every
        ]
    values = data.inputs
    return lambda at: values[at], lambda: [values[i].contiguous().numpy().tobytes() for i in every]


def _call_encoder(
    function: Callable[[Any], Any], name: str, items: Any, q: int, columns: int | None
) -> Tensor:
    """Call the user's function and check its result, (q, d) float32."""
    try:
        out = torch.as_tensor(function(items)).detach().float().cpu()
    except Exception as error:
        cause = (str(error).strip().splitlines() or [""])[0]
        raise InputError(
            f"the embedding {name!r} failed on {q} items with {type(error).__name__}: {cause}"
        ) from error
    if (
        out.dim() != 2
        or len(out) != q
        or not out.shape[1]
        or (columns is not None and out.shape[1] != columns)
    ):
        wanted = f"({q}, {columns or 'd'})"
        raise InputError(
            f"the embedding {name!r} returned {tuple(out.shape)} for {q} items; expected {wanted}"
        )
    if not bool(torch.isfinite(out).all()):
        raise InputError(
            f"the embedding {name!r} returned NaN or infinity; expected finite numbers"
        )
    return out


def _feature_folder() -> Path | None:
    """Return the folder of cached features; None, with a warning, if it cannot be written to."""
    folder = get_default_root() / "features"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning(
            "%s cannot be written to (%s), so features are not kept: set LABELAHEAD_DATA to a "
            "folder that can",
            folder,
            error.strerror,
        )
        return None
    return folder
