"""The answer book, and what counts as a missing answer."""

import numpy as np
import pytest
import torch

from labelahead.errors import InputError
from labelahead.tasks.base import AnswerBook, TaskState, is_missing, plain


def test_book_gives_each_text_one_code_in_order_of_appearance():
    book = AnswerBook(["a", "b", "a"])
    assert list(book) == ["a", "b"]
    assert (book.add("c"), book.add("a"), book.find("b"), book.find("x")) == (2, 0, 1, None)
    assert len(book) == 3
    assert repr(book) == "AnswerBook(3 answers: 'a', 'b', 'c')"


@pytest.mark.parametrize("code", [-1, 2])
def test_book_refuses_codes_it_does_not_hold(code):
    with pytest.raises(InputError, match="expected a code from 0 to 1"):
        AnswerBook(["a", "b"])[code]


def test_rewritten_book_keeps_codes():
    book = AnswerBook(["a", "b"])
    book.rewrite(["a2", "b2"])
    assert (book[0], book.find("b2"), book.find("b")) == ("a2", 1, None)


@pytest.mark.parametrize("texts", [["x", "x"], ["x"]])
def test_rewriting_needs_a_different_text_for_each_answer(texts):
    book = AnswerBook(["a", "b"])
    with pytest.raises(InputError, match="for 2 answers"):
        book.rewrite(texts)
    assert list(book) == ["a", "b"]


def test_missing_values_are_told_from_answers():
    assert all(map(is_missing, (None, "", " ", "NaN", float("nan"), np.float64("nan"))))
    assert is_missing(torch.tensor(float("nan")))
    assert not any(map(is_missing, (0, 0.0, False, "0", "none", [], {}, torch.zeros(2))))


def test_scalars_become_plain():
    assert type(plain(np.int64(3))) is int
    assert type(plain(torch.tensor(0.5))) is float
    assert plain("text") == "text"


def test_packed_state_holds_every_number():
    state = TaskState(torch.tensor([1.0, 2.0]).double(), 0.1, 7, torch.tensor([3.0]).double())
    again = TaskState.unpack(state.pack(), 2)
    assert (again.noise, again.labels) == (0.1, 7)
    assert torch.equal(again.variance_scale, state.variance_scale)
    assert torch.equal(again.parameters, state.parameters)
