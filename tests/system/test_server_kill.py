import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRIALS = 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
def test_journal_writer_killed_at_100_random_moments_loses_no_answer(tmp_path):
    driver = Path(__file__).parents[1] / "support" / "web_kill_driver.py"
    result = subprocess.run(
        [sys.executable, str(driver), str(tmp_path), str(TRIALS), "7"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["bad"] == [], result.stderr[-2000:]
    assert report["killed"] == TRIALS, result.stderr[-2000:]
    assert report["acknowledged"] >= TRIALS * 4 // 5  # most were killed while writing
    assert "in use by another labelahead" in report["refused"]
    assert report["labels"] == {"3": 1}
