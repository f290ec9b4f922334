"""Ctrl-C at any moment: one line, exit code 130, nobody left behind."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.waiting import PATIENCE, until

posix = pytest.mark.skipif(os.name != "posix", reason="needs signals of a terminal")


def interrupted(arguments, cwd, *, imports=0, born=None):
    """Start, and Ctrl-C to all processes, as a terminal does, at a moment that does not depend on
    the machine's speed.

    imports: when Python's report of imports has so many more lines since our first one ran; before
    that it is Python itself that is interrupted. born: so many seconds after the first process of
    its own has begun.
    """
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "labelahead", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        text=True,
    )
    said, now = [], threading.Event()

    def read():
        since = None
        for line in process.stderr:
            if not line.startswith("import time:"):
                said.append(line)
                continue
            if since is None and line.rstrip().endswith(("labelahead.errors", "labelahead.cli")):
                since = 0  # imported after `exit_on_sigint`
            elif since is not None:
                since += 1
            if since is not None and since >= imports:
                now.set()
        now.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert now.wait(PATIENCE), said
    if born is not None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while (
            process.poll() is None and len(children.read_text().split()) < 2
        ):  # the first is a tracker of resources
            time.sleep(0.005)
        time.sleep(born)
    os.killpg(process.pid, signal.SIGINT)
    out = process.stdout.read()
    code = process.wait(PATIENCE)
    reader.join(PATIENCE)
    return code, out, "".join(said), process.pid


def left(group):
    """Processes of that session which are still there."""
    shown = subprocess.run(
        ["ps", "-o", "stat=,args=", "-g", str(group)], capture_output=True, text=True
    ).stdout
    return [line for line in shown.splitlines() if not line.startswith("Z")]


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    np.savez(
        folder / "blobs.npz", x=(y[:, None] + rng.normal(0, 0.3, (60, 5))).astype("float32"), y=y
    )
    return folder


RUN = ["run", "--data=blobs.npz", "--model=mlp", "--initial=5", "--labels=45", "--retrain-every=1"]
RUN += ["--set=training.steps=10_000_000"]  # not over before it is interrupted
COMPARE = ["compare", *RUN[1:], "--strategies=margin", "--seeds=2", "--workers=2"]
IMPORTS = 1500  # about as many as there are
MOMENTS = [
    *((RUN, {"imports": random.Random(i).randrange(IMPORTS)}) for i in range(14)),
    *((COMPARE, {"born": born}) for born in (0, 0.1, 1)),
]


@posix
@pytest.mark.skipif(
    not Path("/proc/self/task").exists() or shutil.which("ps") is None, reason="needs /proc and ps"
)
@pytest.mark.parametrize(
    ("words", "moment"), MOMENTS, ids=lambda v: v[0] if isinstance(v, list) else str(v)
)
def test_ctrl_c_ends_with_one_line_at_any_moment(pool, words, moment):
    code, out, err, group = interrupted(words, pool, **moment)
    assert code == 130, (code, out, err)
    assert "Traceback" not in out + err
    said = [line for line in err.splitlines() if line.strip()]
    assert len(said) == 1, err
    assert said[0].startswith("interrupted"), err
    assert until(lambda: not left(group), lambda: left(group))


def test_a_library_keeps_python_s_own_way(monkeypatch):
    from labelahead.processes import raise_on_sigint

    before = signal.getsignal(signal.SIGINT)
    with raise_on_sigint(lambda: ""):
        assert signal.getsignal(signal.SIGINT) is before
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@posix
def test_a_background_job_of_a_shell_is_not_interrupted():
    code = (
        "from labelahead.processes import exit_on_sigint; import signal; exit_on_sigint(); "
        "print(int(signal.getsignal(signal.SIGINT)))"
    )
    ignoring = ["sh", "-c", f"trap '' INT; exec {sys.executable} -c '{code}'"]
    assert (
        int(subprocess.run(ignoring, capture_output=True, text=True, check=True).stdout)
        == signal.SIG_IGN
    )
