"""Queries of item and source on real data: from files, against the learner, and bad input."""

import csv

import pytest

import labelahead as la
from labelahead.acquisition import LabelSource
from labelahead.errors import InputError
from labelahead.learner.config import parse_campaign
from labelahead.learner.labelling_query import format_query_items, query_items
from labelahead.learner.source_query import SourceGoal
from tests.learner.test_routing import CLASSES
from tests.simulation.test_source_campaign import write_table

PRICES = {"anna": 0.10, "llm": 0.001}


def write_files(folder, *, anna=range(15), llm=range(10, 60), items=80):
    """A table without labels, and a label file of two annotators."""
    with write_table(folder, items).open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [f"{r['id']},{r['a']},{r['b']},{r['c']}" for r in rows]
    (folder / "items.csv").write_text("\n".join(["id,a,b,c", *lines]) + "\n")
    given = [f"{rows[i]['id']},{rows[i]['label']},anna" for i in anna]
    given += [f"{rows[i]['id']},{rows[i]['said']},llm" for i in llm]
    (folder / "labels.csv").write_text("\n".join(["id,label,annotator", *given]) + "\n")
    return rows


def query(folder, n=10, labels="labels.csv", prices=None, **goal):
    campaign = parse_campaign(
        {"data": {"name": str(folder / "items.csv"), "classes": list(CLASSES)}, "threads": 1}
    )
    return query_items(
        campaign,
        n,
        labels=None if labels is None else folder / labels,
        sources=SourceGoal(prices or PRICES, **goal),
    )


def test_query_agrees_with_the_learner_that_was_taught_the_same(tmp_path):
    rows = write_files(tmp_path)
    items, ready = query(tmp_path)
    numbers = {name: i for i, name in enumerate(CLASSES)}
    learner = la.Learner(la.exact(ready.rows, 3), ready.rows)
    learner.teach(range(15), [numbers[r["label"]] for r in rows[:15]], source="anna")
    learner.teach(range(10, 60), [numbers[r["said"]] for r in rows[10:60]], source="llm")
    found = learner.source_accuracy()
    sources = [LabelSource(n, p, 1 - found[n].accuracy) for n, p in PRICES.items()]
    expected = learner.query_sources(sources, 10)
    assert [(i.position, i.source) for i in items] == [(q.position, q.source) for q in expected]
    assert [i.score for i in items] == pytest.approx([q.gain for q in expected], rel=1e-6)
    p = learner.predict([items[0].position])[0]
    assert items[0].probability == pytest.approx(float(p.max()), abs=1e-5)
    assert any("llm: an estimated" in note for note in ready.notes)


def test_no_source_is_asked_twice_about_an_item_and_labelled_ones_are_candidates(tmp_path):
    write_files(tmp_path)
    items, _ = query(tmp_path, 60, prices={"anna": 0.01, "llm": 0.01}, errors={"anna": 0.0})
    pairs = [(i.position, i.source) for i in items]
    assert len(set(pairs)) == len(pairs)
    assert not any(p < 15 for p, _ in pairs)  # settled by a careful person
    assert not any(10 <= p < 60 for p, source in pairs if source == "llm")
    assert any(15 <= p < 60 for p, source in pairs if source == "anna")


def test_everything_may_be_labelled_already(tmp_path):
    write_files(tmp_path, anna=range(5), llm=range(80))
    items, _ = query(tmp_path, 5, errors={"anna": 0.0})
    assert len(items) == 5
    assert {i.source for i in items} == {"anna"}
    assert all(i.position >= 5 for i in items)


def test_budget_and_value_bound_the_labels(tmp_path):
    write_files(tmp_path)
    items, ready = query(tmp_path, 40, prices={"anna": 0.10, "llm": 0.02}, budget=0.5)
    assert sum(i.price for i in items) <= 0.5 + 1e-9
    assert any("fits into the budget" in note for note in ready.notes)
    none, _ = query(tmp_path, 5, value=0.0)
    assert none == []
    some, _ = query(tmp_path, 5, value=1e6)
    assert len(some) == 5


def test_query_without_labels_needs_the_error_rate_of_the_cheap_source(tmp_path):
    write_files(tmp_path)
    with pytest.raises(InputError, match=r"llm has no label yet .* --error-rate llm=0\.25"):
        query(tmp_path, labels=None)
    items, ready = query(tmp_path, 3, labels=None, errors={"llm": 0.3})
    assert [i.prediction for i in items] == [None] * 3
    assert any("anna counts as careful" in note for note in ready.notes)


def test_plain_labels_count_as_careful(tmp_path):
    """Labels without annotators: their items are not queried again, whoever is asked."""
    rows = write_files(tmp_path)
    lines = [f"{r['id']},{r['label']}" for r in rows[:20]]
    (tmp_path / "plain.csv").write_text("\n".join(["id,label", *lines]) + "\n")
    items, _ = query(tmp_path, 30, labels="plain.csv", errors={"llm": 0.3})
    assert min(i.position for i in items) >= 20


def test_table_names_source_and_price(tmp_path):
    write_files(tmp_path)
    items, _ = query(tmp_path, 4)
    rows = list(csv.DictReader(format_query_items(items, "csv").splitlines()))
    assert [r["source"] for r in rows] == [i.source for i in items]
    assert [float(r["price"]) for r in rows] == [PRICES[i.source] for i in items]
    assert rows[0]["a"]


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({"prices": {}}, "there are no prices"),
        ({"prices": PRICES, "errors": {"ben": 0.1}}, "'ben' has an error rate, but no price"),
        ({"prices": PRICES, "errors": {"llm": 1.0}}, "the error rate of llm is 1.0"),
        ({"prices": PRICES, "budget": -1.0}, "the budget is -1.0"),
        ({"prices": PRICES, "value": float("nan")}, "the value is nan"),
    ],
)
def test_goal_of_another_form_is_refused(goal, message):
    with pytest.raises(InputError, match=message):
        SourceGoal(**goal)


def test_networks_and_sources_that_are_guessers_are_refused(tmp_path):
    write_files(tmp_path)
    data = {"name": str(tmp_path / "items.csv"), "classes": list(CLASSES)}
    goal = SourceGoal(PRICES, {"llm": 0.3})
    with pytest.raises(InputError, match="need the model exact, not mlp"):
        query_items(parse_campaign({"data": data, "model": {"name": "mlp"}}), 3, sources=goal)
    (tmp_path / "llm.csv").write_text("id,guess\nn1,red\n")
    guessed = parse_campaign({"data": {**data, "guesses": [str(tmp_path / "llm.csv")]}})
    with pytest.raises(InputError, match="llm is both a guesser and a source"):
        query_items(guessed, 3, sources=goal)
