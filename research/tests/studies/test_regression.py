"""The numbers of `python -m research study regression`."""

from dataclasses import replace

import pytest
import torch

from labelahead import kernel
from labelahead.models.training import predict
from research.studies import conduct
from research.studies.regression import REGRESSION, Settings
from research.studies.regression.measure import network, solvers, whole
from research.studies.study_data import items, one_hot, some

TINY = Settings(
    width=4, sizes=(60, 120), whole=100, checkpoints=(0.0, 1.0), epochs=4, rank=20, tolerance=1e-5
)


def test_conjugate_gradients_agree_with_exact_solver():
    row = solvers(TINY, {"part": "solvers", "set": "digits", "n": 120, "seed": 0})[0]
    assert row["output_difference"] < 1e-3
    assert row["same_class"] > 0.99
    assert row["accuracy_cg"] > 0.5


@pytest.mark.parametrize("width", [1, 8])  # fewer parameters than points, and more
def test_whole_regression_equals_dense_solve(width, tmp_path):
    s = replace(TINY, width=width, whole=1000 if width == 1 else 100, scratch=str(tmp_path))
    cell = {"part": "whole", "set": "digits", "checkpoint": 0.0, "seed": 1}
    row = whole(s, cell)[0]
    found = items("digits")
    at = some(found, row["n"], 1)
    x, y = found.inputs[at], one_hot(found.labels[at], found.classes)
    model = network(s, found, 1)
    K = kernel(model, x).double()
    K.diagonal().add_(s.noise * float(K.diagonal().mean()))
    alpha = torch.linalg.solve(K, y - predict(model, x).double())
    lin = predict(model, found.test_inputs) + kernel(model, found.test_inputs, x).double() @ alpha
    exact = float((lin.argmax(1) == found.test_labels).double().mean())
    assert row["accuracy_kernel"] == pytest.approx(exact, abs=0.006)  # one or two ties of 360
    assert row["form"] == ("FeatureFile" if width == 1 else "TileFile")
    assert list(tmp_path.rglob("*.f32")) == []


def test_study_reports_higher_accuracy_after_training(tmp_path):
    report = conduct(REGRESSION, TINY, tmp_path, workers=1)
    assert [e.name for e in report.exhibits] == ["solvers", "whole"]
    rows = report.exhibits[1].table
    assert [r["trained"] for r in rows] == ["0%", "100%"]
    assert float(rows[1]["f, %"]) > float(rows[0]["f, %"])
    assert "by the first kernel" in report.exhibits[1].caption
