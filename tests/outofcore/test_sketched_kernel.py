"""Networks' kernels by sketched features.

What parts make of them is what one posterior makes of all, in float64.
"""

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import labelahead as la
from labelahead.acquisition.batch_selection import score_candidates
from labelahead.acquisition.pool_view import view
from labelahead.acquisition.probability import probabilities, softmax
from labelahead.cli import app
from labelahead.errors import ClusterError, InputError, LabelaheadError
from labelahead.gp.posterior import prior
from labelahead.inference.exact import NOISE_GRID
from labelahead.outofcore import LargePool, embed
from labelahead.outofcore.sketched_kernel import describe_network
from tests.support.large_pools import CLASSES, Inline, clouds, parquet_pool

N, K = 120, 64
HERE = Inline()
NET = """
import torch
from torch import nn

def make(shape, classes):
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(shape[0], 16), nn.Tanh(), nn.Linear(16, classes)).double()
"""


def made(folder, seed=5):
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(NET.replace("SEED", str(seed)))
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def store_of(tmp_path, loss, **how):
    x, y = clouds(N)
    net = made(tmp_path / "code")
    embed(
        parquet_pool(tmp_path / "pool", x),
        tmp_path / "store",
        model=f"{tmp_path / 'code' / 'net.py'}:make",
        classes=CLASSES,
        sketch=K,
        trained=loss,
        dtype="float32",
        rows=20,
        executor=HERE,
        **how,
    )
    inputs = torch.from_numpy(x.astype(np.float32)).double()
    psi = la.features(net, inputs, sketch=K).detach().float().double()  # as they are kept
    with torch.no_grad():
        outputs = net(inputs)
    start = torch.full((N, 3), 1 / 3, dtype=torch.float64)
    if loss:
        start = (softmax(outputs) if loss == "cross-entropy" else outputs).float().double()
    return LargePool(tmp_path / "store", executor=HERE, dtype=torch.float64), psi, start, y


@pytest.mark.parametrize("acquisition", ["resolve", "variance", "flip", "mlmoc", "changes", "emoc"])
@pytest.mark.parametrize("loss", [None, "squared", "cross-entropy"])
def test_sketched_scores_match_single_posterior(tmp_path, loss, acquisition):
    large, psi, start, y = store_of(tmp_path, loss)
    at = torch.arange(0, N, 7)
    labels = {f"item {i}": CLASSES[y[i]] for i in at.tolist()}
    held = large.select_subset(labels, strategy=acquisition, evaluation=30, candidates=N)
    noise = held.model.noise
    assert noise in NOISE_GRID
    post = prior(start, features=psi, noise=noise).condition(at, torch.as_tensor(y[at]))
    judged = large.sample_positions(30, at, 0)
    left = (~post.is_labelled).nonzero().squeeze(1)
    naive = score_candidates(view(post, left, judged, baseline="linearised"), acquisition)
    mine = dict(zip(held.best.positions.tolist(), held.best.scores.tolist(), strict=True))
    assert sorted(mine) == left.tolist()
    assert torch.allclose(
        torch.tensor([mine[p] for p in left.tolist()], dtype=torch.float64), naive, rtol=1e-8
    )


@pytest.mark.parametrize("loss", [None, "squared"])
def test_sketched_predictions_and_updates_are_exact(tmp_path, loss):
    large, psi, start, y = store_of(tmp_path, loss)
    at = torch.arange(0, N, 5)
    labels = {f"item {i}": CLASSES[y[i]] for i in at.tolist()}
    held = large.select_subset(labels, evaluation=40, candidates=20, finalists=5)
    post = prior(start, features=psi, noise=held.model.noise).condition(at, torch.as_tensor(y[at]))
    pool_posterior = held.build_posterior()
    assert torch.allclose(pool_posterior.mean(held.positions.tolist()), post.mean[held.positions])
    position = pool_posterior.best("resolve")[0]
    more = pool_posterior.with_labels(pool_posterior.labels | {position: int(y[position])})
    naive = post.condition([position], torch.as_tensor(y[[position]]))
    assert torch.allclose(more.mean(held.positions.tolist()), naive.mean[held.positions])
    every = probabilities(post.mean, "simplex").argmax(1)
    done = large.predict(labels, tmp_path / "out", evaluation=40)
    counts = torch.bincount(every, minlength=3).tolist()
    assert done.counts == dict(zip(CLASSES, counts, strict=True))
    assert 0 <= done.forecast.error.rate <= 1


def test_sketched_finalists_match_single_posterior(tmp_path):
    large, psi, start, y = store_of(tmp_path, "squared")
    at = torch.arange(0, N, 9)
    held = large.select_subset(
        {f"item {i}": CLASSES[y[i]] for i in at.tolist()}, evaluation=30, candidates=N, finalists=N
    )
    post = prior(start, features=psi, noise=held.model.noise).condition(at, torch.as_tensor(y[at]))
    left = (~post.is_labelled).nonzero().squeeze(1)
    naive = score_candidates(view(post, left, left), "resolve")
    assert held.best.positions[:20].tolist() == left[naive.argsort(descending=True)[:20]].tolist()


def test_partition_key_depends_on_network_weights(tmp_path):
    store_of(tmp_path, None)
    before = {p.name for p in (tmp_path / "store" / "parts").iterdir()}
    told = []
    how = {
        "model": f"{tmp_path / 'code' / 'net.py'}:make",
        "classes": CLASSES,
        "sketch": K,
        "dtype": "float32",
    }
    again = {"rows": 20, "executor": HERE, "progress": lambda *said: told.append(said)}
    embed(tmp_path / "pool", tmp_path / "store", **how, **again)
    assert not told
    made(tmp_path / "code", seed=6)
    embed(tmp_path / "pool", tmp_path / "store", **how, **again)
    assert told
    after = {p.name for p in (tmp_path / "store" / "parts").iterdir()}
    assert not before & after
    assert len(before) == len(after)


def test_different_weights_on_worker_raise(tmp_path):
    made(tmp_path / "code")
    of = describe_network(f"{tmp_path / 'code' / 'net.py'}:make", CLASSES, (6,), K, None)
    made(tmp_path / "code", seed=6)
    with pytest.raises(ClusterError, match="other weights"):
        of.rows(np.zeros((2, 6)))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"classes": ["a"]}, "expected two or more"),
        ({"trained": "hinge"}, "trained is 'hinge'"),
        ({"sketch": 0}, "sketch is 0"),
        ({"model": None}, "expected model"),
        ({"model": "nowhere.py:make"}, r"no file '.*nowhere.py'"),
        ({"classes": ["a", "b"]}, "net.py:make"),
    ],
)
def test_invalid_network_raises(tmp_path, how, message):
    x, _ = clouds(30)
    made(tmp_path / "code")
    (tmp_path / "code" / "net.py").write_text(
        NET.replace("SEED", "5").replace("16, classes", "16, 3")
    )
    given = {"model": f"{tmp_path / 'code' / 'net.py'}:make", "classes": CLASSES} | how
    with pytest.raises(LabelaheadError, match=message):
        embed(parquet_pool(tmp_path / "pool", x), tmp_path / "store", executor=HERE, **given)


def test_labels_follow_order_of_network_outputs(tmp_path):
    large, _, _, y = store_of(tmp_path, "squared")
    labels = {f"item {i}": CLASSES[y[i]] for i in range(N) if y[i] == 2 or i % 9 == 0}
    told = large.resolve_labels(labels, (), HERE)
    assert told.classes == CLASSES
    assert told.numbers.tolist() == [int(y[i]) for i in told.positions.tolist()]
    with pytest.raises(InputError, match="the network's classes are ash, elm, oak"):
        large.resolve_labels({"item 1": "fir", "item 2": "oak"}, (), HERE)
    guesses = large.query(3, evaluation=20)
    assert [q.prediction for q in guesses] == [None] * 3  # nobody said anything yet


def test_cli_sketched_pool_with_npy(tmp_path):
    x, y = clouds(60)
    np.save(tmp_path / "x.npy", x)
    made(tmp_path)
    run = CliRunner().invoke
    how = [
        "--model",
        f"{tmp_path / 'net.py'}:make",
        "--classes",
        ",".join(CLASSES),
        "--sketch",
        "32",
    ]
    store = str(tmp_path / "s")
    done = run(
        app, ["pool", "embed", str(tmp_path / "x.npy"), "--store", store, *how, "--workers", "1"]
    )
    assert done.exit_code == 0, done.output
    assert "60 items in 1 parts" in done.output
    assert (
        json.loads((tmp_path / "s" / "manifest.json").read_text())["reading"]["network"]["sketch"]
        == 32
    )
    (tmp_path / "l.csv").write_text(
        "item,label\n" + "".join(f"x.npy:{i},{CLASSES[y[i]]}\n" for i in range(0, 60, 4))
    )
    asked = run(
        app,
        ["pool", "ask", store, "--labels", str(tmp_path / "l.csv"), "--n", "2", "--workers", "1"],
    )
    assert asked.exit_code == 0, asked.output
    assert len(asked.stdout.strip().splitlines()) == 3
