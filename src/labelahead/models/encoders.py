"""Pretrained encoders by name, through the libraries that publish them.

    encoder = load_encoder("facebook/dinov2-small", "image")
    features = encoder.encode(images)               # (n, encoder.width), float32
    for at, rows in encoder.stream(read, positions):  # reading and encoding overlap
        ...

A name is a Hugging Face id or a local folder, `timm:ARCHITECTURE` or `open_clip:MODEL/WEIGHTS`. The
files of a repository say which library reads it; a prefix (`hf:`, `st:`, `timm:`, `open_clip:`)
decides where they do not. `@REVISION` pins a version, `#POOLING` chooses how tokens become one
vector: `hf:google/vit-base-patch16-224@main#mean`.

Code in a repository is never run: `trust_remote_code` is off.
"""

import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import gcd
from pathlib import Path
from typing import Any, Protocol

import scipy  # its submodules are imported when they are used: they take more than a second
import torch
from torch import Tensor

from labelahead.errors import InputError, LabelaheadError, MissingExtra, import_extra
from labelahead.models.direct_resize import find_direct_resize

__all__ = [
    "AUDIO",
    "IMAGE",
    "MODALITIES",
    "POOLINGS",
    "TEXT",
    "Encoder",
    "EncoderName",
    "choose_batch_size",
    "is_encoder_prefix",
    "load_encoder",
    "looks_like_encoder",
    "parse_encoder_name",
    "relocate_encoder",
    "resample",
    "resolve_encoder",
]

log = logging.getLogger("labelahead")
IMAGE, TEXT, AUDIO = "image", "text", "audio"
MODALITIES = (IMAGE, TEXT, AUDIO)
# What transformers calls the towers of CLIP, SigLIP and CLAP.
TOWERS = {IMAGE: "get_image_features", TEXT: "get_text_features", AUDIO: "get_audio_features"}
POOLINGS = ("cls", "mean", "pooler", "projection")
TIMM_POOLINGS = {"cls": "token", "mean": "avg"}  # what timm calls them
TRANSFORMERS, SENTENCE_TRANSFORMERS, TIMM, OPEN_CLIP = "hf", "st", "timm", "open_clip"
KINDS = (TRANSFORMERS, SENTENCE_TRANSFORMERS, TIMM, OPEN_CLIP)
EXTRA = "encoders"
EXTRAS = {"timm": "timm", "open_clip": "open-clip"}  # of libraries that need torchvision
# Files of a repository by which its library is recognised, in this order.
MODULES_FILE, OPEN_CLIP_FILE, CONFIG_FILE = "modules.json", "open_clip_config.json", "config.json"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".json", ".txt", ".model")
AUDIO_RATE = 16_000  # samples a second, unless the encoder's own files say otherwise
# Numbers of sounds in a forward pass: a minute of samples, or 4 spectrograms of Whisper. The first
# layer of wav2vec2 keeps some 20 MB for each second.
MAX_AUDIO_BATCH_NUMBERS = 60 * AUDIO_RATE
MAX_BATCH_ITEMS = 64  # larger batches gain nothing on a CPU and little on a GPU
ITEM_BYTES = 32 * 2**20  # activations of one item in a base-size transformer, generously
MEMORY_SHARE = 4  # a batch may take a quarter of the free memory
SORTED_BATCHES = 16  # texts of so many batches are sorted by length, which saves padding
MAX_READERS = 8
HUB_TIMEOUT_SECONDS = 10.0  # for the first answer of the hub
Prepared = Mapping[str, Any]


class Backend(Protocol):
    """One loaded model.

    Attributes:
        width: Numbers per item.
        pooling: How tokens become one vector; "" where the library decides.
    """

    width: int
    pooling: str

    def prepare(self, items: Sequence[Any]) -> Prepared:
        """Return the model's inputs for some items, on the CPU; called from several threads."""

    def encode(self, given: Prepared) -> Tensor:
        """Encode prepared items on the backend's device: (q, width)."""


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
        name = "" if _is_folder(self.name) else self.name
        return f"{self.kind}|{name}|{self.revision}|{self.pooling}"

    def __str__(self) -> str:
        prefix = f"{self.kind}:" if self.kind else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{prefix}{self.name}{revision}{'#' + self.pooling if self.pooling else ''}"


@dataclass(frozen=True, eq=False)
class Encoder:
    """A pretrained encoder of one modality.

    Attributes:
        name: Name with kind, revision and pooling: equal names give equal features.
        modality: "image", "text" or "audio".
        width: Numbers per item.
        device: Where it runs.
        max_audio_numbers: Samples of sounds at once.
    """

    name: EncoderName
    modality: str
    width: int
    backend: Backend
    device: torch.device
    max_audio_numbers: int = MAX_AUDIO_BATCH_NUMBERS

    def encode(self, items: Sequence[Any]) -> Tensor:
        """Encode one batch.

        Args:
            items: PIL images, texts, or pairs (waveform (samples,), samples a second).

        Returns:
            (n, width) float32 on the CPU.

        Raises:
            InputError: The encoder fails on these items, or returns no finite (n, width).
        """
        if self.modality == TEXT:
            return self._encode_batch(self._prepare(list(items)), len(items))
        return self._encode_prepared([self._prepare([item]) for item in items])

    def encode_all(self, items: Sequence[Any]) -> Tensor:
        """Encode any number of items in batches: (n, width) float32."""
        out = torch.empty(len(items), self.width)
        for at, rows in self.stream(items.__getitem__, range(len(items))):
            out[at] = rows
        return out

    def stream(
        self,
        read: Callable[[int], Any],
        positions: Sequence[int],
        *,
        batch_size: int | None = None,
        workers: int | None = None,
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Encode many items; threads read and prepare the next ones meanwhile.

        Args:
            read: Returns the item at a position; called from several threads.
            positions: The items to encode.
            batch_size: Items of a forward pass; default: from the free memory, at most 64.
            workers: Threads that read and prepare; default: one per core, at most 8.

        Yields:
            Some positions and their features (q, width) float32, until all are encoded. Texts come
            in the order of their lengths.
        """
        size = batch_size or choose_batch_size(self.device)
        if self.modality == TEXT:
            # One thread only: tokenizers change their own state while they work.
            batches = list(_batches_by_length(read, positions, size))
            ready = _prefetch(
                lambda at: self._prepare([read(i) for i in at]), batches, threads=1, ahead=4
            )
            for at, given in zip(batches, ready, strict=True):
                yield at, self._encode_batch(given, len(at))
            return
        threads = workers or min(MAX_READERS, os.cpu_count() or 1)
        ready = _prefetch(
            lambda i: self._prepare([read(i)]), positions, threads=threads, ahead=2 * size
        )
        for some, inputs in zip(_split(positions, size), _split(ready, size), strict=True):
            yield list(some), self._encode_prepared(inputs)

    def _prepare(self, items: Sequence[Any]) -> Prepared:
        try:
            return self.backend.prepare(items)
        except LabelaheadError:
            raise
        except Exception as error:
            raise InputError(
                f"the encoder {self.name} cannot prepare {len(items)} items ({_describe(error)})"
            ) from error

    def _encode_prepared(self, inputs: Sequence[Prepared]) -> Tensor:
        """Encode items that were prepared one by one, those of one shape together.

        Padding would make the features of a sound depend on its neighbours.
        """
        out = torch.empty(len(inputs), self.width)
        groups: dict[Any, list[int]] = {}
        for i, given in enumerate(inputs):
            shapes = tuple((key, tuple(value.shape)) for key, value in given.items())
            groups.setdefault(shapes, []).append(i)
        for group in groups.values():
            size = len(group)
            if self.modality == AUDIO:
                numbers = max(value.numel() for value in inputs[group[0]].values())
                size = max(1, self.max_audio_numbers // numbers)
            for at in _split(group, size):
                whole = {key: torch.cat([inputs[i][key] for i in at]) for key in inputs[at[0]]}
                out[list(at)] = self._encode_batch(whole, len(at))
        return out

    def _encode_batch(self, given: Prepared, n: int) -> Tensor:
        """Encode one prepared batch; a batch that does not fit into memory is halved."""
        half = nullcontext()
        if self.device.type == "cuda":
            half = torch.autocast(  # type: ignore[assignment]
                "cuda", torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
            )
        try:
            with torch.inference_mode(), half:
                out = self.backend.encode(given)
        except torch.OutOfMemoryError as error:
            if n == 1:
                raise InputError(
                    f"the encoder {self.name} does not fit into the memory of {self.device} with "
                    "one item; expected a smaller encoder, or device = cpu"
                ) from error
            torch.cuda.empty_cache()
            log.warning("%s: %d items do not fit into memory, halving", self.name, n)
            parts = [slice(0, n // 2), slice(n // 2, n)]
            counts = (n // 2, n - n // 2)
            return torch.cat(
                [
                    self._encode_batch({k: v[part] for k, v in given.items()}, q)
                    for part, q in zip(parts, counts, strict=True)
                ]
            )
        except LabelaheadError:
            raise
        except Exception as error:
            raise InputError(
                f"the encoder {self.name} failed on {n} items with {_describe(error)}"
            ) from error
        return _require_features(out, n, self.width, str(self.name))


def choose_batch_size(device: torch.device) -> int:
    """Return how many items to encode at once: at most 64, fewer if memory is scarce."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        try:
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
            free = next(1024 * int(line.split()[1]) for line in lines if "MemAvailable" in line)
        except (OSError, ValueError, StopIteration):  # macOS, Windows
            return MAX_BATCH_ITEMS
    return max(1, min(MAX_BATCH_ITEMS, free // (MEMORY_SHARE * ITEM_BYTES)))


def _split(values: Iterable[Any], size: int) -> Iterator[tuple[Any, ...]]:
    """Yield consecutive values, `size` at a time."""
    every = iter(values)
    while some := tuple(islice(every, size)):
        yield some


def _batches_by_length(
    read: Callable[[int], str], positions: Sequence[int], size: int
) -> Iterator[list[int]]:
    """Yield positions in batches of texts of similar length."""
    for some in _split(positions, SORTED_BATCHES * size):
        ordered = sorted(some, key=lambda i: len(read(i)))
        yield from (list(batch) for batch in _split(ordered, size))


def _prefetch(
    function: Callable[[Any], Prepared], arguments: Iterable[Any], *, threads: int, ahead: int
) -> Iterator[Prepared]:
    """Yield function(argument) in order, computed by threads up to `ahead` calls in advance."""
    waiting: deque[Future[Prepared]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for argument in arguments:
                waiting.append(pool.submit(function, argument))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def is_encoder_prefix(name: str) -> bool:
    """Return whether a name starts with the prefix of a library, such as `timm:`."""
    kind, colon, _ = name.partition(":")
    return bool(colon) and kind in KINDS


def looks_like_encoder(name: str) -> bool:
    """Return whether a name can only mean a pretrained encoder: a prefix, an id or a folder."""
    if ":" in name:
        return is_encoder_prefix(name)
    parsed = parse_encoder_name(name)
    if _is_folder(parsed.name) or parsed.name.startswith(("/", "./", "../", "~/")):
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
    if _is_folder(rest):  # its path may contain the signs below
        return EncoderName(kind, rest)
    bare, _, pooling = rest.partition("#") if "#" not in rest else rest.rpartition("#")
    if pooling and pooling not in POOLINGS:
        raise InputError(
            f"embedding is {name!r}, whose pooling is {pooling!r}; expected one of "
            f"{', '.join(POOLINGS)}"
        )
    bare, _, revision = (bare, "", "") if _is_folder(bare) else _split_revision(bare)
    if not bare:
        raise InputError(f"embedding is {name!r}; expected a name after the prefix")
    return EncoderName(kind, bare, revision, pooling)


def relocate_encoder(name: str, folder: str) -> str:
    """Return the name of an encoder whose folder has moved; its revision stays pinned."""
    return str(replace(parse_encoder_name(name), name=folder))


def _split_revision(name: str) -> tuple[str, str, str]:
    return name.rpartition("@") if "@" in name else (name, "", "")


def load_encoder(name: str, modality: str, *, device: str = "cpu") -> Encoder:
    """Load a pretrained encoder; the last one stays in memory.

    Args:
        name: See the module's docstring.
        modality: What it has to encode: "image", "text" or "audio".
        device: Where it runs; features come back to the CPU.

    Raises:
        InputError: No such encoder, no way to fetch it, or an encoder of another modality.
        MissingExtra: The library that reads it is not installed.
    """
    if modality not in MODALITIES:
        raise InputError(f"modality is {modality!r}; expected one of {', '.join(MODALITIES)}")
    return _load_encoder(resolve_encoder(name), modality, device)


@lru_cache(maxsize=1)
def _load_encoder(name: EncoderName, modality: str, device: str) -> Encoder:
    where = torch.device(device)
    backend = BACKENDS[name.kind](name, modality, where)
    return Encoder(replace(name, pooling=backend.pooling), modality, backend.width, backend, where)


# --- where an encoder lies, and which library reads it -------------------------------------------


def resolve_encoder(name: str) -> EncoderName:
    """Find the library and the exact revision of an encoder, without loading its weights.

    Raises:
        InputError: No such encoder, or a folder that is not the one of the given revision.
    """
    parsed = parse_encoder_name(name)
    folder = Path(parsed.name).expanduser()
    if _is_folder(parsed.name):
        files = {
            file: _read_json(folder / file) for file in _markers() if (folder / file).is_file()
        }
        revision = _digest_folder(folder, _stamp_folder(folder))
        if parsed.revision not in ("", revision):
            raise InputError(
                f"the encoder in {folder} has other weights or settings than before (revision "
                f"{revision[:12]}, expected {parsed.revision[:12]}); put the former files back, or "
                "start a new folder with the present ones"
            )
        parsed = replace(parsed, name=str(folder.resolve()))
    elif parsed.kind in (TIMM, OPEN_CLIP):
        return replace(parsed, revision=_check_library_version(parsed))
    elif parsed.revision and folder.is_absolute() and not folder.exists():
        raise InputError(
            f"the encoder was in {folder}, which is no longer there; put it back, or of an exported "
            "model name its new folder with --encoder"
        )
    elif (
        folder.exists()
        or parsed.name.count("/") > 1
        or ("/" not in parsed.name and not parsed.kind)
    ):
        raise InputError(
            f"embedding is {name!r}, which is neither a folder with {CONFIG_FILE} nor an id such "
            "as facebook/dinov2-small; expected one of both"
        )
    else:
        files, revision = _fetch_markers(parsed)
    return replace(parsed, kind=parsed.kind or _recognise(name, files), revision=revision)


def _markers() -> tuple[str, ...]:
    return (MODULES_FILE, OPEN_CLIP_FILE, CONFIG_FILE)


def _is_folder(name: str) -> bool:
    folder = Path(name).expanduser()
    return any((folder / file).is_file() for file in _markers())


def _recognise(name: str, files: Mapping[str, Any]) -> str:
    """Return the library whose files these are."""
    if MODULES_FILE in files:
        return SENTENCE_TRANSFORMERS
    if OPEN_CLIP_FILE in files:
        return OPEN_CLIP
    config = files.get(CONFIG_FILE)
    if isinstance(config, Mapping) and "model_type" in config:
        return TRANSFORMERS
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
            f"{path} cannot be read ({_describe(error)}); expected the files of an encoder as its "
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


def _is_hub_reachable() -> bool:
    """Return whether the hub answers. The library itself would retry every file for half a minute."""
    hub = import_extra("huggingface_hub", EXTRA, "an encoder by name")
    return not hub.constants.HF_HUB_OFFLINE and _can_reach(hub.constants.ENDPOINT)


@lru_cache(maxsize=4)
def _can_reach(endpoint: str) -> bool:
    hub = import_extra("huggingface_hub", EXTRA, "an encoder by name")
    try:
        hub.get_session().head(endpoint, timeout=HUB_TIMEOUT_SECONDS)
    except Exception:  # no network; the library's kinds of error vary
        return False
    return True


@lru_cache(maxsize=16)
def _fetch_markers(parsed: EncoderName) -> tuple[dict[str, Any], str]:
    """Return the small files by which a repository of the hub is known, and its commit."""
    hub = import_extra("huggingface_hub", EXTRA, f"the encoder {parsed.name}")
    errors = import_extra("huggingface_hub.errors", EXTRA, f"the encoder {parsed.name}")
    files: dict[str, Any] = {}
    revision = ""
    for file in _markers():
        try:
            path = Path(
                hub.hf_hub_download(
                    parsed.name,
                    file,
                    revision=parsed.revision or None,
                    local_files_only=not _is_hub_reachable(),
                )
            )
        except errors.GatedRepoError as error:
            raise InputError(
                f"{parsed.name} is gated: accept its licence on https://huggingface.co/"
                f"{parsed.name}, then log in with `hf auth login`"
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise InputError(
                f"there is no {parsed.name} on huggingface.co, or it is private; expected an id "
                "such as facebook/dinov2-small, or a folder"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise InputError(
                f"{parsed.name} has no revision {parsed.revision!r}; expected a branch, a tag or a "
                "commit"
            ) from error
        except errors.LocalEntryNotFoundError as error:
            if files:  # the repository is in the cache, this file is not: it has none
                continue
            if file != CONFIG_FILE:
                continue
            raise InputError(
                f"{parsed.name} is not in the cache of this machine and huggingface.co cannot be "
                "reached; expected a network, or the encoder as a local folder: on a machine with "
                f"a network run `hf download {parsed.name} --local-dir FOLDER`, copy FOLDER here, "
                "and give its path"
            ) from error
        except errors.EntryNotFoundError:
            continue
        except Exception as error:
            raise InputError(
                f"{parsed.name} cannot be fetched ({_describe(error)}); try again, or give a local "
                "folder"
            ) from error
        files[file] = _read_json(path)
        revision = path.parent.name
    if not files:
        raise InputError(
            f"{parsed.name} has no {CONFIG_FILE}; expected the repository of an encoder"
        )
    return files, revision


def _check_library_version(name: EncoderName) -> str:
    """Return the version of the library that names these weights itself; warn of another one."""
    module = _import_library({TIMM: "timm", OPEN_CLIP: "open_clip"}[name.kind])
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


def _import_library(module: str) -> Any:
    """Import a library of encoders; one that is broken counts as missing."""
    extra = EXTRAS.get(module, EXTRA)
    try:
        return import_extra(module, extra, "this encoder")
    except (RuntimeError, AttributeError) as error:  # torchvision of another torch
        raise MissingExtra(
            f"{module} cannot be imported here ({_describe(error)}); it needs a torchvision that "
            f"was built for torch {torch.__version__}: pip install 'labelahead[{extra}]'"
        ) from error


# --- transformers --------------------------------------------------------------------------------


class _Transformers:
    """A model of transformers: AutoModel with its own processor."""

    def __init__(self, name: EncoderName, modality: str, device: torch.device) -> None:
        library = _import_library("transformers")
        self.modality = modality
        self.device = device
        options: dict[str, Any] = {"trust_remote_code": False}
        if not _is_folder(name.name):
            options |= {"revision": name.revision, "local_files_only": not _is_hub_reachable()}
        self.config = _load(library.AutoConfig, name, **options)
        self.processor = _load(self._processor_class(library, name), name, **options)
        if modality == TEXT:
            _require_vocabulary(self.processor, name)
        self.resize = find_direct_resize(self.processor) if modality == IMAGE else None
        with _without_progress_bars(library):
            model = _load(library.AutoModel, name, **options)
        self.two_towers = any(hasattr(model, tower) for tower in TOWERS.values())
        if getattr(self.config, "is_encoder_decoder", False) and hasattr(model, "get_encoder"):
            model = model.get_encoder()
        self.model = model.to(device).eval()
        self.pooling = self._choose_pooling(name)
        self.width = self._measure_width(name)

    def _processor_class(self, library: Any, name: EncoderName) -> Any:
        """Return the class that prepares items of this modality; refuse another modality."""
        own = _modalities_of(name, self.config)
        if self.modality not in own:
            kinds = " and ".join(_plural(one) for one in sorted(own))
            raise InputError(
                f"{name.name} encodes {kinds}, but these items are {_plural(self.modality)}; "
                f"expected an encoder of {_plural(self.modality)}"
            )
        return {
            IMAGE: library.AutoImageProcessor,
            TEXT: library.AutoTokenizer,
            AUDIO: library.AutoFeatureExtractor,
        }[self.modality]

    def _choose_pooling(self, name: EncoderName) -> str:
        if self.two_towers:
            if name.pooling not in ("", "projection"):
                raise InputError(
                    f"{name.name} has two towers, one of them for texts, whose vectors are "
                    f"comparable by projection only; given was #{name.pooling}"
                )
            return "projection"
        if name.pooling:
            return name.pooling
        if self.modality == IMAGE:
            has_class_token = any(key.endswith("cls_token") for key in self.model.state_dict())
            return "cls" if has_class_token else "pooler"
        return "mean"

    def _measure_width(self, name: EncoderName) -> int:
        """Encode one empty item, to see that the encoder works and how long its vectors are."""
        example: Any = "text"
        if self.modality == IMAGE:
            example = import_extra("PIL.Image", "photos", "images").new("RGB", (64, 64))
        elif self.modality == AUDIO:
            example = (torch.zeros(AUDIO_RATE), AUDIO_RATE)
        try:
            with torch.inference_mode():
                out = self.encode(self.prepare([example]))
        except LabelaheadError:
            raise
        except Exception as error:
            raise InputError(
                f"{name.name} cannot encode one {self.modality} ({_describe(error)}); expected an "
                "encoder that returns hidden states"
            ) from error
        if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != 1:
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise InputError(
                f"{name.name} returns {shape} for one item with pooling {self.pooling!r}; expected "
                "(1, d): choose another pooling with #cls, #mean or #pooler"
            )
        return int(out.shape[1])

    def encode(self, given: Prepared) -> Tensor:
        """Encode prepared items; models with two towers use the one of this modality."""
        given = {key: value.to(self.device) for key, value in given.items()}
        if self.two_towers:
            given = {key: value for key, value in given.items() if key != "token_type_ids"}
            out = getattr(self.model, TOWERS[self.modality])(**given)
            return out if isinstance(out, Tensor) else out.pooler_output
        return self._pool(self.model(**given), given)

    def prepare(self, items: Sequence[Any]) -> Prepared:
        """Apply the encoder's own processor or tokenizer."""
        if self.modality == IMAGE and self.resize is not None:
            images = [self.resize(i if i.mode == "RGB" else i.convert("RGB")) for i in items]
            return self.processor(images=images, do_resize=False, return_tensors="pt")  # type: ignore[no-any-return]
        if self.modality == IMAGE:
            return self.processor(images=list(items), return_tensors="pt")  # type: ignore[no-any-return]
        if self.modality == TEXT:
            limit = getattr(self._text_config(), "max_position_embeddings", None)
            return self.processor(  # type: ignore[no-any-return]
                list(items), return_tensors="pt", padding=True, truncation=True, max_length=limit
            )
        return self._prepare_sounds(items)

    def _prepare_sounds(self, items: Sequence[Any]) -> Prepared:
        """Apply the encoder's own feature extractor, with its own padding, to sounds."""
        rate = int(getattr(self.processor, "sampling_rate", AUDIO_RATE))
        sounds = [resample(wave, given, rate).numpy() for wave, given in items]
        limit = getattr(self.processor, "nb_max_samples", None)
        if self.two_towers and limit is not None:
            # CLAP's extractor would take a random part of a longer sound.
            sounds = [sound[: int(limit)] for sound in sounds]
        # Whisper pads every sound to 30 s: its silence must not be averaged.
        masked = {"return_attention_mask": True} if hasattr(self.processor, "chunk_length") else {}
        return self.processor(  # type: ignore[no-any-return]
            sounds, sampling_rate=rate, return_tensors="pt", **masked
        )

    def _text_config(self) -> Any:
        return getattr(self.config, "text_config", self.config)

    def _pool(self, out: Any, given: Mapping[str, Tensor]) -> Tensor:
        """One vector an item from the outputs of a model, which may be a plain tuple."""
        states: Tensor
        if isinstance(out, tuple | list):
            states, pooled = out[0], next((o for o in out[1:] if _is_matrix(o)), None)
        else:
            states, pooled = out.last_hidden_state, getattr(out, "pooler_output", None)
        if self.pooling == "pooler":
            if pooled is None:
                raise InputError("this encoder has no pooler; expected #cls or #mean")
            return pooled.flatten(1)  # type: ignore[no-any-return]
        if states.dim() > 3:  # (q, channels, height, width)
            states = states.flatten(2).transpose(1, 2)
        if self.pooling == "cls":
            return states[:, 0]
        mask = given.get("attention_mask")
        if mask is not None and self.modality == AUDIO and mask.shape[1] % states.shape[1] == 0:
            mask = mask[:, :: mask.shape[1] // states.shape[1]]  # one of a few frames per state
        if mask is None or mask.shape != states.shape[:2]:
            return states.mean(1)
        weights = mask.to(states.dtype).unsqueeze(2)
        return (states * weights).sum(1) / weights.sum(1).clamp_min(1)


def _require_vocabulary(tokenizer: Any, name: EncoderName) -> None:
    """Raise if a tokenizer has no words: transformers makes such a one where its files are missing.

    Every text would become unknown tokens, and texts of one length would be equal.
    """
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise InputError(
            f"{name.name} has a tokenizer without a vocabulary; expected its tokenizer.json, "
            "vocab.txt or other files of the tokenizer: download the encoder again"
        )


def _is_matrix(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 2


def _plural(modality: str) -> str:
    return "sounds" if modality == AUDIO else f"{modality}s"


def _modalities_of(name: EncoderName, config: Any) -> set[str]:
    """Return what an encoder of transformers takes, by its configuration."""
    if hasattr(config, "vision_config") and hasattr(config, "text_config"):
        return {IMAGE, TEXT}
    if hasattr(config, "audio_config") and hasattr(config, "text_config"):
        return {AUDIO, TEXT}
    if hasattr(config, "num_mel_bins"):  # before images: some cut spectrograms into patches
        return {AUDIO}
    if hasattr(config, "image_size") or hasattr(config, "patch_size") or hasattr(config, "depths"):
        return {IMAGE}
    if hasattr(config, "conv_kernel"):
        return {AUDIO}
    return {TEXT}


@contextmanager
def _without_progress_bars(library: Any) -> Iterator[None]:
    """Let transformers load weights without drawing over the command's own status line."""
    logging_of_library = library.utils.logging
    drawn = logging_of_library.is_progress_bar_enabled()
    logging_of_library.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging_of_library.enable_progress_bar()


def _load(loader: Any, name: EncoderName, **options: Any) -> Any:
    """Call a library's own `from_pretrained`; its errors become one sentence."""
    try:
        return loader.from_pretrained(name.name, **options)
    except Exception as error:
        text = str(error)
        if "trust_remote_code" in text:
            raise InputError(
                f"{name.name} needs code from its repository, which labelahead does not run; "
                "expected an encoder that transformers knows, or your own as file.py:function"
            ) from error
        raise InputError(
            f"{name.name} cannot be loaded ({_describe(error)}); expected a complete folder or "
            "repository of a pretrained encoder with its processor or tokenizer: download it again"
        ) from error


def resample(wave: Tensor, rate: int, target_rate: int) -> Tensor:
    """Return a wave (samples,) at another rate, float32, by a polyphase filter.

    Args:
        wave: (samples,).
        given: its samples a second.
        wanted: samples a second of the result.
    """
    wave = torch.as_tensor(wave, dtype=torch.float32).flatten()
    if rate == target_rate:
        return wave
    step = gcd(rate, target_rate)
    return torch.from_numpy(
        scipy.signal.resample_poly(wave.numpy(), target_rate // step, rate // step)
    )


# --- sentence-transformers -----------------------------------------------------------------------


class _SentenceTransformers:
    """A model of sentence-transformers, with its own pooling and normalisation."""

    def __init__(self, name: EncoderName, modality: str, device: torch.device) -> None:
        library = _import_library("sentence_transformers")
        if modality != TEXT:
            raise InputError(
                f"{name.name} encodes texts, but these items are {_plural(modality)}; expected "
                "another encoder"
            )
        if name.pooling:
            raise InputError(
                f"{name.name} defines its own pooling; expected its name without #{name.pooling}, "
                f"or hf:{name.name}#{name.pooling}"
            )
        options: dict[str, Any] = {"trust_remote_code": False, "device": str(device)}
        if not _is_folder(name.name):
            options |= {"revision": name.revision, "local_files_only": not _is_hub_reachable()}
        try:
            self.model = library.SentenceTransformer(name.name, **options)
        except Exception as error:
            raise InputError(
                f"{name.name} cannot be loaded by sentence-transformers ({_describe(error)}); "
                "expected a complete folder or repository"
            ) from error
        self.pooling = ""
        with torch.inference_mode():
            self.width = int(self.encode(self.prepare(["text"])).shape[1])

    def prepare(self, items: Sequence[Any]) -> Prepared:
        """Return the texts: the library tokenizes them itself."""
        return {"texts": list(items)}

    def encode(self, given: Prepared) -> Tensor:
        """Encode one batch of texts."""
        texts = given["texts"]
        out = self.model.encode(
            texts, batch_size=len(texts), convert_to_tensor=True, show_progress_bar=False
        )
        return torch.as_tensor(out)


# --- timm and OpenCLIP ---------------------------------------------------------------------------


class _Timm:
    """An image model of timm without its classifier."""

    def __init__(self, name: EncoderName, modality: str, device: torch.device) -> None:
        library = _import_library("timm")
        if modality != IMAGE:
            raise InputError(
                f"timm:{name.name} encodes images, but these items are {_plural(modality)}"
            )
        if name.pooling not in ("", *TIMM_POOLINGS):
            raise InputError(
                f"timm:{name.name} has no pooling {name.pooling!r}; expected one of "
                f"{', '.join(TIMM_POOLINGS)}, or its name alone"
            )
        spelt = f"local-dir:{name.name}" if _is_folder(name.name) else name.name
        pooling = {"global_pool": TIMM_POOLINGS[name.pooling]} if name.pooling else {}
        try:
            model = library.create_model(spelt, pretrained=True, num_classes=0, **pooling)
        except Exception as error:
            raise InputError(
                f"timm:{name.name} cannot be loaded ({_describe(error)}); expected a name of "
                "timm.list_models(pretrained=True), or a folder"
            ) from error
        self.model, self.device, self.pooling = model.to(device).eval(), device, name.pooling
        config = library.data.resolve_model_data_config(model)
        self.transform = library.data.create_transform(**config, is_training=False)
        example = import_extra("PIL.Image", "photos", "images").new("RGB", (64, 64))
        with torch.inference_mode():
            self.width = int(self.encode(self.prepare([example])).shape[1])

    def prepare(self, items: Sequence[Any]) -> Prepared:
        """Resize, crop and normalise PIL images as timm evaluates this model."""
        return {"pixels": torch.stack([self.transform(image.convert("RGB")) for image in items])}

    def encode(self, given: Prepared) -> Tensor:
        """Encode one batch of images."""
        out: Tensor = self.model(given["pixels"].to(self.device))
        return out


class _OpenClip:
    """Either tower of an OpenCLIP model."""

    def __init__(self, name: EncoderName, modality: str, device: torch.device) -> None:
        library = _import_library("open_clip")
        if modality not in (IMAGE, TEXT):
            raise InputError(f"open_clip:{name.name} encodes images and texts, not {modality}")
        if name.pooling not in ("", "projection"):
            raise InputError(
                f"open_clip:{name.name} gives its projection; expected its name without "
                f"#{name.pooling}"
            )
        model, _, weights = name.name.partition("/")
        spelt = f"local-dir:{name.name}" if _is_folder(name.name) else model
        try:
            made, _, transform = library.create_model_and_transforms(
                spelt, pretrained=None if _is_folder(name.name) else weights
            )
            self.tokenizer = library.get_tokenizer(spelt) if modality == TEXT else None
        except Exception as error:
            raise InputError(
                f"open_clip:{name.name} cannot be loaded ({_describe(error)}); expected "
                "MODEL/WEIGHTS of open_clip.list_pretrained(), such as ViT-B-32/laion2b_s34b_b79k"
            ) from error
        self.model = made.to(device).eval()
        self.transform = transform
        self.device = device
        self.modality = modality
        self.pooling = "projection"
        if modality == IMAGE:
            example: Any = import_extra("PIL.Image", "photos", "images").new("RGB", (64, 64))
        else:
            example = "text"
        with torch.inference_mode():
            self.width = int(self.encode(self.prepare([example])).shape[1])

    def prepare(self, items: Sequence[Any]) -> Prepared:
        """Tokenize texts, or transform images as the library does for evaluation."""
        if self.tokenizer is not None:
            return {"tokens": self.tokenizer(list(items))}
        return {"pixels": torch.stack([self.transform(image.convert("RGB")) for image in items])}

    def encode(self, given: Prepared) -> Tensor:
        """Encode one batch by one tower."""
        if self.modality == TEXT:
            return self.model.encode_text(given["tokens"].to(self.device))  # type: ignore[no-any-return]
        return self.model.encode_image(given["pixels"].to(self.device))  # type: ignore[no-any-return]


BACKENDS: Mapping[str, Callable[[EncoderName, str, torch.device], Backend]] = {
    TRANSFORMERS: _Transformers,
    SENTENCE_TRANSFORMERS: _SentenceTransformers,
    TIMM: _Timm,
    OPEN_CLIP: _OpenClip,
}


def _require_features(out: object, n: int, width: int, name: str) -> Tensor:
    """Return (n, width) float32 on the CPU, or raise."""
    if not isinstance(out, Tensor) or tuple(out.shape) != (n, width):
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(
            f"the encoder {name} returned {shape} for {n} items; expected ({n}, {width})"
        )
    features = out.detach().float().cpu()
    finite = torch.isfinite(features).all(1)
    if not bool(finite.all()):
        raise InputError(
            f"the encoder {name} returned NaN or infinity for {int((~finite).sum())} of {n} items; "
            "expected finite numbers: try device = cpu"
        )
    return features


def _describe(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:200]}" if line else type(error).__name__
