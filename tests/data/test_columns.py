"""Columns of tables as features: numbers, categories, missing values."""

import numpy as np
import pytest
import torch

from labelahead.data import load
from labelahead.errors import InputError
from tests.data.test_table import RNG, has_note, make_pool_mask, write_csv, write_table


def test_load_table_encodes_numbers_categories_booleans_and_labels(tmp_path):
    n = 40
    path = write_table(
        tmp_path,
        {
            "height": RNG.normal(170, 10, n).round(3),
            "colour": [["red", "green", "blue"][i % 3] for i in range(n)],
            "member": [["true", "False"][i % 2] for i in range(n)],
            "label": [["yes", "no"][i // 20] for i in range(n)],
        },
    )
    data, answers = load(path)
    assert data.kind == "vector"
    assert data.shape == (5,)
    assert data.inputs.shape == (n, 5)
    assert data.images is None
    assert data.classes == ("no", "yes")
    assert answers.take(torch.arange(n)).tolist() == [1] * 20 + [0] * 20
    assert data.ids[39] == "39"
    assert len(data.test) == 8
    pool = data.inputs[make_pool_mask(data)]
    assert torch.allclose(pool[:, 0].mean(), torch.zeros(()), atol=1e-5)
    assert torch.allclose(pool[:, 0].std(correction=0), torch.ones(()), atol=1e-5)
    assert data.inputs[:3, 1:4].tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]  # blue, green, red
    assert data.inputs[0, 4] > data.inputs[1, 4]
    assert has_note(data, "2 numeric and 1 categorical columns became 5 numbers")
    assert has_note(data, "labels from the column 'label'")


def test_load_table_fills_missing_values(tmp_path):
    n = 20
    numbers = [str(i) for i in range(n)]
    numbers[3] = ""
    numbers[4] = "NaN"
    words = ["ab"[i % 2] for i in range(n)]
    words[5] = "n/a"
    truths = ["yes" if i % 2 else "no" for i in range(n)]
    truths[6] = "?"
    data, answers = load(write_table(tmp_path, {"number": numbers, "word": words, "truth": truths}))
    assert answers is None
    assert data.test.tolist() == []
    assert data.shape == (1 + 3 + 3,)
    median = np.median([float(v) for i, v in enumerate(numbers) if i not in (3, 4)])
    filled = np.array([median if i in (3, 4) else i for i in range(n)])
    assert np.allclose(data.inputs[:, 0], (filled - filled.mean()) / filled.std(), atol=1e-5)
    assert data.inputs[5, 1:4].tolist() == [0, 0, 1]
    assert data.inputs[6, 4:7].tolist() == [0, 0, 1]
    assert has_note(data, "number: 2 missing, filled with the median")
    assert has_note(data, "word: 1 missing, treated as a separate category")
    assert has_note(data, "no labels: no column is named")


def test_load_table_drops_uninformative_columns(tmp_path):
    n = 12
    data, _ = load(
        write_table(
            tmp_path,
            {
                "": range(n),
                "same": ["x"] * n,
                "one": [1] * n,
                "gone": [""] * n,
                "person": [f"person {i}" for i in range(n)],
                "id": range(100, 100 + n),
                "kept": RNG.normal(size=n),
            },
        )
    )
    assert data.shape == (1,)
    assert has_note(data, "constant: same, one")
    assert has_note(data, "empty: gone")
    assert has_note(data, "different in every row: person")
    assert has_note(data, "row numbers: column 1, id") or has_note(data, "row numbers: column 1")
    with pytest.raises(InputError, match=r"no column to learn from .*constant: same"):
        load(write_table(tmp_path, {"same": ["x"] * n, "label": ["a", "b"] * 6}))


def test_rare_categories_share_other(tmp_path):
    words = [f"w{i:03d}" for i in range(60)] * 2 + [f"w{i:03d}" for i in range(10)]
    data, _ = load(write_table(tmp_path, {"word": words, "z": range(130)}))
    assert data.shape == (52,)
    assert has_note(data, "10 of 60 categories share one, `other`")
    assert data.inputs[words.index("w059"), 50] == 1
    assert (data.inputs[:, :51].sum(1) == 1).all()


def test_statistics_ignore_test_rows(tmp_path):
    n = 50
    values = RNG.normal(size=n)
    labels = ["a", "b"] * 25
    path = write_table(tmp_path, {"v": values, "w": ["p", "q"] * 25, "label": labels})
    data, _ = load(path)
    values[data.test.numpy()] = 1e6
    words = ["p" if i not in set(data.test.tolist()) else "new" for i in range(n)]
    words[int(make_pool_mask(data).nonzero()[0])] = "q"
    again, _ = load(write_table(tmp_path, {"v": values, "w": words, "label": labels}))
    assert torch.equal(again.test, data.test)
    assert torch.equal(again.inputs[make_pool_mask(data), 0], data.inputs[make_pool_mask(data), 0])
    assert again.inputs[again.test, 1:].sum() == 0
    assert has_note(again, "seen only in the test part")


def test_numbers_with_some_words_become_categories_with_a_note(tmp_path):
    values = [str(i % 7) for i in range(30)]
    values[12] = "seven"
    data, _ = load(write_table(tmp_path, {"v": values, "z": RNG.normal(size=30)}))
    assert has_note(data, "v: 1 of 30 entries are no numbers (line 14: 'seven')")


@pytest.mark.parametrize("bad", ["inf", "-Infinity", "1e999"])
def test_infinite_numbers_are_refused_with_their_line(tmp_path, bad):
    with pytest.raises(InputError, match=r"column 'v', line 3, is infinite"):
        load(write_csv(tmp_path, f"v,w\n1,2\n{bad},3\n4,5\n"))


def test_enormous_numbers_stay_finite(tmp_path):
    data, _ = load(write_csv(tmp_path, "v,w\n1e308,1\n-1e308,2\n1e-300,4\n"))
    assert data.inputs.abs().max() < 3


def test_outlier_in_the_test_set_does_not_flatten_a_column(tmp_path):
    values, labels = RNG.normal(size=50), ["a", "b"] * 25
    data, _ = load(write_table(tmp_path, {"v": values, "label": labels}))
    values[data.test[0]] = 1e15
    again, _ = load(write_table(tmp_path, {"v": values, "label": labels}))
    assert torch.equal(again.inputs[make_pool_mask(data)], data.inputs[make_pool_mask(data)])
    values[data.test[0]] = 1e200
    with pytest.raises(InputError, match="column 'v' reaches 1e"):
        load(write_table(tmp_path, {"v": values, "label": labels}))
