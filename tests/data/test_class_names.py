"""Guesses by the similarity to class names."""

import torch

from labelahead.data.class_names import SHARPNESS, ClassNameGuesser


def test_guess_is_a_softmax_of_standardised_similarities():
    rng = torch.Generator().manual_seed(0)
    pool, names = torch.randn(40, 5, generator=rng), torch.randn(3, 5, generator=rng)
    guesser = ClassNameGuesser.fit(names, pool)
    cosines = torch.stack(
        [torch.stack([torch.cosine_similarity(x, e, 0) for e in names]) for x in pool]
    ).double()
    z = (cosines - cosines.mean(0)) / cosines.std(0, correction=0)
    expected = torch.exp(SHARPNESS * z) / torch.exp(SHARPNESS * z).sum(1, keepdim=True)
    assert torch.allclose(guesser.guess(pool), expected, atol=1e-6)


def test_item_that_equals_a_name_gets_its_class():
    names = torch.eye(4)
    guesser = ClassNameGuesser.fit(names, torch.eye(4))
    assert guesser.guess(names).argmax(1).tolist() == [0, 1, 2, 3]


def test_pool_of_equal_items_gives_equal_guesses():
    guesser = ClassNameGuesser.fit(torch.eye(3), torch.ones(5, 3))
    assert torch.allclose(guesser.guess(torch.ones(2, 3)), torch.full((2, 3), 1 / 3).double())


def test_guesser_is_restored_from_its_tensors():
    rng = torch.Generator().manual_seed(0)
    pool = torch.randn(10, 5, generator=rng)
    guesser = ClassNameGuesser.fit(torch.randn(2, 5, generator=rng), pool)
    again = ClassNameGuesser.from_tensors(guesser.to_tensors())
    assert torch.equal(again.guess(pool), guesser.guess(pool))
    assert ClassNameGuesser.from_tensors({}) is None
