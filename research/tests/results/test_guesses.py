"""The study of guesses."""

import numpy as np
import torch

from labelahead.inference.exact_model import exact
from labelahead.learner.learner import Learner
from research.results import guess_sets, guesses, trust_variants
from research.results.guesses import BEGIN, COUNTS, DOCS, END, NONE, format_losses, format_table


def make_row(guesser, seed, accuracy):
    accuracies = {f"at {n}": str(accuracy) for n in COUNTS}
    return {"set": "r8", "guesser": guesser, "seed": str(seed), **accuracies}


def test_table_pairs_seeds_and_leaves_out_those_without_a_baseline():
    rows = [make_row("none", 0, 0.5), make_row("none", 1, 0.7), make_row("none", 2, 0.9)]
    rows += [make_row("class names", 0, 0.6), make_row("class names", 1, 0.9)]
    rows += [make_row("class names", 7, 0.1)]
    lines = format_table(rows).splitlines()
    assert lines[2].startswith("| Reuters R8 | none: accuracy in % | 3 | 70.0 |")
    assert lines[3].startswith("| Reuters R8 | class names | 2 | +15.0 ± 5.0 |")
    assert format_losses(rows).startswith("0 of 5 cells")


def test_losses_name_the_cells_below_half_a_point():
    rows = [make_row("none", s, 0.5) for s in (0, 1)] + [make_row("never", s, 0.49) for s in (0, 1)]
    assert format_losses(rows).startswith("5 of 5 cells")
    assert "Reuters R8, never, 10 labels: -1.0 ± 0.0" in format_losses(rows)


def test_table_of_the_docs_is_that_of_the_results():
    rows = guesses.read_rows()
    text = DOCS.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert text.strip() == f"{format_table(rows)}\n\n{format_losses(rows)}"


def test_simulated_guessers_are_as_right_as_their_names_say():
    rng = np.random.default_rng(0)
    y = rng.choice(4, 4000, p=[0.4, 0.3, 0.2, 0.1])
    said = guess_sets.simulate(rng.normal(size=(4000, 5)), y, rng)
    right = {k: float((p.argmax(1) == y).mean()) for k, p in said.items()}
    for name, share in {**guess_sets.SHARES, "by region": 0.6}.items():
        assert abs(right[name] - share) < 0.03
    assert right["largest"] == float((y != 0).mean())
    assert right["by class"] == float((y % 2 == 1).mean())
    assert all(np.allclose(p.sum(1), 1) for p in said.values())


def make_set():
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(420) % 3
    x = torch.randn(3, 8, generator=rng)[y] + torch.randn(420, 8, generator=rng)
    right = torch.rand(420, generator=rng) < 0.8
    said = torch.nn.functional.one_hot(torch.where(right, y, (y + 1) % 3), 3) * 0.85 + 0.05
    return guess_sets.GuessSet(x, y, 3, {"right 75": said.float()})


def test_measured_accuracy_is_that_of_a_learner_with_the_same_labels():
    of = make_set()
    positions, mixtures = guesses.label_items(of, 1)
    assert len(positions) == COUNTS[-1]
    curve = guesses.measure_guesser(of, "right 75", 1, positions, mixtures)
    plain = guesses.measure_guesser(of, NONE, 1, positions, mixtures)
    test = guesses.draw_test(len(of.y), 1)
    learner = Learner(exact(of.x, 3, guesses=of.guesses["right 75"]), of.x, test=test.tolist())
    learner.teach(positions[:20], of.y[positions[:20]])
    p = learner.predict(test.tolist())
    assert curve[COUNTS.index(20)] == float((p.argmax(1) == of.y[test]).double().mean())
    assert curve[COUNTS.index(10)] > plain[COUNTS.index(10)]


def test_variants_change_the_constants_and_restore_them():
    before = trust_variants.trust.GATE_OFFSET
    with trust_variants.use_variant("gate offset 0"):
        assert trust_variants.trust.GATE_OFFSET == 0.0
    assert before == trust_variants.trust.GATE_OFFSET


def test_variants_table_compares_with_one_number_per_guesser():
    rows = []
    for variant, accuracy in (("", 0.5), ("one number", 0.6), ("both", 0.58)):
        guesser = "right 60" if variant else "none"
        rows.append({**make_row(guesser, 100, accuracy), "variant": variant})
    lines = trust_variants.format_table(rows).splitlines()
    assert lines[3] == "| both | 5 | +8.00 | +8.00 | 80% | 80% |"
