import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelahead.errors import InputError, MissingExtra
from labelahead.learner.config import (
    Campaign,
    load_campaign,
    override_training,
    parse_campaign,
    read_toml,
    to_toml,
)
from labelahead.models.training import Training


def test_toml_round_trip(tmp_path):
    one = parse_campaign(
        {
            "seed": 3,
            "budget": {"labels": 50},
            "training": {"rate": 0.1},
            "track": ["tensorboard"],
            "asking": {"mode": "greedy"},
        }
    )
    path = tmp_path / "c.toml"
    path.write_text(to_toml(one))
    assert parse_campaign(read_toml(path)) == one
    assert one.budget.labels == 50
    assert one.data.name == "digits"


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"sed": 1}, "did you mean 'seed'"),
        ({"budget": {"label": 1}}, r"in \[budget\]; did you mean 'labels'"),
        ({"training": {"rte": 1}}, "did you mean 'rate'"),
        ({"asking": {"strategy": "flop"}}, "did you mean 'flip'"),
        (
            {"asking": {"strategy": 5}},
            "strategy is 5; expected a name, or your own as file.py:name",
        ),
        ({"asking": {"mode": "best"}}, "mode"),
        ({"asking": {"strategy": "random", "mode": "greedy"}}, "works as top"),
        ({"asking": {"kernel": "rbf"}}, "kernel"),
        ({"asking": {"candidates": 0}}, "candidates is 0"),
        ({"asking": {"noise": -1.0}}, "noise"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"seed": -1}, "seed is -1"),
        ({"budget": {"initial": -1}}, "initial is -1"),
        ({"budget": {"initial": 50, "labels": 20}}, "labels is 20"),
        ({"data": "digits"}, "expected a table"),
        ({"data": {"test_fraction": 1.5}}, "test_fraction"),
        ({"data": {"limit": 0}}, "limit is 0"),
        ({"model": {"width": -1}}, "width"),
        ({"threads": 0}, "threads"),
        ({"track": ["wandb"]}, "track"),
    ],
)
def test_invalid_values_raise(tables, message):
    with pytest.raises(InputError, match=message):
        parse_campaign(tables)


def test_options_override_changes_and_file(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("seed = 1\n[budget]\nlabels = 40\ninitial = 10\n")
    changes = ["budget.labels=60", "training.loss=cross-entropy", "asking.noise = 0.01"]
    found = load_campaign(path, changes, {"budget.initial": 5, "seed": None})
    assert (found.seed, found.budget.labels, found.budget.initial) == (1, 60, 5)
    assert found.training == {"loss": "cross-entropy"}
    assert found.asking.noise == 0.01


@pytest.mark.parametrize("change", ["x", "=1", "seed.x=1", "budget=3", "training.loss=hinge2"])
def test_invalid_changes_raise(change):
    with pytest.raises(InputError):
        override_training(load_campaign(None, [change], {}).training, Training())


@pytest.mark.parametrize("key", ["candidates", "evaluation", "noise", "sketch", "mode"])
def test_none_survives_toml_round_trip(key):
    import tomllib

    one = parse_campaign({"asking": {key: None}, "training": {"clip": None, "stop_accuracy": None}})
    text = to_toml(one)
    assert parse_campaign(tomllib.loads(text)) == one
    assert getattr(one.asking, key) is None
    assert one.training["clip"] is None
    assert parse_campaign({"asking": {"candidates": "none"}}).asking.candidates is None
    with pytest.raises(InputError, match="seed"):
        parse_campaign({"seed": "none"})


def test_single_tracker_may_be_a_string():
    assert parse_campaign({"track": "tensorboard"}).track == ("tensorboard",)


def test_parse_campaign_checks_training_and_model():
    with pytest.raises(InputError, match=r"training: rate is -1"):
        parse_campaign({"training": {"rate": -1}})
    with pytest.raises(InputError, match="cnn"):
        parse_campaign({"model": {"name": "cn"}})
    with pytest.raises(InputError, match="sketch is 1"):
        parse_campaign({"asking": {"sketch": 1}})


def test_invalid_toml_files_raise(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "a.toml").write_text("x = = 1")
    with pytest.raises(InputError, match="no valid TOML"):
        read_toml(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_toml(tmp_path / "b.toml")
    (tmp_path / "c.toml").write_bytes(b"\xef\xbb\xbfseed = 2\r\n")
    assert read_toml(tmp_path / "c.toml") == {"seed": 2}


def test_override_training_starts_from_recipe():
    recipe = Training(rate=0.5, steps=7)
    assert override_training({"rate": 0.1}, recipe) == Training(rate=0.1, steps=7)
    with pytest.raises(InputError, match=r"training\.steps"):
        override_training({"steps": "many"}, recipe)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=8), one, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["seed", "data", "model", "training", "asking", "budget", "threads", "device", "track"]
)
INNER = st.sampled_from(
    ["name", "root", "size", "limit", "labels", "initial", "strategy", "mode", "rate", "width"]
)
TABLES = st.dictionaries(INNER, VALUES, max_size=3)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(KEYS | st.text(max_size=6), VALUES | st.dictionaries(INNER, VALUES, max_size=3))
)
def test_random_invalid_configurations_raise_input_errors(tables):
    try:
        found = parse_campaign(tables)
    except InputError:
        return
    assert isinstance(found, Campaign)


@pytest.mark.parametrize(
    ("module", "act"),
    [("pydantic", lambda: parse_campaign({})), ("tomli_w", lambda: to_toml(Campaign()))],
)
def test_missing_extra_is_named(monkeypatch, module, act):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"{module}.*labelahead\[app\]"):
        act()
