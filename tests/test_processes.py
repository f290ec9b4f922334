"""Worker processes end with their parent, even while they are importing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import until

# The interpreter imports this first. In worker processes the import of torch never ends; a file
# marks its start.
SLOW_IMPORT = """
import os, sys
from pathlib import Path

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and "--multiprocessing-fork" in sys.orig_argv:
            import threading
            (Path(os.environ["BEGUN"]) / str(os.getpid())).touch()
            threading.Event().wait()

sys.meta_path.insert(0, Slow())
"""
STARTS = {
    "compare": (
        "from labelahead.simulation.comparison.execution import _Worker; worker = "
        "_Worker(Path('workers.log'), 1, 1)"
    ),
    "pool": (
        "from labelahead.outofcore import LocalProcesses; work = "
        "LocalProcesses(1).submit(print, name='print')"
    ),
    "page": (
        "from labelahead.data import from_arrays; from labelahead.server.worker import Worker; "
        "pipe = Worker({}, from_arrays([[0.0]])[0], Path('.'))._start()"
    ),
}
DRIVER = """
import signal
from pathlib import Path

if __name__ == "__main__":
    {start}
    signal.pause()
"""


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="looks at processes as Linux shows them"
)
@pytest.mark.parametrize("command", STARTS)
def test_worker_ends_with_its_parent_during_imports(tmp_path, command):
    hooks, import_marks = tmp_path / "hooks", tmp_path / "begun"
    hooks.mkdir()
    import_marks.mkdir()
    (hooks / "sitecustomize.py").write_text(SLOW_IMPORT)
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(start=STARTS[command]))
    path = os.pathsep.join(
        [str(hooks), *filter(None, [os.environ.get("PYTHONPATH")]), str(Path("src").absolute())]
    )
    env = {**os.environ, "PYTHONPATH": path, "BEGUN": str(import_marks)}
    parent = subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=env)
    worker = 0
    try:
        worker = int(until(lambda: [p.name for p in import_marks.iterdir()])[0])
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        until(lambda: not is_alive(worker), lambda: f"the worker {worker} lives on")
    finally:
        parent.kill()
        if worker and is_alive(worker):
            os.kill(worker, signal.SIGKILL)
