"""Training against closed forms, bit for bit, and with invalid or diverging inputs."""

import copy
import math

import pytest
import torch
from torch import nn

from labelahead.errors import InputError, ModelError, NumericalError
from labelahead.models import MODELS, build_model
from labelahead.models.training import Training, TrainingResult, initialise_model, predict, train
from labelahead.models.training.fit import (
    iter_batches,
    iter_learning_rates,
    recompute_batchnorm_statistics,
)

SGD = Training(optimiser="sgd", schedule="constant", momentum=0.0, rate=0.1, steps=3, batch=99)


def blobs(n=30, d=4, classes=3, seed=0, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    centres = 2 * torch.randn(classes, d, generator=rng)
    return (centres[y] + torch.randn(n, d, generator=rng)).to(dtype), y


def make_small_network(classes=3, d=4, seed=0, **options):
    return build_model("mlp", (d,), classes, width=16, seed=seed, **options)


def flatten_weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def make_batchnorm_network(d=4, classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(d, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_train_linear_model_equals_manual_steps(loss, momentum):
    x, y = blobs(dtype=torch.float64)
    Y = nn.functional.one_hot(y, 3).double()
    model = nn.Linear(4, 3)
    W, b = model.weight.detach().clone(), model.bias.detach().clone()
    vW, vb = torch.zeros_like(W), torch.zeros_like(b)
    decay = 0.01
    how = Training(
        loss=loss,
        optimiser="sgd",
        schedule="constant",
        rate=0.1,
        steps=5,
        batch=99,
        momentum=momentum,
        weight_decay=decay,
    )
    trained = train(model, x, y, 3, how, seed=0)
    for _ in range(5):
        f = x @ W.T + b
        r = (f if loss == "squared" else f.softmax(1)) - Y
        vW = momentum * vW + r.T @ x / len(x) + decay * W
        vb = momentum * vb + r.mean(0) + decay * b
        W, b = W - 0.1 * vW, b - 0.1 * vb
    assert torch.allclose(model.weight, W, rtol=1e-12)
    assert torch.allclose(model.bias, b, rtol=1e-12)
    f = x @ W.T + b
    each = 0.5 * (f - Y).square().sum(1) if loss == "squared" else -(f.log_softmax(1) * Y).sum(1)
    assert trained.loss == pytest.approx(float(each.mean()), rel=1e-12)
    assert trained.accuracy == float((f.argmax(1) == y).double().mean())


@pytest.mark.usefixtures("float64")
def test_train_clipping_bounds_the_step():
    x, y = blobs(dtype=torch.float64)
    model = nn.Linear(4, 3)
    before = flatten_weights(model)
    how = Training(optimiser="sgd", schedule="constant", momentum=0.0, rate=1.0, steps=1, clip=0.01)
    train(model, 100 * x, y, 3, how, seed=0)
    assert float((flatten_weights(model) - before).norm()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("steps", [4, 10, 33, 120])
def test_one_cycle_equals_torch(steps):
    how = Training(steps=steps, rate=0.3)
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 0.3, total_steps=steps, cycle_momentum=False
    )
    want = []
    for _ in range(steps):
        want.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        if len(want) < steps:
            schedule.step()
    assert list(iter_learning_rates(how, 0.3)) == pytest.approx(want)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_short_schedules_are_finite_and_reach_the_rate(steps):
    found = list(iter_learning_rates(Training(steps=steps), 0.3))
    assert len(found) == steps
    assert all(0 < r <= 0.3 + 1e-12 for r in found)
    assert not found or max(found) == pytest.approx(0.3)
    assert (
        list(iter_learning_rates(Training(steps=steps, schedule="constant"), 0.2)) == [0.2] * steps
    )


@pytest.mark.parametrize(("n", "size"), [(10, 4), (7, 7), (9, 2), (3, 2), (100, 32), (2, 1)])
@pytest.mark.parametrize("pairs", [True, False])
def test_iter_batches_visits_every_sample_once_per_epoch(n, size, pairs):
    first = list(iter_batches(n, size, 1000, 5, pairs=pairs))
    assert len(first) == 1000
    if first[0] is None:
        assert n <= size or (pairs and n < 4)
        return
    epoch, visited = [], 0
    for part in first:
        epoch.append(part)
        visited += len(part)
        if visited == n:
            assert torch.cat(epoch).sort().values.tolist() == list(range(n))
            sizes = [len(p) for p in epoch]
            assert max(sizes) - min(sizes) <= 1
            assert max(sizes) <= size + pairs
            assert min(sizes) >= (2 if pairs else 1)
            epoch, visited = [], 0
    again = list(iter_batches(n, size, 1000, 5, pairs=pairs))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other = list(iter_batches(n, size, 1000, 6, pairs=pairs))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("loss", ["squared", "cross-entropy"])
def test_train_fits_separable_data(loss, optimiser):
    x, y = blobs(60)
    rate = 0.1 if optimiser == "sgd" else 1e-2
    model = make_small_network()
    trained = train(model, x, y, 3, Training(loss=loss, optimiser=optimiser, rate=rate), seed=0)
    assert isinstance(trained, TrainingResult)
    assert trained.accuracy > 0.9
    assert trained.steps == 120
    assert trained.rate == rate
    assert trained.notes == ()
    assert trained.seconds > 0
    assert not any(m.training for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_train_same_seed_gives_bit_identical_weights(dropout):
    x, y = blobs(50)
    how = Training(steps=30, batch=8)
    state = torch.random.get_rng_state()
    runs = []
    for seed in (1, 1, 2):
        model = make_small_network(dropout=dropout)
        trained = train(model, x, y, 3, how, seed=seed)
        runs.append((flatten_weights(model), trained.loss))
        torch.rand(1)  # the global generator has no effect
    assert torch.equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]
    assert not torch.equal(runs[0][0], runs[2][0])
    torch.random.set_rng_state(state)
    train(make_small_network(dropout=dropout), x, y, 3, how, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("name", [m for m in MODELS if MODELS[m].inputs == "image"][:-1])
def test_train_with_batchnorm_is_reproducible(name):
    x = torch.randn(9, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    y = torch.arange(9) % 3
    width = 0.25 if name == "wrn16" else 4
    how = Training(steps=3, batch=4, rate=1e-3)
    states = []
    for _ in range(2):
        model = build_model(name, (1, 16, 16), 3, width=width, seed=1)
        train(model, x, y, 3, how, seed=4)
        states.append(model.state_dict())
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])


@pytest.mark.usefixtures("float64")
def test_recomputed_statistics_equal_those_of_the_labelled_set():
    """Compare with plain means and variances, layer by layer, for the final weights."""
    x, y = blobs(23, dtype=torch.float64)
    model = make_batchnorm_network().double()
    train(model, x, y, 3, Training(steps=20, batch=8), seed=0)
    h = model[0](x)
    norm = model[1]
    assert torch.allclose(norm.running_mean, h.mean(0), rtol=1e-12)
    assert torch.allclose(norm.running_var, h.var(0, correction=1), rtol=1e-12)
    assert norm.momentum == 0.1


@pytest.mark.usefixtures("float64")
def test_recompute_batchnorm_statistics_layer_by_layer():
    x = torch.randn(12, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    model = build_model("cnn", (1, 6, 6), 2, width=2)
    train(model, x, torch.arange(12) % 2, 2, Training(steps=4, batch=5), seed=0)
    h = x
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            assert torch.allclose(layer.running_mean, h.mean((0, 2, 3)), atol=1e-12)
            var = h.var((0, 2, 3), correction=1)
            assert torch.allclose(layer.running_var, var, rtol=1e-10)
            shape = (1, -1, 1, 1)  # the batch's own statistics reach the next layer
            h = (h - h.mean((0, 2, 3)).view(shape)) / (
                h.var((0, 2, 3), correction=0).view(shape) + layer.eps
            ).sqrt() * layer.weight.view(shape) + layer.bias.view(shape)
        else:
            h = layer(h)


@pytest.mark.usefixtures("float64")
def test_recompute_batchnorm_statistics_averages_equal_batches(monkeypatch):
    from labelahead.models.training import fit

    monkeypatch.setattr(fit, "choose_batch_rows", lambda _: 4)
    x, _ = blobs(12, dtype=torch.float64)
    model = make_batchnorm_network().double().eval()
    recompute_batchnorm_statistics(model, [model[1]], x)
    h = model[0](x)
    assert torch.allclose(model[1].running_mean, h.mean(0))
    means = torch.stack([p.var(0, correction=1) for p in h.split(4)]).mean(0)
    assert torch.allclose(model[1].running_var, means)


def test_recompute_batchnorm_statistics_keeps_dropout_and_frozen_norms():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9), nn.BatchNorm1d(4), nn.Linear(4, 2))
    x, y = blobs(20, classes=2)
    train(model, x, y, 2, Training(steps=2), seed=0)
    assert torch.allclose(model[2].running_mean, model[0](x).mean(0), atol=1e-5)


@pytest.mark.parametrize("n", [2, 3, 5, 9])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_batches_for_batchnorm_have_more_than_one_sample(n, batch):
    """BatchNorm1d raises for a single sample, so `train` would fail."""
    x, y = blobs(n)
    trained = train(make_batchnorm_network(), x, y, 3, Training(steps=7, batch=batch), seed=0)
    assert (batch == 1) == any("at least two samples" in note for note in trained.notes)


@pytest.mark.parametrize(
    "make", [make_batchnorm_network, make_small_network, lambda: nn.Linear(4, 3)]
)
def test_train_accepts_one_labelled_sample(make):
    x, y = blobs(1)
    model = make()
    before = copy.deepcopy(model.state_dict())
    trained = train(model, x, y, 3, Training(steps=60, rate=0.05), seed=0)
    assert trained.accuracy == 1.0
    statistics = {k for k in before if "running" in k}
    assert all(torch.equal(model.state_dict()[k], before[k]) for k in statistics)
    assert bool(statistics) == any("no variance" in note for note in trained.notes)
    assert torch.isfinite(predict(model, blobs(9)[0])).all()


def test_train_accepts_few_many_and_unseen_classes():
    x, y = blobs(6)
    for loss in ("squared", "cross-entropy"):
        how = Training(loss=loss, steps=5)
        assert (
            train(make_small_network(3), x, torch.ones(6, dtype=torch.long), 3, how, seed=0).loss
            >= 0
        )
        assert train(make_small_network(40), x, y, 40, how, seed=0).loss > 0
        assert (
            train(
                make_small_network(1), x, torch.zeros(6, dtype=torch.int32), 1, how, seed=0
            ).accuracy
            == 1
        )


def test_train_with_zero_steps_only_measures():
    x, y = blobs()
    model = make_small_network()
    before = flatten_weights(model)
    trained = train(model, x, y, 3, Training(steps=0), seed=0)
    assert trained.steps == 0
    assert torch.equal(before, flatten_weights(model))


@pytest.mark.parametrize(("n", "batch"), [(60, 16), (61, 60), (5, 32)])
def test_epochs_replace_steps(n, batch):
    x, y = blobs(n)
    how = Training(epochs=3, batch=batch, steps=7)
    steps = 3 * -(-n // batch)
    by_epochs, by_steps = make_small_network(), make_small_network()
    trained = train(by_epochs, x, y, 3, how, seed=0)
    again = train(by_steps, x, y, 3, Training(steps=steps, batch=batch), seed=0)
    assert trained.steps == again.steps == steps
    # including the schedule of the rate
    assert torch.equal(flatten_weights(by_epochs), flatten_weights(by_steps))
    assert how.with_epochs_as_steps(n) == Training(steps=steps, batch=batch)
    assert Training(steps=7).with_epochs_as_steps(n) == Training(steps=7)


def test_train_stops_at_the_requested_accuracy():
    x, y = blobs(60)
    how = Training(rate=1e-2, schedule="constant", steps=500, stop_accuracy=0.9)
    trained = train(make_small_network(), x, y, 3, how, seed=0)
    assert trained.accuracy >= 0.9
    assert trained.steps < 500
    assert trained.notes == ()
    noise = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(0))
    capped = train(
        make_small_network(), 0 * x, noise, 3, Training(steps=20, stop_accuracy=1.0), seed=0
    )
    assert capped.steps == 20
    assert "after all 20 steps" in capped.notes[0]


def test_stop_accuracy_uses_recomputed_statistics():
    x, y = blobs(60)
    how = Training(rate=1e-2, schedule="constant", steps=500, stop_accuracy=0.95, batch=16)
    model = make_batchnorm_network()
    trained = train(model, x, y, 3, how, seed=0)
    assert trained.accuracy >= 0.95
    again = float((predict(model, x).argmax(1) == y).double().mean())
    assert again == trained.accuracy


def test_divergence_is_retried_with_a_smaller_rate():
    x, y = blobs()
    how = Training(optimiser="sgd", schedule="constant", rate=20.0, steps=200, momentum=0.0)
    trained = train(make_small_network(), x, y, 3, how, seed=0)
    assert trained.rate < 20
    assert len(trained.notes) == round(math.log10(20 / trained.rate))
    assert "began again with 2" in trained.notes[0]
    fresh = train(
        make_small_network(), x, y, 3, Training(**(vars(how) | {"rate": trained.rate})), seed=0
    )
    assert fresh.loss == trained.loss  # the failed attempts have no effect


def test_growing_finite_loss_is_a_divergence():
    x, y = blobs()
    how = Training(optimiser="sgd", schedule="constant", rate=3.0, steps=12, momentum=0.0)
    trained = train(nn.Linear(4, 3), x, y, 3, how, seed=0)
    assert trained.rate < 3
    assert "rose from" in trained.notes[0]


def test_repeated_divergence_raises_and_restores_weights():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.linear(self.norm(x)) / 0.0

    x, y = blobs()
    model = Broken()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NumericalError, match=r"diverged at the rate 0.1 and at 3 rates"):
        train(model, x, y, 3, SGD, seed=0)
    after = model.state_dict()
    assert all(torch.equal(after[k], before[k]) for k in before)
    assert not model.training


def test_non_finite_weights_are_refused():
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    x, y = blobs()
    with pytest.raises(NumericalError, match="'weight' holds NaN or infinity before training"):
        train(model, x, y, 3, SGD, seed=0)


def test_frozen_parameters_stay_frozen():
    x, y = blobs()
    model = make_small_network()
    model[1].requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    train(model, x, y, 3, Training(steps=5, weight_decay=0.1), seed=0)
    after = list(model.parameters())
    assert torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1])
    assert not torch.equal(after[2], before[2])
    assert not after[0].requires_grad


def test_train_uses_the_dtype_of_the_network():
    x, y = blobs()
    model = make_small_network().double()
    train(model, x, y.to(torch.uint8), 3, Training(steps=2), seed=0)
    assert predict(model, x).dtype == torch.float64
    tokens = torch.arange(12).view(6, 2)
    words = nn.Sequential(nn.Embedding(12, 3), nn.Flatten(), nn.Linear(6, 2))
    train(words, tokens, torch.arange(6) % 2, 2, Training(steps=2), seed=0)


def test_train_works_under_no_grad_and_keeps_inputs():
    x, y = blobs()
    copy_of_x = x.clone()
    model = make_small_network()
    before = flatten_weights(model)
    with torch.no_grad():
        train(model, x, y, 3, Training(steps=2), seed=0)
    assert not torch.equal(before, flatten_weights(model))
    assert torch.equal(x, copy_of_x)


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), "at least one sample"),
        (torch.zeros(3, 4), torch.tensor([0, 1, 3]), "from 0 to 3; expected .* 0 to 2"),
        (torch.zeros(3, 4), torch.tensor([0, 1, -1]), "from -1 to 1"),
        (torch.zeros(3, 4), torch.tensor([0.0, 1.0, 2.0]), "torch.float32; expected class numbers"),
        (torch.zeros(3, 4), [0, 1, 2], "labels are list"),
        (torch.zeros(3, 4), torch.tensor([0, 1]), "one label for each of the 3"),
        (torch.zeros(3, 4), torch.zeros(3, 3, dtype=torch.long), r"labels have shape \(3, 3\)"),
        ([[0.0] * 4], torch.tensor([0]), "inputs are a list"),
        (torch.full((3, 4), float("nan")), torch.tensor([0, 1, 2]), "3 of 3 samples"),
        (torch.zeros(3, 5), torch.tensor([0, 1, 2]), r"forward failed on inputs of shape \(3, 5\)"),
        (torch.zeros(()), torch.tensor(0), r"shape \(\)"),
    ],
)
def test_train_refuses_invalid_labelled_sets(inputs, labels, message):
    with pytest.raises(InputError, match=message):
        train(make_small_network(), inputs, labels, 3, SGD, seed=0)


class Named(nn.Linear):
    def forward(self, x):
        return {"scores": super().forward(x)}


def test_train_refuses_invalid_networks():
    x, y = blobs()
    with pytest.raises(ModelError, match="none of the network's 6 parameters"):
        train(make_small_network().requires_grad_(False), x, y, 3, SGD, seed=0)
    with pytest.raises(ModelError, match="5 outputs for 3 classes"):
        train(make_small_network(5), x, y, 3, SGD, seed=0)
    with pytest.raises(ModelError, match="returned dict"):
        train(Named(4, 3), x, y, 3, SGD, seed=0)
    with pytest.raises(ModelError, match="got str"):
        train("mlp", x, y, 3, SGD, seed=0)
    with pytest.raises(ModelError, match="no shape yet"):
        train(nn.LazyLinear(3), x, y, 3, SGD, seed=0)
    unused = nn.Linear(4, 3).requires_grad_(False)
    unused.extra = nn.Parameter(torch.zeros(1))
    with pytest.raises(ModelError, match="depend on none of its trainable parameters"):
        train(unused, x, y, 3, SGD, seed=0)
    with pytest.raises(InputError, match="training is a dict"):
        train(make_small_network(), x, y, 3, {}, seed=0)
    with pytest.raises(InputError, match=r"inputs.float\(\)"):
        train(make_small_network(), x.to(torch.uint8), y, 3, SGD, seed=0)
    with pytest.raises(InputError, match="classes is 0"):
        train(make_small_network(), x, y, 0, SGD, seed=0)


def test_initialise_model_supports_every_start():
    previous = make_small_network(seed=9).state_dict()
    calls = []

    def factory(seed):
        calls.append(seed)
        model = nn.Sequential(*make_small_network(seed=seed))
        model[1].weight.requires_grad_(False)
        return model

    new = factory(3).state_dict()
    for start in ("cold", "warm", "shrink"):
        first = initialise_model(factory, None, Training(start=start), seed=3).state_dict()
        assert all(torch.equal(first[k], new[k]) for k in new)
    cold = initialise_model(factory, previous, Training(), seed=3).state_dict()
    assert all(torch.equal(cold[k], new[k]) for k in new)
    warm = initialise_model(factory, previous, Training(start="warm"), seed=3).state_dict()
    assert all(torch.equal(warm[k], previous[k]) for k in new)
    how = Training(start="shrink", shrink=0.3, perturb=0.2)
    between = initialise_model(factory, previous, how, seed=3).state_dict()
    for k in new:
        frozen = k == "1.weight"
        want = previous[k] if frozen else 0.3 * previous[k] + 0.2 * new[k]
        assert torch.allclose(between[k], want, atol=1e-7), k
    assert set(calls) == {3}


def test_initialise_model_keeps_previous_state_and_generator():
    old = make_small_network(seed=9)
    before = flatten_weights(old)
    state = torch.random.get_rng_state()

    def make(seed):
        return nn.Sequential(
            nn.Flatten(), *list(make_small_network().children())[1:-1], nn.Linear(16, 3)
        )

    one, two = (initialise_model(make, None, Training(), seed=1) for _ in range(2))
    # a factory without a seed of its own
    assert torch.equal(flatten_weights(one), flatten_weights(two))
    assert torch.equal(torch.random.get_rng_state(), state)
    model = initialise_model(make, old.state_dict(), Training(start="shrink"), seed=1)
    x, y = blobs()
    train(model, x, y, 3, Training(steps=3), seed=0)
    assert torch.equal(flatten_weights(old), before)


def test_initialise_model_refuses_a_mismatched_state():
    with pytest.raises(ModelError, match=r"do not fit the network .*start='cold'"):
        initialise_model(
            lambda s: make_small_network(5),
            make_small_network(3).state_dict(),
            Training(start="warm"),
            seed=0,
        )
    with pytest.raises(ModelError, match="returned a NoneType"):
        initialise_model(lambda s: None, None, Training(), seed=0)


def test_predict_does_not_depend_on_the_batch_size():
    x, y = blobs(25)
    model = make_batchnorm_network()
    train(model, x, y, 3, Training(steps=5), seed=0)
    with torch.no_grad():
        want = model(x)
    model.train()
    model[0].eval()
    modes = [m.training for m in model.modules()]
    for batch in (None, 1, 7, 1000):
        got = predict(model, x, batch=batch)
        assert torch.allclose(got, want, atol=1e-6)
        assert not got.requires_grad
        assert [m.training for m in model.modules()] == modes
    assert predict(nn.Flatten(0), torch.zeros(3, 1)).shape == (3, 1)  # one output per sample


def test_predict_raises_on_nan():
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.bias[0] = float("inf")
    with pytest.raises(NumericalError, match="2 of 2 inputs"):
        predict(model, torch.zeros(2, 4))
    for wrong in (0, -1, True, 2.0):
        with pytest.raises(InputError, match="batch is"):
            predict(nn.Linear(4, 3), torch.zeros(2, 4), batch=wrong)


def test_predict_restores_modes_after_an_error():
    model = make_batchnorm_network().train()
    with pytest.raises(InputError, match="forward failed"):
        predict(model, torch.zeros(2, 9))
    assert all(m.training for m in model.modules())
