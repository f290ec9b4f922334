import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRIALS = 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
def test_killed_at_thirty_random_moments_and_resumed(tmp_path):
    driver = Path(__file__).parents[1] / "support" / "kill_driver.py"
    done = subprocess.run(
        [sys.executable, str(driver), str(tmp_path), str(TRIALS), "7"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.get("failed") is None, done.stderr[-2000:]
    assert found["killed"] >= TRIALS // 2  # the others had finished already
    assert found["lost"] == 0
    assert found["different"] == 0
