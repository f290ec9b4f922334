"""Agreement against scikit-learn, a loop over pairs of labels, and values computed by hand."""

import random

import pytest
from sklearn.metrics import cohen_kappa_score

from labelahead.server.agreement import cohen_kappa, krippendorff_alpha, summarize_agreement
from labelahead.server.label_state import Event, build_label_state


@pytest.mark.parametrize("seed", range(5))
def test_cohen_kappa_equals_scikit_learn(seed):
    rng = random.Random(seed)
    pairs = [(rng.randrange(4), rng.randrange(4)) for _ in range(20)]
    pairs += [(c, c) for c in range(4)]
    first, second = zip(*pairs, strict=True)
    assert cohen_kappa(pairs) == pytest.approx(cohen_kappa_score(first, second))


def test_cohen_kappa_of_one_class_is_undefined():
    assert cohen_kappa([]) is None
    assert cohen_kappa([(1, 1), (1, 1)]) is None
    assert cohen_kappa([(0, 1), (1, 0)]) == -1.0


def test_krippendorff_alpha_equals_loop_over_pairs_of_labels():
    rng = random.Random(0)
    items = [[rng.randrange(3) for _ in range(rng.randrange(5))] for _ in range(40)]
    paired = [labels for labels in items if len(labels) > 1]
    every = [c for labels in paired for c in labels]
    n = len(every)
    observed = sum(
        (labels[i] != labels[j]) / (len(labels) - 1)
        for labels in paired
        for i in range(len(labels))
        for j in range(len(labels))
        if i != j
    )
    expected = sum(every[i] != every[j] for i in range(n) for j in range(n) if i != j)
    assert krippendorff_alpha(items) == pytest.approx(1 - (observed / n) / (expected / n / (n - 1)))


def test_krippendorff_alpha_of_published_example():
    """Nominal data of Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), part C."""
    table = """
        1 2 3 3 2 1 4 1 2 * * *
        1 2 3 3 2 2 4 1 2 5 * 3
        * 3 3 3 2 3 4 2 2 5 1 *
        1 2 3 3 2 4 4 1 2 5 1 *
    """
    rows = [line.split() for line in table.strip().splitlines()]
    items = [[int(v) for v in unit if v != "*"] for unit in zip(*rows, strict=True)]
    assert krippendorff_alpha(items) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha([[1], []]) is None


def test_summary_compares_the_newest_labels_of_each_annotator():
    events = [
        Event(i + 1, "2026-01-01T00:00:00.000+00:00", "", "class", label=i, text=c)
        for i, c in enumerate("ab")
    ]
    given = [
        ("anna", 0, 0),
        ("ben", 0, 1),
        ("anna", 1, 1),
        ("ben", 1, 1),
        ("ben", 0, 0),
        ("cem", 1, 0),
    ]
    for who, position, label in given:
        at = "2026-01-01T00:00:00.000+00:00"
        events.append(Event(len(events) + 1, at, who, "label", position=position, label=label))
    summary = summarize_agreement(build_label_state(events))
    assert [(p.who, p.other, p.items, p.agreeing) for p in summary.pairs] == [
        ("anna", "ben", 2, 2),
        ("anna", "cem", 1, 0),
        ("ben", "cem", 1, 0),
    ]
    assert summary.pairs[0].kappa == 1.0
    assert summary.alpha == pytest.approx(krippendorff_alpha([[0, 0], [1, 1, 0]]))


def test_annotations_leave_out_settled_items_and_single_annotators():
    at = "2026-01-01T00:00:00.000+00:00"
    events = [Event(i + 1, at, "", "class", label=i, text=c) for i, c in enumerate("ab")]

    def add(who, kind, position, label=None):
        events.append(Event(len(events) + 1, at, who, kind, position=position, label=label))

    add("anna", "label", 0, 0)
    add("anna", "label", 1, 1)
    assert build_label_state(events).list_annotations() == ()
    add("ben", "label", 1, 0)
    add("ben", "label", 2, 1)
    add("ben", "skip", 3)
    rows = [(0, 0, "anna"), (1, 1, "anna"), (1, 0, "ben"), (2, 1, "ben")]
    assert sorted(build_label_state(events).list_annotations()) == sorted(rows)
    add("cem", "settle", 1, 0)
    rows = [(0, 0, "anna"), (2, 1, "ben")]
    assert sorted(build_label_state(events).list_annotations()) == rows
