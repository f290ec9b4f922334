"""Exported models: a fitted model with its preprocessing, its classes and its accuracy.

    model.json     classes, preprocessing, network, data, labels, accuracy
    weights.pt     tensors only
    model.onnx     the same for other programs, if requested
    README.md      a model card

Loading such a folder runs no code from it.
"""

import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from labelahead.batching import Samples
from labelahead.data import Data
from labelahead.data.columns import GuessColumn, SentenceColumn, parse_entry
from labelahead.data.excel import split_sheet
from labelahead.data.joined_embeddings import split_joined_embedding
from labelahead.data.loading import TABLE_SUFFIXES
from labelahead.data.new_items import (
    NewItems,
    encode_table_rows,
    match_image_format,
    read_new_items,
)
from labelahead.data.preprocessing import (
    COLUMN_INPUTS,
    ENCODED_PICTURES,
    ENCODED_SOUNDS,
    PICTURE_INPUTS,
    VECTORS,
    Preprocessor,
)
from labelahead.data.records import AUTO_ID, Records, choose_id_column, join_records
from labelahead.data.sounds import Wave
from labelahead.data.table import Table
from labelahead.data.table_writer import (
    build_arrow_table,
    merge_columns,
    probability_column_name,
    write_csv,
)
from labelahead.data.vector_files import vector_column_name
from labelahead.devices import has_float64, resolve_device
from labelahead.errors import (
    InputError,
    LabelaheadError,
    MissingExtra,
    ModelError,
    count_noun,
    import_extra,
)
from labelahead.files import replace_file, write_atomically
from labelahead.inference.exact import predict_proba
from labelahead.inference.exact_model import ExactModel, find_kernel_model
from labelahead.learner.config import Campaign
from labelahead.learner.encoding import SENTENCES, is_encoder
from labelahead.learner.model_card import format_model_card
from labelahead.learner.model_kind import get_model_kind
from labelahead.learner.onnx import (
    EncoderGraph,
    ExportGraph,
    PreprocessingModule,
    list_task_outputs,
    write_onnx,
)
from labelahead.models import MODELS
from labelahead.models.encoder_names import (
    AUDIO,
    IMAGE,
    TEXT,
    is_encoder_prefix,
    relocate_encoder,
    resolve_encoder,
)
from labelahead.models.encoders import load_encoder
from labelahead.models.mel import MEL, embed_waves
from labelahead.models.sentence_encoder import EMBEDDING_SIZE, SentenceEncoder
from labelahead.models.training import Training
from labelahead.tasks import TASKS, Multilabel, Prediction, Rating, Task, find_task

__all__ = [
    "LEAVE_ONE_OUT_CAVEAT",
    "ExportedModel",
    "Predictions",
    "export_model",
    "load_exported",
    "write_predictions",
]

FORMAT_VERSION = 1
TASK_FORMAT_VERSION = 2  # of models of other tasks than classes, which 1 would misread
ITEMS_PER_BATCH = 64
ONNX_EXAMPLE_ITEMS = 5
MAX_NAMED_ITEMS = 5  # in an error message
# An item is unlike anything labelled if its variance exceeds this quantile of the leave-one-out
# variances of the labelled items.
NOVELTY_QUANTILE = 0.95
LEAVE_ONE_OUT_CAVEAT = (
    "by leaving out each label in turn; those that were chosen are hard ones, so it is "
    "commonly lower than on all"
)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for some items.

    Attributes:
        items: Names of the items.
        classes: Names of the classes.
        probabilities: (n, C).
        variance: (n,) posterior variance of the exact learner; the prior variance is 1.
        unlike: (n,) bool, see `ExportedModel`.
        failed: Items that could not be read, and why.
        records: The user's own columns.
        notes: What the user has to know about them.
        answers: What the task predicts, if it is another one than classes; `probabilities` are then
            those of its classes or levels, and of numbers there are none.
        outputs: Posterior means of that task.
    """

    items: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: Tensor  # (n, C)
    variance: Tensor | None = None  # (n,)
    unlike: Tensor | None = None  # (n,) bool
    failed: Mapping[str, str] = field(default_factory=dict)  # items that could not be read, and why
    records: Records | None = None  # the user's own columns
    notes: tuple[str, ...] = ()
    answers: Prediction | None = None
    outputs: Tensor | None = None  # (n, D)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def labels(self) -> list[Any]:
        """The most probable class of each item; of another task the predicted answer."""
        if self.answers is not None:
            return self.answers.values()
        return [self.classes[i] for i in self.probabilities.argmax(1).tolist()]

    def columns(self, probabilities: bool = False) -> dict[str, Any]:
        """Return a table: id, the user's columns, prediction, probability, unlike_labelled (None:
        unknown). Numbers have an interval in place of the probability (`NumberPrediction`).

        Args:
            probabilities: Whether to add a column `probability:CLASS` for every class.
        """
        unlike = [None] * len(self) if self.unlike is None else self.unlike.tolist()
        if self.answers is not None:
            ours = round_columns(self.answers.columns(probabilities))
            return merge_columns(self.items, self.records, {**ours, "unlike_labelled": unlike})
        prediction_columns = {
            "prediction": self.labels,
            "probability": _rounded(self.probabilities.amax(1)),
        }
        if probabilities:
            prediction_columns |= {
                probability_column_name(c): _rounded(self.probabilities[:, i])
                for i, c in enumerate(self.classes)
            }
        return merge_columns(
            self.items, self.records, {**prediction_columns, "unlike_labelled": unlike}
        )


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A fitted model that predicts new items.

    The exact learner also reports items that are unlike anything labelled: their posterior variance
    exceeds `threshold`, the 95 % quantile of the leave-one-out variances of the labelled items.

    Attributes:
        network: inputs -> outputs (n, C).
        classes: Names of the classes.
        preprocessor: How items become inputs of the network; None if they were prepared in Python.
            Its key in the files is `reading`, as in 0.2.
        loss: The loss the network was trained with.
        about: Data, labels, accuracy, and how to build the network; plain values.
        device: Where encoder and network run; see `to`.
    """

    network: nn.Module
    classes: tuple[str, ...]
    preprocessor: Preprocessor | None
    loss: str
    about: Mapping[str, Any]
    device: str = "cpu"

    def to(self, device: str) -> "ExportedModel":
        """Return the model on a device: "auto", "cpu", "cuda", "cuda:N" or "mps".

        The exact learner and the preprocessing stay on the CPU if the device has no float64.
        """
        name = resolve_device(device)
        if not isinstance(self.network, ExactModel) or has_float64(torch.device(name)):
            self.network.to(name)
        return replace_fields(self, device=name)

    @cached_property
    def preprocessing(self) -> PreprocessingModule | None:
        """The preprocessing before the network."""
        if self.preprocessor is None:
            return None
        module = PreprocessingModule(self.preprocessor).eval()
        on_device = module.trunk is not None and has_float64(torch.device(self.device))
        return module.to(self.device) if on_device else module

    @property
    def task(self) -> Task | None:
        """What the model predicts; None: one class."""
        return None if self._exact is None else self._exact.task

    @property
    def _exact(self) -> ExactModel | None:
        """The exact learner's model, if it has labels."""
        return find_kernel_model(self.network)

    @cached_property
    def threshold(self) -> float | None:
        """Variances above it are unlike anything labelled."""
        exact = self._exact
        return (
            None
            if exact is None
            else float(torch.quantile(exact.leave_one_out_variance(), NOVELTY_QUANTILE))
        )

    def predict(
        self,
        items: Any,
        progress: Callable[[int], None] | None = None,
        *,
        id: str = AUTO_ID,
        without_guesses: bool = False,
    ) -> Predictions:
        """Predict items.

        Args:
            items: A path or several, arrays (n, ...) as they were read, or columns by name. A path
                is a folder or zip of images or sounds, one of them, a table or an .npz, whatever
                the model was made from.
            progress: Called with the number of predicted items.
            id: The column of a table that names the items, "none" for row numbers; default: that of
                the model's own data, else one called `id`.
            without_guesses: Predict without the guesses of columns, also where there are some. Else
                a note says if a column, with which the model was fitted, has none.
        """
        if isinstance(items, str | Path):
            items = [items]
        if isinstance(items, Sequence) and items and all(isinstance(i, str | Path) for i in items):
            fresh: Iterator[NewItems] = (
                part for source in items for part in self._read_path(source, len(items) > 1, id)
            )
        else:
            fresh = iter([self._read_arrays(items, id)])
        guessers, parts = self._find_guess_columns(), []
        missing = dict(guessers)
        for part in fresh:
            if without_guesses:
                for at in guessers.values():
                    part.values[:, at] = 0
            missing = {n: at for n, at in missing.items() if not bool(part.values[:, at].any())}
            parts.append(self._predict_items(part, progress))
        found = _concatenate(parts)  # raises if nothing could be read
        found = self._interpret(found)
        if without_guesses or not len(found):
            return found
        return replace_fields(found, notes=self._describe_missing_guesses(missing, len(found)))

    def _interpret(self, found: Predictions) -> Predictions:
        """Return predictions with what the task makes of the outputs."""
        if self.task is None or self._exact is None:
            return found
        nothing = torch.zeros((0, len(self.task.outputs)), dtype=torch.float64)
        mean = nothing if found.outputs is None else found.outputs
        variance = nothing[:, 0] if found.variance is None else found.variance
        answers = self.task.predict(mean, variance, self._exact.get_task_state())
        p = getattr(answers, "probabilities", nothing.new_zeros((len(answers), 0)))
        return replace_fields(found, answers=answers, probabilities=p)

    def _describe_missing_guesses(self, missing: Collection[str], items: int) -> tuple[str, ...]:
        """Return a note if there are no guesses of guessers with which the model was fitted."""
        others = 0 if self.preprocessor is None else self.preprocessor.guess_width
        if not (missing or others):
            return ()
        many = count_noun(items, "item")
        if others:
            return (
                f"the model was fitted with guesses about its items, and there are none about {many}: "
                "probabilities are those without guesses (--without-guesses accepts this)",
            )
        names = "column" if len(missing) == 1 else "columns"
        columns = ", ".join(repr(name) for name in missing)
        return (
            f"the model was fitted with guesses of the {names} {columns}, and there are none about "
            f"{many}: probabilities are those without guesses; add the {names}, or accept this with "
            "--without-guesses",
        )

    def _find_guess_columns(self) -> dict[str, slice]:
        """Return the columns of the inputs that hold the guesses of each column of a table.

        A guesser that the model does not trust is left out: its guesses change nothing.
        """
        if self.preprocessor is None or self._exact is None:
            return {}
        columns = [c for c in self.preprocessor.columns if isinstance(c, GuessColumn)]
        end = self.preprocessor.shape[0] - sum(len(c.classes) for c in columns)
        found = {}
        for j, column in enumerate(columns):  # they follow the features
            begin, end = end, end + len(column.classes)
            if bool(self._exact.trust[j].any()):
                found[column.name] = slice(begin, end)
        return found

    def outputs(self, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return probabilities (n, C) and variances (n,) of items as they were read, (n, *shape).

        Of another task than classes: its posterior means (n, D) in place of probabilities.
        """
        width = len(self.classes) if self.task is None else len(self.task.outputs)
        p, variance = [torch.zeros((0, width), dtype=torch.float64)], []
        for part in torch.split(values, ITEMS_PER_BATCH):
            with torch.no_grad():
                x = (
                    part
                    if self.preprocessing is None
                    else self.preprocessing(part.to(self.preprocessing.mean.device))
                )
            if self.task is not None and self._exact is not None:
                p.append(self._exact.predict_mean(self._exact.normalise_rows(x)).cpu())
            else:
                p.append(self.predict_proba(x))
            if self._exact is not None:
                variance.append(self._exact.predict_variance(self._exact.normalise_rows(x)).cpu())
        return torch.cat(p), torch.cat(variance) if variance else None

    def predict_proba(self, inputs: Tensor | Samples) -> Tensor:
        """Return class probabilities (n, C) for inputs of the network (n, ...).

        Raises:
            InputError: The task is numbers; `predict` has their means and intervals.
        """
        return predict_proba(self.network, inputs, self.loss, len(self.classes))

    def encode_texts(self, encoder: str, texts: list[str]) -> Tensor:
        """Return embeddings (n, d) of texts by the encoder of this name."""
        if encoder != SENTENCES:
            return load_encoder(encoder, TEXT, device=self.device).encode_all(texts)
        rows = torch.empty(len(texts), EMBEDDING_SIZE)
        for _ in self._sentence_encoder.encode_into(texts, rows):
            pass
        return rows

    def encode_pictures(self, encoder: str, pictures: list[Any]) -> Tensor:
        """Return embeddings (n, d) of PIL images by the encoder of this name."""
        return self._encode_by_name(encoder, IMAGE, pictures)

    def encode_sounds(self, encoder: str, sounds: list[Wave]) -> Tensor:
        """Return embeddings (n, d) of sounds by the encoder of this name."""
        if encoder == MEL:
            return embed_waves(sounds)
        return self._encode_by_name(encoder, AUDIO, sounds)

    def _encode_by_name(self, encoder: str, modality: str, items: list[Any]) -> Tensor:
        """Return embeddings (n, d) by one encoder, or by several that are joined."""
        blocks = [
            load_encoder(part, modality, device=self.device).encode_all(items)
            for part in split_joined_embedding(encoder)
        ]
        return torch.cat(blocks, 1)

    @cached_property
    def _sentence_encoder(self) -> SentenceEncoder:
        return SentenceEncoder(self.device)

    def _predict_items(
        self, fresh: NewItems, progress: Callable[[int], None] | None
    ) -> Predictions:
        if not len(fresh.values):
            none = torch.zeros((0, len(self.classes)), dtype=torch.float64)
            return Predictions((), self.classes, none, failed=fresh.failed)
        p, variance = self.outputs(fresh.values)
        if progress is not None:
            progress(len(p))
        unlike = None if variance is None or self.threshold is None else variance > self.threshold
        return Predictions(
            tuple(fresh.ids),
            self.classes,
            p,
            variance,
            unlike,
            fresh.failed,
            fresh.records,
            outputs=None if self.task is None else p,
        )

    @property
    def _id_column(self) -> str | None:
        """The column that names the items in the model's own data."""
        name: str | None = self.about.get("data", {}).get("id")
        return name

    def _read_path(self, source: str | Path, several: bool, id: str) -> Iterator[NewItems]:
        if self.preprocessor is None:
            raise InputError(
                "the inputs of this model were prepared in Python; expected items in "
                "Python, as the network "
                "takes them"
            )
        for part in read_new_items(
            self.preprocessor, source, self, id=id, likely_id=self._id_column
        ):
            suffix = split_sheet(source)[0].suffix.lower()
            inside = several and (
                Path(source).is_dir() or suffix in (".zip", ".npz", *TABLE_SUFFIXES)
            )
            failed = {f"{source}/{i}": why for i, why in part.failed.items()}
            yield (
                part._replace(ids=[f"{source}/{i}" for i in part.ids], failed=failed)
                if inside
                else part
            )

    def _read_arrays(self, items: Any, id: str) -> NewItems:
        """Convert items in memory."""
        table, preprocessor = None, self.preprocessor
        if (
            isinstance(items, Mapping)
            and preprocessor is not None
            and preprocessor.kind == COLUMN_INPUTS
        ):
            columns = {str(name): list(values) for name, values in items.items()}
            lengths = {len(values) for values in columns.values()}
            if len(lengths) > 1:
                raise InputError(
                    f"columns have {' and '.join(map(str, sorted(lengths)))} entries; expected as "
                    "many"
                )
            table = Table(
                columns, range(1, 1 + max(map(len, columns.values()), default=0)), unit="row"
            )
            values = encode_table_rows(preprocessor, table, "the table", self)
        else:
            values = items if isinstance(items, Tensor) else torch.as_tensor(np.asarray(items))
            values = values.float() if values.dtype == torch.float64 else values
        if preprocessor is not None and tuple(values.shape[1:]) != preprocessor.shape:
            form = "columns by name" if preprocessor.kind == COLUMN_INPUTS else "as they were read"
            raise InputError(
                f"items have shape {tuple(values.shape)}; expected (n, "
                f"{', '.join(map(str, preprocessor.shape))}), {form}"
            )
        if table is None:
            return NewItems([str(i) for i in range(len(values))], values, {})
        column = choose_id_column("the table", table.columns, id, likely=self._id_column)
        return NewItems(
            list(table.ids("the table", column)),
            values,
            {},
            replace_fields(table.records(), id_column=column),
        )

    def save(self, folder: str | Path, *, onnx: bool | None = None) -> Path:
        """Write a folder that can be copied elsewhere, in one step.

        Args:
            folder: Where to write.
            onnx: Whether to write `model.onnx` (extra 'onnx'). None: if possible; otherwise the
                model card gives the reason. True also puts a pretrained encoder by name into it,
                if torch can export that.
        """
        target = Path(folder)
        values, tensors = (None, {}) if self.preprocessor is None else self.preprocessor.to_dict()
        state = {f"network.{k}": v.detach().cpu() for k, v in self.network.state_dict().items()}
        about = {
            "format": FORMAT_VERSION if self.task is None else TASK_FORMAT_VERSION,
            "classes": list(self.classes),
            "loss": self.loss,
            "reading": values,
            **self.about,
        }
        about["threshold"] = self.threshold
        with write_atomically(target) as partial:
            partial.mkdir()
            about |= (
                self._write_onnx(partial / "model.onnx", required=onnx is True)
                if onnx is not False
                else {}
            )
            weights = state | {f"reading.{k}": t for k, t in tensors.items()}
            replace_file(
                partial / "weights.pt", lambda file: torch.save(weights, file)
            )  # reports disk errors
            (partial / "model.json").write_text(
                json.dumps(about, indent=1, ensure_ascii=False), encoding="utf-8"
            )
            (partial / "README.md").write_text(format_model_card(about), encoding="utf-8")
        return target

    def _write_onnx(self, path: Path, *, required: bool) -> dict[str, Any]:
        """Write the ONNX file and return its description.

        It contains the encoder only if it is required: such a file is as large as the encoder.
        """
        reason = {}
        try:
            if required and self._named_encoder is not None:
                try:
                    return {"onnx": self._write_onnx_with_encoder(*self._named_encoder, path)}
                except LabelaheadError as error:
                    path.unlink(missing_ok=True)
                    reason = {"onnx_without_encoder": str(error)}
            example = self._example_items()
            graph = ExportGraph(self.preprocessing, self.network, self.loss, len(self.classes))
            return {"onnx": write_onnx(graph, example, self._expect(example), path), **reason}
        except (MissingExtra, ModelError, InputError) as error:
            if required:
                raise
            return {"no_onnx": str(error)}

    @property
    def _named_encoder(self) -> tuple[str, str] | None:
        """Name and modality of the encoder by name, if the model sees its embeddings alone."""
        if self.preprocessor is None:
            return None
        columns = self.preprocessor.columns
        if self.preprocessor.kind == ENCODED_PICTURES:
            name, modality = self.preprocessor.features or "", IMAGE
        elif len(columns) == 1 and isinstance(columns[0], SentenceColumn):
            name, modality = columns[0].encoder, TEXT
        else:
            return None
        named = is_encoder_prefix(name) and len(split_joined_embedding(name)) == 1
        return (name, modality) if named else None

    def _write_onnx_with_encoder(self, name: str, modality: str, path: Path) -> dict[str, Any]:
        """Write encoder and model as one graph, and return its description."""
        encoder = load_encoder(name, modality, device="cpu")
        items: list[Any] = ["a text", "text", "a text that is longer than these two"]
        if modality == IMAGE:
            image = import_extra("PIL.Image", "photos", "images")
            rng = np.random.default_rng(0)
            pixels = rng.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
            items = [image.fromarray(one) for one in pixels]
        given = dict(encoder.backend.prepare(items))
        graph = ExportGraph(self.preprocessing, self.network, self.loss, len(self.classes))
        whole = EncoderGraph(encoder, graph, list(given))
        return write_onnx(whole, given, self._expect(encoder.encode(items)), path)

    def _expect(self, values: Tensor) -> tuple[Tensor | None, ...]:
        """Return what the graph of the model should compute for items as they were read."""
        first, variance = self.outputs(values)
        if self.task is None or self._exact is None or variance is None:
            return first, variance
        return (*list_task_outputs(self.task, self._exact, first, variance), variance)

    def _example_items(self) -> Tensor:
        """Return random items of the right shape, (5, *shape)."""
        if self.preprocessor is None:
            raise InputError("the model takes inputs given in Python; expected one tensor for ONNX")
        rng = torch.Generator().manual_seed(0)
        shape = (ONNX_EXAMPLE_ITEMS, *self.preprocessor.shape)
        if self.preprocessor.kind == PICTURE_INPUTS:
            return torch.randint(
                0, self.preprocessor.white + 1, shape, generator=rng, dtype=torch.uint8
            )
        return torch.randn(shape, generator=rng)


def _concatenate(parts: Sequence[Predictions]) -> Predictions:
    """Concatenate predictions.

    Raises:
        InputError: No item could be read.
    """
    first, failed = parts[0], {k: why for p in parts for k, why in p.failed.items()}
    if failed and not any(len(p) for p in parts):
        some = "; ".join(f"{name} ({why})" for name, why in list(failed.items())[:MAX_NAMED_ITEMS])
        more = (
            f"; and {len(failed) - MAX_NAMED_ITEMS} more" if len(failed) > MAX_NAMED_ITEMS else ""
        )
        raise InputError(
            f"no item can be read: {some}{more}; expected at least one that can: see whether the "
            "files open elsewhere, "
            "and copy them again"
        )
    variance = [p.variance for p in parts if p.variance is not None]
    unlike = [p.unlike for p in parts if p.unlike is not None]
    return Predictions(
        tuple(i for p in parts for i in p.items),
        first.classes,
        torch.cat([p.probabilities for p in parts]),
        torch.cat(variance) if variance else None,
        torch.cat(unlike) if unlike else None,
        failed,
        join_records([p.records for p in parts], [len(p) for p in parts]),
        outputs=torch.cat([p.outputs for p in parts if p.outputs is not None])
        if any(p.outputs is not None for p in parts)
        else None,
    )


def round_columns(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return columns of a task with rounded numbers: probabilities to 6 places, others to 9 digits."""

    def shorten(name: str, value: Any) -> Any:
        if not isinstance(value, float):
            return value
        return round(value, 6) if name.startswith("probability") else float(f"{value:.9g}")

    return {name: [shorten(name, v) for v in values] for name, values in columns.items()}


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


class FittedData(Protocol):
    """What a model was fitted on, as `labelahead.learner.preparation` has it."""

    @property
    def campaign(self) -> Campaign:
        """The configuration."""

    @property
    def data(self) -> Data:
        """The data set."""

    @property
    def inputs(self) -> Tensor | Samples:
        """(n, ...) the inputs of the model."""

    @property
    def rows(self) -> Tensor:
        """The same as one tensor."""

    @property
    def training(self) -> Training:
        """The recipe."""

    @property
    def make_preprocessor(self) -> Callable[[], Preprocessor | None]:
        """Returns how other items become such inputs."""

    @property
    def has_guesses(self) -> bool:
        """Whether the last columns of the inputs are guesses."""

    @property
    def feature_width(self) -> int:
        """Number of columns of the inputs without the guesses."""


def export_model(
    prepared: FittedData,
    network: nn.Module,
    labels: Mapping[int, int],
    classes: Sequence[str],
    accuracy: Mapping[str, Any],
    *,
    items: int | None = None,
) -> ExportedModel:
    """Build an exportable model from these labels (position -> class).

    Args:
        ready: The prepared campaign.
        network: The fitted model.
        labels: position -> class number.
        classes: Names of the classes.
        accuracy: How accurate it is, and how that was determined.
        items: Number of items, if `prepared` holds a part of them.
    """
    campaign, embedding = prepared.campaign, prepared.campaign.data.embedding or ""
    parts = split_joined_embedding(embedding)
    is_code = ":" in embedding and not any(is_encoder(part, prepared.data) for part in parts)
    if is_code and embedding not in prepared.data.vectors:
        raise InputError(
            f"the model uses your own embedding {embedding}, whose code cannot be exported; "
            "expected vectors that "
            "come with the items: write what it makes of them into a column or an .npz, and name "
            "that as the embedding"
        )
    given = list(labels.values())
    own = None if prepared.data.records is None else prepared.data.records.id_column
    shape = list(prepared.rows.shape[1:]) if isinstance(prepared.inputs, Tensor) else []
    about: dict[str, Any] = {
        "labelahead": version("labelahead"),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": {
            "name": prepared.data.name,
            "items": items or len(prepared.data),
            "kind": prepared.data.kind,
            "id": own,
        },
        **_describe_labels(find_kernel_model(network), given, classes),
        "network": {
            "name": campaign.model.name,
            "width": campaign.model.width,
            "dropout": campaign.model.dropout,
            "shape": shape,
        },
        "accuracy": dict(accuracy),
    }
    found = [resolve_encoder(part) for part in parts if is_encoder(part, prepared.data)]
    described = [{"id": e.name, "revision": e.revision, "by": e.kind} for e in found]
    if described:
        about["encoder"] = described[0] if len(described) == 1 else described
    if (kernel_model := find_kernel_model(network)) is not None:
        kernel_model.ensure_variance_scale()  # is saved with the weights
    loss = get_model_kind(campaign.model.name).get_loss(prepared.training)
    if kernel_model is not None and kernel_model.task is not None:
        classes = _list_task_classes(kernel_model.task)
    model = ExportedModel(
        network.cpu().eval(), tuple(classes), prepared.make_preprocessor(), loss, about
    )
    _check_preprocessing(model, prepared)
    return model


def _list_task_classes(task: Task) -> Sequence[str]:
    """Return the classes, levels or targets of a task that can be loaded again by its name."""
    if task.name not in TASKS:
        raise InputError(
            f"the model has your own task {task.name}, whose code cannot be exported; expected one "
            f"of {', '.join(TASKS)}"
        )
    return task.levels if isinstance(task, Rating) else task.outputs


def _describe_labels(
    model: ExactModel | None, labels: Sequence[int], classes: Sequence[str]
) -> dict[str, Any]:
    """Return the labels of every class, and the task if it is another one than classes."""
    task = None if model is None else model.task
    if task is None:
        return {"labels": {name: list(labels).count(i) for i, name in enumerate(classes)}}
    described = {key: value for key, value in task.describe().items() if key != "answers"}
    counts: dict[str, int] = {}
    if task.decides:
        present = (task.targets(labels) == 1).sum(0).tolist()
        counts = dict(zip(task.outputs, present, strict=True))
    elif task.codes_are_classes:
        counts = {task.write(code): list(labels).count(code) for code in range(len(task.answers))}
    found: dict[str, Any] = {"labels": counts, "labelled": len(labels), "task": described}
    if isinstance(task, Multilabel) and model is not None:
        thresholds = task.get_thresholds(model.get_task_state())
        found["thresholds"] = dict(zip(task.outputs, thresholds.tolist(), strict=True))
    return found


def _check_preprocessing(model: ExportedModel, prepared: FittedData) -> None:
    """Raise unless the exported preprocessing reproduces the inputs that the model was fitted on."""
    preprocessor, data = model.preprocessor, prepared.data
    at = torch.arange(min(4, len(data)))
    if preprocessor is None or model.preprocessing is None:
        return
    if preprocessor.kind == COLUMN_INPUTS and data.rows is not None:
        columns: dict[str, Any] = {
            k: [values[int(i)] for i in at] for k, values in data.rows.columns.items()
        }
        columns |= {
            vector_column_name(name): vectors[at].float().numpy()
            for name, vectors in data.vectors.items()
        }
        texts = {} if data.texts is None else data.texts.columns
        columns |= {k: [values[int(i)] for i in at] for k, values in texts.items()}
        entry = (
            str if all(c.name in texts for c in preprocessor.columns) else parse_entry
        )  # texts are strings already
        values = encode_table_rows(
            preprocessor, Table(columns, range(len(at)), unit="row"), data.name, model, entry
        )
    elif preprocessor.kind == VECTORS:
        values = data.vectors[prepared.campaign.data.embedding or ""][at].float()
    elif preprocessor.kind == ENCODED_PICTURES and data.images is not None:
        assert preprocessor.features is not None
        values = model.encode_pictures(
            preprocessor.features, [data.images.open_picture(int(i)) for i in at]
        )
    elif preprocessor.kind == ENCODED_SOUNDS and data.sounds is not None:
        assert preprocessor.features is not None
        values = model.encode_sounds(
            preprocessor.features, [data.sounds.read_wave(int(i)) for i in at]
        )
    elif (
        preprocessor.kind == PICTURE_INPUTS
        and data.images is not None
        and preprocessor.shape[1] == preprocessor.shape[2]
    ):
        values = match_image_format(
            preprocessor, data.images.batch(at, preprocessor.shape[1]).float()
        )
    else:
        return
    with torch.no_grad():
        computed = model.preprocessing(values)
    expected = prepared.rows[at]
    if prepared.has_guesses:  # further items may have none
        computed, expected = (part[:, : prepared.feature_width] for part in (computed, expected))
    if not torch.allclose(computed, expected, rtol=1e-3, atol=1e-3):
        far = float((computed - expected).abs().max())
        raise LabelaheadError(
            f"items of {data.name} read again differ from the inputs that the model was fitted on, "
            f"by up to {far:.2g}: have the files changed? If not, this is a defect of labelahead: "
            "please report it"
        )


def write_predictions(
    predictions: Predictions, path: Path | None, *, probabilities: bool = False
) -> str | None:
    """Write predictions as CSV, or as Parquet by the suffix, in one step.

    Args:
        predictions: What to write.
        path: Where to; None: return the CSV text.
        probabilities: Whether to add the probability of every class.
    """
    columns = predictions.columns(probabilities)
    task_of_numbers = predictions.answers is not None and not all(
        isinstance(value, str) for value in columns["prediction"]
    )
    if path is not None and path.suffix.lower() in (".parquet", ".pq"):
        arrow = import_extra("pyarrow", "tables", "the form Parquet")
        parquet = import_extra("pyarrow.parquet", "tables", "the form Parquet")
        kind = arrow.float64() if task_of_numbers else arrow.string()
        table = build_arrow_table(columns, {"prediction": kind, "unlike_labelled": arrow.bool_()})
        replace_file(path, lambda file: parquet.write_table(table, file))
        return None
    words = {None: "", True: "yes", False: "no"}
    columns["unlike_labelled"] = [words[unlike] for unlike in columns["unlike_labelled"]]
    text = io.StringIO(newline="")
    write_csv(text, columns)
    if path is None:
        return text.getvalue()
    replace_file(path, text.getvalue())
    return None


def load_exported(
    folder: str | Path, *, network: nn.Module | str | None = None, encoder: str | Path | None = None
) -> ExportedModel:
    """Load a model that `ExportedModel.save` wrote.

    Args:
        folder: The folder.
        network: Your own network, or its name, if the model is one; its weights are replaced.
        encoder: Where the folder of the model's encoder lies now, if it has moved.
    """
    path = Path(folder)
    about, state = _read_about(path / "model.json"), _read_weights(path / "weights.pt")
    if encoder is not None:
        _relocate_encoder(path, about, str(encoder))
    weights, preprocessor_tensors = (
        {k[8:]: v for k, v in state.items() if k.startswith(side)}
        for side in ("network.", "reading.")
    )
    try:
        preprocessor = (
            None
            if about["reading"] is None
            else Preprocessor.from_dict(about["reading"], preprocessor_tensors)
        )
        built = network if isinstance(network, nn.Module) else _build_network(path, about, network)
    except LabelaheadError:
        raise
    except Exception as error:  # any value may have a wrong type
        raise _damaged_error(path / "model.json", error) from error
    try:
        built.load_state_dict(weights)
    except RuntimeError as error:
        cause = str(error).strip().splitlines()[-1].strip()
        raise InputError(f"the weights of {path} do not fit the network ({cause})") from error
    return ExportedModel(built.eval(), tuple(about["classes"]), preprocessor, about["loss"], about)


def _relocate_encoder(path: Path, about: dict[str, Any], folder: str) -> None:
    """Replace the folder of the encoder in a model's description."""
    preprocessor = about["reading"] or {}
    named = [column for column in preprocessor.get("columns", ()) if column.get("encoder")]
    candidates = [(preprocessor, "features"), *((column, "encoder") for column in named)]
    found = [
        (table, key) for table, key in candidates if is_encoder_prefix(str(table.get(key) or ""))
    ]
    if not found:
        raise InputError(f"{path} uses no encoder by name; leave encoder out")
    names = {name for table, key in found for name in split_joined_embedding(table[key])}
    if len(names) > 1:
        raise InputError(
            f"{path} uses several encoders, so one new folder does not say which has moved; "
            "expected their folders where they were: leave encoder out"
        )
    for table, key in found:
        table[key] = relocate_encoder(table[key], folder)


def _read_about(path: Path) -> dict[str, Any]:
    """Read and check `model.json`."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.parent} holds no exported model (no {path.name})") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged_error(path, error) from error
    if not isinstance(about, dict):
        raise _damaged_error(path, f"it holds a {type(about).__name__}, not an object")
    expected = TASK_FORMAT_VERSION if "task" in about else FORMAT_VERSION
    if about.get("format") != expected:
        raise InputError(
            f"{path} is of format {about.get('format')}; expected {expected}: of this "
            "version of labelahead"
        )
    kinds = {"classes": list, "loss": str, "reading": dict | None, "network": dict}
    for key, kind in kinds.items():
        if key not in about or not isinstance(about[key], kind):
            raise _damaged_error(
                path, f"{key} is {'missing' if key not in about else repr(about[key])[:60]}"
            )
    return about


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of `weights.pt` by name."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path.parent} holds no exported model (no {path.name})") from None
    except Exception as error:  # damaged files raise errors of any type
        raise _damaged_error(path, error) from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise _damaged_error(path, "it holds something other than tensors by name")
    return state


def _damaged_error(path: Path, cause: Exception | str) -> InputError:
    reason = (
        cause
        if isinstance(cause, str)
        else f"{type(cause).__name__}: {next(iter(str(cause).splitlines()), '')}"
    )
    return InputError(
        f"{path} is damaged ({reason[:200]}); copy the folder again, or export the model again"
    )


def _build_network(path: Path, about: Mapping[str, Any], own: str | None) -> nn.Module:
    network = about["network"]
    name, shape, classes = network["name"], tuple(network["shape"]), max(len(about["classes"]), 2)
    if "task" in about:
        task = find_task(**about["task"])
        return ExactModel(torch.zeros(prod(shape)), len(task.outputs), task=task)
    kind = get_model_kind(name)
    if kind.needs_training and name not in MODELS and own is None:
        raise InputError(
            f"{path} holds the weights of your own network {name}, whose code is not in it; "
            "expected the network: "
            "load_model(folder, network=...), or --network file.py:function"
        )
    options = {} if network["dropout"] is None else {"dropout": network["dropout"]}
    return kind.build_model(own or name, shape, classes, width=network["width"], **options)
