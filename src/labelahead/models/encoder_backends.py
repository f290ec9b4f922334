"""Pretrained encoders as the libraries that publish them run them.

Each backend prepares items and encodes them with one library: transformers, sentence-transformers,
timm or OpenCLIP. Code in a repository is never run: `trust_remote_code` is off.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import gcd
from typing import Any, Protocol

import scipy  # its submodules are imported when they are used: they take more than a second
import torch
from torch import Tensor

from labelahead.errors import InputError, LabelaheadError, import_extra
from labelahead.models.direct_resize import find_direct_resize
from labelahead.models.encoder_names import (
    AUDIO,
    IMAGE,
    OPEN_CLIP,
    SENTENCE_TRANSFORMERS,
    TEXT,
    TIMM,
    TRANSFORMERS,
    EncoderName,
    describe_error,
    download_command,
    fetch_folder,
    import_encoder_library,
    is_encoder_folder,
    is_hub_reachable,
    offline_if_unreachable,
)

__all__ = ["AUDIO_RATE", "BACKENDS", "Backend", "Prepared", "resample"]

log = logging.getLogger("labelahead")

# What transformers calls the towers of CLIP, SigLIP and CLAP.
TOWERS = {IMAGE: "get_image_features", TEXT: "get_text_features", AUDIO: "get_audio_features"}
TIMM_POOLINGS = {"cls": "token", "mean": "avg"}  # what timm calls them
# Parameters that are used in training only; published encoders of sounds lack them.
TRAINING_PARAMETERS = ("masked_spec_embed",)
AUDIO_RATE = 16_000  # samples a second, unless the encoder's own files say otherwise
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


class _Transformers:
    """A model of transformers: AutoModel with its own processor."""

    def __init__(self, name: EncoderName, modality: str, device: torch.device) -> None:
        library = import_encoder_library("transformers")
        self.modality = modality
        self.device = device
        options: dict[str, Any] = {"trust_remote_code": False}
        if not is_encoder_folder(name.name):
            options |= {"revision": name.revision, "local_files_only": not is_hub_reachable()}
        self.config = _load(library.AutoConfig, name, **options)
        self.processor = _load(self._processor_class(library, name), name, **options)
        if modality == TEXT:
            _require_vocabulary(self.processor, name)
        self.resize = find_direct_resize(self.processor) if modality == IMAGE else None
        with _without_output(library):
            model, loaded = _load(library.AutoModel, name, output_loading_info=True, **options)
        missing = _find_random_parameters(model, loaded["missing_keys"], name)
        self.two_towers = any(hasattr(model, tower) for tower in TOWERS.values())
        if getattr(self.config, "is_encoder_decoder", False) and hasattr(model, "get_encoder"):
            model = model.get_encoder()
        self.model = model.to(device).eval()
        self.pooling = self._choose_pooling(name)
        if self.pooling == "pooler" and any("pooler" in key for key in missing):
            raise InputError(
                f"{name.name} has no weights for its pooler, whose output would be random; expected "
                "another pooling: #cls or #mean"
            )
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
                f"{name.name} cannot encode one {self.modality} ({describe_error(error)}); expected an "
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
def _without_output(library: Any) -> Iterator[None]:
    """Let transformers load weights without drawing over the command's own status line.

    Its report on missing weights is replaced by `_find_random_parameters`.
    """
    logging_of_library = library.utils.logging
    drawn = logging_of_library.is_progress_bar_enabled()
    verbosity = logging_of_library.get_verbosity()
    logging_of_library.disable_progress_bar()
    logging_of_library.set_verbosity_error()
    try:
        yield
    finally:
        logging_of_library.set_verbosity(verbosity)
        if drawn:
            logging_of_library.enable_progress_bar()


def _find_random_parameters(model: Any, missing: Collection[str], name: EncoderName) -> list[str]:
    """Return the parameters that the files lack, which transformers draws at random.

    A pooler alone is no reason to warn: it is used on request only.

    Raises:
        InputError: They are most of the encoder.
    """
    sizes = {key: value.numel() for key, value in model.named_parameters()}
    random = sorted(key for key in missing if key in sizes)
    if 2 * sum(sizes[key] for key in random) > sum(sizes.values()):
        raise InputError(
            f"{name.name} has no weights for {len(random)} of {len(sizes)} parameters of its "
            f"{type(model).__name__}, such as {random[0]}: its features would be random; expected "
            "the weights of that model: download it again"
        )
    unexpected = [key for key in random if "pooler" not in key and key not in TRAINING_PARAMETERS]
    if unexpected:
        log.warning(
            "%s has no weights for %d of %d parameters, such as %s: they are random, and features "
            "may be of little use",
            name.name,
            len(unexpected),
            len(sizes),
            unexpected[0],
        )
    return random


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
            f"{name.name} cannot be loaded ({describe_error(error)}); expected a complete folder or "
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


class _SentenceTransformers:
    """A model of sentence-transformers, with its own pooling and normalisation."""

    def __init__(self, name: EncoderName, modality: str, device: torch.device) -> None:
        library = import_encoder_library("sentence_transformers")
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
        if not is_encoder_folder(name.name):
            options |= {"revision": name.revision, "local_files_only": not is_hub_reachable()}
        try:
            self.model = library.SentenceTransformer(name.name, **options)
        except Exception as error:
            raise InputError(
                f"{name.name} cannot be loaded by sentence-transformers ({describe_error(error)}); "
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


class _Timm:
    """An image model of timm without its classifier."""

    def __init__(self, name: EncoderName, modality: str, device: torch.device) -> None:
        library = import_encoder_library("timm")
        if modality != IMAGE:
            raise InputError(
                f"timm:{name.name} encodes images, but these items are {_plural(modality)}"
            )
        if name.pooling not in ("", *TIMM_POOLINGS):
            raise InputError(
                f"timm:{name.name} has no pooling {name.pooling!r}; expected one of "
                f"{', '.join(TIMM_POOLINGS)}, or its name alone"
            )
        folder = fetch_folder(name)
        spelt = name.name if folder is None else f"local-dir:{folder}"
        pooling = {"global_pool": TIMM_POOLINGS[name.pooling]} if name.pooling else {}
        try:
            with offline_if_unreachable(), _without_root_handler():
                model = library.create_model(spelt, pretrained=True, num_classes=0, **pooling)
        except Exception as error:
            if folder is None and library.is_model_pretrained(spelt):
                source = library.get_pretrained_cfg(spelt).hf_hub_id
                raise _weights_missing(name, source, error) from error
            raise InputError(
                f"timm:{name.name} cannot be loaded ({describe_error(error)}); expected a name of "
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


def _weights_missing(name: EncoderName, source: str | None, error: Exception) -> InputError:
    """Return the error for weights that a library knows, but cannot fetch or read.

    Args:
        name: The encoder.
        source: Where the library looks on the hub.
        error: What it raised.
    """
    repository = (source or "").strip("/")
    if is_hub_reachable() or not repository:
        return InputError(
            f"the weights of {name.kind}:{name.name} cannot be loaded ({describe_error(error)}); "
            "try again, or give a folder that holds them"
        )
    return InputError(
        f"the weights of {name.kind}:{name.name} are not in the cache of this machine and "
        f"huggingface.co cannot be reached; {download_command(repository)}"
    )


@contextmanager
def _without_root_handler() -> Iterator[None]:
    """Keep a library from writing to the root logger, which would add a handler to it for good.

    What it has to say is in its error.
    """
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class _OpenClip:
    """Either tower of an OpenCLIP model."""

    def __init__(self, name: EncoderName, modality: str, device: torch.device) -> None:
        library = import_encoder_library("open_clip")
        if modality not in (IMAGE, TEXT):
            raise InputError(f"open_clip:{name.name} encodes images and texts, not {modality}")
        if name.pooling not in ("", "projection"):
            raise InputError(
                f"open_clip:{name.name} gives its projection; expected its name without "
                f"#{name.pooling}"
            )
        folder = fetch_folder(name)
        model, _, weights = ("", "", "") if folder else name.name.partition("/")
        spelt = f"local-dir:{folder}" if folder else model
        known = library.get_pretrained_cfg(model, weights) or {}
        try:
            with offline_if_unreachable(), _without_root_handler():
                # This function refuses a model without weights, whose features would be random.
                made, transform = library.create_model_from_pretrained(
                    spelt,
                    pretrained=weights or None,
                    force_quick_gelu=bool(known.get("quick_gelu")),  # as the weights were trained
                )
                self.tokenizer = library.get_tokenizer(spelt) if modality == TEXT else None
        except Exception as error:
            if known:
                raise _weights_missing(name, known.get("hf_hub", ""), error) from error
            raise InputError(
                f"open_clip:{name.name} cannot be loaded ({describe_error(error)}); expected "
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
