"""Inputs that are not a single tensor are accepted everywhere, with equal results."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import labelahead as la
from labelahead.batching import Samples, as_inputs, load_inputs, read_batch
from labelahead.data import from_arrays
from labelahead.errors import InputError, ModelError
from labelahead.models.training.forward import compute_penultimate_features, predict, run_forward
from tests.support.campaigns import blobs

QUICK_TRAINING = la.Training(steps=40)
VECTOR_STRATEGIES = ("infinite-ntk", "gp")  # need inputs as rows of numbers


class Whole(nn.Module):
    """A network with one input tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.flatten(1))))


class Halves(Whole):
    """The same network with two input tensors; returns a tuple with the outputs first."""

    def forward(self, left: Tensor, right: Tensor):
        return super().forward(torch.cat([left, right], 2)), left


def make_network(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def make_input_forms(n: int = 60):
    """Return the items as a tensor, their classes, and the same items in every other form."""
    x, y = blobs(n)
    x = x.flatten(1, 2)
    left, right = x[..., :4], x[..., 4:]
    return (
        x,
        y,
        {
            "tuple": (left, right),
            "mapping": {"left": left, "right": right},
            "set": Samples(Pairs(left, right)),
        },
    )


class Pairs(Dataset):
    """A data set that records the largest number of items requested at once."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right, self.largest = left, right, 0

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, i: int):
        return self.left[i], self.right[i]

    def __getitems__(self, at: list[int]):
        self.largest = max(self.largest, len(at))
        return [self[i] for i in at]


@pytest.mark.parametrize("form", ["tuple", "mapping", "set"])
def test_learner_is_equal_for_every_input_form(form):
    x, y, others = make_input_forms()
    results = []
    for model, inputs in ((make_network(Whole), x), (make_network(Halves), others[form])):
        learner = la.Learner(
            model,
            inputs,
            la.QueryConfig(candidates=30),
            training=QUICK_TRAINING,
            test=range(50, 60),
        )
        learner.teach(range(9), y[:9])
        queried = learner.query(4)
        learner.teach(queried, y[queried])
        results.append((queried, learner.predict(), learner.model.first.weight))
    assert results[0][0] == results[1][0]
    assert torch.allclose(results[0][1], results[1][1], atol=1e-5)
    assert torch.allclose(results[0][2], results[1][2], atol=1e-6)


@pytest.mark.parametrize("form", ["tuple", "mapping", "set"])
def test_kernels_and_features_equal_those_of_a_tensor(form):
    x, _, others = make_input_forms(20)
    whole, halves = make_network(Whole).double(), make_network(Halves).double()
    inputs = others[form] if form == "set" else Samples(others[form])
    inputs = inputs.to(device="cpu", dtype=torch.float64)
    assert torch.allclose(la.kernel(halves, inputs), la.kernel(whole, x.double()), atol=1e-12)
    assert torch.allclose(
        la.features(halves, inputs, sketch=64),
        la.features(whole, x.double(), sketch=64),
        atol=1e-12,
    )
    assert torch.allclose(
        compute_penultimate_features(halves, inputs),
        compute_penultimate_features(whole, x.double()),
        atol=1e-12,
    )
    cotangents = torch.randn(20, 3, dtype=torch.float64)
    assert torch.allclose(
        la.ntk.squared_norms(halves, inputs, cotangents),
        la.ntk.squared_norms(whole, x.double(), cotangents),
        atol=1e-12,
    )


@pytest.mark.parametrize("strategy", la.STRATEGIES)
def test_every_strategy_accepts_samples(strategy):
    _, y, others = make_input_forms()
    learner = la.Learner(
        make_network(Halves), others["set"], strategy, training=QUICK_TRAINING, test=range(50, 60)
    )
    learner.teach(range(9), y[:9])
    if strategy in VECTOR_STRATEGIES:
        with pytest.raises(InputError, match="rows of numbers"):
            learner.query(3)
        return
    queried = learner.query(3)
    assert len(set(queried)) == 3
    assert set(queried) <= set(range(9, 50))


def test_samples_never_read_a_whole_data_set():
    left, right = torch.randn(5000, 8, 4), torch.randn(5000, 8, 4)
    pairs = Pairs(left, right)
    learner = la.Learner(
        make_network(Halves),
        Samples(pairs),
        la.QueryConfig(candidates=100),
        training=QUICK_TRAINING,
    )
    learner.teach(range(20), torch.arange(20) % 3)
    learner.query(5)
    learner.predict()
    assert 64 <= pairs.largest <= 128


def test_campaign_on_samples_resumes(tmp_path):
    (tmp_path / "halves.py").write_text(
        "import torch\nfrom tests.test_batching import Halves\ndef make():\n    return Halves()\n"
    )
    _, y, others = make_input_forms(80)
    data = from_arrays(others["mapping"], y, test=range(60, 80), name="pairs")
    budget = {"initial": 6, "labels": 12, "retrain_every": 3}
    config = {
        "model": {"name": f"{tmp_path}/halves.py:make"},
        "budget": budget,
        "training": {"steps": 40},
    }
    result = la.run(config, data=data, out=tmp_path / "run")
    assert result.rounds[-1].labels == 12
    assert result.rounds[-1].accuracy > 0.6
    resumed = la.resume(tmp_path / "run", {"budget.labels": 15}, data=data)
    whole = la.run({**config, "budget": {**budget, "labels": 15}}, data=data)
    assert torch.equal(resumed.pool.labelled, whole.pool.labelled)
    others["mapping"]["left"][0] += 1
    with pytest.raises(InputError, match="data have changed"):
        la.resume(tmp_path / "run", {"budget.labels": 16}, data=data)
    with pytest.raises(InputError, match="model is auto"):
        la.run(data=data)


def test_custom_training_gets_the_original_input_form():
    _, y, others = make_input_forms()
    received = []
    learner = la.Learner(
        make_network(Halves),
        others["mapping"],
        training=lambda model, x, labels: received.append(x),
    )
    learner.teach(range(6), y[:6])
    learner.query(1)
    assert torch.equal(received[0]["left"], others["mapping"]["left"][:6])
    other = la.Learner(
        make_network(Halves), others["set"], training=lambda model, x, labels: received.append(x)
    )
    other.teach(range(6), y[:6])
    other.query(1)
    assert [len(received[1]), *map(len, received[1].iter_batches(4))] == [6, 2, 2]


def test_hugging_face_networks_and_data_sets_work():
    transformers, datasets = pytest.importorskip("transformers"), pytest.importorskip("datasets")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=2,
    )
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    ids = torch.randint(5, 40, (40, 6))
    mask = torch.ones_like(ids)
    mask[::2, 4:] = 0
    encoding = transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask})
    table = datasets.Dataset.from_dict(
        {"input_ids": ids.tolist(), "attention_mask": mask.tolist(), "label": [0] * 40}
    )

    def collate(rows):
        return {k: torch.tensor([row[k] for row in rows]) for k in ("input_ids", "attention_mask")}

    with torch.no_grad():
        expected = model(**encoding).logits
    pool = la.Pool(40)
    pool.label(range(6), [0, 1] * 3)
    for inputs in (
        encoding,
        Samples(table, collate),
        Samples(table.remove_columns("label").with_format("torch")),
    ):
        assert torch.allclose(predict(model, inputs), expected, atol=1e-6)
        assert (
            la.propose(model, inputs, pool, 3).positions.tolist()
            == la.propose(model, encoding, pool, 3).positions.tolist()
        )
    with pytest.raises(InputError, match="without labels"):
        Samples(table.with_format("torch"))


class RandomPairs(Pairs):
    def __getitem__(self, i):
        return self.left[i] + torch.rand(1), self.right[i]


def test_samples_refuse_invalid_inputs():
    x, _, others = make_input_forms(20)
    left, right = others["tuple"]
    for inputs, message in (
        ([left, right], "are a list; expected a tensor"),
        (x.tolist(), "are a list"),
        ((left, right[:5]), "same number of samples"),
        ({"left": left, "labels": right}, "without labels"),
        ({"left": left, "right": right.tolist()}, "'right': 'list'"),
        ({}, "expected a tensor"),
        ((left, torch.full_like(right, torch.nan)), "NaN or infinity in 20 of 20"),
    ):
        with pytest.raises(InputError, match=message):
            la.Learner(make_network(Halves), inputs)
    with pytest.raises(InputError, match="random"):
        Samples(RandomPairs(left, right))
    with pytest.raises(InputError, match="no items"):
        Samples(Pairs(left[:0], right[:0]))
    with pytest.raises(InputError, match="without Samples"):
        Samples(x)
    with pytest.raises(InputError, match="expected 1 samples"):
        Samples(Pairs(left, right), lambda rows: torch.zeros(3))
    with pytest.raises(InputError, match="rows of numbers"):
        la.Learner(la.exact(x, 3), others["tuple"])
    with pytest.raises(
        InputError, match=r"failed on inputs of shape left \(20, 8, 4\) torch.float32"
    ):
        run_forward(make_network(Halves), {"left": left})
    with pytest.raises(ModelError, match="returned dict"):
        run_forward(lambda left, right: {"scores": left}, (left, right))


def test_arrays_share_memory_and_equal_tensors():
    x, y, _ = make_input_forms(20)
    array = x.numpy().copy()
    array.flags.writeable = False
    learners = [la.Learner(make_network(Whole), inputs) for inputs in (x, array)]
    assert learners[1].inputs.data_ptr() == array.ctypes.data
    for learner in learners:
        learner.teach(range(6), y[:6])
    assert torch.equal(learners[0].predict(), learners[1].predict())


@pytest.mark.parametrize("dtype", [object, ">f4", str])
def test_arrays_that_torch_cannot_read_raise(dtype):
    with pytest.raises(InputError, match="torch cannot read"):
        as_inputs(np.ones((4, 2)).astype(dtype))


X, Y = torch.randn(7, 3), torch.arange(7)
MASK = torch.ones(7, 3)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


@pytest.mark.parametrize(
    "data",
    [
        X.numpy(),
        TensorDataset(X),
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=3),
        DataLoader(Stream(), batch_size=3),
        [X[:4], X[4:]],
        [(X[:4], Y[:4]), (X[4:], Y[4:])],
        ((part, None)[0] for part in X.split(2)),
    ],
)
def test_load_inputs_of_one_tensor_leave_labels_out(data):
    assert torch.equal(read_batch(load_inputs(data)), X)


@pytest.mark.parametrize(
    "data",
    [
        (X, MASK),
        TensorDataset(X, MASK, Y),
        DataLoader(TensorDataset(X, MASK), batch_size=2),
        [(X[:4], MASK[:4]), (X[4:], MASK[4:])],
    ],
)
def test_load_inputs_of_two_tensors_keep_both(data):
    found = read_batch(load_inputs(data))
    assert all(torch.equal(a, b) for a, b in zip(found, (X, MASK), strict=True))


def test_load_inputs_of_mappings_leave_labels_out():
    rows = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    loader = DataLoader(rows, batch_size=2)
    batches = [{"x": X[:2], "label": Y[:2]}, {"x": X[2:], "label": Y[2:]}]
    for data in (loader, batches):
        found = read_batch(load_inputs(data))
        assert list(found) == ["x"]
        assert torch.equal(found["x"], X)


def test_load_inputs_refuses_what_has_no_order_or_form():
    for data, match in (
        (DataLoader(TensorDataset(X), shuffle=True), "shuffle=False"),
        ([], "no batch"),
        ([X, (X, MASK)], "several types"),
        (["text"], "yields a str"),
        (3, "inputs are a int"),
    ):
        with pytest.raises(InputError, match=match):
            load_inputs(data)


def test_kernel_of_a_loader_equals_that_of_its_tensor():
    model = nn.Linear(3, 2)
    want = la.kernel(model, X)
    for data in (X.numpy(), DataLoader(TensorDataset(X, Y), batch_size=3), [X[:4], X[4:]]):
        assert torch.allclose(la.kernel(model, data), want)
        assert torch.allclose(la.ntk.operator(model, data) @ torch.ones(7), want.sum(1), rtol=1e-4)
