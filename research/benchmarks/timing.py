"""Time and peak memory of one contender, in a process of its own.

Standard library only: it is imported by workers in two different virtual environments. A worker
prepares its computation once, then runs it whenever the parent asks, so that the parent can
interleave contenders (a noisy minute then hits all of them) without paying for start-up each time.
The talk is one line of JSON each way, on stdin and stdout.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEGABYTE = 2.0**20


def pin(threads: int) -> None:
    """Keep this process on the last `threads` cores it may use: one thread must mean one core."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])


def _status_mb(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return float(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def resident_mb() -> float:
    """Resident memory now."""
    return _status_mb("VmRSS")


def reset_peak() -> bool:
    """Forget the peak so far; False where the kernel does not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_mb() -> float:
    """Highest resident memory since the start or the last `reset_peak`."""
    try:
        return _status_mb("VmHWM")
    except RuntimeError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def release() -> None:
    """Give freed memory back to the system, so that it is not counted against the next run."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def say(**message: Any) -> None:
    """Send one line to the parent."""
    print("@" + json.dumps(message), flush=True)  # "@": libraries print to stdout as well


def run_once(compute: Callable[[], Any]) -> tuple[Any, float]:
    """Compute once: the result and its seconds."""
    start = time.perf_counter()
    result = compute()
    return result, time.perf_counter() - start


def serve(compute: Callable[[], Any], base_mb: float, save: Callable[[Any, str], None]) -> None:
    """Answer the parent until it closes stdin: "run" computes, "run PATH" also keeps the result.

    The peak is that of the first run, which starts from memory given back to the system. Later runs
    are timed as a program that goes on working: trimming the heap before each would time the
    system's page faults, which cost more here than the computation of a small network.
    """
    say(ready=True)
    peak = None
    for line in sys.stdin:
        _, _, path = line.strip().partition(" ")
        if peak is None:
            release()
            reset_peak()
        result, seconds = run_once(compute)
        if peak is None:
            peak = peak_mb() - base_mb
        if path:
            save(result, path)
        del result
        say(seconds=seconds, peak_mb=peak)


def measure_processor_seconds(session):
    """Return the processor time of all processes of a session, dead children included."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # the process ended meanwhile
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of its children
    return ticks / os.sysconf("SC_CLK_TCK")
