"""Kernels and features in files: equal to those in memory, resumed after an interruption."""

import numpy as np
import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.batching import Samples
from labelahead.errors import InputError, StorageError

pytestmark = pytest.mark.usefixtures("float64")


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(11, 4)


class InterruptedRunError(Exception):
    pass


def stop_after(samples):
    def progress(done, n):
        if done >= samples:
            raise InterruptedRunError

    return progress


@pytest.mark.parametrize("kind", ["pseudo", "full"])
def test_saved_kernel_equals_kernel_after_interruptions(kind, tmp_path):
    model, x = build()
    path, steps = tmp_path / "K.npy", []
    for samples in (4, 8):
        with pytest.raises(InterruptedRunError):
            la.ntk.save_kernel(model, x, path, block=4, kind=kind, on_progress=stop_after(samples))
    K = la.ntk.save_kernel(
        model, x, path, block=4, kind=kind, on_progress=lambda done, n: steps.append((done, n))
    )
    assert steps == [(11, 11)]  # the other blocks were on the disk
    assert [p.name for p in tmp_path.iterdir()] == ["K.npy"]
    np.testing.assert_allclose(K, la.kernel(model, x, kind=kind), rtol=1e-10, atol=1e-12)
    assert np.array_equal(K, K.T)


@pytest.mark.parametrize("options", [{"sketch": 7}, {"kind": "full"}, {}])
def test_saved_features_equal_features(options, tmp_path):
    model, x = build()
    with pytest.raises(InterruptedRunError):
        la.ntk.save_features(
            model,
            Samples(list(x)),
            tmp_path / "f.npy",
            block=3,
            on_progress=stop_after(3),
            **options,
        )
    found = la.ntk.save_features(model, Samples(list(x)), tmp_path / "f.npy", block=3, **options)
    np.testing.assert_allclose(found, la.features(model, x, **options), rtol=1e-10, atol=1e-12)


def test_features_of_a_loss_equal_its_gradients(tmp_path):
    model, x = build()
    y = torch.arange(11) % 3
    out = model(x).detach().requires_grad_()
    loss = nn.functional.cross_entropy(out, y, reduction="sum")
    (v,) = torch.autograd.grad(loss, out)
    rows = []
    for i in range(11):
        own = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(own, list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in grads]))
    want = torch.stack(rows)
    torch.testing.assert_close(la.features(model, x, cotangents=v), want)
    found = la.ntk.save_features(model, x, tmp_path / "f.npy", block=4, cotangents=v)
    np.testing.assert_allclose(found, want.detach().numpy(), rtol=1e-10, atol=1e-12)


def test_other_weights_samples_or_options_raise(tmp_path):
    model, x = build()
    path = tmp_path / "K.npy"
    with pytest.raises(InterruptedRunError):
        la.ntk.save_kernel(model, x, path, block=4, on_progress=stop_after(4))
    for other, given, options in (
        (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), x, {}),
        (model, x + 1, {}),
        (model, x, {"params": ["2"]}),
    ):
        with pytest.raises(InputError, match="other weights, samples or options"):
            la.ntk.save_kernel(other, given, path, block=4, **options)
    la.ntk.save_kernel(model, x, path, block=4)
    with pytest.raises(InputError, match="is complete"):
        la.ntk.save_kernel(model, x, path, block=4)
    with pytest.raises(InputError, match="block is 0"):
        la.ntk.save_kernel(model, x, tmp_path / "new.npy", block=0)
    path.with_name("K.npy.progress").write_text("{")
    with pytest.raises(StorageError, match="damaged"):
        la.ntk.save_kernel(model, x, path)
    with pytest.raises(StorageError, match="cannot be written"):
        la.ntk.save_kernel(model, x, tmp_path / "nowhere" / "K.npy")
