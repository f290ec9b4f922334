"""Where a campaign ran: what a sceptic needs to know to repeat it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["cores", "this_machine"]

PACKAGES = ("labelahead", "torch", "numpy", "scipy", "scikit-learn")


def cores() -> int:
    """How many this process may use: affinity and container limits count."""
    try:
        from joblib import cpu_count
    except ImportError:
        return os.cpu_count() or 1
    return int(cpu_count())


def this_machine() -> dict[str, str | int]:
    """Versions, processor, system; nothing that names its owner."""
    found: dict[str, str | int] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found |= {"processor": _processor(), "cores": cores()}
    return found | {"system": f"{platform.system()} {platform.machine()}"}


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
