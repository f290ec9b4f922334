"""Several classes at once."""

import pytest
import torch
from sklearn.metrics import average_precision_score

from labelahead.errors import InputError
from labelahead.tasks import LeaveOneOut, Multilabel, MultilabelPrediction
from labelahead.tasks.multilabel import THRESHOLDS, _choose_thresholds


@pytest.mark.parametrize("name", ["a;b", "?a", "[a]", " a"])
def test_names_that_cannot_be_written_are_refused(name):
    with pytest.raises(InputError, match="rename it"):
        Multilabel(["cat", name])


@pytest.mark.parametrize("threshold", [0, 1, "F1", None, True])
def test_threshold_is_checked(threshold):
    with pytest.raises(InputError, match="expected 'f1' or a probability"):
        Multilabel(["cat"], threshold=threshold)


def test_none_is_a_class_if_it_is_called_so():
    task = Multilabel(["none", "some"])
    assert task.write(task.parse("none")) == "none"
    assert task.write(task.parse([])) == "[]"


def test_no_class_is_an_answer_and_nothing_reviewed_is_none():
    task = Multilabel(["cat", "dog"])
    assert task.parse([]) == 0
    assert task.value(0) == []
    assert task.parse("?cat;?dog") is None
    assert task.parse({}) is None


def test_added_class_is_not_reviewed_in_answers_so_far():
    task = Multilabel(["cat", "dog"])
    codes = task.parse_all(["cat", [], "cat;dog"])
    task.add_output("fox")
    assert [task.write(c) for c in codes] == ["cat;?fox", "?fox", "cat;dog;?fox"]
    assert task.targets(codes)[:, 2].isnan().all()
    new = task.parse("cat")
    assert new not in codes
    assert task.targets([new]).tolist() == [[1, 0, 0]]
    same = Multilabel(task.outputs, answers=list(task.answers))
    assert torch.equal(same.targets(range(4)).nan_to_num(-1), task.targets(range(4)).nan_to_num(-1))


def test_threshold_of_f1_is_the_best_of_the_grid():
    """Brute force over thresholds of one class with many labels."""
    rng = torch.Generator().manual_seed(0)
    p = torch.rand(500, 1, generator=rng).double()
    targets = (torch.rand(500, 1, generator=rng) < p.square()).double()
    chosen = float(_choose_thresholds(p, targets)[0])

    def f1(threshold):
        said = p >= threshold
        return float(2 * (said & (targets == 1)).sum() / (said.sum() + targets.sum()))

    assert f1(chosen) == pytest.approx(max(map(f1, THRESHOLDS)))


def test_rare_class_takes_the_threshold_of_all():
    rng = torch.Generator().manual_seed(0)
    p = torch.rand(300, 4, generator=rng).double()
    targets = (torch.rand(300, 4, generator=rng) < p.square()).double()
    targets[:, 3] = 0.0
    thresholds = _choose_thresholds(p, targets)
    assert abs(float(thresholds[3] - thresholds[:3].mean())) < 0.2


def test_probabilities_are_right_if_the_model_is():
    """Among items with probability near p the share of positives is near p."""
    rng = torch.Generator().manual_seed(0)

    def draw(n):
        latent = 0.3 + 0.4 * torch.randn(n, 3, generator=rng, dtype=torch.float64)
        variance = 0.1 + torch.rand(n, generator=rng, dtype=torch.float64)
        noise = torch.randn(n, 3, generator=rng, dtype=torch.float64)
        mean = latent - 0.3 * variance.sqrt()[:, None] * noise
        return LeaveOneOut(mean, variance, 0.0, (latent > 0.5).double())

    task = Multilabel(["a", "b", "c"])
    state, items = task.calibrate(draw(500)), draw(20000)
    p = task.predict(items.mean, items.variance, state).probabilities
    for low in (0.05, 0.2, 0.4, 0.6, 0.8):
        some = (p >= low) & (p < low + 0.1)
        assert float(items.targets[some].mean()) == pytest.approx(float(p[some].mean()), abs=0.07)


def test_class_without_a_positive_label_stays_possible():
    task = Multilabel(["a", "b"], threshold=0.5)
    targets = torch.tensor([[1.0, 0.0]] * 10, dtype=torch.float64)
    evidence = LeaveOneOut(targets, torch.full((10,), 0.3).double(), 0.01, targets)
    p = task.predict(targets, evidence.variance, task.calibrate(evidence)).probabilities
    assert bool((p[:, 1] > 0.001).all() & (p[:, 1] < 0.1).all() & (p[:, 0] > 0.8).all())


def test_average_precision_of_each_class_is_that_of_scikit_learn():
    task = Multilabel(["a", "b", "c"])
    rng = torch.Generator().manual_seed(2)
    p = torch.rand(50, 3, generator=rng, dtype=torch.float64)
    truth = (torch.rand(50, 3, generator=rng) < torch.tensor([0.5, 0.2, 0.0])).long()
    codes = task.parse_all(list(truth.numpy()))
    found = task.measure_outputs(MultilabelPrediction(task.outputs, p, p[0]), codes)
    want = {
        f"average_precision:{name}": average_precision_score(truth[:, c], p[:, c])
        for c, name in enumerate("ab")  # no item has c
    }
    assert found == pytest.approx(want)
