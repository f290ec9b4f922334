"""The oldest versions that pyproject.toml says will do, as pip understands them: python .ci/oldest.py app web ...

Old releases of torch are on PyPI with CUDA only, 3 GB of it, and run without a GPU; PIP_EXTRA_INDEX_URL may name PyTorch's own index.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def bounds(extras: list[str]) -> dict[str, str]:
    """Name -> the highest of its lower bounds, in the core and those extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines, lowest = list(project["dependencies"]), dict[str, str]()
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    for line in lines:
        own = re.fullmatch(r"labelahead\[(.*)\]", line)
        if own:
            lowest |= {k: max(v, lowest.get(k, ""), key=number) for k, v in bounds(own[1].split(",")).items()}
            continue
        found = re.match(r"([\w.-]+)>=([\d.]+)", line)
        if not found:
            raise SystemExit(f"{line!r} has no lower bound; expected NAME>=VERSION")
        name, version = found.groups()
        lowest[name] = max(version, lowest.get(name, ""), key=number)
    return lowest


def number(version: str) -> tuple[int, ...]:
    """1.10 after 1.9."""
    return tuple(int(part) for part in version.split(".") if part)


if __name__ == "__main__":
    for name, version in bounds(sys.argv[1:]).items():
        print(f"{name}=={version}")
