"""Processes that a factory forks behave like those of `subprocess`."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.waiting import PATIENCE
from tests.support.warm_processes import start_python

STATE = """
import multiprocessing.process, os, sys
print(os.getcwd() == multiprocessing.process.ORIGINAL_DIR == sys.argv[1])
print(os.environ["GIVEN"], os.getsid(0) == os.getpid(), "torch" in sys.modules)
print([name for name in sys.modules if name.startswith(("labelahead", "tests"))])
print("to stderr", file=sys.stderr)
sys.exit(3)
"""


def test_process_has_folder_environment_streams_session_and_exit_code(tmp_path):
    process = start_python(
        ["-c", STATE, tmp_path], cwd=tmp_path, env=os.environ | {"GIVEN": "x"}, new_session=True
    )
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, process.poll(), process.wait()) == (3, 3, 3), err
    warm = sys.platform.startswith("linux")
    assert out.splitlines() == ["True", f"x True {warm}", "[]"]
    assert err == "to stderr\n"


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_process_ends_by_signals(number):
    process = start_python(["-c", "print('ready', flush=True); import time; time.sleep(600)"])
    assert process.stdout.readline() == "ready\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)


def test_process_runs_a_module_and_a_file(tmp_path):
    (tmp_path / "said.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    for words in (["-m", "said"], [tmp_path / "said.py"]):
        process = start_python([*words, "a b"], cwd=tmp_path)
        assert process.communicate(timeout=PATIENCE) == ("__main__ ['a b']\n", "")
        assert process.returncode == 0


def _square(number, queue):
    if number < 0:
        raise SystemExit(5)
    warm = "torch" in sys.modules
    queue.put((number**2, os.getppid(), warm, signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def test_spawned_process_returns_results_and_exit_codes():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        good, bad = (context.Process(target=_square, args=(n, queue)) for n in (7, -7))
        good.start()
        bad.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    result, parent, warm, blocked = queue.get(timeout=PATIENCE)
    assert result == 49
    assert (parent != os.getpid(), warm) == (sys.platform.startswith("linux"),) * 2
    assert signal.SIGUSR1 in blocked
    for process in (good, bad):
        process.join(PATIENCE)
    assert (good.exitcode, bad.exitcode) == (0, 5)
    stopped = context.Process(target=time.sleep, args=(600,))
    stopped.start()
    assert stopped in multiprocessing.active_children()
    stopped.kill()
    stopped.join(PATIENCE)
    assert (stopped.exitcode, stopped.is_alive()) == (-signal.SIGKILL, False)
    assert not multiprocessing.active_children()
