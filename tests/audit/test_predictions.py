"""Files of predictions and of answers."""

import numpy as np
import pytest

from labelahead.audit.predictions import PLAIN_ERROR, Predictions, read_answers, read_predictions
from labelahead.errors import InputError


def write(path, text):
    path.write_text(text)
    return path


def test_probabilities_of_all_classes_are_read(tmp_path):
    text = "id,prediction,probability:cat,probability:dog\n007,cat,0.7,0.3\nb,dog,0.2,0.8\n"
    found, notes = read_predictions(write(tmp_path / "p.csv", text))
    assert notes == ()
    assert (found.ids, found.classes) == (("007", "b"), ("cat", "dog"))
    assert found.error == pytest.approx([0.3, 0.2])
    assert found.predict_class(1) == pytest.approx([0.3, 0.8])


def test_predictions_without_probabilities_are_allowed(tmp_path):
    found, _ = read_predictions(write(tmp_path / "p.csv", "id,prediction\na,3\nb,10\nc,3\n"))
    assert found.classes == ("10", "3")
    assert found.error == pytest.approx([PLAIN_ERROR] * 3)
    assert found.predict_class(1) == pytest.approx([0.8, 0.2, 0.8])


def test_rows_without_prediction_are_left_out_with_a_note(tmp_path):
    text = "id,label,prediction,probability\na,cat,,\nb,,dog,0.9\n"
    found, notes = read_predictions(write(tmp_path / "p.csv", text))
    assert found.ids == ("b",)
    assert "1 row has no prediction" in notes[0]


def test_written_predictions_are_read_again_exactly(tmp_path):
    p = np.random.default_rng(0).dirichlet([1, 1, 1], 40)
    ids = (*(f"i {i}" for i in range(39)), "0012")
    one = Predictions(ids, ("a", "b,c", "d"), p.argmax(1), p.max(1), p)
    again, _ = read_predictions(write(tmp_path / "p.csv", one.to_csv()), id="id")
    assert (again.ids, again.classes) == (one.ids, one.classes)
    assert (again.probabilities == one.probabilities).all()
    assert (again.probability == one.probability).all()
    assert (again.predicted == one.predicted).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,predicted\na,cat\n", "no column 'prediction'"),
        (
            "id,prediction,probability\na,cat,1.2\n",
            "line 2: probability is '1.2'; expected a number",
        ),
        ("id,prediction,probability\na,cat,\n", "expected a number"),
        ("id,prediction,probability:a,probability:b\nx,a,0.9,0.9\n", "sum to 1.800"),
        ("id,prediction\na,cat\na,dog\n", "repeats an id"),
    ],
)
def test_bad_files_raise(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_predictions(write(tmp_path / "p.csv", text))


def test_answers_match_classes_by_normalised_name(tmp_path):
    found, _ = read_predictions(write(tmp_path / "p.csv", "id,prediction\na,Cat\nb,dog\nc,dog\n"))
    answers = read_answers(write(tmp_path / "l.csv", "id,label\na, cat\nc,fox\nb,\n"), found)
    assert answers == {0: "Cat", 2: "fox"}
    with pytest.raises(InputError, match="'z' is not among the audited predictions"):
        read_answers(write(tmp_path / "l.csv", "id,label\nz,cat\n"), found)
    with pytest.raises(InputError, match="no column 'label'"):
        read_answers(write(tmp_path / "l.csv", "id,answer\na,cat\n"), found)
