"""Ctrl-C at any moment: one line, exit code 130, no process left."""

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


def run_and_interrupt(arguments, cwd, *, imports=0, seconds_after_worker=None):
    """Start a command and send Ctrl-C to all of its processes, as a terminal does.

    The moment does not depend on the machine's speed. imports: after this many imports since
    labelahead's first; earlier, Python itself would be interrupted. seconds_after_worker: this
    many seconds after the command's first worker process has started.
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
    messages, reached = [], threading.Event()

    def read_stderr():
        imported = None
        for line in process.stderr:
            if not line.startswith("import time:"):
                messages.append(line)
                continue
            if imported is None and line.rstrip().endswith(("labelahead.errors", "labelahead.cli")):
                imported = 0  # imported after `exit_on_sigint`
            elif imported is not None:
                imported += 1
            if imported is not None and imported >= imports:
                reached.set()
        reached.set()

    reader = threading.Thread(target=read_stderr)
    reader.start()
    assert reached.wait(PATIENCE), messages
    if seconds_after_worker is not None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while (
            process.poll() is None and len(children.read_text().split()) < 2
        ):  # the first is the resource tracker
            time.sleep(0.005)
        time.sleep(seconds_after_worker)
    os.killpg(process.pid, signal.SIGINT)
    out = process.stdout.read()
    code = process.wait(PATIENCE)
    reader.join(PATIENCE)
    return code, out, "".join(messages), process.pid


def list_processes(group):
    """List the processes of that session that still run."""
    listing = subprocess.run(
        ["ps", "-o", "stat=,args=", "-g", str(group)], capture_output=True, text=True
    ).stdout
    return [line for line in listing.splitlines() if not line.startswith("Z")]


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
RUN += ["--set=training.steps=10_000_000"]  # does not finish before it is interrupted
COMPARE = ["compare", *RUN[1:], "--strategies=margin", "--seeds=2", "--workers=2"]
IMPORT_COUNT = 1500  # about the total number
MOMENTS = [
    *((RUN, {"imports": random.Random(i).randrange(IMPORT_COUNT)}) for i in range(8)),
    *((COMPARE, {"seconds_after_worker": seconds}) for seconds in (0, 1)),
]


@posix
@pytest.mark.skipif(
    not Path("/proc/self/task").exists() or shutil.which("ps") is None, reason="needs /proc and ps"
)
@pytest.mark.parametrize(
    ("arguments", "moment"), MOMENTS, ids=lambda v: v[0] if isinstance(v, list) else str(v)
)
def test_ctrl_c_at_any_moment_prints_one_line_and_leaves_no_process(pool, arguments, moment):
    code, out, err, group = run_and_interrupt(arguments, pool, **moment)
    assert code == 130, (code, out, err)
    assert "Traceback" not in out + err
    lines = [line for line in err.splitlines() if line.strip() and not line.startswith("device:")]
    assert len(lines) == 1, err
    assert lines[0].startswith("interrupted"), err
    assert until(lambda: not list_processes(group), lambda: list_processes(group))


def test_raise_on_sigint_keeps_the_default_handler(monkeypatch):
    from labelahead.processes import raise_on_sigint

    before = signal.getsignal(signal.SIGINT)
    with raise_on_sigint(lambda: ""):
        assert signal.getsignal(signal.SIGINT) is before
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@posix
def test_exit_on_sigint_keeps_sigint_ignored_in_background_jobs():
    code = (
        "from labelahead.processes import exit_on_sigint; import signal; exit_on_sigint(); "
        "print(int(signal.getsignal(signal.SIGINT)))"
    )
    command = ["sh", "-c", f"trap '' INT; exec {sys.executable} -c '{code}'"]
    assert (
        int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        == signal.SIG_IGN
    )
