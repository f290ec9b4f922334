"""Splits of a pool: the best for every cost, the expected accuracy, and bad input."""

import csv
import itertools
import math
import random

import pytest
import torch

from labelahead.errors import InputError
from labelahead.inference.sources import Annotations
from labelahead.learner.config import Campaign, Source
from labelahead.learner.routing import (
    RouteGoal,
    compute_disagreement,
    estimate_person_error,
    format_routes,
    plan_routes,
    route_items,
)

CLASSES = ("red", "green", "blue")
CENTRES = {"red": (2, 0, 0), "green": (-1, 2, 0), "blue": (-1, -2, 1)}
PRICES = {"human": 0.10, "llm": 0.001}
CALIBRATION_TOLERANCE = 0.05


def write_files(folder, seed=0, items=300, labelled=60, accuracy=0.8):
    """A table with a column `llm` that is filled for every second item, and labels."""
    rng = random.Random(seed)
    truth = {}
    with (folder / "t.csv").open("w", newline="") as table:
        rows = csv.writer(table)
        rows.writerow(["id", "a", "b", "c", "llm"])
        for i in range(items):
            y = rng.choice(CLASSES)
            truth[f"n{i}"] = y
            x = [m + rng.gauss(0, 1.3) for m in CENTRES[y]]
            other = rng.choice([c for c in CLASSES if c != y])
            said = y if rng.random() < accuracy else other
            rows.writerow([f"n{i}", *x, said if i % 2 == 0 else ""])
    lines = [f"n{i},{truth[f'n{i}']}" for i in range(labelled)]
    (folder / "labels.csv").write_text("\n".join(["id,label", *lines]))
    return truth


def route(folder, guesses=("llm",), labels="labels.csv", **goal):
    campaign = Campaign(data=Source(str(folder / "t.csv"), guesses=guesses), threads=1)
    given = {"prices": PRICES, **goal}
    return route_items(campaign, RouteGoal(**given), labels=folder / labels)


# --- The plan


def every_split(probability, price):
    """(cost, accuracy) of all splits."""
    n, ways = probability.shape
    for chosen in itertools.product(range(ways), repeat=n):
        at = torch.tensor(chosen)[:, None]
        right = probability.gather(1, at)
        if not bool(right.isnan().any()):
            yield float(price.gather(1, at).sum()), float(right.mean())


@pytest.mark.parametrize("seed", range(4))
def test_points_of_the_curve_are_the_best_splits_for_their_cost(seed):
    rng = torch.Generator().manual_seed(seed)
    probability = torch.rand(6, 3, generator=rng, dtype=torch.float64)
    probability[1, 1] = math.nan  # no language model for this item
    price = torch.tensor([0.0, 0.01, 0.1]).double().expand(6, 3)
    curve = plan_routes(probability, price)
    splits = list(every_split(probability, price))
    for i, (cost, accuracy) in enumerate(zip(curve.cost.tolist(), curve.accuracy, strict=True)):
        assert float(accuracy) == pytest.approx(
            max(right for paid, right in splits if paid <= cost + 1e-12)
        )
        way = curve.split(i, 6)
        assert float(price.gather(1, way[:, None]).sum()) == pytest.approx(cost)
        assert float(probability.gather(1, way[:, None]).mean()) == pytest.approx(float(accuracy))


def test_budget_and_target_are_kept():
    probability = torch.tensor([[0.5, 0.7, 1.0]] * 10).double()
    curve = plan_routes(probability, torch.tensor([0.0, 0.01, 0.1]).double().expand(10, 3))
    assert float(curve.cost[curve.steps_within(0.1)]) == pytest.approx(0.1)
    assert float(curve.cost[curve.steps_within(0.0)]) == 0.0
    steps = curve.steps_to(0.85)
    assert float(curve.accuracy[steps]) >= 0.85 > float(curve.accuracy[steps - 1])
    assert curve.steps_to(1.01) is None


def test_split_for_a_value_has_the_largest_profit_of_all_splits():
    """Against the profits of all splits, item by item; a price that equals the gain is paid."""
    rng = torch.Generator().manual_seed(2)
    probability = torch.rand(30, 3, generator=rng, dtype=torch.float64)
    price = torch.tensor([0.0, 0.01, 0.1], dtype=torch.float64)
    curve = plan_routes(probability, price.expand(30, 3))
    for value in (0.0, 0.002, 0.01, 0.05, 3.0):
        steps = curve.steps_worth(value)
        profit = 100 * value * curve.accuracy[steps] - curve.cost[steps]
        # n independent choices: each takes its best way
        best = (100 * value * probability / 30 - price).max(1).values.sum()
        assert float(profit) == pytest.approx(float(best), abs=1e-12)
    certain = plan_routes(torch.tensor([[0.5, 1.0]] * 4).double(), price[[0, 2]].expand(4, 2))
    assert certain.steps_worth(0.1 / 12.5) == 4  # each label brings 12.5 points
    assert certain.steps_worth(0.0999 / 12.5) == 0


def test_free_and_careful_person_gets_everything():
    probability = torch.tensor([[0.9, 0.95, 1.0], [0.4, 0.6, 1.0]]).double()
    curve = plan_routes(probability, torch.tensor([0.0, 0.01, 0.0]).double().expand(2, 3))
    assert curve.split(curve.steps_within(0.0), 2).tolist() == [2, 2]
    assert float(curve.cost[-1]) == 0.0


def test_useless_language_model_is_never_asked():
    probability = torch.tensor([[0.6, 0.6, 1.0], [0.4, 0.3, 1.0]]).double()
    curve = plan_routes(probability, torch.tensor([0.0, 0.0, 0.1]).double().expand(2, 3))
    assert 1 not in curve.ways.tolist()


# --- From files to the split


def test_expected_accuracy_agrees_with_the_truth(tmp_path):
    """Of the split, over three seeds, and of its items without a person."""
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        truth = write_files(folder, seed)
        report = route(folder, target_accuracy=0.93)
        assert report.accuracy >= 0.93
        rng = random.Random(seed)
        right = []
        for item in report.items:
            p = 1.0 if item.route == "human" else float(item.prediction == truth[item.id])
            if item.route == "llm" and "asking it" in item.reason:
                p = float(rng.random() < item.probability)
            right.append(p)
        assert sum(right) / len(right) == pytest.approx(report.accuracy, abs=CALIBRATION_TOLERANCE)
        sure = [i for i in report.items if i.route == "model"]
        share = sum(i.prediction == truth[i.id] for i in sure) / len(sure)
        expected = sum(i.probability for i in sure) / len(sure)
        assert share == pytest.approx(expected, abs=1.5 * CALIBRATION_TOLERANCE)


def test_report_adds_up(tmp_path):
    write_files(tmp_path)
    report = route(tmp_path, budget=3.0)
    assert report.cost <= 3.0
    assert sum(count for count, _, _ in report.routes.values()) == len(report.items) == 300
    assert sum(cost for _, _, cost in report.routes.values()) == pytest.approx(report.cost)
    mean = sum(count * p for count, p, _ in report.routes.values()) / 300
    assert mean == pytest.approx(report.accuracy)
    assert report.routes["labelled"] == (60, 1.0, 0.0)
    assert report.person_error_note.startswith("people: taken to be always right, since 0 items")
    paid = {f"n{i}" for i in range(0, 300, 2)}  # they have a guess
    assert not any(item.route == "llm" for item in report.items if item.id in paid)
    right, low, high, count = report.guess_accuracy
    assert count == 30
    assert low < right < high
    costs = [point[0] for point in report.points]
    assert costs == sorted(costs)
    text = format_routes(report.items)
    assert text.splitlines()[0] == "id,route,prediction,probability,reason"
    assert len(text.splitlines()) == 301


def test_route_for_a_value_leaves_out_labels_that_cost_more_than_they_bring(tmp_path):
    write_files(tmp_path)
    report = route(tmp_path, value=0.5)
    assert 0 < report.steps < len(report.curve.items)
    each = report.curve.cost.diff() / (100 * report.curve.accuracy.diff())
    assert float(each[: report.steps].max()) <= 0.5 < float(each[report.steps])
    (note,) = [n for n in report.notes if "per point of accuracy" in n]
    assert f"the next label costs {float(each[report.steps]):.3g} per point" in note
    assert route(tmp_path, value=0.0).cost == 0.0 < route(tmp_path, value=0.2).cost < report.cost
    bounded = route(tmp_path, value=0.5, budget=0.4 * report.cost)
    assert 0 < bounded.cost <= 0.4 * report.cost
    assert f"labels for {report.cost:.2f} are worth it" in " ".join(bounded.notes)
    enough = route(tmp_path, value=0.5, budget=2 * report.cost)
    assert (enough.steps, enough.notes) == (report.steps, report.notes)


def write_annotators(folder, truth, rng, *, items, error, people=("anna", "ben")):
    """Labels of several people for the same items, each wrong at a rate."""
    lines = ["id,label,annotator"]
    for i in range(items):
        for who in people:
            y = truth[f"n{i}"]
            wrong = rng.choice([c for c in CLASSES if c != y])
            lines.append(f"n{i},{wrong if rng.random() < error else y},{who}")
    (folder / "people.csv").write_text("\n".join(lines))


def test_error_of_people_is_estimated_from_items_with_several_labels(tmp_path):
    truth, rng = write_files(tmp_path), random.Random(0)
    write_annotators(tmp_path, truth, rng, items=100, error=0.15)
    report = route(tmp_path, labels="people.csv", budget=2.0)
    assert report.person_error == pytest.approx(0.15, abs=0.06)
    assert "of 100 items with labels of several people" in report.person_error_note
    human = report.routes["human"]
    assert human[1] == pytest.approx(1 - report.person_error)
    stated = route(tmp_path, labels="people.csv", budget=2.0, person_error=0.02)
    assert (stated.person_error, stated.routes["human"][1]) == (0.02, pytest.approx(0.98))
    assert stated.person_error_note == "people: wrong in 2.0% of their labels, as given"
    write_annotators(tmp_path, truth, rng, items=15, error=0.15)
    few = route(tmp_path, labels="people.csv", budget=2.0)
    assert few.person_error == 0.0
    assert "since 15 items have labels of several people" in few.person_error_note


def test_error_of_people_without_common_items_is_that_of_the_model(tmp_path):
    truth, rng = write_files(tmp_path), random.Random(1)
    lines = ["id,label,annotator"]
    for i in range(120):
        y = truth[f"n{i}"]
        other = rng.choice([c for c in CLASSES if c != y])
        lines.append(
            f"n{i},{other if i % 2 and rng.random() < 0.4 else y},{('anna', 'ben')[i % 2]}"
        )
    (tmp_path / "people.csv").write_text("\n".join(lines))
    report = route(tmp_path, labels="people.csv", budget=2.0)
    assert report.person_error == pytest.approx(0.2, abs=0.1)
    assert "the model's estimate of 2 sources" in report.person_error_note


@pytest.mark.parametrize("classes", [2, 5])
def test_disagreement_gives_the_error_of_simulated_people(classes):
    rng = torch.Generator().manual_seed(0)
    n, error = 20_000, 0.2
    truth = torch.randint(classes, (2 * n,), generator=rng)
    shift = torch.randint(1, classes, (2 * n,), generator=rng)
    truth[n:] = truth[:n]
    said = torch.where(torch.rand(2 * n, generator=rng) < error, (truth + shift) % classes, truth)
    at = torch.arange(n).repeat(2)
    who = torch.arange(2).repeat_interleave(n)
    items, share = compute_disagreement(Annotations(at, said, who, ("anna", "ben")))
    assert (items, share) == (n, pytest.approx(float((said[:n] != said[n:]).double().mean())))
    assert estimate_person_error(items, share, classes) == pytest.approx(error, abs=0.01)
    assert estimate_person_error(items, 1.0, classes) <= 0.49
    assert 0 < estimate_person_error(20, 0.0, classes) < 0.02


def test_prices_in_any_unit_give_the_same_split(tmp_path):
    write_files(tmp_path)
    one = route(tmp_path, target_accuracy=0.95)
    other = route(tmp_path, target_accuracy=0.95, prices={"human": 10.0, "llm": 0.1})
    assert [i.route for i in one.items] == [i.route for i in other.items]
    assert other.cost == pytest.approx(100 * one.cost)


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ({"prices": {"human": 1.0, "lmm": 0.1}}, "did you mean 'llm'"),
        ({"prices": {"llm": 0.1}}, "the price of human is missing"),
        ({"prices": {"human": -1.0}}, "the price of human is -1"),
        ({"prices": {"human": math.nan}}, "the price of human is nan"),
        ({"target_accuracy": 95.0}, "expected a share such as 0.95"),
        ({"target_accuracy": 0.9, "budget": 1.0}, "expected one of them"),
        ({"target_accuracy": 0.9, "value": 1.0}, "a target accuracy and a value are given"),
        ({"budget": -1.0}, "the budget is -1"),
        ({"value": -1.0}, "the value is -1"),
        ({"value": math.inf}, "the value is inf"),
        ({"person_error": 0.5}, "error rate of people is 0.5"),
    ],
)
def test_bad_goals_are_refused(goal, message):
    with pytest.raises(InputError, match=message):
        RouteGoal(**{"prices": PRICES, **goal})


def test_bad_data_are_refused(tmp_path):
    write_files(tmp_path)
    with pytest.raises(InputError, match="0 sources of guesses"):
        route(tmp_path, guesses=())
    with pytest.raises(InputError, match="has none of that name"):
        route(tmp_path, guesses=("lmm",))
    (tmp_path / "few.csv").write_text("id,label\nn0,red\nn1,green\n")
    source = Source(str(tmp_path / "t.csv"), guesses=("llm",), classes=CLASSES)
    with pytest.raises(InputError, match="expected at least 10"):
        route_items(Campaign(data=source), RouteGoal(PRICES), labels=tmp_path / "few.csv")
    with pytest.raises(InputError, match="cannot be reached: at most"):
        route(tmp_path, target_accuracy=1.0, person_error=0.1)
    odd = [f"n{i},red" for i in range(1, 30, 2)] + ["n31,green", "n33,blue"]
    (tmp_path / "odd.csv").write_text("\n".join(["id,label", *odd]))
    with pytest.raises(InputError, match="no item has both a label and a guess"):
        route(tmp_path, labels="odd.csv")
