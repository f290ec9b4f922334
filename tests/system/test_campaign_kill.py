import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRIALS = 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
def test_campaign_killed_at_12_random_moments_resumes_to_the_same_result(tmp_path):
    driver = Path(__file__).parents[1] / "support" / "kill_driver.py"
    result = subprocess.run(
        [sys.executable, str(driver), str(tmp_path), str(TRIALS), "7"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    report = json.loads(result.stdout.splitlines()[-1])
    assert report.get("failed") is None, result.stderr[-2000:]
    assert report["killed"] >= TRIALS // 2  # the others had finished already
    assert report["lost"] == 0
    assert report["different"] == 0
