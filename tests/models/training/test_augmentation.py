"""Augmentation against an image-by-image reference, and where it must not be applied."""

from dataclasses import asdict, replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import labelahead as la
from labelahead.data import from_arrays
from labelahead.errors import InputError
from labelahead.learner.config import Budget, Network, parse_campaign
from labelahead.models import build_model
from labelahead.models.training import Training, predict, train
from labelahead.models.training.augmentation import augment_pictures, compute_padding
from labelahead.models.training.fit import iter_batches, iter_learning_rates, make_optimiser
from labelahead.ntk import kernel
from labelahead.seeds import make_generator
from labelahead.simulation.run import Campaign, resume, run
from labelahead.strategies.base import QueryConfig
from tests.support.campaigns import blobs

KINDS = ("crop", "flip", "crop-flip")


def pictures(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def augmented_one_by_one(x, kind, rng):
    """Each picture by itself.

    Pad, cut out, mirror. Draws in the order that `augment_pictures` documents.
    """
    n, _, h, w = x.shape
    p, q = compute_padding(h), compute_padding(w)
    rows = torch.randint(2 * p + 1, (n,), generator=rng) if "crop" in kind else None
    columns = torch.randint(2 * q + 1, (n,), generator=rng) if "crop" in kind else None
    mirrored = (
        torch.rand(n, generator=rng) < 0.5 if "flip" in kind else torch.zeros(n, dtype=torch.bool)
    )
    out = []
    for i in range(n):
        one = x[i]
        if "crop" in kind:
            top, left = int(rows[i]), int(columns[i])
            one = F.pad(one, (q, q, p, p))[:, top : top + h, left : left + w]
        out.append(torch.flip(one, [2]) if mirrored[i] else one)
    return torch.stack(out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(40, 3, 32, 32), (7, 1, 8, 12), (1, 2, 3, 3)])
def test_augment_pictures_equals_the_picture_by_picture_twin(kind, shape):
    x = pictures(*shape)
    before = x.clone()
    for seed in range(5):
        found = augment_pictures(x, kind, make_generator(seed, "a"))
        assert torch.equal(found, augmented_one_by_one(x, kind, make_generator(seed, "a")))
    assert torch.equal(x, before)


def test_augment_pictures_uses_every_shift_and_both_sides():
    x = pictures(1, 1, 32, 32).expand(4000, 1, 32, 32)
    found = augment_pictures(x, "crop-flip", make_generator(0, "a"))
    assert compute_padding(32) == 4
    assert (
        len(torch.unique(found.flatten(1), dim=0)) == 2 * 9 * 9
    )  # shifts of −4 to 4 both ways, mirrored or not


def manual_training(model, x, y, how, seed, kind):
    """Full-precision twin of `train` for a network without BatchNorm.

    Plain loop, pictures augmented one by one.
    """
    model.train()
    optimiser = make_optimiser(list(model.parameters()), how, how.rate)
    targets, rng = F.one_hot(y, 3).to(x), make_generator(seed, "augment")
    for at, rate in zip(
        iter_batches(len(x), how.batch, how.steps, seed, pairs=False),
        iter_learning_rates(how, how.rate),
        strict=True,
    ):
        rows = torch.arange(len(x)) if at is None else at
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad(set_to_none=True)
        seen = augmented_one_by_one(x[rows], kind, rng)
        (0.5 * (model(seen) - targets[rows]).square().sum() / len(rows)).backward()
        optimiser.step()


@pytest.mark.parametrize("batch", [8, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_train_uses_exactly_the_augmented_images(kind, batch):
    x, y = blobs(24, (1, 8, 8))
    x = x.double()
    how = Training(steps=12, batch=batch, augment=kind)
    one, two = (build_model("fcn", (1, 8, 8), 3, width=8, seed=1).double() for _ in range(2))
    train(one, x, y, 3, how, seed=5)
    manual_training(two, x, y, how, 5, kind)
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-10)


class Recorder(nn.Module):
    """A linear network that keeps what it was shown, by mode."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.last = nn.Linear(64, 3)
        self.shown = {True: [], False: []}

    def forward(self, x):
        self.shown[self.training].append(x.detach().clone())
        return self.last(self.norm(x).flatten(1))


def test_augmentation_never_reaches_evaluation_kernel_or_outputs():
    x, y = blobs(20, (1, 8, 8))
    model = Recorder()
    train(
        model, x, y, 3, Training(steps=20, batch=10, augment="crop-flip", stop_accuracy=1.0), seed=0
    )
    known = {tuple(row) for row in x.flatten(1).tolist()}
    assert any(
        tuple(row) not in known for part in model.shown[True] for row in part.flatten(1).tolist()
    )
    assert model.shown[False]
    assert all(
        tuple(row) in known for part in model.shown[False] for row in part.flatten(1).tolist()
    )
    # Two networks with equal weights, one of them just trained with augmentation, are the same
    # network.
    trained = build_model("cnn", (1, 8, 8), 3, width=4, seed=0)
    train(trained, x, y, 3, Training(steps=5, augment="crop-flip"), seed=0)
    other = build_model("cnn", (1, 8, 8), 3, width=4, seed=1)
    other.load_state_dict(trained.state_dict())
    assert torch.equal(predict(trained, x), predict(other.eval(), x))
    assert torch.equal(kernel(trained, x), kernel(other, x))


def test_augment_off_equals_a_plain_loop_bit_for_bit():
    """To the last bit those of a plain loop that knows nothing of augmentation."""
    x, y = blobs(30, (1, 8, 8))
    model = build_model("fcn", (1, 8, 8), 3, width=8, seed=3).double()
    train(model, x.double(), y, 3, Training(steps=15, batch=8), seed=2)
    assert Training().augment is None
    twin = build_model("fcn", (1, 8, 8), 3, width=8, seed=3).double()
    manual = Training(steps=15, batch=8)
    optimiser = make_optimiser(list(twin.parameters()), manual, manual.rate)
    targets = F.one_hot(y, 3).double()
    for at, rate in zip(
        iter_batches(30, 8, 15, 2, pairs=False),
        iter_learning_rates(manual, manual.rate),
        strict=True,
    ):
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad(set_to_none=True)
        (0.5 * F.mse_loss(twin(x[at].double()), targets[at], reduction="sum") / len(at)).backward()
        optimiser.step()
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (torch.randn(12, 4), r"\(1, 4\)"),
        (torch.randn(12, 3, 16), r"\(1, 3, 16\)"),
        ((torch.randn(12, 4), torch.randn(12, 4)), r"\(1, 4\)"),
    ],
)
def test_augment_is_refused_without_pictures(x, shape):
    y = torch.arange(12) % 3
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    if isinstance(x, torch.Tensor):
        model(x)
    else:
        model = nn.Bilinear(4, 4, 3)
    with pytest.raises(
        InputError, match=rf"training\.augment is 'flip', but .*{shape}.*expected pictures"
    ):
        train(model, x, y, 3, Training(steps=2, augment="flip"), seed=0)


def test_augment_value_is_checked_and_read_from_toml():
    with pytest.raises(
        InputError, match="augment is 'crops'; expected one of 'crop', 'flip', 'crop-flip', or None"
    ):
        Training(augment="crops")
    assert parse_campaign({"training": {"augment": "crop"}}).training["augment"] == "crop"
    assert parse_campaign({"training": {"augment": "none"}}).training["augment"] is None
    with pytest.raises(InputError, match=r"training\.augment"):
        parse_campaign({"training": {"augment": "mirror"}})


def test_augmented_campaign_resumes_bit_for_bit(tmp_path):
    x, y = blobs(60, (1, 8, 8))
    data = from_arrays(x, y, test=range(50, 60))
    campaign = Campaign(
        model=Network("cnn", 4),
        training={"steps": 6, "augment": "crop-flip", "start": "warm"},
        asking=QueryConfig("margin"),
        budget=Budget(initial=6, labels=18, retrain_every=6),
        threads=1,
    )
    whole = run(campaign, data=data, out=tmp_path / "whole")
    run(
        replace(campaign, budget=replace(campaign.budget, labels=12)),
        data=data,
        out=tmp_path / "half",
    )
    rest = resume(tmp_path / "half", {"budget.labels": 18}, data=data)
    plain = run(replace(campaign, training={"steps": 6, "start": "warm"}), data=data)
    assert torch.equal(whole.pool.labelled, rest.pool.labelled)
    assert all(
        torch.equal(whole.model.state_dict()[k], v) for k, v in rest.model.state_dict().items()
    )
    assert not all(
        torch.equal(whole.model.state_dict()[k], v) for k, v in plain.model.state_dict().items()
    )


def test_naive_retraining_augments_too():
    """Dense networks are retrained many at a time without augmentation.

    With it, one after the other by `train`.
    """
    x, y = blobs(20, (1, 8, 8))
    model = build_model("fcn", (1, 8, 8), 3, width=8).eval()
    pool = la.Pool(20)
    pool.label(range(6), y[:6])
    how = QueryConfig("naive", retrainings=4, candidates=6)
    scores = [
        la.propose(model, x, pool, 3, how, training=Training(steps=4, augment=kind)).scores
        for kind in (None, "crop")
    ]
    assert not torch.allclose(*scores)
    assert asdict(Training())["augment"] is None
