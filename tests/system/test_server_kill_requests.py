"""kill -9 of the whole server during an import, an export, a confirmation, a class change and the
reading of new files.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.support.slow import slow
from tests.support.web_requests import REQUEST_KINDS

TRIALS = 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
@pytest.mark.parametrize(
    "kind", [kind if kind in ("export", "confirm") else slow(kind) for kind in REQUEST_KINDS]
)
def test_server_kill_during_requests_loses_duplicates_and_leaves_nothing(kind, tmp_path):
    command = [
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
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-2000:]
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["bad"] == [], result.stderr[-2000:]
    assert report["killed"] == TRIALS
    assert report["acknowledged"] >= TRIALS // 2  # they were killed while serving requests
    assert report["workers"]  # and while a worker ran
    if kind == "export":
        assert report["rooms"]  # some left temporary files, which the next server removed
