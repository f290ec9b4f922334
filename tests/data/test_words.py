"""Running text: which columns hold it, and word features of texts that share words."""

import pytest
import torch

from labelahead.data.dataset import Texts
from labelahead.data.words import build_word_inputs, fit_word_columns, is_running_text
from labelahead.errors import InputError

SENTENCE = "the quick brown fox jumps over the lazy dog again"


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([SENTENCE, None, SENTENCE], True),
        (["red", "green", "blue"], False),
        (["x" * 100, "y" * 100], False),  # long, but of one word
        ([SENTENCE, 3], False),
        ([None, None], False),
    ],
)
def test_is_running_text_needs_long_entries_of_several_words(entries, expected):
    assert is_running_text(entries) is expected


def texts(*entries):
    return Texts({"note": list(entries)}, torch.zeros(len(entries), 0))


def test_texts_with_the_same_words_have_the_same_features():
    held = texts("apples and pears", "pears and apples", "cars drive fast", "fast cars drive")
    inputs = build_word_inputs(held, torch.arange(4), "fruit")
    assert inputs.dtype == torch.float32
    assert torch.allclose(inputs[0], inputs[1], atol=1e-5)
    assert torch.allclose(inputs[2], inputs[3], atol=1e-5)
    assert not torch.allclose(inputs[0], inputs[2], atol=1e-2)


def test_texts_that_share_no_word_are_refused():
    held = texts("alpha", "beta", "gamma")
    assert fit_word_columns(held, torch.arange(3)) == ()
    with pytest.raises(InputError, match="no word occurs in two texts"):
        build_word_inputs(held, torch.arange(3), "letters")
