"""Labels of simulated sources: rates, places and kinds of errors; confusion matrices; bad files."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from labelahead.data.dataset import Guesses
from labelahead.errors import InputError
from labelahead.learner.simulated_source import SimulatedSource
from labelahead.simulation.source_labels import (
    estimate_ease,
    give_labels,
    give_wrong_labels,
    read_confusion,
    take_real_labels,
)

CLASSES = ("red", "green", "blue")
CONFUSION = "class,red,green,blue\nred,8,2,0\ngreen,0,10,0\nblue,0,5,5\n"


def make_items(n=300, seed=0):
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(3, (n,), generator=rng)
    x = 1.5 * torch.eye(3, 5)[truth] + torch.randn(n, 5, generator=rng)
    return F.normalize(x - x.mean(0), dim=1).double(), truth


@pytest.mark.parametrize("accuracy", [0.4, 0.75, 0.95])
@pytest.mark.parametrize("where", ["hard", "random"])
def test_labels_are_right_as_often_as_asked(accuracy, where):
    units, truth = make_items()
    hard = estimate_ease(units, truth, 3) if where == "hard" else None
    shares = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        labels, confidence = give_wrong_labels(truth, accuracy, rng, hard, 3)
        shares.append(float((labels == truth).double().mean()))
        assert bool(((labels >= 0) & (labels < 3)).all())
        assert bool(((confidence > 0) & (confidence < 1)).all())
    assert np.mean(shares) == pytest.approx(accuracy, abs=0.03)


def test_errors_lie_where_classes_overlap_and_confidence_tells_some_of_them():
    units, truth = make_items()
    hard = estimate_ease(units, truth, 3)
    wrong, areas = torch.zeros(len(truth)), []
    for seed in range(20):
        labels, said = give_wrong_labels(truth, 0.75, np.random.default_rng(seed), hard, 3)
        error = labels != truth
        wrong += error
        areas.append(float((said[~error][:, None] > said[error]).double().mean()))
    order = hard[0].argsort()
    assert wrong[order[:100]].mean() > 2 * wrong[order[-100:]].mean()
    assert 0.6 < np.mean(areas) < 0.8


def test_ease_is_the_leave_one_out_prediction_of_a_refit():
    """Twin: kernel regression without the item, spelt out."""
    units, truth = make_items(40)
    ease, others = estimate_ease(units, truth, 3)
    assert torch.allclose(
        ease, torch.logit(others.gather(1, truth[:, None])[:, 0].clamp(0.003, 0.997))
    )
    from labelahead.inference.mixture import mix_kernels

    cosines = (units @ units.T).fill_diagonal_(1.0)
    kernel = mix_kernels(cosines, (0.0, 0.5, 0.5))
    for item in (0, 7, 39):
        rest = [i for i in range(40) if i != item]
        y = F.one_hot(truth[rest], 3).double() - 1 / 3
        weights = torch.linalg.solve(kernel[rest][:, rest] + 0.1 * torch.eye(39), y)
        assert (kernel[item, rest] @ weights).argmax() == others[item].argmax()


def test_confusion_matrix_is_reproduced(tmp_path):
    path = tmp_path / "c.csv"
    path.write_text(CONFUSION)
    truth = torch.arange(3).repeat(4000)
    said = give_labels(
        SimulatedSource("m", 1.0, str(path)), truth, CLASSES, np.random.default_rng(0), None
    )
    counts = torch.zeros(3, 3).double()
    counts.index_put_((truth, said.labels), torch.ones(len(truth)).double(), accumulate=True)
    expected = torch.tensor([[0.8, 0.2, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]]).double()
    assert torch.allclose(counts / 4000, expected, atol=0.02)
    assert bool((counts[expected == 0] == 0).all())
    assert said.error == pytest.approx((0.2 + 0.0 + 0.5) / 3)


def test_careful_source_is_always_right():
    _, truth = make_items(50)
    said = give_labels(SimulatedSource("p"), truth, CLASSES, np.random.default_rng(0), None)
    assert torch.equal(said.labels, truth)
    assert said.error == 0


def test_real_labels_keep_probabilities_and_gaps():
    p = torch.tensor([[0.2, 0.7, 0.1], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    said = take_real_labels(SimulatedSource("m", error=0.3, labels="llm"), Guesses(CLASSES, p))
    assert said.labels.tolist() == [1, -1, 0]
    assert said.confidence.tolist() == pytest.approx([0.7, 0.0, 1.0])
    assert said.available.tolist() == [True, False, True]
    assert said.error == 0.3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class,red,green\nred,1,0\ngreen,0,1\n", "no column 'blue'"),
        ("name,red,green,blue\nred,1,0,0\n", "no column 'class'"),
        (CONFUSION.replace("blue,0,5,5\n", ""), "0 rows of the class 'blue'"),
        (CONFUSION + "red,1,1,1\n", "2 rows of the class 'red'"),
        (CONFUSION.replace("0,5,5", "0,0,0"), "no labels of the class 'blue'"),
        (CONFUSION.replace("0,5,5", "0,-1,5"), "expected a number of labels"),
        (CONFUSION.replace("0,5,5", "0,many,5"), "expected a number of labels"),
        (CONFUSION.replace("0,5,5", "0,,5"), "expected a number of labels"),
    ],
)
def test_confusion_file_of_another_form_is_refused(tmp_path, text, message):
    path = tmp_path / "c.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_confusion(path, CLASSES)


def test_missing_confusion_file_is_named(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_confusion(tmp_path / "none.csv", CLASSES)
