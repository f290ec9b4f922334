"""Labels of people and of an unreliable source, combined: calibration, limits, bad input."""

import math

import pytest
import torch
from torch.nn import functional as F

from labelahead.acquisition.sources import LabelSource
from labelahead.errors import InputError
from labelahead.gp.posterior import prior
from labelahead.inference import label_fusion
from labelahead.inference.label_fusion import LabelEvidence, expect_accuracy, fuse_labels

CLASSES, ITEMS = 3, 240


def make_items(seed=0, spread=0.9):
    """Unit rows of three overlapping clusters, and their classes."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(CLASSES, (ITEMS,), generator=rng)
    centres = 1.5 * torch.eye(CLASSES, 6)
    x = centres[truth] + spread * torch.randn(ITEMS, 6, generator=rng)
    return F.normalize(x - x.mean(0), dim=1).double(), truth, rng


def make_guesses(truth, accuracy, rng):
    wrong = torch.rand(len(truth), generator=rng) > accuracy
    shift = torch.randint(1, CLASSES, (len(truth),), generator=rng)
    return torch.where(wrong, (truth + shift) % CLASSES, truth)


def label_some(truth, count, rng):
    people = torch.full_like(truth, -1)
    at = torch.randperm(len(truth), generator=rng)[:count]
    people[at] = truth[at]
    return people


def accuracy_of(p, truth):
    return float((p.argmax(1) == truth).double().mean())


@pytest.mark.parametrize("accuracy", [0.6, 0.85])
def test_fusion_is_better_than_both_and_calibrated(accuracy):
    """Within 6 points, on the mean of three seeds."""
    gaps = []
    for seed in range(3):
        units, truth, rng = make_items(seed)
        people = label_some(truth, 40, rng)
        guesses = make_guesses(truth, accuracy, rng)
        fused = fuse_labels(units, LabelEvidence(people, guesses), CLASSES)
        alone = fuse_labels(
            units, LabelEvidence(people, torch.full_like(people, -1)), CLASSES
        ).probabilities
        rest = people < 0
        right = accuracy_of(fused.probabilities[rest], truth[rest])
        assert right >= accuracy_of(alone[rest], truth[rest])
        assert right > float((guesses == truth)[rest].double().mean())
        gaps.append(float(fused.probabilities[rest].max(1).values.mean()) - right)
        assert float(fused.guess_error.mean()) == pytest.approx(1 - accuracy, abs=0.12)
    assert abs(sum(gaps) / len(gaps)) < 0.06


def test_probabilities_are_a_distribution_and_people_decide():
    units, truth, rng = make_items()
    people = label_some(truth, 30, rng)
    guesses = torch.where(people >= 0, (people + 1) % CLASSES, make_guesses(truth, 0.7, rng))
    fused = fuse_labels(units, LabelEvidence(people, guesses), CLASSES)
    torch.testing.assert_close(fused.probabilities.sum(1), torch.ones(ITEMS).double())
    labelled = people >= 0
    assert torch.equal(fused.probabilities[labelled].argmax(1), people[labelled])
    torch.testing.assert_close(fused.confusion.sum(1), torch.ones(CLASSES).double())
    assert bool(fused.label_noise[labelled].max() < fused.label_noise[~labelled].min())


def test_posterior_equals_regression_with_the_noise_of_each_label():
    units, truth, rng = make_items()
    people, guesses = label_some(truth, 20, rng), make_guesses(truth, 0.75, rng)
    evidence = LabelEvidence(people, guesses, person_error=0.05)
    error = torch.linspace(0.1, 0.4, ITEMS).double()
    at, targets, noise = label_fusion._combine_targets(evidence, error, CLASSES)
    assert at.tolist() == list(range(ITEMS))
    # An item with one label has the noise of its source; with two labels precisions add up.
    one, both = int((people < 0).nonzero()[0]), int((people >= 0).nonzero()[0])
    source = LabelSource("llm", error_rate=float(error[one])).relative_noise(CLASSES)
    assert float(noise[one]) == pytest.approx(source)
    parts = [LabelSource("x", error_rate=e).relative_noise(CLASSES) for e in (0.05, error[both])]
    assert float(noise[both]) == pytest.approx(1 / sum(1 / part for part in parts))
    post = prior(
        torch.full((ITEMS, CLASSES), 1 / CLASSES, dtype=torch.float64), units @ units.T, noise=0.1
    ).condition(at, targets + 1 / CLASSES, noise=0.1 + noise * 1.1)
    kernel = units @ units.T
    scale = float(kernel.diagonal().mean())
    naive = kernel @ torch.linalg.solve(kernel + torch.diag(scale * (0.1 + noise * 1.1)), targets)
    torch.testing.assert_close(post.mean, naive + 1 / CLASSES, atol=1e-9, rtol=0)


def test_confidence_tells_good_guesses_from_bad_ones():
    units, truth, rng = make_items()
    people = label_some(truth, 60, rng)
    sure = torch.rand(ITEMS, generator=rng) < 0.5
    guesses = torch.where(sure, make_guesses(truth, 0.95, rng), make_guesses(truth, 0.45, rng))
    confidence = torch.where(sure, 0.95, 0.6)
    fused = fuse_labels(units, LabelEvidence(people, guesses, confidence), CLASSES)
    assert float(fused.guess_error[sure].mean()) < 0.2 < float(fused.guess_error[~sure].mean())


def test_guesser_that_confuses_two_classes_is_found_out():
    units, truth, rng = make_items()
    guesses = torch.where(truth == 2, 1, truth)  # class 2 is always called 1
    fused = fuse_labels(units, LabelEvidence(label_some(truth, 60, rng), guesses), CLASSES)
    assert float(fused.confusion[2, 1]) > 2 * float(fused.confusion[2, 0])


def test_only_people_or_only_guesses_are_enough():
    units, truth, rng = make_items()
    none = torch.full_like(truth, -1)
    fused = fuse_labels(units, LabelEvidence(none, make_guesses(truth, 0.8, rng)), CLASSES)
    assert accuracy_of(fused.probabilities, truth) > 0.8
    one = none.clone()
    one[0] = 1
    fused = fuse_labels(units, LabelEvidence(one, none), CLASSES)
    assert bool(torch.isfinite(fused.probabilities).all())
    assert math.isinf(float(fused.label_noise[1]))


def test_number_of_conditioned_guesses_is_bounded():
    units, truth, rng = make_items()
    people = label_some(truth, 20, rng)
    evidence = LabelEvidence(people, make_guesses(truth, 0.8, rng))
    fused = fuse_labels(units, evidence, CLASSES, max_conditioned=50)
    assert 50 <= len(fused.posterior.labelled) <= 70
    assert accuracy_of(fused.probabilities, truth) > 0.8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"people": torch.zeros(3).long()}, "people has shape"),
        ({"guesses": torch.full((ITEMS,), 3)}, "guesses holds classes outside 0 to 2"),
        ({"confidence": torch.full((ITEMS,), math.nan)}, "confidence holds NaN"),
        ({"person_error": 0.9}, "error rate of people is 0.9"),
        ({"people": torch.full((ITEMS,), -1), "guesses": torch.full((ITEMS,), -1)}, "no label"),
    ],
)
def test_bad_evidence_is_refused(change, message):
    units, truth, _ = make_items()
    given = {"people": truth, "guesses": truth, "confidence": None, "person_error": 0.0, **change}
    with pytest.raises(InputError, match=message):
        fuse_labels(units, LabelEvidence(**given), CLASSES)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_expect_accuracy_sums_over_the_labels(temperature):
    """Twin: every label of every item, in loops."""
    rng = torch.Generator().manual_seed(0)
    p = torch.rand(5, CLASSES, generator=rng, dtype=torch.float64)
    p = p / p.sum(1, keepdim=True)
    confusion = torch.rand(CLASSES, CLASSES, generator=rng, dtype=torch.float64)
    confusion = confusion / confusion.sum(1, keepdim=True)
    found = expect_accuracy(p, confusion, temperature)
    for item in range(5):
        expected = 0.0
        for said in range(CLASSES):
            joint = [float(p[item, y] * confusion[y, said]) for y in range(CLASSES)]
            powers = [j**temperature for j in joint]
            expected += sum(joint) * max(powers) / sum(powers)
        assert float(found[item]) == pytest.approx(expected)
