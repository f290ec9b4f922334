"""LL4AL: joint training of network and loss module, against a plain loop.

Where it applies and where it is refused.
"""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import labelahead as la
from labelahead.data import from_arrays
from labelahead.errors import InputError, ModelError
from labelahead.learner.config import Budget, Network
from labelahead.learner.sklearn import Classifier
from labelahead.models import build_model
from labelahead.models.training import AuxiliaryObjective, Training, train
from labelahead.models.training.fit import iter_batches, iter_learning_rates, make_optimiser
from labelahead.simulation.run import Campaign, run
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.loss_prediction import JOINT_SHARE, LossModule, ranking_loss
from tests.support.campaigns import blobs, labelled_pool, own


def test_ranking_loss_matches_manual_computation():
    predicted, true = torch.tensor([0.5, 2.0, 1.0, 0.0]), torch.tensor([3.0, 1.0, 2.0, 5.0])
    # pairs (0, 2): true larger first, guess −0.5 -> 1.5; (1, 3): true smaller, guess 2 -> 3
    assert float(ranking_loss(predicted, true)) == pytest.approx((1.5 + 3.0) / 2)
    assert float(ranking_loss(predicted[:1], true[:1])) == 0.0


def dense(seed=0):
    return build_model("fcn", (6,), 3, width=8, seed=seed).double()


def plain_joint_training(model, module, x, y, how, seed):
    """`train` with a loss module as one reads it in the paper: no hooks, features by hand."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    parameters = [*model.parameters(), *module.parameters()]
    optimiser = make_optimiser(parameters, how, how.rate)
    targets = F.one_hot(y, 3).double()
    order = iter_batches(len(x), how.batch, how.steps, seed, pairs=False)
    for step, (at, rate) in enumerate(zip(order, iter_learning_rates(how, how.rate), strict=True)):
        rows = torch.arange(len(x)) if at is None else at
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad(set_to_none=True)
        hidden, features = x[rows], []
        for m in model.modules():
            if not list(m.children()):
                hidden = m(hidden)
                if m in layers[:-1]:
                    features.append(hidden)
        losses = 0.5 * (hidden - targets[rows]).square().sum(1)
        if step / how.steps >= JOINT_SHARE:
            features = [f.detach() for f in features]
        joined = torch.cat(
            [torch.relu(layer(f)) for layer, f in zip(module.layers, features, strict=True)], 1
        )
        predicted, half = module.last(joined)[:, 0], len(rows) // 2
        ranking = 0.0
        for i in range(half):
            sign = torch.sign(losses[i] - losses[half + i]).detach()
            ranking = ranking + torch.relu(1.0 - sign * (predicted[i] - predicted[half + i])) / half
        (losses.mean() + ranking).backward()
        optimiser.step()


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_train_with_a_loss_module_equals_plain_joint_training(optimiser):
    x, y = blobs(24, (6,))
    x = x.double()
    how = Training(steps=10, batch=8, rate=1e-2, optimiser=optimiser, weight_decay=1e-3)
    one, two = dense(), dense()
    modules = [LossModule(m, x[:2], 3) for m in (one, two)]
    assert len(modules[0].tapped) == len([m for m in one.modules() if isinstance(m, nn.Linear)]) - 1
    train(one, x, y, 3, how, seed=7, objective=modules[0])
    plain_joint_training(two, modules[1], x, y, how, 7)
    for a, b in ((one, two), modules):
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            assert torch.allclose(p, q, atol=1e-10)
    alone = dense()
    train(alone, x, y, 3, how, seed=7)
    assert not all(
        torch.allclose(p, q) for p, q in zip(one.parameters(), alone.parameters(), strict=True)
    )


def test_loss_module_gradient_reaches_network_early_only():
    x, _ = blobs(24, (6,))
    model = dense()
    module = LossModule(model, x[:2].double(), 0)
    losses = torch.arange(24.0, dtype=torch.float64)
    for progress, reaches in (
        (0.0, True),
        (JOINT_SHARE - 1e-9, True),
        (JOINT_SHARE, False),
        (0.99, False),
    ):
        with module.record_features(model):
            model(x.double())
            module(losses, progress).backward()
        assert (
            any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())
            is reaches
        )
        assert all(p.grad is not None for p in module.parameters())
        model.zero_grad(set_to_none=True)
        module.zero_grad(set_to_none=True)


def test_campaign_trains_network_with_loss_module():
    """The network that is tested and saved is the one trained jointly.

    It asks with that very module.
    """
    x, y = blobs(60, (6,))
    data = from_arrays(x, y, test=range(50, 60))
    plan = Campaign(
        model=Network("mlp", 8),
        training={"steps": 12},
        asking=QueryConfig("ll4al"),
        budget=Budget(initial=12, labels=20, retrain_every=8),
        threads=1,
    )
    joint = run(plan, data=data)
    again = run(plan, data=data)
    alone = run(replace(plan, asking=QueryConfig("random")), data=data)
    # Same labels, seed and recipe in the first round: whatever differs is the loss module's doing.
    assert joint.rounds[0].train_loss != alone.rounds[0].train_loss
    assert joint.rounds[0].seconds["train"] > 0
    assert set(joint.rounds[0].seconds) >= {"train", "score"}
    assert torch.equal(joint.pool.labelled, again.pool.labelled)
    assert all(
        torch.equal(v, again.model.state_dict()[k]) for k, v in joint.model.state_dict().items()
    )


def noisy_half(n=240):
    """Half of the items have random labels: there the loss is large, and can be seen in x."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, generator=rng)
    noisy = x[:, 5] > 0
    y = (x[:, 0] > 0).long()
    y[noisy] = torch.randint(2, (int(noisy.sum()),), generator=rng)
    return x, y, noisy


def test_ll4al_ranks_items_with_large_loss_first():
    x, y, noisy = noisy_half()
    learner = la.Learner(
        build_model("mlp", (6,), 2, width=32),
        x,
        "ll4al",
        training=Training(steps=300, batch=64, rate=5e-3),
    )
    learner.teach(range(160), y[:160])
    assert noisy[learner.query(40)].double().mean() > 0.65


def test_propose_without_loss_module_raises():
    x, y = blobs(24)
    with pytest.raises(
        InputError,
        match="loss module that is trained together with the network, and none was given",
    ):
        la.propose(own(), x, labelled_pool(y, 6), 2, "ll4al", fresh=own, training=Training(steps=3))


def test_ll4al_with_training_function_or_exact_learner_raises():
    x, y = blobs(24)
    with pytest.raises(
        InputError, match="ll4al trains a module of its own together with the network"
    ):
        la.Learner(own(), x, "ll4al", training=lambda *_: None)
    exact = la.Learner(la.exact(x.flatten(1), 3), x.flatten(1), "ll4al")
    exact.teach([0, 1, 2], y[:3])
    with pytest.raises(ModelError, match="the exact learner has nothing to train"):
        exact.query(1)


def test_saved_learner_keeps_loss_module(tmp_path):
    x, y = blobs(40)
    learner = la.Learner(own(), x, "ll4al", training=Training(steps=10))
    assert len(learner.query(2)) == 2  # before any label: by a module that has learnt nothing
    learner.teach(range(8), y[:8])
    first = learner.query(5)
    learner.save(tmp_path / "l.pt")
    again = la.Learner.load(tmp_path / "l.pt", own(seed=9), x)
    assert again.query(5) == first
    state = torch.load(tmp_path / "l.pt", weights_only=True)
    del state["objective"]  # as files of older versions
    torch.save(state, tmp_path / "old.pt")
    old = la.Learner.load(tmp_path / "old.pt", own(seed=9), x)
    assert len(old.query(5)) == 5  # trained again, with a module


def test_classifier_fit_trains_loss_module():
    x, y, noisy = noisy_half()
    module = build_model("mlp", (6,), 2, width=32)
    classifier = Classifier(
        module, strategy="ll4al", training=Training(steps=300, batch=64, rate=5e-3)
    )
    assert len(set(classifier.query(x.numpy(), 3).tolist())) == 3
    classifier.fit(x[:160].numpy(), y[:160].numpy())
    picked = classifier.query(x[160:].numpy(), 40)
    assert noisy[160:][picked].double().mean() > 0.6


class Tokens(nn.Module):
    """Sequences (n, t, 5): layers end in channels, and t may differ from batch to batch."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.norm = nn.LayerNorm(7)
        self.last = nn.Linear(7, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))).mean(1))


@pytest.mark.parametrize(
    ("model", "shape", "sizes"),
    [
        (Tokens(), (9, 5), [7, 7]),
        (build_model("cnn", (1, 8, 8), 3, width=4), (1, 8, 8), None),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), (1, 8, 8), [3]),
    ],
)
def test_features_of_any_layout_have_one_row_per_sample(model, shape, sizes):
    x = torch.randn(6, *shape)
    module = LossModule(model.eval(), x, 0)
    with module.record_features(model):
        model(x)
        found = [module._features[name] for name in module.tapped]
        assert all(f.dim() == 2 and len(f) == 6 for f in found)
        assert sizes is None or [f.shape[1] for f in found] == sizes
    if isinstance(model, Tokens):
        assert torch.isfinite(module.predict_losses(model, torch.randn(4, 3, 5))).all()
        with module.record_features(model):
            model(x)
            assert torch.allclose(module._features["first"], model.first(x).mean(1))
    assert not module._features  # nothing is kept afterwards
    assert not any(m._forward_hooks for m in model.modules())


def test_loss_module_serves_copies_and_depends_on_seed():
    x, _ = blobs(8)
    model = own()
    one, same, other = (LossModule(model, x, seed) for seed in (1, 1, 2))
    assert isinstance(one, AuxiliaryObjective)
    copied = copy.deepcopy(model)
    found = [
        m.predict_losses(n, x)
        for m, n in ((one, model), (one, copied), (same, model), (other, model))
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[3])


class Scale(nn.Module):
    """Parameters of its own, and no layer at all."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 3))

    def forward(self, x):
        return x @ self.weight


def test_single_layer_network_uses_its_outputs():
    x, y = blobs(20, (6,))
    module = LossModule(Scale(), x, 0)
    assert module.tapped == [""]
    train(Scale(), x, y, 3, Training(steps=3), seed=0, objective=module)


class Free(nn.Module):
    """Its one parameter belongs to a module that is never called."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        return x @ self.inner.weight.T


def test_network_without_called_layers_raises():
    with pytest.raises(ModelError, match="calls no module with parameters"):
        LossModule(Free(), torch.randn(4, 6), 0)


def test_divergence_restores_loss_module():
    x, y = blobs(24, (6,))
    model = dense()
    module = LossModule(model, x.double(), 0)
    trained = train(
        model,
        x.double(),
        y,
        3,
        Training(steps=30, rate=50.0, optimiser="sgd"),
        seed=0,
        objective=module,
    )
    assert trained.rate < 50.0
    again_model = dense()
    again = LossModule(again_model, x.double(), 0)
    how = Training(steps=30, rate=trained.rate, optimiser="sgd")
    train(again_model, x.double(), y, 3, how, seed=0, objective=again)
    assert all(
        torch.equal(p, q) for p, q in zip(module.parameters(), again.parameters(), strict=True)
    )
