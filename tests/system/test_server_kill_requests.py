"""kill -9 of the whole server in the midst of an import, an export, a grid, a change of classes, of
taking files in.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.support.web_requests import REQUEST_KINDS

TRIALS = 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
@pytest.mark.parametrize("kind", REQUEST_KINDS)
def test_nothing_is_lost_doubled_or_left_at(kind, tmp_path):
    run = [
        sys.executable,
        "-c",
        "from tests.support.web_requests import main; main()",
        str(tmp_path),
        kind,
        str(TRIALS),
        "3",
    ]
    paths = os.pathsep.join(sys.path)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(run, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["bad"] == [], done.stderr[-2000:]
    assert report["killed"] == TRIALS
    assert report["acknowledged"] >= TRIALS // 2  # they were killed at work
    assert report["workers"]  # and with a worker
    if kind == "export":
        assert report["rooms"]  # some in the midst of a file, which the next server swept away
