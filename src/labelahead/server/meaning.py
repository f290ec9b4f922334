"""Search by meaning: texts and items are compared by the encoder that embeds the items.

A text encoder reads the query as it reads the items; an encoder with two towers reads it with its
tower for texts, whose vectors are comparable with those of pictures or sounds.
"""

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from labelahead.data import Data
from labelahead.data.joined_embeddings import split_joined_embedding
from labelahead.devices import resolve_device
from labelahead.errors import InputError
from labelahead.learner.config import Campaign
from labelahead.learner.encoding import SENTENCES, EncoderOptions, encode_inputs, is_encoder
from labelahead.learner.preparation import choose_model_and_embedding
from labelahead.models.encoder_names import TEXT
from labelahead.models.encoders import Encoder, load_encoder
from labelahead.models.sentence_encoder import embed_texts
from labelahead.outofcore.store import is_store

__all__ = ["MeaningSearch"]


class MeaningSearch:
    """Compares texts with the items of a session. Embeddings of the items come from the cache."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self._embeddings: Tensor | None = None
        self._encoder: Encoder | None = None

    def is_possible(self, data: Data) -> bool:
        """Return whether the embedding of these items may read texts."""
        return self._find_embedding(data) is not None

    def compare(self, data: Data, text: str) -> Tensor:
        """Return the cosine (n,) of every item with a text; the largest of its text columns.

        Raises:
            InputError: The embedding of the items reads no texts.
        """
        name = self._find_embedding(data)
        if name is None:
            raise InputError(
                "this session cannot search by meaning, because the embedding of its items reads "
                f"no texts; expected texts with {SENTENCES} or an encoder by name, or pictures or "
                "sounds with a two-tower encoder (docs/encoders.md): search by name instead"
            )
        sought = self._embed_query(name, text)
        items = self._embed_items(name, data)
        width = len(sought)
        if items.shape[1] % width:
            raise InputError(
                f"{name} gives {width} numbers for a text and {items.shape[1]} for an item; "
                "expected an encoder with one space for both"
            )
        blocks = items.view(len(items), -1, width)  # (n, text columns, d)
        cosines = cosine_similarity(blocks, sought.expand(1, 1, -1), dim=2)
        return cosines.amax(1).double()

    def _find_embedding(self, data: Data) -> str | None:
        """Return the embedding of the items if it may read texts."""
        if data.samples is not None or not len(data) or is_store(self.campaign.data.name):
            return None
        name = choose_model_and_embedding(self.campaign, data)[1]
        alone = len(split_joined_embedding(name)) == 1 and name not in data.vectors
        return name if alone and (name == SENTENCES or is_encoder(name, data)) else None

    def _embed_query(self, name: str, text: str) -> Tensor:
        if name == SENTENCES:
            return embed_texts([text], cache=None)[0]
        if self._encoder is None:
            self._encoder = load_encoder(name, TEXT, device=resolve_device(self.campaign.device))
        return self._encoder.encode_all([text])[0].float().cpu()

    def _embed_items(self, name: str, data: Data) -> Tensor:
        """Return the embeddings (n, d) of all items; kept, since a pool only grows."""
        if self._embeddings is None or len(self._embeddings) != len(data):
            options = EncoderOptions(device=resolve_device(self.campaign.device))
            size = self.campaign.data.size
            made = encode_inputs("exact", data, name, size, how=options).embeddings
            assert made is not None  # an encoder by name has them
            self._embeddings = torch.as_tensor(made).float()
        return self._embeddings
