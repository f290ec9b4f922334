"""The plan of a comparison: contenders, its file, and what may change."""

from dataclasses import asdict, replace

import pytest

from labelahead.errors import InputError
from labelahead.learner.config import Budget, Network
from labelahead.models.training import Training
from labelahead.simulation.comparison import compare
from labelahead.simulation.comparison.plan import (
    Comparison,
    Contender,
    cross_with_embeddings,
    cross_with_guesses,
    format_comparison,
    list_default_strategies,
    list_differences,
    merge_comparisons,
    parse_contender,
    parse_contenders,
    read_comparison,
)
from labelahead.strategies import find_strategy
from tests.support.comparisons import made_up, random_curves, tiny, write_strategy_file
from tests.support.simulations import SMALL


def test_parse_contenders_accepts_modes_and_refuses_invalid_names():
    assert parse_contenders("random, flip:greedy,margin") == (
        Contender("random", "top"),
        Contender("flip", "greedy"),
        Contender("margin", "top"),
    )
    assert parse_contenders("flip,flip:sequential") == (
        Contender("flip", "sequential"),
    )  # the same twice
    assert [a.name for a in parse_contenders("flip,flip:greedy")] == ["flip", "flip:greedy"]
    assert [a.folder for a in parse_contenders("flip,flip:top,random")] == [
        "flip-sequential",
        "flip-top",
        "random",
    ]
    for text, message in {
        "flop": "did you mean 'flip'",
        "margin:greedy": "works as top",
        "flip:": "colon",
        " , ": "names with commas",
    }.items():
        with pytest.raises(InputError, match=message):
            parse_contenders(text)


def test_embeddings_are_compared_by_strategy_and_survive_the_file(tmp_path):
    (tmp_path / "a.npy").touch()
    strategies = parse_contenders("random,flip")
    contenders = cross_with_embeddings(strategies, ["minilm", str(tmp_path / "a.npy")])
    assert [a.name for a in contenders] == [
        "random on minilm",
        "random on a.npy",
        "flip on minilm",
        "flip on a.npy",
    ]
    assert len({a.folder for a in contenders}) == 4
    comparison = Comparison(tiny(tmp_path), contenders, (0, 1))
    assert comparison.reference == contenders[0]
    assert comparison.campaign_for(contenders[3], 1).data.embedding == str(tmp_path / "a.npy")
    (tmp_path / "compare.toml").write_text(format_comparison(comparison))
    assert read_comparison(tmp_path) == comparison
    # one more strategy or embedding: every strategy runs on every embedding
    more = replace(comparison, contenders=cross_with_embeddings(strategies[:1], ["words"]))
    merged = merge_comparisons(comparison, more, tmp_path)
    assert len(merged.contenders) == 2 * 3
    with pytest.raises(InputError, match="compares several embeddings"):
        merge_comparisons(comparison, replace(comparison, contenders=strategies), tmp_path)


def test_parse_contenders_accepts_strategy_files(tmp_path, monkeypatch):
    path = write_strategy_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    own = parse_contenders("own.py:mine, own.py:mine:greedy ,own.py:greedy,own:mine:top,random")
    assert own[:2] == (Contender(f"{path}:mine", "sequential"), Contender(f"{path}:mine", "greedy"))
    names = ["own.py:mine", "own.py:mine:greedy", "own.py:greedy", "own:mine:top", "random"]
    assert [a.name for a in own] == names
    assert [a.folder for a in own][:2] == ["own.py-mine-sequential", "own.py-mine-greedy"]
    assert parse_contenders([a.spec for a in own]) == own
    for text, message in {
        "own.py:mine:best": "mode is 'best'",
        "own.py:mine:": "colon",
        "own.py:none": "does not exist",
        "nowhere.py:mine": "no file",
        "own.py:": "incomplete",
    }.items():
        with pytest.raises(InputError, match=message):
            parse_contenders(text)
    with pytest.raises(InputError, match=r"your own as file.py:name, where the processes"):
        parse_contenders([find_strategy("flip")])
    other = write_strategy_file(tmp_path / "other")
    with pytest.raises(InputError, match=r"two strategies are called own.py:mine"):
        Comparison(tiny(tmp_path), parse_contenders(f"own.py:mine,{other}:mine"), (0,))


def test_format_comparison_round_trip(tmp_path):
    comparison = Comparison(tiny(tmp_path), parse_contenders("flip:greedy,margin"), (3, 4))
    (tmp_path / "compare.toml").write_text(format_comparison(comparison))
    assert read_comparison(tmp_path) == comparison
    assert comparison.reference == parse_contender("flip:greedy")  # without random: the first
    assert comparison.campaign_for(parse_contender("margin"), 4).asking.strategy == "margin"
    assert comparison.campaign_for(parse_contender("margin"), 4).seed == 4
    more = merge_comparisons(
        comparison,
        replace(comparison, contenders=parse_contenders("random,margin"), seeds=(4, 5)),
        tmp_path,
    )
    assert (more.contenders, more.seeds) == (
        parse_contenders("flip:greedy,margin,random"),
        (3, 4, 5),
    )
    assert more.reference == parse_contender("random")
    for budget, rounds in {(5, 11, 3): 3, (5, 12, 3): 4, (5, 5, 3): 1}.items():
        campaign = tiny(tmp_path, budget=Budget(*budget))
        assert Comparison(campaign, parse_contenders("random"), (0,)).rounds == rounds


def test_comparison_stores_absolute_paths(tmp_path, monkeypatch):
    campaign = tiny(tmp_path)
    monkeypatch.chdir(tmp_path)
    relative = replace(
        campaign,
        data=replace(campaign.data, name="blobs.npz", root="."),
        model=Network("n.py:make"),
    )
    comparison = Comparison(relative, parse_contenders("random"), (0,))
    assert comparison.campaign.data.name == str(tmp_path / "blobs.npz")
    assert comparison.campaign.data.root == str(tmp_path)
    assert comparison.campaign.model.name == f"{tmp_path / 'n.py'}:make"
    assert replace(comparison, seeds=(1,)).campaign == comparison.campaign


@pytest.mark.parametrize("text", ["", "seeds = [1]", 'strategies = ["random"]\nseeds = ["x"]', "["])
def test_damaged_comparison_plan_raises(tmp_path, text):
    (tmp_path / "compare.toml").write_text(text)
    with pytest.raises(InputError, match=r"damaged|no valid TOML"):
        read_comparison(tmp_path)


def test_folder_without_newer_keys_has_same_configuration(tmp_path):
    """A plan of 0.2 leaves `training.epochs` out if it is not set."""
    before = replace(tiny(tmp_path), training=asdict(Training()))
    del before.training["epochs"]
    now = replace(before, training=asdict(Training()))
    assert list_differences(before, now) == []
    changed = list_differences(before, replace(now, training=asdict(Training(epochs=3))))
    assert changed == ["training.epochs was not set and is 3 now"]


def test_other_configurations_and_folders_raise(tmp_path):
    folder = made_up(tmp_path / "a", random_curves(1, {"random": 0, "margin": 0.1}))
    before = read_comparison(folder)
    other = replace(before.campaign, budget=replace(before.campaign.budget, labels=70))
    with pytest.raises(InputError, match=r"budget\.labels was 40 and is 70 now"):
        compare(replace(before, campaign=other), folder)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match=r"holds thesis.tex and no comparison"):
        compare(before, tmp_path / "b")
    with pytest.raises(InputError, match="is a file"):
        compare(before, tmp_path / "b" / "thesis.tex")
    with pytest.raises(InputError, match="workers is 0"):
        compare(before, tmp_path / "c", workers=0)
    with pytest.raises(InputError, match="single campaign"):
        read_comparison(folder / "random" / "seed-0")


def test_comparison_stores_absent_classes(tmp_path):
    absent, plain = (
        Comparison(replace(SMALL, budget=Budget(absent=n)), parse_contenders("random,flip"), (0, 1))
        for n in (1, 0)
    )
    (tmp_path / "compare.toml").write_text(format_comparison(absent))
    assert read_comparison(tmp_path) == absent
    assert absent.campaign_for(absent.contenders[1], 1).budget.absent == 1
    with pytest.raises(InputError, match=r"budget\.absent was 1 and is 0 now"):
        merge_comparisons(absent, plain, tmp_path)
    # A comparison from before this key can be resumed.
    (tmp_path / "compare.toml").write_text(format_comparison(plain).replace("absent = 0\n", ""))
    assert merge_comparisons(read_comparison(tmp_path), plain, tmp_path) == plain


def test_starts_are_compared_by_strategy_and_survive_the_file(tmp_path):
    said = str(tmp_path / "said.csv")
    strategies = parse_contenders("random,flip")
    contenders = cross_with_guesses(strategies, ["none", "class-names", said, "llm"])
    assert [a.name for a in contenders[:4]] == [
        "random without guesses",
        "random from class names",
        "random from said",
        "random from llm",
    ]
    assert len({a.folder for a in contenders}) == 8
    source = replace(tiny(tmp_path).data, guesses=("llm",), without=("x",))
    campaign = replace(tiny(tmp_path), data=source)
    comparison = Comparison(campaign, contenders, (0, 1))
    data = [comparison.campaign_for(contender, 1).data for contender in contenders[:4]]
    assert [d.guesses for d in data] == [(), (), (said,), ("llm",)]
    assert [d.prior for d in data] == ["none", "class-names", "none", "none"]
    assert [d.without for d in data] == [("x", "llm")] * 3 + [("x",)]
    (tmp_path / "compare.toml").write_text(format_comparison(comparison))
    again = read_comparison(tmp_path)
    assert again == comparison
    more = replace(comparison, contenders=cross_with_guesses(strategies[:1], ["old"]))
    merged = merge_comparisons(comparison, more, tmp_path)
    assert merged.guesses == ("none", "class-names", said, "llm", "old")
    assert len(merged.contenders) == 10
    plain = replace(comparison, contenders=strategies)
    with pytest.raises(InputError, match="compares several starts"):
        merge_comparisons(comparison, plain, tmp_path)


def test_comparison_names_the_code_of_its_starts(tmp_path):
    code = str(tmp_path / "heuristic.py") + ":guess"
    contenders = cross_with_guesses(parse_contenders("random"), ["none", code])
    comparison = Comparison(tiny(tmp_path), contenders, (0,))
    assert code in comparison.code
    (tmp_path / "compare.toml").write_text(format_comparison(comparison))
    with pytest.raises(InputError, match="--trust-code"):
        read_comparison(tmp_path)
    assert read_comparison(tmp_path, trust_code=True).guesses == ("none", code)


def test_default_strategies_of_a_task_are_random_its_own_and_its_baselines():
    assert (
        list_default_strategies("classes")
        == list_default_strategies("")
        == "random,margin,mlmoc,flip"
    )
    assert list_default_strategies("number") == "random,variance,qbc,gsx,gsy,igs"
    assert list_default_strategies("multilabel") == "random,resolve,binary-uncertainty,mmc,cvirs"
