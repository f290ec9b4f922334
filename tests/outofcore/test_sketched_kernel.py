"""Kernels of networks by sketched features: partitions equal one float64 posterior of all items."""

import numpy as np
import pytest
import torch

import labelahead as la
from labelahead.acquisition.batch_selection import score_candidates
from labelahead.acquisition.pool_view import view
from labelahead.acquisition.probability import probabilities, softmax
from labelahead.errors import ClusterError, InputError, LabelaheadError
from labelahead.gp.posterior import prior
from labelahead.inference.mixture import NOISE_GRID
from labelahead.outofcore import EmbedOptions, LargePool, NetworkOptions, embed
from labelahead.outofcore.sketched_kernel import describe_network
from tests.support.devices import ALLOWED_EXITS, PretendedDevice
from tests.support.large_pools import CLASSES, NET, Inline, clouds, parquet_pool, write_network

N, K = 120, 64
INLINE = Inline()


def make_store(tmp_path, loss, **how):
    x, y = clouds(N)
    net = write_network(tmp_path / "code")
    embed(
        parquet_pool(tmp_path / "pool", x),
        tmp_path / "store",
        EmbedOptions(dtype="float32", rows=20),
        network=NetworkOptions(
            model=f"{tmp_path / 'code' / 'net.py'}:make", classes=CLASSES, sketch=K, trained=loss
        ),
        executor=INLINE,
        **how,
    )
    inputs = torch.from_numpy(x.astype(np.float32)).double()
    psi = la.features(net, inputs, sketch=K).detach().float().double()  # as stored
    with torch.no_grad():
        outputs = net(inputs)
    start = torch.full((N, 3), 1 / 3, dtype=torch.float64)
    if loss:
        start = (softmax(outputs) if loss == "cross-entropy" else outputs).float().double()
    return LargePool(tmp_path / "store", executor=INLINE, dtype=torch.float64), psi, start, y


@pytest.mark.parametrize("acquisition", ["resolve", "variance", "flip", "mlmoc", "changes", "emoc"])
@pytest.mark.parametrize("loss", [None, "squared", "cross-entropy"])
def test_sketched_scores_match_single_posterior(tmp_path, loss, acquisition):
    large, psi, start, y = make_store(tmp_path, loss)
    at = torch.arange(0, N, 7)
    labels = {f"item {i}": CLASSES[y[i]] for i in at.tolist()}
    subset = large.select_subset(labels, strategy=acquisition, evaluation=30, candidates=N)
    noise = subset.model.noise
    assert noise in NOISE_GRID
    post = prior(start, features=psi, noise=noise).condition(at, torch.as_tensor(y[at]))
    evaluation = large.sample_positions(30, at, 0)
    unlabelled = (~post.is_labelled).nonzero().squeeze(1)
    naive = score_candidates(view(post, unlabelled, evaluation, baseline="linearised"), acquisition)
    scores = dict(zip(subset.best.positions.tolist(), subset.best.scores.tolist(), strict=True))
    assert sorted(scores) == unlabelled.tolist()
    assert torch.allclose(
        torch.tensor([scores[p] for p in unlabelled.tolist()], dtype=torch.float64),
        naive,
        rtol=1e-8,
    )


@pytest.mark.parametrize("loss", [None, "squared"])
def test_sketched_predictions_and_updates_are_exact(tmp_path, loss):
    large, psi, start, y = make_store(tmp_path, loss)
    at = torch.arange(0, N, 5)
    labels = {f"item {i}": CLASSES[y[i]] for i in at.tolist()}
    subset = large.select_subset(labels, evaluation=40, candidates=20, finalists=5)
    post = prior(start, features=psi, noise=subset.model.noise).condition(
        at, torch.as_tensor(y[at])
    )
    pool_posterior = subset.build_posterior()
    assert torch.allclose(
        pool_posterior.mean(subset.positions.tolist()), post.mean[subset.positions]
    )
    position = pool_posterior.best("resolve")[0]
    more = pool_posterior.with_labels(pool_posterior.labels | {position: int(y[position])})
    naive = post.condition([position], torch.as_tensor(y[[position]]))
    assert torch.allclose(more.mean(subset.positions.tolist()), naive.mean[subset.positions])
    every = probabilities(post.mean, "simplex").argmax(1)
    done = large.predict(labels, tmp_path / "out", evaluation=40)
    counts = torch.bincount(every, minlength=3).tolist()
    assert done.counts == dict(zip(CLASSES, counts, strict=True))
    assert 0 <= done.forecast.error.rate <= 1


def test_sketched_finalists_match_single_posterior(tmp_path):
    large, psi, start, y = make_store(tmp_path, "squared")
    at = torch.arange(0, N, 9)
    subset = large.select_subset(
        {f"item {i}": CLASSES[y[i]] for i in at.tolist()}, evaluation=30, candidates=N, finalists=N
    )
    post = prior(start, features=psi, noise=subset.model.noise).condition(
        at, torch.as_tensor(y[at])
    )
    left = (~post.is_labelled).nonzero().squeeze(1)
    naive = score_candidates(view(post, left, left), "resolve")
    assert subset.best.positions[:20].tolist() == left[naive.argsort(descending=True)[:20]].tolist()


def test_partition_key_depends_on_network_weights(tmp_path):
    make_store(tmp_path, None)
    before = {p.name for p in (tmp_path / "store" / "parts").iterdir()}
    progress_calls = []
    network = NetworkOptions(f"{tmp_path / 'code' / 'net.py'}:make", CLASSES, K)
    how = {
        "network": network,
        "executor": INLINE,
        "progress": lambda *arguments: progress_calls.append(arguments),
    }
    options = EmbedOptions(dtype="float32", rows=20)
    embed(tmp_path / "pool", tmp_path / "store", options, **how)
    assert not progress_calls
    write_network(tmp_path / "code", seed=6)
    embed(tmp_path / "pool", tmp_path / "store", options, **how)
    assert progress_calls
    after = {p.name for p in (tmp_path / "store" / "parts").iterdir()}
    assert not before & after
    assert len(before) == len(after)


def test_features_computed_on_a_device_equal_those_of_the_cpu(tmp_path):
    large, *_ = make_store(tmp_path, "cross-entropy")
    first, _ = large.read_items(torch.arange(N), INLINE)
    with PretendedDevice(allowed_exits=("outofcore/", *ALLOWED_EXITS)) as device:
        there, *_ = make_store(tmp_path, "cross-entropy", device=str(device.device))
        assert device.operations["mm"] + device.operations["addmm"]
    assert large.manifest.schema.device == "cpu"
    assert there.manifest.schema.device == "lazy:0"
    assert not {e.features for e in large.entries} & {e.features for e in there.entries}
    second, _ = there.read_items(torch.arange(N), INLINE)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


def test_different_weights_on_worker_raise(tmp_path):
    write_network(tmp_path / "code")
    description = describe_network(
        NetworkOptions(f"{tmp_path / 'code' / 'net.py'}:make", CLASSES, K), (6,)
    )
    write_network(tmp_path / "code", seed=6)
    with pytest.raises(ClusterError, match="other weights"):
        description.rows(np.zeros((2, 6)))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"classes": ["a"]}, "expected two or more"),
        ({"trained": "hinge"}, "trained is 'hinge'"),
        ({"sketch": 0}, "sketch is 0"),
        ({"model": "nowhere.py:make"}, r"no file '.*nowhere.py'"),
        ({"classes": ["a", "b"]}, "net.py:make"),
    ],
)
def test_invalid_network_raises(tmp_path, how, message):
    x, _ = clouds(30)
    write_network(tmp_path / "code")
    (tmp_path / "code" / "net.py").write_text(
        NET.replace("SEED", "5").replace("16, classes", "16, 3")
    )
    given = {"model": f"{tmp_path / 'code' / 'net.py'}:make", "classes": CLASSES} | how
    with pytest.raises(LabelaheadError, match=message):
        embed(
            parquet_pool(tmp_path / "pool", x),
            tmp_path / "store",
            network=NetworkOptions(**given),
            executor=INLINE,
        )


def test_labels_follow_order_of_network_outputs(tmp_path):
    large, _, _, y = make_store(tmp_path, "squared")
    labels = {f"item {i}": CLASSES[y[i]] for i in range(N) if y[i] == 2 or i % 9 == 0}
    resolved = large.resolve_labels(labels, (), INLINE)
    assert resolved.classes == CLASSES
    assert resolved.numbers.tolist() == [int(y[i]) for i in resolved.positions.tolist()]
    with pytest.raises(InputError, match="the network's classes are ash, elm, oak"):
        large.resolve_labels({"item 1": "fir", "item 2": "oak"}, (), INLINE)
    queries = large.query(3, evaluation=20)
    assert [q.prediction for q in queries] == [None] * 3  # no labels yet
