"""Small problems of look-ahead, dense and of low rank."""

import itertools

from labelahead.acquisition.pool_view import view

CANDIDATES = [0, 5, 9, 14, 2, 21]
EVALUATION = [1, 5, 9, 3, 18, 22, 0]
CHANGE = [
    {"squared": s, "baseline": b}
    for s, b in itertools.product((False, True), ("outputs", "linearised"))
]


def make_view(p, labelled=(), candidates=CANDIDATES, evaluation=EVALUATION):
    post = p.prior()
    if len(labelled):
        post = post.condition(labelled, p.targets[list(labelled)])
    return view(post, candidates, evaluation)
