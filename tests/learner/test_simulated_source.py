"""Settings of simulated sources: text, checks, and the campaign that holds them."""

import pytest

from labelahead.errors import InputError
from labelahead.learner.config import Campaign, parse_campaign, to_toml
from labelahead.learner.simulated_source import (
    SimulatedSource,
    parse_source_text,
    require_two_sources,
)

TWO = ("anna:price=0.1,error=0.05", "llm:price=0.001,error=0.25,errors=random")


def test_text_becomes_a_source_and_survives_toml(tmp_path):
    campaign = parse_campaign({"sources": list(TWO), "budget": {"money": 12}})
    expected = (
        SimulatedSource("anna", 0.1, 0.05),
        SimulatedSource("llm", 0.001, 0.25, errors="random"),
    )
    assert campaign.sources == expected
    assert campaign.asking.strategy == "pairs"
    from tomllib import loads

    assert parse_campaign(loads(to_toml(campaign))) == campaign
    tables = [{"name": "anna", "price": 0.1, "error": 0.05}, {"name": "m", "labels": "said"}]
    given = parse_campaign({"sources": tables, "asking": {"strategy": "flip"}})
    assert (given.sources[1].labels, given.asking.strategy) == ("said", "flip")


def test_configuration_without_sources_is_as_before():
    assert parse_campaign({}) == Campaign()
    assert Campaign().asking.strategy == "flip"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("anna:cost=1", "expected NAME:KEY=VALUE"),
        ("anna:price", "expected NAME:KEY=VALUE"),
        ("anna:price=cheap", "the price of anna is 'cheap'"),
        ("anna:price=1,price=2", "price twice"),
        (":price=1", "the name of a source is ''"),
        ("anna:price=-1", "the price of anna is -1"),
        ("anna:price=nan", "the price of anna is nan"),
        ("anna:price=1,error=1", "the error of anna is 1"),
        ("anna:price=1,error=nan", "the error of anna is nan"),
        ("anna:price=1,error=confusion.csv,labels=said", "expected one of them"),
        ("anna:price=1,errors=some", "errors is 'some'"),
    ],
)
def test_source_of_another_form_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_campaign({"sources": [text, TWO[1]]})


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (TWO[:1], "the sources are anna; expected two"),
        ((*TWO, "ben:price=2"), "the sources are anna, llm, ben; expected two"),
        ((TWO[0], TWO[0]), "expected two with different names"),
        (("a:price=1", "b:price=1"), "both cost 1.0 per label"),
    ],
)
def test_two_sources_with_different_prices_are_needed(texts, message):
    with pytest.raises(InputError, match=message):
        parse_campaign({"sources": list(texts)})


def test_unknown_key_of_a_table_is_refused():
    with pytest.raises(InputError, match="unknown key 'prise'"):
        parse_campaign({"sources": [{"name": "a", "prise": 1}, TWO[1]]})


def test_dearer_source_is_the_person():
    given = tuple(SimulatedSource(**parse_source_text(text)) for text in reversed(TWO))
    assert [source.name for source in require_two_sources(given)] == ["anna", "llm"]


def test_strategies_of_sources_need_sources():
    with pytest.raises(InputError, match="pairs"):
        parse_campaign({"asking": {"strategy": "pairs"}})
