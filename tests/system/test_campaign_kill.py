import json
import os
from pathlib import Path

import pytest

from tests.support.warm_processes import start_python

TRIALS = 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
def test_campaign_killed_at_12_random_moments_resumes_to_the_same_result(tmp_path):
    driver = Path(__file__).parents[1] / "support" / "kill_driver.py"
    process = start_python(
        [driver, tmp_path, TRIALS, "7"], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    out, err = process.communicate()
    assert process.returncode == 0, err[-2000:]
    report = json.loads(out.splitlines()[-1])
    assert report.get("failed") is None, err[-2000:]
    assert report["killed"] >= TRIALS // 2  # the others had finished already
    assert report["lost"] == 0
    assert report["different"] == 0
