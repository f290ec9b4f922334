"""One class for each item."""

import pytest
import torch

from labelahead.errors import InputError
from labelahead.tasks import Classes, LeaveOneOut


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("cat", "expected a list of names"),
        (["cat"], "expected 2 or more"),
        (["cat", "cat"], "'cat' is named twice"),
        (["cat", ""], "expected a text"),
        (["cat", 3], "expected a text"),
    ],
)
def test_names_are_checked(names, message):
    with pytest.raises(InputError, match=message):
        Classes(names)


def test_misspelt_class_is_suggested():
    with pytest.raises(InputError, match="did you mean 'cat'"):
        Classes(["cat", "dog"]).parse("Cat")


def test_scale_is_chosen_by_the_likelihood_of_the_labels():
    """Means that are right by far allow a small scale, contradicted ones demand a large one."""
    targets = torch.eye(2, dtype=torch.float64).repeat(20, 1)
    variance = torch.full((40,), 0.5, dtype=torch.float64)
    right = Classes(["a", "b"]).calibrate(LeaveOneOut(targets, variance, 0.1, targets))
    wrong = Classes(["a", "b"]).calibrate(LeaveOneOut(1 - targets, variance, 0.1, targets))
    assert float(wrong.variance_scale[0]) > 100 * float(right.variance_scale[0])


def test_probability_falls_towards_chance_with_the_variance():
    task = Classes(["a", "b"])
    state = task.calibrate(
        LeaveOneOut(*[torch.zeros(0, 2), torch.zeros(0), 0.1, torch.zeros(0, 2)])
    )
    mean = torch.tensor([[0.9, 0.1]] * 3)
    p = task.predict(mean, torch.tensor([1e-6, 1.0, 1e6]), state).probabilities[:, 0]
    assert p[0] > 0.999
    assert 0.6 < p[1] < 0.99
    assert abs(p[2] - 0.5) < 0.01
