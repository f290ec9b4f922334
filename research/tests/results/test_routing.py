"""The table of routing: costs of targets, simulated labels, means and ratios."""

from pathlib import Path

import pytest
import torch

from research.results import routing


def make_pool(seed=0, n=routing.ITEMS, classes=3):
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(classes, (n,), generator=rng)
    rows = 1.5 * torch.eye(classes, 8)[truth] + torch.randn(n, 8, generator=rng)
    units = torch.nn.functional.normalize(rows, dim=1).double()
    person = routing.give_labels(truth, classes, rng)
    return routing.Pool(rows, units, truth, classes, person)


@pytest.mark.parametrize("kind", routing.MODELS)
def test_simulated_model_is_right_as_often_as_its_name_says(kind):
    pool = make_pool()
    labels, confidence = routing.simulate_model(pool, kind, 0)
    right = labels == pool.truth
    assert float(right.double().mean()) == pytest.approx(routing.MODELS[kind], abs=0.07)
    assert float(confidence[right].mean()) > float(confidence[~right].mean())
    assert float((pool.person == pool.truth).double().mean()) == pytest.approx(0.95, abs=0.03)


def test_cost_of_a_target_is_interpolated_and_missing_if_not_reached():
    curve = [(1.0, 0.7), (2.0, 0.9), (3.0, 0.92)]
    assert routing.find_costs(iter(curve)) == [pytest.approx(1.5), pytest.approx(1.75), 2.0, None]
    assert routing.find_costs(iter([(0.4, 0.95)])) == [0.4] * 4


def test_threshold_starts_with_the_model_and_ends_with_people():
    pool = make_pool()
    guess, confidence = routing.simulate_model(pool, "llm 75", 0)
    curve = list(routing.label_by_threshold(pool, guess, confidence))
    assert curve[0][1] == pytest.approx(float((guess == pool.truth).double().mean()))
    assert curve[-1][1] == pytest.approx(float((pool.person == pool.truth).double().mean()))
    assert curve[1][0] - curve[0][0] == pytest.approx(routing.PERSON)


def test_table_pairs_seeds_and_shows_targets_that_were_not_reached():
    def row(policy, seed, costs, model="llm 75"):
        names = [f"cost at {t:.2f}" for t in routing.TARGETS]
        values = dict(zip(names, costs, strict=True))
        return {"set": "r8", "model": model, "policy": policy, "seed": str(seed), **values}

    rows = [row(p, s, ["8", "9", "10", ""], "none") for p in routing.PEOPLE for s in (0, 1)]
    rows += [row("threshold", s, ["4", "6", "8", ""]) for s in (0, 1)]
    rows += [row("fusion", 0, ["2", "3", "4", "5"]), row("fusion", 1, ["1", "3", "4", ""])]
    rows += [row("pairs", s, ["5", "3", "4", ""]) for s in (0, 1)]
    lines = routing.format_table(rows).splitlines()
    assert lines[2].split("|")[2:5] == [" 75 ", " 0.80 ", " 2 "]
    # 1.5 / 4; standard error of (2, 1) − 0.375 · (4, 4), divided by 4
    assert lines[2].endswith("| 8.0 | 8.0 | 8.0 | 4.0 | 1.5 | 5.0 | 0.38 ± 0.12 | 1.25 ± 0.00 |")
    assert lines[5].endswith("| - | - | - | - | - | - | - | - |")
    assert lines[7].startswith(
        "fusion costs at most 0.6 of the cheapest other policy in 3 of 3 rows"
    )
    assert lines[8].startswith(
        "pairs costs at most 0.6 of the cheapest other policy in 2 of 3 rows"
    )
    assert "more than it in 1; median 0.50" in lines[8]


def test_pairs_begin_with_the_model_and_cost_what_they_label():
    pool = make_pool(n=120)
    guess, confidence = routing.simulate_model(pool, "llm 75", 0)
    curve = []
    for cost, accuracy in routing.label_by_pairs(pool, guess, confidence, 0):
        curve.append((cost, accuracy))
        if len(curve) == 4:
            break
    assert curve[0][0] == pytest.approx(120 * routing.MODEL)
    people = [(cost - curve[0][0]) / routing.PERSON for cost, _ in curve]
    assert people == pytest.approx([round(count) for count in people])
    assert curve[-1][1] > curve[0][1]


def test_table_of_the_docs_is_that_of_the_results():
    docs = Path(__file__).parents[3] / "docs" / "routing.md"
    assert routing.format_table(routing.read_rows()) in docs.read_text(encoding="utf-8")
