"""What somebody else's typed code looks like: mypy --strict reads it against the installed wheel."""

import torch
from torch import Tensor, nn

import labelahead as la
from labelahead.acquisition import View, best, flip, view
from labelahead.simulation.run import Result


def next_label(
    model: nn.Module, x: Tensor, labelled: list[int], targets: Tensor
) -> tuple[int, float]:
    """By the functions."""
    with torch.no_grad():
        outputs = model(x)
    post = la.prior(outputs, la.kernel(model, x), noise=1e-3).condition(labelled, targets)
    pool: View = view(post, [i for i in range(len(x)) if i not in labelled])
    scores: Tensor = flip(pool)
    assert len(scores) == len(x) - len(labelled)
    return best(pool, "flip")


def next_labels(features: Tensor, classes: int) -> list[int]:
    """By a learner."""
    learner = la.Learner(la.exact(features, classes), features, "resolve")
    positions: list[int] = learner.query(3)
    learner.teach(positions, [0] * len(positions))
    return positions


def curve(seed: int) -> list[tuple[int, float | None]]:
    """By a campaign."""
    try:
        result: Result = la.run(la.Campaign(seed=seed, budget=la.Budget(labels=30)))
    except la.InputError as error:
        raise SystemExit(str(error)) from error
    return result.curve


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(40, 6)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    print(next_label(net, x, [0, 1], torch.eye(2, dtype=torch.float64)))
    print(next_labels(x, 2), curve(0))
