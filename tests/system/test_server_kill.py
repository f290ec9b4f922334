import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRIALS = 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
def test_killed_at_a_hundred_random_moments(tmp_path):
    driver = Path(__file__).parents[1] / "support" / "web_kill_driver.py"
    done = subprocess.run(
        [sys.executable, str(driver), str(tmp_path), str(TRIALS), "7"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["bad"] == [], done.stderr[-2000:]
    assert report["killed"] == TRIALS, done.stderr[-2000:]
    assert report["acknowledged"] >= TRIALS * 4 // 5  # so many were killed while they wrote
    assert "in use by another labelahead" in report["refused"]
    assert report["labels"] == {"3": 1}
