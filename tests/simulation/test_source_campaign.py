"""Campaigns in which labels have prices: budgets, gains against naive sums, real labels, bad input."""

import csv
import random
from dataclasses import replace

import pytest
import torch

from labelahead.acquisition.sources import LabelSource, source_view
from labelahead.errors import InputError
from labelahead.inference.label_fusion import LabelEvidence, fuse_labels
from labelahead.learner.config import parse_campaign
from labelahead.simulation import source_campaign
from labelahead.simulation.run import run
from labelahead.simulation.source_campaign import (
    MoneyRound,
    build_source_campaign,
    find_cost,
    iterate_money_rounds,
    prepare_sources,
    resolve_sources,
    run_with_sources,
)
from tests.learner.test_routing import CENTRES, CLASSES

PERSON = "anna:price=0.1,error=0.05,errors=random"
MODEL = "llm:price=0.001,error=0.3"


def write_table(folder, items=150, accuracy=0.7, gaps=0):
    """Items of three classes, and a column `said` that is empty for the last `gaps` items."""
    rng = random.Random(0)
    path = folder / "t.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "a", "b", "c", "said", "label"])
        for i in range(items):
            y = rng.choice(CLASSES)
            x = [m + rng.gauss(0, 1.3) for m in CENTRES[y]]
            wrong = rng.choice([c for c in CLASSES if c != y])
            said = y if rng.random() < accuracy else wrong
            rows.writerow([f"n{i}", *x, said if i < items - gaps else "", y])
    return path


def configure(path, *sources, strategy="pairs", money=None, **more):
    budget = {"initial": 10, **({} if money is None else {"money": money})}
    return parse_campaign(
        {
            "data": {"name": str(path), "test_fraction": 0.0},
            "sources": list(sources or (PERSON, MODEL)),
            "asking": {"strategy": strategy},
            "budget": budget,
            "threads": 1,
            **more,
        }
    )


def build(path, *sources, **how):
    campaign = resolve_sources(configure(path, *sources, **how))
    return build_source_campaign(prepare_sources(campaign), campaign)


@pytest.mark.parametrize("strategy", ["pairs", "threshold", "majority", "margin"])
def test_money_is_kept_and_adds_up(tmp_path, strategy):
    setting = build(write_table(tmp_path), money=4.0)
    rounds = list(iterate_money_rounds(setting, strategy))
    assert [r.number for r in rounds] == list(range(len(rounds)))
    for r in rounds:
        assert r.cost == pytest.approx(0.1 * r.labels["anna"] + 0.001 * r.labels["llm"])
        assert 0 <= r.accuracy <= 1
    costs = [r.cost for r in rounds]
    assert costs == sorted(set(costs))
    assert 4.0 - 0.3 < costs[-1] <= 4.0 + 1e-9 or strategy == "pairs"


def test_careful_person_labels_everything_in_the_end(tmp_path):
    setting = build(write_table(tmp_path, 60), "p:price=0.1", MODEL, money=100.0)
    last = list(iterate_money_rounds(setting, "random"))[-1]
    assert (last.accuracy, last.labels) == (1.0, {"p": 60, "llm": 0})
    assert last.cost == pytest.approx(6.0)


def test_threshold_asks_people_about_the_least_confident_items(tmp_path):
    """Twin: the labels of the model, replaced one after another in the order of its confidence."""
    setting = build(write_table(tmp_path))
    said, person = setting.model_labels, setting.person_labels[0]
    order = sorted(range(150), key=lambda i: float(said.confidence[i]))
    for r in iterate_money_rounds(setting, "threshold"):
        labels = said.labels.tolist()
        for i in order[: r.labels["anna"]]:
            labels[i] = int(person.labels[i])
        right = sum(a == b for a, b in zip(labels, setting.truth.tolist(), strict=True))
        assert r.accuracy == pytest.approx(right / 150)
        assert r.labels["llm"] == 150


def test_gain_of_a_pair_is_the_sum_over_its_labels_and_the_other_items(tmp_path):
    """Twin: P(y | l) for every label l of an item, in loops; the others by a view of every source."""
    setting = build(write_table(tmp_path, 80))
    people = torch.full((80,), -1)
    people[:20] = setting.person_labels[0].labels[:20]
    guesses = torch.where(torch.arange(80) < 60, setting.model_labels.labels, -1)
    evidence = LabelEvidence(people, guesses, setting.model_labels.confidence, 0.05)
    fused = fuse_labels(setting.units, evidence, 3)
    gains = source_campaign._compute_gains(setting, fused, (people, guesses))
    everywhere = torch.arange(80)
    sources = (
        LabelSource("a", error_rate=0.05),
        LabelSource("b", error_rate=float(fused.guess_error.mean())),
    )
    view = source_view(fused.posterior, everywhere, everywhere, label_noise=fused.label_noise)
    others = view.gains(sources)
    for item in (0, 30, 70):
        p = fused.probabilities[item].tolist()
        for column, t in ((0, 1.0), (1, fused.temperature)):
            after = 0.0
            for said in range(3):
                if column == 0:
                    likely = [0.95 if y == said else 0.025 for y in range(3)]
                else:
                    likely = fused.confusion[:, said].tolist()
                joint = [p[y] * likely[y] for y in range(3)]
                powers = [max(j, 1e-12) ** t for j in joint]
                after += sum(joint) * max(powers) / sum(powers)
            own = max(after - max(p), 0.0)
            assert float(gains[item, column]) == pytest.approx(
                own + float(others[item, column]), rel=1e-9, abs=1e-12
            )


def test_useless_model_is_not_asked_and_free_model_first(tmp_path):
    path = write_table(tmp_path)
    useless = build(path, "anna:price=0.1", "llm:price=0.09,error=0.66,errors=random", money=2.0)
    rounds = list(iterate_money_rounds(useless, "pairs"))
    assert rounds[0].labels == {"anna": 10, "llm": 0}
    free = build(path, PERSON, "llm:price=0,error=0.3", money=1.0)
    rounds = list(iterate_money_rounds(free, "pairs"))
    assert (rounds[0].labels["llm"], rounds[0].cost) == (150, 0.0)
    assert rounds[-1].cost <= 1.0 + 1e-9


def test_pairs_are_cheaper_than_people_and_threshold(tmp_path):
    setting = build(write_table(tmp_path), money=5.0)
    cost = {
        name: find_cost(list(iterate_money_rounds(setting, name)), 0.85) or 5.0
        for name in ("pairs", "flip", "threshold")
    }
    assert cost["pairs"] < 5.0
    assert cost["pairs"] < min(cost["flip"], cost["threshold"])


def test_real_labels_are_bought_and_are_no_feature(tmp_path):
    path = write_table(tmp_path, gaps=30)
    setting = build(path, PERSON, "llm:price=0.001,error=0.3,labels=said")
    assert setting.rows.shape == (150, 3)
    with path.open() as file:
        said = [CLASSES.index(r["said"]) if r["said"] else -1 for r in csv.DictReader(file)]
    names = sorted(CLASSES)
    order = [names.index(c) for c in CLASSES]
    assert setting.model_labels.labels.tolist() == [order[i] if i >= 0 else -1 for i in said]
    rounds = list(iterate_money_rounds(setting, "pairs"))
    assert rounds[0].labels == {"anna": 0, "llm": 120}
    assert max(r.labels["llm"] for r in rounds) == 120
    threshold = list(iterate_money_rounds(setting, "threshold"))
    assert threshold[0].accuracy < threshold[-1].accuracy


def test_items_without_truth_and_test_items_stay_outside(tmp_path):
    path = write_table(tmp_path)
    lines = path.read_text().splitlines()
    lines[1:11] = [line.rpartition(",")[0] + "," for line in lines[1:11]]
    path.write_text("\n".join(lines) + "\n")
    assert build(path, data={"name": str(path), "test_fraction": 0.0}).items == 140
    assert build(path, data={"name": str(path), "test_fraction": 0.5}).items < 100


def test_find_cost_is_where_the_line_between_rounds_crosses():
    rounds = [MoneyRound(i, c, a, {}) for i, (c, a) in enumerate([(1, 0.5), (3, 0.9), (4, 0.8)])]
    assert find_cost(rounds, 0.4) == 1
    assert find_cost(rounds, 0.6) == pytest.approx(1.5)
    assert find_cost(rounds, 0.95) is None
    assert find_cost([], 0.5) is None


def test_same_seed_takes_the_same_course_and_is_written(tmp_path):
    campaign = configure(write_table(tmp_path, 80), money=2.0)
    one = run_with_sources(campaign, out=tmp_path / "one")
    other = run_with_sources(campaign)
    assert one.rounds == other.rounds
    assert one.cost_of(0.5) is not None
    with (tmp_path / "one" / "costs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(r["cost"]) for r in rows] == pytest.approx([r.cost for r in one.rounds])
    assert [int(r["labels:anna"]) for r in rows] == [r.labels["anna"] for r in one.rounds]
    again = run_with_sources(
        parse_campaign(source_campaign.read_toml(tmp_path / "one" / "config.toml"))
    )
    assert again.rounds == one.rounds
    with pytest.raises(InputError, match="holds a campaign already"):
        run_with_sources(campaign, out=tmp_path / "one")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"prior": "class-names"}}, "both sources and guesses"),
        ({"model": {"name": "mlp"}}, "the model is mlp"),
        ({"budget": {"initial": 0}}, "initial is 0"),
        ({"sources": [PERSON, "llm:price=0.01,labels=model:old"]}, "expected a column or a file"),
        ({"sources": [PERSON, "llm:price=0.01,labels=nope"]}, "has none of that name"),
        ({"sources": [PERSON, "llm:price=0.01,error=none.csv"]}, "none.csv does not exist"),
        ({"budget": {"initial": 200, "labels": 200}}, "expected at least 200 items"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, changes, message):
    path = write_table(tmp_path, 40)
    data = {"name": str(path), "test_fraction": 0.0, **changes.pop("data", {})}
    campaign = parse_campaign({"sources": [PERSON, MODEL], "data": data, "threads": 1, **changes})
    with pytest.raises(InputError, match=message):
        run_with_sources(campaign, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_data_without_labels_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,a,b\n" + "\n".join(f"n{i},{i},{i % 3}" for i in range(30)) + "\n")
    with pytest.raises(InputError, match="has no labels"):
        run_with_sources(configure(path))


def test_run_refuses_prices(tmp_path):
    campaign = configure(write_table(tmp_path, 40))
    with pytest.raises(InputError, match="run_with_sources"):
        run(campaign)
    money = replace(campaign, sources=(), asking=replace(campaign.asking, strategy="flip"))
    with pytest.raises(InputError, match="run_with_sources"):
        run(replace(money, budget=replace(money.budget, money=1.0, labels=20)))
