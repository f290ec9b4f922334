"""Topics merged from newsgroups, and the table of class names on them."""

import torch

from research.results import topic_pairs
from research.results.guess_sets import GuessSet
from research.results.guesses import COUNTS, DOCS, NONE


def test_topics_keep_their_items_and_leave_out_the_others():
    groups = ["alt.atheism", "comp.graphics", "misc.forsale", "sci.space", "talk.politics.guns"]
    of = GuessSet(torch.arange(10).float()[:, None], torch.arange(10) % 5, 5, {})
    found = topic_pairs.merge_topics(of, groups, ("religion", "politics"))
    assert found.x[:, 0].tolist() == [0, 4, 5, 9]
    assert found.y.tolist() == [0, 1, 0, 1]
    assert found.classes == 2
    every = topic_pairs.merge_topics(of, groups, tuple(topic_pairs.TOPICS))
    assert every.y.tolist() == [4, 0, 3, 5] * 2  # no topic has misc.forsale


def test_table_pairs_seeds():
    def make_row(guesser, seed, accuracy):
        accuracies = {f"at {n}": str(accuracy) for n in COUNTS}
        return {"set": "six topics", "guesser": guesser, "seed": str(seed), **accuracies}

    rows = [make_row(NONE, s, 0.5 + 0.1 * s) for s in (0, 1)]
    rows += [make_row(topic_pairs.NAMES, s, 0.7) for s in (0, 1)]
    rows += [make_row(topic_pairs.SWAPPED, s, 0.5 + 0.1 * s) for s in (0, 1)]
    lines = topic_pairs.format_table(rows).splitlines()
    assert lines[2].startswith("| six topics | none: accuracy in % | 2 | 55.0 |")
    assert lines[3].startswith("| six topics | class names | 2 | +15.0 ± 5.0 |")
    assert lines[4].startswith("| six topics | swapped | 2 | +0.0 ± 0.0 |")


def test_table_of_the_docs_is_that_of_the_results():
    table = topic_pairs.format_table(topic_pairs.read_rows())
    assert table in DOCS.read_text(encoding="utf-8")
