"""Search by meaning."""

import pytest
import torch
from PIL import Image

from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.encoding import encode_inputs
from labelahead.models.encoders import load_encoder
from labelahead.server.gallery import Gallery, GalleryFilter
from labelahead.server.meaning import MeaningSearch
from tests.server.test_confirm import NAMES
from tests.support.tiny_encoders import save_tiny_encoders
from tests.support.web_sessions import page, photos

pytest.importorskip("transformers", reason="needs the extra 'encoders'")


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    return save_tiny_encoders(tmp_path_factory.mktemp("encoders"))


def compare_naively(encoder, modality, items, text):
    """Return the cosine of each item with a text, one by one."""
    query = load_encoder(encoder, "text").encode_all([text])[0]
    vectors = load_encoder(encoder, modality).encode_all(items)
    return torch.nn.functional.cosine_similarity(vectors, query[None]).double()


@pytest.mark.parametrize(("tower", "modality"), [("bert", "text"), ("clip", "image")])
def test_items_are_ordered_by_their_cosine_with_the_text(encoders, tmp_path, tower, modality):
    encoder = f"hf:{encoders / tower}"
    if modality == "text":
        items = ["the cat sat", "a dog", "the dog sat", "a cat"]
        source = tmp_path / "texts"
        source.mkdir()
        for i, text in enumerate(items):
            (source / f"{i}.txt").write_text(text)
    else:
        source = photos(tmp_path / "set", 5)
        items = [Image.open(path).convert("RGB") for path in sorted(source.iterdir())]
    tables = {"model": {"name": "exact"}, "data": {"name": str(source), "embedding": encoder}}
    with page(source, tmp_path / "out", tables=tables, classes=NAMES) as (client, session):
        view = client.get("/api/gallery", params={"order": "meaning", "meaning": "a cat"}).json()
        assert view["meaning"] is True
        found = client.get(f"/api/gallery/{view['view']}/positions").json()["positions"]
        naive = compare_naively(encoder, modality, items, "a cat")
        search = MeaningSearch(session.schedule.campaign)
        ours = search.compare(session.service.items.data, "a cat")
        assert torch.allclose(ours, naive, atol=1e-5)
        assert found == naive.argsort(descending=True).tolist()


def test_session_whose_embedding_reads_no_texts_says_so(tmp_path):
    source = photos(tmp_path / "set", 4)
    tables = {"model": {"name": "exact"}, "data": {"name": str(source), "embedding": "raw"}}
    with page(source, tmp_path / "out", tables=tables, classes=NAMES) as (client, session):
        view = client.get("/api/gallery").json()
        assert view["meaning"] is False
        reply = client.get("/api/gallery?order=meaning&meaning=cat")
        assert reply.status_code == 400
        assert "reads no texts" in reply.json()["error"]
        with pytest.raises(InputError, match="search by name"):
            Gallery(session.service).open_view(GalleryFilter(order="meaning", meaning="cat"))


def test_encoder_of_pictures_alone_is_refused_with_its_reason(encoders, tmp_path):
    source = photos(tmp_path / "set", 4)
    embedding = f"hf:{encoders / 'vit'}"
    tables = {"model": {"name": "exact"}, "data": {"name": str(source), "embedding": embedding}}
    campaign = parse_campaign({**tables, "threads": 1})
    with page(source, tmp_path / "out", tables=tables, classes=NAMES) as (_, session):
        data = session.service.items.data
        assert encode_inputs("exact", data, embedding, None).embeddings is not None
        with pytest.raises(InputError):
            MeaningSearch(campaign).compare(data, "a cat")
