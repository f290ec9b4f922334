"""kill -9 of the whole server during an import, an export, a confirmation, a class change and the
reading of new files.
"""

import json
import os
import sys

import pytest

from tests.support.slow import slow
from tests.support.warm_processes import start_python
from tests.support.web_requests import REQUEST_KINDS

TRIALS = 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and kill -9")
@pytest.mark.parametrize(
    "kind", [kind if kind in ("export", "confirm") else slow(kind) for kind in REQUEST_KINDS]
)
def test_server_kill_during_requests_loses_duplicates_and_leaves_nothing(kind, tmp_path):
    command = [
        "-c",
        "from tests.support.web_requests import main; main()",
        str(tmp_path),
        kind,
        str(TRIALS),
        "3",
    ]
    paths = os.pathsep.join(sys.path)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    process = start_python(command, env=environment)
    out, err = process.communicate()
    assert process.returncode == 0, err[-2000:]
    report = json.loads(out.splitlines()[-1])
    assert report["bad"] == [], err[-2000:]
    assert report["killed"] == TRIALS
    assert report["acknowledged"] >= TRIALS // 2  # they were killed while serving requests
    assert report["workers"]  # and while a worker ran
    if kind == "export":
        assert report["rooms"]  # some left temporary files, which the next server removed
