import pytest
import torch

from labelahead.acquisition import variance
from labelahead.acquisition.sources import LabelSource
from labelahead.errors import InputError
from labelahead.inference.exact_model import exact
from labelahead.learner.learner import Learner
from labelahead.models.training import Training
from labelahead.strategies import STRATEGIES
from labelahead.strategies.base import QueryConfig
from labelahead.strategies.lookahead import make_lookahead_strategy
from tests.support.campaigns import blobs, own

QUICK = Training(steps=40)


def make_taught_learner(strategy="flip", count=9, **more) -> tuple[Learner, torch.Tensor]:
    x, y = blobs(60)
    learner = Learner(own(), x, strategy, training=QUICK, test=range(50, 60), **more)
    learner.teach(range(count), y[:count])
    return learner, y


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_query_and_teach_until_pool_is_labelled(strategy):
    learner, y = make_taught_learner(strategy, retrain_every=7)
    learner.train()
    while len(learner.pool) < 50:
        queried = learner.query(min(6, 50 - len(learner.pool)))
        assert not set(queried) & set(learner.pool.labelled.tolist())
        assert max(queried) < 50
        learner.teach(queried, y[queried])
    with pytest.raises(InputError, match="unlabelled"):
        learner.query(1)
    learner.train()
    assert (learner.predict(range(50, 60)).argmax(1) == y[50:]).float().mean() > 0.8


def test_teach_updates_posterior_without_training():
    learner, y = make_taught_learner()
    learner.train()
    first = learner.query(1)
    weights = {k: v.clone() for k, v in learner.model.state_dict().items()}
    before = learner.predict()
    learner.teach(first, y[first])
    after = learner.predict()
    assert all(torch.equal(v, weights[k]) for k, v in learner.model.state_dict().items())
    assert not torch.allclose(before, after)
    assert learner._labels_since_training == 1


def test_items_outside_the_kernel_are_predicted_between_trainings():
    learner, y = make_taught_learner()
    learner.train()
    first = learner.query(1)
    before = learner.predict(range(50, 60))
    learner.teach(first, y[first])
    assert torch.equal(learner.predict(range(50, 60)), before)


def test_drift_is_set_and_logged_after_training(caplog):
    learner, y = make_taught_learner(retrain_every=100)
    assert learner.drift is None
    learner.train()
    learner.query(1)
    assert learner.drift is not None
    assert learner.drift <= 0.1
    assert not [r for r in caplog.records if "train longer" in r.getMessage()]
    undertrained = Learner(
        own(),
        learner.inputs,
        "flip",
        training=Training(steps=0),
        test=range(50, 60),
        retrain_every=1,
    )
    undertrained.teach(range(9), y[:9])
    undertrained.query(1)
    assert undertrained.drift > 0.1
    assert len([r for r in caplog.records if "train longer" in r.getMessage()]) == 1


def test_teach_one_by_one_equals_all_at_once():
    learner, y = make_taught_learner(count=6)
    learner.train()
    queried = learner.query(3)
    before = learner._pool_posterior
    for position in queried:
        learner.teach([position], y[[position]])
    rows = [before.points.tolist().index(p) for p in queried]
    conditioned = before.posterior.condition(rows, y[queried])
    assert torch.allclose(learner._pool_posterior.posterior.mean, conditioned.mean, atol=1e-9)


def test_query_retrains_after_retrain_every_labels():
    learner, y = make_taught_learner(count=6, retrain_every=2)
    learner.train()
    weights = learner.model.first.weight.clone()
    for _ in range(2):
        queried = learner.query(1)
        assert torch.equal(learner.model.first.weight, weights)
        learner.teach(queried, y[queried])
    learner.query(1)
    assert learner._labels_since_training == 0
    assert not torch.equal(learner.model.first.weight, weights)


def test_learner_calls_training_function_and_queries():
    x, y = blobs(60)
    calls = []

    def fit(model, inputs, labels):
        calls.append(len(labels))
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(30):
            optimiser.zero_grad()
            torch.nn.functional.mse_loss(
                model(inputs), torch.nn.functional.one_hot(labels, 3).float()
            ).backward()
            optimiser.step()

    learner = Learner(own(), x, training=fit, retrain_every=3)
    learner.teach([0, 1, 2], y[:3])
    queried = learner.query(3)
    learner.teach(queried, y[queried])
    learner.query(2)
    assert calls == [3, 6]
    assert learner.loss == "squared"
    assert not learner.model.training


def test_loaded_learner_queries_the_same(tmp_path):
    learner, y = make_taught_learner(QueryConfig("flip", candidates=20), retrain_every=5)
    learner.train()
    queried = learner.query(2)
    learner.teach(queried, y[queried])
    learner.save(tmp_path / "l.pt")
    other = Learner.load(tmp_path / "l.pt", own(seed=9), learner.inputs)
    assert other.pool.unlabelled.tolist() == learner.pool.unlabelled.tolist()  # test items, too
    assert torch.equal(other.pool.labelled, learner.pool.labelled)
    learner._pool_posterior = None  # the kernel is not saved: both compute a new one
    assert other.query(3) == learner.query(3)
    assert torch.equal(other.predict(), learner.predict())
    learner.train()
    other.train()
    assert all(
        torch.equal(a, b)
        for a, b in zip(learner.model.parameters(), other.model.parameters(), strict=True)
    )


def test_learner_invalid_files_and_arguments_raise(tmp_path):
    x, _ = blobs(20)
    learner = Learner(own(), x)
    with pytest.raises(InputError, match="no label yet"):
        learner.train()
    with pytest.raises(InputError, match="class 3"):
        learner.teach([0], [3])
    assert len(learner.pool) == 0
    with pytest.raises(InputError, match="strategy is 'flap'"):
        Learner(own(), x, "flap")
    with pytest.raises(InputError, match="retrain_every"):
        Learner(own(), x, retrain_every=0)
    with pytest.raises(InputError, match="does not exist"):
        Learner.load(tmp_path / "none", own(), x)
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(InputError, match="cannot be read"):
        Learner.load(tmp_path / "junk", own(), x)
    learner.save(tmp_path / "a.pt")
    with pytest.raises(InputError, match="another architecture"):
        Learner.load(tmp_path / "a.pt", own(classes=4), x)
    with pytest.raises(InputError, match="class numbers"):
        learner.teach([0], ["a"])
    with pytest.raises(InputError, match="loss is 'hinge'"):
        Learner(own(), x, loss="hinge")
    with pytest.raises(InputError, match="expected one of them"):
        Learner(own(), x, training=Training(), loss="cross-entropy")
    with pytest.raises(InputError, match="20 inputs, not 10"):
        Learner.load(tmp_path / "a.pt", own(), x[:10])
    assert len(Learner.load(tmp_path / "a.pt", own(), x).query(2)) == 2


def test_training_function_with_cross_entropy_gives_softmax():
    x, y = blobs(40)
    learner = Learner(own(), x, "entropy", training=lambda *_: None, loss="cross-entropy")
    with torch.no_grad():
        want = torch.softmax(learner.model.eval()(x).double(), 1)
    assert torch.allclose(learner.predict(), want, atol=1e-6)
    learner.teach([0, 1], y[:2])
    assert learner.query(3)


@pytest.mark.parametrize("strategy", ["entropy", "flip"])
def test_query_trains_at_most_once(strategy):
    x, y = blobs(60)
    calls = []
    learner = Learner(
        own(), x, strategy, training=lambda m, i, t: calls.append(len(t)), retrain_every=4
    )
    learner.teach([0, 1, 2], y[:3])
    for _ in range(8):
        queried = learner.query(1)
        learner.teach(queried, y[queried])
    assert calls == [3, 7]  # with the first labels, then after four more
    learner.query(1)
    assert calls == [3, 7, 11]


def test_float64_network_works_with_strategies_that_train_networks():
    x, y = blobs(30)
    for strategy in ("flip", "bald", "ll4al", "egl", "dynamical", "badge"):
        learner = Learner(own().double(), x, strategy, training=Training(steps=5))
        learner.teach([0, 1, 2, 3], y[:4])
        assert len(learner.query(3)) == 3


def test_loaded_learner_predicts_with_pending_labels(tmp_path):
    learner, y = make_taught_learner()
    learner.train()
    queried = learner.query(4)
    learner.teach(queried, y[queried])
    learner.save(tmp_path / "l.pt")
    other = Learner.load(tmp_path / "l.pt", own(), learner.inputs)
    outputs, loaded_outputs = learner.predict(), other.predict()
    assert torch.allclose(outputs[queried], loaded_outputs[queried], atol=1e-6)


def test_load_requires_strategy_given_in_python(tmp_path):
    custom_strategy = make_lookahead_strategy("mine", "a test", acquisition=variance)
    learner, _ = make_taught_learner(QueryConfig(custom_strategy, candidates=20))
    named, _ = make_taught_learner(QueryConfig("variance", mode="greedy", candidates=20))
    learner.save(tmp_path / "l.pt")
    with pytest.raises(InputError, match="strategy mine; expected it as `strategy`"):
        Learner.load(tmp_path / "l.pt", own(seed=9), learner.inputs)
    other = Learner.load(tmp_path / "l.pt", own(seed=9), learner.inputs, strategy=custom_strategy)
    assert other.query(1) == learner.query(1) == named.query(1)


def test_query_without_labels_covers_pool():
    x, y = blobs(60)
    queried = {
        name: Learner(own(), x, QueryConfig(name, candidates=None), seed=3).query(4)
        for name in ("resolve", "variance")
    }
    for name in ("flip", "mlmoc", "changes", "eer"):
        learner = Learner(own(), x, QueryConfig(name, candidates=None), seed=3)
        assert learner.query(4) == queried["resolve"]
    assert queried["variance"] != queried["resolve"]
    learner.teach(queried["resolve"], y[queried["resolve"]])
    assert not set(learner.query(3)) & set(queried["resolve"])


def test_exact_learner_predicts_all_items_with_all_labels():
    rng = torch.Generator().manual_seed(0)
    truth = torch.arange(60) % 3
    x = 4 * torch.randn(3, 5, generator=rng)[truth] + torch.randn(60, 5, generator=rng)
    test = list(range(40, 60))
    learner = Learner(exact(x, 3), x, "resolve", test=test, retrain_every=100)
    learner.query(1)  # the kernel covers the candidates only
    learner.teach(list(range(12)), truth[:12].tolist())
    predicted = learner.predict(test)
    assert (
        predicted.argmax(1) == truth[40:]
    ).float().mean() > 0.9  # 1/3 if the labels were ignored
    learner.train()
    torch.testing.assert_close(predicted, learner.predict(test))


def make_priced_learner(**more):
    x, y = blobs(60)
    x = x + 3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    learner = Learner(exact(x, 3), x, test=range(50, 60), **more)
    anna = LabelSource("anna", price=0.10)
    llm = LabelSource("llm", price=0.001, error_rate=0.3)
    return learner, y, anna, llm


def test_query_sources_returns_pairs_within_budget_and_pool():
    learner, y, anna, llm = make_priced_learner()
    learner.teach(range(6), y[:6], source="anna")
    chosen = learner.query_sources([anna, llm], 8, budget=0.25)
    assert sum(q.price for q in chosen) <= 0.25
    assert len({(q.position, q.source) for q in chosen}) == len(chosen) > 0
    assert all(q.position < 50 for q in chosen)  # never the test part
    assert not {q.position for q in chosen} & set(range(6))  # careful labels are final
    assert learner.query_sources([anna], 3, value=1e-9) == []


@pytest.mark.parametrize("first", [0, 3])
def test_query_sources_offers_labels_of_a_noisy_source_to_a_better_one(first):
    """Also if the noisy source has given all labels so far."""
    learner, y, anna, llm = make_priced_learner()
    if first:
        learner.teach(range(first), y[:first], source="anna")
    learner.teach(range(first, 50), (y[first:50] + (torch.arange(50 - first) % 3 == 0)) % 3,
                  source="llm")  # fmt: skip
    chosen = learner.query_sources([anna, llm], 4)
    assert {q.source for q in chosen} == {"anna"}  # the other one has said all it can
    assert {q.position for q in chosen} <= set(range(first, 50))


def test_query_sources_refuses_networks():
    learner, _ = make_taught_learner()
    with pytest.raises(InputError, match="cannot be weighed by a trained network"):
        learner.query_sources([LabelSource("anna")], 1)


def test_goal_macro_f1_changes_queries_and_accuracy_is_the_default():
    rng = torch.Generator().manual_seed(3)
    y = torch.tensor([0] * 150 + [1] * 35 + [2] * 15)[torch.randperm(200, generator=rng)]
    x = 1.5 * torch.eye(3, 6)[y] + torch.randn(200, 6, generator=rng)
    found = {}
    for name, config in {
        "default": "flip",
        "accuracy": QueryConfig("flip", goal="accuracy"),
        "macro": QueryConfig("flip", goal="macro-f1"),
    }.items():
        learner = Learner(exact(x, 3), x, strategy=config)
        learner.teach(range(30), y[:30])
        found[name] = learner.query(10)
    assert found["default"] == found["accuracy"]
    assert found["macro"] != found["accuracy"]
    with pytest.raises(InputError, match="margin cannot weigh classes for the goal macro-f1"):
        Learner(exact(x, 3), x, strategy=QueryConfig("margin", goal="macro-f1"))
