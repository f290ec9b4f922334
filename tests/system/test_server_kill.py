import json
import os
from pathlib import Path

import pytest

from tests.support.warm_processes import start_python


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
@pytest.mark.parametrize(
    ("task", "trials", "label"),
    [("classes", 100, "dog"), ("multilabel", 30, "cat;fox"), ("number", 30, "0.25")],
)
def test_journal_writer_killed_at_random_moments_loses_no_answer(tmp_path, task, trials, label):
    driver = Path(__file__).parents[1] / "support" / "web_kill_driver.py"
    process = start_python(
        [driver, tmp_path, trials, "7", task], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    out, err = process.communicate()
    assert process.returncode == 0, err[-2000:]
    report = json.loads(out.splitlines()[-1])
    assert report["bad"] == [], err[-2000:]
    assert report["killed"] == trials, err[-2000:]
    assert report["acknowledged"] >= trials * 4 // 5  # most were killed while writing
    assert "in use by another labelahead" in report["refused"]
    assert report["labels"] == {"3": label}
