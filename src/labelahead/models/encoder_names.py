"""Names of pretrained encoders: their parts, the library that reads them, and their exact revision.

A name is a Hugging Face id or a local folder, `timm:ARCHITECTURE` or `open_clip:MODEL/WEIGHTS`. The
files of a repository say which library reads it; a prefix (`hf:`, `st:`, `timm:`, `open_clip:`)
decides where they do not. `@REVISION` pins a version, `#POOLING` chooses how tokens become one
vector: `hf:google/vit-base-patch16-224@main#mean`. A repository of the hub in the format of timm
or OpenCLIP is called as these libraries call it: `timm:hf-hub:timm/resnet18.a1_in1k`.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from labelahead.errors import InputError, MissingExtra, import_extra

__all__ = [
    "AUDIO",
    "HUB_PREFIX",
    "IMAGE",
    "MODALITIES",
    "OPEN_CLIP",
    "POOLINGS",
    "SENTENCE_TRANSFORMERS",
    "TEXT",
    "TIMM",
    "TRANSFORMERS",
    "EncoderName",
    "describe_error",
    "download_command",
    "fetch_folder",
    "import_encoder_library",
    "is_encoder_folder",
    "is_encoder_prefix",
    "is_hub_reachable",
    "looks_like_encoder",
    "offline_if_unreachable",
    "parse_encoder_name",
    "relocate_encoder",
    "resolve_encoder",
]

log = logging.getLogger("labelahead")
IMAGE, TEXT, AUDIO = "image", "text", "audio"
MODALITIES = (IMAGE, TEXT, AUDIO)
POOLINGS = ("cls", "mean", "pooler", "projection")
TRANSFORMERS, SENTENCE_TRANSFORMERS, TIMM, OPEN_CLIP = "hf", "st", "timm", "open_clip"
KINDS = (TRANSFORMERS, SENTENCE_TRANSFORMERS, TIMM, OPEN_CLIP)
HUB_PREFIX = "hf-hub:"  # what timm and OpenCLIP call a repository of the hub
EXTRA = "encoders"
EXTRAS = {"timm": "timm", "open_clip": "open-clip"}  # of libraries that need torchvision
# Files of a repository by which its library is recognised.
MODULES_FILE, OPEN_CLIP_FILE, CONFIG_FILE = "modules.json", "open_clip_config.json", "config.json"
MARKERS = (MODULES_FILE, OPEN_CLIP_FILE, CONFIG_FILE)
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".json", ".txt", ".model")
# Of a repository in the format of timm or OpenCLIP: weights, the preferred format first, and others.
HUB_WEIGHTS = {
    TIMM: ("model.safetensors", "pytorch_model.bin"),
    OPEN_CLIP: ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
}
HUB_SETTINGS = ("*.json", "*.txt", "*.model")
HUB_TIMEOUT_SECONDS = 10.0  # for the first answer of the hub


@dataclass(frozen=True)
class EncoderName:
    """The parsed name of an encoder, completed with its kind and revision.

    Attributes:
        kind: Library that reads it: one of KINDS; "" while it is not known.
        name: Hugging Face id, local folder, or what the library calls it.
        revision: Commit of the hub, or digest of a folder's files; "" while it is not known.
        pooling: One of POOLINGS; "" for the encoder's own.
    """

    kind: str
    name: str
    revision: str = ""
    pooling: str = ""

    @property
    def cache_key(self) -> str:
        """A text that changes with the features; a folder may move."""
        name = "" if is_encoder_folder(self.name) else self.name
        return f"{self.kind}|{name}|{self.revision}|{self.pooling}"

    def __str__(self) -> str:
        prefix = f"{self.kind}:" if self.kind else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{prefix}{self.name}{revision}{'#' + self.pooling if self.pooling else ''}"


def is_encoder_prefix(name: str) -> bool:
    """Return whether a name starts with the prefix of a library, such as `timm:`."""
    kind, colon, _ = name.partition(":")
    return bool(colon) and kind in KINDS


def looks_like_encoder(name: str) -> bool:
    """Return whether a name can only mean a pretrained encoder: a prefix, an id or a folder."""
    if ":" in name:
        return is_encoder_prefix(name)
    parsed = parse_encoder_name(name)
    if is_encoder_folder(parsed.name) or parsed.name.startswith(("/", "./", "../", "~/")):
        return True
    return parsed.name.count("/") == 1 and all(parsed.name.split("/"))


def parse_encoder_name(name: str) -> EncoderName:
    """Split a name into kind, id, revision and pooling.

    >>> parse_encoder_name("hf:google/vit@main#mean")
    EncoderName(kind='hf', name='google/vit', revision='main', pooling='mean')
    """
    kind, rest = "", name
    if is_encoder_prefix(name):
        kind, _, rest = name.partition(":")
    if is_encoder_folder(rest):  # its path may contain the signs below
        return EncoderName(kind, rest)
    bare, _, pooling = rest.partition("#") if "#" not in rest else rest.rpartition("#")
    if pooling and pooling not in POOLINGS:
        raise InputError(
            f"embedding is {name!r}, whose pooling is {pooling!r}; expected one of "
            f"{', '.join(POOLINGS)}"
        )
    bare, _, revision = (bare, "", "") if is_encoder_folder(bare) else _split_revision(bare)
    if not bare:
        raise InputError(f"embedding is {name!r}; expected a name after the prefix")
    return EncoderName(kind, bare, revision, pooling)


def relocate_encoder(name: str, folder: str) -> str:
    """Return the name of an encoder whose folder has moved; its revision stays pinned."""
    return str(replace(parse_encoder_name(name), name=folder))


def _split_revision(name: str) -> tuple[str, str, str]:
    return name.rpartition("@") if "@" in name else (name, "", "")


def resolve_encoder(name: str) -> EncoderName:
    """Find the library and the exact revision of an encoder, without loading its weights.

    Raises:
        InputError: No such encoder, or a folder that is not the one of the given revision.
    """
    parsed = parse_encoder_name(name)
    folder = Path(parsed.name).expanduser()
    if is_encoder_folder(parsed.name):
        files = {file: _read_json(folder / file) for file in MARKERS if (folder / file).is_file()}
        revision = _digest_folder(folder, _stamp_folder(folder))
        if parsed.revision not in ("", revision):
            raise InputError(
                f"the encoder in {folder} has other weights or settings than before (revision "
                f"{revision[:12]}, expected {parsed.revision[:12]}); put the former files back, or "
                "start a new folder with the present ones"
            )
        kind = parsed.kind or _recognise(name, files)
        return replace(parsed, name=str(folder.resolve()), kind=kind, revision=revision)
    if parsed.revision and folder.is_absolute() and not folder.exists():
        raise InputError(
            f"the encoder was in {folder}, which is no longer there; put it back, or of an exported "
            "model name its new folder with --encoder"
        )
    repository = _hub_repository(parsed)
    if repository is None and parsed.kind in (TIMM, OPEN_CLIP):
        return replace(parsed, revision=_check_library_version(parsed))
    if repository is None or folder.exists():
        raise InputError(
            f"embedding is {name!r}, which is neither a folder with {CONFIG_FILE} nor an id such "
            "as facebook/dinov2-small; expected one of both"
        )
    files, revision = _fetch_markers(repository, parsed.revision)
    kind = parsed.kind or _recognise(name, files)
    if kind in (TIMM, OPEN_CLIP):
        repository = HUB_PREFIX + repository
    return replace(parsed, name=repository, kind=kind, revision=revision)


def _hub_repository(parsed: EncoderName) -> str | None:
    """Return the repository of the hub that a name means, None if it means none."""
    name = parsed.name.removeprefix(HUB_PREFIX)
    if parsed.kind == OPEN_CLIP and name == parsed.name:  # MODEL/WEIGHTS
        return None
    bare = parsed.kind in (TRANSFORMERS, SENTENCE_TRANSFORMERS) and "/" not in name
    return name if bare or name.count("/") == 1 else None


def is_encoder_folder(name: str) -> bool:
    """Return whether a name is the path of a folder that holds an encoder."""
    folder = Path(name).expanduser()
    return any((folder / file).is_file() for file in MARKERS)


def _recognise(name: str, files: Mapping[str, Any]) -> str:
    """Return the library whose files these are."""
    if MODULES_FILE in files:
        return SENTENCE_TRANSFORMERS
    config = files.get(CONFIG_FILE)
    # Before OpenCLIP: repositories that hold the same weights in both formats need no torchvision.
    if isinstance(config, Mapping) and "model_type" in config:
        return TRANSFORMERS
    if OPEN_CLIP_FILE in files:
        return OPEN_CLIP
    if isinstance(config, Mapping) and "architecture" in config:
        return TIMM
    raise InputError(
        f"embedding is {name!r}, whose files do not say which library reads it; expected a prefix: "
        f"{', '.join(f'{kind}:' for kind in KINDS)}"
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({describe_error(error)}); expected the files of an encoder as its "
            "library saved them: download it again"
        ) from error


def _stamp_folder(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of the files that define an encoder."""
    files = sorted(p for p in folder.rglob("*") if p.suffix in WEIGHT_SUFFIXES)
    stats = [(p, p.stat()) for p in files]
    return tuple((str(p.relative_to(folder)), s.st_size, s.st_mtime_ns) for p, s in stats)


@lru_cache(maxsize=16)
def _digest_folder(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> str:
    """Return a digest of the content of these files."""
    digest = hashlib.sha256()
    for name, _, _ in stamp:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:40]


def is_hub_reachable() -> bool:
    """Return whether the hub answers. The library itself would retry every file for half a minute."""
    constants = import_extra("huggingface_hub.constants", EXTRA, "an encoder by name")
    return not constants.HF_HUB_OFFLINE and _can_reach(constants.ENDPOINT)


@lru_cache(maxsize=4)
def _can_reach(endpoint: str) -> bool:
    hub = import_extra("huggingface_hub", EXTRA, "an encoder by name")
    try:
        hub.get_session().head(endpoint, timeout=HUB_TIMEOUT_SECONDS)
    except Exception:  # no network; the library's kinds of error vary
        return False
    return True


def download_command(repository: str) -> str:
    """Return the sentence on how to get a repository of the hub onto a machine without a network."""
    return (
        f"on a machine with a network run `hf download {repository} --local-dir FOLDER`, copy "
        "FOLDER here, and give its path"
    )


@contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """Let libraries that fetch weights themselves look into the cache at once without a network."""
    constants = import_extra("huggingface_hub.constants", EXTRA, "this encoder")
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = not is_hub_reachable()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def _report_hub_errors(repository: str, revision: str) -> Iterator[None]:
    """Turn the refusals of the hub into one sentence; errors of a single file pass."""
    errors = import_extra("huggingface_hub.errors", EXTRA, f"the encoder {repository}")
    try:
        yield
    except errors.GatedRepoError as error:
        raise InputError(
            f"{repository} is gated: accept its licence on https://huggingface.co/{repository}, "
            "then log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"there is no {repository} on huggingface.co, or it is private; expected an id such as "
            "facebook/dinov2-small, or a folder"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"{repository} has no revision {revision!r}; expected a branch, a tag or a commit"
        ) from error
    except errors.EntryNotFoundError:
        raise
    except Exception as error:
        raise InputError(
            f"{repository} cannot be fetched ({describe_error(error)}); try again, or give a local "
            "folder"
        ) from error


@lru_cache(maxsize=16)
def _fetch_markers(repository: str, revision: str) -> tuple[dict[str, Any], str]:
    """Return the small files by which a repository of the hub is known, and its commit."""
    hub = import_extra("huggingface_hub", EXTRA, f"the encoder {repository}")
    errors = import_extra("huggingface_hub.errors", EXTRA, f"the encoder {repository}")
    files: dict[str, Any] = {}
    commit, reachable = "", is_hub_reachable()
    for file in MARKERS:
        try:
            with _report_hub_errors(repository, revision):
                found = hub.hf_hub_download(
                    repository, file, revision=revision or None, local_files_only=not reachable
                )
        except errors.EntryNotFoundError:  # also of a file that is not in the cache
            continue
        files[file] = _read_json(Path(found))
        commit = Path(found).parent.name
    if not files and not reachable:
        raise InputError(
            f"{repository} is not in the cache of this machine and huggingface.co cannot be "
            "reached; expected a network, or the encoder as a local folder: "
            f"{download_command(repository)}"
        )
    if not files:
        raise InputError(
            f"{repository} has no {CONFIG_FILE}; expected the repository of an encoder"
        )
    return files, commit


def fetch_folder(name: EncoderName) -> Path | None:
    """Return the folder with the files of an encoder of timm or OpenCLIP, at its revision.

    Returns:
        The local folder, or that of the hub's cache; None if the library finds the weights itself.
    """
    if is_encoder_folder(name.name):
        return Path(name.name)
    if not name.name.startswith(HUB_PREFIX):
        return None
    hub = import_extra("huggingface_hub", EXTRA, f"the encoder {name.name}")
    errors = import_extra("huggingface_hub.errors", EXTRA, f"the encoder {name.name}")
    repository = name.name.removeprefix(HUB_PREFIX)
    download_options = {"revision": name.revision, "local_files_only": not is_hub_reachable()}
    for file in HUB_WEIGHTS[name.kind]:
        try:
            with _report_hub_errors(repository, name.revision):
                hub.hf_hub_download(repository, file, **download_options)
        except errors.EntryNotFoundError:
            continue
        with _report_hub_errors(repository, name.revision):
            return Path(
                hub.snapshot_download(
                    repository, allow_patterns=[*HUB_SETTINGS], **download_options
                )
            )
    raise InputError(
        f"{repository} has none of {', '.join(HUB_WEIGHTS[name.kind])}, or they are not in the cache "
        f"of this machine and huggingface.co cannot be reached; {download_command(repository)}"
    )


def _check_library_version(name: EncoderName) -> str:
    """Return the version of the library that names these weights itself; warn of another one."""
    module = import_encoder_library({TIMM: "timm", OPEN_CLIP: "open_clip"}[name.kind])
    version = f"{module.__name__}-{module.__version__}"
    if name.revision not in ("", version):
        log.warning(
            "%s:%s was used with %s before, installed is %s: its features may differ",
            name.kind,
            name.name,
            name.revision,
            version,
        )
    return version


def import_encoder_library(module: str) -> Any:
    """Import a library of encoders; one that is broken counts as missing."""
    extra = EXTRAS.get(module, EXTRA)
    try:
        return import_extra(module, extra, "this encoder")
    except (RuntimeError, AttributeError) as error:  # torchvision of another torch
        raise MissingExtra(
            f"{module} cannot be imported here ({describe_error(error)}); it needs a torchvision that "
            f"was built for torch {torch.__version__}: pip install 'labelahead[{extra}]'"
        ) from error


def describe_error(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:200]}" if line else type(error).__name__
