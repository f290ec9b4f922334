"""Public data sets, from small files in the published formats."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import time

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.io import savemat

from labelahead.data import DATASETS, load
from labelahead.data.public_datasets import CIFAR10_CLASSES, CIFAR100_CLASSES, read_idx, unpickle
from labelahead.errors import InputError

RNG = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim])
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


def write_idx_set(folder, train=30, test=10, packed=True, names="-idx"):
    folder.mkdir(parents=True, exist_ok=True)
    x = RNG.integers(0, 256, (train + test, 28, 28)).astype(np.uint8)
    y = (np.arange(train + test) % 10).astype(np.uint8)
    for part, at in (("train", slice(0, train)), ("t10k", slice(train, None))):
        for what, array in (("images", x[at]), ("labels", y[at])):
            name = f"{part}-{what}{names}{array.ndim}-ubyte"
            content = idx(array)
            (folder / (name + (".gz" if packed else ""))).write_bytes(
                gzip.compress(content) if packed else content
            )
    return x, y


def bring(name, root, **more):
    return load(name, root=root, download=False, **more)


# --- digits -----------------------------------------------------------------------------------


def test_digits_are_loaded_and_standardised():
    data, answers = load("digits")
    assert len(data) == 1797
    assert data.shape == (1, 8, 8)
    assert data.inputs.shape == (1797, 1, 8, 8)
    assert data.inputs.dtype == torch.float32
    assert (data.inputs.min(), data.inputs.max()) == (-1, 1)
    assert data.classes == tuple("0123456789")
    assert answers.has_label.all()
    assert len(data.test) == round(0.2 * 1797)
    held = torch.bincount(answers.take(data.test)) / torch.bincount(
        answers.take(torch.arange(1797))
    )
    assert ((held - 0.2).abs() < 0.01).all()
    white = data.images.batch(torch.tensor([0]), 8)
    assert torch.equal(white[0, 0], ((data.inputs[0, 0] + 1) * 127.5).round().to(torch.uint8))


def test_digits_respect_limit_and_size():
    data, answers = load("digits", limit=40, size=12, seed=3)
    assert data.inputs.shape == (40 + 359, 1, 12, 12)
    pool = torch.ones(len(data), dtype=torch.bool)
    pool[data.test] = False
    assert torch.bincount(answers.take(pool.nonzero().flatten())).tolist() == [4] * 10
    whole, every = load("digits", seed=3)
    at = torch.tensor([int(i) for i in data.ids])  # ids keep the original positions
    assert torch.equal(every.take(at), answers.take(torch.arange(len(data))))
    assert any("40 of 1438" in note for note in data.notes)
    assert len(whole) == 1797


def test_loading_does_not_depend_on_the_default_type():
    torch.set_default_dtype(torch.float64)
    try:
        data, _ = load("digits", limit=10)
        assert data.inputs.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


# --- idx --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "below", "packed", "names"),
    [
        ("mnist", "", True, "-idx"),
        ("mnist", "MNIST/raw", False, "-idx"),
        ("mnist", "mnist", False, ".idx"),
        ("fashion-mnist", "FashionMNIST/raw", True, "-idx"),
        ("fashion-mnist", "fashion-mnist", True, "-idx"),
    ],
)
def test_idx_data_sets_are_loaded_from_every_layout(tmp_path, name, below, packed, names):
    x, y = write_idx_set(tmp_path / below, packed=packed, names=names)
    data, answers = bring(name, tmp_path)
    assert data.test.tolist() == list(range(30, 40))
    assert answers.take(torch.arange(40)).tolist() == y.tolist()
    assert data.shape == (1, 28, 28)
    pool = x[:30] / 1.0
    expected = (x - pool.mean()) / pool.std()
    assert np.allclose(data.inputs[:, 0].numpy(), expected, atol=1e-4)
    assert data.images.batch(torch.tensor([7]), 28)[0, 1].tolist() == x[7].tolist()
    assert data.classes[0] == ("0" if name == "mnist" else "T-shirt/top")


def test_limit_keeps_the_whole_test_set(tmp_path):
    write_idx_set(tmp_path)
    data, answers = bring("mnist", tmp_path, limit=10)
    assert len(data) == 20
    assert data.ids[10:] == tuple(str(i) for i in range(30, 40))
    assert sorted(answers.take(torch.arange(10)).tolist()) == list(range(10))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    arrays(np.uint8, array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6)), st.booleans()
)
def test_read_idx_round_trips(tmp_path, array, packed):
    path = tmp_path / "any"
    path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    assert np.array_equal(read_idx(path, array.ndim), array)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data(), st.booleans())
def test_read_idx_refuses_truncated_or_longer_files(tmp_path, data, packed):
    content = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    content = gzip.compress(content) if packed else content
    cut = data.draw(st.integers(0, len(content) - 1))
    path = tmp_path / "any"
    path.write_bytes(content[:cut])
    with pytest.raises(InputError):
        read_idx(path, 3)
    path.write_bytes(
        content + b"x" * 9 if not packed else gzip.compress(gzip.decompress(content) + b"x")
    )
    with pytest.raises(InputError, match="more than"):
        read_idx(path, 3)


def test_read_idx_refuses_a_header_larger_than_memory(tmp_path):
    path = tmp_path / "bomb"
    path.write_bytes(bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"abc")
    with pytest.raises(InputError, match="cut short"):
        read_idx(path, 3)


def test_read_idx_files_refuses_mismatched_files(tmp_path):
    write_idx_set(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    good = labels.read_bytes()
    labels.write_bytes(gzip.compress(idx(np.zeros(29))))
    with pytest.raises(InputError, match=r"30 images .* 29 labels"):
        bring("mnist", tmp_path)
    labels.write_bytes(gzip.compress(idx(np.full(30, 11))))
    with pytest.raises(InputError, match="item 0 is 11; expected 0 to 9"):
        bring("mnist", tmp_path)
    labels.write_bytes((tmp_path / "train-images-idx3-ubyte.gz").read_bytes())
    with pytest.raises(InputError, match="mark of idx labels"):
        bring("mnist", tmp_path)
    labels.write_bytes(gzip.compress(idx(np.zeros(0))))
    with pytest.raises(InputError, match="nothing at all"):
        bring("mnist", tmp_path)
    labels.write_bytes(good[: len(good) // 2])
    with pytest.raises(InputError, match="broken gzip"):
        bring("mnist", tmp_path)
    labels.write_bytes(good[:12] + bytes(len(good) - 12))
    with pytest.raises(InputError, match=r"broken gzip|cut short|begins with"):
        bring("mnist", tmp_path)


def test_mnist_files_are_refused_as_fashion_mnist(tmp_path):
    write_idx_set(tmp_path)
    real = [5, 0, 4, 1, 9, 2, 1, 3, 1, 4] * 3
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.array(real))))
    assert len(bring("mnist", tmp_path)[0]) == 40
    with pytest.raises(InputError, match="holds mnist, whose files have the same names"):
        bring("fashion-mnist", tmp_path)


def test_images_of_another_size_are_refused(tmp_path):
    write_idx_set(tmp_path)
    for part, n in (("train", 30), ("t10k", 10)):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(
            gzip.compress(idx(np.zeros((n, 8, 8))))
        )
    with pytest.raises(InputError, match=r"\(1, 8, 8\); expected \(1, 28, 28\)"):
        bring("mnist", tmp_path)


# --- CIFAR ------------------------------------------------------------------------------------


def batch(n, classes, **more):
    rows = RNG.integers(0, 256, (n, 3072)).astype(np.uint8)
    return rows, (np.arange(n) % classes).tolist()


def write_cifar10(folder, protocol=2, n=20):
    folder.mkdir(parents=True, exist_ok=True)
    x, y = [], []
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        rows, labels = batch(n, 10)
        content = {b"data": rows, b"labels": labels, b"filenames": [b"a.png"] * n}
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))
        x.append(rows)
        y += labels
    meta = {b"label_names": [c.encode() for c in CIFAR10_CLASSES], b"num_vis": 3072}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol=protocol))
    return np.concatenate(x).reshape(-1, 3, 32, 32), y


def write_cifar100(folder, n=200):
    folder.mkdir(parents=True, exist_ok=True)
    x, y = [], []
    for name in ("train", "test"):
        rows, labels = batch(n, 100)
        content = {b"data": rows, b"fine_labels": labels, b"coarse_labels": [0] * n}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        x.append(rows)
        y += labels
    names = {b"fine_label_names": [c.encode() for c in CIFAR100_CLASSES]}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    return np.concatenate(x).reshape(-1, 3, 32, 32), y


def check(found, x, y, train, classes):
    data, answers = found
    assert data.test.tolist() == list(range(train, len(y)))
    assert answers.take(torch.arange(len(y))).tolist() == list(y)
    shown = data.images.batch(torch.arange(len(y)), x.shape[-1])
    assert np.array_equal(shown.numpy(), x)
    assert data.classes == classes
    assert torch.allclose(data.inputs[:train].mean((0, 2, 3)), torch.zeros(3), atol=1e-4)


@pytest.mark.parametrize("protocol", range(6))
def test_cifar10_python_folder_of_every_pickle_protocol(tmp_path, protocol):
    x, y = write_cifar10(tmp_path / "cifar-10-batches-py", protocol)
    check(bring("cifar10", tmp_path), x, y, 100, CIFAR10_CLASSES)
    check(bring("CIFAR-10", tmp_path / "cifar-10-batches-py"), x, y, 100, CIFAR10_CLASSES)


def pack(folder, archive):
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)


def test_cifar_archives_are_read(tmp_path):
    x, y = write_cifar10(tmp_path / "made" / "cifar-10-batches-py")
    pack(tmp_path / "made" / "cifar-10-batches-py", tmp_path / "cifar-10-python.tar.gz")
    check(bring("cifar10", tmp_path), x, y, 100, CIFAR10_CLASSES)
    x, y = write_cifar100(tmp_path / "made" / "cifar-100-python")
    pack(tmp_path / "made" / "cifar-100-python", tmp_path / "cifar-100-python.tar.gz")
    check(bring("cifar100", tmp_path), x, y, 200, CIFAR100_CLASSES)
    content = (tmp_path / "cifar-10-python.tar.gz").read_bytes()
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"whole \.tar\.gz"):
        bring("cifar10", tmp_path)
    pack(tmp_path / "made" / "cifar-100-python", tmp_path / "cifar-10-python.tar.gz")
    with pytest.raises(InputError, match="lacks data_batch_1"):
        bring("cifar10", tmp_path)


def test_cifar100_python_folder(tmp_path):
    x, y = write_cifar100(tmp_path / "cifar100" / "cifar-100-python")
    check(bring("cifar100", tmp_path), x, y, 200, CIFAR100_CLASSES)


@pytest.mark.parametrize("count", [10, 100])
def test_cifar_binary_files_are_read(tmp_path, count):
    folder = tmp_path / ("cifar-10-batches-bin" if count == 10 else "cifar-100-binary")
    folder.mkdir()
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    names = names if count == 10 else ["train", "test"]
    x, y = [], []
    for name in names:
        rows, labels = batch(count, count)
        before = np.array(labels, dtype=np.uint8)[:, None]
        if count == 100:
            before = np.concatenate([before // 5, before], axis=1)  # coarse, fine
        (folder / f"{name}.bin").write_bytes(np.concatenate([before, rows], axis=1).tobytes())
        x.append(rows)
        y += labels
    images = np.concatenate(x).reshape(-1, 3, 32, 32)
    classes = CIFAR10_CLASSES if count == 10 else CIFAR100_CLASSES
    check(bring(f"cifar{count}", tmp_path), images, y, len(y) - count, classes)
    cut = folder / f"{names[0]}.bin"
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.raises(InputError, match="multiple of 307"):
        bring(f"cifar{count}", tmp_path)


class Runs:
    """A pickle that runs code when it is read carelessly."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_unpickle_runs_no_code(tmp_path):
    write_cifar10(tmp_path)
    mark = tmp_path / "was here"
    evil = pickle.dumps({b"data": Runs(mark)})
    pickle.loads(evil)  # the trap works ...
    mark.rmdir()
    (tmp_path / "data_batch_3").write_bytes(evil)
    with pytest.raises(InputError, match="mkdir"):  # ... and we do not step into it
        bring("cifar10", tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [("builtins", "eval"), ("os", "system"), ("numpy", "load"), ("numpy.f2py", "x")],
)
def test_unpickle_refuses_other_callables(module, name):
    content = b"c" + module.encode() + b"\n" + name.encode() + b"\n."
    with pytest.raises(InputError, match="it imports"):
        unpickle(content, "here")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "refused"),
        (b"garbage", "refused"),
        (pickle.dumps([1]), "list"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}), "expected data and labels"),
        (pickle.dumps({"data": np.zeros((2, 7), np.uint8), "labels": [0, 1]}), "expected uint8"),
        (pickle.dumps({"data": [1], "labels": [0]}), "expected uint8"),
        (
            pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}),
            "one number for each",
        ),
        (
            pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}),
            "is 10; expected 0 to 9",
        ),
    ],
)
def test_broken_cifar_batches_are_refused(tmp_path, content, message):
    write_cifar10(tmp_path, n=2)
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(InputError, match=message):
        bring("cifar10", tmp_path)


# --- npz and SVHN -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn"])
@pytest.mark.parametrize("file", ["{}.npz", "{}_12k.npz"])
def test_npz_of_public_data_sets_is_read(tmp_path, name, file):
    x = RNG.integers(0, 256, (30, 32, 32, 3)).astype(np.uint8)
    y = np.arange(30) % 10
    np.savez(
        tmp_path / file.format(name), x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:]
    )
    data, answers = bring(name, tmp_path)
    assert data.test.tolist() == list(range(20, 30))
    assert answers.take(torch.arange(30)).tolist() == y.tolist()
    assert np.array_equal(data.images.batch(torch.arange(30), 32).numpy(), x.transpose(0, 3, 1, 2))


def test_npz_of_public_data_sets_refuses_mismatches(tmp_path):
    path = tmp_path / "cifar10.npz"
    x, y = np.zeros((3, 32, 32, 3), np.uint8), np.zeros(3, int)
    np.savez(path, x_train=x, y_train=y)
    with pytest.raises(InputError, match="expected x_train, y_train, x_test, y_test"):
        bring("cifar10", tmp_path)
    np.savez(path, x_train=x, y_train=y[:2], x_test=x, y_test=y)
    with pytest.raises(InputError, match="one whole number for each"):
        bring("cifar10", tmp_path)
    np.savez(path, x_train=x / 2, y_train=y, x_test=x, y_test=y)
    with pytest.raises(InputError, match="float64"):
        bring("cifar10", tmp_path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=r"cannot be read as \.npz"):
        bring("cifar10", tmp_path)


def write_svhn(folder):
    x = RNG.integers(0, 256, (20, 3, 32, 32)).astype(np.uint8)
    y = np.arange(20) % 10 + 1  # 1..10
    for name, at in (("train", slice(0, 15)), ("test", slice(15, 20))):
        savemat(folder / f"{name}_32x32.mat", {"X": x[at].transpose(2, 3, 1, 0), "y": y[at, None]})
    return x, y


def test_svhn_is_loaded(tmp_path):
    x, y = write_svhn(tmp_path)
    check(bring("svhn", tmp_path), x, y % 10, 15, tuple("0123456789"))


def test_broken_svhn_is_refused(tmp_path):
    write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    good = path.read_bytes()
    for broken in (b"", good[:300], b"x" * 500):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=r"test_32x32\.mat"):
            bring("svhn", tmp_path)
    savemat(path, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1]]})
    with pytest.raises(InputError, match="2 images and 1 labels"):
        bring("svhn", tmp_path)


# --- finding and fetching ---------------------------------------------------------------------


def test_every_data_set_has_a_name_and_a_summary():
    assert list(DATASETS) == [
        "digits",
        "mnist",
        "fashion-mnist",
        "cifar10",
        "cifar100",
        "svhn",
        "caltech101",
    ]
    for name, source in DATASETS.items():
        assert source.name == name
        assert source.summary
        assert source.files or name == "digits"


@pytest.mark.parametrize("name", [n for n in DATASETS if n != "digits"])
def test_missing_data_set_names_the_expected_files(tmp_path, name):
    with pytest.raises(InputError) as error:
        bring(name, tmp_path)
    text = str(error.value)
    assert str(tmp_path / name) in text
    assert "download=False" in text
    assert any(file.rstrip("/") in text for file in DATASETS[name].files)
    assert list(tmp_path.iterdir()) == []


def test_incomplete_data_set_names_the_missing_file(tmp_path):
    write_idx_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"lacks t10k-labels-idx1-ubyte\.gz"):
        bring("mnist", tmp_path)


def test_default_root_comes_from_the_environment(tmp_path, monkeypatch):
    write_idx_set(tmp_path)
    monkeypatch.setenv("LABELAHEAD_DATA", str(tmp_path))
    assert len(load("mnist", download=False)[0]) == 40
    monkeypatch.delenv("LABELAHEAD_DATA")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(InputError, match=r"home/\.cache/labelahead"):
        load("mnist", download=False)


def test_default_root_without_a_home_folder(tmp_path, monkeypatch):
    from pathlib import Path

    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.delenv("LABELAHEAD_DATA", raising=False)
    assert len(load("digits", limit=10)[0]) == 369
    with pytest.raises(InputError, match="labelahead/svhn"):
        load("svhn", download=False)


def test_missing_downloader_still_names_the_files(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(InputError, match=r"labelahead\[app\].*Expected \[train_32x32\.mat"):
        load("svhn", root=tmp_path)


def test_failed_download_is_quick_and_leaves_nothing(tmp_path, monkeypatch):
    # Port 9 of this machine answers nobody, so the real client runs and no network is needed.
    from labelahead.data import public_datasets as known

    source = known.DATASETS["svhn"].load
    there = [known.RemoteFile(r.file, "http://127.0.0.1:9/", r.md5) for r in source.remote]
    monkeypatch.setattr(source, "remote", there)
    monkeypatch.setattr(
        time, "sleep", lambda seconds: pytest.fail(f"it waited {seconds} s before another try")
    )
    with pytest.raises(
        InputError, match=r"127\.0\.0\.1:9/train_32x32\.mat failed .*network"
    ) as error:
        load("svhn", root=tmp_path)
    assert str(tmp_path / "svhn") in str(error.value)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.fixture
def server(tmp_path):
    import threading
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{http.server_port}/"
    http.shutdown()
    http.server_close()


def test_download_is_verified_and_used(tmp_path, monkeypatch, server):
    import hashlib

    from labelahead.data import public_datasets as known

    folder, url = server
    _, y = write_svhn(folder)
    files = ["train_32x32.mat", "test_32x32.mat"]
    sums = [hashlib.md5((folder / f).read_bytes()).hexdigest() for f in files]
    source = known.DATASETS["svhn"].load
    wrong = [known.RemoteFile(files[0], url, sums[0]), known.RemoteFile(files[1], url, "0" * 32)]
    monkeypatch.setattr(source, "remote", wrong)
    root = tmp_path / "root"
    with pytest.raises(InputError, match=r"test_32x32\.mat failed"):
        load("svhn", root=root)
    assert [p.name for p in root.rglob("*") if p.is_file()] == [files[0]]  # the good one stays
    right = [known.RemoteFile(f, url, s) for f, s in zip(files, sums, strict=True)]
    monkeypatch.setattr(source, "remote", right)
    _, answers = load("svhn", root=root)
    assert answers.take(torch.arange(20)).tolist() == (y % 10).tolist()
    assert len([p for p in root.rglob("*") if p.is_file()]) == 2


def test_download_into_an_unwritable_root_is_refused(tmp_path, monkeypatch):
    from labelahead.data import public_datasets as known

    source = known.DATASETS["svhn"].load
    there = [known.RemoteFile(r.file, "http://127.0.0.1:9/", r.md5) for r in source.remote]
    monkeypatch.setattr(source, "remote", there)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match="failed"):
        load("svhn", root=tmp_path / "file")


def test_tar_members_are_never_written_to_disk(tmp_path):
    write_cifar10(tmp_path / "made" / "cifar-10-batches-py", n=2)
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar-10-batches-py", arcname="../../cifar-10-batches-py")
        info = tarfile.TarInfo("../../evil")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    before = sorted(tmp_path.parent.rglob("*"))
    assert len(bring("cifar10", tmp_path)[0]) == 12
    assert sorted(tmp_path.parent.rglob("*")) == before
