"""Labelling configurations: what they show and offer, and which are refused."""

import math
import re

import pytest

from labelahead.errors import InputError
from labelahead.integrations.label_studio.interface import read_interface
from labelahead.learner.config import parse_campaign
from tests.support.label_studio import CONFIG as PROJECT_CONFIG
from tests.support.label_studio import make_choice

CHOICES = '<Choices name="kind" toName="img"><Choice value="Cat"/><Choice value="d" alias="Dog"/></Choices>'
CONFIG = f'<View><Image name="img" value="$photo"/><Text name="t" value="$note"/>{CHOICES}</View>'


def test_read_interface_finds_choices_and_fields():
    found = read_interface(CONFIG)
    assert (found.name, found.shown, found.choices) == ("kind", "img", ("Cat", "Dog"))
    assert (found.pictures, found.texts) == (("photo",), ("note",))


def test_label_and_result_are_inverse():
    found = read_interface(CONFIG)
    result = found.result("cat", 0.75)
    assert found.label(result) == "Cat"
    assert result[0]["score"] == 0.75
    assert found.result("bird", 0.75) == []


def test_read_interface_finds_a_sound():
    found = read_interface(f'<View><Audio name="img" value="$clip"/>{CHOICES}</View>')
    assert (found.pictures, found.texts, found.sounds) == ((), (), ("clip",))


@pytest.mark.parametrize(
    "value", [{"choices": []}, {"choices": ["Cat", "Dog"]}, {"choices": [3]}, None]
)
def test_label_of_no_or_several_choices_is_none(value):
    assert read_interface(CONFIG).label([{"from_name": "kind", "value": value}]) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("<View>", "not valid XML"),
        (CONFIG.replace("<Text", "<Audio"), "<Audio> beside other fields"),
        (CONFIG.replace("<Text", "<Video"), "<Video>"),
        (CONFIG.replace(CHOICES, CHOICES * 2), "has 2 <Choices>"),
        (CONFIG.replace("<Choices ", '<Choices choice="some" '), 'has choice="some"'),
        (CONFIG.replace("<Choices ", '<Choices perRegion="true" '), "to each region"),
        (CONFIG.replace('<Choice value="Cat"/>', ""), "has 1 <Choice>"),
        (CONFIG.replace("Cat", "dog"), "but for capital letters"),
        (CONFIG.replace("$photo", "photo"), "expected one field"),
    ],
)
def test_read_interface_refuses_other_configurations(config, message):
    with pytest.raises(InputError, match=message):
        read_interface(config)


NUMBER = '<Number name="kg" toName="img" min="0" max="9.5"/>'
RATING = '<Rating name="stars" toName="img"/>'
MULTIPLE = CHOICES.replace("<Choices ", '<Choices choice="multiple" ')


@pytest.mark.parametrize(
    ("control", "task", "choices", "limits"),
    [
        (MULTIPLE, "multilabel", ("Cat", "Dog"), None),
        (MULTIPLE.replace('<Choice value="Cat"/>', ""), "multilabel", ("Dog",), None),
        (RATING, "rating", ("1", "2", "3", "4", "5"), None),
        (RATING.replace("/>", ' maxRating="3"/>'), "rating", ("1", "2", "3"), None),
        (NUMBER, "number", (), (0, 9.5)),
        (NUMBER.replace('max="9.5"', ""), "number", (), (0, math.inf)),
        ('<Number name="kg" toName="img"/>', "number", (), None),
        (NUMBER + '<TextArea name="note" toName="img"/>', "number", (), (0, 9.5)),
        (CHOICES + NUMBER + RATING, "classes", ("Cat", "Dog"), None),
    ],
)
def test_read_interface_recognises_the_task(control, task, choices, limits):
    found = read_interface(CONFIG.replace(CHOICES, control))
    assert (found.task, found.choices, found.limits) == (task, choices, limits)
    assert (found.pictures, found.texts, found.shown) == (("photo",), ("note",), "img")
    settings = found.data_settings
    assert parse_campaign({"data": {"name": "x"} | settings}).data.limits == limits


@pytest.mark.parametrize(
    ("control", "message"),
    [
        (NUMBER + RATING, '<Number name="kg"> and <Rating name="stars">, and it is unclear'),
        (NUMBER * 2, '<Number name="kg"> and <Number name="kg">'),
        (MULTIPLE + NUMBER, '<Choices name="kind"> and <Number name="kg">'),
        (MULTIPLE + CHOICES, "has 2 <Choices>"),
        ("", "has 0 <Choices>"),
        (NUMBER.replace("9.5", "0"), 'has min="0", max="0"; expected numbers, min below max'),
        (NUMBER.replace("9.5", "many"), 'max="many"; expected numbers'),
        (RATING.replace("/>", ' maxRating="1"/>'), "maxRating '1'; expected a whole number"),
        (RATING.replace("/>", ' maxRating="ten"/>'), "maxRating 'ten'"),
        (RATING.replace("/>", ' perRegion="true"/>'), "to each region"),
        (MULTIPLE.replace("Cat", "a;b"), 'choice of <Choices name="kind"> cannot be a class'),
        (MULTIPLE.replace("Cat", "dog"), "but for capital letters"),
    ],
)
def test_read_interface_refuses_mixtures_and_odd_ranges(control, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read_interface(CONFIG.replace(CHOICES, control))


def test_read_interface_reads_choices_images_and_texts():
    config = PROJECT_CONFIG.replace(
        "<View>", '<View><Header value="What?"/><Image name="i" value="$picture"/>'
    )
    config = config.replace('<Choice value="food"/>', '<Choice value="food" alias="eat"/>')
    interface = read_interface(config)
    assert (interface.name, interface.choices) == ("topic", ("sport", "eat", "space"))
    assert (interface.pictures, interface.texts) == (("picture",), ("text",))
    assert interface.label(make_choice("eat")) == "eat"
    assert interface.label(make_choice("eat") + make_choice("sport")) is None
    assert interface.label([]) is None
